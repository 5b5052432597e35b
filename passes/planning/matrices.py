"""Plans for matrix products on tensor cores, whose factors were bf16 or f16 before they were widened."""

from __future__ import annotations

from collections.abc import Iterator

from ...backend.targets import Target
from ...dialects.matrix_layouts import ATOM
from ...dialects.schedule import ScheduleAttr
from .facts import Facts
from .few import few_nested_plans, few_plans, is_few
from .narrowing import is_tf32, may_be_narrow, narrow_type
from .products import (
    WIDEST_HEAD,
    Product,
    chunk_products,
    distinct,
    is_nested,
    main_product,
    product_plans,
    shrink_to_shared,
)
from .sizes import Sizes
from .warpgroups import held_registers, in_patches, nested_warpgroup_plans, warpgroup_plans

SHAPES = (
    (128, 128, 8),
    (128, 64, 4),
    (64, 64, 4),
    (32, 64, 4),
    (32, 32, 4),
    (16, 64, 4),
    (16, 32, 2),
    (16, 16, 1),
)
"""Tiles of the result with their warps, from the best use of operands to the most blocks."""

WORTH_PARTS = 4.5
"""So many times faster than multiply-adds tensor cores must be, for three products to be worth one: as with weights of
attention, which are computed in f32."""

NESTED, KEYS = ((128, 8), (64, 4)), 64
"""Rows with their warps, and chunks of what one product gives and the next one sums over, where all are on tensor
cores."""

MOST_HELD = 128
"""Registers of a thread for the sums of such products: fragments of factors need as many."""

DEPTHS = (64, 32)
"""Chunks of the summed index: a longer one is worth its two barriers where the tile is small."""


def matrix_plans(
    facts: Facts, target: Target, products: list[Product], narrow: str = "never"
) -> Iterator[ScheduleAttr]:
    """Schedules with `atom = mma` or `wgmma` and the permission `narrow`; none if the target or the main product is not
    for tensor cores.

    Further products that are not stay with scalar multiply-adds; inside another reduction (attention) tiles are those
    that these would have.
    """
    if narrow == "never" and is_nested(products) and target.tensor > WORTH_PARTS * target.fp32:
        worth = all(narrow_type(p, may_narrow=True) is not None and may_be_narrow(p, "parts") for p in products)
        narrow = "parts" if worth and not all(may_be_narrow(p, "never") for p in products) else "never"
    if narrow == "tf32" and all(may_be_narrow(p, "never") for p in products):
        narrow = "never"  # nothing needs it
    able = [p for p in products if may_be_narrow(p, narrow)]
    if not able or not target.has("mma"):
        return
    if is_nested(products):
        if target.has("wgmma"):
            yield from nested_warpgroup_plans(facts, target, products, narrow)
        if len(able) == len(products):
            yield from few_nested_plans(facts, target, products, narrow)
        yield from _nested_plans(facts, target, products, able, narrow)
        return
    main = main_product(facts, products)
    if main not in able:
        return
    if target.has("wgmma"):
        yield from warpgroup_plans(facts, target, products, narrow, 4 if is_tf32(main, narrow) else 2)
    if is_few(facts, main):
        yield from few_plans(facts, target, products, main, narrow)
        return
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for rows, columns, most in SHAPES:
        if rows * columns * several > SHAPES[0][0] * SHAPES[0][1]:
            continue
        for depth in DEPTHS:
            sizes = Sizes(facts)
            sizes.set(main.row, rows)
            sizes.set(main.column, columns)
            atoms = sizes.tile[main.row] * sizes.tile[main.column] // (ATOM[0] * ATOM[0])
            warps = max(1, min(most, atoms))
            chunk_products(facts, sizes, products, depth, warps)
            shrink_to_shared(facts, sizes, products, target)
            if _fits(sizes, main):
                yield in_patches(facts, sizes.schedule(warps).changed(atom="mma", narrow=narrow))


def _nested_plans(
    facts: Facts, target: Target, products: list[Product], able: list[Product], narrow: str
) -> Iterator[ScheduleAttr]:
    """The plans on CUDA cores with `atom = mma`; where all products are on tensor cores a warp keeps whole rows, from
    scores to weights, and there are larger tiles as well, as far as registers have room for them."""
    main = main_product(facts, products)
    for rows, warps in NESTED if all(p in able for p in products) else ():
        sizes = Sizes(facts)
        sizes.set(main.row, rows)
        sizes.set(main.column, WIDEST_HEAD)
        chunk_products(facts, sizes, products, DEPTHS[0], warps, KEYS)
        fits = all(_fits(sizes, p) for p in products) and facts.extents[main.row] > rows // 2
        if fits and held_registers(sizes.tile, distinct(facts, products), warps) <= MOST_HELD:
            yield sizes.schedule(warps).changed(atom="mma", narrow=narrow)
    for schedule in product_plans(facts, target, products):
        sizes = _sizes_of(facts, schedule)
        if all(p in able and _fits(sizes, p) for p in products):
            rows = sizes.tile[main_product(facts, products).row]
            schedule = schedule.changed(warps=min(schedule.warps.data, rows // ATOM[0]), thread=[])
        if any(_fits(sizes, p) for p in able):
            yield schedule.changed(atom="mma", narrow=narrow)


def _fits(sizes: Sizes, product: Product) -> bool:
    """Whether the tiles of a product hold an atom, whichever factor is on the left."""
    depth = max(sizes.tile[i] for i in product.reduction.indices)
    return min(sizes.tile[product.row], sizes.tile[product.column], depth) >= ATOM[0]


def _sizes_of(facts: Facts, schedule: ScheduleAttr) -> Sizes:
    """The tile extents of a schedule."""
    sizes = Sizes(facts)
    sizes.tile.update(zip(facts.free, (b.data for b in schedule.block), strict=True))
    indices = [i for r in facts.reductions for i in r.indices]
    sizes.tile.update(zip(indices, (c.data for c in schedule.chunk), strict=True))
    return sizes
