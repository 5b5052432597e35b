"""Chooses schedules for pairs of nests that `host-horizontal-fusion` can merge into one launch.

Merged kernels need blocks of the same size. Saving a launch may be worth a slower schedule of one nest.
"""

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
"""Largest chunk of two merged kernels with TMA: with longer ones ptxas was seen to serialise wgmma (message C7514)."""


def fusible_pairs(nests: Sequence[NestOp]) -> Iterator[tuple[NestOp, NestOp]]:
    """Yields the pairs of nests that `host-horizontal-fusion` could merge.

    Both nests have reductions and read a common tensor, and the result of the first is not used before the second. A
    nest is in at most one pair.

    Args:
        nests: nests in program order.
    """
    places: dict[Operation, int] = {}
    for block in dict.fromkeys(nest.parent for nest in nests):
        assert block is not None
        places.update((op, len(places)) for op in block.ops)
    reducing = [nest for nest in nests if any(isinstance(op, ReduceOp) for op in nest.walk())]
    sources = {nest: {unreshaped(op.source) for op in nest.walk() if isinstance(op, LoadOp)} for nest in reducing}
    readers: dict[SSAValue, deque[NestOp]] = {}
    for nest in reducing:
        for source in sources[nest]:
            readers.setdefault(source, deque()).append(nest)
    paired = set[NestOp]()
    for first in reducing:
        following = [n for s in sources[first] if (n := _next(readers[s], places[first], places, paired)) is not None]
        second = min(following, key=lambda n: places[n], default=None)
        if first not in paired and second is not None and places[second] < first_use(first, places):
            paired.add(second)
            yield first, second


def _next(readers: deque[NestOp], place: int, places: Mapping[Operation, int], paired: set[NestOp]) -> NestOp | None:
    """Returns the first nest of `readers` after position `place` that is in no pair, or None.

    Removes earlier nests from `readers`.
    """
    while readers and (places[readers[0]] <= place or readers[0] in paired):
        readers.popleft()
    return readers[0] if readers else None


def together(
    first: Sequence[Candidate], second: Sequence[Candidate], target: Target
) -> tuple[Candidate, Candidate] | None:
    """Returns the schedules with which a merged launch of two nests is fastest, or None if two launches are as fast.

    Args:
        first: ranked candidates of the first nest.
        second: ranked candidates of the second nest.
        target: the target.
    """
    fastest = [c[0].prediction for c in (first, second)]
    best = sum(p.seconds if p is not None else float("inf") for p in fastest)
    pair: tuple[Candidate, Candidate] | None = None
    able = [[(c, p) for c in ranked if (p := c.prediction) and p.seconds < best] for ranked in (first, second)]
    for (a, p), (b, q) in product(*able):
        if _fit(a.schedule.data, p, b.schedule.data, q) and (seconds := _seconds(p, q, target)) < best:
            best, pair = seconds, (a, b)
    return pair


def _seconds(a: Prediction, b: Prediction, target: Target) -> float:
    """Returns the predicted seconds of two kernels in one launch.

    Blocks of one kernel fill multiprocessors that the other leaves idle in its last wave. The launch takes at least as
    long as the longer kernel.
    """
    total = target.rates.launch
    for p in (a, b):
        rounds = -(-p.blocks // target.sms)
        total += (p.seconds - target.rates.launch) * p.blocks / (rounds * target.sms)
    return max(total, a.seconds, b.seconds)


def _fit(s: Schedule, p: Prediction, t: Schedule, q: Prediction) -> bool:
    """Returns true if `host-horizontal-fusion` can merge kernels with these schedules and predictions."""
    if s.warps != t.warps or s.atom != t.atom or (s.copy == "tma") != (t.copy == "tma"):
        return False
    if s.copy == "tma" and max(*s.chunk, *t.chunk) > DEEPEST_TMA_CHUNK:
        return False
    less, more = sorted((p.shared, q.shared))
    return more <= 2 * less and s.split_k == t.split_k == s.cluster == t.cluster == s.cluster_k == t.cluster_k == 1
