"""How long the multiprocessor works on one block: sums of products by their unit, and everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import Float32Type
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.layouts.mma import ATOM
from ...dialects.loop.dependence import yielded
from ...dialects.payload import CastOp, CombineBf16x3Op, element_type
from ...target.model import PARTITIONS, Target
from ..analysis.operand_types import widened_from
from .matmul import Matmul, computed_operands, is_nested, is_tf32, lies_along_k, may_be_narrow
from .nest_info import NestInfo
from .points import Bools, Floats, Ints, Points, largest, total
from .promotion import is_promoted
from .roofline import SPECIAL
from .staging import PART_BYTES, loads_of
from .tiles import Tiles

COPIED, ISSUED = 16, 4
"""Bytes that one instruction copies into shared memory, and the instructions that this takes with its address; twice as
many, if the copy goes through registers."""

TF32, ROUNDING = 2, 2
"""How many times as long a product of f32 takes as one of 16 bits, and the operations that round a number to tf32."""

SPLITTING = 10
"""Operations that split an f32 into three bf16."""

PARTS = (1, 3, 6)
"""Products that a product takes on tensor cores, by how many of its factors are in f32 and split into parts."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a multiprocessor for one block.

    compute  by its units, beside the other blocks that it works on
    alone    the same where it works on no other block
    shared   for the bytes that go through shared memory
    """

    compute: Floats
    alone: Floats
    shared: Floats


class Arithmetic:
    """The operations of a nest, looked at once for all schedules of it."""

    def __init__(self, info: NestInfo, products: list[Matmul]) -> None:
        self.info = info
        self.products = products
        self.nested = is_nested(products)
        inside: set[Operation] = set()
        self.widenings: dict[SSAValue, Matmul] = {}
        """Factors of products: those on tensor cores take them before they were widened."""
        for p in products:
            inside |= {p.reduction.op, p.multiplication}
            for factor in p.factors:
                if isinstance(joined := factor.owner, CombineBf16x3Op):  # its parts are what is multiplied
                    inside |= {joined, *(o.owner for o in joined.operands if isinstance(o.owner, Operation))}
            self.widenings.update((factor, p) for factor in p.factors if isinstance(factor.owner, CastOp))
        self.others = [c for c in info.operations if c.op not in inside]
        self.steps = {p: (*p.reduction.indices, *p.reduction.around) for p in products}

    def cost(self, tiles: Tiles, target: Target, together: Ints) -> Cost:
        """What one block costs where so many work on a multiprocessor `together`."""
        points, rates, rows = tiles.points, target.rates, tiles.rows
        on = {p: on_tensor_cores(p, tiles) for p in self.products}
        vector, special = np.zeros(rows), np.zeros(rows)
        for counted in self.others:
            times = tiles.span(counted.indices)
            if (widened := self.widenings.get(counted.op.results[0])) is not None:
                times = times * ~on[widened]
            vector = vector + (times / 2 if isinstance(counted.op, CastOp) else times)
            special = special + (times if counted.op.name in SPECIAL else 0.0)
        if points.f32_matmul_precision == "bf16x3":
            vector = vector + SPLITTING * total((self._split(p, tiles) * on[p] for p in self.products), rows)
        if points.copy != "tma":
            issued = ISSUED if points.copy == "cp_async" else 2 * ISSUED
            vector = vector + issued / COPIED * total((self._moved(p, tiles, on[p]) for p in self.products), rows)
        computed = (vector / rates.vector + special / rates.special) * target.sms
        full = rates.issue_warps if self.products else PARTITIONS
        shared, multiplied, scalar, narrow = (np.zeros(rows) for _ in range(4))
        for p in self.products:
            flops = 2.0 * tiles.span(self.steps[p])
            parts, wide = self._passes(p, points)
            moved = self._filled(p, tiles, on[p])
            scalar = scalar + ~on[p] * flops * target.sms / rates.fma / _pipe(p, tiles, rates.shared_read)
            if points.atom == "wgmma":
                read = parts * wide * self._wgmma_reads(p, tiles)
                cycles = np.maximum(parts * wide * self._wgmma(p, tiles, target), (moved + read) / rates.shared)
                multiplied = multiplied + on[p] * cycles / rates.clock
            else:
                read = self._read(p, tiles) * wide
                moved = moved + read
                narrow = narrow + on[p] * parts * wide * flops * target.sms / rates.mma
                if wide > 1:
                    computed = computed + on[p] * read / 4 * ROUNDING / rates.vector * target.sms
            computed = computed + _promoted(p, tiles) / rates.vector * target.sms
            shared = shared + on[p] * moved / rates.shared / rates.clock

        def seconds(warps: Ints) -> Floats:
            units = computed / np.minimum(1.0, warps / full)
            units = (
                units
                + scalar / _busy(warps, 1 + rates.fma_warps / 32, rates.fma_warps, 1.0)
                + narrow / _busy(warps, 1.28, 4.5, 0.92)
            )
            return _beside(units, multiplied, np.maximum(1.0, warps / WARPGROUP) if self.nested else 1.0)

        return Cost(seconds(together * points.warps), seconds(points.warps), shared)

    def chain(self, tiles: Tiles, target: Target) -> Floats:
        """Seconds that the sums of one block take on tensor cores at least, each product waiting for the one before."""
        cycles = np.zeros(tiles.rows)
        for p in self.products if tiles.points.atom == "mma" else ():
            outer = (i for i in p.reduction.around if i not in tiles.counts)
            parts, wide = self._passes(p, tiles.points)
            own = (
                parts
                * tiles.span(p.reduction.indices)
                / (ATOM.k // wide)
                * tiles.trip_count(outer)
                * target.rates.mma_latency
            )
            own = own * on_tensor_cores(p, tiles)
            cycles = cycles + own if self.nested else np.maximum(cycles, own)
        return cycles / target.rates.clock

    @staticmethod
    def _passes(p: Matmul, points: Points) -> tuple[int, int]:
        """How many products of 16 bits a product on tensor cores takes, and how many times as long each does."""
        parts = PARTS[computed_operands(p)] if points.f32_matmul_precision == "bf16x3" else 1
        return parts, TF32 if is_tf32(p, points.f32_matmul_precision) else 1

    def _wgmma(self, p: Matmul, tiles: Tiles, target: Target) -> Floats:
        """Cycles of a block's products, each of 64 rows."""
        columns, cycles = map(np.array, zip(*target.rates.wgmma_cycles, strict=True))
        n = np.maximum(0, np.searchsorted(columns, _wgmma_columns(p, tiles), "right") - 1)
        return tiles.span(self.steps[p]) / (64 * 16 * columns[n]) * cycles[n]

    def _wgmma_reads(self, p: Matmul, tiles: Tiles) -> Floats:
        """Bytes that the wgmma of a block read from shared memory: the rows of a left factor that is there, and all
        columns for every 64 rows."""
        columns = _wgmma_columns(p, tiles)
        left = 0.0 if self.nested and p.reduction.outermost else 64.0  # weights of attention are in registers
        return 2.0 * tiles.span(self.steps[p]) * (left + columns) / (64 * columns)

    def _split(self, p: Matmul, tiles: Tiles) -> Floats:
        """Elements of factors that a block splits into parts."""
        wide = (f for f in p.factors if widened_from(f) is None and not isinstance(f.owner, CombineBf16x3Op))
        return total((tiles.span(self.info.dependence.of(f)) for f in wide), tiles.rows)

    def _filled(self, p: Matmul, tiles: Tiles, on: Bools) -> Floats:
        """Bytes of both factors that a block writes into shared memory."""
        precision = tiles.points.f32_matmul_precision
        found = np.zeros(tiles.rows)
        for f in p.factors:
            narrow = 4.0 if is_tf32(p, precision) else 2.0
            narrow = PART_BYTES if precision == "bf16x3" and widened_from(f) is None else narrow
            found = found + np.where(on, narrow, 4.0) * tiles.span(self.info.dependence.of(f))
        return found

    def _moved(self, p: Matmul, tiles: Tiles, on: Bools) -> Floats:
        """Those bytes, of which 4 count as 16 where a factor is turned on its way: each element is moved alone."""
        bytes = self._filled(p, tiles, on)
        if tiles.points.atom == "wgmma" and is_tf32(p, tiles.points.f32_matmul_precision):
            loads = [load for f in p.factors for load in loads_of(f, narrow=False)]
            if not all(lies_along_k(p, load) for load in loads):
                bytes = np.where(on, bytes * COPIED / 4, bytes)
        return bytes

    def _read(self, p: Matmul, tiles: Tiles) -> Floats:
        """Bytes that the warps of a block read from shared memory, for warps that stand in a near-square."""
        rows, columns, warps = tiles.tile[p.row], tiles.tile[p.column], tiles.points.warps
        high, wide = warp_tile(rows, columns, warps)
        return 2.0 * (high + wide) * warps * tiles.span(self.steps[p]) / (rows * columns)


def _promoted(p: Matmul, tiles: Tiles) -> Floats:
    """Partial sums that a block adds to its accumulators."""
    every = np.maximum(1, tiles.points.promotion_interval)
    sums = tiles.tile[p.row] * tiles.tile[p.column] * tiles.trip_count((*p.reduction.indices, *p.reduction.around))
    return is_promoted(p, tiles) * sums / every


def _beside(computed: Floats, multiplied: Floats, groups: Floats | float) -> Floats:
    """Seconds of two kinds of work of which one needs the results of the other, as weights of attention are between two
    products: what one of `groups` warpgroups computes, another one can multiply meanwhile."""
    return np.maximum(computed, multiplied) + np.minimum(computed, multiplied) / groups


def on_tensor_cores(p: Matmul, tiles: Tiles) -> Bools:
    """Where the atom of schedules computes a product: where its tiles hold one. CUDA cores do otherwise."""
    wide = isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)
    able = tiles.points.atom != "fma" and wide and may_be_narrow(p, tiles.points.f32_matmul_precision)
    sides = [tiles.tile[p.row], tiles.tile[p.column], largest((tiles.tile[i] for i in p.reduction.indices), tiles.rows)]
    return np.logical_and.reduce([side >= ATOM.m for side in sides]) & able


def warp_tile(rows: Ints, columns: Ints, warps: Ints) -> tuple[Ints, Ints]:
    """Rows and columns of a warp's part of a tile, halved along the longer side as long as there are warps."""
    while (warps > 1).any():
        down = ((rows >= columns) & (rows > ATOM.m)) | (columns <= ATOM.n)
        rows = np.where((warps > 1) & down, np.maximum(1, rows // 2), rows)
        columns = np.where((warps > 1) & ~down, columns // 2, columns)
        warps = warps // 2
    return rows, columns


def _wgmma_columns(p: Matmul, tiles: Tiles) -> Ints:
    """Columns of one wgmma: those of the tile, divided among the warpgroups that have the same 64 rows."""
    groups = np.maximum(1, tiles.points.warps // WARPGROUP)
    across = np.maximum(1, groups // np.maximum(1, tiles.tile[p.row] // 64))
    return np.maximum(8, tiles.tile[p.column] // across)


def _pipe(p: Matmul, tiles: Tiles, read: float) -> Floats:
    """The share of its cycles that a warp spends on multiply-adds: the others go to reading factors from shared memory,
    four at a time. Where a tile has fewer elements than register tiles, these are smaller."""
    points = tiles.points
    rows, columns = points.thread.T if points.thread.size else np.ones((2, len(points)))
    elements = tiles.tile[p.row] * tiles.tile[p.column] / (32 * points.warps)
    smaller = np.sqrt(np.minimum(1.0, elements / (rows * columns)))
    rows, columns = rows * smaller, columns * smaller
    sums, reads = rows * columns / 4, read * (np.maximum(1, rows / 4) + np.maximum(1, columns / 4))
    return sums / (np.maximum(sums, reads) + 0.35 * np.minimum(sums, reads))


def _busy(warps: Ints, scale: float, half: float, most: float) -> Floats:
    """The share of its rate that a unit reaches with so many warps on a multiprocessor: a fit of published points."""
    return np.minimum(most, scale * warps / (warps + half))
