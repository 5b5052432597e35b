"""Which indices of a nest the blocks of a cluster share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.loop.dependence import Dependence, yielded
from ...dialects.shapes.extents import Extent
from ...dialects.support.locations import enclosing
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError

SHARED_LENGTH = 16384
"""Rows that are shorter are not worth a cluster."""


@dataclass(frozen=True)
class Shared:
    """Blocks of a cluster take the tiles of the indices `indices` in turn; `ranks` is how many they are."""

    ranks: int = 1
    indices: frozenset[SSAValue] = frozenset()

    def steps(self, index: SSAValue, tiles: int) -> int:
        """How many of its tiles one block takes."""
        return -(-tiles // self.ranks) if index in self.indices else tiles


def shares_rows(schedule: ScheduleAttr) -> bool:
    """Whether the clusters of a schedule share rows, and not boxes that each of their blocks needs."""
    return schedule.data.cluster > 1 and schedule.data.copy != "tma"


def shared_indices(
    groups: Iterable[Sequence[SSAValue]],
    rest: Sequence[SSAValue],
    sizes: Mapping[SSAValue, Extent],
    tiles: Mapping[SSAValue, Any],
    ranks: int,
) -> dict[SSAValue, Any]:
    """Whether `ranks` blocks share an index: of the indices of each reduction in `groups`, which no other is around,
    and of `rest`, which no reduction depends on, the longest one, if every block gets a tile of it, and if they share
    one of a reduction.

    `tiles` has extents, or columns of them for several schedules; so has the result.
    """

    def longest(indices: Sequence[SSAValue]) -> dict[SSAValue, Any]:
        known = {i: n for i in indices if isinstance(n := sizes[i], int)}
        if len(known) < len(indices) or not known:
            return {}
        found = max(known, key=lambda i: known[i])
        return {found: (tiles[found] > 1) & (-(-known[found] // tiles[found]) >= ranks)}

    reduced = {i: shared for group in groups for i, shared in longest(group).items()}
    some: Any = sum(reduced.values()) > 0
    return {i: shared & some for i, shared in (reduced | longest(rest)).items()}


def no_shared_rows(ranks: int) -> str:
    """Why a cluster has nothing to share."""
    return f"no reduction has {ranks} chunks, one for each block of a cluster"


def shared_of_nest(nest: loop.NestOp, schedule: ScheduleAttr) -> Shared:
    """What the blocks of a cluster share of a nest under its schedule; nothing without clusters."""
    if not shares_rows(schedule):
        return Shared()
    dependence, free = Dependence(), nest.body.block.args
    sizes: dict[SSAValue, Extent] = dict(zip(free, nest.sizes, strict=True))
    reductions = [op for op in nest.body.walk() if isinstance(op, loop.ReduceOp)]
    for op in reductions:
        sizes.update(zip(op.body.block.args, op.sizes, strict=True))
    chunks = [a for op in reductions for a in op.body.block.args]
    tiles: dict[SSAValue, int] = dict(zip(free, schedule.data.block, strict=True))
    tiles.update(zip(chunks, schedule.data.chunk, strict=True))
    outer = [op for op in reductions if enclosing(op, loop.ReduceOp) is None]
    around = frozenset[SSAValue]().union(*(dependence.of(yielded(op.body.block)[0]) for op in outer))
    rest = [i for i in free if i not in around]
    ranks = schedule.data.cluster
    found = shared_indices([op.body.block.args for op in outer], rest, sizes, tiles, ranks)
    shared = frozenset(i for i, here in found.items() if here)
    if not shared:
        raise ScheduleError(no_shared_rows(ranks), argument="cluster")
    return Shared(ranks, shared)
