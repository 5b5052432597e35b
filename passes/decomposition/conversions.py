"""Conversions of data types, and operators that copy."""

from __future__ import annotations

from xdsl.ir import Attribute, SSAValue

from ...dialects.payload import element_type
from .builder import Builder, Number
from .registry import decomposes


@decomposes("_to_copy", "to.dtype", "to.device", "to.dtype_layout")
def to_dtype(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return self if dtype is None else b.cast(self, dtype)


@decomposes("to.other", "type_as")
def to_other(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.cast(self, element_type(other.type))


@decomposes("clone", "alias", "detach", "contiguous", "lift_fresh_copy")
def clone(b: Builder, self: SSAValue) -> SSAValue:
    return self


@decomposes("copy")
def copy(b: Builder, self: SSAValue, src: SSAValue) -> SSAValue:
    return b.broadcast(b.cast(src, b.result_element), b.result_shape)


@decomposes("fill.Scalar", "fill.Tensor")
def fill(b: Builder, self: SSAValue, value: SSAValue | Number) -> SSAValue:
    return b.operand(value, b.result_element, b.result_shape)
