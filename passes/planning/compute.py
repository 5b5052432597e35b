"""How long the multiprocessor works on one block: sums of products by their unit, and everything else."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import Float32Type
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.layouts.mma import ATOM
from ...dialects.loop.work import nest_operations
from ...dialects.payload import CastOp, CombineBf16x3Op, element_type
from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.dependence import yielded
from ..analysis.operand_types import widened_from
from .matmul import Matmul
from .matmul_precision import computed_operands, is_tf32, lies_along_k, may_be_narrow
from .nest_info import NestInfo
from .roofline import SPECIAL, Operations
from .staging import PART_BYTES, loads_of
from .tiles import Tiles

WGMMA_CYCLES = ((256, 129.3), (192, 97.5), (128, 65.0), (64, 32.8))
"""Cycles of one wgmma of 64 rows and a depth of 16, by its columns, as published for an H100."""

SHARED_WIDTH = 128
"""Bytes of shared memory that a multiprocessor moves in a cycle."""

COPIED, ISSUED = 16, 4
"""Bytes that one instruction copies into shared memory, and the instructions that this takes with its address; twice as
many, if the copy goes through registers."""

TF32, ROUNDING = 2, 2
"""How many times as long a product of f32 takes as one of 16 bits, and the operations that round a number to tf32."""

ALONE = 12
"""Warps with which a multiprocessor works at its rate on what is between two products of a warp: there each operation
waits for the one before."""

CHAINED = 33.0
"""Cycles from an `mma.sync` to the next one that adds to the same sums."""

SPLITTING = 10
"""Operations that split an f32 into three bf16."""

PARTS = (1, 3, 6)
"""Products that a product takes on tensor cores, by how many of its factors are in f32 and split into parts."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a multiprocessor for one block: `compute` by its units, and `shared` for the bytes that go through
    shared memory."""

    compute: float
    shared: float


class Arithmetic:
    """The operations of a nest, looked at once for all schedules of it."""

    def __init__(self, info: NestInfo, products: list[Matmul]) -> None:
        self.info = info
        self.products = products
        self.nested = any(not p.reduction.outermost for p in products)
        inside: set[Operation] = set()
        self.widenings: dict[SSAValue, Matmul] = {}
        """Factors of products: those on tensor cores take them before they were widened."""
        for p in products:
            inside |= {p.reduction.op, p.multiplication}
            for factor in p.factors:
                if isinstance(joined := factor.owner, CombineBf16x3Op):  # its parts are what is multiplied
                    inside |= {joined, *(o.owner for o in joined.operands if isinstance(o.owner, Operation))}
            self.widenings.update((factor, p) for factor in p.factors if isinstance(factor.owner, CastOp))
        self.others = [c for c in nest_operations(info.nest) if c.op not in inside]
        self.steps = {p: (*p.reduction.indices, *p.reduction.around) for p in products}

    def cost(self, tiles: Tiles, schedule: ScheduleAttr, target: Target, warps: float) -> Cost:
        """What one block costs where `warps` work on a multiprocessor at once."""
        vector = special = 0.0
        atoms = {p: atom_of(p, tiles, schedule) for p in self.products}
        for counted in self.others:
            widened = self.widenings.get(counted.op.results[0])
            if widened is not None and atoms[widened] != "fma":
                continue
            times = tiles.span(counted.indices)
            vector += times / 2 if isinstance(counted.op, CastOp) else times
            special += times if counted.op.name in SPECIAL else 0
        rates = target.rates
        issued = ISSUED if schedule.copy.data == "cp_async" else 2 * ISSUED
        if schedule.f32_matmul_precision.data == "bf16x3":
            vector += SPLITTING * sum(self._split(p, tiles) for p in self.products if atoms[p] != "fma")
        if schedule.copy.data != "tma":
            vector += sum(self._moved(p, tiles, schedule, atoms[p]) / COPIED * issued for p in self.products)
        compute = Operations(vector, special).seconds(rates) * target.sms
        if self.nested and "mma" in atoms.values():
            compute /= min(1.0, warps / ALONE)
        shared = multiplied = 0.0
        for p in self.products:
            flops = 2.0 * tiles.span(self.steps[p])
            atom = atoms[p]
            if atom == "wgmma":
                parts = PARTS[computed_operands(p)] if schedule.f32_matmul_precision.data == "bf16x3" else 1
                wide = TF32 if is_tf32(p, schedule.f32_matmul_precision.data) else 1
                multiplied += parts * wide * self._wgmma(p, tiles, schedule) / rates.clock
                shared += self._filled(p, tiles, schedule, atom) / SHARED_WIDTH / rates.clock
            elif atom == "mma":
                flops *= PARTS[computed_operands(p)] if schedule.f32_matmul_precision.data == "bf16x3" else 1
                read = self._read(p, tiles, schedule)
                if is_tf32(p, schedule.f32_matmul_precision.data):
                    flops, read = flops * TF32, read * TF32
                    compute += Operations(read / 4 * ROUNDING).seconds(rates) * target.sms
                compute += flops * target.sms / rates.mma / _busy(warps, 1.28, 4.5, 0.92)
                shared += (self._filled(p, tiles, schedule, atom) + read) / SHARED_WIDTH / rates.clock
            else:
                busy = _pipe(schedule) * _busy(warps, 1.44, 7.0, 1.0)
                compute += flops * target.sms / rates.fma / busy
        groups = max(1.0, warps / WARPGROUP) if self.nested else 1.0
        return Cost(_beside(compute, multiplied, groups), shared)

    def chain(self, tiles: Tiles, schedule: ScheduleAttr, target: Target) -> float:
        """Seconds that the sums of one block take on tensor cores at least, each product waiting for the one before."""
        cycles = 0.0
        for p in self.products:
            if atom_of(p, tiles, schedule) == "mma":
                outer = (i for i in p.reduction.around if i not in tiles.counts)
                parts = PARTS[computed_operands(p)] if schedule.f32_matmul_precision.data == "bf16x3" else 1
                deep = ATOM[2] // (TF32 if is_tf32(p, schedule.f32_matmul_precision.data) else 1)
                own = parts * tiles.span(p.reduction.indices) / deep * tiles.trip_count(outer) * CHAINED
                cycles = cycles + own if self.nested else max(cycles, own)
        return cycles / target.rates.clock

    def _wgmma(self, p: Matmul, tiles: Tiles, schedule: ScheduleAttr) -> float:
        """Cycles of a block's products, each of 64 rows."""
        columns = tiles.tile[p.column]
        wide, cycles = next(((n, c) for n, c in WGMMA_CYCLES if n <= columns), WGMMA_CYCLES[-1])
        return tiles.span(self.steps[p]) / (64 * 16 * wide) * cycles

    def _split(self, p: Matmul, tiles: Tiles) -> float:
        """Elements of factors that a block splits into parts."""
        wide = (f for f in p.factors if widened_from(f) is None and not isinstance(f.owner, CombineBf16x3Op))
        return sum(tiles.span(self.info.dependence.of(f)) for f in wide)

    def _filled(self, p: Matmul, tiles: Tiles, schedule: ScheduleAttr, atom: str) -> float:
        """Bytes of both factors that a block writes into shared memory."""
        size = 4.0 if atom == "fma" or is_tf32(p, schedule.f32_matmul_precision.data) else 2.0
        parts = schedule.f32_matmul_precision.data == "bf16x3" and atom != "fma"

        def each(factor: SSAValue) -> float:
            return PART_BYTES if parts and widened_from(factor) is None else size

        return sum(each(f) * tiles.span(self.info.dependence.of(f)) for f in p.factors)

    def _moved(self, p: Matmul, tiles: Tiles, schedule: ScheduleAttr, atom: str) -> float:
        """Those bytes, of which 4 count as 16 where a factor is turned on its way: each element is moved alone."""
        bytes = self._filled(p, tiles, schedule, atom)
        if atom == "wgmma" and is_tf32(p, schedule.f32_matmul_precision.data):
            loads = [load for f in p.factors for load in loads_of(f, narrow=False)]
            if not all(lies_along_k(p, load) for load in loads):
                bytes *= COPIED / 4
        return bytes

    def _read(self, p: Matmul, tiles: Tiles, schedule: ScheduleAttr) -> float:
        """Bytes that the warps of a block read from shared memory, for warps that stand in a near-square."""
        rows, columns = tiles.tile[p.row], tiles.tile[p.column]
        (high, wide), warps = warp_tile(rows, columns, schedule.warps.data), schedule.warps.data
        return 2.0 * (high + wide) * warps * tiles.span(self.steps[p]) / (rows * columns)


def _beside(computed: float, multiplied: float, groups: float) -> float:
    """Seconds of two kinds of work of which one needs the results of the other, as weights of attention are between two
    products: what one of `groups` warpgroups computes, another one can multiply meanwhile."""
    return max(computed, multiplied) + min(computed, multiplied) / groups


def atom_of(p: Matmul, tiles: Tiles, schedule: ScheduleAttr) -> str:
    """What computes a product under a schedule: fma, mma or wgmma."""
    depth = max(tiles.tile[i] for i in p.reduction.indices)
    fits = min(tiles.tile[p.row], tiles.tile[p.column], depth) >= ATOM[0]
    wide = isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)
    return schedule.atom.data if fits and wide and may_be_narrow(p, schedule.f32_matmul_precision.data) else "fma"


def warp_tile(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Rows and columns of a warp's part of a tile, halved along the longer side as long as there are warps."""
    while warps > 1:
        if rows >= columns and rows > ATOM[0] or columns <= ATOM[1]:
            rows = max(1, rows // 2)
        else:
            columns //= 2
        warps //= 2
    return rows, columns


def _pipe(schedule: ScheduleAttr) -> float:
    """The share of its cycles that a warp spends on multiply-adds: the others go to reading factors from shared memory,
    four at a time."""
    rows, columns = [v.data for v in schedule.thread] or [1, 1]
    sums, reads = rows * columns / 4, 3 * (max(1, rows / 4) + max(1, columns / 4))
    return sums / (max(sums, reads) + 0.35 * min(sums, reads))


def _busy(warps: float, scale: float, half: float, most: float) -> float:
    """The share of its rate that a unit reaches with so many warps on a multiprocessor: a fit of published points."""
    return min(most, scale * warps / (warps + half))
