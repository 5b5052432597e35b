"""The space of schedules of a nest with matmuls: a tile of the result, chunks of the sums, warps, and the atom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from xdsl.ir import SSAValue

from ...dialects.layouts.mma import ATOM
from ...dialects.layouts.wgmma import warpgroup_accumulator
from ...dialects.tile.schedule import Schedule
from ...target.model import Target
from .matmul import (
    Matmul,
    is_nested,
    is_tf32,
    longest_sum_index,
    main_matmul,
    may_be_narrow,
    narrow_type,
    own_sum_index,
)
from .nest_info import NestInfo, TileExtents, pow2_at_least

EXTENTS = (256, 128, 64, 32, 16)
"""Rows and columns of a tile of the result, from the best use of operands to the most blocks."""

SHAPES = [*product(EXTENTS, EXTENTS)]
"""All pairs of them."""

WIDEST_HEAD = 256
"""The longest index that is kept whole where one matmul is an operand of another: a row of what is carried around stays
in one block."""

DEPTHS = {"fma": (32, 16), "mma": (64, 128, 256, 32), "wgmma": (64, 128)}
"""Chunks of the summed index by atom, for operands of two bytes: of a wgmma one or two of the widest rows of a TMA
tile."""

KEYS = (128, 64, 32)
"""Chunks of an index that one matmul gives and another one sums over."""

WARPS = (4, 8, 16, 2, 1)
"""Warps of a block, of equally fast ones the first."""

THREADS = ((8, 8), (8, 4), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1))
"""Register tiles of a thread on CUDA cores."""

LEAST_THREADS = 64
"""Threads of a block with register tiles: one warp alone would wait for each of its operations."""

ACCUMULATORS = {"mma": (8, 64), "wgmma": (8, 128)}
"""Accumulators of a thread on tensor cores, at least and at most."""

MOST_WARPS = 8
"""Warps of a block that copies its operands itself: more would wait for each other at every chunk."""

ELEMENTS = 1024
"""Elements of a chunk, for each warp, of what is reduced beside matmuls."""

MIN_TENSOR_CORE_SPEEDUP = 4.5
"""So many times faster than multiply-adds tensor cores must be, for three matmuls to be worth one: as with weights of
attention, which are computed in f32."""


def matmul_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> list[Schedule]:
    """Every point of the space; what does not fit in shared memory or in registers is for the caller to see.

    On tensor cores, with the permission `f32_matmul_precision = precision`, where the target has them and the main
    matmul is for them; on CUDA cores otherwise, or where the permission is one that a program need not use.
    """
    space = _Space(info, products)
    precision = _precision(target, products, precision)
    able = [p for p in products if may_be_narrow(p, precision)] if target.has("mma") else []
    plans: list[Schedule] = []
    if able and (space.nested or space.main in able):
        plans = [
            p for atom in ("wgmma", "mma") if target.has(atom) for p in space.on_tensor_cores(atom, able, precision)
        ]
    return plans if plans and precision != "tf32" else [*plans, *space.on_cuda_cores()]


def _precision(target: Target, products: list[Matmul], precision: str) -> str:
    """The permission that schedules ask for: splitting where that is exact and worth it, none where none is needed."""
    exact = [may_be_narrow(p, "ieee") for p in products]
    if precision == "ieee" and is_nested(products) and target.tensor > MIN_TENSOR_CORE_SPEEDUP * target.fp32:
        worth = all(narrow_type(p, may_narrow=True) is not None and may_be_narrow(p, "bf16x3") for p in products)
        return "bf16x3" if worth and not all(exact) else "ieee"
    return "ieee" if precision == "tf32" and all(exact) else precision


def matmul_tiles(
    info: NestInfo,
    products: list[Matmul],
    shapes: Sequence[tuple[int, int]],
    depths: Sequence[int],
    keys: Sequence[int],
) -> Iterator[TileExtents]:
    """Tiles of a nest with these matmuls, each the work of one thread: rows and columns of the result's, and chunks."""
    space = _Space(info, products, own_sum_index)
    for tile in space.tiles(1, shapes):
        yield from space.chunks(tile, 1, depths, keys)


class _Space:
    """The tiles of a nest with these matmuls."""

    def __init__(
        self, info: NestInfo, products: list[Matmul], along: Callable[[NestInfo, Matmul], SSAValue] = longest_sum_index
    ) -> None:
        self.info = info
        self.products = products
        self.longest = [along(info, p) for p in products]
        """The index of each matmul's sum that is tiled."""
        self.main = main_matmul(info, products)
        self.nested = is_nested(products)
        self.several = sum(1 for p in products if (p.row, p.column) == (self.main.row, self.main.column))

    def on_cuda_cores(self) -> Iterator[Schedule]:
        """A tile in the register tiles of its threads."""
        for (rows, columns), thread in product(self.tiles(least=1), THREADS):
            threads = rows // thread[0] * (columns // thread[1])
            warps = max(1, threads // 32)
            if (threads >= LEAST_THREADS or thread == (1, 1)) and warps <= MOST_WARPS:
                for sizes in self.chunks((rows, columns), warps, DEPTHS["fma"], KEYS[-1:]):
                    yield sizes.plan(warps, thread=thread)

    def on_tensor_cores(self, atom: str, able: list[Matmul], precision: str) -> Iterator[Schedule]:
        """A tile in the accumulators of its warps. Where one matmul is an operand of another, and both are on tensor
        cores, a warp has whole rows; where one is on CUDA cores, the block is as it would be there."""
        decisions = {"atom": atom, "f32_matmul_precision": precision}
        if self.nested and len(able) < len(self.products):
            for plan in self.on_cuda_cores() if atom == "mma" else ():
                if any(_holds_atom(self.info.tile_of(plan.block, plan.chunk), p) for p in able):
                    yield replace(plan, **decisions)
            return
        bytes_each = 4 if is_tf32(self.main, precision) and atom == "wgmma" else 2
        depths = [2 * depth // bytes_each for depth in DEPTHS[atom]]
        least = ATOM.m if not self.nested or all(p.row is self.main.row for p in self.products) else 1
        for tile, warps in product(self.tiles(least), WARPS):
            if self._may_have(atom, tile, warps):
                for sizes in self.chunks(tile, warps, depths, KEYS):
                    if all(self._fits(atom, sizes, warps, p) for p in self.products):
                        yield sizes.plan(warps, **decisions)

    def _may_have(self, atom: str, tile: tuple[int, int], warps: int) -> bool:
        """Whether warps of an atom can have a tile of the result."""
        least, most = ACCUMULATORS[atom]
        if self.nested:
            return ATOM.m * warps == tile[0]
        return least <= self.several * tile[0] * tile[1] // (32 * warps) <= most and (
            atom == "wgmma" or warps <= MOST_WARPS
        )

    def _fits(self, atom: str, sizes: TileExtents, warps: int, p: Matmul) -> bool:
        """Whether the tiles of a matmul hold an atom: of those beside each other at least the main one's do."""
        if not self.nested and p is not self.main:
            return True
        if atom == "mma":
            return _holds_atom(sizes.tile, p)
        shape = sizes.tile[p.row], sizes.tile[p.column]
        return not isinstance(warpgroup_accumulator(shape, warps), str) and _depth(sizes.tile, p) >= ATOM.k

    def tiles(self, least: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[tuple[int, int]]:
        """Rows and columns of the main matmul's tiles, the range or `least` where that is less: the rest is padding."""
        whole = self.nested and self.main.column in self.info.free
        rows, columns = (pow2_at_least(self.info.extents[i]) for i in (self.main.row, self.main.column))
        shapes = [(r, min(WIDEST_HEAD, columns) if whole else c) for r, c in shapes]
        narrow = 1 if whole else least
        return [*dict.fromkeys((max(least, min(r, rows)), max(narrow, min(c, columns))) for r, c in shapes)]

    def chunks(
        self, tile: tuple[int, int], warps: int, depths: Sequence[int], keys: Sequence[int]
    ) -> Iterator[TileExtents]:
        """Chunks of the reduction indices for a tile of the result: those of the matmuls, then of what else is reduced
        in the same tiles."""
        for depth, chunk in product(depths, keys if self.nested else keys[-1:]):
            sizes = TileExtents(self.info)
            sizes.pad(self.main.row, tile[0])
            sizes.pad(self.main.column, tile[1])
            self._chunk_matmuls(sizes, depth, chunk)
            sizes.chunk_reductions(ELEMENTS * min(8, warps))
            yield sizes

    def _chunk_matmuls(self, sizes: TileExtents, depth: int, keys: int) -> None:
        """Decide on the reduction indices of the matmuls: `depth` at a time where they are not kept whole, and `keys`
        where one matmul gives what another one sums over."""
        info = self.info
        for p in self.products:
            for index in (p.row, p.column):
                if index not in sizes.decided and index not in info.free:
                    self._set(sizes, index, keys)
        for p, longest in zip(self.products, self.longest, strict=True):
            for index in p.reduction.indices:
                if index not in sizes.decided:
                    inner = self.nested and not p.reduction.outermost
                    whole = inner and pow2_at_least(info.extents[index]) <= WIDEST_HEAD
                    self._set(sizes, index, (WIDEST_HEAD if whole else depth) if index is longest else 1)

    def _set(self, sizes: TileExtents, index: SSAValue, extent: int) -> None:
        """Decide on a reduction index and on the same one of the reductions that run together with its own."""
        for group in self.info.groups:
            for i in range(len(group[0].sizes)):
                own = [op.body.block.args[i] for op in group]
                if index in own:
                    for other in own:
                        sizes.set(other, extent)


def _depth(tile: Mapping[SSAValue, int], p: Matmul) -> int:
    """The chunk of the longest index that a matmul sums over."""
    return max(tile[i] for i in p.reduction.indices)


def _holds_atom(tile: Mapping[SSAValue, int], p: Matmul) -> bool:
    """Whether the tiles of a matmul hold an atom, whichever operand is on the left."""
    return min(tile[p.row], tile[p.column], _depth(tile, p)) >= ATOM.m
