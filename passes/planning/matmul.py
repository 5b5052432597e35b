"""Plans for nests with matrix products: tiles of the result, and chunks of the summed index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation, SSAValue

from ...dialects.loop.work import nest_operations
from ...dialects.target import Target
from ..analysis.dependence import yielded
from .nest_info import NestInfo, Reduction, pow2_at_least
from .points import Bools, Plan
from .tile_extents import TileExtents
from .tiles import Tiles

SMALLEST = 2
"""Rows and columns of a product: with one, every number is used once, and there is nothing that a tile could share."""

FEW = 8
"""With fewer rows or columns than these most of a tile may be padding: each row by itself may be as fast."""

SHAPES = (
    (128, 128, (8, 8)),
    (128, 64, (8, 8)),
    (64, 64, (8, 4)),
    (32, 64, (4, 4)),
    (32, 32, (4, 4)),
    (16, 32, (2, 4)),
    (16, 16, (2, 2)),
)
"""Tiles of the result with the register tile of a thread, from the best use of operands to the most blocks."""

DEPTHS = (32, 16)
"""Chunks of the summed index."""

KEYS = 32
"""The chunk of an index that a product inside another reduction gives and the next one sums over."""

WIDEST_HEAD = 256
"""The longest index of a nested product that is kept whole."""


@dataclass(frozen=True)
class Matmul:
    """A contraction with the index of its rows, of its columns, and its own that are long enough to be tiled."""

    reduction: Reduction
    row: SSAValue
    column: SSAValue

    @property
    def factors(self) -> tuple[SSAValue, SSAValue]:
        """What is multiplied."""
        found = self.reduction.contraction
        assert found is not None
        return found.lhs, found.rhs

    @property
    def multiplication(self) -> Operation:
        """The product that is summed."""
        found = yielded(self.reduction.op.body.block)[0].owner
        assert isinstance(found, Operation)
        return found


def find_matmuls(info: NestInfo) -> list[Matmul]:
    """The contractions of a nest that may be matrix products, outermost first."""
    found: list[Matmul] = []
    for r in sorted(info.reductions, key=lambda r: not r.outermost):
        if r.contraction is None:
            continue
        row, column = _longest(info, r.contraction.only_lhs), _longest(info, r.contraction.only_rhs)
        if min(info.extents[row], info.extents[column]) >= SMALLEST:
            found.append(Matmul(r, row, column))
    return found


def by_products(products: list[Matmul], tiles: Tiles) -> Iterator[tuple[list[Matmul], Bools]]:
    """Those of `products` that are matrix products to a block, with the schedules of which they are: those that have
    several rows and columns in its tiles. The others are sums of rows."""
    several = [(tiles.tile[p.row] > 1) & (tiles.tile[p.column] > 1) for p in products]
    columns = np.stack([*several, np.ones(tiles.rows, dtype=np.bool_)], axis=1)
    for kind in np.unique(columns, axis=0):
        yield [p for p, here in zip(products, kind[:-1], strict=True) if here], (columns == kind).all(axis=1)


def may_be_rows(info: NestInfo, products: list[Matmul]) -> bool:
    """Whether rows by themselves may be as fast as products: where a tile would mostly be padding."""
    return not is_nested(products) and any(min(info.extents[p.row], info.extents[p.column]) < FEW for p in products)


def distinct(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """`products` without those that the stages of a staged reduction repeat: they are computed once."""
    computed = {counted.op for counted in nest_operations(info.nest)}
    return [p for p in products if p.reduction.op in computed]


def _longest(info: NestInfo, indices: Iterable[SSAValue]) -> SSAValue:
    """The index with the largest range, the last of those in the order of the nest."""
    order = {index: i for i, index in enumerate(info.extents)}
    return max(indices, key=lambda i: (info.extents[i], order[i]))


def matmul_plans(info: NestInfo, target: Target, products: list[Matmul]) -> Iterator[Plan]:
    """Schedules on CUDA cores: tiles of the result with the register tiles of their threads, and chunks of the sum.

    A product inside another reduction (queries with keys, inside attention) keeps its own index whole; then the result
    is a row of tiles wide, and what is carried around stays in registers.
    """
    nested = is_nested(products)
    main, once = main_matmul(info, products), distinct(info, products)
    several = sum(1 for p in products if (p.row, p.column) == (main.row, main.column))
    for rows, columns, thread in SHAPES:
        if rows * columns * several > 128 * 128 or (nested and not 32 <= rows <= 64):
            continue
        for depth in DEPTHS:
            sizes = TileExtents(info)
            sizes.set(main.row, rows)
            sizes.set(main.column, WIDEST_HEAD if nested and main.column in info.free else columns)
            tile = sizes.tile[main.row], sizes.tile[main.column]
            patch = _patch(tile, thread)
            warps = max(1, min(8, tile[0] * tile[1] // (patch[0] * patch[1] * 32)))
            chunk_matmuls(info, sizes, products, depth, warps)
            shrink_to_shared(info, sizes, once, target)
            yield sizes.plan(warps, thread=patch)


def is_nested(products: list[Matmul]) -> bool:
    """Whether a product is inside another reduction."""
    return any(not p.reduction.outermost for p in products)


def main_matmul(info: NestInfo, products: list[Matmul]) -> Matmul:
    """The product that the result's tiles are those of."""
    return next((p for p in products if p.row in info.free and p.column in info.free), products[0])


def shrink_to_shared(info: NestInfo, sizes: TileExtents, products: list[Matmul], target: Target) -> None:
    """Make chunks shorter until the operands of all products, which are in shared memory together, fit well."""
    for p in products:
        while _shared_bytes(sizes, products) > target.shared_per_block * 3 // 4 and _halve(info, sizes, p):
            pass


def _patch(tile: tuple[int, int], thread: tuple[int, int]) -> tuple[int, int]:
    """The register tile of a thread, made smaller until a tile of the result keeps two warps busy."""
    rows, columns = min(thread[0], tile[0]), min(thread[1], tile[1])
    while rows * columns > 1 and tile[0] * tile[1] < 64 * rows * columns:
        if rows >= columns:
            rows //= 2
        else:
            columns //= 2
    return rows, columns


def _shared_bytes(sizes: TileExtents, products: list[Matmul]) -> int:
    """Bytes of the operands of all products, in f32."""
    total = 0
    for p in products:
        own = sizes.elements(p.reduction.indices)
        total += 4 * own * (sizes.tile[p.row] + sizes.tile[p.column])
    return total


def _halve(info: NestInfo, sizes: TileExtents, product: Matmul) -> bool:
    """Make the longest chunk of `product` half as long; False if it is short already."""
    index = max(product.reduction.indices, key=lambda i: sizes.tile[i])
    if sizes.tile[index] <= 8:
        return False
    _set_group(info, sizes, index, sizes.tile[index] // 2)
    return True


def chunk_matmuls(
    info: NestInfo, sizes: TileExtents, products: list[Matmul], depth: int, warps: int, keys: int = KEYS
) -> None:
    """Decide on the reduction indices: those of the products first, `depth` at a time where they are not kept whole,
    then what else is reduced in the same tiles. What one product gives and another sums over comes `keys` at a time."""
    nested = is_nested(products)
    for p in products:
        for index in (p.row, p.column):
            if index not in sizes.decided and index not in info.free:
                _set_group(info, sizes, index, keys)
    for p in products:
        longest = _longest(info, p.reduction.indices)
        for index in p.reduction.indices:
            if index in sizes.decided:
                continue
            whole = nested and not p.reduction.outermost and pow2_at_least(info.extents[index]) <= WIDEST_HEAD
            wide = WIDEST_HEAD if whole else depth
            _set_group(info, sizes, index, wide if index is longest else 1)
    sizes.chunk_reductions(32 * 32 * max(1, min(8, warps)))


def _set_group(info: NestInfo, sizes: TileExtents, index: SSAValue, extent: int) -> None:
    """Decide on a reduction index and on the same one of the reductions that run together with its own."""
    for group in info.groups:
        for i in range(len(group[0].sizes)):
            own = [op.body.block.args[i] for op in group]
            if index in own:
                for other in own:
                    sizes.set(other, extent)
