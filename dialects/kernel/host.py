"""The host side of the kernel level: what launches get besides whole buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, IndexType, MemRefType
from xdsl.ir import Attribute
from xdsl.irdl import base, irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from ..payload import element_bytes, element_type
from ..shapes.extents import Extent, SymbolAttr, extents_of, fixed, static
from ..support.assembly import PureOp

BUFFER_ALIGNMENT = 256
"""Bytes to which a buffer between arguments and results is aligned."""

ALIGNMENT = 16
"""Bytes to which the start of every buffer that a kernel gets is aligned: its widest access."""


def aligned(size: Any) -> Any:
    """What a buffer of so many bytes, a number or a column of numbers, takes between arguments and results."""
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


@irdl_op_definition
class SliceOp(PureOp):
    """Host: one row of a buffer, or the beginning of it, as a buffer of its own, in the same memory.

    The row is element map(index) of the leading dimension; the slice is its first elements in memory, as many as its
    type has. Kernels rely on the alignment of buffers, so a row's size is a multiple of 16 bytes unless it is the only
    one.

    ```
    %row = kernel.slice %h[%t mod 2] : memref<2x64xf32> -> memref<3x5xf32>
    ```
    """

    name = "kernel.slice"
    source = operand_def(base(MemRefType))
    map = prop_def(AffineMapAttr)
    index = operand_def(IndexType())
    result = result_def(base(MemRefType))
    assembly_format = "$source `` custom<Row>($map, $index) attr-dict `:` type($source) `->` type($result)"

    @property
    def rows(self) -> int:
        """How many rows the buffer has."""
        return fixed(extents_of(self.source.type)[0])

    @property
    def row_extents(self) -> tuple[Extent, ...]:
        """The extents of a row."""
        return extents_of(self.source.type)[1:]

    def row(self, index: int) -> int:
        """The number of the row for this index."""
        return self.map.data.eval([index], [])[0]

    def verify_(self) -> None:
        map = self.map.data
        if (map.num_dims, map.num_symbols, len(map.results)) != (1, 0, 1):
            raise VerifyException(f"the row is one expression of one index, not {map}")
        source, result = self.source.type, self.result.type
        if not extents_of(source):
            raise VerifyException(f"{source} has no rows")
        if element_type(source) != element_type(result):
            raise VerifyException(f"a slice of {source} has its element type, not that of {result}")
        row, part = self.row_extents, extents_of(result)
        if part != row and prod(static(part)) > prod(static(row)):
            raise VerifyException(f"{result} is larger than a row of {source}")
        size = _known(row) * element_bytes(element_type(source))
        if self.rows > 1 and size % ALIGNMENT:
            raise VerifyException(f"rows of {size} bytes: not a multiple of {ALIGNMENT}")


def padded_row(t: Attribute) -> tuple[Extent, ...]:
    """The shortest row that a buffer of the tensor type `t` fits into, as `SliceOp` needs rows: its own shape if that
    is one, else all of its elements with a gap behind them; with a size known at run time, a gap at the end of each
    line. Raises ExtentError where the last dimension is such a size."""
    size, shape = element_bytes(element_type(t)), extents_of(t)
    if _known(shape) * size % ALIGNMENT == 0:
        return shape
    *outer, last = shape if any(isinstance(e, SymbolAttr) for e in shape) else [prod(static(shape))]
    step = ALIGNMENT // size
    return (*outer, -(-fixed(last) // step) * step)


def _known(shape: Sequence[Extent]) -> int:
    """The product of the extents that are numbers: what the product of all of them is a multiple of."""
    return prod(e for e in shape if isinstance(e, int))
