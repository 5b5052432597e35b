"""Repeats in a sequence of ops that nobody marked: the same ops again and again, one repeat after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from xdsl.ir import Operation


def find_repeats(ops: Sequence[Operation], min_ops: int) -> list[list[Operation]]:
    """The longest stretch of `ops` that repeats itself, cut into its repeats of `min_ops` ops or more, if there is one.

    Ops look alike if name, arguments and types are; whether the cut parts are really equal is for the caller to see.
    Of all places to cut, the one where the fewest values cross is taken.
    """
    if len(ops) < 2 * min_ops:
        return []
    colors = _colors(ops)
    start, period, length = _longest(colors, min_ops)
    if not period:
        return []
    cuts = [start + s for s in range(period) if length - s >= 2 * period]
    crossings = _crossings(ops)
    at = min(cuts, key=lambda c: (crossings[c], c))
    count = (start + length - at) // period
    return [list(ops[at + i * period : at + (i + 1) * period]) for i in range(count)]


def _colors(ops: Sequence[Operation]) -> list[int]:
    """A number for each op, the same for ops that look alike."""
    numbers: dict[object, int] = {}
    found: list[int] = []
    for op in ops:
        properties = tuple(sorted(op.properties.items(), key=lambda item: item[0]))
        types = tuple(v.type for v in op.operands), tuple(r.type for r in op.results)
        found.append(numbers.setdefault((op.name, properties, types), len(numbers)))
    return found


def _longest(colors: Sequence[int], min_period: int) -> tuple[int, int, int]:
    """(start, period, length) of the longest stretch in which every color comes again after `period`.

    Every repetition crosses the middle of the sequence or lies in one half. How far one that crosses the middle goes to
    either side is read off four Z-functions, for all periods at once: n log n steps (Main and Lorentz, "An O(n log n)
    algorithm for finding all repetitions in a string", 1984). Of stretches of equal length the one with the smallest
    period counts, and of those the first.
    """
    best = (0, 0, 0)
    todo = [(0, len(colors))]
    while todo:
        low, high = todo.pop()
        middle = (low + high) // 2
        if high - low < 2 * min_period:
            continue
        todo += [(low, middle), (middle, high)]
        for start, period, length in _across(colors[low:middle], colors[middle:high], min_period):
            best = min(best, (low + start, period, length), key=lambda found: (-found[2], found[1], found[0]))
    return best


def _across(left: Sequence[int], right: Sequence[int], min_period: int) -> Iterator[tuple[int, int, int]]:
    """The repetitions of `left + right` that reach to both sides of where the two meet, as for `_longest`."""
    whole, middle = [*left, *right], len(left)
    backwards, end = whole[::-1], [-1]
    forth_at_right = _z([*right, *end, *whole])[len(right) + 1 :]  # how far whole[i:] goes as `right` does
    back_at_left = _z([*left[::-1], *end, *backwards])[middle + 1 :]  # the same of whole[:n - i], from its end
    for period in range(min_period, len(whole) // 2 + 1):
        # A stretch of matches i, i + period holds i = middle - period, or else i = middle.
        for at in (middle - period, middle):
            if at < 0 or at + period > len(whole):
                continue
            other = at if at < middle else at + period
            forth = forth_at_right[other] if other < len(whole) else 0
            back = back_at_left[len(whole) - other] if other > 0 else 0
            forth, back = min(forth, len(whole) - at - period), min(back, at)
            if forth + back >= period:
                yield at - back, period, forth + back + period


def _z(colors: Sequence[int]) -> list[int]:
    """For each position, how many colors from there on are those at the beginning."""
    found, low, high = [0] * len(colors), 0, 0
    for i in range(1, len(colors)):
        length = min(high - i, found[i - low]) if i < high else 0
        while i + length < len(colors) and colors[length] == colors[i + length]:
            length += 1
        found[i] = length
        if i + length > high:
            low, high = i, i + length
    return found


def _crossings(ops: Sequence[Operation]) -> list[int]:
    """For each position, how many values that are computed before it are used from there on."""
    positions = {op: i for i, op in enumerate(ops)}
    steps = [0] * (len(ops) + 2)
    for at, op in enumerate(ops):
        for result in op.results:
            last = max((positions.get(use.operation, -1) for use in result.uses), default=-1)
            if last > at:
                steps[at + 1] += 1
                steps[last + 1] -= 1
    return list(accumulate(steps))
