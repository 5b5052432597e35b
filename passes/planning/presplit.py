"""Schedules for which the factors of products are split into parts before: what they give, and what that takes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from ...dialects.loop import LoadOp, NestOp
from ...dialects.payload import tensor_bytes
from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ..analysis.f32_parts import STORED, load_parts, parts_nest, wide_factors
from .candidates import candidates
from .cost_model import Model, Prediction
from .nest_info import NestInfo
from .roofline import GAP


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


def presplit_plans(info: NestInfo, target: Target) -> list[tuple[ScheduleAttr, Prediction | ScheduleError]]:
    """The schedules with `f32_matmul_precision = bf16x3_presplit` and what they give, or why they cannot be: those with
    `f32_matmul_precision = bf16x3` of a nest that loads the parts, where these are copied ahead."""
    with split_ahead(info.nest) as (nest, makers):
        if not makers:
            return []
        model = Model(NestInfo(nest), target)
        before = sum(_seconds(maker, target) for maker in makers)
        found: list[tuple[ScheduleAttr, Prediction | ScheduleError]] = []
        for schedule in candidates(model.info, target, model.found, "bf16x3"):
            if schedule.copy.data == "sync" or schedule.split_k.data > 1:
                continue
            try:
                predicted = model.predict(schedule)
                result = replace(predicted, combine=predicted.combine + before)
            except ScheduleError as error:
                result = error
            found.append((schedule.changed(f32_matmul_precision=STORED), result))
        return found


def _seconds(maker: NestOp, target: Target) -> float:
    """How long it takes to split a tensor: one kernel, and the gap behind it."""
    rates = target.rates
    sources = [op.source for op in maker.body.block.ops if isinstance(op, LoadOp)]
    moved = sum(tensor_bytes(v.type) for v in (*sources, *maker.res))
    return GAP + rates.launch + rates.ramp + moved / rates.memory
