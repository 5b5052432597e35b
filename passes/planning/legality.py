"""Legality of schedules: checks that all kinds of targets share.

The same checks apply to candidates of the planner, to schedules in the text of a program and to those of a record.
`gpu/resources.py` and `cpu/model.py` have the checks of one kind of target. Each check yields a `Violation` with a mask
of the schedules that fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, i64

from ...dialects.kernel import aligned
from ...dialects.loop import NestOp
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...target.model import Target
from ..analysis.host_memory import SCRATCH_LIMIT, HostMemory, limit_of
from ..analysis.nest_schedule import divisible_extents, no_parts, no_shared_rows, shared_sums, splittable, stages_of
from ..analysis.operands import PARTS, PRESPLIT, copies, packable_loads, wide_factors
from .matmul import Matmul
from .nest_info import NestInfo
from .points import Bools, Floats, Ints, Points, largest, points_of, total
from .tiles import Tiles

LARGEST_TILE = 1 << 18
"""Maximum number of elements of a tile: four times the 65,536 registers of a multiprocessor."""

MOST_STAGES = 8
"""Maximum number of stages of a pipeline of copies."""


@dataclass(frozen=True)
class Violation:
    """A decision that cannot be carried out.

    where     mask of the schedules that fail the check
    argument  name of the decision
    reason    reason as a format string, with one `{}` for each of `columns`
    columns   arrays of the values in the reason, one entry for each schedule
    """

    where: Bools
    argument: str
    reason: str
    columns: tuple[Any, ...] = ()


def violated(violations: list[Violation], rows: int) -> Bools:
    """Returns the mask of the schedules that cannot be carried out."""
    return np.logical_or.reduce([np.zeros(rows, dtype=np.bool_), *(v.where for v in violations)])


def raise_first(violations: list[Violation], row: int = 0) -> None:
    """Raises ScheduleError for the first violation of the schedule in `row`, if there is one."""
    for v in violations:
        if v.where[row]:
            reason = v.reason.format(*(c[row] for c in v.columns)) if v.columns else v.reason
            raise ScheduleError(reason, argument=v.argument)


def common_violations(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Iterator[Violation]:
    """Yields the violations that schedules for every kind of target may have.

    Args:
        info: the nest.
        tiles: the schedules.
        target: the target.
        products: contractions that these schedules compute as matmuls.
    """
    points = tiles.points
    for group in (g for g in info.groups if g[0].sizes):
        chunks = [np.stack([tiles.tile[a] for a in op.body.block.args]) for op in group]
        unequal: Bools = np.any([(c != chunks[0]).any(axis=0) for c in chunks], axis=0)
        yield Violation(unequal, "chunk", "expected equal chunks for all stages of a staged reduction")
    if points.serial or info.scanned is not None:
        yield from _of_serial(info, tiles)
    for position in points.pack:
        reason = packable_loads(info.nest, info.free[position])
        yield from _always(tiles, isinstance(reason, str), "pack", str(reason))
    elements = tile_elements(info, tiles)
    text = f"a tile of {{:.0f}} elements; at most {LARGEST_TILE} are possible"
    yield Violation(elements > LARGEST_TILE, "block", text, (elements,))
    if points.cluster_k > 1:
        yield from _of_cluster_sums(info, tiles, target)
    elif points.cluster > 1:
        yield from _of_cluster(info, tiles, target, products)
    if tiles.kept or (points.split_k > 1).any():
        yield from _of_parts(info, tiles)
    if points.copy != "sync" or points.atom != "fma" or (points.stages > 1).any():
        yield from _of_copies(tiles, target)
    if SCRATCH_LIMIT in info.nest.attributes:
        yield from _of_scratch(info, tiles)


def _always(tiles: Tiles, condition: bool, argument: str, reason: str) -> Iterator[Violation]:
    """Yields one violation, with a mask of all schedules, or nothing if `condition` is false."""
    if condition:
        yield Violation(np.ones(tiles.rows, dtype=np.bool_), argument, reason)


def tile_elements(info: NestInfo, tiles: Tiles) -> Floats:
    """Returns the number of elements of the largest tile of each schedule.

    The products inside a matmul are never a tile, so a contraction does not count.
    """
    bodies = [r.outer_indices | set(r.indices) for r in info.reductions if r.contraction is None]
    return largest((tiles.elements(indices) for indices in (info.free, *bodies)), tiles.rows)


def _of_serial(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Yields the violations of loops over free indices."""
    serial = tiles.points.serial
    if info.scanned is not None:
        scanned = info.free.index(info.scanned)
        reason = f"one block walks along the index of a scan, and along no other one: serial = [{scanned}]"
        whole = tiles.tile[info.scanned] >= info.extents[info.scanned]
        varies = info.may_be_longer([info.scanned])
        yield Violation(np.full(tiles.rows, scanned not in serial) & (varies | ~whole), "serial", reason)
        yield from _always(tiles, bool({*serial} - {scanned}), "serial", reason)
        yield from _always(tiles, tiles.points.cluster > 1, "cluster", "the blocks of a cluster do not share a scan")
    yield from _always(tiles, len({*serial}) != len(serial), "serial", "an index is listed twice")


def _of_cluster(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Iterator[Violation]:
    """Yields the violations of `cluster`: blocks without shared work, and grids that clusters do not divide."""
    points = tiles.points
    yield from _always(tiles, not target.has("cluster"), "cluster", f"{target.name} has no clusters of blocks")
    if tiles.ranks > 1:
        reason = "blocks of a cluster share factors of products as boxes: copy = tma"
        yield from _always(tiles, bool(products), "cluster", reason)
        reason = "blocks that share rows are not divided, ordered or kept any further"
        further = (points.split_k > 1) | (points.group_m > 1) | (points.num_ctas > 0)
        yield Violation(further, "cluster", reason)
        shared = tiles.any_of(tiles.shared, info.reduction_indices)
        yield Violation(~shared, "cluster", no_shared_rows(points.cluster))
    elif all(isinstance(info.sizes[i], int) for i in info.free):
        persistent = (points.num_ctas > 0) & (points.num_ctas < tiles.blocks)
        last: Ints = np.where(persistent, points.num_ctas, tiles.neighbours()[1])
        text = f"clusters of {points.cluster} blocks do not make up the last extent of the grid, {{}}"
        yield Violation(last % points.cluster != 0, "cluster", text, (last,))


def _of_cluster_sums(info: NestInfo, tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Yields the violations of `cluster_k`: no reductions to share, and result tiles that cannot be divided."""
    points, sums = tiles.points, shared_sums(info.nest)
    yield from _always(tiles, not target.has("cluster"), "cluster_k", f"{target.name} has no clusters of blocks")
    yield from _always(tiles, points.cluster > 1, "cluster_k", "the blocks of a cluster share sums or boxes, not both")
    if isinstance(sums, str):
        yield from _always(tiles, True, "cluster_k", sums)
        return
    reason = "blocks that share sums have one tile, which is not divided, ordered or kept any further"
    further = (points.split_k > 1) | (points.group_m > 1) | (points.num_ctas > 0)
    yield Violation(further | bool(points.serial) | tiles.kept, "cluster_k", reason)
    shared = [tiles.any_of(tiles.shared, stage.body.block.args) for op in sums for stage in stages_of(op)]
    yield Violation(~np.logical_and.reduce(shared), "cluster_k", no_shared_rows(points.cluster_k))
    yield Violation(~tiles.any_of(tiles.divides, info.free), "cluster_k", no_parts(points.cluster_k))


def _of_parts(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Yields the violations of `split_k`."""
    parts = tiles.points.split_k
    if tiles.kept:
        yield Violation(parts > 1, "cache_rows", "blocks that share a reduction have no row of their own to keep")
    for count in map(int, np.unique(parts[parts > 1])):
        try:
            divisible_extents(info.nest, count)
        except ScheduleError as error:
            yield Violation(parts == count, error.argument or "split_k", error.reason)


def _of_copies(tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Yields the violations of `atom`, `copy` and `stages`."""
    points, stages = tiles.points, tiles.points.stages
    for argument, word, plain in (("atom", points.atom, "fma"), ("copy", points.copy, "sync")):
        lacks = word != plain and not target.has(word)
        yield from _always(tiles, lacks, argument, f"{target.name} has no {word}")
    if points.copy == "sync":
        reason = "expected one stage for synchronous copies; several need copy=cp_async"
        yield Violation(stages > 1, "stages", reason)
    many = f"{{}} stages; at most {MOST_STAGES} are possible"
    yield Violation(stages > MOST_STAGES, "stages", many, (stages,))


def _of_scratch(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Yields the violations of `scratch_limit`, the limit of memory between the kernels of the nest."""
    limit, points = limit_of(info.nest, SCRATCH_LIMIT), tiles.points
    if limit is not None:
        taken = scratch_bytes(info, points)
        argument = "pack" if points.pack else "f32_matmul_precision" if points.f32_matmul_precision == PRESPLIT else ""
        text = f"{{:.0f}} bytes lie between the kernels of the nest; {SCRATCH_LIMIT} is {limit}"
        yield Violation(taken > limit, argument or "split_k", text, (taken,))


def scratch_bytes(info: NestInfo, points: Points) -> Floats:
    """Returns the bytes between the kernels of a nest: packed or split operands, and parts of a split-K reduction."""
    divided = splittable(info.nest)
    stages = () if isinstance(divided, str) else stages_of(divided)
    results = prod(info.extents[i] for i in info.free if i in info.reduced)
    parts = total((aligned(points.split_k * results * element_bytes(op.result.type)) for op in stages), len(points))
    before = [
        aligned(tensor_bytes(r.type)) for i in points.pack for nest in copies(info.nest, info.free[i]) for r in nest.res
    ]
    if points.f32_matmul_precision == PRESPLIT:
        before.append(presplit_bytes(info))
    return sum(before) + np.where(points.split_k > 1, parts, 0.0)


def presplit_bytes(info: NestInfo) -> int:
    """Returns the bytes of all f32 operands that are split into three bf16 tensors (`bf16x3_presplit`)."""
    sources = {load.source for load in wide_factors(info.nest)}
    return sum(PARTS * aligned(tensor_bytes(source.type) // 2) for source in sources)


def limit_scratch(nest: NestOp, schedule: ScheduleAttr, memory: Callable[[], HostMemory]) -> bool:
    """Checks the memory between the kernels of a nest. If a schedule takes too much, sets `scratch_limit` of the nest.

    Args:
        nest: the nest.
        schedule: its schedule.
        memory: returns the memory of the host program; called only if the schedule takes any.

    Returns:
        True if the schedule takes more than the available memory.
    """
    decided = schedule.data
    if decided.split_k == 1 and not decided.pack and decided.f32_matmul_precision != PRESPLIT:
        return False
    (points,), room = points_of([decided]), memory().room(nest)
    if room is None or scratch_bytes(NestInfo(nest), points)[0] <= room:
        return False
    nest.attributes[SCRATCH_LIMIT] = IntegerAttr(room, i64)
    return True
