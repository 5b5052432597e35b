"""What a block takes of a multiprocessor under a schedule: registers, shared memory, and so how many run at once."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects.kernel.warp_specialize import WARPGROUP, launch_registers
from ...dialects.payload import element_bytes, element_type
from ...dialects.target import REGISTERS, Target, occupancy
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ..analysis.dependence import access_indices
from ..analysis.tma_tiles import EPILOGUE_BUFFERS, EPILOGUE_ROW
from .compute import atom_of, warp_tile
from .matmul import Matmul
from .nest_info import NestInfo
from .smem_reuse import reused_bytes
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


BARRIERS, EXCHANGES = 1024, 4096
"""Bytes of the mbarriers of rings and what alignment leaves free; with what warps exchange for other reductions."""


EXCHANGED = 1024
"""Bytes for what warps exchange beside a row in shared memory."""


@dataclass(frozen=True)
class Resources:
    """`registers` of a thread (an estimate), `shared` bytes of a block, and `resident` blocks on a multiprocessor."""

    registers: int
    shared: int
    resident: int


def resources(
    info: NestInfo, tiles: Tiles, schedule: ScheduleAttr, target: Target, products: list[Matmul]
) -> Resources:
    """What a block takes; raises ScheduleError, saying of what, if it needs more than there is."""
    shared = staged(info, schedule, products).bytes(schedule)
    threads = 32 * schedule.warps.data
    if schedule.copy.data == "tma":  # a producer's warps, and parts of results on their way out beside the rings
        threads += 32 * WARPGROUP
        shared += _outgoing(info, tiles, products) + (BARRIERS if len(info.reductions) == len(products) else EXCHANGES)
    kept = reused_bytes(info, tiles) if tiles.kept else 0
    if tiles.kept and not kept:
        raise ScheduleError("no two loops read the same chunks, so there is nothing to keep", argument="cache_rows")
    if kept > target.shared_per_block - EXCHANGED:
        raise ScheduleError(
            f"the chunks of a row take {kept} bytes of shared memory; {target.name} has"
            f" {target.shared_per_block - EXCHANGED} for a block, beside what warps exchange",
            argument="cache_rows",
        )
    shared += kept
    if shared > target.shared_per_block:
        raise ScheduleError(
            f"the factors of products take {shared} bytes of shared memory; {target.name} has {target.shared_per_block}"
            " for a block",
            argument="stages" if schedule.stages.data > 1 else "block",
        )
    held = sum(_accumulators(p, tiles) for p in products) / (32 * schedule.warps.data)
    if held > REGISTERS:
        raise ScheduleError(
            f"a thread would keep {held:.0f} sums in registers; it has {REGISTERS} of them", argument="block"
        )
    registers = min(REGISTERS, _registers(info, tiles, schedule, products, threads))
    resident = occupancy(target, threads, registers, shared)
    if schedule.atom.data == "wgmma":
        largest = max((_accumulators(p, tiles) / (32 * schedule.warps.data) for p in products), default=0)
        while resident > 1 and launch_registers(threads, resident) < min(largest, WIDEST) + BESIDE:
            resident -= 1
    if resident < (wanted := schedule.blocks_per_sm.data):
        raise ScheduleError(
            f"{wanted} blocks of {threads} threads with some {registers} registers each and {shared} bytes of shared"
            f" memory do not fit on a multiprocessor of {target.name}",
            argument="blocks_per_sm",
        )
    if resident == 0:  # the compiler is told the number of threads, and will not take more than fits
        registers = target.registers_per_sm // threads
        resident = occupancy(target, threads, registers // 8 * 8, shared)
    return Resources(registers, shared, max(1, resident))


def _outgoing(info: NestInfo, tiles: Tiles, products: list[Matmul]) -> int:
    """Bytes of the parts of results that are on their way out through shared memory at a time, and of what is loaded
    beside them: two of each type, each of a row of a box for every row of the tile. What is in f32 needs none."""
    found = next(((p.row, p.column) for p in products if p.row in info.free and p.column in info.free), ())
    columns = tiles.tile[max(found, key=info.free.index)] if found else 1
    total = tiles.elements(info.free)
    beside = [op.source.type for op in info.loads if found and {*found} <= {*access_indices(op)}]
    types = dict.fromkeys(element_type(t) for t in (*(r.type for r in info.nest.res), *beside))
    sizes = [size for t in types if (size := element_bytes(t)) < 4]
    return sum(min(total * size, EPILOGUE_BUFFERS * total // columns * EPILOGUE_ROW) for size in sizes)


def _registers(info: NestInfo, tiles: Tiles, schedule: ScheduleAttr, products: list[Matmul], threads: int) -> int:
    if not products:
        largest = max([tiles.elements(info.free), *(tiles.elements({*r.around, *r.indices}) for r in info.reductions)])
        sources = len({op.source for op in info.loads})
        return round(ROWS + largest / threads * (1 if sources <= 2 else 1.5))
    total = operands = 0.0
    base = SUMS
    for p in products:
        total += _accumulators(p, tiles) / threads
        rows, columns = tiles.tile[p.row], tiles.tile[p.column]
        if atom_of(p, tiles, schedule) == "mma":
            base = ATOMS
            operands = max(operands, sum(warp_tile(rows, columns, schedule.warps.data)) / 4)
        elif atom_of(p, tiles, schedule) == "fma":
            operands = max(operands, 1.0 * sum([v.data for v in schedule.thread] or [2, 2]))
    if len(info.reductions) > 1:
        base += FUSED if len(products) == 1 else NESTED
    return round(base + total + operands)


def _accumulators(p: Matmul, tiles: Tiles) -> int:
    """Sums of a product in the registers of a block at once."""
    return tiles.tile[p.row] * tiles.tile[p.column]
