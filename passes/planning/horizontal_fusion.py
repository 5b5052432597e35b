"""Nests that could share a launch, and schedules with which they can: a launch saved may be worth a slower schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from xdsl.ir import Operation, SSAValue

from ...dialects.loop import LoadOp, NestOp, ReduceOp, unreshaped
from ...dialects.tile.schedule import Schedule, ScheduleAttr
from ...target.model import Target
from ..analysis.block_order import first_use
from .choose import Candidate
from .cost_model import Prediction

DEEPEST_TMA_CHUNK = 64
"""Longest chunk of two kernels with TMA in one launch: of longer ones ptxas was seen to serialize the wgmma (C7514)."""


def fusible_pairs(nests: Sequence[NestOp]) -> Iterator[tuple[NestOp, NestOp]]:
    """Pairs of nests that `host-horizontal-fusion` would look at: with sums, reading a common tensor, where the first
    can wait for the second. A nest is in one pair at most; `nests` are in program order."""
    places: dict[Operation, int] = {}
    for block in dict.fromkeys(nest.parent for nest in nests):
        assert block is not None
        places.update((op, len(places)) for op in block.ops)
    left = [nest for nest in nests if any(isinstance(op, ReduceOp) for op in nest.walk())]
    sources = {nest: {unreshaped(op.source) for op in nest.walk() if isinstance(op, LoadOp)} for nest in left}
    readers: dict[SSAValue, deque[NestOp]] = {}
    for nest in left:
        for source in sources[nest]:
            readers.setdefault(source, deque()).append(nest)
    paired = set[NestOp]()
    for first in left:
        following = [n for s in sources[first] if (n := _next(readers[s], places[first], places, paired)) is not None]
        second = min(following, key=lambda n: places[n], default=None)
        if first not in paired and second is not None and places[second] < first_use(first, places):
            paired.add(second)
            yield first, second


def _next(readers: deque[NestOp], place: int, places: Mapping[Operation, int], paired: set[NestOp]) -> NestOp | None:
    """The first of `readers` behind `place` that is in no pair; those in front of it are no longer needed."""
    while readers and (places[readers[0]] <= place or readers[0] in paired):
        readers.popleft()
    return readers[0] if readers else None


def together(
    first: Sequence[Candidate], second: Sequence[Candidate], target: Target
) -> tuple[ScheduleAttr, ScheduleAttr] | None:
    """The fastest two schedules with which two kernels fit into one launch, if that is faster than the fastest that
    need two; of equally fast ones those that come first. Both are ranked."""
    fastest = [c[0].prediction for c in (first, second)]
    best = sum(p.seconds if p is not None else float("inf") for p in fastest)
    found: tuple[ScheduleAttr, ScheduleAttr] | None = None
    able = [[(c, p) for c in ranked if (p := c.prediction) and p.seconds < best] for ranked in (first, second)]
    for (a, p), (b, q) in product(*able):
        if _fit(a.schedule.data, p, b.schedule.data, q) and (seconds := _seconds(p, q, target)) < best:
            best, found = seconds, (a.schedule, b.schedule)
    return found


def _seconds(a: Prediction, b: Prediction, target: Target) -> float:
    """How long two kernels take in one launch: multiprocessors that have no block of the one work for the other, but
    no kernel takes less time than alone."""
    total = target.rates.launch
    for p in (a, b):
        rounds = -(-p.blocks // target.sms)
        total += (p.seconds - target.rates.launch) * p.blocks / (rounds * target.sms)
    return max(total, a.seconds, b.seconds)


def _fit(s: Schedule, p: Prediction, t: Schedule, q: Prediction) -> bool:
    """Whether blocks of the two need about the same, as `host-horizontal-fusion` wants it."""
    if s.warps != t.warps or s.atom != t.atom or (s.copy == "tma") != (t.copy == "tma"):
        return False
    if s.copy == "tma" and max(*s.chunk, *t.chunk) > DEEPEST_TMA_CHUNK:
        return False
    less, more = sorted((p.shared, q.shared))
    return more <= 2 * less and s.split_k == t.split_k == s.cluster == t.cluster == s.cluster_k == t.cluster_k == 1
