"""Elementary functions of one tensor."""

from __future__ import annotations

from xdsl.dialects import math
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.tensor.builder import Builder
from .registry import Decomposition, decomposes

_FUNCTIONS = {
    "acos": math.AcosOp,
    "acosh": math.AcoshOp,
    "asin": math.AsinOp,
    "asinh": math.AsinhOp,
    "atan": math.AtanOp,
    "atanh": math.AtanhOp,
    "cos": math.CosOp,
    "cosh": math.CoshOp,
    "erf": math.ErfOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "expm1": math.ExpM1Op,
    "log": math.LogOp,
    "log10": math.Log10Op,
    "log1p": math.Log1pOp,
    "log2": math.Log2Op,
    "rsqrt": math.RsqrtOp,
    "sin": math.SinOp,
    "sinh": math.SinhOp,
    "sqrt": math.SqrtOp,
    "tan": math.TanOp,
    "tanh": math.TanhOp,
}
"""Functions that are one op of the math dialect. An integer argument is converted to the result's type first."""

_ROUNDINGS = {"ceil": math.CeilOp, "floor": math.FloorOp, "round": math.RoundEvenOp, "trunc": math.TruncOp}
"""Functions that leave an integer as it is."""


def _function(op: type) -> Decomposition:
    def decomposition(b: Builder, self: SSAValue) -> SSAValue:
        return b.math(op, *b.unify(self))

    return decomposition


def _rounding(op: type) -> Decomposition:
    def decomposition(b: Builder, self: SSAValue) -> SSAValue:
        x = b.working(self)
        return b.math(op, x) if is_float(x.type) else x

    return decomposition


for _name, _op in _FUNCTIONS.items():
    decomposes(_name)(_function(_op))
for _name, _op in _ROUNDINGS.items():
    decomposes(_name)(_rounding(_op))


@decomposes("neg")
def neg(b: Builder, self: SSAValue) -> SSAValue:
    return b.neg(b.working(self))


@decomposes("abs")
def abs(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return x if element_type(x.type) == i1 else b.abs(x)


@decomposes("positive")
def positive(b: Builder, self: SSAValue) -> SSAValue:
    return self


@decomposes("sign")
def sign(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    if element_type(x.type) == i1:
        return x
    zero = b.like(x, 0)
    return b.select(b.cmp("gt", x, zero), b.like(x, 1), b.select(b.cmp("lt", x, zero), b.like(x, -1), zero))


@decomposes("signbit")
def signbit(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    if element_type(x.type) == i1:
        return b.like(x, False)
    return b.cmp("lt", b.math(math.CopySignOp, b.like(x, 1), x) if is_float(x.type) else x, 0)


@decomposes("reciprocal")
def reciprocal(b: Builder, self: SSAValue) -> SSAValue:
    (x,) = b.unify(self)
    return b.div(b.like(x, 1), x)
