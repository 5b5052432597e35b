"""What a block takes of a multiprocessor under a schedule: registers, shared memory, and so how many run at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...dialects.kernel.warp_specialize import WARPGROUP, consumer_registers
from ...dialects.loop.dependence import access_indices
from ...dialects.payload import element_bytes, element_type
from ...dialects.target import REGISTERS, Target, occupancy
from ..analysis.tma_tiles import EPILOGUE_BUFFERS, EPILOGUE_ROW
from .compute import on_tensor_cores, warp_tile
from .matmul import Matmul
from .nest_info import NestInfo
from .points import Bools, Floats, Ints, largest, total
from .smem_reuse import load_sites, reused_bytes
from .staging import staged
from .tiles import Tiles

FUSED, NESTED = 40, 60
"""Registers more where other reductions are computed beside a product, and where one product is a factor of another."""

ROWS, SUMS, ATOMS = 30, 38, 52
"""Registers for addresses, counters and what is just being computed: without products, with them, on tensor cores."""


WIDEST, BESIDE = 128, 32
"""Accumulators that one product of a warpgroup writes in a thread, at most, and registers that the thread needs beside
them. All of them are there at the launch: ptxas compiles no such instruction for fewer (C7602), whatever `setmaxnreg`
gives its warps."""


AHEAD = 10
"""Registers more of a thread that walks on, for where it is."""

COMPUTING = 40
"""Registers of a thread of a warpgroup beside its accumulators, while it computes."""

BARRIERS, EXCHANGES = 1024, 4096
"""Bytes of the mbarriers of rings and what alignment leaves free; with what warps exchange for other reductions."""


EXCHANGED = 1024
"""Bytes for what warps exchange beside a row in shared memory."""


@dataclass(frozen=True)
class Violation:
    """A decision that schedules cannot have: `where`, the field of the schedule, and why, by the schedule's row."""

    where: Bools
    argument: str
    reason: Callable[[int], str]


@dataclass(frozen=True)
class Resources:
    """`registers` of a thread (an estimate) and where that is more than one can have (`spills`), `shared` bytes of a
    block, `resident` blocks of a multiprocessor, and what is more than there is."""

    registers: Ints
    spills: Bools
    shared: Floats
    resident: Ints
    violations: list[Violation]


def resources(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Resources:
    """What a block takes."""
    points = tiles.points
    shared = staged(tiles, products).bytes(points)
    threads = 32 * points.warps
    if points.copy == "tma":  # a producer's warps, and parts of results on their way out beside the rings
        threads = threads + 32 * WARPGROUP
        shared = shared + _outgoing(info, tiles, products)
        shared = shared + (BARRIERS if len(info.reductions) == len(products) else EXCHANGES)
    found: list[Violation] = []
    if tiles.kept:
        kept, room = reused_bytes(tiles, load_sites(info)), target.shared_per_block - EXCHANGED
        nothing = "no two loops read the same chunks, so there is nothing to keep"
        row = f"{{:.0f}} bytes of shared memory; {target.name} has {room} for a block, beside what warps exchange"
        found.append(Violation(kept == 0, "cache_rows", lambda _: nothing))
        found.append(Violation(kept > room, "cache_rows", lambda n: "the chunks of a row take " + row.format(kept[n])))
        shared = shared + kept
    found.append(
        Violation(
            shared > target.shared_per_block,
            "stages" if (points.stages > 1).any() else "block",
            lambda n: (
                f"the factors of products take {shared[n]:.0f} bytes of shared memory; {target.name} has"
                f" {target.shared_per_block} for a block"
            ),
        )
    )
    held = total((_accumulators(p, tiles) for p in products), tiles.rows) / (32 * points.warps)
    many = "a thread would keep {:.0f} sums in registers; it has {} of them"
    found.append(Violation(held > REGISTERS, "block", lambda n: many.format(held[n], REGISTERS)))
    estimate = _registers(info, tiles, products, threads)
    registers = np.minimum(REGISTERS, estimate)
    needed = estimate if products else np.maximum(estimate, _unrolled_registers(info, tiles, threads))
    spills = needed > np.minimum(REGISTERS, target.registers_per_sm // threads)
    if points.atom == "wgmma":
        spills = _held(tiles, products) + COMPUTING > _consumer_registers(points.warps)
    resident = occupancy(target, threads, registers, shared)
    if points.atom == "wgmma":
        sums = largest((_accumulators(p, tiles) for p in products), tiles.rows) / (32 * points.warps)
        at_launch = np.maximum(1, np.ceil((np.minimum(sums, WIDEST) + BESIDE) / 8)).astype(np.int64) * 8
        resident = np.minimum(resident, np.maximum(1, target.registers_per_sm // (threads * at_launch)))
    wanted = points.blocks_per_sm
    text = (
        "{} blocks of {} threads with some {} registers each and {:.0f} bytes of shared memory do not fit on a"
        f" multiprocessor of {target.name}"
    )
    found.append(
        Violation(
            resident < wanted,
            "blocks_per_sm",
            lambda n: text.format(wanted[n], threads[n], registers[n], shared[n]),
        )
    )
    # The compiler is told the number of threads, and will not take more registers than fit.
    given = np.where(resident == 0, target.registers_per_sm // threads, registers)
    resident = np.where(resident == 0, occupancy(target, threads, given // 8 * 8, shared), resident)
    return Resources(given, spills, shared, np.maximum(1, resident), found)


def _largest_tile(info: NestInfo, tiles: Tiles) -> Floats:
    """Elements of the largest tile, of the result or in a reduction."""
    sets = [info.free, *({*r.around, *r.indices} for r in info.reductions)]
    return largest((tiles.elements(indices) for indices in sets), tiles.rows)


def _unrolled_registers(info: NestInfo, tiles: Tiles, threads: Ints) -> Floats:
    """Registers of a thread without matmuls if the compiler is free to use them: for tiles of two tensors, for sums,
    and for which elements there are; where a block walks on, for the next tiles as well."""
    held = _largest_tile(info, tiles) / threads
    walks = np.any([n > 1 for n in tiles.steps.values()], axis=0)
    tails = np.any([n % tiles.tile[i] != 0 for i, n in info.extents.items()], axis=0)
    sources = min(2, len({op.source for op in info.loads}))
    return ROWS + np.where(walks, AHEAD + 2 * (1 + sources) * held, np.where(tails, 2 * held, 0))


def _held(tiles: Tiles, products: list[Matmul]) -> Floats:
    """Registers of a thread of a warpgroup for the accumulators of all matmuls, and for those that are an operand of
    the next one, rounded to half of their size."""
    sums = (_accumulators(p, tiles) * (1.0 if p.reduction.outermost else 1.5) for p in products)
    return total(sums, tiles.rows) / (32 * tiles.points.warps)


def _consumer_registers(warps: Ints) -> Ints:
    """Registers of a thread of so many warps beside those that copy."""
    counts, each = np.unique(warps, return_inverse=True)
    return np.array([consumer_registers(int(n)) for n in counts])[each]


def _outgoing(info: NestInfo, tiles: Tiles, products: list[Matmul]) -> Floats:
    """Bytes of the parts of results that are on their way out through shared memory at a time, and of what is loaded
    beside them: two of each type, each of a row of a box for every row of the tile. What is in f32 needs none."""
    found = next(((p.row, p.column) for p in products if p.row in info.free and p.column in info.free), ())
    columns = tiles.tile[max(found, key=info.free.index)] if found else 1
    elements = tiles.elements(info.free)
    beside = [op.source.type for op in info.loads if found and {*found} <= {*access_indices(op)}]
    types = dict.fromkeys(element_type(t) for t in (*(r.type for r in info.nest.res), *beside))
    sizes = [size for t in types if (size := element_bytes(t)) < 4]
    return total(
        (np.minimum(elements * n, EPILOGUE_BUFFERS * EPILOGUE_ROW * elements // columns) for n in sizes), tiles.rows
    )


def _registers(info: NestInfo, tiles: Tiles, products: list[Matmul], threads: Ints) -> Ints:
    points, rows = tiles.points, tiles.rows
    if not products:
        elements = _largest_tile(info, tiles)
        sources = len({op.source for op in info.loads})
        each = 1.0 if sources <= 2 else 1.5
        return np.rint(ROWS + elements / threads * each).astype(np.int64)
    operands, base = np.zeros(rows), np.full(rows, SUMS)
    for p in products:
        on = on_tensor_cores(p, tiles)
        fragments = 1.0 * (points.thread.sum(axis=1) if points.thread.size else 4) * ~on
        if points.atom == "mma":
            base = np.where(on, ATOMS, base)
            fragments = np.where(
                on, sum(warp_tile(tiles.tile[p.row], tiles.tile[p.column], points.warps)) / 4, fragments
            )
        operands = np.maximum(operands, fragments)
    if len(info.reductions) > 1:
        base = base + (FUSED if len(products) == 1 else NESTED)
    sums = total((_accumulators(p, tiles) / threads for p in products), rows)
    return np.rint(base + sums + operands).astype(np.int64)


def _accumulators(p: Matmul, tiles: Tiles) -> Ints:
    """Sums of a product in the registers of a block at once."""
    return tiles.tile[p.row] * tiles.tile[p.column]
