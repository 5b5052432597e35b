"""Partial sums of matmuls in f32: after how many chunks a schedule promotes them to the accumulators of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
from xdsl.dialects.builtin import Float32Type

from ...dialects.loop.dependence import yielded
from ...dialects.payload import element_type
from ..analysis.operand_types import STORED
from .matmul import Matmul, computed_operands, is_nested
from .nest_info import NestInfo
from .points import Bools, Ints, Points, ceil_div, product
from .tiles import Tiles

PARTIAL_SUMS = 8
"""Partial sums of a long f32 sum on CUDA cores. The errors of cuBLAS on an H200 are those of 5 to 7 (k from 3,584 to
18,944, where one register erred 2.2 to 2.7 times as much)."""

FEWEST_SUMS = 4
"""Parts of a sum that need no partial sums of their own: they err at most 1.4 times as much as `PARTIAL_SUMS`."""

LEAST_TERMS = 256
"""Terms of a partial sum on CUDA cores, at least."""


def with_promotion(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Iterator[Points]:
    """Yields schedules of a nest with their partial sums (`with_interval`), in each `promotion_memory`."""
    found = with_interval(info, points, products, permission)
    yield found
    if points.atom == "fma":
        yield replace(found, promotion_memory="shared").at(found.promotion_interval > 1)


def with_interval(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Points:
    """Returns schedules of a nest with their `promotion_interval`.

    Args:
        info: the nest.
        points: the schedules, which divide their sums already.
        products: those that are matrix products in the tiles of the schedules.
        permission: `f32_matmul_precision` as it was asked for. What the planner splits by itself has operands of 16
            bits, and keeps one sum.
    """
    wide = [p for p in products if isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)]
    if points.atom != "fma":
        split = permission in ("bf16x3", STORED) and points.f32_matmul_precision in ("bf16x3", STORED)
        interval = np.full(len(points), int(split and any(computed_operands(p) for p in wide)))
        return replace(points, promotion_interval=interval)
    wide = [] if is_nested(products) else [p for p in wide if computed_operands(p) == 2]
    tiles, interval = Tiles(info, points), np.zeros(len(points), dtype=np.int64)
    for p in wide:
        terms = prod(info.extents[i] for i in p.reduction.indices)
        chunk = tiles.elements(p.reduction.indices)
        chunks = product((ceil_div(info.extents[i], tiles.tile[i]) for i in p.reduction.indices), len(points))
        longest = np.maximum(LEAST_TERMS, terms / FEWEST_SUMS)
        long = tiles.trip_count(p.reduction.indices) * chunk > longest
        own = np.maximum(ceil_div(LEAST_TERMS, chunk), ceil_div(chunks, PARTIAL_SUMS)).astype(np.int64)
        interval = np.maximum(interval, np.where(long, own, 0))
    return replace(points, promotion_interval=interval)


def is_promoted(p: Matmul, tiles: Tiles) -> Bools:
    """Where a matmul has partial sums in addition to its accumulators."""
    interval: Ints = tiles.points.promotion_interval
    return (interval > 0) & (tiles.trip_count(p.reduction.indices) > interval)
