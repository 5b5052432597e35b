"""The reductions of a nest as its schedule counts them, and what several blocks or those of a cluster can share."""

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
    """Returns the reductions that run together, chunk by chunk: the stages of staged ones, then every other one."""
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
    """The only outermost reduction of a nest, in `parts` along the index number `axis`. It depends on the free indices
    at the positions `free`."""

    nest: loop.NestOp
    reduction: loop.ReduceOp | loop.StagedReduceOp
    axis: int
    parts: int
    free: tuple[int, ...]

    @property
    def stages(self) -> tuple[loop.ReduceOp, ...]:
        return stages_of(self.reduction)

    @property
    def length(self) -> int:
        """Values of the index in one part."""
        extent = self.stages[0].sizes[self.axis]
        assert isinstance(extent, int)  # find_split takes no symbol
        return extent // self.parts


def splittable(nest: loop.NestOp) -> loop.ReduceOp | loop.StagedReduceOp | str:
    """Returns the reduction of `nest` that may be split, or why there is none."""
    found = [op for op in nest.body.block.ops if isinstance(op, loop.ReduceOp | loop.StagedReduceOp)]
    if len(found) != 1:
        return f"the nest has {len(found)} outermost reductions; one can be split"
    for use in (u for op in found for s in stages_of(op) for a in s.body.block.args for u in a.uses):
        if not isinstance(use.operation, loop.LoadOp | payload.CastOp):
            return f"{use.operation.name} computes with a reduction index"
    return found[0]


def stages_of(op: loop.ReduceOp | loop.StagedReduceOp) -> tuple[loop.ReduceOp, ...]:
    return (op,) if isinstance(op, loop.ReduceOp) else op.stage_ops


def divisible_extents(nest: loop.NestOp, parts: int) -> tuple[loop.ReduceOp | loop.StagedReduceOp, dict[int, int]]:
    """Returns the reduction of `nest` that may be split, and its extents that `parts` divides, by position.

    Raises ScheduleError if there is none."""
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
    """Returns how to split the reduction of `nest` into `parts`. Raises ScheduleError if it cannot be split."""
    reduction, whole = divisible_extents(nest, parts)
    schedule = nest.attributes.get("schedule")
    chunks = schedule.data.chunk if isinstance(schedule, ScheduleAttr) else [1] * (max(whole) + 1)
    dependence = Dependence()
    needed = frozenset[SSAValue]().union(*(dependence.of(r) for r in reduction.results))
    free = tuple(i for i, a in enumerate(nest.body.block.args) if a in needed)
    return Split(nest, reduction, max(whole, key=lambda i: (-(-whole[i] // chunks[i]), whole[i])), parts, free)


SHARED_LENGTH = 16384
"""Elements of the shortest row that is worth a cluster."""


@dataclass(frozen=True)
class Shared:
    """What the `ranks` blocks of a cluster share: they take the tiles of `indices` in turn. With `cluster_k` each block
    finishes the part with its number of the tile along the free index `part`."""

    ranks: int = 1
    indices: frozenset[SSAValue] = frozenset()
    part: SSAValue | None = None

    def steps(self, index: SSAValue, tiles: int) -> int:
        """Returns how many of the tiles of an index one block takes."""
        return -(-tiles // self.ranks) if index in self.indices else tiles


def shared_indices(
    groups: Iterable[Sequence[SSAValue]],
    rest: Sequence[SSAValue],
    sizes: Mapping[SSAValue, Extent],
    tiles: Mapping[SSAValue, Any],
    ranks: int,
) -> dict[SSAValue, Any]:
    """Returns whether blocks share an index: the longest of each group, if every block gets a tile of it.

    Args:
        groups: the indices of each outermost reduction, of which blocks must share one.
        rest: the indices that no reduction depends on.
        sizes: the extents of all indices.
        tiles: the extents of tiles, or columns of them for several schedules; so is the result.
        ranks: the number of blocks.
    """

    def longest(indices: Sequence[SSAValue]) -> dict[SSAValue, Any]:
        known = {i: n for i in indices if isinstance(n := sizes[i], int)}
        if len(known) < len(indices) or not known:
            return {}
        index = max(known, key=lambda i: known[i])
        return {index: (tiles[index] > 1) & (-(-known[index] // tiles[index]) >= ranks)}

    reduced = {i: shared for group in groups for i, shared in longest(group).items()}
    some: Any = sum(reduced.values()) > 0
    return {i: shared & some for i, shared in (reduced | longest(rest)).items()}


Sum = loop.ReduceOp | loop.StagedReduceOp
"""An outermost reduction, or several that run together."""


def shared_sums(nest: loop.NestOp) -> list[Sum] | str:
    """Returns the outermost reductions of `nest` if the blocks of a cluster can share them, or the reason why not."""
    sums = [op for op in nest.body.block.ops if isinstance(op, Sum)]
    if not sums or any(isinstance(op, loop.ScanOp) for op in nest.body.block.ops):
        return "the blocks of a cluster share reductions, and the nest has none or a scan"
    stages = [(stages_of(op), op.stages.block.ops) for op in sums if isinstance(op, loop.StagedReduceOp)]
    for group, ops in ((sums, nest.body.block.ops), *stages):
        if any(needed_by([op], ops) & {*group} for op in group):
            return "one reduction uses the result of another one"
    if any(isinstance(op, loop.StagedReduceOp) and _rescales(op) for op in sums):
        return "the blocks of a cluster exchange sums as they are, not what is rescaled before"
    return sums


def _rescales(op: loop.StagedReduceOp) -> bool:
    """Returns true if partial results of `op` change before they are combined."""
    block = op.rescale.block
    return any(value is not arg for value, arg in zip(yielded(block), block.args, strict=False))


def needed_by(users: Iterable[Operation], ops: Iterable[Operation]) -> set[Operation]:
    """Returns those of `ops`, which are in one block, that compute what `users` read."""
    found, among = set[Operation](), {*ops}
    todo = [v.owner for op in users for inner in op.walk() for v in inner.operands]
    while todo:
        op = todo.pop()
        if isinstance(op, Operation) and op in among and op not in found:
            found.add(op)
            todo += [v.owner for inner in op.walk() for v in inner.operands]
    return found


def divisible_indices(nest: loop.NestOp, sums: Sequence[Sum]) -> list[SSAValue]:
    """Returns the free indices on which all reductions `sums` depend: a part of a tile along one is a part of each."""
    dependence = Dependence()
    return [i for i in nest.body.block.args if all(i in dependence.of(r) for op in sums for r in op.results)]


def part_indices(
    indices: Sequence[SSAValue], sizes: Mapping[SSAValue, Extent], tiles: Mapping[SSAValue, Any], ranks: int
) -> dict[SSAValue, Any]:
    """Returns whether `ranks` blocks divide a tile along each of `indices`: along the first one that is no shorter than
    the tile, if possible, and along none if no tile has so many parts of two elements. `tiles` has extents, or columns
    of them for several schedules; so has the result."""
    able = [(i, tiles[i] >= 2 * ranks) for i in indices]
    full = [(i, here & (tiles[i] <= n)) if isinstance(n := sizes[i], int) else (i, here) for i, here in able]
    found: dict[SSAValue, Any] = {}
    count: Any = 0
    for i, here in [*full, *able]:
        first = here & (count == 0)
        found[i] = found[i] | first if i in found else first
        count = count + first
    return found


def no_parts(ranks: int) -> str:
    """Returns the reason why the blocks of a cluster cannot divide a tile."""
    return f"no tile of the result has {ranks} parts of two elements, one part for each block of a cluster"


def no_shared_rows(ranks: int) -> str:
    """Returns the reason why a cluster has nothing to share."""
    return f"no reduction has {ranks} chunks, one for each block of a cluster"


def shared_of_nest(nest: loop.NestOp, schedule: ScheduleAttr) -> Shared:
    """Returns what the blocks of a cluster share of a nest under its schedule; nothing without clusters, and nothing
    where they share TMA tiles."""
    if schedule.data.cluster_k > 1:
        return _shared_sums_of(nest, schedule)
    if schedule.data.cluster == 1 or schedule.data.copy == "tma":
        return Shared()
    dependence, free = Dependence(), nest.body.block.args
    sizes, tiles, reductions = _extents(nest, schedule)
    outer = [op for op in reductions if enclosing(op, loop.ReduceOp) is None]
    around = frozenset[SSAValue]().union(*(dependence.of(yielded(op.body.block)[0]) for op in outer))
    rest = [i for i in free if i not in around]
    ranks = schedule.data.cluster
    found = shared_indices([op.body.block.args for op in outer], rest, sizes, tiles, ranks)
    shared = frozenset(i for i, here in found.items() if here)
    if not shared:
        raise ScheduleError(no_shared_rows(ranks), argument="cluster")
    return Shared(ranks, shared)


def _shared_sums_of(nest: loop.NestOp, schedule: ScheduleAttr) -> Shared:
    """Returns what the blocks of a cluster share of the reductions of `nest`. Raises ScheduleError."""
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
    sizes = extents_of_nest(nest)
    tiles = dict(zip(sizes, (*schedule.data.block, *schedule.data.chunk), strict=True))
    return sizes, tiles, [*reductions(nest)]
