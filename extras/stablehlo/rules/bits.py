"""Rules of the bits of numbers: views as another type, and fewer bits of precision."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import f64, i1, i32, i64
from xdsl.ir import SSAValue

from ....dialects.payload import element_bytes, element_type, with_element
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.bits import bit_view
from ....dialects.tensor.views import reshape_to
from ..registry import Builder, HloOperation, rule


@rule("stablehlo.bitcast_convert")
def bitcast(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    source = element_type(x.type)
    if source == op.element:
        return x
    if i1 in (source, op.element):
        raise op.refuse("the bits of booleans are not supported")
    if element_bytes(source) == element_bytes(op.element):
        return bit_view(b, x, op.element, op.shape)
    # The parts of a wider element are a new dimension here, and more elements of the last one in a view of memory.
    flat = reshape_to(b, x, [b.count(extents_of(x.type))])
    return reshape_to(b, bit_view(b, flat, op.element, [b.count(op.shape)]), op.shape)


@rule("stablehlo.reduce_precision")
def reduce_precision(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # Rounds ties to even. Numbers above the range become infinite, and those below zero.
    wide = b.working(x)
    double = element_type(wide.type) == f64
    integer, width, mantissa, exponent = (i64, 64, 52, 11) if double else (i32, 32, 23, 8)
    bits = b.insert(arith.BitcastOp(wide, with_element(wide.type, integer)))
    sign = b.both(bits, b.like(bits, -1 << (width - 1)))
    pattern = b.both(bits, b.like(bits, (1 << (width - 1)) - 1))
    dropped = mantissa - op.int("mantissa_bits")
    if dropped > 0:
        last = b.both(b.math(arith.ShRUIOp, pattern, b.like(pattern, dropped)), b.like(pattern, 1))
        pattern = b.plus(b.add(pattern, last), (1 << (dropped - 1)) - 1)
        pattern = b.both(pattern, b.like(pattern, -1 << dropped))
    if (fewer := op.int("exponent_bits")) < exponent:
        bias, largest = (1 << (exponent - 1)) - 1, (1 << (fewer - 1)) - 1
        infinite = b.like(pattern, ((1 << exponent) - 1) << mantissa)
        pattern = b.select(b.cmp("ge", pattern, (bias + largest + 1) << mantissa), infinite, pattern)
        pattern = b.select(b.cmp("lt", pattern, (bias - largest + 1) << mantissa), b.like(pattern, 0), pattern)
    result = b.insert(arith.BitcastOp(b.either(pattern, sign), wide.type))
    return b.cast(b.select(b.isnan(wide), wide, result), op.element)
