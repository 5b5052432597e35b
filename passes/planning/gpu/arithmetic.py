"""Time that a multiprocessor works on one block: matmuls by their unit, and all other operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

import numpy as np
from xdsl.dialects.builtin import Float32Type

from ....dialects.kernel.barriers import WARPGROUP
from ....dialects.layouts.mma import ATOM
from ....dialects.loop.dependence import yielded
from ....dialects.payload import CastOp, CombineBf16x3Op, element_type
from ....target.model import PARTITIONS, Target
from ...analysis.operands import STORED, widened_from
from ..matmul import (
    Matmul,
    Operations,
    atom_depth,
    computed_operands,
    is_nested,
    is_tf32,
    lies_along_k,
    loads_of,
    may_be_narrow,
)
from ..model import SPECIAL
from ..nest_info import NestInfo
from ..points import Bools, Floats, Ints, Points, ceil_div, largest, product, total
from ..tiles import Tiles

BYTES_PER_COPY, INSTRUCTIONS_PER_COPY = 16, 4
"""Bytes that one instruction copies into shared memory, and the instructions of a copy with its address; twice as many
through registers."""

TF32_PASSES, TF32_ROUNDING_OPS = 2, 2
"""Time of a matmul of f32 over one of 16 bits, and the operations that round a number to tf32."""

SPLITTING_OPS = 10
"""Operations that split an f32 into three bf16."""

PASSES_OF_PARTS = (1, 3, 6)
"""Matmuls that one takes on tensor cores, by the number of its operands that are in f32 and split into parts."""

PART_BYTES = 6
"""Bytes of the three parts of an f32."""

PARTIAL_SUMS = 8
"""Partial sums of a long f32 sum on CUDA cores. The errors of cuBLAS on an H200 are those of 5 to 7 (k from 3,584 to
18,944, where one register erred 2.2 to 2.7 times as much)."""

MIN_PARTIAL_SUMS = 4
"""Parts of a sum that need no partial sums: they err at most 1.4 times as much as `PARTIAL_SUMS`."""

MIN_PARTIAL_SUM_TERMS = 256
"""Terms of a partial sum on CUDA cores, at least."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a multiprocessor for one block: `compute` by its units beside other blocks, `alone` without them, and
    `shared` for the bytes through shared memory."""

    compute: Floats
    alone: Floats
    shared: Floats


def row_cost(work: Operations, tiles: Tiles, target: Target, together: Ints) -> Cost:
    """Returns the cost of one block without matmuls, of which `together` share a multiprocessor."""
    computed = _plain_seconds(work, {}, tiles, target, ())
    alone, beside = (computed / np.minimum(1.0, n * tiles.points.warps / PARTITIONS) for n in (1, together))
    return Cost(beside, alone, np.zeros(tiles.rows))


def _plain_seconds(
    work: Operations, on: dict[Matmul, Bools], tiles: Tiles, target: Target, further: Sequence[Floats]
) -> Floats:
    """Returns the seconds of the operations beside matmuls, and of `further` instructions. `on` is where matmuls are on
    tensor cores, which take operands before they are widened."""
    vector, special, rates = np.zeros(tiles.rows), np.zeros(tiles.rows), target.rates
    widenings = {f: p for p in work.products for f in p.factors if isinstance(f.owner, CastOp)}
    for counted in work.others:
        times = tiles.span(counted.indices)
        if (widened := widenings.get(counted.op.results[0])) is not None:
            times = times * ~on[widened]
        vector = vector + (times / 2 if isinstance(counted.op, CastOp) else times)
        special = special + (times if counted.op.name in SPECIAL else 0.0)
    return (reduce(np.add, further, vector) / rates.vector + special / rates.special) * target.sms


def matmul_cost(work: Operations, tiles: Tiles, target: Target, together: Ints) -> Cost:
    """Returns the cost of one block with matmuls, of which `together` share a multiprocessor."""
    points, rates, rows, products = tiles.points, target.rates, tiles.rows, work.products
    on = {p: on_tensor_cores(p, tiles) for p in products}
    further: list[Floats] = []
    if points.f32_matmul_precision == "bf16x3":
        further.append(SPLITTING_OPS * total((_split(p, tiles) * on[p] for p in products), rows))
    if points.copy != "tma":
        issued = INSTRUCTIONS_PER_COPY if points.copy == "cp_async" else 2 * INSTRUCTIONS_PER_COPY
        further.append(issued / BYTES_PER_COPY * total((_moved(p, tiles, on[p]) for p in products), rows))
    computed = _plain_seconds(work, on, tiles, target, further)
    shared, multiplied, scalar, narrow = (np.zeros(rows) for _ in range(4))
    for p in products:
        flops = 2.0 * tiles.span(p.indices)
        parts, wide = _passes(p, points)
        moved = _filled(p, tiles, on[p])
        scalar = scalar + ~on[p] * flops * target.sms / rates.fma / _fma_share(p, tiles, rates.shared_read)
        if points.atom == "wgmma":
            read = parts * wide * _wgmma_reads(p, tiles, work.nested)
            cycles = np.maximum(parts * wide * _wgmma_cycles(p, tiles, target), (moved + read) / rates.shared)
            multiplied = multiplied + on[p] * cycles / rates.clock
        else:
            read = _mma_reads(p, tiles) * wide
            moved = moved + read
            narrow = narrow + on[p] * parts * wide * flops * target.sms / rates.mma
            if wide > 1:
                computed = computed + on[p] * read / 4 * TF32_ROUNDING_OPS / rates.vector * target.sms
        computed = computed + _promotions(p, tiles) / rates.vector * target.sms
        shared = shared + on[p] * moved / rates.shared / rates.clock

    def seconds(warps: Ints) -> Floats:
        units = (
            computed / np.minimum(1.0, warps / rates.issue_warps)
            + scalar / _busy(warps, 1 + rates.fma_warps / 32, rates.fma_warps, 1.0)
            + narrow / _busy(warps, 1.28, 4.5, 0.92)
        )
        # Weights of attention are between two matmuls: a warpgroup computes while another one multiplies.
        groups = np.maximum(1.0, warps / WARPGROUP) if work.nested else 1.0
        return np.maximum(units, multiplied) + np.minimum(units, multiplied) / groups

    return Cost(seconds(together * points.warps), seconds(points.warps), shared)


def chain(work: Operations, tiles: Tiles, target: Target) -> Floats:
    """Returns the least seconds of the sums of one block on tensor cores, where each atom waits for the one before."""
    cycles = np.zeros(tiles.rows)
    for p in work.products if tiles.points.atom == "mma" else ():
        outer = (i for i in p.reduction.around if i not in tiles.counts)
        parts, wide = _passes(p, tiles.points)
        atoms = parts * tiles.span(p.reduction.indices) / (ATOM.k // wide) * tiles.trip_count(outer)
        waits = atoms * target.rates.mma_latency * on_tensor_cores(p, tiles)
        cycles = cycles + waits if work.nested else np.maximum(cycles, waits)
    return cycles / target.rates.clock


def _passes(p: Matmul, points: Points) -> tuple[int, int]:
    """Returns how many matmuls of 16 bits a matmul on tensor cores takes, and how many times as long each takes."""
    parts = PASSES_OF_PARTS[computed_operands(p)] if points.f32_matmul_precision == "bf16x3" else 1
    return parts, TF32_PASSES if is_tf32(p, points.f32_matmul_precision) else 1


def _wgmma_cycles(p: Matmul, tiles: Tiles, target: Target) -> Floats:
    """Returns the cycles of a block's matmul, in wgmma of 64 rows."""
    columns, cycles = map(np.array, zip(*target.rates.wgmma_cycles, strict=True))
    n = np.maximum(0, np.searchsorted(columns, _wgmma_columns(p, tiles), "right") - 1)
    return tiles.span(p.indices) / (64 * 16 * columns[n]) * cycles[n]


def _wgmma_reads(p: Matmul, tiles: Tiles, nested: bool) -> Floats:
    """Returns the bytes that the wgmma of a block read from shared memory: the rows of a left operand that is there,
    and all columns for every 64 rows."""
    columns = _wgmma_columns(p, tiles)
    left = 0.0 if nested and p.reduction.outermost else 64.0  # weights of attention are in registers
    return 2.0 * tiles.span(p.indices) * (left + columns) / (64 * columns)


def _wgmma_columns(p: Matmul, tiles: Tiles) -> Ints:
    """Returns the columns of one wgmma: those of the tile, divided among the warpgroups with the same 64 rows."""
    groups = np.maximum(1, tiles.points.warps // WARPGROUP)
    across = np.maximum(1, groups // np.maximum(1, tiles.tile[p.row] // 64))
    return np.maximum(8, tiles.tile[p.column] // across)


def _split(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the elements of operands that a block splits into parts."""
    wide = (f for f in p.factors if widened_from(f) is None and not isinstance(f.owner, CombineBf16x3Op))
    return total((tiles.span(tiles.info.dependence.of(f)) for f in wide), tiles.rows)


def _filled(p: Matmul, tiles: Tiles, on: Bools) -> Floats:
    """Returns the bytes of both operands that a block writes into shared memory."""
    precision, filled = tiles.points.f32_matmul_precision, np.zeros(tiles.rows)
    for f in p.factors:
        narrow = 4.0 if is_tf32(p, precision) else 2.0
        narrow = PART_BYTES if precision == "bf16x3" and widened_from(f) is None else narrow
        filled = filled + np.where(on, narrow, 4.0) * tiles.span(tiles.info.dependence.of(f))
    return filled


def _moved(p: Matmul, tiles: Tiles, on: Bools) -> Floats:
    """Returns those bytes, of which 4 count as 16 where an operand is transposed: every element is moved alone."""
    bytes = _filled(p, tiles, on)
    if tiles.points.atom == "wgmma" and is_tf32(p, tiles.points.f32_matmul_precision):
        loads = [load for f in p.factors for load in loads_of(f, narrow=False)]
        if not all(lies_along_k(p, load) for load in loads):
            bytes = np.where(on, bytes * BYTES_PER_COPY / 4, bytes)
    return bytes


def _mma_reads(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the bytes that the warps of a block, in a near-square, read from shared memory."""
    rows, columns, warps = tiles.tile[p.row], tiles.tile[p.column], tiles.points.warps
    high, wide = warp_tile(rows, columns, warps)
    return 2.0 * (high + wide) * warps * tiles.span(p.indices) / (rows * columns)


def _promotions(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the partial sums that a block adds to its accumulators."""
    every = np.maximum(1, tiles.points.promotion_interval)
    return is_promoted(p, tiles) * p.sums(tiles) * tiles.trip_count(p.indices) / every


def on_tensor_cores(p: Matmul, tiles: Tiles) -> Bools:
    """Returns where the atom of schedules computes a matmul: where its tiles hold one. CUDA cores do otherwise."""
    wide = isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)
    able = tiles.points.atom != "fma" and wide and may_be_narrow(p, tiles.points.f32_matmul_precision)
    if not able:
        return np.zeros(tiles.rows, bool)
    depth = largest((tiles.tile[i] for i in p.reduction.indices), tiles.rows)
    holds = (tiles.tile[p.row] >= ATOM.m) & (tiles.tile[p.column] >= ATOM.m)
    return holds & (depth >= atom_depth(p, tiles.points.f32_matmul_precision))


def warp_tile(rows: Ints, columns: Ints, warps: Ints) -> tuple[Ints, Ints]:
    """Returns the rows and columns of a warp's part of a tile, halved along the longer side as long as there are
    warps."""
    while (warps > 1).any():
        down = ((rows >= columns) & (rows > ATOM.m)) | (columns <= ATOM.n)
        rows = np.where((warps > 1) & down, np.maximum(1, rows // 2), rows)
        columns = np.where((warps > 1) & ~down, columns // 2, columns)
        warps = warps // 2
    return rows, columns


def _fma_share(p: Matmul, tiles: Tiles, read: float) -> Floats:
    """Returns the share of its cycles that a warp spends on multiply-adds: the others go to reading operands from
    shared memory, four at a time. Where a tile has fewer elements than register tiles, these are smaller."""
    points = tiles.points
    rows, columns = points.thread.T if points.thread.size else np.ones((2, len(points)))
    smaller = np.sqrt(np.minimum(1.0, p.sums(tiles) / (32 * points.warps) / (rows * columns)))
    rows, columns = rows * smaller, columns * smaller
    sums, reads = rows * columns / 4, read * (np.maximum(1, rows / 4) + np.maximum(1, columns / 4))
    return sums / (np.maximum(sums, reads) + 0.35 * np.minimum(sums, reads))


def _busy(warps: Ints, scale: float, half: float, most: float) -> Floats:
    """Returns the share of its rate that a unit reaches with some warps on a multiprocessor: a fit of published
    points."""
    return np.minimum(most, scale * warps / (warps + half))


def with_promotion(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Iterator[Points]:
    """Yields schedules of a nest with their partial sums (`with_interval`), in each `promotion_memory`."""
    promoted = with_interval(info, points, products, permission)
    yield promoted
    if points.atom == "fma":
        yield replace(promoted, promotion_memory="shared").at(promoted.promotion_interval > 1)


def with_interval(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Points:
    """Returns schedules of a nest with their `promotion_interval`.

    Args:
        info: the nest.
        points: the schedules, which divide their sums already.
        products: those that are matmuls in the tiles of the schedules.
        permission: `f32_matmul_precision` as it was asked for. The operands that the planner itself splits are of 16
            bits, and need one sum.
    """
    wide = [p for p in products if isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)]
    if points.atom != "fma":
        split = permission in ("bf16x3", STORED) and points.f32_matmul_precision in ("bf16x3", STORED)
        interval = np.full(len(points), int(split and any(computed_operands(p) for p in wide)))
        return replace(points, promotion_interval=interval)
    wide = [] if is_nested(products) else [p for p in wide if computed_operands(p) == 2]
    tiles, interval = Tiles(info, points), np.zeros(len(points), dtype=np.int64)
    for p in wide:
        indices = p.reduction.indices
        chunk = tiles.elements(indices)
        chunks = product((ceil_div(info.extents[i], tiles.tile[i]) for i in indices), len(points))
        longest = np.maximum(MIN_PARTIAL_SUM_TERMS, prod(info.extents[i] for i in indices) / MIN_PARTIAL_SUMS)
        needed = np.maximum(ceil_div(MIN_PARTIAL_SUM_TERMS, chunk), ceil_div(chunks, PARTIAL_SUMS)).astype(np.int64)
        interval = np.maximum(interval, np.where(tiles.trip_count(indices) * chunk > longest, needed, 0))
    return replace(points, promotion_interval=interval)


def is_promoted(p: Matmul, tiles: Tiles) -> Bools:
    """Returns where a matmul has partial sums in addition to its accumulators."""
    interval: Ints = tiles.points.promotion_interval
    return (interval > 0) & (tiles.trip_count(p.reduction.indices) > interval)
