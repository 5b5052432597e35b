"""How many blocks should share a reduction."""

from __future__ import annotations

from math import prod

from ...backend.targets import Target
from ...dialects import loop
from ...dialects.payload import element_bytes
from ...dialects.schedule import ScheduleAttr
from ..split_reductions import splittable, stages_of
from ..tiling.dependence import access_indices
from .facts import Facts

WORTHWHILE = 1 << 18
"""Bytes that one block must read before a second kernel, to combine, costs less than it saves: a block alone reads some
50 GB/s, and a launch takes a few microseconds."""

SMALLEST = 1 << 14
"""Bytes that a part reads at least."""

MOST = 256
"""Parts at most; more would make combining them the long reduction."""


def choose_parts(facts: Facts, schedule: ScheduleAttr, target: Target) -> int:
    """Into how many parts to split the reduction of a nest: 1 unless the grid leaves most of the target idle."""
    nest = facts.nest
    reduction = splittable(nest)
    blocks = prod(-(-n // b.data) for n, b in zip(nest.shape, schedule.block, strict=True))
    if isinstance(reduction, str) or not 0 < 2 * blocks <= target.sms:
        return 1
    tile = dict(zip(facts.free, (b.data for b in schedule.block), strict=True))
    read = 0
    for op in [op for op in reduction.walk() if isinstance(op, loop.LoadOp)]:
        read += element_bytes(op.source.type) * prod(
            tile[i] if i in tile else facts.extents[i] for i in access_indices(op)
        )
    read //= len(stages_of(reduction))  # they read the same
    if read < WORTHWHILE:
        return 1
    longest = max(stages_of(reduction)[0].shape)
    most = min(MOST, -(-2 * target.sms // blocks), read // SMALLEST)
    return max((p for p in range(1, most + 1) if longest % p == 0), default=1)


def with_parts(schedule: ScheduleAttr, parts: int) -> ScheduleAttr:
    """`schedule` with its reduction split into `parts`."""
    return schedule.changed(split_k=parts)
