"""Plans for products on tensor cores with few rows or few columns, which wait for memory and for little else."""

from __future__ import annotations

from collections.abc import Iterator

from ...backend.targets import Target
from ...dialects.matrix_layouts import ATOM
from ...dialects.schedule import ScheduleAttr
from .facts import Facts, pow2_at_least
from .products import WIDEST_HEAD, Product, chunk_products, main_product, shrink_to_shared
from .sizes import Sizes

MOST = 32
"""So many rows, or columns, are few."""

WIDTHS = (64, 32, 16, 128)
"""Extents of a tile along the other side."""

DEPTHS = (256, 128, 64)
"""Chunks of the summed index: long rows of the large factor, so that a few stages of them are enough under way."""

KEYS, SUMS = (32, 64), 160
"""Chunks of the index between two products, and the columns of both whose sums one warp has registers for."""


def few_plans(
    facts: Facts, target: Target, products: list[Product], main: Product, narrow: str
) -> Iterator[ScheduleAttr]:
    """Schedules with `atom = mma` where one side of `main` is short: all of it in one tile, filled up to a whole atom,
    so that the large factor is read once, in tiles that are narrow and deep."""
    short, long = sorted((main.row, main.column), key=lambda i: facts.extents[i])
    rows = max(ATOM[0], pow2_at_least(facts.extents[short]))
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for columns in WIDTHS:
        for depth in DEPTHS if several == 1 else DEPTHS[1:]:
            sizes = Sizes(facts)
            sizes.pad(short, rows)
            sizes.pad(long, max(ATOM[0], min(columns, pow2_at_least(facts.extents[long]))))
            warps = max(1, min(4, sizes.tile[long] // ATOM[1]))
            chunk_products(facts, sizes, products, depth, warps)
            shrink_to_shared(facts, sizes, products, target)
            yield sizes.schedule(warps).changed(atom="mma", narrow=narrow)


def few_nested_plans(facts: Facts, target: Target, products: list[Product], narrow: str) -> Iterator[ScheduleAttr]:
    """Schedules with `atom = mma` for few rows where one product is a factor of another (a group of queries that share
    keys and values): one warp has the rows, filled up to an atom, and keeps what is between the products in its
    registers; that many such blocks run at once lets enough keys be under way."""
    main = main_product(facts, products)
    if facts.extents[main.row] >= ATOM[0] or any(p.row is not main.row for p in products):
        return
    for keys in KEYS:
        sizes = Sizes(facts)
        sizes.pad(main.row, ATOM[0])
        sizes.set(main.column, WIDEST_HEAD)
        chunk_products(facts, sizes, products, DEPTHS[-1], 1, keys)
        depths = [max(sizes.tile[i] for i in p.reduction.indices) for p in products]
        if (
            sizes.tile[main.column] + keys <= SUMS
            and min(*depths, *(sizes.tile[p.column] for p in products)) >= ATOM[0]
        ):
            yield sizes.schedule(1).changed(atom="mma", narrow=narrow)


def is_few(facts: Facts, product: Product) -> bool:
    """Whether one side of a product is short, and the sum so long that the other factor comes in chunks."""
    deep = max(facts.extents[i] for i in product.reduction.indices)
    return min(facts.extents[product.row], facts.extents[product.column]) <= MOST and deep >= DEPTHS[-1]
