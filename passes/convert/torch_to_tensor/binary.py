"""Arithmetic of two and three tensors, with scalars, broadcasting and rounding modes."""

from __future__ import annotations

from xdsl.dialects import arith, math
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.tensor.builder import Builder, Number, width_of
from .registry import decomposes

Operand = SSAValue | Number


@decomposes("add.Tensor", "add.Scalar")
def add(b: Builder, self: SSAValue, other: Operand, alpha: Number) -> SSAValue:
    x, y = b.unify(self, other)
    return b.add(x, b.scaled(y, alpha))


@decomposes("sub.Tensor", "sub.Scalar")
def sub(b: Builder, self: SSAValue, other: Operand, alpha: Number) -> SSAValue:
    x, y = b.unify(self, other)
    return b.sub(x, b.scaled(y, alpha))


@decomposes("rsub.Tensor", "rsub.Scalar")
def rsub(b: Builder, self: SSAValue, other: Operand, alpha: Number) -> SSAValue:
    x, y = b.unify(self, other)
    return b.sub(y, b.scaled(x, alpha))


@decomposes("mul.Tensor", "mul.Scalar")
def mul(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
    return b.mul(*b.unify(self, other))


@decomposes("div.Tensor", "div.Scalar")
def div(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
    return b.div(*b.unify(self, other))


@decomposes("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, self: SSAValue, other: Operand, rounding_mode: str | None) -> SSAValue:
    x, y = b.unify(self, other)
    if rounding_mode is None:
        return b.div(x, y)
    if rounding_mode == "floor":
        return floor_quotient(b, x, y)
    if rounding_mode == "trunc":
        return b.math(math.TruncOp, b.div(x, y)) if is_float(x.type) else b.div(x, y)
    raise b.unsupported("rounding_mode", f"{rounding_mode!r} is neither 'floor' nor 'trunc'")


def floor_quotient(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """floor(x / y). Of floats as Python has it, free of the rounding of the quotient: 1 // 0.1 is 9."""
    if not is_float(x.type):
        return b.floordiv(x, y)
    zero = b.like(x, 0)
    rest = b.rem(x, y)
    quotient = b.div(b.sub(x, rest), y)
    down = b.both(b.cmp("ne", rest, zero), b.cmp("ne", _below_zero(b, y), _below_zero(b, rest)))
    quotient = b.select(down, b.plus(quotient, -1), quotient)
    floor = b.math(math.FloorOp, quotient)
    floor = b.select(b.cmp("gt", b.sub(quotient, floor), 0.5), b.plus(floor, 1), floor)
    exact = b.div(x, y)
    floor = b.select(b.cmp("ne", quotient, zero), floor, b.math(math.CopySignOp, zero, exact))
    return b.select(b.cmp("eq", y, zero), exact, floor)


def _below_zero(b: Builder, x: SSAValue) -> SSAValue:
    return b.cmp("lt", x, 0)


@decomposes("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(b: Builder, self: Operand, other: Operand) -> SSAValue:
    x, y = b.unify(self, other)
    rest = b.rem(x, y)
    wrong = b.both(b.cmp("ne", rest, 0), b.cmp("ne", _below_zero(b, y), _below_zero(b, rest)))
    return b.select(wrong, b.add(rest, y), rest)


@decomposes("fmod.Tensor", "fmod.Scalar")
def fmod(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
    return b.rem(*b.unify(self, other))


@decomposes("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def pow(b: Builder, self: Operand, exponent: Operand) -> SSAValue:
    if isinstance(exponent, int | float) and isinstance(self, SSAValue):
        return power(b, b.unify(self)[0], exponent)
    x, y = b.unify(self, exponent)
    return b.math(math.PowFOp, x, y) if is_float(x.type) else integer_power(b, x, y)


def power(b: Builder, x: SSAValue, exponent: Number) -> SSAValue:
    """`x ** exponent` for a number: by multiplication where PyTorch multiplies."""
    if not is_float(x.type):
        if exponent < 0:
            return integer_power(b, x, b.like(x, exponent))
        return _repeated_product(b, x, int(exponent))
    if exponent in (0.5, -0.5):
        return b.sqrt(x) if exponent > 0 else b.rsqrt(x)
    if exponent in (0, 1, 2, 3):
        return _repeated_product(b, x, int(exponent))
    if exponent in (-1, -2):
        return b.div(b.like(x, 1), _repeated_product(b, x, int(-exponent)))
    return b.math(math.PowFOp, x, b.like(x, exponent))


def _repeated_product(b: Builder, x: SSAValue, count: int) -> SSAValue:
    result: SSAValue | None = None
    while count:
        if count & 1:
            result = x if result is None else b.mul(result, x)
        count >>= 1
        x = b.mul(x, x) if count else x
    return b.like(x, 1) if result is None else result


def integer_power(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """`x ** y` of integers: modulo 2^width, and for negative `y` 0 unless `x` is 1 or -1."""
    one, zero = b.like(x, 1), b.like(x, 0)
    result, base, rest = one, x, y
    for _ in range(width_of(element_type(x.type)) - 1):
        odd = b.cmp("ne", b.both(rest, one), zero)
        result = b.select(odd, b.mul(result, base), result)
        base = b.mul(base, base)
        rest = b.math(arith.ShRSIOp, rest, one)
    odd = b.cmp("ne", b.both(y, one), zero)
    unit = b.select(b.cmp("eq", x, -1), b.select(odd, b.like(x, -1), one), zero)
    return b.select(b.cmp("lt", y, zero), b.select(b.cmp("eq", x, one), one, unit), result)


@decomposes("gcd")
def gcd(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """Euclid's algorithm, as many steps as the longest takes: that of two neighbours in Fibonacci's sequence."""
    x, y = (b.abs(v) for v in b.unify(self, other))
    zero, one = b.like(x, 0), b.like(x, 1)
    for _ in range(_euclidean_steps(width_of(b.result_element))):
        done = b.cmp("eq", y, zero)
        x, y = b.select(done, x, y), b.rem(x, b.select(done, one, y))
    return x


def _euclidean_steps(width: int) -> int:
    steps, small, large = 1, 1, 1
    while large < 1 << width:
        small, large, steps = large, small + large, steps + 1
    return steps


@decomposes("maximum")
def maximum(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.maximum(*b.unify(self, other))


@decomposes("minimum")
def minimum(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.minimum(*b.unify(self, other))


@decomposes("fmax")
def fmax(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    x, y = b.unify(self, other)
    return b.math(arith.MaxnumfOp, x, y) if is_float(x.type) else b.maximum(x, y)


@decomposes("fmin")
def fmin(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    x, y = b.unify(self, other)
    return b.math(arith.MinnumfOp, x, y) if is_float(x.type) else b.minimum(x, y)


@decomposes("clamp", "clamp.Tensor")
def clamp(b: Builder, self: SSAValue, min: Operand | None, max: Operand | None) -> SSAValue:
    x, *bounds = b.unify(*(v for v in (self, min, max) if v is not None))
    if min is not None:
        x = b.maximum(x, bounds[0])
    return b.minimum(x, bounds[-1]) if max is not None else x


@decomposes("clamp_min", "clamp_min.Tensor")
def clamp_min(b: Builder, self: SSAValue, min: Operand) -> SSAValue:
    return b.maximum(*b.unify(self, min))


@decomposes("clamp_max", "clamp_max.Tensor")
def clamp_max(b: Builder, self: SSAValue, max: Operand) -> SSAValue:
    return b.minimum(*b.unify(self, max))


@decomposes("atan2")
def atan2(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.math(math.Atan2Op, *b.unify(self, other))


@decomposes("copysign.Tensor", "copysign.Scalar")
def copysign(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
    return b.math(math.CopySignOp, *b.unify(self, other))


@decomposes("hypot")
def hypot(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    x, y = (b.abs(v) for v in b.unify(self, other))
    large, small = b.maximum(x, y), b.minimum(x, y)
    ratio = b.div(small, large)  # scaled, so that the squares do not overflow
    length = b.mul(large, b.sqrt(b.plus(b.mul(ratio, ratio), 1)))
    length = b.select(b.cmp("eq", large, 0), large, length)
    infinity = b.like(x, float("inf"))
    return b.select(b.either(b.cmp("eq", x, infinity), b.cmp("eq", y, infinity)), infinity, length)


@decomposes("addcmul")
def addcmul(b: Builder, self: SSAValue, tensor1: SSAValue, tensor2: SSAValue, value: Number) -> SSAValue:
    x, y, z = b.unify(self, tensor1, tensor2)
    return b.add(x, b.mul(b.scaled(y, value), z))


@decomposes("addcdiv")
def addcdiv(b: Builder, self: SSAValue, tensor1: SSAValue, tensor2: SSAValue, value: Number) -> SSAValue:
    x, y, z = b.unify(self, tensor1, tensor2)
    return b.add(x, b.div(b.scaled(y, value), z))


@decomposes("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(b: Builder, self: Operand, other: Operand) -> SSAValue:
    x, y = b.unify(self, other)
    product = b.select(b.cmp("eq", x, 0), b.like(x, 0), b.mul(x, b.log(y)))
    return b.select(b.isnan(y), y, product)
