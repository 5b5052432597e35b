"""Operands of matrix products that cores read in memory, where they are stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr

from ...dialects.loop import LoadOp
from ...dialects.payload.folding import constant_of
from .nest_info import strides
from .points import Bools
from .tiles import Tiles


def is_strided(load: LoadOp, sides: Sequence[Collection[SSAValue]], copied: bool, tiles: Tiles) -> Bools:
    """Returns true where a tile of an operand is a matrix with one stride for its rows and one for its columns.

    Several indices that a tile has along one side must follow one another in memory without padding. A bound counts
    either rows or columns: the window of a convolution in a chunk and pixels in the same tile share a bound.

    Args:
        load: Load of the operand.
        sides: Indices of the rows and of the columns of the matrix.
        copied: Whether a packed copy is read, which has no bounds and whose last index is that of the panels.
        tiles: Tiles of the schedules.
    """
    strided = np.full(tiles.rows, copied or _is_plain(load))
    bounds = [] if copied else _bounds(load)
    gaps = strides(load)
    for side in sides:
        inside, whole = np.zeros(tiles.rows, dtype=np.bool_), np.ones(tiles.rows, dtype=np.bool_)
        length = np.zeros(tiles.rows)
        for index in reversed([i for i in tiles.info.extents if i in side and i in gaps]):
            tile, extent = tiles.tile[index], tiles.info.extents[index]
            several = tile > 1
            unbounded = (extent % tile == 0) & (not any(index in bound for bound in bounds))
            follows = whole & unbounded & (copied | (gaps[index] == length))
            strided &= ~(several & inside) | follows
            whole = np.where(several, whole & unbounded & (tile == extent), whole)
            length = np.where(several, gaps[index] * tile, length)
            inside = inside | several
    rows, columns = sides
    for bound in bounds:
        strided &= (tiles.elements(bound & {*rows}) == 1) | (tiles.elements(bound & {*columns}) == 1)
    return strided


def _is_plain(load: LoadOp) -> bool:
    """Returns true if no coordinate is computed from data, and elements out of bounds are zero."""
    fill = None if load.fill is None else constant_of(load.fill)
    return not load.symbols and (load.fill is None or fill == 0)


def _bounds(load: LoadOp) -> list[set[SSAValue]]:
    """Returns the indices of every expression that the domain of a load bounds."""
    bounded = () if load.domain is None else load.domain.affine.results
    return [{load.indices[e.position] for e in b.dfs() if isinstance(e, AffineDimExpr)} for b in bounded]
