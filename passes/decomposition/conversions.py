"""Conversions of data types, and operators that copy."""

from __future__ import annotations

from xdsl.ir import Attribute, SSAValue

from ...dialects.payload import element_type
from .builder import Builder
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
