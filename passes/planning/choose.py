"""Choosing among the schedules of a nest: the one that the model predicts to be fastest."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...dialects.loop import LoadOp, NestOp
from ...dialects.payload import tensor_bytes
from ...dialects.shapes.extents import extents_text
from ...dialects.support.locations import location_text
from ...dialects.support.printing import quantity
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...target.model import Target
from ..analysis.host_memory import SCRATCH_LIMIT, limit_of
from ..analysis.operand_types import STORED, load_parts, parts_nest, wide_factors
from .candidates import candidates
from .cost_model import Model, Prediction, Predictions
from .legality import presplit_bytes
from .nest_info import NestInfo
from .points import Floats
from .roofline import another_kernel


@contextmanager
def split_ahead(nest: NestOp) -> Generator[tuple[NestOp, list[NestOp]]]:
    """A copy of `nest` that loads parts of its wide factors, and the nests that make these, for as long as it is open;
    no such nests, if it has no such factors."""
    copy = nest.clone()
    loads = wide_factors(copy)
    makers = {source: parts_nest(source) for source in dict.fromkeys(load.source for load in loads)}
    for load in loads:
        load_parts(load, makers[load.source].res)
    try:
        yield copy, list(makers.values())
    finally:
        for op in (copy, *makers.values()):
            op.erase(safe_erase=False)


def presplit_plans(info: NestInfo, target: Target) -> Iterator[Predictions]:
    """The schedules with `f32_matmul_precision = bf16x3_presplit` and what they give: those with
    `f32_matmul_precision = bf16x3` of a nest that loads the parts, where these are copied ahead."""
    limit = limit_of(info.nest, SCRATCH_LIMIT)
    if limit is not None and presplit_bytes(info) > limit:
        return
    with split_ahead(info.nest) as (nest, makers):
        model = Model(NestInfo(nest), target)
        before = sum(_seconds(maker, target) for maker in makers)
        for points in candidates(model.info, target, model.found, "bf16x3") if makers else ():
            if points.copy != "sync":
                for found in model.predict_all(points.at(points.split_k == 1)):
                    split = replace(found.points, f32_matmul_precision=STORED)
                    yield replace(found, points=split, all=replace(found.all, combine=found.all.combine + before))


def _seconds(maker: NestOp, target: Target) -> float:
    """How long it takes to split a tensor: one kernel, and the gap behind it."""
    sources = [op.source for op in maker.body.block.ops if isinstance(op, LoadOp)]
    moved = sum(tensor_bytes(v.type) for v in (*sources, *maker.res))
    return another_kernel(target.rates, moved / target.rates.memory)


MIN_SPLIT_K_SPEEDUP = 1.1
"""So many times faster a matmul must be in parts, which take memory."""

MIN_CLUSTER_SPEEDUP = 1.05
"""So many times faster a kernel must be with blocks in clusters, which start and end together."""

ALIKE = 1.02
"""Schedules without matmuls that are no more than so many times slower than the fastest are as fast as it is; on cores
those of all but sums without matmuls, which compute more or less again in each block."""

HIDING = 0.005
"""The share that counts of what is done while a kernel waits for something else: of matmuls that wait for the same
bytes the one with the least besides is taken."""

WAITING = 0.3
"""The same on a core, which does little else while it waits for bytes."""


@dataclass(frozen=True)
class Candidate:
    """A schedule with its prediction, or with why it is refused: a row of the predictions for several.

    cost    seconds that `rank` sorts by: the predicted time, weighted, and at least the time of equally fast schedules
    target  of the prediction
    """

    predictions: Predictions
    row: int
    cost: float
    target: Target

    @cached_property
    def schedule(self) -> ScheduleAttr:
        """The schedule."""
        return self.predictions.points.schedule(self.row)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What it would give; None if it is refused."""
        return None if self.predictions.violated[self.row] else self.predictions.at(self.row)

    @property
    def refused(self) -> str:
        """Why it cannot be carried out; empty if it can."""
        try:
            self.predictions.at(self.row)
        except ScheduleError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        schedule = str(self.schedule).removeprefix("#tile.schedule")
        p = self.prediction
        if p is None:
            return f"refused: {self.refused}  {schedule}"
        spent = {**p.times.parts, "other kernels": p.combine}
        parts = ", ".join(f"{name} {_us(s)}" for name, s in spent.items() if s > 0)
        time = f"{_us(self.cost)} us"
        if time != f"{_us(p.seconds)} us":
            time += f" ({_us(p.seconds)} predicted)"
        spills = "; its registers would spill" if self.predictions.spills[self.row] else ""
        return f"{time}, limited by {p.limit}  {schedule}  ({parts}; {self._resources(p)}{spills})"

    def _resources(self, p: Prediction) -> str:
        """Returns the parallel work and the memory of the kernel, in words of the target."""
        if self.target.core is not None:
            return f"{quantity(p.blocks, 'task')} on {quantity(self.target.sms, 'core')}"
        text = f"{quantity(p.blocks, 'block')}, {p.resident} on a multiprocessor, {quantity(p.waves, 'wave')}"
        return f"{text}; {p.registers} registers, {p.shared} B shared" if p.registers else text


def rank(
    info: NestInfo, target: Target, precision: str = "ieee", divide: bool = True, cluster_sums: bool = False
) -> list[Candidate]:
    """All candidates, the fastest first; those whose registers would spill behind the others, and those that cannot be
    carried out last. Of equally fast ones first those that are one kernel, then the one that was enumerated first. A
    matmul with a divided sum counts `MIN_SPLIT_K_SPEEDUP` times slower, blocks in clusters `MIN_CLUSTER_SPEEDUP` times.
    Without `divide` there are none with divided sums; with `cluster_sums` there are those with `cluster_k`, whose
    predicted times no GPU has confirmed yet."""
    model = Model(info, target)
    points = candidates(info, target, model.found, precision, cluster_sums)
    chosen = (p if divide else replace(p.at(p.split_k == 1), pack=()) for p in points)
    found = [predictions for p in chosen for predictions in model.predict_all(p)]
    if precision == "bf16x3" and model.found:
        found += presplit_plans(info, target)
    sums = bool(info.reductions) and not model.found
    alike = 0.0 if (sums if target.core is not None else model.found) else ALIKE
    able = [_weighed(model, p)[~(p.violated | p.spills)] for p in found]
    least = alike * min((float(s.min()) for s in able if len(s)), default=0.0)
    ranked = [
        (refused, spills, cost, others > 0, order, Candidate(predictions, row, cost, target))
        for predictions in found
        for row, (refused, spills, cost, others, order) in enumerate(
            zip(
                predictions.violated,
                predictions.spills,
                np.maximum(_weighed(model, predictions), least).tolist(),
                predictions.all.combine,
                predictions.points.order,
                strict=True,
            )
        )
    ]
    return [candidate for *_, candidate in sorted(ranked, key=lambda r: r[:-1])]


def _weighed(model: Model, p: Predictions) -> Floats:
    """Seconds by which schedules are compared."""
    if model.target.core is not None:
        return p.all.seconds + WAITING * p.all.times.hidden
    seconds = p.all.seconds * (MIN_CLUSTER_SPEEDUP if p.points.cluster * p.points.cluster_k > 1 else 1.0)
    if not model.found:
        return seconds
    return seconds * np.where(p.points.split_k > 1, MIN_SPLIT_K_SPEEDUP, 1.0) + HIDING * p.all.times.hidden


def explain_nest(name: str, nest: NestOp, target: Target, shown: int = 8, precision: str = "ieee") -> str:
    """Returns what was considered for a nest, as text: a line for each of the first `shown` candidates of `rank`, and
    for as many that are refused. A line begins with the cost that `rank` sorts by, in microseconds."""
    info = NestInfo(nest)
    ranked = rank(info, target, precision)
    reduced = ", ".join(extents_text(group[0].sizes) for group in info.groups)
    place = location_text(nest)
    head = f"{name}: a nest over {extents_text(nest.sizes)}" + (f", sums over [{reduced}]" if reduced else "")
    lines = [
        head
        + (f", {place}" if place else "")
        + f": {quantity(len(ranked), 'schedule')} for {target.name} ({target.card}), by cost"
    ]
    possible = [c for c in ranked if c.prediction is not None]
    lines += [f"  {i + 1}. {c}" for i, c in enumerate(possible[:shown])]
    if len(possible) > shown:
        slowest = possible[-1].prediction
        assert slowest is not None
        lines.append(f"  and {len(possible) - shown} slower, up to {_us(slowest.seconds)} us")
    refused = [c for c in ranked if c.prediction is None]
    lines += [f"  {c}" for c in refused[:shown]]
    lines += [f"  and {len(refused) - shown} more that are refused"] if len(refused) > shown else []
    return "".join(f"{line}\n" for line in lines)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"
