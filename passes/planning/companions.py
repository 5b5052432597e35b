"""Nests that could share a launch, and schedules with which they can: a launch saved may be worth a slower schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation

from ...backend.targets import Target
from ...dialects.loop import LoadOp, NestOp, ReduceOp
from ...dialects.schedule import ScheduleAttr
from .choice import Candidate
from .model import Prediction


def companions(nests: Sequence[NestOp]) -> Iterator[tuple[NestOp, NestOp]]:
    """Pairs of nests that `share-launches` would look at: with sums, reading a common tensor, where the first can wait
    for the second. A nest is in one pair at most."""
    left = [nest for nest in nests if any(isinstance(op, ReduceOp) for op in nest.walk())]
    while left:
        first = left.pop(0)
        second = next((n for n in left if _sources(first) & _sources(n) and _can_wait(first, n)), None)
        if second is not None:
            left.remove(second)
            yield first, second


def _sources(nest: NestOp) -> set[object]:
    return {op.source for op in nest.walk() if isinstance(op, LoadOp)}


def _can_wait(first: NestOp, second: NestOp) -> bool:
    """Whether neither `second` nor anything in front of it needs `first`."""
    op: Operation | None = first.next_op
    results = set(first.res)
    while op is not None:
        if any(operand in results for inner in op.walk() for operand in inner.operands):
            return False
        if op is second:
            return True
        op = op.next_op
    return False


def together(
    first: Sequence[Candidate], second: Sequence[Candidate], target: Target
) -> tuple[ScheduleAttr, ScheduleAttr] | None:
    """The fastest two schedules with which two kernels fit into one launch, if that is faster than the fastest that
    need two; of equally fast ones those that come first. Both are ranked."""
    fastest = [c[0].prediction for c in (first, second)]
    best = sum(p.seconds if p is not None else float("inf") for p in fastest)
    found: tuple[ScheduleAttr, ScheduleAttr] | None = None
    for a in first:
        for b in second:
            if a.prediction is None or b.prediction is None or not _fit(a, b):
                continue
            seconds = _seconds(a.prediction, b.prediction, target)
            if seconds < best:
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


def _fit(a: Candidate, b: Candidate) -> bool:
    """Whether blocks of the two need about the same, as `share-launches` wants it."""
    s, t = a.schedule, b.schedule
    assert a.prediction is not None
    assert b.prediction is not None
    if s.warps != t.warps or s.atom != t.atom or (s.copy.data == "tma") != (t.copy.data == "tma"):
        return False
    less, more = sorted((a.prediction.shared, b.prediction.shared))
    return more <= 2 * less and s.split_k.data == t.split_k.data == s.cluster.data == t.cluster.data == 1
