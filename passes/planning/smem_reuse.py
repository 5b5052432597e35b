"""What a block would keep of its rows under a schedule: the tiles that several of its loops read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.loop.dependence import access_indices
from ...dialects.payload import element_bytes
from .nest_info import NestInfo
from .points import Bools, Floats, product
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


def alike(info: NestInfo, sites: Sequence[LoadSite]) -> list[list[int]]:
    """For each load the positions of those that read the same tensor by the same map, over indices of equal extents:
    they may give the same tiles."""
    found: dict[Hashable, list[int]] = {}
    keys = [(place.op.source, place.op.map, tuple(info.extents[i] for i in place.indices)) for place in sites]
    for n, key in enumerate(keys):
        found.setdefault(key, []).append(n)
    return [found[key] for key in keys]


def same_tiles(a: LoadSite, b: LoadSite, tiles: Tiles) -> Bools:
    """Where two loads that are alike give the same tiles, maybe at different times."""
    found = np.ones(tiles.rows, dtype=np.bool_)
    for i, j in zip(a.indices, b.indices, strict=True):
        if i is not j:
            alone = [tiles.counts[k] == 1 for k in (i, j) if k in tiles.counts]
            found &= (tiles.tile[i] == tiles.tile[j]) & np.logical_and.reduce([found, *alone])
    return found


def reused_bytes(tiles: Tiles, sites: Sequence[LoadSite]) -> Floats:
    """Bytes of what `cache_rows = shared` keeps: tiles of several chunks, each of which more than one loop reads."""
    info, kept = tiles.info, np.zeros(tiles.rows)
    looped: list[Bools] = []
    for place in sites:
        several = [tiles.steps[i] > 1 for i in place.indices]
        unknown = [s for i, s in zip(place.indices, several, strict=True) if not isinstance(info.sizes[i], int)]
        none = np.zeros(tiles.rows, dtype=np.bool_)
        looped.append(np.logical_or.reduce([none, *several]) & ~np.logical_or.reduce([none, *unknown]))
    for n, (place, others) in enumerate(zip(sites, alike(info, sites), strict=True)):
        first, shared = looped[n], np.zeros(tiles.rows, dtype=np.bool_)
        for m in others:
            if m != n:
                other = sites[m]
                same = looped[m] & same_tiles(place, other, tiles)
                first = first & ~same if m < n else first
                shared |= same if other.group != place.group else False
        size = product((tiles.tile[i] * tiles.steps[i] for i in place.indices), tiles.rows)
        kept += np.where(first & shared, size * element_bytes(place.op.source.type), 0)
    return kept
