"""Reductions of a nest in the order of its schedule, and the legality of dividing them among blocks.

A reduction can be divided among independent blocks (`split_k`), or among the blocks of a thread block cluster, which
exchange their partial results through distributed shared memory (`cluster`, `cluster_k`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import Operation, SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence, yielded
from ...dialects.shapes.extents import Extent
from ...dialects.support.locations import enclosing
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError


def reductions(nest: loop.NestOp) -> Iterator[loop.ReduceOp]:
    """Yields the reductions of a nest in the order of a schedule's `chunk`."""
    for op in nest.body.walk():
        if isinstance(op, loop.ReduceOp):
            yield op


def reduction_indices(nest: loop.NestOp) -> list[tuple[SSAValue, Extent]]:
    """Returns every reduction index with its extent, in the order of a schedule's `chunk`."""
    return [pair for op in reductions(nest) for pair in zip(op.body.block.args, op.sizes, strict=True)]


def extents_of_nest(nest: loop.NestOp) -> dict[SSAValue, Extent]:
    """Returns the extents of all indices of a nest, the free ones first."""
    return dict(zip(nest.body.block.args, nest.sizes, strict=True)) | dict(reduction_indices(nest))


def reduction_groups(nest: loop.NestOp) -> list[list[loop.ReduceOp]]:
    """Returns the reductions of a nest, grouped by the loop that computes them.

    The stages of a `loop.staged_reduce` are one group; every other reduction is a group of its own.
    """
    staged = [list(op.stage_ops) for op in nest.body.walk() if isinstance(op, loop.StagedReduceOp)]
    grouped = {op for group in staged for op in group}
    return [*staged, *([op] for op in reductions(nest) if op not in grouped)]


def schedule_of(nest: loop.NestOp) -> ScheduleAttr:
    """Returns the schedule of a nest. Raises ScheduleError if it is missing or has the wrong number of entries."""
    schedule = nest.attributes.get("schedule")
    if not isinstance(schedule, ScheduleAttr):
        raise ScheduleError("the nest has no schedule; run plan-schedules first")
    block, chunk = schedule.data.block, schedule.data.chunk
    for name, extents, kind, count in (
        ("block", block, "free", len(nest.sizes)),
        ("chunk", chunk, "reduction", len(reduction_indices(nest))),
    ):
        if len(extents) != count:
            raise ScheduleError(f"{len(extents)} extents for {count} {kind} indices", argument=name)
    return schedule


@dataclass(frozen=True)
class Split:
    """Division of the only outermost reduction of a nest into parts.

    nest       the nest
    reduction  the reduction
    axis       number of the reduction index that is divided
    parts      number of parts
    free       positions of the free indices that the reduction depends on
    """

    nest: loop.NestOp
    reduction: loop.ReduceOp | loop.StagedReduceOp
    axis: int
    parts: int
    free: tuple[int, ...]

    @property
    def stages(self) -> tuple[loop.ReduceOp, ...]:
        """Stages of the reduction; the reduction itself if it is not staged."""
        return stages_of(self.reduction)

    @property
    def length(self) -> int:
        """Extent of the divided index in one part."""
        extent = self.stages[0].sizes[self.axis]
        # `find_split` divides only static extents.
        assert isinstance(extent, int)
        return extent // self.parts


def splittable(nest: loop.NestOp) -> loop.ReduceOp | loop.StagedReduceOp | str:
    """Returns the reduction of `nest` that may be divided by split-K, or the reason why there is none."""
    outermost = [op for op in nest.body.block.ops if isinstance(op, loop.ReduceOp | loop.StagedReduceOp)]
    if len(outermost) != 1:
        return f"the nest has {len(outermost)} outermost reductions; one can be split"
    for use in (u for op in outermost for s in stages_of(op) for a in s.body.block.args for u in a.uses):
        if not isinstance(use.operation, loop.LoadOp | payload.CastOp):
            return f"{use.operation.name} computes with a reduction index"
    return outermost[0]


def stages_of(op: loop.ReduceOp | loop.StagedReduceOp) -> tuple[loop.ReduceOp, ...]:
    """Returns the stages of a staged reduction, or a reduction itself."""
    return (op,) if isinstance(op, loop.ReduceOp) else op.stage_ops


def divisible_extents(nest: loop.NestOp, parts: int) -> tuple[loop.ReduceOp | loop.StagedReduceOp, dict[int, int]]:
    """Returns the reduction of `nest` that may be divided, and its extents that are multiples of `parts`, by position.

    Raises:
        ScheduleError: if there is no such reduction, or no such extent.
    """
    reduction = splittable(nest)
    if isinstance(reduction, str):
        raise ScheduleError(reduction, argument="split_k")
    shape = stages_of(reduction)[0].sizes
    whole = {i: n for i, n in enumerate(shape) if isinstance(n, int) and n and n % parts == 0}
    if not whole:
        raise ScheduleError(
            f"{parts} parts of equal size do not make [{', '.join(map(str, shape))}]", argument="split_k"
        )
    return reduction, whole


def find_split(nest: loop.NestOp, parts: int) -> Split:
    """Returns the division of the reduction of `nest` into `parts`, along the index with most chunks.

    Raises:
        ScheduleError: if the reduction cannot be divided.
    """
    reduction, whole = divisible_extents(nest, parts)
    schedule = nest.attributes.get("schedule")
    chunks = schedule.data.chunk if isinstance(schedule, ScheduleAttr) else [1] * (max(whole) + 1)
    dependence = Dependence()
    needed = frozenset[SSAValue]().union(*(dependence.of(r) for r in reduction.results))
    free = tuple(i for i, a in enumerate(nest.body.block.args) if a in needed)
    return Split(nest, reduction, max(whole, key=lambda i: (-(-whole[i] // chunks[i]), whole[i])), parts, free)


SHARED_LENGTH = 16384
"""Minimum number of elements of a row that the planner divides among the blocks of a cluster. Tuned by hand."""


@dataclass(frozen=True)
class Shared:
    """Work that the blocks of a cluster share.

    ranks    blocks of the cluster
    indices  indices whose tiles the blocks take in turn: block r has tiles r, r + ranks, …
    part     with `cluster_k`, the free index along which the result tile is divided: each block combines the partial
             results of its part, and stores it
    """

    ranks: int = 1
    indices: frozenset[SSAValue] = frozenset()
    part: SSAValue | None = None

    def steps(self, index: SSAValue, tiles: int) -> int:
        """Returns the number of tiles that one block has, if index `index` has `tiles` tiles."""
        return -(-tiles // self.ranks) if index in self.indices else tiles


def shared_indices(
    groups: Iterable[Sequence[SSAValue]],
    others: Sequence[SSAValue],
    sizes: Mapping[SSAValue, Extent],
    tiles: Mapping[SSAValue, Any],
    ranks: int,
) -> dict[SSAValue, Any]:
    """Returns the indices whose tiles the blocks of a cluster take in turn.

    Candidates are the longest index of each group and the longest of `others`. An index is shared if every block gets a
    tile of it. Nothing is shared if no reduction index is.

    Args:
        groups: indices of each outermost reduction.
        others: free indices that no reduction depends on.
        sizes: extents of all indices.
        tiles: tile extents of all indices: numbers, or arrays with one entry for each schedule.
        ranks: blocks of the cluster.

    Returns:
        Index -> whether it is shared; an array if `tiles` has arrays.
    """

    def longest(indices: Sequence[SSAValue]) -> dict[SSAValue, Any]:
        static = {i: n for i in indices if isinstance(n := sizes[i], int)}
        if len(static) < len(indices) or not static:
            return {}
        index = max(static, key=lambda i: static[i])
        return {index: (tiles[index] > 1) & (-(-static[index] // tiles[index]) >= ranks)}

    reduced = {i: shared for group in groups for i, shared in longest(group).items()}
    some: Any = sum(reduced.values()) > 0
    return {i: shared & some for i, shared in (reduced | longest(others)).items()}


Sum = loop.ReduceOp | loop.StagedReduceOp
"""A reduction, or several stages that run in one loop."""


def shared_sums(nest: loop.NestOp) -> list[Sum] | str:
    """Returns the outermost reductions of `nest` that a cluster can share (`cluster_k`), or the reason against it."""
    sums = [op for op in nest.body.block.ops if isinstance(op, Sum)]
    if not sums or any(isinstance(op, loop.ScanOp) for op in nest.body.block.ops):
        return "the blocks of a cluster share reductions, and the nest has none or a scan"
    stages = [(stages_of(op), op.stages.block.ops) for op in sums if isinstance(op, loop.StagedReduceOp)]
    for group, ops in ((sums, nest.body.block.ops), *stages):
        if any(needed_by([op], ops) & {*group} for op in group):
            return "one reduction uses the result of another one"
    if any(isinstance(op, loop.StagedReduceOp) and _rescales(op) for op in sums):
        return "the blocks of a cluster cannot exchange partial results that are rescaled"
    return sums


def _rescales(op: loop.StagedReduceOp) -> bool:
    """Returns true if `op` rescales partial results before they are combined."""
    block = op.rescale.block
    return any(value is not arg for value, arg in zip(yielded(block), block.args, strict=False))


def needed_by(users: Iterable[Operation], ops: Iterable[Operation]) -> set[Operation]:
    """Returns the operations of `ops` that `users` depend on, directly or indirectly. `ops` are in one block."""
    producers, among = set[Operation](), {*ops}
    todo = [v.owner for op in users for inner in op.walk() for v in inner.operands]
    while todo:
        op = todo.pop()
        if isinstance(op, Operation) and op in among and op not in producers:
            producers.add(op)
            todo += [v.owner for inner in op.walk() for v in inner.operands]
    return producers


def divisible_indices(nest: loop.NestOp, sums: Sequence[Sum]) -> list[SSAValue]:
    """Returns the free indices that all reductions `sums` depend on: a tile can be divided along such an index."""
    dependence = Dependence()
    return [i for i in nest.body.block.args if all(i in dependence.of(r) for op in sums for r in op.results)]


def part_indices(
    indices: Sequence[SSAValue], sizes: Mapping[SSAValue, Extent], tiles: Mapping[SSAValue, Any], ranks: int
) -> dict[SSAValue, Any]:
    """Returns the index along which the blocks of a cluster divide a result tile.

    It is the first index whose tile has at least two elements for each block, preferably without padding.

    Args:
        indices: candidates (`divisible_indices`).
        sizes: extents of all indices.
        tiles: tile extents of all indices: numbers, or arrays with one entry for each schedule.
        ranks: blocks of the cluster.

    Returns:
        Index -> whether the tile is divided along it (at most one); an array if `tiles` has arrays.
    """
    able = [(i, tiles[i] >= 2 * ranks) for i in indices]
    full = [(i, ok & (tiles[i] <= n)) if isinstance(n := sizes[i], int) else (i, ok) for i, ok in able]
    divides: dict[SSAValue, Any] = {}
    count: Any = 0
    for i, possible in [*full, *able]:
        first = possible & (count == 0)
        divides[i] = divides[i] | first if i in divides else first
        count = count + first
    return divides


def no_parts(ranks: int) -> str:
    """Returns the reason why the blocks of a cluster cannot divide a tile."""
    return f"no tile of the result has {ranks} parts of two elements, one part for each block of a cluster"


def no_shared_rows(ranks: int) -> str:
    """Returns the reason why no reduction can be divided among the blocks of a cluster."""
    return f"no reduction has {ranks} chunks, one for each block of a cluster"


def shared_of_nest(nest: loop.NestOp, schedule: ScheduleAttr) -> Shared:
    """Returns the work that the blocks of a cluster share under a schedule.

    Nothing is shared without clusters, or if the blocks of a cluster share TMA tiles instead (`copy = tma`).

    Raises:
        ScheduleError: if the schedule asks for clusters that have nothing to share.
    """
    if schedule.data.cluster_k > 1:
        return _shared_sums_of(nest, schedule)
    if schedule.data.cluster == 1 or schedule.data.copy == "tma":
        return Shared()
    dependence, free = Dependence(), nest.body.block.args
    sizes, tiles, reductions = _extents(nest, schedule)
    outer = [op for op in reductions if enclosing(op, loop.ReduceOp) is None]
    reduced = frozenset[SSAValue]().union(*(dependence.of(yielded(op.body.block)[0]) for op in outer))
    others = [i for i in free if i not in reduced]
    ranks = schedule.data.cluster
    candidates = shared_indices([op.body.block.args for op in outer], others, sizes, tiles, ranks)
    shared = frozenset(i for i, is_shared in candidates.items() if is_shared)
    if not shared:
        raise ScheduleError(no_shared_rows(ranks), argument="cluster")
    return Shared(ranks, shared)


def _shared_sums_of(nest: loop.NestOp, schedule: ScheduleAttr) -> Shared:
    """Returns the work that the blocks of a cluster share with `cluster_k`. Raises ScheduleError if there is none."""
    sums, ranks = shared_sums(nest), schedule.data.cluster_k
    if isinstance(sums, str):
        raise ScheduleError(sums, argument="cluster_k")
    sizes, tiles, _ = _extents(nest, schedule)
    stages = [stage for op in sums for stage in stages_of(op)]
    shared = shared_indices([op.body.block.args for op in stages], [], sizes, tiles, ranks)
    if len(shared) < len(stages) or not all(shared.values()):
        raise ScheduleError(no_shared_rows(ranks), argument="cluster_k")
    parts = part_indices(divisible_indices(nest, sums), sizes, tiles, ranks)
    part = next((i for i, here in parts.items() if here), None)
    if part is None:
        raise ScheduleError(no_parts(ranks), argument="cluster_k")
    return Shared(ranks, frozenset(shared), part)


def _extents(
    nest: loop.NestOp, schedule: ScheduleAttr
) -> tuple[dict[SSAValue, Extent], dict[SSAValue, int], list[loop.ReduceOp]]:
    """Returns the extents and tile extents of all indices, and the reductions of a nest."""
    sizes = extents_of_nest(nest)
    tiles = dict(zip(sizes, (*schedule.data.block, *schedule.data.chunk), strict=True))
    return sizes, tiles, [*reductions(nest)]
