"""The reductions of a nest as its schedule counts them."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import SSAValue

from ...dialects import loop
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
    given = len(found.block), len(found.chunk)
    for name, n, m, what in zip(("block", "chunk"), wanted, given, ("free", "reduction"), strict=True):
        if n != m:
            raise ScheduleError(f"{m} extents for {n} {what} indices", argument=name)
    return found
