"""The space of schedules on the cores of a CPU: tiles over the same indices as on a GPU, the work of one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from xdsl.ir import SSAValue

from ...dialects.payload import tensor_bytes
from ...dialects.tile.schedule import Schedule
from ...target.model import MAX_LANES
from ..analysis.packed_operands import packable_loads
from .matmul import Matmul, contiguous_alternatives, is_nested, may_be_rows
from .matmul_space import matmul_tiles
from .nest_info import NestInfo, TileExtents, pow2_at_least
from .row_space import in_order, row_tiles

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
"""Elements of a tile over the free indices that reductions depend on: a few rows, or as many sums of columns as stay in
the nearest cache."""

WIDTHS = (1 << 17, 32768, 16384, 4096, 1024, 256, 64)
"""Elements of a tile over the other free indices, and of one over a reduction."""

ELEMENTS = (4096, 8192, 2048, 1024, 16384)
"""Elements of a tile that is computed element by element."""

SIDES, TURNED = (64, 128, 256, 32, 512, 16), 1 << 16
"""Rows and columns of a tile that is transposed, and its elements at most."""

SHAPES = [(rows, columns) for columns in (64, 128, 32, 256, 16, 512) for rows in (256, 128, 64, 32, 16)]
"""Rows and columns of a tile of products, those first of which the sums stay in the nearest cache."""

DEPTHS, KEYS = (256, 512, 128, 1024, 64), (256, 128, 64, 32)
"""Chunks of the index that a product sums over, and of one that a product gives and another one sums over."""


def core_plans(info: NestInfo, products: list[Matmul]) -> Iterator[Schedule]:
    """Every point of the space."""
    others = dict[tuple[SSAValue, SSAValue], list[Matmul]]()
    for p in contiguous_alternatives(info, products):
        others.setdefault((p.row, p.column), []).append(p)
    alternatives = [products, *others.values()] if products else []
    able = _packable(info, [p for found in alternatives for p in found])
    for sizes in (s for found in alternatives for s in matmul_tiles(info, found, SHAPES, DEPTHS, KEYS)):
        plan = sizes.plan(1, lanes=1)
        yield plan
        for n, extent in able.items():
            whole = extent & -extent if extent % MAX_LANES == 0 else plan.block[n]  # tiles that divide the index
            block = (*plan.block[:n], min(plan.block[n], whole), *plan.block[n + 1 :])
            yield replace(plan, block=block, pack=(n,))
    if products and (is_nested(products) or not may_be_rows(info, products)):
        return
    if not info.reductions:
        for sizes in _elementwise(info):
            short = [i for i in _sides(info) if sizes.tile[i] < info.extents[i] < MAX_LANES]
            yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in short))
        return
    rest = [i for i in info.free if i not in info.reduced]
    for sizes in row_tiles(info, ROWS, WIDTHS, written=True):
        walked = [i for i in rest if sizes.tile[i] < info.extents[i] or info.may_be_longer([i])]
        yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in walked))


def _packable(info: NestInfo, products: list[Matmul]) -> dict[int, int]:
    """The positions of the free indices along which factors of products may be copied before, with their extents:
    none of products of bf16, which are packed for each tile in any case."""
    outer = [p for p in products if p.reduction.outermost and not p.of_bf16] if not is_nested(products) else []
    sides = dict.fromkeys(
        i for p in outer for i in (p.column, p.row) if i in info.free and info.extents[i] >= MAX_LANES
    )
    able = [i for i in sides if not isinstance(packable_loads(info.nest, i), str)]
    return {info.free.index(i): info.extents[i] for i in able}


def _elementwise(info: NestInfo) -> Iterator[TileExtents]:
    """Tiles along the index along which most is contiguous, with and without short indices that would be padded, whole
    rows of those that are no power of two, and where results and operands lie along different indices, as much of
    each."""
    order, sides = in_order(info, False), _sides(info)
    turned = len(sides) > 1
    for shape in product(SIDES, repeat=len(sides)) if turned else ():
        if prod(shape) > TURNED:
            continue
        sizes = TileExtents(info)
        for i, side in zip(sides, shape, strict=True):
            sizes.set(i, 1 if _is_short(info.extents[i]) else side)
        left = [i for i in order if i not in sizes.decided and not _is_short(info.extents[i])]
        sizes.fill(left, max(1, ELEMENTS[0] // sizes.elements(sides)))
        yield sizes
    for elements in ELEMENTS:
        sizes = TileExtents(info)
        sizes.fill(order, elements)
        yield sizes
    sizes = TileExtents(info)
    sizes.fill([i for i in order if i in sides or not _is_short(info.extents[i])], ELEMENTS[0])
    yield sizes
    if len(sides) == 1 and (row := pow2_at_least(info.extents[sides[0]])) <= max(ELEMENTS):
        sizes = TileExtents(info)
        sizes.pad(sides[0], row)
        yield sizes


def _is_short(extent: int) -> bool:
    """Whether tiles along an index would be in large part padding, and it has no vectors: they take one value each."""
    return extent < MAX_LANES and extent != pow2_at_least(extent)


def _sides(info: NestInfo) -> list[SSAValue]:
    """The free indices along which a result, or what is about as large, is contiguous."""
    large = max(tensor_bytes(r.type) for r in info.nest.res) // 4
    last = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
    return [i for i in info.free if i is last or info.contiguous.get(i, 0) > large]
