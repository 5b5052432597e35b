"""Which schedules of a nest can be carried out on a target: the same for schedules that the planner considers, one
that a person wrote, and one from a record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...dialects.target import Target
from ...errors import ScheduleError
from ..analysis.cluster_rows import no_shared_rows
from ..analysis.nest_schedule import find_split
from .clusters import last_of_grid
from .matmul import Matmul
from .nest_info import NestInfo
from .points import Bools, Ints, largest
from .resources import Resources, Violation, resources
from .tiles import Tiles

LARGEST_TILE = 1 << 18
"""Elements of a tile; more than the registers of a multiprocessor could hold several times over."""

MOST_STAGES = 8
"""Stages of a pipeline of copies: more groups than these are not told apart."""


def check(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> tuple[Resources, list[Violation]]:
    """What a block of each schedule takes, and which decisions cannot be carried out, and why. `tiles` are those of the
    schedules, `products` the distinct ones that are matrix products in these."""
    takes = resources(info, tiles, target, products)
    found = [*_tiles(info, tiles), *_cluster(info, tiles, target, products)]
    return takes, [*found, *takes.violations, *_split(info, tiles), *_copies(tiles, target)]


def violated(violations: list[Violation], rows: int) -> Bools:
    """Which schedules cannot be carried out."""
    return np.logical_or.reduce([np.zeros(rows, dtype=np.bool_), *(v.where for v in violations)])


def raise_first(violations: list[Violation], row: int = 0) -> None:
    """Raise ScheduleError for the first violation of the schedule in `row`, if there is one."""
    for v in violations:
        if v.where[row]:
            raise ScheduleError(v.reason(row), argument=v.argument)


def _always(tiles: Tiles, condition: bool, argument: str, reason: str) -> Iterator[Violation]:
    """A violation of what all schedules have in common."""
    if condition:
        yield Violation(np.ones(tiles.rows, dtype=np.bool_), argument, lambda _: reason)


def _tiles(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Tiles that no block can have."""
    for group in (g for g in info.groups if g[0].sizes):
        chunks = [np.stack([tiles.tile[a] for a in op.body.block.args]) for op in group]
        unequal: Bools = np.any([(c != chunks[0]).any(axis=0) for c in chunks], axis=0)
        yield Violation(unequal, "chunk", lambda _: "the stages of a staged reduction need equal chunks")
    serial = tiles.points.serial
    yield from _always(tiles, len({*serial}) != len(serial), "serial", "an index is listed twice")
    around = [r.around | set(r.indices) for r in info.reductions if r.contraction is None]
    elements = largest((tiles.elements(indices) for indices in (info.free, *around)), tiles.rows)
    text = f"a tile of {{:.0f}} elements; at most {LARGEST_TILE} are possible"
    yield Violation(elements > LARGEST_TILE, "block", lambda n: text.format(elements[n]))


def _cluster(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Iterator[Violation]:
    """Clusters whose blocks have nothing to share, or do not make up the grid."""
    points = tiles.points
    if points.cluster == 1:
        return
    yield from _always(tiles, not target.has("cluster"), "cluster", f"{target.name} has no clusters of blocks")
    if tiles.ranks > 1:
        reason = "blocks of a cluster share factors of products as boxes: copy = tma"
        yield from _always(tiles, bool(products), "cluster", reason)
        reason = "blocks that share rows are not divided, ordered or kept any further"
        further = (points.split_k > 1) | (points.group_m > 1) | (points.num_ctas > 0)
        yield Violation(further, "cluster", lambda _: reason)
        shared = tiles.any_of(tiles.shared, info.reduction_indices)
        yield Violation(~shared, "cluster", lambda _: no_shared_rows(points.cluster))
    elif all(isinstance(info.sizes[i], int) for i in info.free):
        last: Ints = last_of_grid(tiles)
        text = f"clusters of {points.cluster} blocks do not make up the last extent of the grid, {{}}"
        yield Violation(last % points.cluster != 0, "cluster", lambda n: text.format(last[n]))


def _split(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Divided reductions that cannot be, and atoms of other targets."""
    parts = tiles.points.split_k
    reason = "blocks that share a reduction have no row of their own to keep"
    if tiles.kept:
        yield Violation(parts > 1, "cache_rows", lambda _: reason)
    for count in map(int, np.unique(parts[parts > 1])):
        try:
            find_split(info.nest, count)
        except ScheduleError as error:
            refused = error
            yield Violation(parts == count, refused.argument or "split_k", lambda _, e=refused: e.reason)


def _copies(tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Atoms and pipelines of copies that do not exist."""
    points, stages = tiles.points, tiles.points.stages
    yield from _always(
        tiles, points.atom != "fma" and not target.has(points.atom), "atom", f"{target.name} has no {points.atom}"
    )
    lacks = points.copy != "sync" and not target.has(points.copy)
    yield from _always(tiles, lacks, "copy", f"{target.name} has no {points.copy}")
    if points.copy == "sync":
        reason = "synchronous copies do not run ahead: several stages need cp_async"
        yield Violation(stages > 1, "stages", lambda _: reason)
    many = f"{{}} stages; at most {MOST_STAGES} are possible"
    yield Violation(stages > MOST_STAGES, "stages", lambda n: many.format(stages[n]))
