"""Tensors out of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f64, i64
from xdsl.ir import Attribute, SSAValue

from ...dialects.extents import SymbolAttr, most
from ...dialects.payload import is_float
from .builder import Builder, Number, work_type
from .registry import decomposes


def filled(b: Builder, value: Number) -> SSAValue:
    """`value` everywhere in a tensor of the declared result's type."""
    return b.constant(value, b.result_shape, b.result_element)


@decomposes("full")
def full(b: Builder, size: Sequence[int], fill_value: Number, dtype: Attribute | None) -> SSAValue:
    return filled(b, fill_value)


@decomposes("full_like")
def full_like(b: Builder, self: SSAValue, fill_value: Number, dtype: Attribute | None) -> SSAValue:
    return filled(b, fill_value)


@decomposes("new_full")
def new_full(b: Builder, self: SSAValue, size: Sequence[int], fill_value: Number, dtype: Attribute | None) -> SSAValue:
    return filled(b, fill_value)


@decomposes("zeros")
def zeros(b: Builder, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("zeros_like")
def zeros_like(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("new_zeros")
def new_zeros(b: Builder, self: SSAValue, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("ones")
def ones(b: Builder, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 1)


@decomposes("ones_like")
def ones_like(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return filled(b, 1)


@decomposes("new_ones")
def new_ones(b: Builder, self: SSAValue, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 1)


# A tensor of undefined contents is one of zeros: any value will do, and this one is the same every time.
@decomposes("empty.memory_format")
def empty(b: Builder, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("empty_like")
def empty_like(b: Builder, self: SSAValue, dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("new_empty")
def new_empty(b: Builder, self: SSAValue, size: Sequence[int], dtype: Attribute | None) -> SSAValue:
    return filled(b, 0)


@decomposes("scalar_tensor")
def scalar_tensor(b: Builder, s: Number, dtype: Attribute | None) -> SSAValue:
    return filled(b, s)


@decomposes("arange", "arange.start", "arange.start_step")
def arange(b: Builder, end: Number, dtype: Attribute | None, start: Number = 0, step: Number = 1) -> SSAValue:
    return ramp(b, start, step)


def ramp(b: Builder, start: Number, step: Number) -> SSAValue:
    """start, start + step, ... as the declared result. PyTorch computes it in i64, or in f64 for floats."""
    if not is_float(b.result_element):
        start, step = (
            v if isinstance(v, SymbolAttr) else int(v) for v in (start, step)
        )  # only the number of elements follows from the fractions
    index = b.iota(0, b.result_shape, i64)
    if isinstance(start, SymbolAttr) or isinstance(step, SymbolAttr):
        return b.plus(b.mul(index, b.like(index, step)) if step != 1 else index, start)
    exact = f64 if isinstance(start, float) or isinstance(step, float) or is_float(b.result_element) else i64
    if start == int(start) and step == int(step) and abs(start) + abs(step) * most(b.result_shape[0]) < 1 << 24:
        exact = i64  # integers that every float type but the short ones holds exactly
        start, step = int(start), int(step)
    x = b.cast(index, exact)
    x = b.mul(x, b.like(x, step)) if step != 1 else x
    return b.plus(x, start) if start != 0 else x


@decomposes("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(
    b: Builder, start: SSAValue | Number, end: SSAValue | Number, steps: int, dtype: Attribute | None
) -> SSAValue:
    """Both halves are counted from their own end. Integer ends are rounded first, then each element, toward zero."""
    first, last = (_end(b, v, steps) for v in (start, end))
    if steps == 1:
        return first
    index = b.cast(b.iota(0, b.result_shape, i64), f64)
    step = b.div(b.sub(last, first), b.like(first, steps - 1))
    rising = b.add(first, b.mul(step, index))
    falling = b.sub(last, b.mul(step, b.sub(b.like(index, steps - 1), index)))
    return b.select(b.cmp("lt", index, steps // 2), rising, falling)


def _end(b: Builder, value: SSAValue | Number, steps: int) -> SSAValue:
    if not isinstance(value, SSAValue):
        value = b.constant(value, [], f64)
    return b.broadcast(b.cast(b.cast(value, b.result_element), f64), [steps])


@decomposes("eye", "eye.m")
def eye(b: Builder, n: int, dtype: Attribute | None, m: int | None = None) -> SSAValue:
    shape = b.result_shape
    element = work_type(b.result_element)
    diagonal = b.cmp("eq", b.iota(0, shape), b.iota(1, shape))
    return b.select(diagonal, b.constant(1, shape, element), b.constant(0, shape, element))
