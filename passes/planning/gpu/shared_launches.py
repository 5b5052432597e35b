"""Nests that could share a launch, and their schedules: a launch saved may be worth a slower schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from xdsl.ir import Operation, SSAValue

from ....dialects.loop import LoadOp, NestOp, ReduceOp, unreshaped
from ....dialects.tile.schedule import Schedule
from ....target.model import Target
from ...analysis.block_order import first_use
from ..choose import Candidate
from ..model import Prediction

DEEPEST_TMA_CHUNK = 64
"""Longest chunk of two kernels with TMA in one launch: of longer ones ptxas was seen to serialize the wgmma (C7514)."""


def fusible_pairs(nests: Sequence[NestOp]) -> Iterator[tuple[NestOp, NestOp]]:
    """Yields the pairs of nests that `host-horizontal-fusion` considers: both reduce and read a common tensor, and the
    first can wait for the second. A nest is in one pair, at most; `nests` are in program order."""
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
    """Returns the first of `readers` after `place` that is in no pair, and drops those before it."""
    while readers and (places[readers[0]] <= place or readers[0] in paired):
        readers.popleft()
    return readers[0] if readers else None


def together(
    first: Sequence[Candidate], second: Sequence[Candidate], target: Target
) -> tuple[Candidate, Candidate] | None:
    """Returns the fastest two schedules of ranked candidates with which two kernels fit into one launch, or None if two
    launches are as fast."""
    fastest = [c[0].prediction for c in (first, second)]
    best = sum(p.seconds if p is not None else float("inf") for p in fastest)
    pair: tuple[Candidate, Candidate] | None = None
    able = [[(c, p) for c in ranked if (p := c.prediction) and p.seconds < best] for ranked in (first, second)]
    for (a, p), (b, q) in product(*able):
        if _fit(a.schedule.data, p, b.schedule.data, q) and (seconds := _seconds(p, q, target)) < best:
            best, pair = seconds, (a, b)
    return pair


def _seconds(a: Prediction, b: Prediction, target: Target) -> float:
    """Returns the seconds of two kernels in one launch: multiprocessors without a block of one work for the other, but
    no kernel takes less time than alone."""
    total = target.rates.launch
    for p in (a, b):
        rounds = -(-p.blocks // target.sms)
        total += (p.seconds - target.rates.launch) * p.blocks / (rounds * target.sms)
    return max(total, a.seconds, b.seconds)


def _fit(s: Schedule, p: Prediction, t: Schedule, q: Prediction) -> bool:
    """Returns true if the blocks of two kernels need about the same, as `host-horizontal-fusion` requires."""
    if s.warps != t.warps or s.atom != t.atom or (s.copy == "tma") != (t.copy == "tma"):
        return False
    if s.copy == "tma" and max(*s.chunk, *t.chunk) > DEEPEST_TMA_CHUNK:
        return False
    less, more = sorted((p.shared, q.shared))
    return more <= 2 * less and s.split_k == t.split_k == s.cluster == t.cluster == s.cluster_k == t.cluster_k == 1
