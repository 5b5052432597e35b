"""Plans for products on tensor cores with few rows or few columns, which wait for memory and for little else."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects.layouts.mma import ATOM
from ...dialects.target import Target
from .matmul import WIDEST_HEAD, Matmul, chunk_matmuls, main_matmul, shrink_to_shared
from .nest_info import NestInfo, pow2_at_least
from .points import Plan
from .tile_extents import TileExtents

MOST = 32
"""So many rows, or columns, are few."""

WIDTHS = (64, 32, 16, 128)
"""Extents of a tile along the other side."""

DEPTHS = (256, 128, 64)
"""Chunks of the summed index: long rows of the large factor, so that a few stages of them are enough under way."""

KEYS, SUMS = (32, 64), 160
"""Chunks of the index between two products, and the columns of both whose sums one warp has registers for."""


def skinny_plans(
    info: NestInfo, target: Target, products: list[Matmul], main: Matmul, precision: str
) -> Iterator[Plan]:
    """Schedules with `atom = mma` where one side of `main` is short: all of it in one tile, filled up to a whole atom,
    so that the large factor is read once, in tiles that are narrow and deep."""
    short, long = sorted((main.row, main.column), key=lambda i: info.extents[i])
    rows = max(ATOM[0], pow2_at_least(info.extents[short]))
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for columns in WIDTHS:
        for depth in DEPTHS if several == 1 else DEPTHS[1:]:
            sizes = TileExtents(info)
            sizes.pad(short, rows)
            sizes.pad(long, max(ATOM[0], min(columns, pow2_at_least(info.extents[long]))))
            warps = max(1, min(4, sizes.tile[long] // ATOM[1]))
            chunk_matmuls(info, sizes, products, depth, warps)
            shrink_to_shared(info, sizes, products, target)
            yield sizes.plan(warps, atom="mma", f32_matmul_precision=precision)


def skinny_nested_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> Iterator[Plan]:
    """Schedules with `atom = mma` for few rows where one product is a factor of another (a group of queries that share
    keys and values): one warp has the rows, filled up to an atom, and keeps what is between the products in its
    registers; that many such blocks run at once lets enough keys be under way."""
    main = main_matmul(info, products)
    if info.extents[main.row] >= ATOM[0] or any(p.row is not main.row for p in products):
        return
    for keys in KEYS:
        sizes = TileExtents(info)
        sizes.pad(main.row, ATOM[0])
        sizes.set(main.column, WIDEST_HEAD)
        chunk_matmuls(info, sizes, products, DEPTHS[-1], 1, keys)
        depths = [max(sizes.tile[i] for i in p.reduction.indices) for p in products]
        if (
            sizes.tile[main.column] + keys <= SUMS
            and min(*depths, *(sizes.tile[p.column] for p in products)) >= ATOM[0]
        ):
            yield sizes.plan(1, atom="mma", f32_matmul_precision=precision)


def is_skinny(info: NestInfo, product: Matmul) -> bool:
    """Whether one side of a product is short, and the sum so long that the other factor comes in chunks."""
    deep = max(info.extents[i] for i in product.reduction.indices)
    return min(info.extents[product.row], info.extents[product.column]) <= MOST and deep >= DEPTHS[-1]
