"""What PyTorch's CUDA kernels make of a Python scalar, operator by operator.

A scalar takes part in no promotion beyond its kind, so it meets tensors of a type that may not hold it. An integer
always becomes one of the tensors' type, modulo 2^width: `x // -3` of uint8 divides by 253. A float becomes one of the
tensors' type, or of the type that values of it are computed in ("opmath", f32 for f16 and bf16): most kernels take the
second, `HELD` names those that take the first. Some convert with a check (`c10::Scalar::to`), and refuse what the type
does not hold: `CHECKED` names their arguments.

Read in ATen/native/cuda of PyTorch 2.13. There, `gpu_kernel_with_scalars` holds a scalar in the type of its function's
parameter, `opmath_gpu_kernel_with_scalars` in opmath. Comparisons hold it in the common type of both sides
(`comparisons.compared`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan

from xdsl.dialects.builtin import f16, i1
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.tensor.builder import UINT8, width_of, work_type
from ....dialects.torch import Value
from ....errors import UnsupportedError
from .type_promotion import rounded


def _arguments(rows: str) -> Mapping[str, Sequence[str]]:
    """Operator -> some of its arguments, from rows of both."""
    return {name: arguments for name, *arguments in map(str.split, rows.split(","))}


HELD = _arguments(
    """fill value, fmod other, hardshrink lambd, masked_fill value, pow self exponent, remainder self other,
    softshrink lambd, threshold threshold value, where self other, xlogy self other"""
)
"""Operator -> scalars that its kernel holds in the type of the tensors."""

CHECKED = _arguments(
    """add alpha, addcdiv value, addcmul value, clamp min max, clamp_max max, clamp_min min, constant_pad_nd value,
    fill value, full fill_value, full_like fill_value, hardshrink lambd, hardtanh min_val max_val, index_add alpha,
    index_fill value, masked_fill value, new_full fill_value, pow exponent, rsub alpha, scalar_tensor s, scatter value,
    softshrink lambd, sub alpha, threshold threshold value"""
)
"""Operator -> scalars that PyTorch refuses where the type they are held in does not hold them."""

CHECKED_INTEGERS = _arguments("where self other")
"""The same where that is an integer type."""

DIVISORS = {"div": "other", "fmod": "other", "remainder": "other"}
"""Operator -> what an integer may not be divided by if it is 0."""

SUMS = ("add", "sub", "rsub")
"""Operators that add a multiple; a truth value is a factor among truth values only."""

DIFFERENCES = ("sub", "rsub")
"""Operators of which no operand may be a truth value."""


def held_scalars(overload: str, arguments: Mapping[str, Value], element: Attribute) -> dict[str, Value]:
    """`arguments` of an operator with results of type `element`, its scalars as its kernel holds them.

    Raises UnsupportedError for a scalar that PyTorch refuses.
    """
    name = overload.partition(".")[0]
    found = dict(arguments)
    for argument, value in arguments.items():
        if name in DIFFERENCES and isinstance(value, SSAValue) and element_type(value.type) == i1:
            raise UnsupportedError("PyTorch subtracts no truth values", argument=argument)
        if not isinstance(value, int | float):
            continue
        in_type = argument in HELD.get(name, ()) or not is_float(element)
        reason = _no_number(name, argument, value, element)
        checked = argument in (*CHECKED.get(name, ()), *(() if is_float(element) else CHECKED_INTEGERS.get(name, ())))
        if reason is None and checked:
            negated = argument == "alpha" and name in DIFFERENCES  # a difference is a sum with -alpha
            reason = _overflow(-value if negated else value, element if in_type else work_type(element))
        if reason is not None:
            raise UnsupportedError(reason, argument=argument)
        if argument in HELD.get(name, ()):
            found[argument] = rounded(value, element)
    return found


def _no_number(name: str, argument: str, value: float, element: Attribute) -> str | None:
    """Why PyTorch does not compute with `value`, whatever type holds it."""
    if isinstance(value, bool) and (name in DIFFERENCES or name in SUMS and argument == "alpha" and element != i1):
        return "PyTorch takes no truth value here"
    if name in SUMS and argument == "alpha" and isinstance(value, float) and not is_float(element):
        return "a float does not scale integers"
    if is_float(element) or element == i1:
        return None
    if (name, argument) == ("pow", "exponent") and value < 0:
        return "an integer to a negative power"
    if DIVISORS.get(name) == argument and not rounded(value, element):
        return f"integer division by zero: {value} is 0 as {element}"
    return None


def _overflow(value: float, element: Attribute) -> str | None:
    """Why c10's checked conversion refuses `value`. To an unsigned type it takes -n for n up to the largest value."""
    if element == i1:
        return None
    if is_float(element):
        fits = not isfinite(value) or element != f16 or abs(value) <= 65504.0
    elif isnan(value):
        fits = False
    else:
        width = width_of(element)
        low, high = (0, 2**width - 1) if element == UINT8 else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        low = -high if element == UINT8 and isinstance(value, int) else low
        fits = low <= value <= high
    return None if fits else f"{value} cannot be converted to {element} without overflow"
