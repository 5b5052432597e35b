"""Bits of tensors as another type."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i64
from xdsl.ir import Attribute, SSAValue

from ..payload import element_bytes, element_type, with_element
from ..shapes.extents import Extent
from .builder import Builder, dims


def bit_view(b: Builder, x: SSAValue, element: Attribute, shape: Sequence[Extent]) -> SSAValue:
    """Returns the bits of a tensor as another type. If the type has another size, the last dimension changes.

    Args:
        b: Builder of the operator.
        x: Tensor.
        element: Element type of the result; neither type is i1 or a float of 8 bits.
        shape: Shape of the result.
    """
    size, target_size = element_bytes(x.type), element_bytes(element)
    if size != target_size:
        bits = b.cast(_as_bits(b, x, IntegerType(8 * size)), i64)
        if size > target_size:
            bits = _split(b, bits, target_size, size // target_size, shape)
        else:
            bits = _joined(b, bits, size, target_size // size, shape)
        x = b.cast(bits, IntegerType(8 * target_size))
    return _as_bits(b, x, element)


def _as_bits(b: Builder, x: SSAValue, element: Attribute) -> SSAValue:
    """Returns the bits of `x` as another type of the same size."""
    source = element_type(x.type)
    # A cast between signed and unsigned integers of one width keeps the bits.
    if source == element or {type(source), type(element)} == {IntegerType}:
        return b.cast(x, element)
    return b.insert(arith.BitcastOp(x, with_element(x.type, element)))


def _split(b: Builder, bits: SSAValue, size: int, count: int, shape: Sequence[Extent]) -> SSAValue:
    """Splits each number into `count` parts of `size` bytes, lowest bytes first. Each part is in the low bits of an
    i64."""
    last = len(shape) - 1
    exprs = dims(last + 1)
    exprs[last] = exprs[last] // count
    part = b.rem(b.iota(last, shape), b.constant(count, shape, i64))
    return b.insert(arith.ShRSIOp(b.map(bits, exprs, shape), b.scaled(part, 8 * size)))


def _joined(b: Builder, bits: SSAValue, size: int, count: int, shape: Sequence[Extent]) -> SSAValue:
    """Joins `count` parts of `size` bytes into each number, lowest bytes first. Each part is in the low bits of an
    i64."""
    last = len(shape) - 1
    whole: SSAValue | None = None
    for i in range(count):
        exprs = dims(last + 1)
        exprs[last] = exprs[last] * count + i
        part = b.map(bits, exprs, shape)
        part = b.insert(arith.AndIOp(part, b.like(part, (1 << 8 * size) - 1)))
        part = b.insert(arith.ShLIOp(part, b.like(part, 8 * size * i)))
        whole = part if whole is None else b.either(whole, part)
    assert whole is not None
    return whole
