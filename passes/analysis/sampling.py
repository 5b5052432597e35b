"""Numbers that stand for a range too long to look at as a whole."""

from __future__ import annotations

from random import Random


def scattered(lo: int, hi: int, count: int, axis: int = 0) -> list[int]:
    """`count` of the numbers from `lo` to `hi` - 1, or all of them if they are no more than that: one out of each of
    `count` equal parts of the range, anywhere in it, in any order (stratified sampling, McKay et al. 1979).

    Always the same ones for the same `axis`; several axes together are a Latin hypercube. They are not evenly spaced,
    because numbers of blocks and tiles are taken apart by division: a distance that shares a factor with the divisor
    would show few of its remainders.
    """
    if hi - lo <= count:
        return list(range(lo, hi))
    return hypercube(lo, hi, count, axis)


def hypercube(lo: int, hi: int, count: int, axis: int) -> list[int]:
    """The same, always `count` of them: numbers of a short range come several times, each about as often."""
    rng, size = Random(axis), hi - lo
    found = [lo + int((i + (rng.random() if size > count else 0)) * size / count) for i in range(count)]
    rng.shuffle(found)
    return found
