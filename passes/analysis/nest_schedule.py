"""The reductions of a nest as its schedule counts them, and which several blocks can share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence
from ...dialects.shapes.extents import Extent
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError


def reductions(nest: loop.NestOp) -> Iterator[loop.ReduceOp]:
    """The reductions of a nest in the order in which they are printed, as a schedule's `chunk` lists their indices."""
    for op in nest.body.walk():
        if isinstance(op, loop.ReduceOp):
            yield op


def reduction_indices(nest: loop.NestOp) -> list[tuple[SSAValue, Extent]]:
    """Every reduction index with its extent, in the order of a schedule's `chunk`."""
    return [pair for op in reductions(nest) for pair in zip(op.body.block.args, op.sizes, strict=True)]


def reduction_groups(nest: loop.NestOp) -> list[list[loop.ReduceOp]]:
    """Reductions that run together, chunk by chunk: the stages of each staged one, then every other one by itself."""
    staged = [list(op.stage_ops) for op in nest.body.walk() if isinstance(op, loop.StagedReduceOp)]
    grouped = {op for group in staged for op in group}
    return [*staged, *([op] for op in reductions(nest) if op not in grouped)]


def schedule_of(nest: loop.NestOp) -> ScheduleAttr:
    """The schedule of a nest; raises ScheduleError if there is none or it has the wrong number of entries."""
    found = nest.attributes.get("schedule")
    if not isinstance(found, ScheduleAttr):
        raise ScheduleError("the nest has no schedule; run plan-schedules first")
    wanted = len(nest.sizes), len(reduction_indices(nest))
    given = len(found.data.block), len(found.data.chunk)
    for name, n, m, what in zip(("block", "chunk"), wanted, given, ("free", "reduction"), strict=True):
        if n != m:
            raise ScheduleError(f"{m} extents for {n} {what} indices", argument=name)
    return found


@dataclass(frozen=True)
class Split:
    """What is split: the only outermost reduction of a nest, along which of its indices, into how many parts."""

    nest: loop.NestOp
    reduction: loop.ReduceOp | loop.StagedReduceOp
    axis: int
    parts: int
    free: tuple[int, ...]
    """Positions of the free indices that the reduction depends on."""

    @property
    def stages(self) -> tuple[loop.ReduceOp, ...]:
        """The reductions that run together."""
        return stages_of(self.reduction)

    @property
    def length(self) -> int:
        """How many values of the index one part takes."""
        extent = self.stages[0].sizes[self.axis]
        assert isinstance(extent, int)  # find_split takes no symbol
        return extent // self.parts


def splittable(nest: loop.NestOp) -> loop.ReduceOp | loop.StagedReduceOp | str:
    """The reduction of `nest` that may be split, or why there is none."""
    found = [op for op in nest.body.block.ops if isinstance(op, loop.ReduceOp | loop.StagedReduceOp)]
    if len(found) != 1:
        return f"the nest has {len(found)} outermost reductions; one can be split"
    for use in (u for op in found for s in stages_of(op) for a in s.body.block.args for u in a.uses):
        if not isinstance(use.operation, loop.LoadOp | payload.CastOp):
            return f"{use.operation.name} computes with a reduction index"
    return found[0]


def stages_of(op: loop.ReduceOp | loop.StagedReduceOp) -> tuple[loop.ReduceOp, ...]:
    """The reductions that `op` consists of."""
    return (op,) if isinstance(op, loop.ReduceOp) else op.stage_ops


def find_split(nest: loop.NestOp, parts: int) -> Split:
    """How to split the reduction of `nest` into `parts`; raises ScheduleError if that cannot be done."""
    reduction = splittable(nest)
    if isinstance(reduction, str):
        raise ScheduleError(reduction, argument="split_k")
    shape = stages_of(reduction)[0].sizes
    whole = {i: n for i, n in enumerate(shape) if isinstance(n, int) and n and n % parts == 0}
    if not whole:
        raise ScheduleError(
            f"{parts} parts of equal size do not make [{', '.join(map(str, shape))}]", argument="split_k"
        )
    chunks = _chunks(nest, len(shape))
    dependence = Dependence()
    needed = frozenset[SSAValue]().union(*(dependence.of(r) for r in reduction.results))
    free = tuple(i for i, a in enumerate(nest.body.block.args) if a in needed)
    return Split(nest, reduction, max(whole, key=lambda i: (-(-whole[i] // chunks[i]), whole[i])), parts, free)


def _chunks(nest: loop.NestOp, count: int) -> list[int]:
    """The chunks of the first `count` reduction indices; 1 without a schedule."""
    schedule = nest.attributes.get("schedule")
    return list(schedule.data.chunk[:count]) if isinstance(schedule, ScheduleAttr) else [1] * count
