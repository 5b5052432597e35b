"""Plans for products on tensor cores with few rows or few columns, which wait for memory and for little else."""

from __future__ import annotations

from collections.abc import Iterator

from ...backend.targets import Target
from ...dialects.matrix_layouts import ATOM
from ...dialects.schedule import ScheduleAttr
from .facts import Facts, pow2_at_least
from .products import Product, chunk_products, shrink_to_shared
from .sizes import Sizes

MOST = 32
"""So many rows, or columns, are few."""

WIDTHS = (64, 32, 16, 128)
"""Extents of a tile along the other side."""

DEPTHS = (256, 128, 64)
"""Chunks of the summed index: long rows of the large factor, so that a few stages of them are enough under way."""


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


def is_few(facts: Facts, product: Product) -> bool:
    """Whether one side of a product is short, and the sum so long that the other factor comes in chunks."""
    deep = max(facts.extents[i] for i in product.reduction.indices)
    return min(facts.extents[product.row], facts.extents[product.column]) <= MOST and deep >= DEPTHS[-1]
