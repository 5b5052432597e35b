"""Operators that create tensors from numbers, and convert or copy tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.dialects.builtin import f64, i1, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_bytes, element_type, is_float, is_float8
from ....dialects.shapes.extents import SymbolAttr, extents_of, most
from ....dialects.tensor.bits import bit_view
from ....dialects.tensor.builder import Builder, Number
from .registry import decomposes


def filled(b: Builder, value: Number) -> SSAValue:
    """Returns a tensor of the declared result type that is `value` everywhere."""
    return b.constant(value, b.result_shape, b.result_element)


@decomposes("full", "full_like", "new_full")
def full(
    b: Builder, fill_value: Number, dtype: Attribute | None, self: SSAValue | None = None, size: Sequence[int] = ()
) -> SSAValue:
    return filled(b, fill_value)


_FILLS = {
    0: """zeros zeros_like new_zeros empty.memory_format empty_like new_empty empty_strided new_empty_strided
    empty_permuted""".split(),
    1: ["ones", "ones_like", "new_ones"],
}
"""Fill value -> operators. Tensors with undefined contents (`empty`) are filled with zeros, so that runs are
reproducible. The strides of `empty_strided` are ignored, because tensors have no strides in the IR."""


def _fill(
    b: Builder,
    dtype: Attribute | None,
    self: SSAValue | None = None,
    size: Sequence[int] = (),
    stride: Sequence[int] = (),
    physical_layout: Sequence[int] = (),
    value: Number = 0,
) -> SSAValue:
    return filled(b, value)


for _value, _names in _FILLS.items():
    decomposes(*_names)(partial(_fill, value=_value))


@decomposes("scalar_tensor")
def scalar_tensor(b: Builder, s: Number, dtype: Attribute | None) -> SSAValue:
    return filled(b, s)


@decomposes("arange", "arange.start", "arange.start_step")
def arange(b: Builder, end: Number, dtype: Attribute | None, start: Number = 0, step: Number = 1) -> SSAValue:
    """Returns start, start + step, start + 2 * step, and so on. As in PyTorch, integers are computed in i64, and floats
    in f64.

    Args:
        b: Builder of the operator. Its declared result has the number of elements.
        end: Not used: the number of elements is known.
        dtype: Not used: the builder has the element type of the result.
        start: First element.
        step: Difference of adjacent elements.
    """
    # For an integer result, fractions of `start` and `step` only affect the number of elements.
    if not is_float(b.result_element):
        start, step = (v if isinstance(v, SymbolAttr) else int(v) for v in (start, step))
    index = b.iota(0, b.result_shape, i64)
    if isinstance(start, SymbolAttr) or isinstance(step, SymbolAttr):
        return b.plus(b.mul(index, b.like(index, step)) if step != 1 else index, start)
    exact = f64 if isinstance(start, float) or isinstance(step, float) or is_float(b.result_element) else i64
    if start == int(start) and step == int(step) and abs(start) + abs(step) * most(b.result_shape[0]) < 1 << 24:
        # f32 and f64 hold these integers exactly.
        exact = i64
        start, step = int(start), int(step)
    x = b.cast(index, exact)
    x = b.mul(x, b.like(x, step)) if step != 1 else x
    return b.plus(x, start) if start != 0 else x


@decomposes("_to_copy", "to.dtype", "to.device", "to.dtype_layout")
def to_dtype(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return self if dtype is None else b.cast(self, dtype)


@decomposes("view.dtype")
def view_bits(b: Builder, self: SSAValue, dtype: Attribute) -> SSAValue:
    """Returns the bits of `self` as another type. If the type has another size, the size of the last dimension
    changes."""
    source, target = element_type(self.type), b.result_element
    if source == target:
        return self
    if is_float8(source) or is_float8(target) or i1 in (source, target):
        raise b.unsupported("dtype", f"the bits of {source} as {target} are not supported")
    if element_bytes(source) != element_bytes(target) and not isinstance(extents_of(self.type)[-1], int):
        raise b.unsupported("dtype", f"{source} as {target}: a last dimension whose size varies is not supported")
    return bit_view(b, self, target, b.result_shape)


@decomposes("clone", "alias", "detach", "contiguous", "lift_fresh_copy")
def clone(b: Builder, self: SSAValue) -> SSAValue:
    return self


@decomposes("copy")
def copy(b: Builder, self: SSAValue, src: SSAValue) -> SSAValue:
    return b.broadcast(b.cast(src, b.result_element), b.result_shape)


@decomposes("fill.Scalar", "fill.Tensor")
def fill(b: Builder, self: SSAValue, value: SSAValue | Number) -> SSAValue:
    return b.operand(value, b.result_element, b.result_shape)
