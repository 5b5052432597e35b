"""Rules of elementwise operations. Floats narrower than f32 are computed in f32 and rounded by each operation, as XLA
does on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

from xdsl.dialects import arith, math
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import f64, i1, i32, i64
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects.payload import element_type, is_float, with_element
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import width_of
from ..operation import MONOIDS
from ..registry import Builder, HloOperation, is_identity, number_of, rule
from . import integers

_UNARY: dict[str, type[Operation]] = {
    "stablehlo.exponential": math.ExpOp,
    "stablehlo.exponential_minus_one": math.ExpM1Op,
    "stablehlo.log": math.LogOp,
    "stablehlo.log_plus_one": math.Log1pOp,
    "stablehlo.tanh": math.TanhOp,
    "stablehlo.tan": math.TanOp,
    "stablehlo.sine": math.SinOp,
    "stablehlo.cosine": math.CosOp,
    "stablehlo.sqrt": math.SqrtOp,
    "stablehlo.rsqrt": math.RsqrtOp,
    "stablehlo.floor": math.FloorOp,
    "stablehlo.ceil": math.CeilOp,
    "stablehlo.round_nearest_even": math.RoundEvenOp,
    "chlo.erf": math.ErfOp,
    "chlo.acos": math.AcosOp,
    "chlo.acosh": math.AcoshOp,
    "chlo.asin": math.AsinOp,
    "chlo.asinh": math.AsinhOp,
    "chlo.atan": math.AtanOp,
    "chlo.atanh": math.AtanhOp,
    "chlo.cosh": math.CoshOp,
    "chlo.sinh": math.SinhOp,
    "chlo.tan": math.TanOp,
}
"""Operation on floats -> operation of the math dialect."""


def rounded(b: Builder, op: HloOperation, compute: Callable[..., SSAValue], *operands: SSAValue) -> SSAValue:
    """Returns a function of operands, computed in f32 if they are narrower, and rounded to the type of the result.

    Args:
        b: builder of the operation.
        op: the operation.
        compute: function of tensors.
        operands: operands of the operation.
    """
    return b.cast(compute(*(b.working(x) for x in operands)), op.element)


def monoid(b: Builder, op: HloOperation, combine: Callable[..., SSAValue], x: SSAValue, y: SSAValue) -> SSAValue:
    """Returns the result of an operation of `MONOIDS`, which is an operand if the other one has no effect.

    Args:
        b: builder of the operation.
        op: the operation.
        combine: function of two tensors.
        x: left operand.
        y: right operand.
    """
    for value, other in ((x, y), (y, x)):
        # A sum with the float +0 turns -0 into +0.
        if is_identity(MONOIDS[op.name], other) and str(number_of(other)) != "0.0":
            return value
    return rounded(b, op, combine, x, y)


APPROXIMATE = FastMathFlagsAttr((FastMathFlag.APPROX_FUNC,))


@rule(*_UNARY)
def unary(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    if op.name == "stablehlo.exponential" and op.scope.fast_math and op.element != f64:
        factor = log2(e)
        return rounded(b, op, lambda v: b.insert(math.Exp2Op(b.scaled(v, factor), APPROXIMATE)), x)
    return rounded(b, op, lambda v: b.math(_UNARY[op.name], v), x)


@rule("stablehlo.add")
def add(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    return monoid(b, op, b.add, x, y)


@rule("stablehlo.subtract")
def subtract(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    if op.element == i1:
        raise op.refuse("subtraction of booleans is not supported")
    return rounded(b, op, b.sub, x, y)


@rule("stablehlo.multiply")
def multiply(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    return monoid(b, op, b.mul, x, y)


@rule("stablehlo.divide")
def divide(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    if op.element == i1:
        raise op.refuse("division of booleans is not supported")
    if not is_float(op.element):
        return integers.quotient(b, x, y, op.unsigned)
    permit = FastMathFlag.ALLOW_RECIP if op.scope.fast_math else None
    return rounded(b, op, lambda p, q: b.div(p, q, permit=permit), x, y)


@rule("stablehlo.remainder")
def remainder(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    if op.element == i1:
        raise op.refuse("division of booleans is not supported")
    return rounded(b, op, b.rem, x, y) if is_float(op.element) else integers.remainder(b, x, y, op.unsigned)


@rule("stablehlo.maximum", "stablehlo.minimum")
def extremum(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    largest = op.name == "stablehlo.maximum"
    if op.unsigned:
        return integers.extremum(b, x, y, largest)
    return monoid(b, op, b.maximum if largest else b.minimum, x, y)


@rule("stablehlo.power")
def power(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    if is_float(op.element):
        return rounded(b, op, lambda p, q: b.math(math.PowFOp, p, q), x, y)
    if op.element == i1:
        raise op.refuse("powers of booleans are not supported")
    result, base = b.like(x, 1), x
    width = width_of(op.element)
    for bit in range(width if op.unsigned else width - 1):
        odd = b.cmp("ne", b.both(y, b.like(y, integers.least(width) if bit == width - 1 else 1 << bit)), 0)
        result = b.select(odd, b.mul(result, base), result)
        base = b.mul(base, base)
    if op.unsigned:
        return result
    odd = b.cmp("ne", b.both(y, b.like(y, 1)), 0)
    unit = b.select(b.cmp("eq", x, -1), b.select(odd, b.like(x, -1), b.like(x, 1)), b.like(x, 0))
    unit = b.select(b.cmp("eq", x, 1), b.like(x, 1), unit)
    return b.select(b.cmp("lt", y, 0), unit, result)


@rule("stablehlo.atan2")
def atan2(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    return rounded(b, op, lambda p, q: b.math(math.Atan2Op, p, q), x, y)


@rule("stablehlo.negate")
def negate(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return rounded(b, op, b.neg, x)


@rule("stablehlo.abs")
def absolute(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return x if op.unsigned else rounded(b, op, b.abs, x)


@rule("chlo.square")
def square(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return rounded(b, op, lambda v: b.mul(v, v), x)


@rule("stablehlo.logistic")
def logistic(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return rounded(b, op, b.sigmoid, x)


@rule("stablehlo.cbrt")
def cube_root(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # The power of the magnitude, with one step of Newton's method, and the sign of the operand.
    def compute(v: SSAValue) -> SSAValue:
        size = b.abs(v)
        root = b.math(math.PowFOp, size, b.like(v, 1 / 3))
        better = b.sub(root, b.div(b.sub(b.mul(root, b.mul(root, root)), size), b.scaled(b.mul(root, root), 3)))
        is_ordinary = b.both(b.cmp("gt", size, 0), b.cmp("lt", size, float("inf")))
        return b.math(math.CopySignOp, b.select(is_ordinary, better, size), v)

    return rounded(b, op, compute, x)


@rule("stablehlo.round_nearest_afz")
def round_away(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    def compute(v: SSAValue) -> SSAValue:
        whole = b.math(math.TruncOp, v)
        away = b.cmp("ge", b.abs(b.sub(v, whole)), 0.5)
        return b.add(whole, b.math(math.CopySignOp, b.select(away, b.like(v, 1), b.like(v, 0)), v))

    return rounded(b, op, compute, x)


@rule("stablehlo.sign")
def sign(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # Zeros keep their sign, and NaN is NaN.
    if op.unsigned:
        return b.cast(b.cmp("ne", x, 0), op.element)

    def compute(v: SSAValue) -> SSAValue:
        positive = b.select(b.cmp("gt", v, 0), b.like(v, 1), v)
        return b.select(b.cmp("lt", v, 0), b.like(v, -1), positive)

    return rounded(b, op, compute, x)


_BITS: dict[str, type[Operation]] = {
    "stablehlo.and": arith.AndIOp,
    "stablehlo.or": arith.OrIOp,
    "stablehlo.xor": arith.XOrIOp,
}


@rule(*_BITS)
def bits(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.math(_BITS[op.name], x, y)


@rule("stablehlo.not")
def complement(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return b.negated(x) if op.element == i1 else b.math(arith.XOrIOp, x, b.like(x, -1))


@rule("stablehlo.is_finite")
def is_finite(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return b.cmp("lt", b.abs(b.working(x)), float("inf"))


@rule("stablehlo.compare")
def compare(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    predicate = op.word("comparison_direction").lower()
    if op.word("compare_type", "SIGNED") == "TOTALORDER" and is_float(x.type):
        x, y = (total_order(b, v) for v in (x, y))
        return b.cmp(predicate, x, y)
    if predicate not in ("eq", "ne"):
        x, y = (integers.ordered(b, v, op.unsigned) for v in (x, y))
    return b.cmp(predicate, b.working(x), b.working(y))


def total_order(b: Builder, x: SSAValue) -> SSAValue:
    """Returns integers in the total order of floats: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    wide = b.working(x)
    integer = i64 if element_type(wide.type) == f64 else i32
    pattern = b.insert(arith.BitcastOp(wide, with_element(wide.type, integer)))
    flipped = b.math(arith.XOrIOp, pattern, b.like(pattern, (1 << (width_of(integer) - 1)) - 1))
    return b.select(b.cmp("lt", pattern, 0), flipped, pattern)


@rule("stablehlo.select")
def select(b: Builder, op: HloOperation, condition: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.select(b.broadcast(condition, extents_of(x.type)), x, y)


@rule("stablehlo.clamp")
def clamp(b: Builder, op: HloOperation, low: SSAValue, x: SSAValue, high: SSAValue) -> SSAValue:
    shape = extents_of(x.type)
    low, high = b.broadcast(low, shape), b.broadcast(high, shape)
    if op.operands[1].unsigned:
        return integers.extremum(b, integers.extremum(b, low, x, True), high, False)
    return rounded(b, op, lambda p, v, q: b.minimum(b.maximum(p, v), q), low, x, high)


@rule("stablehlo.convert")
def convert(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return converted(b, x, op.operands[0].unsigned, op.element, op.results[0].unsigned)


def converted(b: Builder, x: SSAValue, from_unsigned: bool, element: Attribute, to_unsigned: bool) -> SSAValue:
    """Returns a conversion as XLA defines it: floats outside of the range of an integer become its bounds, NaN 0.

    Args:
        b: builder of the operation.
        x: a tensor.
        from_unsigned: whether its elements are unsigned integers.
        element: element type of the result.
        to_unsigned: whether the elements of the result are unsigned integers.
    """
    source = element_type(x.type)
    if element == i1 or source == i1 or is_float(source) and is_float(element):
        return b.cast(b.truth(x), i1) if element == i1 else b.cast(x, element)
    if is_float(source):
        return _to_integer(b, b.working(x), element, to_unsigned)
    if not from_unsigned:
        return b.cast(x, element)
    if width_of(source) < 64:
        wide = integers.extended(b, x)
        return b.cast(wide, element)
    if not is_float(element):
        return b.cast(x, element)
    # Half of a large number, with the last bit kept for the rounding.
    half = b.either(b.math(arith.ShRUIOp, x, b.like(x, 1)), b.both(x, b.like(x, 1)))
    large, small = b.scaled(b.working(b.cast(half, element)), 2), b.working(b.cast(x, element))
    return b.cast(b.select(b.cmp("lt", x, 0), large, small), element)


def _to_integer(b: Builder, x: SSAValue, element: Attribute, unsigned: bool) -> SSAValue:
    width = width_of(element)
    low, high = (0, (1 << width) - 1) if unsigned else (integers.least(width), (1 << (width - 1)) - 1)
    below, above = b.cmp("le", x, float(low)), b.cmp("ge", x, float(high + 1))
    inside = b.negated(b.either(b.either(below, above), b.isnan(x)))
    safe = b.select(inside, x, b.like(x, 0))
    if unsigned and width == 64:
        upper = b.cmp("ge", safe, float(1 << 63))
        shifted = b.select(upper, b.plus(safe, -float(1 << 63)), safe)
        number = b.cast(shifted, i64)
        number = b.select(upper, b.math(arith.XOrIOp, number, b.like(number, -1 << 63)), number)
    else:
        number = b.cast(b.cast(safe, i64 if unsigned or width == 64 else i32), element)
    number = b.select(above, b.like(number, -1 if unsigned else high), number)
    return b.select(below, b.like(number, low), number)
