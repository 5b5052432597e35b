"""What a block would keep of its rows under a schedule: the tiles that several of its loops read."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.payload import element_bytes
from ..analysis.dependence import access_indices
from .nest_info import NestInfo
from .tiles import Tiles


@dataclass(frozen=True)
class LoadSite:
    """Where a load stands: in the loop of the reductions `group` (-1: in that over the results), and its indices."""

    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    group: int


def load_sites(info: NestInfo) -> list[LoadSite]:
    """Every load of a nest with its place: that of the outermost reduction around it, whose stages load the same
    once."""
    groups = {op: n for n, group in enumerate(info.groups) for op in group}
    found: list[LoadSite] = []
    for op in info.loads:
        group, parent = -1, op.parent_op()
        while parent is not None:
            if isinstance(parent, loop.ReduceOp):
                group = groups.get(parent, -1)
            parent = parent.parent_op()
        found.append(LoadSite(op, access_indices(op), group))
    return found


def same_tiles(place: LoadSite, tiles: Tiles) -> Hashable:
    """Equal for loads that give the same tiles, maybe at different times."""
    free = [tiles.counts.get(i) for i in place.indices]
    along = tuple((tiles.info.extents[i], tiles.tile[i]) for i in place.indices)
    grid = tuple(i if n not in (None, 1) else None for i, n in zip(place.indices, free, strict=True))
    return place.op.source, place.op.map, along, grid


def reused_bytes(info: NestInfo, tiles: Tiles) -> int:
    """Bytes of what `cache_rows = shared` keeps: tiles of several chunks, each of which more than one loop reads."""
    groups: dict[Hashable, set[int]] = {}
    size: dict[Hashable, int] = {}
    for place in load_sites(info):
        looped = [i for i in place.indices if tiles.steps[i] > 1]
        if not looped or any(not isinstance(info.sizes[i], int) for i in looped):
            continue
        key = same_tiles(place, tiles)
        groups.setdefault(key, set()).add(place.group)
        elements = prod(tiles.tile[i] * tiles.steps[i] for i in place.indices)
        size[key] = elements * element_bytes(place.op.source.type)
    return sum(n for key, n in size.items() if len(groups[key]) > 1)
