"""Schedules of nests without reductions: tiles of the result."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.ir import SSAValue

from ...dialects.target import Target
from ...dialects.tile.schedule import Schedule
from .nest_info import NestInfo, pow2_at_least
from .tile_extents import TileExtents

TILES = (1024, 512, 256)
"""Elements of a tile of elementwise work: large ones, if they still give every multiprocessor two blocks."""


def elementwise_plans(info: NestInfo, target: Target) -> Iterator[Schedule]:
    """Nothing is shared between elements: tiles along the last indices, in vectors of 16 bytes.

    Where a tensor is read along another index than the one it is written along, a square tile, so that both are
    contiguous.
    """
    total = prod(info.extents[i] for i in info.free)
    enough = [n for n in TILES if total // n >= 2 * target.sms]
    for elements in (*enough, *(n for n in reversed(TILES) if n not in enough)):
        yield _elementwise(info, elements)


def _elementwise(info: NestInfo, elements: int) -> Schedule:
    """The schedule with tiles of `elements`, where they are not square."""
    sizes = TileExtents(info)
    order = [*reversed(info.free)]
    if order and info.extents[order[0]]:
        other = _other_direction(info)
        if other is not None:
            sizes.set(other, 32)
            left = sizes.set(order[0], 32)
            order = [i for i in order if i not in (other, order[0])]
            sizes.fill(order, 1 if left == 1 else elements // sizes.elements(sizes.decided))
        else:
            left = sizes.set(order[0], _snug(info.extents[order[0]], elements))
            sizes.fill(order[1:], elements // sizes.tile[order[0]])
    sizes.chunk_reductions(4096)
    per_thread = max(4, min(8, info.vector()))
    return sizes.plan(max(1, sizes.elements(info.free) // (32 * per_thread)))


def _snug(extent: int, most: int) -> int:
    """A tile along a range: large, but not mostly past its end."""
    tile = min(most, pow2_at_least(extent))
    while tile > 32 and -(-extent // tile) * tile > extent + extent // 4:
        tile //= 2
    return tile


def _other_direction(info: NestInfo) -> SSAValue | None:
    """A free index other than the last along which large tensors are contiguous in memory."""
    found = info.contiguous
    last = info.free[-1]
    others = [(size, i) for i, index in enumerate(info.free[:-1]) if (size := found.get(index, 0)) > 4096]
    if not others or info.extents[last] < 8:
        return None
    best = info.free[max(others)[1]]
    return best if info.extents[best] >= 8 else None
