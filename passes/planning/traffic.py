"""Bytes that move under a schedule: between a block and the level-2 cache, and to and from device memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.loop.dependence import contiguous_index
from ...dialects.payload import element_bytes, tensor_bytes
from ...target.model import SECTOR, Target
from .nest_info import LoadSite
from .points import Bools, Floats, Ints
from .tiles import Tiles


@dataclass(frozen=True)
class Traffic:
    """Bytes of a kernel: `block` that one block loads, `near` that all load, `read` from memory and `written` to it."""

    block: Floats
    near: Floats
    read: Floats
    written: int


def traffic(tiles: Tiles, target: Target, at_once: Ints, operands: Collection[LoadOp]) -> Traffic:
    """The bytes that move where `at_once` blocks run at the same time; `operands` are the loads that blocks of a
    cluster can make together."""
    per_block: dict[SSAValue, Floats] = {}
    near = block = np.zeros(tiles.rows)
    reach: dict[SSAValue, frozenset[SSAValue]] = {}
    for n, site in enumerate(tiles.info.sites):
        source = site.op.source
        element = element_bytes(source.type) * _waste(site, tiles) * ~_loaded_before(n, site, tiles)
        size = tiles.within(site.indices) * element
        together = _together(site, tiles) if site.op in operands else 1
        near = near + tiles.visits(site.indices) * element / together
        block = block + size / together
        per_block[source] = per_block.get(source, 0.0) + size
        reach[source] = reach.get(source, frozenset()) | frozenset(site.indices)
    read = np.zeros(tiles.rows)
    for source, size in per_block.items():
        read = read + _from_memory(source, size, reach[source], tiles, target, at_once)
    return Traffic(block, near, read, sum(tensor_bytes(v.type) for v in tiles.info.nest.res))


def _together(site: LoadSite, tiles: Tiles) -> Ints:
    """How many blocks have what one of them loads: those of a cluster that have it in common."""
    if tiles.points.cluster == 1:
        return np.ones(tiles.rows, dtype=np.int64)
    found, _ = tiles.neighbours()
    common = tiles.any_of(found, found) & ~tiles.any_of(found, site.indices)
    return np.where(common, tiles.points.cluster, 1)


def _loaded_before(n: int, site: LoadSite, tiles: Tiles) -> Bools:
    """Where load `n` gives what an earlier one gives at the same time, or what a block keeps."""
    found = np.zeros(tiles.rows, dtype=np.bool_)
    once = tiles.kept | (tiles.trip_count(site.indices) == 1)
    for other in (tiles.info.sites[m] for m in site.alike if m < n):
        found |= tiles.same(other, site) & (once | (other.group == site.group))
    return found


def _waste(site: LoadSite, tiles: Tiles) -> Floats | float:
    """How many times more is moved because whole sectors are: where a tile has few neighbouring elements."""
    along = contiguous_index(site.op)
    if along is None or not site.indices:
        return 1.0
    whole = tiles.info.extents[along]
    extent = np.maximum(1, np.minimum(tiles.tile[along], whole))  # of a whole one the next row follows
    return np.where(extent == whole, 1.0, np.maximum(1.0, SECTOR / (extent * element_bytes(site.op.source.type))))


def _from_memory(
    source: SSAValue, size: Floats, reach: frozenset[SSAValue], tiles: Tiles, target: Target, at_once: Ints
) -> Floats:
    """Bytes of `source` that come from memory: once if the cache holds it, else once for every wave of blocks, of
    which the next begins with what the last has ended with."""
    whole = np.minimum(size * tiles.blocks, tensor_bytes(source.type))
    if tensor_bytes(source.type) <= target.l2 // 2:
        return whole
    left, different = np.maximum(1.0, at_once), np.ones(tiles.rows)
    for where, count in tiles.order():
        along = np.minimum(count, left)
        left = left / along
        different = np.where(tiles.any_of(where, reach), different * along, different)
    waves = np.maximum(1.0, tiles.blocks / np.maximum(1, at_once))
    again = np.minimum(size * tiles.blocks, waves * different * size / np.maximum(1, tiles.parts))
    return np.maximum(whole, again)


def results_of(tiles: Tiles) -> Floats:
    """Elements of the results that one block gives."""
    return tiles.elements(tiles.info.free) * tiles.trip_count(tiles.info.free) / tiles.points.cluster_k
