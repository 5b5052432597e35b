"""PyTorch's type promotion, for operators whose result type does not say what they compute in."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import BFloat16Type, Float16Type, bf16, f16, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float, scalar_attr
from ....dialects.shapes.extents import SymbolAttr, extents_of
from ....dialects.tensor.builder import UINT8, Number, wrapped_number

_INTEGERS: list[Attribute] = [i8, i16, i32, i64]
_FLOATS: list[Attribute] = [f16, bf16, f32, f64]


def promote(x: Attribute, y: Attribute) -> Attribute:
    """The type to which tensors of element types `x` and `y` are brought before they meet."""
    if x == y:
        return x
    if is_float(x) or is_float(y):
        if not (is_float(x) and is_float(y)):
            return x if is_float(x) else y
        if isinstance(x, Float16Type | BFloat16Type) and isinstance(y, Float16Type | BFloat16Type):
            return f32
        return max(x, y, key=_FLOATS.index)
    if i1 in (x, y):
        return y if x == i1 else x
    if UINT8 in (x, y):
        other = y if x == UINT8 else x
        return i16 if other == i8 else other
    return max(x, y, key=_INTEGERS.index)


def common_element(values: Sequence[SSAValue | Number]) -> Attribute:
    """The element type in which tensors and Python numbers meet.

    Tensors with dimensions decide; a tensor of rank 0, and then a number, count only where they are of a higher kind
    (boolean, integer, float).
    """
    ranked: Attribute | None = None
    zero: Attribute | None = None
    number: Attribute | None = None
    for value in values:
        if not isinstance(value, SSAValue):
            own = i1 if isinstance(value, bool) else i64 if isinstance(value, int | SymbolAttr) else f32
            number = own if number is None else promote(number, own)
        elif extents_of(value.type):
            ranked = _join(ranked, element_type(value.type))
        else:
            zero = _join(zero, element_type(value.type))
    found = _combine(ranked, _combine(zero, number))
    assert found is not None, "no values"
    return found


def _join(x: Attribute | None, y: Attribute) -> Attribute:
    return y if x is None else promote(x, y)


def _combine(higher: Attribute | None, lower: Attribute | None) -> Attribute | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    return lower if _kind(lower) > _kind(higher) else higher


def _kind(element: Attribute) -> int:
    return 2 if is_float(element) else 0 if element == i1 else 1


def rounded(value: Number, element: Attribute) -> Number:
    """`value` as it is after conversion to `element`: 0.1 rounded to bf16, for instance."""
    if isinstance(value, SymbolAttr):
        return value
    return scalar_attr(value, element).value.data if is_float(element) else wrapped_number(value, element)
