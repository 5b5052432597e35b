"""Elementwise operators and activations."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import Host, pointwise, refuse, rule
from ..values import dtype_of, number

pointwise(
    {
        "Abs": torch.abs,
        "Acos": torch.acos,
        "Acosh": torch.acosh,
        "Add": torch.add,
        "And": torch.logical_and,
        "Asin": torch.asin,
        "Asinh": torch.asinh,
        "Atan": torch.atan,
        "Atanh": torch.atanh,
        "BitwiseAnd": torch.bitwise_and,
        "BitwiseNot": torch.bitwise_not,
        "BitwiseOr": torch.bitwise_or,
        "BitwiseXor": torch.bitwise_xor,
        "Ceil": torch.ceil,
        "Cos": torch.cos,
        "Cosh": torch.cosh,
        "Equal": torch.eq,
        "Erf": torch.erf,
        "Exp": torch.exp,
        "Floor": torch.floor,
        "Greater": torch.gt,
        "GreaterOrEqual": torch.ge,
        "HardSwish": F.hardswish,
        "Identity": torch.clone,
        "IsNaN": torch.isnan,
        "Less": torch.lt,
        "LessOrEqual": torch.le,
        "Log": torch.log,
        "Mish": F.mish,
        "Mul": torch.mul,
        "Neg": torch.neg,
        "Not": torch.logical_not,
        "Or": torch.logical_or,
        "Reciprocal": torch.reciprocal,
        "Relu": torch.relu,
        "Round": torch.round,
        "Sigmoid": torch.sigmoid,
        "Sign": torch.sign,
        "Sin": torch.sin,
        "Sinh": torch.sinh,
        "Softsign": F.softsign,
        "Sqrt": torch.sqrt,
        "Sub": torch.sub,
        "Tan": torch.tan,
        "Tanh": torch.tanh,
        "Where": torch.where,
        "Xor": torch.logical_xor,
    }
)


@rule("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


@rule("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    return torch.fmod(x, y) if fmod else torch.remainder(x, y)


@rule("Pow")
def power(x: Tensor, y: Tensor) -> Tensor:
    # A power has the type of its base.
    if x.is_floating_point():
        return torch.pow(x, y.to(x.dtype))
    return torch.pow(x.to(torch.float64), y).to(x.dtype) if y.is_floating_point() else torch.pow(x, y.to(x.dtype))


@rule("Max")
def maximum(*tensors: Tensor) -> Tensor:
    return reduce(torch.maximum, tensors)


@rule("Min")
def minimum(*tensors: Tensor) -> Tensor:
    return reduce(torch.minimum, tensors)


@rule("Sum")
def add_all(*tensors: Tensor) -> Tensor:
    return reduce(torch.add, tensors)


@rule("Mean")
def mean(*tensors: Tensor) -> Tensor:
    return reduce(torch.add, tensors) / len(tensors)


@rule("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    return torch.bitwise_left_shift(x, y) if direction == "LEFT" else torch.bitwise_right_shift(x, y)


@rule("BitCast")
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.view(dtype_of(to))


def converted(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    """Returns a tensor in another type.

    Args:
        x: the tensor.
        dtype: the type.
        saturate: whether numbers beyond the range of an 8-bit float become its limits, and not infinite or NaN.
    """
    if saturate and dtype.is_floating_point and dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.clamp(-limit, limit)
    elif dtype == torch.float8_e4m3fn:
        # PyTorch saturates this type. 464 is the middle between its largest number, 448, and the next one, 480.
        x = torch.where(x.abs() > 464, torch.full_like(x, float("nan")), x)
    return x.to(dtype)


@rule("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return converted(x, dtype_of(to), saturate)


@rule("CastLike")
def cast_like(x: Tensor, y: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return converted(x, y.dtype, saturate)


@rule("Clip")
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # Where the limits cross, the result is the upper one.
    y = x if low is None else torch.maximum(x, low)
    return torch.clone(y) if high is None else torch.minimum(y, high)


@rule("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    return torch.isinf(x) & (((x > 0) & bool(detect_positive)) | ((x < 0) & bool(detect_negative)))


@rule("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@rule("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@rule("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@rule("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(x * alpha + beta, 0, 1)


@rule("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


@rule("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    # Models of operator sets before 7 have one slope for each channel, and the converter leaves them as they are.
    if slope.dim() == 1 and x.dim() > 2 and slope.shape[0] not in (1, x.shape[-1]):
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x < 0, x * slope, x)


@rule("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * (torch.exp(x) - 1))


@rule("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x))).to(x.dtype)


@rule("Softplus")
def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


@rule("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@rule("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(x: Tensor, *, axis: int = -1, op: str) -> Tensor:
    if op == "Hardmax":
        return F.one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)
    return (torch.softmax if op == "Softmax" else torch.log_softmax)(x, axis)


@rule("Dropout")
def dropout(
    x: Tensor, ratio: Host | None = None, training: Host | None = None, *, seed: int | None = None, outputs: int
) -> Any:
    # Outside of training a copy of the input. The seed does not matter there.
    if training is not None and number(training):
        if ratio is None or number(ratio) != 0:
            refuse("dropout in training mode draws random numbers, which is not supported; export for inference")
    mask = torch.ones_like(x, dtype=torch.bool)
    return [torch.clone(x), mask][:outputs] if outputs > 1 else torch.clone(x)
