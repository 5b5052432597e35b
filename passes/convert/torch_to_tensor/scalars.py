"""PyTorch's type rules: promotion of operands, conversion of Python scalars, and element types that are refused.

A Python scalar affects promotion only by its kind (boolean, integer, float). So the type of the tensors may not be able
to represent it:

- An integer is converted to the type of the tensors, modulo 2^width: `x // -3` of uint8 divides by 253.
- A float is converted to the type in which the operator computes ("opmath": f32 for f16 and bf16). The operators in
  `TENSOR_TYPE_SCALARS` convert it to the type of the tensors.
- The arguments in `CHECKED_SCALARS` are converted with a check (`c10::Scalar::to`), which refuses numbers out of range.

Source: ATen/native/cuda of PyTorch 2.13. `gpu_kernel_with_scalars` converts a scalar to the parameter type of its
function, `opmath_gpu_kernel_with_scalars` to opmath. Comparisons convert it to the common type of both operands.
Element types that kernels refuse at run time are found by `python -m benchmarks.compiler.coverage --dtypes types`.
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
    """Parses a table such as "fill value, where self other". Returns operator -> names of arguments."""
    return {name: arguments for name, *arguments in map(str.split, rows.split(","))}


TENSOR_TYPE_SCALARS = _arguments(
    """fill value, fmod other, hardshrink lambd, masked_fill value, pow self exponent, remainder self other,
    softshrink lambd, threshold threshold value, where self other, xlogy self other"""
)
"""Operator -> scalar arguments that its kernel converts to the type of the tensors."""

CHECKED_SCALARS = _arguments(
    """add alpha, addcdiv value, addcmul value, clamp min max, clamp_max max, clamp_min min, constant_pad_nd value,
    fill value, full fill_value, full_like fill_value, hardshrink lambd, hardtanh min_val max_val, index_add alpha,
    index_fill value, masked_fill value, new_full fill_value, pow exponent, rsub alpha, scalar_tensor s, scatter value,
    softshrink lambd, sub alpha, threshold threshold value"""
)
"""Operator -> scalar arguments that PyTorch refuses if they are out of range. The check is made if they are converted
to an integer type or to f16."""

INTEGER_CHECKED_SCALARS = _arguments("where self other")
"""Operator -> scalar arguments with the check of `CHECKED_SCALARS` for integer types only, not for f16."""

DIVISORS = {"div": "other", "fmod": "other", "remainder": "other"}
"""Operator -> scalar argument that must not be 0 for integers."""

ALPHA_OPERATORS = ("add", "sub", "rsub")
"""Operators with a factor `alpha`, which may be a boolean only for tensors of booleans."""

SUBTRACTIONS = ("sub", "rsub")
"""Operators that subtract, which refuse booleans. They add `-alpha` times a tensor."""


def convert_scalars(overload: str, arguments: Mapping[str, Value], element: Attribute) -> dict[str, Value]:
    """Returns the arguments of an operator, with scalars converted as its kernel does.

    Args:
        overload: Overload name of the operator.
        arguments: Name -> value.
        element: Element type of the results.

    Raises:
        UnsupportedError: For a scalar that PyTorch refuses.
    """
    name, integers = overload.partition(".")[0], not is_float(element)
    tensor_type, checked = (
        TENSOR_TYPE_SCALARS.get(name, ()),
        (*CHECKED_SCALARS.get(name, ()), *(INTEGER_CHECKED_SCALARS.get(name, ()) if integers else ())),
    )
    values = dict(arguments)
    for argument, value in arguments.items():
        if name in SUBTRACTIONS and isinstance(value, SSAValue) and element_type(value.type) == i1:
            raise UnsupportedError("expected numbers, but got booleans, which PyTorch refuses", argument=argument)
        if not isinstance(value, int | float):
            continue
        target = element if argument in tensor_type or integers else work_type(element)
        reason = _refusal(name, argument, value, element) if integers or isinstance(value, bool) else None
        if reason is None and argument in checked and (integers or target == f16):
            negated = argument == "alpha" and name in SUBTRACTIONS
            reason = _overflow_reason(-value if negated else value, target)
        if reason is not None:
            raise UnsupportedError(reason, argument=argument)
        if argument in tensor_type:
            values[argument] = rounded(value, element)
    return values


def _refusal(name: str, argument: str, value: float, element: Attribute) -> str | None:
    """Returns the reason why PyTorch refuses a scalar argument, or None if it accepts the scalar.

    `name` is the operator, `element` the element type of its result."""
    if isinstance(value, bool) and (
        name in SUBTRACTIONS or name in ALPHA_OPERATORS and argument == "alpha" and element != i1
    ):
        return "expected a number, but got a boolean, which PyTorch refuses"
    if is_float(element):
        return None
    if name in ALPHA_OPERATORS and argument == "alpha" and isinstance(value, float):
        return f"expected an integer as factor of integers, but got {value}"
    if element != i1 and (name, argument) == ("pow", "exponent") and value < 0:
        return f"expected an exponent of 0 or more for integers, but got {value}"
    if element != i1 and DIVISORS.get(name) == argument and not rounded(value, element):
        return f"integer division by zero: {value} is 0 as {element}"
    return None


def _overflow_reason(value: float, element: Attribute) -> str | None:
    """Returns the reason why c10's checked conversion to an integer type or f16 refuses `value`, or None.

    For an unsigned type, integers down to minus its largest value are accepted."""
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
"""Operators or overloads that accept only floats."""

FLOAT_RESULTS = frozenset("_log_softmax _softmax log_softmax softmax".split())
"""Operators with float results. Their inputs are converted to the result type first."""

NO_BOOLEAN_INPUT = frozenset(
    """addbmm addcmul addmm addmv argmax argmin avg_pool1d avg_pool2d avg_pool3d bmm ceil
    convolution floor index_reduce linear matmul max_pool1d max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices mm relu round threshold topk trunc""".split()
)
"""Operators that refuse booleans as their first tensor."""

NO_BOOLEAN_RESULT = frozenset(("arange", "clamp", "clamp_max", "clamp_min", "pow"))
"""Operators that refuse a boolean result type."""

UINT64_OPERATORS = frozenset(
    """__and__ __or__ __xor__ add all any as_strided_scatter bitwise_and bitwise_not bitwise_or bitwise_xor cumprod
    cumsum div.Scalar div.Tensor embedding empty_like eq gather index index_select isfinite isinf isnan logical_and
    logical_not logical_or logical_xor masked_fill mul ne neg new_ones new_zeros ones ones_like prod rsub sqrt sub sum
    where zeros zeros_like""".split()
)
"""Operators or overloads that accept uint64. Their results have the same bits as for i64, or they convert their
operands to floats."""

_WIDER = "convert it first (x.to(torch.int64))"

_UINT64_MODULES = ("concat", "creation", "views")
"""Modules of decompositions that only move, create or convert numbers, and so accept uint64."""


def check_types(overload: str, module: str, arguments: Collection[Value], result: Attribute) -> None:
    """Raises UnsupportedError for element types that PyTorch refuses.

    Args:
        overload: Overload name of the operator.
        module: Module of its decomposition, for the rules of uint64.
        arguments: Arguments of the operator.
        result: Element type of its results.

    Raises:
        UnsupportedError: If PyTorch has no kernel for the types, or uint64 is not supported here.
    """
    name = overload.partition(".")[0]
    first = next((element_type(v.type) for v in arguments if isinstance(v, SSAValue)), result)
    if overload == "pow.Scalar" and first == i1 and any(isinstance(v, bool) for v in arguments):
        raise UnsupportedError("PyTorch has no kernel for booleans")
    if first != result and name in FLOAT_RESULTS:
        # PyTorch converts the input to the type of the result first.
        first = result
    if not (is_float(first) or is_float8(first)) and {name, overload} & (FLOATS_ONLY | FLOAT_RESULTS):
        raise UnsupportedError(f"PyTorch has no kernel for {first}")
    family = module.rpartition(".")[2]
    if UINT64 in (first, result) and family not in _UINT64_MODULES and not {name, overload} & UINT64_OPERATORS:
        raise UnsupportedError("the data type uint64 is not supported by this operator", remedy=_WIDER)
    if i1 in (first if name in NO_BOOLEAN_INPUT else None, result if name in NO_BOOLEAN_RESULT else None):
        raise UnsupportedError("PyTorch has no kernel for booleans")
