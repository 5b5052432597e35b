"""Activation functions."""

from __future__ import annotations

from math import pi, sqrt

from xdsl.dialects import math
from xdsl.ir import SSAValue

from ....dialects.tensor.builder import Builder, Number
from .registry import decomposes


@decomposes("relu")
def relu(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return b.maximum(x, b.like(x, 0))


@decomposes("hardtanh")
def hardtanh(b: Builder, self: SSAValue, min_val: Number, max_val: Number) -> SSAValue:
    return _between(b, b.working(self), min_val, max_val)


def _between(b: Builder, x: SSAValue, low: Number, high: Number) -> SSAValue:
    return b.minimum(b.maximum(x, b.like(x, low)), b.like(x, high))


@decomposes("sigmoid")
def sigmoid(b: Builder, self: SSAValue) -> SSAValue:
    return b.sigmoid(b.unify(self)[0])


@decomposes("silu")
def silu(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return b.div(x, b.plus(b.exp(b.neg(x)), 1))


@decomposes("gelu")
def gelu(b: Builder, self: SSAValue, approximate: str) -> SSAValue:
    x = b.working(self)
    half = b.scaled(x, 0.5)
    if approximate == "none":
        return b.mul(half, b.plus(b.math(math.ErfOp, b.scaled(x, sqrt(0.5))), 1))
    if approximate != "tanh":
        raise b.unsupported("approximate", f"{approximate!r} is neither 'none' nor 'tanh'")
    cubic = b.add(x, b.scaled(b.mul(b.mul(x, x), x), 0.044715))
    return b.mul(half, b.plus(b.math(math.TanhOp, b.scaled(cubic, sqrt(2 / pi))), 1))


@decomposes("leaky_relu")
def leaky_relu(b: Builder, self: SSAValue, negative_slope: Number) -> SSAValue:
    x = b.working(self)
    return b.select(b.cmp("gt", x, 0), x, b.scaled(x, negative_slope))


@decomposes("elu")
def elu(b: Builder, self: SSAValue, alpha: Number, scale: Number, input_scale: Number) -> SSAValue:
    x = b.working(self)
    below = b.scaled(b.math(math.ExpM1Op, b.scaled(x, input_scale)), alpha * scale)
    return b.select(b.cmp("gt", x, 0), b.scaled(x, scale), below)


@decomposes("softplus")
def softplus(b: Builder, self: SSAValue, beta: Number, threshold: Number) -> SSAValue:
    x = b.working(self)
    scaled = b.scaled(x, beta)
    soft = b.div(b.math(math.Log1pOp, b.exp(scaled)), b.like(x, beta))
    return b.select(b.cmp("gt", scaled, threshold), x, soft)


@decomposes("threshold")
def threshold(b: Builder, self: SSAValue, threshold: Number, value: Number) -> SSAValue:
    x = b.working(self)
    return b.select(b.cmp("le", x, threshold), b.like(x, value), x)


@decomposes("hardshrink")
def hardshrink(b: Builder, self: SSAValue, lambd: Number) -> SSAValue:
    x = b.working(self)
    return b.select(b.cmp("le", b.abs(x), lambd), b.like(x, 0), x)


@decomposes("softshrink")
def softshrink(b: Builder, self: SSAValue, lambd: Number) -> SSAValue:
    x = b.working(self)
    inner = b.scaled(x, 0)  # not a constant: NaN stays NaN
    low = b.select(b.cmp("lt", x, -lambd), b.plus(x, lambd), inner)
    return b.select(b.cmp("gt", x, lambd), b.plus(x, -lambd), low)
