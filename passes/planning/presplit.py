"""Schedules for which the factors of products are split into parts before: what they give, and what that takes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...dialects.loop import LoadOp, NestOp
from ...dialects.payload import tensor_bytes
from ...dialects.target import Target
from ..analysis.f32_parts import STORED, load_parts, parts_nest, wide_factors
from .candidates import candidates
from .cost_model import Model, Predictions
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


def presplit_plans(info: NestInfo, target: Target) -> Iterator[Predictions]:
    """The schedules with `f32_matmul_precision = bf16x3_presplit` and what they give: those with
    `f32_matmul_precision = bf16x3` of a nest that loads the parts, where these are copied ahead."""
    with split_ahead(info.nest) as (nest, makers):
        model = Model(NestInfo(nest), target)
        before = sum(_seconds(maker, target) for maker in makers)
        for points in candidates(model.info, target, model.found, "bf16x3") if makers else ():
            if points.copy != "sync":
                for found in model.predict_all(points.at(points.split_k == 1)):
                    split = replace(found.points, precision=STORED)
                    yield replace(found, points=split, combine=found.combine + before)


def _seconds(maker: NestOp, target: Target) -> float:
    """How long it takes to split a tensor: one kernel, and the gap behind it."""
    rates = target.rates
    sources = [op.source for op in maker.body.block.ops if isinstance(op, LoadOp)]
    moved = sum(tensor_bytes(v.type) for v in (*sources, *maker.res))
    return GAP + rates.launch + rates.ramp + moved / rates.memory
