"""Estimates the shared memory and the registers of a block, and how many blocks fit on a multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation

from ....dialects.kernel.barriers import WARPGROUP, consumer_registers
from ....dialects.loop.dependence import access_indices
from ....dialects.payload import element_bytes, element_type
from ....target.model import REGISTERS, REGISTERS_PER_SM, Target, occupancy
from ...analysis.async_copies import EPILOGUE_BUFFERS, EPILOGUE_ROW
from ..legality import Violation
from ..matmul import Matmul, is_tf32, is_wide, loads_of, uses_matmul_result
from ..nest_info import NestInfo
from ..points import Bools, Floats, Ints, Points, largest, product, total
from ..tiles import Tiles
from .arithmetic import PART_BYTES, is_promoted, on_tensor_cores, warp_tile

BARRIER_BYTES, EXCHANGE_BYTES = 1024, 4096
"""Bytes of shared memory of a kernel with TMA, in addition to its tiles.

The first number is for mbarriers and alignment. The second one replaces it in kernels with reductions other than
matmuls, whose warps also exchange partial results.
"""

ROW_EXCHANGE_BYTES = 1024
"""Bytes of shared memory that warps exchange partial results in, in addition to a row cache."""


@dataclass(frozen=True)
class Resources:
    """Resources of a block. Arrays have one entry for each schedule.

    registers   estimated registers of a thread
    spills      mask of the schedules whose registers would spill
    shared      bytes of shared memory
    resident    blocks that fit on a multiprocessor
    violations  limits of the target that schedules exceed
    """

    registers: Ints
    spills: Bools
    shared: Ints
    resident: Ints
    violations: list[Violation]


def resources(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Resources:
    """Returns the resources of a block.

    Args:
        info: the nest.
        tiles: the schedules.
        target: the target.
        products: contractions that the schedules compute as matmuls.
    """
    points = tiles.points
    alone = not products and points.atom == "fma" and points.copy == "sync"
    violations: list[Violation] = []
    shared, threads = tiles.exchanged, 32 * points.warps
    if not alone:
        staged_bytes, threads = _staged_bytes(info, tiles, products)
        shared = staged_bytes + shared
    if tiles.kept:
        row_bytes = reused_bytes(tiles)
        violations += _of_row_cache(row_bytes, target)
        shared = shared + row_bytes
    argument = "stages" if (points.stages > 1).any() else "block"
    much = "the operands of matmuls take {:.0f} bytes of shared memory; " + (
        f"{target.name} has {target.shared_per_block} for a block"
    )
    violations.append(Violation(shared > target.shared_per_block, argument, much, (shared,)))
    if alone:
        estimate, needed = _row_registers(info, tiles, target, threads)
        most = np.minimum(REGISTERS, REGISTERS_PER_SM // threads)
    else:
        shared = shared + total((4 * _parked(p, tiles) for p in products), tiles.rows)
        held = total((_sums(p, tiles) for p in products), tiles.rows) / (32 * points.warps)
        many = f"a thread would have {{:.0f}} accumulators; it has {REGISTERS} registers"
        violations.append(Violation(held > REGISTERS, "block", many, (held,)))
        estimate, needed, most = _registers(info, tiles, target, products, threads)
    registers = np.minimum(REGISTERS, estimate)
    resident = occupancy(target, threads, registers, shared)
    if points.atom == "wgmma":
        resident = np.minimum(resident, _at_launch(tiles, target, products, threads))
    text = (
        "{} blocks of {} threads with some {} registers each and {:.0f} bytes of shared memory do not fit on a"
        f" multiprocessor of {target.name}"
    )
    columns = (points.blocks_per_sm, threads, registers, shared)
    violations.append(Violation(resident < points.blocks_per_sm, "blocks_per_sm", text, columns))
    # Launch bounds tell ptxas the number of threads, so that it uses only as many registers as fit.
    fitting = np.where(resident == 0, REGISTERS_PER_SM // threads, registers)
    resident = np.where(resident == 0, occupancy(target, threads, fitting // 8 * 8, shared), resident)
    spills = needed > most
    return Resources(fitting, spills, shared.astype(np.int64), np.maximum(1, resident).astype(np.int64), violations)


def _of_row_cache(row_bytes: Floats, target: Target) -> Iterator[Violation]:
    """Yields the violations of a row cache that takes `row_bytes` of shared memory."""
    room = target.shared_per_block - ROW_EXCHANGE_BYTES
    yield Violation(row_bytes == 0, "cache_rows", "no two loops read the same chunks, so there is nothing to keep")
    row = "the chunks of a row take {:.0f} bytes of shared memory; " + (
        f"{target.name} has {room} for a block, beside what warps exchange"
    )
    yield Violation(row_bytes > room, "cache_rows", row, (row_bytes,))


def _staged_bytes(info: NestInfo, tiles: Tiles, products: list[Matmul]) -> tuple[Floats, Ints]:
    """Returns the bytes of shared memory for operands and results of matmuls, and the threads of a block.

    With TMA, the threads include a producer warpgroup.
    """
    points, threads = tiles.points, 32 * tiles.points.warps
    shared = staged(tiles, products).bytes(points) if products else np.zeros(tiles.rows)
    if points.copy == "tma":
        threads = threads + 32 * WARPGROUP
        shared = shared + (_outgoing(info, tiles, products) if points.cluster_k == 1 else 0)
        shared = shared + (BARRIER_BYTES if len(info.reductions) == len(products) else EXCHANGE_BYTES)
    return shared, threads


def _row_registers(info: NestInfo, tiles: Tiles, target: Target, threads: Ints) -> tuple[Ints, Floats]:
    """Returns the minimum registers of a thread without matmuls, and the number that ptxas uses if it has no limit.

    The minimum holds the largest tile. Without a limit, ptxas takes more registers for bounds checks of single
    elements, and in loops over tiles, where it issues loads of the next tile early.
    """
    use = target.registers
    sets = [info.free, *({*r.outer_indices, *r.indices} for r in info.reductions)]
    held = largest((tiles.elements(indices) for indices in sets), tiles.rows) / threads
    sources = len({op.source for op in info.loads})
    walks = np.any([n > 1 for n in tiles.steps.values()], axis=0)
    tails = np.any([n % tiles.tile[i] != 0 for i, n in info.extents.items()], axis=0)
    least = np.rint(use.rows + held * (1.0 if sources <= 2 else 1.5)).astype(np.int64)
    free = use.rows + np.where(walks, use.walk + 2 * (1 + min(2, sources)) * held, np.where(tails, 2 * held, 0))
    return least, np.maximum(least, free)


def _registers(
    info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul], threads: Ints
) -> tuple[Ints, Floats, Ints]:
    """Returns three numbers of registers of a thread: the estimate, the minimum, and the maximum that it can have."""
    points, use = tiles.points, target.registers
    most = np.minimum(REGISTERS, REGISTERS_PER_SM // threads)
    if products:
        estimate = needed = _matmul_registers(info, tiles, target, products, threads)
    else:
        estimate, needed = _row_registers(info, tiles, target, threads)
    if points.atom == "wgmma":
        # Accumulators that are an operand of the next matmul exist a second time, rounded to 16 bits.
        sums = (_sums(p, tiles) * (1.0 if p.reduction.outermost else 1.5) for p in products)
        held = total(sums, tiles.rows) / (32 * points.warps)
        needed = held + _split_registers(tiles, products) + use.computing
        counts, warp_group = np.unique(points.warps, return_inverse=True)
        most = np.array([consumer_registers(int(n)) for n in counts])[warp_group]
    matmuls = {p.reduction.op for p in products}
    computed = {counted.op for counted in info.operations} - matmuls if products else set[Operation]()
    sets = [r.outer_indices | set(r.indices) for r in info.reductions if r.op in computed]
    reduced = largest((use.rows + tiles.elements(indices) / threads for indices in sets), tiles.rows)
    return estimate, np.maximum(needed, reduced), most


def _matmul_registers(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul], threads: Ints) -> Ints:
    """Returns the estimated registers of a thread with matmuls."""
    points, rows, use = tiles.points, tiles.rows, target.registers
    operands, base = np.zeros(rows), np.full(rows, use.sums)
    for p in products:
        on = on_tensor_cores(p, tiles)
        fragments = 1.0 * (points.thread.sum(axis=1) if points.thread.size else 4) * ~on
        if points.atom == "mma":
            base = np.where(on, use.atoms, base)
            warp = warp_tile(tiles.tile[p.row], tiles.tile[p.column], points.warps)
            fragments = np.where(on, sum(warp) / 4, fragments)
        operands = np.maximum(operands, fragments)
    if len(info.reductions) > 1:
        more = use.fused if len(products) == 1 else use.nested
        base = base + (use.fused_atoms if points.atom == "mma" else more)
    waiting = np.any([_sums(p, tiles) > p.sums(tiles) for p in products], axis=0)
    base = base + np.where(waiting, use.waiting, 0)
    sums = total((_sums(p, tiles) / threads for p in products), rows)
    return np.rint(base + sums + operands).astype(np.int64)


def _split_registers(tiles: Tiles, products: list[Matmul]) -> Floats:
    """Returns the registers of a thread for an f32 operand that it splits, and for one of its bf16 parts."""
    if tiles.points.f32_matmul_precision != "bf16x3":
        return np.zeros(tiles.rows)
    factors = [f for p in products for f in p.factors if any(map(is_wide, loads_of(f, narrow=True)))]
    elements = largest((tiles.elements(tiles.info.dependence.of(f)) for f in factors), tiles.rows)
    return 1.5 * elements / (32 * tiles.points.warps)


def _at_launch(tiles: Tiles, target: Target, products: list[Matmul], threads: Ints) -> Ints:
    """Returns the blocks that fit with the registers that threads have at the launch, before `setmaxnreg`."""
    use = target.registers
    sums = largest((p.sums(tiles) for p in products), tiles.rows) / (32 * tiles.points.warps)
    least = np.ceil((np.minimum(sums, use.accumulators) + use.beside_accumulators) / 8).astype(np.int64)
    return np.maximum(1, REGISTERS_PER_SM // (threads * np.maximum(1, least) * 8))


def _sums(p: Matmul, tiles: Tiles) -> Ints:
    """Returns the accumulators of a matmul in the registers of a block, with a second set if it has partial sums."""
    return p.sums(tiles) * (1 + is_promoted(p, tiles)) - _parked(p, tiles)


def _parked(p: Matmul, tiles: Tiles) -> Ints:
    """Returns the accumulators of a matmul that are stored in shared memory (`promotion_memory = shared`)."""
    return p.sums(tiles) * (is_promoted(p, tiles) & (tiles.points.promotion_memory == "shared"))


def _outgoing(info: NestInfo, tiles: Tiles, products: list[Matmul]) -> Floats:
    """Returns the bytes of shared memory of a TMA epilogue.

    The epilogue stores the result in parts, each with one TMA row for every row of the tile, and has two buffers for
    each 16-bit or 8-bit type of a result, or of a tensor that is loaded for it. Results of f32 need no buffers.
    """
    matmul = next(((p.row, p.column) for p in products if p.row in info.free and p.column in info.free), ())
    columns = tiles.tile[max(matmul, key=info.free.index)] if matmul else 1
    elements = tiles.elements(info.free)
    loaded = [op.source.type for op in info.loads if matmul and {*matmul} <= {*access_indices(op)}]
    types = dict.fromkeys(element_type(t) for t in (*(r.type for r in info.nest.res), *loaded))
    sizes = [size for t in types if (size := element_bytes(t)) < 4]
    return total(
        (np.minimum(elements * n, EPILOGUE_BUFFERS * EPILOGUE_ROW * elements // columns) for n in sizes), tiles.rows
    )


@dataclass(frozen=True)
class Staged:
    """Operands of matmuls in shared memory.

    early   bytes of one stage of the operands that asynchronous copies can bring before their use
    late    bytes of all other operands
    chunks  maximum number of chunks of the early operands
    """

    early: Floats
    late: Floats
    chunks: Floats

    def bytes(self, points: Points) -> Floats:
        """Returns the bytes of all operands, with the stages of the schedules."""
        return self.early * (points.stages if points.copy != "sync" else 1) + self.late


def staged(tiles: Tiles, products: list[Matmul]) -> Staged:
    """Returns the operands of `products` that are staged in shared memory."""
    info, points, rows = tiles.info, tiles.points, tiles.rows
    narrow = points.atom != "fma"
    inner = {r.op for r in info.reductions if r.contraction is not None}
    early, late, most = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for p, factor in ((p, f) for p in products for f in p.factors):
        tf32 = narrow and is_tf32(p, points.f32_matmul_precision)
        if narrow and uses_matmul_result(factor, inner):
            continue
        loads = loads_of(factor, narrow and not tf32)
        indices = info.dependence.of(factor)
        bytes_each = sum(element_bytes(load.source.type) for load in loads) if loads else 4
        size = tiles.elements(indices) * bytes_each
        chunks = tiles.trip_count(i for i in indices if i not in tiles.counts)
        if narrow and points.f32_matmul_precision == "bf16x3" and any(map(is_wide, loads)):
            late = late + size * PART_BYTES // 4
        else:
            is_early = (chunks > 1) & bool(loads)
            early, most = early + size * is_early, np.maximum(most, chunks * is_early)
            late = late + size * ~is_early
    return Staged(early, late, most)


def reused_bytes(tiles: Tiles) -> Floats:
    """Returns the bytes of a row cache: all chunks of tensors that more than one loop of a block reads."""
    info, cache_bytes, none = tiles.info, np.zeros(tiles.rows), np.zeros(tiles.rows, dtype=np.bool_)
    looped: list[Bools] = []
    for site in info.sites:
        several = {i: tiles.steps[i] > 1 for i in site.indices}
        unknown = [s for i, s in several.items() if not isinstance(info.sizes[i], int)]
        looped.append(np.logical_or.reduce([none, *several.values()]) & ~np.logical_or.reduce([none, *unknown]))
    for n, site in enumerate(info.sites):
        first, shared = looped[n], none
        for m in (m for m in site.similar if m != n):
            other = info.sites[m]
            same = looped[m] & tiles.same(site, other)
            first = first & ~same if m < n else first
            shared = shared | same if other.group != site.group else shared
        size = product((tiles.tile[i] * tiles.steps[i] for i in site.indices), tiles.rows)
        cache_bytes += np.where(first & shared, size * element_bytes(site.op.source.type), 0)
    return cache_bytes
