"""Random bits from a counter: Philox4x32-10 in integer arithmetic.

The numbers of an element follow from the generator and from where the element is, so they do not depend on how a
program is cut into kernels, and an element that is computed twice is the same twice.
Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.tensor.builder import Builder

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_BUMPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def random_words(b: Builder, generator: SSAValue, shape: Sequence[int], first: int = 0) -> list[SSAValue]:
    """Four independent words of 32 random bits for every element of a tensor of `shape`, as i64.

    `generator` is a tensor of two i64: a key, and a number that tells apart what is drawn with one key; `first` is how
    many elements were drawn from it before.
    """
    key, number = (b.map(generator, [AffineExpr.constant(i)], shape) for i in range(2))
    place: SSAValue = b.constant(first, shape, i64)
    for d in range(len(shape)):
        place = b.add(place, b.scaled(b.iota(d, shape), prod(shape[d + 1 :])))
    return philox(b, [*_halves(b, place), *_halves(b, number)], _halves(b, key))


def philox(b: Builder, counter: Sequence[SSAValue], key: Sequence[SSAValue]) -> list[SSAValue]:
    """Philox4x32-10 of a counter of four and a key of two words: i64 tensors of numbers below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(_ROUNDS):
        if number:
            k0, k1 = (_low(b, b.plus(k, bump)) for k, bump in zip((k0, k1), _BUMPS, strict=True))
        (low0, high0), (low1, high1) = (_halves(b, b.scaled(c, m)) for c, m in zip((c0, c2), _MULTIPLIERS, strict=True))
        c0, c1, c2, c3 = _xor(b, _xor(b, high1, c1), k0), low1, _xor(b, _xor(b, high0, c3), k1), low0
    return [c0, c1, c2, c3]


def _halves(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The lower and the upper 32 bits."""
    return _low(b, x), b.insert(arith.ShRUIOp(x, b.like(x, 32)))


def _low(b: Builder, x: SSAValue) -> SSAValue:
    return b.both(x, b.like(x, _LOW))


def _xor(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.insert(arith.XOrIOp(x, y))
