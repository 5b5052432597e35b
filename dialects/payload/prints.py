"""Base class of `tile.print` and `kernel.print`: operations that print the elements of a value when a program runs."""

from __future__ import annotations

from xdsl import irdl
from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType, MemRefType, StringAttr, i1
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from ..support.assembly import OrderedOp
from . import element_type, with_element


def is_printable(t: Attribute) -> bool:
    """Returns true if values of type `t` are numbers: a scalar, a tile, or registers."""
    return isinstance(element_type(t), AnyFloat | IntegerType | IndexType) and not isinstance(t, MemRefType)


class PrintingOp(OrderedOp):
    """Base class of operations that print the elements of a value: one line `label[i, j] = value` for each element.

    The operation has a side effect. So it is not erased, merged, moved across another effect, or repeated.

    label: text before the indices.
    value: numbers to print.
    indices: printed index of each element, one operand for each dimension.
    mask: elements that are printed (`where`); by default all.
    """

    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    label = irdl.prop_def(StringAttr)
    value = irdl.operand_def()
    indices = irdl.var_operand_def()
    mask = irdl.opt_operand_def()
    assembly_format = (
        "$label $value `[` $indices `]` (`where` $mask^)? attr-dict `:` type($value)"
        " custom<DefinedTypes>(type($indices)) custom<DefinedTypes>(type($mask))"
    )

    def verify_(self) -> None:
        t = self.value.type
        if not is_printable(t):
            raise VerifyException(f"expected numbers to print, but got {t}")
        for index in self.indices:
            if index.type != with_element(t, IndexType()):
                raise VerifyException(f"expected indices of type {with_element(t, IndexType())}, but got {index.type}")
        if self.mask is not None and self.mask.type != with_element(t, i1):
            raise VerifyException(f"expected a mask of type {with_element(t, i1)}, but got {self.mask.type}")
        if not self.label.data.isprintable() or len(self.label.data) > MAX_LABEL:
            raise VerifyException(f"expected a label of at most {MAX_LABEL} printable characters, but got {self.label}")


MAX_LABEL = 80
"""Largest number of characters of a label."""
