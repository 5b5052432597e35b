"""Conversions of data types, and operators that copy."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_bytes, element_type, is_float8, with_element
from ....dialects.tensor.builder import Builder, Number
from .registry import decomposes


@decomposes("_to_copy", "to.dtype", "to.device", "to.dtype_layout")
def to_dtype(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return self if dtype is None else b.cast(self, dtype)


@decomposes("view.dtype")
def view_bits(b: Builder, self: SSAValue, dtype: Attribute) -> SSAValue:
    """The same bits in another type of the same size."""
    own, wanted = element_type(self.type), b.result_element
    if own == wanted:
        return self
    if is_float8(own) or is_float8(wanted) or i1 in (own, wanted) or element_bytes(own) != element_bytes(wanted):
        raise b.unsupported("dtype", f"only a type of the same size is supported, not {wanted} for {own}")
    if isinstance(own, IntegerType) and isinstance(wanted, IntegerType):
        return b.cast(self, b.result_element)  # signed or not
    return b.insert(arith.BitcastOp(self, with_element(self.type, wanted)))


@decomposes("clone", "alias", "detach", "contiguous", "lift_fresh_copy")
def clone(b: Builder, self: SSAValue) -> SSAValue:
    return self


@decomposes("copy")
def copy(b: Builder, self: SSAValue, src: SSAValue) -> SSAValue:
    return b.broadcast(b.cast(src, b.result_element), b.result_shape)


@decomposes("fill.Scalar", "fill.Tensor")
def fill(b: Builder, self: SSAValue, value: SSAValue | Number) -> SSAValue:
    return b.operand(value, b.result_element, b.result_shape)
