"""Scalar domains: representations of a number while a program is executed.

- `TypedDomain` stores floats in their element type and rounds every operation to it, as the hardware does.
- `RealDomain` computes all floats in float64.
- `exact.ExactDomain` reoffsets floats by residues modulo two primes. Every legal reordering of a program gives the same
  bits.

Integers, `i1` and `index` are the same in all domains.
"""

from __future__ import annotations

import ctypes.util
import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from xdsl.dialects.builtin import AnyFloat, Float32Type
from xdsl.ir import Attribute

from ...dialects.payload import is_low_precision
from ...dialects.tensor import MONOIDS, ReductionKind, identity
from ..dtypes import numpy_dtype

Array = np.ndarray[Any, Any]


def ranked(x: Array, rank: int) -> Array:
    """Returns `x` with exactly `rank` axes; new axes of size 1 come before the others."""
    x = np.asarray(x)
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """Returns a function of Python floats as a function of arrays. It computes in float64."""
    vectorised = np.frompyfunc(f, 1, 1)

    def apply(x: Array) -> Array:
        x = np.asarray(x)
        return np.asarray(vectorised(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)

    return apply


_TF32_DROPPED_BITS = 13
"""Number of bits of the fraction of an f32 that a tf32 does not have."""


def round_tf32(x: Array) -> Array:
    """Rounds f32 elements to the nearest tf32, ties away from zero. Infinities and NaN stay the same."""
    x = np.asarray(x, np.float32)
    up = (x.view(np.uint32) + np.uint32(1 << _TF32_DROPPED_BITS - 1)).view(np.float32)
    return np.where(np.isfinite(x), cut_tf32(up), x)


def cut_tf32(x: Array) -> Array:
    """Truncates f32 elements to tf32, as tensor cores do: clears the last 13 bits."""
    x = np.asarray(x, np.float32)
    return (x.view(np.uint32) & np.uint32(0xFFFFFFFF << _TF32_DROPPED_BITS & 0xFFFFFFFF)).view(np.float32)


UNARY: dict[str, Callable[[Array], Array]] = {
    "arith.negf": np.negative,
    "math.absf": np.abs,
    "math.erf": _elementwise(math.erf),
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + np.asarray(0.5, np.asarray(x).dtype)), x),
    "math.roundeven": np.rint,
    "math.rsqrt": lambda x: np.asarray(1, np.asarray(x).dtype) / np.sqrt(x),
    "payload.round_tf32": round_tf32,
    **{f"math.a{name}": getattr(np, f"arc{name}") for name in "cos cosh sin sinh tan tanh".split()},
    **{
        f"math.{name}": getattr(np, name)
        for name in (
            "cbrt ceil cos cosh exp exp2 expm1 floor log log10 log1p log2 sin sinh sqrt tan tanh trunc"
        ).split()
    },
}
"""Float functions of one operand, by op name."""

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
    "math.powf": np.power,
    "payload.fmod": np.fmod,
    "payload.logaddexp": np.logaddexp,
}
"""Float functions of two operands, by op name."""


@cache
def _libm(width: int) -> Callable[..., Any]:
    """Returns the fused multiply-add of the C library as a function of arrays, for floats of `width` bytes."""
    name, number = ("fmaf", ctypes.c_float) if width == 4 else ("fma", ctypes.c_double)
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    function.argtypes, function.restype = [number] * 3, number
    return np.frompyfunc(function, 3, 1)


def fused(a: Array, b: Array, c: Array) -> Array:
    """Returns `a * b + c`, rounded once.

    Args:
        a: first factor, an f32 or f64 array.
        b: second factor, of the type of `a`.
        c: addend, of the type of `a`.
    """
    dtype = np.asarray(a).dtype
    return np.asarray(_libm(dtype.itemsize)(a, b, c), dtype)


def _divide(a: Array, b: Array) -> Array:
    """Divides integers, rounding toward zero. Division of the least integer by -1 wraps.

    The quotient and the remainder of a division by zero are -1 (all bits set). PyTorch's CUDA kernels return the same
    for all types of less than 64 bits.
    """
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    quotient = np.floor_divide(a, safe)
    rounded_down = (quotient < 0) & (quotient * safe != a)
    return _all_ones_by_zero(a, b, quotient + rounded_down)


def _remainder(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    return _all_ones_by_zero(a, b, np.fmod(a, safe))


def _all_ones_by_zero(a: Array, b: Array, result: Array) -> Array:
    kind = np.asarray(a).dtype
    return np.where(b == 0, np.array(-1).astype(kind), result).astype(kind)


def _floor_divide(a: Array, b: Array) -> Array:
    """Divides integers, rounding down."""
    too_large = (_remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return (_divide(a, b) - too_large).astype(np.asarray(a).dtype)


def _ceil_divide(a: Array, b: Array) -> Array:
    too_small = (_remainder(a, b) != 0) & ((a < 0) == (b < 0))
    return (_divide(a, b) + too_small).astype(np.asarray(a).dtype)


def _unsigned(x: Array) -> Array:
    x = np.asarray(x)
    return x if x.dtype == np.bool_ else x.astype(x.dtype.str.replace("i", "u"))


def _as_unsigned(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(f(_unsigned(a), _unsigned(b))).astype(np.asarray(a).dtype)


def _by_type(f: Callable[..., Array], on_bool: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: on_bool(a, b) if np.asarray(a).dtype == np.bool_ else f(a, b)


_MODULAR: dict[str, tuple[Any, Any]] = {
    "arith.addi": (np.add, np.logical_xor),
    "arith.subi": (np.subtract, np.logical_xor),
    "arith.muli": (np.multiply, np.logical_and),
}
"""Arithmetic that wraps, by op name: a function of integers, and one of booleans (arithmetic modulo 2)."""

INTEGER: dict[str, Callable[..., Array]] = {
    **{name: _by_type(*functions) for name, functions in _MODULAR.items()},
    "arith.divsi": _divide,
    "arith.divui": _as_unsigned(_divide),
    "arith.floordivsi": _floor_divide,
    "arith.ceildivsi": _ceil_divide,
    "arith.remsi": _remainder,
    "arith.remui": _as_unsigned(_remainder),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": _as_unsigned(np.maximum),
    "arith.minui": _as_unsigned(np.minimum),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": _as_unsigned(np.right_shift),
    "math.absi": np.abs,
}
"""Integer functions, by op name; overflow wraps."""


class TypedDomain:
    """Scalar domain in which values have their element type.

    Every operation is rounded to the type. A reduction accumulates in float64 and is rounded once.

    Attributes:
        has_values: whether floats are numbers that can be printed.
    """

    name = "typed"
    has_values = True

    def dtype(self, element: Attribute) -> np.dtype[Any]:
        """Returns the NumPy type that stores an element of the type `element`."""
        return numpy_dtype(element)

    def encode(self, array: Array, element: Attribute) -> Array:
        """Converts an array of the type `numpy_dtype(element)` to this domain."""
        return np.asarray(array).astype(self.dtype(element), copy=False)

    def constant(self, value: float | int, element: Attribute) -> Array:
        """Returns a constant of the type `element`. A float `value` must already be rounded to the type."""
        if isinstance(element, AnyFloat):
            return self.encode(np.asarray(value, numpy_dtype(element)), element)
        return np.asarray(value).astype(self.dtype(element))

    def unary(self, name: str, x: Array, element: Attribute) -> Array:
        if is_low_precision(element):
            return UNARY[name](np.asarray(x).astype(np.float32)).astype(self.dtype(element))
        return UNARY[name](x)

    def binary(self, name: str, a: Array, b: Array, element: Attribute) -> Array:
        if is_low_precision(element):
            wide = BINARY[name](np.asarray(a).astype(np.float32), np.asarray(b).astype(np.float32))
            return wide.astype(self.dtype(element))
        return BINARY[name](a, b)

    def fused(self, a: Array, b: Array, c: Array, element: Attribute) -> Array:
        """Returns `a * b + c`, rounded once. 16-bit floats are computed in f32 and then rounded to their type.

        Args:
            a: first factor.
            b: second factor.
            c: addend.
            element: element type of the operands and the result.
        """
        if is_low_precision(element):
            wide = (np.asarray(x).astype(np.float32) for x in (a, b, c))
            return fused(*wide).astype(self.dtype(element))
        return fused(a, b, c)

    def compare(self, predicate: str, a: Array, b: Array) -> Array:
        return getattr(operator, predicate)(a, b)

    def cast(self, x: Array, source: Attribute, target: Attribute) -> Array:
        """Executes `payload.cast` to or from a float type.

        Args:
            x: value to convert.
            source: element type of `x`.
            target: element type of the result. One of the two types is a float.
        """
        if self.dtype(source) == self.dtype(target):
            return x
        return np.asarray(x).astype(self.dtype(target))

    def dot_operand(self, x: Array, source: Attribute, target: Attribute) -> Array:
        """Converts an operand of a tensor core instruction to the accumulator type. An f32 is truncated to tf32.

        Args:
            x: operand.
            source: element type of `x`.
            target: element type of the accumulator.
        """
        return cut_tf32(x) if isinstance(source, Float32Type) else self.cast(x, source, target)

    def reduce(self, kind: ReductionKind, x: Array, axes: tuple[int, ...], element: Attribute) -> Array:
        """Reduces floats over `axes`, which the result does not have.

        Args:
            kind: combiner, such as addition.
            x: array of floats.
            axes: numbers of the reduced axes.
            element: element type of `x` and the result.
        """
        ufunc: Any = BINARY[_combiner(kind, element)]
        options = (
            {"dtype": np.float64} if ufunc.identity is not None else {"initial": x.dtype.type(identity(kind, element))}
        )
        return np.asarray(ufunc.reduce(x, axis=axes, **options)).astype(self.dtype(element))

    def matmul(self, a: Array, b: Array) -> Array:
        """Returns the batched matrix product of float arrays [batch, m, k] and [batch, k, n]."""
        return np.matmul(a, b)

    def same(self, a: Array, b: Array) -> Array:
        """Returns a mask of the elements that are equal. NaN equals NaN."""
        return (a == b) | ((a != a) & (b != b))


class RealDomain(TypedDomain):
    """Scalar domain in which all floats are float64.

    Rounding errors of the other domains are measured against it. Conversions between float types do nothing.
    """

    name = "real"

    def dtype(self, element: Attribute) -> np.dtype[Any]:
        return np.dtype(np.float64) if isinstance(element, AnyFloat) else numpy_dtype(element)

    def unary(self, name: str, x: Array, element: Attribute) -> Array:
        return x if name == "payload.round_tf32" else UNARY[name](x)

    def dot_operand(self, x: Array, source: Attribute, target: Attribute) -> Array:
        return self.cast(x, source, target)

    def binary(self, name: str, a: Array, b: Array, element: Attribute) -> Array:
        return BINARY[name](a, b)

    def fused(self, a: Array, b: Array, c: Array, element: Attribute) -> Array:
        return fused(a, b, c)


def _combiner(kind: ReductionKind, element: Attribute) -> str:
    return MONOIDS[kind].combiner(element).name


def _reduce_integers(kind: ReductionKind, x: Array, axes: tuple[int, ...], element: Attribute) -> Array:
    """Reduces integers or booleans over `axes`, wrapping at the width of the element type."""
    name = _combiner(kind, element)
    ufunc: Any = _MODULAR[name][x.dtype == np.bool_] if name in _MODULAR else INTEGER[name]
    initial = np.asarray(identity(kind, element)).astype(x.dtype)[()]
    for axis in sorted(axes, reverse=True):
        x = ufunc.reduce(x, axis=axis, dtype=x.dtype, initial=initial)
    return np.asarray(x)


def reduce_value(domain: TypedDomain, kind: ReductionKind, x: Array, axes: Sequence[int], element: Attribute) -> Array:
    """Reduces a value of any element type over `axes`, which the result does not have.

    Args:
        domain: scalar domain.
        kind: combiner, such as addition. A reduction of no elements returns its identity.
        x: value.
        axes: numbers of the reduced axes.
        element: element type of `x` and the result.
    """
    if isinstance(element, AnyFloat):
        return domain.reduce(kind, np.asarray(x), tuple(axes), element)
    return _reduce_integers(kind, np.asarray(x), tuple(axes), element)


def scan_value(domain: TypedDomain, kind: ReductionKind, x: Array, axis: int, element: Attribute) -> Array:
    """Returns the inclusive scan of a value along an axis.

    It takes log2(n) rounds. Round r combines each element with the element 2^r positions before it.

    Args:
        domain: scalar domain.
        kind: combiner, such as addition.
        x: value.
        axis: number of the scanned axis.
        element: element type of `x` and the result.
    """
    x = np.moveaxis(np.asarray(x), axis, 0)
    distance = 1
    while distance < len(x):
        x = np.concatenate([x[:distance], combine_values(domain, kind, x[:-distance], x[distance:], element)])
        distance *= 2
    return np.moveaxis(x, 0, axis)


def combine_values(domain: TypedDomain, kind: ReductionKind, a: Array, b: Array, element: Attribute) -> Array:
    """Combines two values element by element with the combiner of a reduction.

    Args:
        domain: scalar domain.
        kind: combiner, such as addition.
        a: first operand.
        b: second operand.
        element: element type of the operands and the result.
    """
    name = _combiner(kind, element)
    if isinstance(element, AnyFloat):
        return domain.binary(name, a, b, element)
    return np.asarray(INTEGER[name](a, b))


def scatter_into(
    domain: TypedDomain, kind: ReductionKind, memory: Array, offsets: Array, values: Array, element: Attribute
) -> None:
    """Combines `values[i]` into `memory[offsets[i]]` for all i, in place, as atomic operations do.

    Values with the same offset are combined in pairs, then the results in pairs, and so on. The total work is linear in
    the number of values.

    Args:
        domain: scalar domain.
        kind: combiner, such as addition.
        memory: one-dimensional array that is changed.
        offsets: offset in `memory` for each value.
        values: one-dimensional array of values.
        element: element type of the memory and the values.
    """
    order = np.argsort(offsets, kind="stable")
    offsets, values = offsets[order], values[order]
    while offsets.size:
        starts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
        rank = np.arange(offsets.size) - np.repeat(starts, np.diff(np.append(starts, offsets.size)))
        if not rank.any():
            break
        second = np.flatnonzero(rank % 2)
        values = values.copy()
        values[second - 1] = combine_values(domain, kind, values[second - 1], values[second], element)
        first = rank % 2 == 0
        offsets, values = offsets[first], values[first]
    memory[offsets] = combine_values(domain, kind, memory[offsets], values, element)
