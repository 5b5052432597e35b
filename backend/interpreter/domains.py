"""Scalar domains: what one element of a value is while a program is being executed.

`TypedDomain` rounds every operation to its type, as the hardware does; `RealDomain` computes all floats in float64;
`exact.ExactDomain` replaces floats by pairs of field elements, in which legal reorderings are bit-identical. Integers,
`i1` and `index` are the same in all of them.
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
    """`x` with exactly `rank` axes, the new ones in front."""
    x = np.asarray(x)
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python floats as one of arrays, at float64 precision."""
    vectorised = np.frompyfunc(f, 1, 1)

    def apply(x: Array) -> Array:
        x = np.asarray(x)
        return np.asarray(vectorised(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)

    return apply


_TF32_REST = 13
"""Bits of the fraction of an f32 that a tf32 does not have."""


def round_tf32(x: Array) -> Array:
    """The nearest tf32 of each f32, halves away from zero; infinities and NaN stay."""
    x = np.asarray(x, np.float32)
    up = (x.view(np.uint32) + np.uint32(1 << _TF32_REST - 1)).view(np.float32)
    return np.where(np.isfinite(x), cut_tf32(up), x)


def cut_tf32(x: Array) -> Array:
    """What tensor cores take of an f32 as tf32: without the last 13 bits."""
    x = np.asarray(x, np.float32)
    return (x.view(np.uint32) & np.uint32(0xFFFFFFFF << _TF32_REST & 0xFFFFFFFF)).view(np.float32)


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
    """Returns the fused multiply-add of the C library for floats of `width` bytes, as a function of arrays."""
    name, number = ("fmaf", ctypes.c_float) if width == 4 else ("fma", ctypes.c_double)
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    function.argtypes, function.restype = [number] * 3, number
    return np.frompyfunc(function, 3, 1)


def fused(a: Array, b: Array, c: Array) -> Array:
    """Returns `a * b + c` of f32 or f64 arrays of one type, rounded once."""
    dtype = np.asarray(a).dtype
    return np.asarray(_libm(dtype.itemsize)(a, b, c), dtype)


def _divide(a: Array, b: Array) -> Array:
    """Integer division toward zero. By zero it gives -1, all bits set, and so does the remainder: as PyTorch's kernels
    on CUDA do for all types of less than 64 bits. What the least number gives by -1 wraps."""
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    quotient = np.floor_divide(a, safe)
    short = (quotient < 0) & (quotient * safe != a)
    return _all_ones_by_zero(a, b, quotient + short)


def _remainder(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    return _all_ones_by_zero(a, b, np.fmod(a, safe))


def _all_ones_by_zero(a: Array, b: Array, result: Array) -> Array:
    kind = np.asarray(a).dtype
    return np.where(b == 0, np.array(-1).astype(kind), result).astype(kind)


def _floor_divide(a: Array, b: Array) -> Array:
    """Rounding down, from the quotient and the remainder toward zero."""
    short = (_remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return (_divide(a, b) - short).astype(np.asarray(a).dtype)


def _ceil_divide(a: Array, b: Array) -> Array:
    short = (_remainder(a, b) != 0) & ((a < 0) == (b < 0))
    return (_divide(a, b) + short).astype(np.asarray(a).dtype)


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
"""Arithmetic on integers, and modulo 2 on `i1`."""

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
    """Every value in its own type, every operation rounded to it. Sums are accumulated in float64 and rounded once."""

    name = "typed"

    def dtype(self, element: Attribute) -> np.dtype[Any]:
        """What NumPy stores for one `element`."""
        return numpy_dtype(element)

    def encode(self, array: Array, element: Attribute) -> Array:
        """The caller's array (of `numpy_dtype(element)`) as a value of this domain."""
        return np.asarray(array).astype(self.dtype(element), copy=False)

    def constant(self, value: float | int, element: Attribute) -> Array:
        """A constant of type `element`; floats arrive already rounded to it."""
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
        """`a * b + c`, rounded once; of narrow floats in f32, and then to their type."""
        if is_low_precision(element):
            wide = (np.asarray(x).astype(np.float32) for x in (a, b, c))
            return fused(*wide).astype(self.dtype(element))
        return fused(a, b, c)

    def compare(self, predicate: str, a: Array, b: Array) -> Array:
        return getattr(operator, predicate)(a, b)

    def cast(self, x: Array, source: Attribute, target: Attribute) -> Array:
        """`payload.cast` where `source` or `target` is a float."""
        if self.dtype(source) == self.dtype(target):
            return x
        return np.asarray(x).astype(self.dtype(target))

    def factor(self, x: Array, source: Attribute, target: Attribute) -> Array:
        """A factor of type `source` as tensor cores take it, in the type `target` of their sums: an f32 as tf32."""
        return cut_tf32(x) if isinstance(source, Float32Type) else self.cast(x, source, target)

    def reduce(self, kind: ReductionKind, x: Array, axes: tuple[int, ...], element: Attribute) -> Array:
        """Combine float `x` over `axes`, which disappear."""
        ufunc: Any = BINARY[_combiner(kind, element)]
        how = (
            {"dtype": np.float64} if ufunc.identity is not None else {"initial": x.dtype.type(identity(kind, element))}
        )
        return np.asarray(ufunc.reduce(x, axis=axes, **how)).astype(self.dtype(element))

    def matmul(self, a: Array, b: Array) -> Array:
        """Batched matrix product of float arrays [batch, m, k] and [batch, k, n]."""
        return np.matmul(a, b)

    def same(self, a: Array, b: Array) -> Array:
        """Where two results are equal; NaN equals NaN."""
        return (a == b) | ((a != a) & (b != b))


class RealDomain(TypedDomain):
    """All floats as float64: the yardstick for the rounding of the others. Conversions between floats do nothing."""

    name = "real"

    def dtype(self, element: Attribute) -> np.dtype[Any]:
        return np.dtype(np.float64) if isinstance(element, AnyFloat) else numpy_dtype(element)

    def unary(self, name: str, x: Array, element: Attribute) -> Array:
        return x if name == "payload.round_tf32" else UNARY[name](x)

    def factor(self, x: Array, source: Attribute, target: Attribute) -> Array:
        return self.cast(x, source, target)

    def binary(self, name: str, a: Array, b: Array, element: Attribute) -> Array:
        return BINARY[name](a, b)

    def fused(self, a: Array, b: Array, c: Array, element: Attribute) -> Array:
        return fused(a, b, c)


def _combiner(kind: ReductionKind, element: Attribute) -> str:
    return MONOIDS[kind].combiner(element).name


def _reduce_integers(kind: ReductionKind, x: Array, axes: tuple[int, ...], element: Attribute) -> Array:
    """Combine integer or `i1` `x` over `axes`, wrapping at the element's width."""
    name = _combiner(kind, element)
    ufunc: Any = _MODULAR[name][x.dtype == np.bool_] if name in _MODULAR else INTEGER[name]
    start = np.asarray(identity(kind, element)).astype(x.dtype)[()]
    for axis in sorted(axes, reverse=True):
        x = ufunc.reduce(x, axis=axis, dtype=x.dtype, initial=start)
    return np.asarray(x)


def reduce_value(domain: TypedDomain, kind: ReductionKind, x: Array, axes: Sequence[int], element: Attribute) -> Array:
    """Combine `x` of any element type over `axes`, which disappear; an empty range gives the kind's identity."""
    if isinstance(element, AnyFloat):
        return domain.reduce(kind, np.asarray(x), tuple(axes), element)
    return _reduce_integers(kind, np.asarray(x), tuple(axes), element)


def scan_value(domain: TypedDomain, kind: ReductionKind, x: Array, axis: int, element: Attribute) -> Array:
    """Returns the inclusive scan of `x` along `axis`, in log2(n) rounds: round r combines each element with the one 2^r
    before it."""
    x = np.moveaxis(np.asarray(x), axis, 0)
    apart = 1
    while apart < len(x):
        x = np.concatenate([x[:apart], combine_values(domain, kind, x[:-apart], x[apart:], element)])
        apart *= 2
    return np.moveaxis(x, 0, axis)


def combine_values(domain: TypedDomain, kind: ReductionKind, a: Array, b: Array, element: Attribute) -> Array:
    """`a` and `b` combined elementwise as a reduction of `kind` would."""
    name = _combiner(kind, element)
    if isinstance(element, AnyFloat):
        return domain.binary(name, a, b, element)
    return np.asarray(INTEGER[name](a, b))


def scatter_into(
    domain: TypedDomain, kind: ReductionKind, memory: Array, places: Array, values: Array, element: Attribute
) -> None:
    """Combine `values[i]` into `memory[places[i]]`, all of one dimension, in place.

    Of values that go to one place neighbours are combined first, then neighbours of these: as many rounds as the
    greatest number of them has binary digits, and work linear in the values.
    """
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    while places.size:
        starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
        rank = np.arange(places.size) - np.repeat(starts, np.diff(np.append(starts, places.size)))
        if not rank.any():
            break
        second = np.flatnonzero(rank % 2)
        values = values.copy()
        values[second - 1] = combine_values(domain, kind, values[second - 1], values[second], element)
        kept = rank % 2 == 0
        places, values = places[kept], values[kept]
    memory[places] = combine_values(domain, kind, memory[places], values, element)
