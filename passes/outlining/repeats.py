"""Repeats in a sequence of ops that nobody marked: the same ops again and again, one repeat after another."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

MAX_OPS = 4_000
"""Longer programs are left alone: comparing every distance takes the square of their length."""


def find_repeats(ops: Sequence[Operation], min_ops: int) -> list[list[Operation]]:
    """The longest stretch of `ops` that repeats itself, cut into its repeats of `min_ops` ops or more, if there is one.

    Ops look alike if name, arguments and types are; whether the cut parts are really equal is for the caller to see.
    Of all places to cut, the one where the fewest values cross is taken.
    """
    if len(ops) < 2 * min_ops or len(ops) > MAX_OPS:
        return []
    colors = _colors(ops)
    start, period, length = _longest(colors, min_ops)
    if not period:
        return []
    cuts = [start + s for s in range(period) if length - s >= 2 * period]
    at = min(cuts, key=lambda c: (_crossing(ops, c), c))
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
    """(start, period, length) of the longest stretch in which every color comes again after `period`."""
    best = (0, 0, 0)
    n = len(colors)
    for period in range(min_period, n // 2 + 1):
        run = 0
        for i in range(n - period):
            run = run + 1 if colors[i] == colors[i + period] else 0
            if run >= period and run + period > best[2]:
                best = (i - run + 1, period, run + period)
    return best


def _crossing(ops: Sequence[Operation], at: int) -> int:
    """How many values that are computed before position `at` are used from there on."""
    later = set(ops[at:])
    return sum(any(u.operation in later for u in r.uses) for op in ops[:at] for r in op.results)
