"""Plans for matrix products of whole warpgroups, whose factors come as boxes where they are boxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from ...dialects import loop
from ...dialects.kernel.warp_specialize import consumer_registers
from ...dialects.layouts.wgmma import warpgroup_accumulator
from ...dialects.payload import element_bytes
from ...dialects.shapes.extents import extents_of
from ...dialects.target import Target
from .matmul import WIDEST_HEAD, Matmul, chunk_matmuls, distinct, main_matmul, shrink_to_shared
from .matmul_precision import is_tf32, lies_along_k
from .nest_info import NestInfo
from .points import Plan, Points
from .staging import is_wide, loads_of
from .tile_extents import TileExtents
from .tiles import Tiles

SHAPES = ((128, 256, 8), (128, 128, 8), (64, 256, 4), (64, 128, 4), (64, 64, 4))
"""Tiles of the result with their warps, from the best use of operands to the most blocks."""

ROWS = ((128, 8), (256, 16), (64, 4))
"""Rows of a block with their warps where one product is a factor of another: a warp keeps whole rows."""

BESIDE = 40
"""Registers of a thread beside its sums and the factors that are computed from them."""

KEYS = (128, 64, 32)
"""Chunks of the index that such a product gives and the next one sums over: the more, the rarer are the barriers and
the maxima of rows."""

DEPTH = 128
"""Bytes of a chunk of the summed index: the widest row of a box."""

GROUPS = (8, 4, 2)
"""Tiles down a patch of blocks that run at the same time."""

PITCH = 16
"""Bytes of which the rows of a buffer start at multiples, for boxes."""


def wgmma_plans(
    info: NestInfo, target: Target, products: list[Matmul], precision: str, bytes_each: int
) -> Iterator[Plan]:
    """Schedules with `atom = wgmma` for products side by side, of factors of `bytes_each` bytes."""
    main = main_matmul(info, products)
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for rows, columns, warps in SHAPES:
        if rows * columns * several > SHAPES[0][0] * SHAPES[0][1]:
            continue
        sizes = TileExtents(info)
        sizes.set(main.row, rows)
        sizes.set(main.column, columns)
        chunk_matmuls(info, sizes, products, DEPTH // bytes_each, warps)
        shrink_to_shared(info, sizes, products, target)
        depth = max(sizes.tile[i] for i in main.reduction.indices)
        shape = sizes.tile[main.row], sizes.tile[main.column]
        if depth * bytes_each >= DEPTH // 4 and not isinstance(warpgroup_accumulator(shape, warps), str):
            yield sizes.plan(warps, atom="wgmma", f32_matmul_precision=precision, group_m=GROUPS[0])


def nested_wgmma_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> Iterator[Plan]:
    """Schedules with `atom = wgmma` where one product is a factor of another (attention): the
    rows of warpgroups, and as many keys at a time as registers have room for."""
    main = main_matmul(info, products)
    for rows, warps in ROWS:
        for keys in KEYS:
            sizes = TileExtents(info)
            sizes.set(main.row, rows)
            sizes.set(main.column, WIDEST_HEAD)
            chunk_matmuls(info, sizes, products, DEPTH // 2, warps, keys)
            tile = sizes.tile
            shapes = {(tile[p.row], tile[p.column]) for p in products}
            fits = not any(isinstance(warpgroup_accumulator(s, warps), str) for s in shapes)
            fits = fits and held_registers(tile, distinct(info, products), warps) + BESIDE <= consumer_registers(warps)
            if fits and info.extents[main.row] > rows // 2:
                yield sizes.plan(warps, atom="wgmma", f32_matmul_precision=precision)


def held_registers(tile: Mapping[SSAValue, int], products: list[Matmul], warps: int) -> float:
    """Registers of a thread for the sums of all products, and for those that are a factor of the next one, rounded to
    half of their size."""
    sums = sum(tile[p.row] * tile[p.column] * (1.0 if p.reduction.outermost else 1.5) for p in products)
    return sums / (32 * warps)


def with_grid_swizzle(info: NestInfo, points: Points) -> Points:
    """Schedules with blocks in patches of at most `group_m`, where the grid can be divided so."""
    counts = np.stack([np.ones(len(points)), *Tiles(info, points).counts.values()], axis=1).astype(np.int64)
    before_last = (counts != 1)[:, ::-1].cumsum(axis=1)[:, ::-1] == 2
    second = np.where(before_last & (counts != 1), counts, 0).max(axis=1)
    found = np.ones(len(points), dtype=np.int64)
    for group in reversed(GROUPS):
        found = np.where((second > 0) & (second % group == 0) & (group <= points.group_m), group, found)
    return replace(points, group_m=found)


def loads_by_tma(products: list[Matmul], precision: str) -> bool:
    """Whether some factor is read as boxes: as it lies in memory, with rows that start at multiples of 16 bytes; of
    f32, if all lie along what is summed."""
    found = [(p, load) for p in products for f in p.factors for load in loads_of(f, narrow=True)]
    if precision == "bf16x3":  # what is to be split on its way is no box
        found = [(p, load) for p, load in found if not is_wide(load)]
    turned = any(is_tf32(p, precision) and not lies_along_k(p, load) for p, load in found)
    return not turned and any(_is_box(load) for _, load in found)


def _is_box(load: loop.LoadOp) -> bool:
    source = load.source.type
    assert isinstance(source, TensorType)
    extents = extents_of(source)  # pyright: ignore[reportUnknownArgumentType]
    known = [n for n in extents if isinstance(n, int)]
    results = load.map.data.results
    plain = all(isinstance(e, AffineDimExpr | AffineConstantExpr) for e in results)
    if len(known) < len(extents) or not plain or load.symbols or not isinstance(results[-1], AffineDimExpr):
        return False
    size = element_bytes(load.source.type)
    return all(prod(known[d:]) * size % PITCH == 0 for d in range(1, len(known)))
