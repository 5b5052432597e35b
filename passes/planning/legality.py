"""Which schedules of a nest can be carried out on a target: the same for a schedule that the planner considers, one
that a person wrote, and one from a record."""

from __future__ import annotations

from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ..analysis.cluster_rows import shares_rows
from ..analysis.split_reduction import find_split
from .clusters import last_of_grid
from .matmul import Matmul, distinct, tiled
from .nest_info import NestInfo
from .resources import Resources, resources
from .tiles import Tiles

LARGEST_TILE = 1 << 18
"""Elements of a tile; more than the registers of a multiprocessor could hold several times over."""

MOST_STAGES = 8
"""Stages of a pipeline of copies: more groups than these are not told apart."""


def check(info: NestInfo, tiles: Tiles, schedule: ScheduleAttr, target: Target, products: list[Matmul]) -> Resources:
    """What a block of `schedule` takes; `tiles` are those of the schedule, `products` all of the nest. Raises
    ScheduleError with the decision that cannot be carried out, and why."""
    _check_tiles(info, tiles, schedule)
    if schedule.cluster.data > 1:
        _check_cluster(info, tiles, schedule, target, products)
    takes = resources(info, tiles, schedule, target, tiled(distinct(info, products), tiles.tile))
    if schedule.split_k.data > 1:
        if schedule.cache_rows.data != "registers":
            reason = "blocks that share a reduction have no row of their own to keep"
            raise ScheduleError(reason, argument="cache_rows")
        find_split(info.nest, schedule.split_k.data)
    if schedule.atom.data != "fma" and not target.has(schedule.atom.data):
        raise ScheduleError(f"{target.name} has no {schedule.atom.data}", argument="atom")
    _check_copies(schedule, target)
    return takes


def _check_tiles(info: NestInfo, tiles: Tiles, schedule: ScheduleAttr) -> None:
    """Raise ScheduleError for tiles that no block can have."""
    for group in info.groups:
        if len({tuple(tiles.tile[a] for a in op.body.block.args) for op in group}) > 1:
            raise ScheduleError("the stages of a staged reduction need equal chunks", argument="chunk")
    if len({s.data for s in schedule.serial}) != len(schedule.serial):
        raise ScheduleError("an index is listed twice", argument="serial")
    around = [r.around | set(r.indices) for r in info.reductions if r.contraction is None]
    largest = max(tiles.elements(indices) for indices in (info.free, *around))
    if largest > LARGEST_TILE:
        raise ScheduleError(f"a tile of {largest} elements; at most {LARGEST_TILE} are possible", argument="block")
    if len(schedule.thread) not in (0, 2):
        raise ScheduleError("a register tile has rows and columns", argument="thread")


def _check_cluster(
    info: NestInfo, tiles: Tiles, schedule: ScheduleAttr, target: Target, products: list[Matmul]
) -> None:
    """Raise ScheduleError if blocks of a cluster have nothing to share, or do not make up the grid."""
    if not target.has("cluster"):
        raise ScheduleError(f"{target.name} has no clusters of blocks", argument="cluster")
    if shares_rows(schedule):
        if tiled(products, tiles.tile):
            reason = "blocks of a cluster share factors of products as boxes: copy = tma"
            raise ScheduleError(reason, argument="cluster")
        if schedule.split_k.data > 1 or schedule.group_m.data > 1 or schedule.num_ctas.data:
            reason = "blocks that share rows are not divided, ordered or kept any further"
            raise ScheduleError(reason, argument="cluster")
        return
    last = last_of_grid(tiles, schedule)
    if last % schedule.cluster.data and all(isinstance(info.sizes[i], int) for i in info.free):
        raise ScheduleError(
            f"clusters of {schedule.cluster.data} blocks do not make up the last extent of the grid, {last}",
            argument="cluster",
        )


def _check_copies(schedule: ScheduleAttr, target: Target) -> None:
    """Raise ScheduleError for a pipeline of copies that does not exist."""
    copy, stages = schedule.copy.data, schedule.stages.data
    if copy != "sync" and not target.has(copy):
        raise ScheduleError(f"{target.name} has no {copy}", argument="copy")
    if copy == "sync" and stages > 1:
        reason = "synchronous copies do not run ahead: several stages need cp_async"
        raise ScheduleError(reason, argument="stages")
    if stages > MOST_STAGES:
        raise ScheduleError(f"{stages} stages; at most {MOST_STAGES} are possible", argument="stages")
