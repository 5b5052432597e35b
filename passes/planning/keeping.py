"""What a block would keep of its rows under a schedule: the tiles that several of its loops read."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.payload import element_bytes
from ..tiling.dependence import access_indices
from .facts import Facts
from .tiles import Tiles


@dataclass(frozen=True)
class Place:
    """Where a load stands: in the loop of the reductions `group` (-1: in that over the results), and its indices."""

    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    group: int


def places_of(facts: Facts) -> list[Place]:
    """Every load of a nest with its place: that of the outermost reduction around it, whose stages load the same
    once."""
    groups = {op: n for n, group in enumerate(facts.groups) for op in group}
    found: list[Place] = []
    for op in facts.loads:
        group, parent = -1, op.parent_op()
        while parent is not None:
            if isinstance(parent, loop.ReduceOp):
                group = groups.get(parent, -1)
            parent = parent.parent_op()
        found.append(Place(op, access_indices(op), group))
    return found


def same_tiles(place: Place, tiles: Tiles) -> Hashable:
    """Equal for loads that give the same tiles, maybe at different times."""
    free = [tiles.counts.get(i) for i in place.indices]
    along = tuple((tiles.facts.extents[i], tiles.tile[i]) for i in place.indices)
    grid = tuple(i if n not in (None, 1) else None for i, n in zip(place.indices, free, strict=True))
    return place.op.source, place.op.map, along, grid


def kept_bytes(facts: Facts, tiles: Tiles) -> int:
    """Bytes of what `row = shared` keeps: tiles of several chunks, each of which more than one loop reads."""
    groups: dict[Hashable, set[int]] = {}
    size: dict[Hashable, int] = {}
    for place in places_of(facts):
        walked = [i for i in place.indices if tiles.steps[i] > 1]
        if not walked or any(not isinstance(facts.sizes[i], int) for i in walked):
            continue
        key = same_tiles(place, tiles)
        groups.setdefault(key, set()).add(place.group)
        elements = prod(tiles.tile[i] * tiles.steps[i] for i in place.indices)
        size[key] = elements * element_bytes(place.op.source.type)
    return sum(n for key, n in size.items() if len(groups[key]) > 1)
