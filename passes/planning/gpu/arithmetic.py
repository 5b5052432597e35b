"""Time that a multiprocessor computes one block: matmuls on tensor cores or CUDA cores, and all other operations.

All times are in seconds, as arrays with one entry for each schedule. Rates of the target are those of all
multiprocessors, so a time of one multiprocessor is operations * `target.sms` / rate.
"""

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
from ...analysis.operands import PRESPLIT, widened_from
from ..matmul import (
    Matmul,
    Operations,
    atom_depth,
    computed_operands,
    is_contiguous_along_k,
    is_nested,
    is_tf32,
    loads_of,
    may_be_narrow,
)
from ..model import SPECIAL
from ..nest_info import NestInfo
from ..points import Bools, Floats, Ints, Points, ceil_div, largest, product, total
from ..tiles import Tiles

BYTES_PER_COPY, INSTRUCTIONS_PER_COPY = 16, 4
"""Bytes that one asynchronous copy moves into shared memory, and its number of instructions, address included. A copy
through registers has twice as many."""

TF32_PASSES, TF32_ROUNDING_OPS = 2, 2
"""Time of a tf32 matmul / time of a 16-bit matmul, and the number of operations that round an f32 to tf32."""

SPLITTING_OPS = 10
"""Number of operations that split an f32 into three bf16 numbers."""

PASSES_OF_PARTS = (1, 3, 6)
"""Number of bf16 matmuls that compute one matmul under `bf16x3`, indexed by how many of its operands are split."""

PART_BYTES = 6
"""Bytes of the three bf16 parts of an f32."""

PARTIAL_SUMS = 8
"""Number of partial sums into which a long f32 reduction on CUDA cores is divided, for accuracy.

Measured on an H200 for k from 3,584 to 18,944: the errors of cuBLAS are those of 5 to 7 partial sums; a single sum has
errors 2.2 to 2.7 times as large.
"""

MIN_PARTIAL_SUMS = 4
"""Minimum number of blocks that share a reduction (split-K, clusters) if each block adds its terms to a single sum.

The error is then at most 1.4 times that of `PARTIAL_SUMS` partial sums.
"""

MIN_PARTIAL_SUM_TERMS = 256
"""Minimum number of terms of a partial sum on CUDA cores."""


@dataclass(frozen=True)
class Cost:
    """Seconds that a multiprocessor computes one block.

    compute  time of its operations if other resident blocks keep the units busy, too
    alone    time of its operations if it is the only resident block
    shared   time of its bytes through shared memory
    """

    compute: Floats
    alone: Floats
    shared: Floats


def row_cost(work: Operations, tiles: Tiles, target: Target, together: Ints) -> Cost:
    """Returns the cost of one block without matmuls.

    Args:
        work: operations of the nest.
        tiles: the schedules.
        target: the target.
        together: blocks that share a multiprocessor.
    """
    computed = _plain_seconds(work, {}, tiles, target, ())
    alone, shared = (computed / np.minimum(1.0, n * tiles.points.warps / PARTITIONS) for n in (1, together))
    return Cost(shared, alone, np.zeros(tiles.rows))


def _plain_seconds(
    work: Operations, on: dict[Matmul, Bools], tiles: Tiles, target: Target, further: Sequence[Floats]
) -> Floats:
    """Returns the seconds of the operations other than matmuls.

    Args:
        work: operations of the nest.
        on: matmul -> mask of the schedules that compute it on tensor cores. These take 16-bit operands, so the casts of
            the operands are not computed.
        tiles: the schedules.
        target: the target.
        further: numbers of further instructions of a block.
    """
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
    """Returns the cost of one block with matmuls.

    Args:
        work: operations of the nest.
        tiles: the schedules.
        target: the target.
        together: blocks that share a multiprocessor.
    """
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
        # In attention, one warpgroup computes softmax while the tensor cores work for another warpgroup.
        groups = np.maximum(1.0, warps / WARPGROUP) if work.nested else 1.0
        return np.maximum(units, multiplied) + np.minimum(units, multiplied) / groups

    return Cost(seconds(together * points.warps), seconds(points.warps), shared)


def chain(work: Operations, tiles: Tiles, target: Target) -> Floats:
    """Returns the critical path of one block on tensor cores in seconds: each `mma` waits for the previous one.

    Args:
        work: operations of the nest.
        tiles: tiles of the schedules.
        target: the target, with the latency of an `mma`.
    """
    cycles = np.zeros(tiles.rows)
    for p in work.products if tiles.points.atom == "mma" else ():
        outer = (i for i in p.reduction.outer_indices if i not in tiles.counts)
        parts, wide = _passes(p, tiles.points)
        atoms = parts * tiles.span(p.reduction.indices) / (ATOM.k // wide) * tiles.trip_count(outer)
        waits = atoms * target.rates.mma_latency * on_tensor_cores(p, tiles)
        cycles = cycles + waits if work.nested else np.maximum(cycles, waits)
    return cycles / target.rates.clock


def _passes(p: Matmul, points: Points) -> tuple[int, int]:
    """Returns the number of tensor-core matmuls that compute a matmul, and the time of each / time of a 16-bit one."""
    parts = PASSES_OF_PARTS[computed_operands(p)] if points.f32_matmul_precision == "bf16x3" else 1
    return parts, TF32_PASSES if is_tf32(p, points.f32_matmul_precision) else 1


def _wgmma_cycles(p: Matmul, tiles: Tiles, target: Target) -> Floats:
    """Returns the tensor-core cycles of a matmul in one block, computed by wgmma of 64 rows."""
    columns, cycles = map(np.array, zip(*target.rates.wgmma_cycles, strict=True))
    n = np.maximum(0, np.searchsorted(columns, _wgmma_columns(p, tiles), "right") - 1)
    return tiles.span(p.indices) / (64 * 16 * columns[n]) * cycles[n]


def _wgmma_reads(p: Matmul, tiles: Tiles, nested: bool) -> Floats:
    """Returns the bytes that all wgmma of a block read from shared memory.

    For every 64 rows of the tile, wgmma reads all columns of the right operand, and the left operand unless it is in
    registers.
    """
    columns = _wgmma_columns(p, tiles)
    # The left operand of the outer matmul of attention is in registers.
    lhs_rows = 0.0 if nested and p.reduction.outermost else 64.0
    return 2.0 * tiles.span(p.indices) * (lhs_rows + columns) / (64 * columns)


def _wgmma_columns(p: Matmul, tiles: Tiles) -> Ints:
    """Returns the columns of one wgmma: the columns of the tile, divided among warpgroups that have the same rows."""
    groups = np.maximum(1, tiles.points.warps // WARPGROUP)
    across = np.maximum(1, groups // np.maximum(1, tiles.tile[p.row] // 64))
    return np.maximum(8, tiles.tile[p.column] // across)


def _split(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the number of operand elements that a block splits into bf16 parts."""
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
    """Returns the bytes of both operands that a block copies, for counting instructions.

    A transposed operand (tf32 on wgmma, not contiguous along k) is copied element by element: its 4 bytes count as 16.
    """
    bytes = _filled(p, tiles, on)
    if tiles.points.atom == "wgmma" and is_tf32(p, tiles.points.f32_matmul_precision):
        loads = [load for f in p.factors for load in loads_of(f, narrow=False)]
        if not all(is_contiguous_along_k(p, load) for load in loads):
            bytes = np.where(on, bytes * BYTES_PER_COPY / 4, bytes)
    return bytes


def _mma_reads(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the bytes that the warps of a block read from shared memory for `mma`. Warps have near-square tiles."""
    rows, columns, warps = tiles.tile[p.row], tiles.tile[p.column], tiles.points.warps
    high, wide = warp_tile(rows, columns, warps)
    return 2.0 * (high + wide) * warps * tiles.span(p.indices) / (rows * columns)


def _promotions(p: Matmul, tiles: Tiles) -> Floats:
    """Returns the number of additions of partial sums to accumulators in one block."""
    every = np.maximum(1, tiles.points.promotion_interval)
    return is_promoted(p, tiles) * p.sums(tiles) * tiles.trip_count(p.indices) / every


def on_tensor_cores(p: Matmul, tiles: Tiles) -> Bools:
    """Returns a mask of the schedules that compute a matmul on tensor cores: their tile holds at least one atom."""
    wide = isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)
    able = tiles.points.atom != "fma" and wide and may_be_narrow(p, tiles.points.f32_matmul_precision)
    if not able:
        return np.zeros(tiles.rows, bool)
    depth = largest((tiles.tile[i] for i in p.reduction.indices), tiles.rows)
    holds = (tiles.tile[p.row] >= ATOM.m) & (tiles.tile[p.column] >= ATOM.m)
    return holds & (depth >= atom_depth(p, tiles.points.f32_matmul_precision))


def warp_tile(rows: Ints, columns: Ints, warps: Ints) -> tuple[Ints, Ints]:
    """Returns the rows and columns of the tile of one warp. The tile is halved along its longer side for each doubling.

    Args:
        rows: rows of the tile of a block.
        columns: columns of the tile of a block.
        warps: warps of a block.
    """
    while (warps > 1).any():
        down = ((rows >= columns) & (rows > ATOM.m)) | (columns <= ATOM.n)
        rows = np.where((warps > 1) & down, np.maximum(1, rows // 2), rows)
        columns = np.where((warps > 1) & ~down, columns // 2, columns)
        warps = warps // 2
    return rows, columns


def _fma_share(p: Matmul, tiles: Tiles, read: float) -> Floats:
    """Returns the share of its cycles in which a warp on CUDA cores issues multiply-adds, between 0 and 1.

    In the other cycles it reads operands from shared memory, four elements at a time.

    Args:
        p: the matmul.
        tiles: the schedules. A register tile (`thread`) is smaller if the tile has fewer elements.
        read: cost of reading 16 bytes, in groups of four multiply-adds (`Rates.shared_read`).
    """
    points = tiles.points
    rows, columns = points.thread.T if points.thread.size else np.ones((2, len(points)))
    smaller = np.sqrt(np.minimum(1.0, p.sums(tiles) / (32 * points.warps) / (rows * columns)))
    rows, columns = rows * smaller, columns * smaller
    sums, reads = rows * columns / 4, read * (np.maximum(1, rows / 4) + np.maximum(1, columns / 4))
    return sums / (np.maximum(sums, reads) + 0.35 * np.minimum(sums, reads))


def _busy(warps: Ints, scale: float, half: float, most: float) -> Floats:
    """Returns the share of its peak rate that a unit reaches, depending on the resident warps. Fit to published points.

    Args:
        warps: warps on a multiprocessor.
        scale: limit for many warps, before clipping.
        half: warps with which half of `scale` is reached.
        most: maximum of the share.
    """
    return np.minimum(most, scale * warps / (warps + half))


def with_promotion(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Iterator[Points]:
    """Yields schedules with their `promotion_interval`, for each `promotion_memory`.

    Args:
        info: the nest.
        points: the schedules.
        products: contractions that the schedules compute as matmuls.
        permission: the option `f32_matmul_precision`.
    """
    promoted = with_interval(info, points, products, permission)
    yield promoted
    if points.atom == "fma":
        yield replace(promoted, promotion_memory="shared").at(promoted.promotion_interval > 1)


def with_interval(info: NestInfo, points: Points, products: list[Matmul], permission: str) -> Points:
    """Returns schedules with their `promotion_interval`: the number of chunks of one partial sum; 0 without them.

    Args:
        info: the nest.
        points: schedules; `split_k` is decided already.
        products: contractions that the schedules compute as matmuls.
        permission: the option `f32_matmul_precision`, as the user gave it. If the planner itself chose `bf16x3`, the
            operands were 16-bit numbers and need no partial sums.
    """
    wide = [p for p in products if isinstance(element_type(yielded(p.reduction.op.body.block)[0].type), Float32Type)]
    if points.atom != "fma":
        split = permission in ("bf16x3", PRESPLIT) and points.f32_matmul_precision in ("bf16x3", PRESPLIT)
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
    """Returns a mask of the schedules in which a matmul has partial sums in addition to its accumulators."""
    interval: Ints = tiles.points.promotion_interval
    return (interval > 0) & (tiles.trip_count(p.reduction.indices) > interval)
