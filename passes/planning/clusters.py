"""Clusters of blocks in a plan: along which index their blocks are neighbours, and what they would load together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.loop.dependence import access_indices
from .matmul import Matmul
from .nest_info import NestInfo
from .points import Bools, Ints, Points
from .staging import loads_of
from .tiles import Tiles

BLOCKS = 2
"""Blocks of a cluster that a plan may have: the published step that is worth it."""


def neighbours(tiles: Tiles) -> tuple[dict[SSAValue, Bools], Ints]:
    """Where each index is the one along which blocks with consecutive numbers stand next to each other, and how many do
    before another index changes (1 where all is on one block)."""
    grid, group = tiles.on_grid, tiles.points.group_m
    patched = (group > 1) & (len(grid) > 1)
    found = {grid[-2]: patched} if len(grid) > 1 else {}
    count, left = np.where(patched, group, 1), ~patched
    for index in reversed(grid):
        here = left & (tiles.counts[index] != 1)
        found[index] = found.get(index, False) | here
        count = np.where(here, tiles.counts[index], count)
        left = left & ~here
    return found, count


def last_of_grid(tiles: Tiles) -> Ints:
    """How many blocks differ in the last index of the grid alone."""
    persistent = tiles.points.num_ctas
    return np.where((persistent > 0) & (persistent < tiles.blocks), persistent, neighbours(tiles)[1])


def operand_loads(products: Iterable[Matmul]) -> list[LoadOp]:
    """The loads that factors of products are, on tensor cores."""
    return list(dict.fromkeys(op for p in products for f in p.factors for op in loads_of(f, narrow=True)))


def may_cluster(info: NestInfo, points: Points, factors: Iterable[LoadOp]) -> Bools:
    """Where clusters make up the grid of schedules, and their blocks have one of the `factors` in common."""
    tiles, loads = Tiles(info, points), [access_indices(op) for op in factors]
    found, count = neighbours(tiles)
    known = all(isinstance(info.sizes[i], int) for i in info.free)
    whole = (count % BLOCKS == 0) & (points.num_ctas % BLOCKS == 0) & (points.split_k == 1) & known
    common = [here for i, here in found.items() if any(i not in indices for indices in loads)]
    return whole & np.logical_or.reduce([np.zeros(len(points), dtype=np.bool_), *common])
