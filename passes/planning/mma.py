"""Plans for matrix products on tensor cores, whose factors were bf16 or f16 before they were widened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...dialects.layouts.mma import ATOM
from ...dialects.target import Target
from .matmul import (
    WIDEST_HEAD,
    Matmul,
    chunk_matmuls,
    distinct,
    is_nested,
    main_matmul,
    matmul_plans,
    shrink_to_shared,
)
from .matmul_precision import is_tf32, may_be_narrow, narrow_type
from .nest_info import NestInfo
from .points import Plan
from .skinny_matmul import is_skinny, skinny_nested_plans, skinny_plans
from .tile_extents import TileExtents
from .wgmma import GROUPS, held_registers, nested_wgmma_plans, wgmma_plans

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

MIN_TENSOR_CORE_SPEEDUP = 4.5
"""So many times faster than multiply-adds tensor cores must be, for three products to be worth one: as with weights of
attention, which are computed in f32."""

NESTED, KEYS = ((128, 8), (64, 4)), 64
"""Rows with their warps, and chunks of what one product gives and the next one sums over, where all are on tensor
cores."""

MOST_HELD = 128
"""Registers of a thread for the sums of such products: fragments of factors need as many."""

DEPTHS = (64, 32)
"""Chunks of the summed index: a longer one is worth its two barriers where the tile is small."""


def mma_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str = "ieee") -> Iterator[Plan]:
    """Schedules with `atom = mma` or `wgmma` and the permission `f32_matmul_precision`; none if the target or the main
    product is not for tensor cores.

    Further products that are not stay with scalar multiply-adds; inside another reduction (attention) tiles are those
    that these would have.
    """
    if precision == "ieee" and is_nested(products) and target.tensor > MIN_TENSOR_CORE_SPEEDUP * target.fp32:
        worth = all(narrow_type(p, may_narrow=True) is not None and may_be_narrow(p, "bf16x3") for p in products)
        precision = "bf16x3" if worth and not all(may_be_narrow(p, "ieee") for p in products) else "ieee"
    if precision == "tf32" and all(may_be_narrow(p, "ieee") for p in products):
        precision = "ieee"  # nothing needs it
    able = [p for p in products if may_be_narrow(p, precision)]
    if not able or not target.has("mma"):
        return
    if is_nested(products):
        if target.has("wgmma"):
            yield from nested_wgmma_plans(info, target, products, precision)
        if len(able) == len(products):
            yield from skinny_nested_plans(info, target, products, precision)
        yield from _nested_plans(info, target, products, able, precision)
        return
    main = main_matmul(info, products)
    if main not in able:
        return
    if target.has("wgmma"):
        yield from wgmma_plans(info, target, products, precision, 4 if is_tf32(main, precision) else 2)
    if is_skinny(info, main):
        yield from skinny_plans(info, target, products, main, precision)
        return
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for rows, columns, most in SHAPES:
        if rows * columns * several > SHAPES[0][0] * SHAPES[0][1]:
            continue
        for depth in DEPTHS:
            sizes = TileExtents(info)
            sizes.set(main.row, rows)
            sizes.set(main.column, columns)
            atoms = sizes.tile[main.row] * sizes.tile[main.column] // (ATOM[0] * ATOM[0])
            warps = max(1, min(most, atoms))
            chunk_matmuls(info, sizes, products, depth, warps)
            shrink_to_shared(info, sizes, products, target)
            if _fits(sizes, main):
                yield sizes.plan(warps, atom="mma", f32_matmul_precision=precision, group_m=GROUPS[0])


def _nested_plans(
    info: NestInfo, target: Target, products: list[Matmul], able: list[Matmul], precision: str
) -> Iterator[Plan]:
    """The plans on CUDA cores with `atom = mma`; where all products are on tensor cores a warp keeps whole rows, from
    scores to weights, and there are larger tiles as well, as far as registers have room for them."""
    main = main_matmul(info, products)
    for rows, warps in NESTED if all(p in able for p in products) else ():
        sizes = TileExtents(info)
        sizes.set(main.row, rows)
        sizes.set(main.column, WIDEST_HEAD)
        chunk_matmuls(info, sizes, products, DEPTHS[0], warps, KEYS)
        fits = all(_fits(sizes, p) for p in products) and info.extents[main.row] > rows // 2
        if fits and held_registers(sizes.tile, distinct(info, products), warps) <= MOST_HELD:
            yield sizes.plan(warps, atom="mma", f32_matmul_precision=precision)
    for schedule in matmul_plans(info, target, products):
        sizes = _sizes_of(info, schedule)
        if all(p in able and _fits(sizes, p) for p in products):
            rows = sizes.tile[main_matmul(info, products).row]
            schedule = replace(schedule, warps=min(schedule.warps, rows // ATOM[0]), thread=())
        if any(_fits(sizes, p) for p in able):
            yield replace(schedule, atom="mma", f32_matmul_precision=precision)


def _fits(sizes: TileExtents, product: Matmul) -> bool:
    """Whether the tiles of a product hold an atom, whichever factor is on the left."""
    depth = max(sizes.tile[i] for i in product.reduction.indices)
    return min(sizes.tile[product.row], sizes.tile[product.column], depth) >= ATOM[0]


def _sizes_of(info: NestInfo, schedule: Plan) -> TileExtents:
    """The tile extents of a schedule."""
    sizes = TileExtents(info)
    sizes.tile.update(zip(info.free, schedule.block, strict=True))
    indices = [i for r in info.reductions for i in r.indices]
    sizes.tile.update(zip(indices, schedule.chunk, strict=True))
    return sizes
