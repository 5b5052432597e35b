"""What PyTorch makes of its operands: the type in which they meet, how Python scalars are held, and what is refused.

A scalar takes part in no promotion beyond its kind, so it meets tensors of a type that may not hold it. An integer
always becomes one of the tensors' type, modulo 2^width: `x // -3` of uint8 divides by 253. A float becomes one of the
tensors' type, or of the type that values of it are computed in ("opmath", f32 for f16 and bf16): most kernels take the
second, `HELD` names those that take the first. Some convert with a check (`c10::Scalar::to`), and refuse what the type
does not hold: `CHECKED` names their arguments.

Read in ATen/native/cuda of PyTorch 2.13. There, `gpu_kernel_with_scalars` holds a scalar in the type of its function's
parameter, `opmath_gpu_kernel_with_scalars` in opmath. Comparisons hold it in the common type of both sides. Element
types that kernels refuse, though capture lets them through, are found by `python -m benchmarks.compiler.coverage
--dtypes types`, which calls every operator with the types that it does not list as its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from math import isfinite, isnan

from xdsl.dialects.builtin import bf16, f16, f32, f64, i1, i8, i16, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float, is_float8, scalar_attr
from ....dialects.shapes.extents import SymbolAttr, extents_of
from ....dialects.tensor.builder import UINT8, UINT64, UNSIGNED, Number, width_of, work_type, wrapped_number
from ....dialects.torch import Value
from ....errors import UnsupportedError

_ORDER: list[Attribute] = [i1, *UNSIGNED, i8, i16, i32, i64, f16, bf16, f32, f64]


def promote(x: Attribute, y: Attribute) -> Attribute:
    """Returns the type to which tensors of element types `x` and `y` are promoted."""
    if {x, y} == {f16, bf16}:
        return f32
    return i16 if {x, y} == {UINT8, i8} else x if x == y else max(x, y, key=_ORDER.index)


def common_element(values: Sequence[SSAValue | Number]) -> Attribute:
    """Returns the element type to which tensors and Python numbers are promoted.

    Tensors with dimensions decide; a tensor of rank 0, and then a number, count only where they are of a higher kind
    (boolean, integer, float).
    """
    groups: tuple[list[Attribute], ...] = [], [], []
    for value in values:
        if isinstance(value, SSAValue):
            groups[0 if extents_of(value.type) else 1].append(element_type(value.type))
        else:
            groups[2].append(i1 if isinstance(value, bool) else i64 if isinstance(value, int | SymbolAttr) else f32)
    return max((reduce(promote, group) for group in groups if group), key=_kind)


def _kind(element: Attribute) -> int:
    return 2 if is_float(element) else 0 if element == i1 else 1


def rounded(value: Number, element: Attribute) -> Number:
    """Returns `value` converted to `element`: 0.1 rounded to bf16, for instance."""
    if isinstance(value, SymbolAttr):
        return value
    return scalar_attr(value, element).value.data if is_float(element) else wrapped_number(value, element)


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
    """Returns `arguments` of an operator with results of type `element`, its scalars as its kernel holds them.

    Raises UnsupportedError for a scalar that PyTorch refuses.
    """
    name, integers = overload.partition(".")[0], not is_float(element)
    held, checked = HELD.get(name, ()), (*CHECKED.get(name, ()), *(CHECKED_INTEGERS.get(name, ()) if integers else ()))
    values = dict(arguments)
    for argument, value in arguments.items():
        if name in DIFFERENCES and isinstance(value, SSAValue) and element_type(value.type) == i1:
            raise UnsupportedError("PyTorch subtracts no truth values", argument=argument)
        if not isinstance(value, int | float):
            continue
        holder = element if argument in held or integers else work_type(element)
        reason = _no_number(name, argument, value, element) if integers or isinstance(value, bool) else None
        if reason is None and argument in checked and (integers or holder == f16):
            negated = argument == "alpha" and name in DIFFERENCES  # a difference is a sum with -alpha
            reason = _overflow(-value if negated else value, holder)
        if reason is not None:
            raise UnsupportedError(reason, argument=argument)
        if argument in held:
            values[argument] = rounded(value, element)
    return values


def _no_number(name: str, argument: str, value: float, element: Attribute) -> str | None:
    """Returns the reason for which PyTorch refuses the number `value` as this argument of an operator on `element`s, or
    None if PyTorch takes it."""
    if isinstance(value, bool) and (name in DIFFERENCES or name in SUMS and argument == "alpha" and element != i1):
        return "PyTorch takes no truth value here"
    if is_float(element):
        return None
    if name in SUMS and argument == "alpha" and isinstance(value, float):
        return "a float does not scale integers"
    if element != i1 and (name, argument) == ("pow", "exponent") and value < 0:
        return "an integer to a negative power"
    if element != i1 and DIVISORS.get(name) == argument and not rounded(value, element):
        return f"integer division by zero: {value} is 0 as {element}"
    return None


def _overflow(value: float, element: Attribute) -> str | None:
    """Returns why c10's checked conversion to an integer or f16 refuses `value`. An unsigned type takes -n for n up to
    its largest value."""
    if element == f16:
        fits = not isfinite(value) or abs(value) <= 65504.0
    elif element == i1 or isnan(value):
        fits = element == i1
    else:
        width = width_of(element)
        low, high = (0, 2**width - 1) if element in UNSIGNED else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        low = -high if element in UNSIGNED and isinstance(value, int) else low
        fits = low <= value <= high
    return None if fits else f"{value} cannot be converted to {element} without overflow"


FLOATS_ONLY = frozenset(
    """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d hardshrink leaky_relu logcumsumexp var""".split()
)
"""Operators, or overloads, of floats: no integers, no truth values."""

FLOAT_RESULTS = frozenset("_log_softmax _softmax log_softmax softmax".split())
"""Operators whose result is of floats."""

NO_TRUTHS = frozenset(
    """addbmm addcmul addmm addmv argmax argmin avg_pool1d avg_pool2d avg_pool3d bmm ceil
    convolution floor index_reduce linear matmul max_pool1d max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices mm relu round threshold topk trunc""".split()
)
"""Operators of numbers: their first tensor holds no truth values."""

NO_TRUTHS_RESULT = frozenset(("arange", "clamp", "clamp_max", "clamp_min", "pow"))
"""Operators whose result holds no truth values."""

BITS_ONLY = frozenset(
    """__and__ __or__ __xor__ add all any as_strided_scatter bitwise_and bitwise_not bitwise_or bitwise_xor cumprod
    cumsum div.Scalar div.Tensor embedding empty_like eq gather index index_select isfinite isinf isnan logical_and
    logical_not logical_or logical_xor masked_fill mul ne neg new_ones new_zeros ones ones_like prod rsub sqrt sub sum
    where zeros zeros_like""".split()
)
"""Operators, or overloads, that treat a uint64 like the i64 with its bits, or convert it to a float."""

_WIDER = "convert it first (x.to(torch.int64))"

_MOVES = ("concat", "creation", "views")
"""Families of decompositions that move, create or convert numbers."""


def check_types(overload: str, module: str, arguments: Collection[Value], result: Attribute) -> None:
    """Raises UnsupportedError for element types that PyTorch refuses.

    Args:
        overload: The operator.
        module: The module of its decomposition, by which uint64 is allowed.
        arguments: The arguments of the operator.
        result: The element type of its results.
    """
    name = overload.partition(".")[0]
    first = next((element_type(v.type) for v in arguments if isinstance(v, SSAValue)), result)
    if overload == "pow.Scalar" and first == i1 and any(isinstance(v, bool) for v in arguments):
        raise UnsupportedError("PyTorch has no kernel for truth values")
    if first != result and name in FLOAT_RESULTS:
        first = result  # converted first
    if not (is_float(first) or is_float8(first)) and {name, overload} & (FLOATS_ONLY | FLOAT_RESULTS):
        raise UnsupportedError(f"PyTorch has no kernel for {first}")
    family = module.rpartition(".")[2]
    if UINT64 in (first, result) and family not in _MOVES and not {name, overload} & BITS_ONLY:
        raise UnsupportedError("the data type uint64 is not supported by this operator", remedy=_WIDER)
    if i1 in (first if name in NO_TRUTHS else None, result if name in NO_TRUTHS_RESULT else None):
        raise UnsupportedError("PyTorch has no kernel for truth values")
