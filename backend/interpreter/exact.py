"""Exact domain: floats are residues modulo two primes, so that every legal reordering gives the same bits.

A float m * 2^e is represented by the pair of residues (m * 2^e mod Q, m * 2^e mod P).

- Sums, products and quotients are those of the residues, without rounding.
- `exp` of the pair (u, w) is (1, 4^u mod P), so that exp(x + y) = exp(x) * exp(y).
- Maxima and comparisons use an arbitrary but fixed order.
- Conversions between float types keep the value. Rounding must be checked in another domain.
- All other functions are replaced by hashes of their operands.

Tiling, splitting, reassociating and online softmax do not change a result. A wrong index, mask or rescaling, or a
missing element, changes it almost surely.

A pair is stored as the uint64 code `u << 32 | w`. The codes of infinities and NaN ("special" codes) are above all
pairs. The primes are small enough for a sum of 2048 products to fit a float64. Two different values have the same code
with a probability of 2^-41.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import Attribute

from ...dialects.tensor import ReductionKind, identity
from ..dtypes import numpy_dtype
from .domains import BINARY, UNARY, Array, TypedDomain

Q = 1020599
P = 2 * Q + 1
"""The two primes.

4 generates the subgroup of order Q of the numbers modulo P. Therefore u -> 4^u turns sums modulo Q into products
modulo P.

A number counts as positive if it is a square modulo P. P is 7 modulo 8, so that -1 is no square, and the product of two
negative numbers is positive. All integers from 1 to 22, log2(e) and ln(2) are squares. Programs multiply infinite
values (masked scores) with such constants, so their signs must be right.
"""

ALGEBRAIC = {"arith.negf", "math.absf", "math.exp", "math.exp2", "math.expm1", "payload.round_tf32"}
ALGEBRAIC |= {f"arith.{name}f" for name in ("add", "sub", "mul", "div", "maximum", "minimum")}
ALGEBRAIC |= {"arith.maxnumf", "arith.minnumf"}
"""Float ops that keep their algebraic identities in the exact domain, such as exp(x + y) = exp(x) * exp(y). All other
float ops are replaced by hashes."""


def is_opaque(name: str) -> bool:
    """Returns true if the op `name` is a function of floats that the exact domain replaces by a hash."""
    return (name in UNARY or name in BINARY) and name not in ALGEBRAIC


MAX_EXACT_TERMS = 2048
"""Largest number of products of residues whose sum a float64 holds without rounding."""


def _code(value: int) -> Array:
    return np.asarray(value, np.uint64)


SPECIAL = _code(1 << 63)
INF, NEG_INF, NAN = _code(1 << 63 | 1), _code(1 << 63 | 2), _code(1 << 63 | 3)
ZERO, ONE = _code(0), _code(1 << 32 | 1)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_63 = np.uint64((1 << 63) - 1)
_STIR = 0x2545F4914F6CDD1D | 1
_UNSTIR = pow(_STIR, -1, 1 << 63)
_OFFSET = 0x1E3779B97F4A7C15
_LOG2_E = float(np.float32(math.log2(math.e)))


def pack(u: Array, w: Array) -> Array:
    return (np.asarray(u, np.uint64) << _SHIFT) | np.asarray(w, np.uint64)


def unpack(x: Array) -> tuple[Array, Array]:
    """Returns the two residues of a code that is not special."""
    x = np.asarray(x, np.uint64)
    return x >> _SHIFT, x & _LOW


def special(x: Array) -> Array:
    """Returns a mask of the infinities and NaN."""
    return np.asarray(x, np.uint64) >= SPECIAL


def _multiply(a: Array, b: Array, prime: int) -> Array:
    return (a * b) % np.uint64(prime)


def _power(base: Array, exponent: int, prime: int) -> Array:
    """Returns base ** exponent mod prime, by repeated squaring.

    With the exponent prime - 2 the result is the inverse of `base`, or 0 for 0.
    """
    result = np.ones_like(base)
    for bit in bin(exponent)[2:]:
        result = _multiply(result, result, prime)
        result = _multiply(result, base, prime) if bit == "1" else result
    return result


@cache
def _powers_of_four() -> Array:
    table = np.ones(1, np.uint64)
    while len(table) < Q:
        table = np.concatenate([table, _multiply(table, _code(pow(4, len(table), P)), P)])
    return table[:Q]


def _product(a: Array, axis: int, prime: int) -> Array:
    """Returns the product over one axis mod prime; 1 for an empty axis."""
    a = np.moveaxis(a, axis, 0)
    while len(a) > 1:
        half = len(a) // 2
        a = np.concatenate([_multiply(a[:half], a[half : 2 * half], prime), a[2 * half :]])
    return a[0] if len(a) else np.ones(a.shape[1:], np.uint64)


def _matmul(a: Array, b: Array, prime: int) -> Array:
    x, y = a.astype(np.float64), b.astype(np.float64)
    starts = range(0, max(1, x.shape[-1]), MAX_EXACT_TERMS)
    parts = (np.matmul(x[..., i : i + MAX_EXACT_TERMS], y[..., i : i + MAX_EXACT_TERMS, :]) for i in starts)
    return np.asarray(sum(part.astype(np.uint64) % np.uint64(prime) for part in parts)) % np.uint64(prime)


@cache
def _powers_of_two(prime: int) -> Array:
    return np.array([pow(2, e, prime) for e in range(-1200, 1201)], np.uint64)


def encode_floats(x: ArrayLike) -> Array:
    """Returns the codes of floats of any type. -0.0 and 0.0 have the same code."""
    x = np.asarray(x).astype(np.float64)
    finite = np.isfinite(x)
    fraction, exponent = np.frexp(np.where(finite, x, 0.0))
    mantissa = np.abs(fraction * 2.0**53).astype(np.uint64)
    parts: list[Array] = []
    for prime in (Q, P):
        modulus = np.uint64(prime)
        value = _multiply(mantissa % modulus, _powers_of_two(prime)[exponent - 53 + 1200], prime)
        parts.append(np.where(x < 0, (modulus - value) % modulus, value))
    codes = np.where(np.isnan(x), NAN, pack(*parts))
    return np.where(np.isinf(x), np.where(x > 0, INF, NEG_INF), codes)


LIMIT = encode_floats(2.0**28)
"""Code of 2^28, which is above all other finite numbers in the order of this domain.

`tile-fuse-fma` compares numbers with 2^28 and takes a less direct formula for larger ones, because their rounding error
is large. Residues are not rounded, so every number must be smaller.
"""


def encode_integers(x: Array) -> Array:
    x = np.asarray(x)
    if x.dtype.kind != "u":
        x = x.astype(np.int64)
    return pack((x % Q).astype(np.uint64), (x % P).astype(np.uint64))


def mix(x: Array, salt: int) -> Array:
    """Returns a 64-bit hash (splitmix) of `x`; different salts give independent hashes."""
    x = np.asarray(x, np.uint64) + np.uint64(salt)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _salt(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def _hashed(name: str, x: Array) -> Array:
    h = mix(x, _salt(name))
    return pack((h >> _SHIFT) % np.uint64(Q), mix(h, 1) % np.uint64(P))


def order(x: Array) -> Array:
    """Returns sort keys of codes, as uint64.

    From the lowest to the highest key: -inf, the finite numbers in a scrambled order, `LIMIT`, +inf, NaN.
    """
    x = np.asarray(x, np.uint64)
    key = ((x & _63) * np.uint64(_STIR) + np.uint64(_OFFSET)) & _63
    key = np.where(x == NEG_INF, ZERO, key + np.uint64(1))
    key = np.where(x == LIMIT, SPECIAL, key)
    key = np.where(x == INF, SPECIAL | np.uint64(1), key)
    return np.where(x == NAN, SPECIAL | np.uint64(2), key)


def _from_order(key: Array) -> Array:
    x = ((key - np.uint64(1) - np.uint64(_OFFSET)) * np.uint64(_UNSTIR)) & _63
    x = np.where(key == ZERO, NEG_INF, x)
    x = np.where(key == SPECIAL, LIMIT, x)
    x = np.where(key == SPECIAL | np.uint64(1), INF, x)
    return np.where(key == SPECIAL | np.uint64(2), NAN, x)


def _negative(w: Array) -> Array:
    """Returns a mask of the negative numbers, from their residues modulo P: those that are no squares and not 0.

    Products have the right sign, -1 is negative, and every result of exp is positive. Sums can have a wrong sign.
    """
    return _power(np.asarray(w, np.uint64), Q, P) == np.uint64(P - 1)


def _as_float(x: Array) -> Array:
    """Returns inf, -inf, NaN, 0.0, -1.0 or 1.0 for each code. The IEEE rules for infinities depend on nothing else."""
    _, w = unpack(x)
    value = np.where(_negative(w), -1.0, 1.0)
    value = np.where(x == ZERO, 0.0, value)
    value = np.where(x == INF, np.inf, value)
    value = np.where(x == NEG_INF, -np.inf, value)
    return np.where(x == NAN, np.nan, value)


def _patched(name: str, result: Array, *operands: Array) -> Array:
    """Returns `result` with the elements replaced for which an operand is an infinity or NaN.

    They are computed by the IEEE rules of the op `name`, for example inf - inf = NaN.
    """
    bad = special(operands[0])
    for x in operands[1:]:
        bad = bad | special(x)
    if not np.any(bad):
        return result
    shape = np.broadcast_shapes(bad.shape, np.shape(result))
    bad, result = np.broadcast_to(bad, shape), np.array(np.broadcast_to(result, shape))
    floats = [_as_float(np.broadcast_to(x, shape)[bad]) for x in operands]
    ieee = BINARY[name](floats[0], floats[1]) if len(floats) == 2 else UNARY[name](floats[0])
    result[bad] = encode_floats(ieee)
    return result


class ExactDomain(TypedDomain):
    """Scalar domain in which floats are codes of residues, as uint64. Results may only be compared for equality."""

    name = "exact"
    has_values = False

    def __init__(self) -> None:
        self._codes: dict[int, tuple[Array, Array]] = {}

    def dtype(self, element: Attribute) -> np.dtype[Any]:
        return np.dtype(np.uint64) if isinstance(element, AnyFloat) else numpy_dtype(element)

    def encode(self, array: Array, element: Attribute) -> Array:
        """Converts an array of floats to codes. They are cached by array, so the array must not be changed later."""
        if not isinstance(element, AnyFloat):
            return np.asarray(array)
        if id(array) not in self._codes:
            self._codes[id(array)] = (array, encode_floats(array))
        return self._codes[id(array)][1]

    def unary(self, name: str, x: Array, element: Attribute) -> Array:
        x = np.asarray(x, np.uint64)
        if name == "payload.round_tf32":
            return x
        if name == "arith.negf":
            return self._subtract(ZERO, x)
        if name == "math.absf":
            return np.where(order(x) >= order(self.unary("arith.negf", x, element)), x, self._subtract(ZERO, x))
        if name == "math.exp":
            return _patched(name, self._exp(x), x)
        # exp2 is defined by exp, so that exp2(x * log2(e)) = exp(x).
        if name == "math.exp2":
            return _patched(name, self._exp(self._multiply(x, self._inverse(encode_floats(np.asarray(_LOG2_E))))), x)
        if name == "math.expm1":
            return _patched(name, self._subtract(self._exp(x), ONE), x)
        if name == "math.rsqrt":
            return self._divide(ONE, self.unary("math.sqrt", x, element))
        result = _hashed(name, x)
        for code, value in ((ZERO, 0.0), (ONE, 1.0)):
            # Keep results such as cos(0) = 1 and log(1) = 0, which folding passes use.
            image = float(UNARY[name](np.asarray(value)))
            if not math.isfinite(image) or image == int(image):
                result = np.where(x == code, encode_floats(np.asarray(image)), result)
        return _patched(name, result, x)

    def binary(self, name: str, a: Array, b: Array, element: Attribute) -> Array:
        a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
        match name:
            case "arith.addf":
                return _patched(name, self._add(a, b), a, b)
            case "arith.subf":
                return self._subtract(a, b)
            case "arith.mulf":
                return _patched(name, self._multiply(a, b), a, b)
            case "arith.divf":
                return self._divide(a, b)
            case "arith.maximumf":
                return np.where(order(a) >= order(b), a, b)
            case "arith.minimumf":
                return np.where((a == NAN) | ((order(a) <= order(b)) & (b != NAN)), a, b)
            case "arith.maxnumf" | "arith.minnumf":
                other = self.binary(f"arith.{name[6:9]}imumf", a, b, element)
                return np.where(a == NAN, b, np.where(b == NAN, a, other))
            # logaddexp must be commutative and associative, with the identity -inf. a + b + 7 a b is: it multiplies
            # the numbers 1 + 7 a.
            case "payload.logaddexp":
                both = self._multiply(encode_floats(np.asarray(7.0)), self._multiply(a, b))
                both = _patched(name, self._add(self._add(a, b), both), a, b)
                return np.where(a == NEG_INF, b, np.where(b == NEG_INF, a, both))
            case _:
                return _patched(name, _hashed(name, mix(a, 2) ^ b), a, b)

    def fused(self, a: Array, b: Array, c: Array, element: Attribute) -> Array:
        return self.binary("arith.addf", self.binary("arith.mulf", a, b, element), c, element)

    def compare(self, predicate: str, a: Array, b: Array) -> Array:
        result = super().compare(predicate, order(a), order(b))
        unordered = (np.asarray(a) == NAN) | (np.asarray(b) == NAN)
        return result | unordered if predicate == "ne" else result & ~unordered

    def dot_operand(self, x: Array, source: Attribute, target: Attribute) -> Array:
        return self.cast(x, source, target)

    def cast(self, x: Array, source: Attribute, target: Attribute) -> Array:
        if not isinstance(source, AnyFloat):
            return encode_integers(x)
        x = np.asarray(x, np.uint64)
        if isinstance(target, AnyFloat):
            return x
        if isinstance(target, IntegerType) and target.width.data == 1:
            return x != ZERO
        u, w = (part.astype(np.int64) for part in unpack(x))
        value = u + Q * ((w - u) * pow(Q, -1, P) % P)  # The number modulo P * Q, by the Chinese remainder theorem.
        value = np.where(value > P * Q // 2, value - P * Q, value)
        # A small integer is exact. For all other numbers, such as fractions, the result is a hash.
        hashed = (mix(x, 3) & np.uint64(0xFFFF)).astype(np.int64)
        return np.where(np.abs(value) < 1 << 30, value, hashed).astype(self.dtype(target))

    def reduce(self, kind: ReductionKind, x: Array, axes: tuple[int, ...], element: Attribute) -> Array:
        x = np.asarray(x, np.uint64)
        if kind in (ReductionKind.MAX, ReductionKind.MIN):
            lowest = order(encode_floats(np.asarray(identity(kind, element))))
            if kind == ReductionKind.MAX:
                return _from_order(np.asarray(np.maximum.reduce(order(x), axis=axes, initial=lowest)))
            result = _from_order(np.asarray(np.minimum.reduce(order(x), axis=axes, initial=lowest)))
            return np.where(np.any(x == NAN, axis=axes), NAN, result)
        result = self._sum(x, axes) if kind == ReductionKind.ADD else self._prod(x, axes)
        bad = np.any(special(x), axis=axes)
        if not np.any(bad):
            return result
        floats = np.where(np.any(special(x)), _as_float(x), 0.0)
        ieee = encode_floats((np.sum if kind == ReductionKind.ADD else np.prod)(floats, axis=axes))
        return np.where(bad, ieee, result)

    def matmul(self, a: Array, b: Array) -> Array:
        bad = np.any(special(a)) or np.any(special(b))
        (au, aw), (bu, bw) = (unpack(np.where(special(x), ZERO, x) if bad else x) for x in (a, b))
        result = pack(_matmul(au, bu, Q), _matmul(aw, bw, P))
        if not bad:
            return result
        ieee = np.matmul(_as_float(a), _as_float(b))
        return np.where(np.isfinite(ieee), result, encode_floats(ieee))

    def _add(self, a: Array, b: Array) -> Array:
        (au, aw), (bu, bw) = unpack(a), unpack(b)
        return pack((au + bu) % np.uint64(Q), (aw + bw) % np.uint64(P))

    def _subtract(self, a: Array, b: Array) -> Array:
        (au, aw), (bu, bw) = unpack(a), unpack(np.where(special(b), ZERO, b))
        difference = pack((au + np.uint64(Q) - bu) % np.uint64(Q), (aw + np.uint64(P) - bw) % np.uint64(P))
        return _patched("arith.subf", difference, a, b)

    def _multiply(self, a: Array, b: Array) -> Array:
        (au, aw), (bu, bw) = unpack(a), unpack(b)
        return pack(_multiply(au, bu, Q), _multiply(aw, bw, P))

    def _inverse(self, a: Array) -> Array:
        u, w = unpack(a)
        return pack(_power(u, Q - 2, Q), _power(w, P - 2, P))

    def _divide(self, a: Array, b: Array) -> Array:
        a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
        quotient = _patched("arith.divf", self._multiply(a, self._inverse(np.where(special(b), ZERO, b))), a, b)
        if not np.any(b == ZERO):
            return quotient
        a, b = np.broadcast_arrays(a, b)
        return np.where(b == ZERO, encode_floats(np.divide(_as_float(a), 0.0)), quotient)

    def _exp(self, x: Array) -> Array:
        u, _ = unpack(np.where(special(x), ZERO, x))
        return pack(_code(1), _powers_of_four()[u])

    def _sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        parts = zip(unpack(np.where(special(x), ZERO, x)), (Q, P), strict=True)
        return pack(*(np.asarray(np.sum(part, axis=axes, dtype=np.uint64)) % np.uint64(n) for part, n in parts))

    def _prod(self, x: Array, axes: tuple[int, ...]) -> Array:
        u, w = unpack(np.where(special(x), ONE, x))
        for axis in sorted((a % x.ndim for a in axes), reverse=True):
            u, w = _product(u, axis, Q), _product(w, axis, P)
        return pack(u, w)
