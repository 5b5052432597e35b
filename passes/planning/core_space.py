"""The space of schedules on the cores of a CPU: tiles over the same indices as on a GPU, the work of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.ir import SSAValue

from ...dialects.loop.dependence import access_indices
from ...dialects.payload import tensor_bytes
from ...dialects.tile.schedule import Schedule
from ..analysis.packed_operands import loaded_factor, packable_loads
from .matmul import Matmul, is_nested, may_be_rows, own_sum_index
from .matmul_space import matmul_tiles
from .nest_info import NestInfo, TileExtents, contiguous_index, pow2_at_least
from .row_space import in_order, row_tiles

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
"""Elements of a tile over the free indices that reductions depend on: a few rows, or as many sums of columns as stay in
the nearest cache."""

WIDTHS = (1 << 17, 16384, 4096, 1024, 256, 64)
"""Elements of a tile over the other free indices, and of one over a reduction."""

ELEMENTS = (4096, 8192, 2048, 1024, 16384)
"""Elements of a tile that is computed element by element."""

SIDES = (64, 128, 32)
"""Rows and columns of a tile that is transposed."""

LANES = 16
"""Elements of the widest vectors of f32."""

PANEL = 32
"""Columns of a tile of products whose factor is copied before."""

FEWEST = 4
"""Times at least that blocks would put the same part of a factor into order, for it to be copied before."""

COSTS = 3, 8, 48
"""How many multiplications of vectors take as long as putting one into order: of neighbours in memory, of neighbours
along the sum, and of elements that have none."""

SHARE = 16
"""Of the time of products at most one part in so many may be the time in which blocks put their factors into order."""

SHAPES = [(rows, columns) for columns in (64, 128, 32, 256, 16) for rows in (256, 128, 64, 32, 16)]
"""Rows and columns of a tile of products, those first of which the sums stay in the nearest cache."""

DEPTHS, KEYS = (256, 512, 128, 64), (256, 128, 64, 32)
"""Chunks of the index that a product sums over, and of one that a product gives and another one sums over."""


def core_plans(info: NestInfo, products: list[Matmul]) -> Iterator[Schedule]:
    """Every point of the space."""
    packed = packed_index(info, products)
    for sizes in matmul_tiles(info, products, SHAPES, DEPTHS, KEYS) if products else ():
        if packed is None:
            yield sizes.plan(1, lanes=1)
        else:
            extent = info.extents[packed]
            sizes.pad(packed, min(PANEL, extent & -extent) if extent % LANES == 0 else PANEL)
            yield sizes.plan(1, lanes=1, pack=(info.free.index(packed),))
    if products and (is_nested(products) or not may_be_rows(info, products)):
        return
    if not info.reductions:
        for sizes in _elementwise(info):
            short = [i for i in _sides(info) if sizes.tile[i] < info.extents[i] < LANES]
            yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in short))
        return
    rest = [i for i in info.free if i not in info.reduced]
    for sizes in row_tiles(info, ROWS, WIDTHS):
        walked = [i for i in rest if sizes.tile[i] < info.extents[i] or info.may_be_longer([i])]
        yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in walked))


def packed_index(info: NestInfo, products: list[Matmul]) -> SSAValue | None:
    """The free index along which factors of products may be copied before: where all blocks along other indices need
    the same."""
    for p in products if not is_nested(products) else ():
        for index, other, factor in zip((p.row, p.column), (p.column, p.row), p.factors, strict=True):
            load = loaded_factor(factor)
            if load is None or index not in info.free or info.extents[index] < LANES or not p.reduction.outermost:
                continue
            own = access_indices(load)
            blocks = prod(info.extents[i] for i in info.free if i not in own and i is not other)
            contiguous, along = contiguous_index(load), own_sum_index(info, p)
            cost = COSTS[0 if contiguous is index else 1 if contiguous is along else 2]
            if (
                blocks >= FEWEST
                and SHARE * cost > info.extents[other]
                and not isinstance(packable_loads(info.nest, index), str)
            ):
                return index
    return None


def _elementwise(info: NestInfo) -> Iterator[TileExtents]:
    """Tiles along the index along which most is contiguous, whole rows of those that are no power of two, and where
    results and operands lie along different indices, as much of each."""
    order, sides = in_order(info, False), _sides(info)
    turned = len(sides) > 1
    for side in SIDES if turned else ():
        sizes = TileExtents(info)
        for i in sides:
            sizes.set(i, 1 if _is_short(info.extents[i]) else side)
        left = [i for i in order if i not in sizes.decided and not _is_short(info.extents[i])]
        sizes.fill(left, max(1, ELEMENTS[0] // sizes.elements(sides)))
        yield sizes
    for elements in ELEMENTS:
        sizes = TileExtents(info)
        sizes.fill(order, elements)
        yield sizes
    if len(sides) == 1 and (row := pow2_at_least(info.extents[sides[0]])) <= max(ELEMENTS):
        sizes = TileExtents(info)
        sizes.pad(sides[0], row)
        yield sizes


def _is_short(extent: int) -> bool:
    """Whether tiles along an index would be in large part padding, and it has no vectors: they take one value each."""
    return extent < LANES and extent != pow2_at_least(extent)


def _sides(info: NestInfo) -> list[SSAValue]:
    """The free indices along which a result, or what is about as large, is contiguous."""
    large = max(tensor_bytes(r.type) for r in info.nest.res) // 4
    last = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
    return [i for i in info.free if i is last or info.contiguous.get(i, 0) > large]
