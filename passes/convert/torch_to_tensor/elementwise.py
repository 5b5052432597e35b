"""Elementwise operators: tables of short ones, and functions for longer ones.

An entry of a table has the overloads of an operator and a function that computes it from its operands. Before the call,
the operands are broadcast and converted to the type in which the result is computed (`Builder.unify`), for example to
f32 for a result of bf16. The operators in `_IN_OPERAND_TYPE` ignore the type of the result: they compute in the type of
their operand, or in f32 for an operand of f16 or bf16. Parameters of the function after the operands, if they have no
default, are the operator's other arguments, by their ATen names.
"""

# Lambdas of the table have parameters without types (see `Function`):
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from math import inf, pi

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.tensor.builder import Builder, Number, width_of, work_type
from .registry import decomposes
from .scalars import common_element, rounded

Operand = SSAValue | Number
Function = Callable[..., SSAValue]


def _enter(
    overloads: str, function: Function | type[Operation], operands: str, *, in_operand_type: bool = False
) -> None:
    """Registers an entry of the tables.

    Args:
        overloads: Overload names, separated by spaces.
        function: Function that computes the operator. An operation class stands for a function that creates it.
        operands: ATen names of the operands, separated by spaces.
        in_operand_type: True for the operators in `_IN_OPERAND_TYPE`.
    """
    names = operands.split()

    def of_ops(b: Builder, *values: SSAValue) -> SSAValue:
        return b.math(function, *values)  # pyright: ignore[reportArgumentType]

    is_op = isinstance(function, type)
    compute: Function = of_ops if is_op else function
    further = [] if is_op else list(signature(function).parameters.values())[1 + len(names) :]
    options = [p.name for p in further if p.default is p.empty]

    def decomposition(b: Builder, **arguments: Operand) -> SSAValue:
        values = [arguments[name] for name in names]
        ready = [b.working(v) for v in values if isinstance(v, SSAValue)] if in_operand_type else b.unify(*values)
        return compute(b, *ready, *(arguments[name] for name in options))

    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in (*names, *options)]
    first = Parameter("b", Parameter.POSITIONAL_ONLY)
    decomposition.__signature__ = Signature([first, *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    decomposes(*overloads.split())(decomposition)


def _of_floats(op: type[Operation]) -> Function:
    """Returns a function that applies `op` to floats, and leaves integers unchanged."""
    return lambda b, x: b.math(op, x) if is_float(x.type) else x


def _of_integers(op: type[Operation], reason: str, least: int) -> Function:
    """Returns a function that applies `op` to integers of `least` or more bits, and refuses others with `reason`."""

    def function(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
        if width_of(element_type(x.type)) < least:
            raise b.unsupported("self", reason)
        return b.math(op, x, y)

    return function


def _overloads(operators: str, kinds: str = "Tensor Scalar") -> str:
    return " ".join(f"{operator}.{kind}" for operator in operators.split() for kind in kinds.split())


def _sign(b: Builder, x: SSAValue) -> SSAValue:
    if element_type(x.type) == i1:
        return x
    zero = b.like(x, 0)
    return b.select(b.cmp("gt", x, zero), b.like(x, 1), b.select(b.cmp("lt", x, zero), b.like(x, -1), zero))


def _signbit(b: Builder, x: SSAValue) -> SSAValue:
    if element_type(x.type) == i1:
        return b.like(x, False)
    return b.cmp("lt", b.math(math.CopySignOp, b.like(x, 1), x) if is_float(x.type) else x, 0)


def _angle(b: Builder, x: SSAValue) -> SSAValue:
    """Returns the angle of a real number in the complex plane: pi if it is negative, else 0; NaN for NaN."""
    angle = b.select(b.cmp("lt", x, 0), b.like(x, pi), b.like(x, 0))
    return b.select(b.isnan(x), x, angle) if is_float(x.type) else angle


_NEEDS_BITS = "expected integers or booleans, but got floats"


def _bitwise_not(b: Builder, x: SSAValue) -> SSAValue:
    if is_float(x.type):
        raise b.unsupported("self", _NEEDS_BITS)
    return b.negated(x) if element_type(x.type) == i1 else b.math(arith.XOrIOp, x, b.like(x, -1))


def _elu(b: Builder, x: SSAValue, alpha: Number, scale: Number, input_scale: Number) -> SSAValue:
    below = b.scaled(b.math(math.ExpM1Op, b.scaled(x, input_scale)), alpha * scale)
    return b.select(b.cmp("gt", x, 0), b.scaled(x, scale), below)


def _softplus(b: Builder, x: SSAValue, beta: Number, threshold: Number) -> SSAValue:
    scaled = b.scaled(x, beta)
    soft = b.div(b.math(math.Log1pOp, b.exp(scaled)), b.like(x, beta))
    return b.select(b.cmp("gt", scaled, threshold), x, soft)


def _softshrink(b: Builder, x: SSAValue, lambd: Number) -> SSAValue:
    # Not the constant 0, so that NaN stays NaN.
    inner = b.scaled(x, 0)
    low = b.select(b.cmp("lt", x, -lambd), b.plus(x, lambd), inner)
    return b.select(b.cmp("gt", x, lambd), b.plus(x, -lambd), low)


_IN_OPERAND_TYPE: Mapping[str, Function] = {
    "abs": lambda b, x: x if element_type(x.type) == i1 else b.abs(x),
    "bitwise_not": _bitwise_not,
    "ceil": _of_floats(math.CeilOp),
    "elu": _elu,
    "floor": _of_floats(math.FloorOp),
    "hardshrink": lambda b, x, lambd: b.select(b.cmp("le", b.abs(x), lambd), b.like(x, 0), x),
    "hardtanh": lambda b, x, min_val, max_val: b.minimum(b.maximum(x, b.like(x, min_val)), b.like(x, max_val)),
    "isnan": Builder.isnan,
    "leaky_relu": lambda b, x, negative_slope: b.select(b.cmp("gt", x, 0), x, b.scaled(x, negative_slope)),
    "neg": Builder.neg,
    "relu": lambda b, x: b.maximum(x, b.like(x, 0)),
    "round": _of_floats(math.RoundEvenOp),
    "sign": _sign,
    "signbit": _signbit,
    "silu": lambda b, x: b.div(x, b.plus(b.exp(b.neg(x)), 1)),
    "softplus": _softplus,
    "softshrink": _softshrink,
    "threshold": lambda b, x, threshold, value: b.select(b.cmp("le", x, threshold), b.like(x, value), x),
    "trunc": _of_floats(math.TruncOp),
}

_MATH = (
    *(math.AcosOp, math.AcoshOp, math.AsinOp, math.AsinhOp, math.AtanOp, math.AtanhOp, math.CosOp, math.CoshOp),
    *(math.SinOp, math.SinhOp, math.TanOp, math.TanhOp, math.ExpOp, math.Exp2Op, math.ExpM1Op, math.LogOp),
    *(math.Log10Op, math.Log1pOp, math.Log2Op, math.SqrtOp, math.RsqrtOp, math.ErfOp),
)
"""Operations with the same names as the ATen operators that they compute."""

_OF_ONE: Mapping[str, Function | type[Operation]] = {
    "angle": _angle,
    "reciprocal": lambda b, x: b.div(b.like(x, 1), x),
    "sigmoid": Builder.sigmoid,
    **{op.name.removeprefix("math."): op for op in _MATH},
}


def _div_mode(b: Builder, x: SSAValue, y: SSAValue, rounding_mode: str | None) -> SSAValue:
    if rounding_mode is None:
        return b.div(x, y)
    if rounding_mode == "floor":
        return _floor_quotient(b, x, y)
    if rounding_mode == "trunc":
        return b.math(math.TruncOp, b.div(x, y)) if is_float(x.type) else b.div(x, y)
    raise b.unsupported("rounding_mode", f"expected 'floor', 'trunc' or None, but got {rounding_mode!r}")


def _floor_quotient(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Returns floor(x / y). For floats it is computed from the remainder, as in Python, so the rounding of the quotient
    has no effect: 1 // 0.1 is 9."""
    if not is_float(x.type):
        return b.floordiv(x, y)
    zero = b.like(x, 0)
    remainder = b.rem(x, y)
    quotient = b.div(b.sub(x, remainder), y)
    quotient = b.select(_differs_in_sign(b, remainder, y), b.plus(quotient, -1), quotient)
    floor = b.math(math.FloorOp, quotient)
    floor = b.select(b.cmp("gt", b.sub(quotient, floor), 0.5), b.plus(floor, 1), floor)
    exact = b.div(x, y)
    floor = b.select(b.cmp("ne", quotient, zero), floor, b.math(math.CopySignOp, zero, exact))
    return b.select(b.cmp("eq", y, zero), exact, floor)


def _differs_in_sign(b: Builder, remainder: SSAValue, y: SSAValue) -> SSAValue:
    """Returns a mask that is true where a remainder is not zero and its sign differs from the divisor's."""
    return b.both(b.cmp("ne", remainder, 0), b.cmp("ne", b.cmp("lt", y, 0), b.cmp("lt", remainder, 0)))


def _remainder(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    remainder = b.rem(x, y)
    return b.select(_differs_in_sign(b, remainder, y), b.add(remainder, y), remainder)


@decomposes("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def pow(b: Builder, self: Operand, exponent: Operand) -> SSAValue:
    if isinstance(exponent, int | float) and isinstance(self, SSAValue):
        return power(b, b.unify(self)[0], exponent)
    x, y = b.unify(self, exponent)
    return b.math(math.PowFOp, x, y) if is_float(x.type) else _integer_power(b, x, y)


def power(b: Builder, x: SSAValue, exponent: Number) -> SSAValue:
    """Returns `x ** exponent` for a constant exponent, by multiplications where PyTorch multiplies.

    Args:
        b: Builder of the operator.
        x: Tensor.
        exponent: The exponent.
    """
    if not is_float(x.type):
        if exponent < 0:
            return _integer_power(b, x, b.like(x, exponent))
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


def _integer_power(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Returns `x ** y` of integers, modulo 2^width. For negative `y` it is 0, unless `x` is 1 or -1."""
    one, zero = b.like(x, 1), b.like(x, 0)
    result, base, exponent_bits = one, x, y
    for _ in range(width_of(element_type(x.type)) - 1):
        odd = b.cmp("ne", b.both(exponent_bits, one), zero)
        result = b.select(odd, b.mul(result, base), result)
        base = b.mul(base, base)
        exponent_bits = b.math(arith.ShRSIOp, exponent_bits, one)
    odd = b.cmp("ne", b.both(y, one), zero)
    unit = b.select(b.cmp("eq", x, -1), b.select(odd, b.like(x, -1), one), zero)
    return b.select(b.cmp("lt", y, zero), b.select(b.cmp("eq", x, one), one, unit), result)


def _gcd(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Returns the greatest common divisor, by Euclid's algorithm.

    The number of steps is that of the worst case: two consecutive Fibonacci numbers."""
    x, y = b.abs(x), b.abs(y)
    zero, one = b.like(x, 0), b.like(x, 1)
    steps, small, large = 1, 1, 1
    while large < 1 << width_of(b.result_element):
        small, large, steps = large, small + large, steps + 1
    for _ in range(steps):
        done = b.cmp("eq", y, zero)
        x, y = b.select(done, x, y), b.rem(x, b.select(done, one, y))
    return x


def _hypot(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    x, y = b.abs(x), b.abs(y)
    large, small = b.maximum(x, y), b.minimum(x, y)
    ratio = b.div(small, large)  # The squares of a ratio do not overflow.
    length = b.mul(large, b.sqrt(b.plus(b.mul(ratio, ratio), 1)))
    length = b.select(b.cmp("eq", large, 0), large, length)
    infinity = b.like(x, inf)
    return b.select(b.either(b.cmp("eq", x, infinity), b.cmp("eq", y, infinity)), infinity, length)


def _xlogy(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    product = b.select(b.cmp("eq", x, 0), b.like(x, 0), b.mul(x, b.log(y)))
    return b.select(b.isnan(y), y, product)


_EITHER = "Tensor Scalar Scalar_Tensor"
"""Overloads of an operator that takes a number as either operand."""

_SHIFTS = "Tensor Tensor_Scalar Scalar_Tensor"
"""Overloads of a shift that takes a number as either operand."""

_ON_BITS = (
    ("__and__ bitwise_and", _EITHER, arith.AndIOp, _NEEDS_BITS, 1),
    ("__or__ bitwise_or", _EITHER, arith.OrIOp, _NEEDS_BITS, 1),
    ("__xor__ bitwise_xor", _EITHER, arith.XOrIOp, _NEEDS_BITS, 1),
    ("__lshift__ bitwise_left_shift", _SHIFTS, arith.ShLIOp, "expected integers, but got floats or booleans", 2),
    ("__rshift__ bitwise_right_shift", _SHIFTS, arith.ShRSIOp, "expected integers, but got floats or booleans", 2),
)
"""Operators on bits: (Python and ATen name, overloads of the ATen name, operation, reason of a refusal, minimum width
in bits)."""

_OF_TWO: Mapping[str, Function | type[Operation]] = {
    **{
        f"{_overloads(names.split()[0])} {_overloads(names.split()[1], kinds)}": _of_integers(op, reason, least)
        for names, kinds, op, reason, least in _ON_BITS
    },
    _overloads("add"): lambda b, x, y, alpha: b.add(x, b.scaled(y, alpha)),
    "atan2": math.Atan2Op,
    _overloads("copysign"): math.CopySignOp,
    _overloads("div"): lambda b, x, y: b.div(x, y),
    _overloads("div", "Tensor_mode Scalar_mode"): _div_mode,
    "fmax": lambda b, x, y: b.math(arith.MaxnumfOp, x, y) if is_float(x.type) else b.maximum(x, y),
    "fmin": lambda b, x, y: b.math(arith.MinnumfOp, x, y) if is_float(x.type) else b.minimum(x, y),
    _overloads("fmod"): Builder.rem,
    "gcd": _gcd,
    "hypot": _hypot,
    "maximum": Builder.maximum,
    "minimum": Builder.minimum,
    _overloads("mul"): Builder.mul,
    _overloads("remainder", _EITHER): _remainder,
    _overloads("rsub"): lambda b, x, y, alpha: b.sub(y, b.scaled(x, alpha)),
    _overloads("sub"): lambda b, x, y, alpha: b.sub(x, b.scaled(y, alpha)),
    _overloads("xlogy", "Tensor Scalar_Self Scalar_Other"): _xlogy,
}

for _names, _function in _IN_OPERAND_TYPE.items():
    _enter(_names, _function, "self", in_operand_type=True)
for _names, _function in _OF_ONE.items():
    _enter(_names, _function, "self")
for _names, _function in _OF_TWO.items():
    _enter(_names, _function, "self other")
_enter("clamp_max clamp_max.Tensor", Builder.minimum, "self max")
_enter("clamp_min clamp_min.Tensor", Builder.maximum, "self min")
_enter("addcmul", lambda b, x, y, z, value: b.add(x, b.mul(b.scaled(y, value), z)), "self tensor1 tensor2")
_enter("addcdiv", lambda b, x, y, z, value: b.add(x, b.div(b.scaled(y, value), z)), "self tensor1 tensor2")


@decomposes("prims.fma")
def fma(builder: Builder, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
    """Returns `a * b + c`. For floats it is rounded once, in the type in which they are computed.

    Args:
        builder: Builder of the operator.
        a: Left factor.
        b: Right factor.
        c: Addend.
    """
    x, y, z = builder.unify(a, b, c, element=work_type(builder.result_element))
    return builder.math(math.FmaOp, x, y, z) if is_float(x.type) else builder.add(builder.mul(x, y), z)


@decomposes("clamp", "clamp.Tensor")
def clamp(b: Builder, self: SSAValue, min: Operand | None, max: Operand | None) -> SSAValue:
    x, *bounds = b.unify(*(v for v in (self, min, max) if v is not None))
    if min is not None:
        x = b.maximum(x, bounds[0])
    return b.minimum(x, bounds[-1]) if max is not None else x


def _compared(b: Builder, self: Operand, other: Operand) -> Sequence[SSAValue]:
    """Returns both operands in the type in which PyTorch compares them, which is not the type of the result."""
    element = common_element([self, other])
    values = [v if isinstance(v, SSAValue) else rounded(v, element) for v in (self, other)]
    return b.unify(*values, element=element)


def _comparison(predicate: str) -> Function:
    return lambda b, self, other: b.cmp(predicate, *_compared(b, self, other))


def _logical(op: type[Operation]) -> Function:
    return lambda b, self, other: b.math(op, *b.unify(b.truth(self), b.truth(other), element=i1))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposes(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name))
for _name, _op in (("and", arith.AndIOp), ("or", arith.OrIOp), ("xor", arith.XOrIOp)):
    decomposes(f"logical_{_name}")(_logical(_op))


@decomposes("logical_not")
def logical_not(b: Builder, self: SSAValue) -> SSAValue:
    return b.negated(b.truth(self))


@decomposes("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(b: Builder, condition: SSAValue, self: Operand, other: Operand) -> SSAValue:
    element = work_type(b.result_element)
    cond, x, y = (
        b.operand(v, e, b.result_shape) for v, e in ((b.truth(condition), i1), (self, element), (other, element))
    )
    return b.select(cond, x, y)


@decomposes("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, self: SSAValue, mask: SSAValue, value: Operand) -> SSAValue:
    return where(b, mask, value, self)
