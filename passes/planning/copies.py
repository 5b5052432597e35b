"""How the factors of matrix products reach shared memory: at once, or several chunks ahead of their use."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from ...backend.targets import Target
from ...dialects import loop, payload
from ...dialects.payload import element_bytes
from ...dialects.schedule import ScheduleAttr
from .facts import Facts
from .products import Product

DEEP, SHALLOW = 3, 2
"""Stages where shared memory is plentiful, and the fewest that overlap anything."""


def plan_copies(facts: Facts, schedule: ScheduleAttr, target: Target, products: list[Product]) -> ScheduleAttr:
    """The schedule with asynchronous copies where some factor is loaded chunk by chunk and used as it is.

    As many stages as leave room for four blocks on a multiprocessor, or two that fit into what a block may have.
    """
    if not target.has("cp_async") or schedule.copy.data != "plain":
        return schedule
    tile = dict(zip(facts.free, (b.data for b in schedule.block), strict=True))
    indices = [i for r in facts.reductions for i in r.indices]
    tile.update(zip(indices, (c.data for c in schedule.chunk), strict=True))
    early = late = most = 0
    for p in products:
        found = p.reduction.contraction
        assert found is not None
        for factor in (found.lhs, found.rhs):
            narrow = schedule.atom.data == "mma"
            load = _loaded(factor, narrow)
            size = prod(tile[i] for i in facts.dependence.of(factor)) * (element_bytes(load.source.type) if load else 4)
            chunks = _chunks(facts, tile, factor) // schedule.split_k.data
            if load is not None and chunks > 1:
                early, most = early + size, max(most, chunks)
            else:
                late += size
    if early == 0:
        return schedule
    if DEEP * early + late <= target.shared_per_sm // 4:
        return schedule.changed(copy="cp_async", stages=min(DEEP, most))
    if SHALLOW * early + late <= target.shared_per_block * 3 // 4:
        return schedule.changed(copy="cp_async", stages=SHALLOW)
    return schedule


def _loaded(factor: SSAValue, narrow: bool) -> loop.LoadOp | None:
    """The load that a factor is, behind a widening if the product is of narrow factors."""
    op = factor.owner
    if narrow and isinstance(op, payload.CastOp):
        op = op.operand.owner
    return op if isinstance(op, loop.LoadOp) else None


def _chunks(facts: Facts, tile: dict[SSAValue, int], factor: SSAValue) -> int:
    """In how many chunks a factor is loaded by one block."""
    reduced = [i for i in facts.dependence.of(factor) if i not in facts.free]
    return prod(-(-facts.extents[i] // tile[i]) for i in reduced)
