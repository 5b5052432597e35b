"""What a block takes of a multiprocessor under a schedule, what lies between the kernels that it makes of a nest, and
which schedules can be carried out on a target: the same for those that the planner considers, one that a person wrote,
and one from a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.ir import Operation

from ...dialects.kernel.host import aligned
from ...dialects.kernel.warp_specialize import WARPGROUP, consumer_registers
from ...dialects.loop.dependence import access_indices
from ...dialects.payload import element_bytes, element_type, tensor_bytes
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...target.model import REGISTERS, REGISTERS_PER_SM, Target, occupancy
from ..analysis.cluster_rows import no_parts, no_shared_rows, shared_sums
from ..analysis.host_memory import SCRATCH_LIMIT, HostMemory, limit_of, set_limit
from ..analysis.nest_schedule import find_split, splittable, stages_of
from ..analysis.operand_types import PARTS, STORED, wide_factors
from ..analysis.packed_operands import copies, packable_loads
from ..analysis.tma_tiles import EPILOGUE_BUFFERS, EPILOGUE_ROW
from .compute import on_tensor_cores, warp_tile
from .matmul import Matmul
from .nest_info import NestInfo
from .points import Bools, Floats, Ints, Points, largest, plan_of, points_of, total
from .promotion import is_promoted
from .staging import is_wide, loads_of, reused_bytes, staged
from .tiles import Tiles

LARGEST_TILE = 1 << 18
"""Elements of a tile; more than the registers of a multiprocessor could hold several times over."""

LARGEST_ON_CORE = 1 << 17
"""Elements of a tile where it is an array on the stack of one thread, which has some of them."""

MOST_STAGES = 8
"""Stages of a pipeline of copies: more groups than these are not told apart."""

FUSED, NESTED, FUSED_ATOMS = 40, 60, 20
"""Registers more where other reductions are computed beside a product, where one product is a factor of another, and in
both cases with `mma.sync`, where ptxas was seen to need less."""

ROWS, SUMS, ATOMS = 30, 38, 52
"""Registers for addresses, counters and what is just being computed: without products, with them, on tensor cores."""


WAITING = 14
"""Registers more of a thread whose accumulators wait for partial sums: ptxas takes 126 to 130 where 32 do."""

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
    """A decision that schedules cannot have: `where`, the field of the schedule, and why, a text with the numbers of
    the schedule's row in `columns`."""

    where: Bools
    argument: str
    reason: str
    columns: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Resources:
    """`registers` of a thread (an estimate) and where that is more than one can have (`spills`), `shared` bytes of a
    block, `resident` blocks of a multiprocessor, and what is more than there is."""

    registers: Ints
    spills: Bools
    shared: Ints
    resident: Ints
    violations: list[Violation]


def resources(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Resources:
    """What a block takes."""
    points = tiles.points
    shared = staged(tiles, products).bytes(points) if products else np.zeros(tiles.rows)
    threads = 32 * points.warps
    if points.copy == "tma":  # a producer's warps, and parts of results on their way out beside the rings
        threads = threads + 32 * WARPGROUP
        shared = shared + (_outgoing(info, tiles, products) if points.cluster_k == 1 else 0)
        shared = shared + (BARRIERS if len(info.reductions) == len(products) else EXCHANGES)
    shared = shared + tiles.exchanged
    found: list[Violation] = []
    if tiles.kept:
        kept, room = reused_bytes(tiles), target.shared_per_block - EXCHANGED
        nothing = "no two loops read the same chunks, so there is nothing to keep"
        row = "the chunks of a row take {:.0f} bytes of shared memory; " + (
            f"{target.name} has {room} for a block, beside what warps exchange"
        )
        found.append(Violation(kept == 0, "cache_rows", nothing))
        found.append(Violation(kept > room, "cache_rows", row, (kept,)))
        shared = shared + kept
    argument = "stages" if (points.stages > 1).any() else "block"
    much = "the factors of products take {:.0f} bytes of shared memory; " + (
        f"{target.name} has {target.shared_per_block} for a block"
    )
    found.append(Violation(shared > target.shared_per_block, argument, much, (shared,)))
    shared = shared + total((4 * _parked(p, tiles) for p in products), tiles.rows)
    held = total((_sums(p, tiles) for p in products), tiles.rows) / (32 * points.warps)
    many = f"a thread would keep {{:.0f}} sums in registers; it has {REGISTERS} of them"
    found.append(Violation(held > REGISTERS, "block", many, (held,)))
    if products:
        estimate = needed = _registers(info, tiles, products, threads)
    else:
        estimate, needed = _row_registers(info, tiles, threads)
    registers = np.minimum(REGISTERS, estimate)
    most = np.minimum(REGISTERS, REGISTERS_PER_SM // threads)
    if points.atom == "wgmma":
        needed = _held(tiles, products) + _split_registers(tiles, products) + COMPUTING
        most = _consumer_registers(points.warps)
    spills = np.maximum(needed, _reduced_registers(info, tiles, products, threads)) > most
    resident = occupancy(target, threads, registers, shared)
    if points.atom == "wgmma":
        sums = largest((_accumulators(p, tiles) for p in products), tiles.rows) / (32 * points.warps)
        at_launch = np.maximum(1, np.ceil((np.minimum(sums, WIDEST) + BESIDE) / 8)).astype(np.int64) * 8
        resident = np.minimum(resident, np.maximum(1, REGISTERS_PER_SM // (threads * at_launch)))
    text = (
        "{} blocks of {} threads with some {} registers each and {:.0f} bytes of shared memory do not fit on a"
        f" multiprocessor of {target.name}"
    )
    columns = (points.blocks_per_sm, threads, registers, shared)
    found.append(Violation(resident < points.blocks_per_sm, "blocks_per_sm", text, columns))
    # The compiler is told the number of threads, and will not take more registers than fit.
    given = np.where(resident == 0, REGISTERS_PER_SM // threads, registers)
    resident = np.where(resident == 0, occupancy(target, threads, given // 8 * 8, shared), resident)
    return Resources(given, spills, shared.astype(np.int64), np.maximum(1, resident).astype(np.int64), found)


def _largest_tile(info: NestInfo, tiles: Tiles) -> Floats:
    """Elements of the largest tile, of the result or in a reduction."""
    sets = [info.free, *({*r.around, *r.indices} for r in info.reductions)]
    return largest((tiles.elements(indices) for indices in sets), tiles.rows)


def _tile_elements(info: NestInfo, tiles: Tiles) -> Floats:
    """The same without sums of products, of which no tile has all indices."""
    around = [r.around | set(r.indices) for r in info.reductions if r.contraction is None]
    return largest((tiles.elements(indices) for indices in (info.free, *around)), tiles.rows)


def _row_registers(info: NestInfo, tiles: Tiles, threads: Ints) -> tuple[Ints, Floats]:
    """Registers of a thread without matmuls: for the largest tile, and if the compiler is free to use them, for which
    elements there are, and where a block walks on for the tiles of two tensors and the next ones as well."""
    held = _largest_tile(info, tiles) / threads
    sources = len({op.source for op in info.loads})
    walks = np.any([n > 1 for n in tiles.steps.values()], axis=0)
    tails = np.any([n % tiles.tile[i] != 0 for i, n in info.extents.items()], axis=0)
    least = np.rint(ROWS + held * (1.0 if sources <= 2 else 1.5)).astype(np.int64)
    free = ROWS + np.where(walks, AHEAD + 2 * (1 + min(2, sources)) * held, np.where(tails, 2 * held, 0))
    return least, np.maximum(least, free)


def _reduced_registers(info: NestInfo, tiles: Tiles, products: list[Matmul], threads: Ints) -> Floats:
    """Registers of a thread for the largest tile that a reduction sums without a matmul, beside matmuls."""
    matmuls = {p.reduction.op for p in products}
    computed = {counted.op for counted in info.operations} - matmuls if products else set[Operation]()
    sets = [r.around | set(r.indices) for r in info.reductions if r.op in computed]
    return largest((ROWS + tiles.elements(indices) / threads for indices in sets), tiles.rows)


def _held(tiles: Tiles, products: list[Matmul]) -> Floats:
    """Registers of a thread of a warpgroup for the accumulators of all matmuls, and for those that are an operand of
    the next one, rounded to half of their size."""
    sums = (_sums(p, tiles) * (1.0 if p.reduction.outermost else 1.5) for p in products)
    return total(sums, tiles.rows) / (32 * tiles.points.warps)


def _split_registers(tiles: Tiles, products: list[Matmul]) -> Floats:
    """Registers of a thread for the f32 operand that is split on its way to shared memory, and one of its parts."""
    if tiles.points.f32_matmul_precision != "bf16x3":
        return np.zeros(tiles.rows)
    factors = [f for p in products for f in p.factors if any(map(is_wide, loads_of(f, narrow=True)))]
    elements = largest((tiles.elements(tiles.info.dependence.of(f)) for f in factors), tiles.rows)
    return 1.5 * elements / (32 * tiles.points.warps)


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
    """Registers of a thread with matmuls."""
    points, rows = tiles.points, tiles.rows
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
        more = FUSED if len(products) == 1 else NESTED
        base = base + (FUSED_ATOMS if points.atom == "mma" else more)
    waiting = np.any([_sums(p, tiles) > _accumulators(p, tiles) for p in products], axis=0)
    base = base + np.where(waiting, WAITING, 0)
    sums = total((_sums(p, tiles) / threads for p in products), rows)
    return np.rint(base + sums + operands).astype(np.int64)


def _accumulators(p: Matmul, tiles: Tiles) -> Ints:
    """Sums of a product that one instruction or one loop over k adds to."""
    return tiles.tile[p.row] * tiles.tile[p.column]


def _sums(p: Matmul, tiles: Tiles) -> Ints:
    """Sums of a product in the registers of a block at once: with those of the result where they are promoted."""
    return _accumulators(p, tiles) * (1 + is_promoted(p, tiles)) - _parked(p, tiles)


def _parked(p: Matmul, tiles: Tiles) -> Ints:
    """Accumulators of a product that wait for partial sums in shared memory."""
    return _accumulators(p, tiles) * (is_promoted(p, tiles) & (tiles.points.promotion_memory == "shared"))


def check(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> tuple[Resources, list[Violation]]:
    """What a block of each schedule takes, and which decisions cannot be carried out, and why. `tiles` are those of the
    schedules, `products` the distinct ones that are matrix products in these."""
    takes = resources(info, tiles, target, products)
    clusters = _cluster(info, tiles, target, products) if tiles.points.cluster * tiles.points.cluster_k > 1 else ()
    return takes, [*_tiles(info, tiles), *clusters, *takes.violations, *_carried_out(info, tiles, target)]


def check_on_core(info: NestInfo, tiles: Tiles, target: Target) -> list[Violation]:
    """Which decisions cannot be carried out where a block is one thread, and why."""
    points = tiles.points
    one = "a block of {} warps; on {} it is a single thread: lanes = 1, warps = 1"
    several = (points.warps > 1) | (points.lanes > 1)
    names = np.full(tiles.rows, target.name)
    elements = _tile_elements(info, tiles)
    large = f"a tile of {{:.0f}} elements; a core has room for {LARGEST_ON_CORE} beside others"
    found = [Violation(several, "warps", one, (points.warps, names))]
    found.append(Violation(elements > LARGEST_ON_CORE, "block", large, (elements,)))
    found += [
        *_tiles(info, tiles),
        *(_cluster(info, tiles, target, []) if points.cluster * points.cluster_k > 1 else ()),
    ]
    return [*found, *_carried_out(info, tiles, target)]


def _carried_out(info: NestInfo, tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Violations of what only some schedules ask for: parts, copies that run ahead, atoms, and a limit of scratch."""
    points = tiles.points
    if tiles.kept or (points.split_k > 1).any():
        yield from _split(info, tiles)
    if points.copy != "sync" or points.atom != "fma" or (points.stages > 1).any():
        yield from _copies(tiles, target)
    if SCRATCH_LIMIT in info.nest.attributes:
        yield from _scratch(info, tiles)


def violated(violations: list[Violation], rows: int) -> Bools:
    """Which schedules cannot be carried out."""
    return np.logical_or.reduce([np.zeros(rows, dtype=np.bool_), *(v.where for v in violations)])


def raise_first(violations: list[Violation], row: int = 0) -> None:
    """Raise ScheduleError for the first violation of the schedule in `row`, if there is one."""
    for v in violations:
        if v.where[row]:
            raise ScheduleError(v.reason.format(*(c[row] for c in v.columns)), argument=v.argument)


def _always(tiles: Tiles, condition: bool, argument: str, reason: str) -> Iterator[Violation]:
    """A violation of what all schedules have in common."""
    if condition:
        yield Violation(np.ones(tiles.rows, dtype=np.bool_), argument, reason)


def _tiles(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Tiles that no block can have."""
    for group in (g for g in info.groups if g[0].sizes):
        chunks = [np.stack([tiles.tile[a] for a in op.body.block.args]) for op in group]
        unequal: Bools = np.any([(c != chunks[0]).any(axis=0) for c in chunks], axis=0)
        yield Violation(unequal, "chunk", "the stages of a staged reduction need equal chunks")
    serial = tiles.points.serial
    if info.scanned is not None:
        own = info.free.index(info.scanned)
        reason = f"one block walks along the index of a scan, and along no other one: serial = [{own}]"
        whole = tiles.tile[info.scanned] >= info.extents[info.scanned]
        varies = info.may_be_longer([info.scanned])
        yield Violation(np.full(tiles.rows, own not in serial) & (varies | ~whole), "serial", reason)
        yield from _always(tiles, bool({*serial} - {own}), "serial", reason)
        yield from _always(tiles, tiles.points.cluster > 1, "cluster", "the blocks of a cluster do not share a scan")
    yield from _always(tiles, len({*serial}) != len(serial), "serial", "an index is listed twice")
    for position in tiles.points.pack:
        reason = packable_loads(info.nest, info.free[position])
        yield from _always(tiles, isinstance(reason, str), "pack", str(reason))
    elements = _tile_elements(info, tiles)
    text = f"a tile of {{:.0f}} elements; at most {LARGEST_TILE} are possible"
    yield Violation(elements > LARGEST_TILE, "block", text, (elements,))


def _cluster(info: NestInfo, tiles: Tiles, target: Target, products: list[Matmul]) -> Iterator[Violation]:
    """Clusters whose blocks have nothing to share, or do not make up the grid."""
    points = tiles.points
    if points.cluster_k > 1:
        yield from _cluster_k(info, tiles, target)
        return
    yield from _always(tiles, not target.has("cluster"), "cluster", f"{target.name} has no clusters of blocks")
    if tiles.ranks > 1:
        reason = "blocks of a cluster share factors of products as boxes: copy = tma"
        yield from _always(tiles, bool(products), "cluster", reason)
        reason = "blocks that share rows are not divided, ordered or kept any further"
        further = (points.split_k > 1) | (points.group_m > 1) | (points.num_ctas > 0)
        yield Violation(further, "cluster", reason)
        shared = tiles.any_of(tiles.shared, info.reduction_indices)
        yield Violation(~shared, "cluster", no_shared_rows(points.cluster))
    elif all(isinstance(info.sizes[i], int) for i in info.free):
        own = (points.num_ctas > 0) & (points.num_ctas < tiles.blocks)  # a grid of persistent blocks
        last: Ints = np.where(own, points.num_ctas, tiles.neighbours()[1])
        text = f"clusters of {points.cluster} blocks do not make up the last extent of the grid, {{}}"
        yield Violation(last % points.cluster != 0, "cluster", text, (last,))


def _cluster_k(info: NestInfo, tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Clusters whose blocks have no sums to share, or no parts of a tile to finish."""
    points, sums = tiles.points, shared_sums(info.nest)
    yield from _always(tiles, not target.has("cluster"), "cluster_k", f"{target.name} has no clusters of blocks")
    yield from _always(tiles, points.cluster > 1, "cluster_k", "the blocks of a cluster share sums or boxes, not both")
    if isinstance(sums, str):
        yield from _always(tiles, True, "cluster_k", sums)
        return
    reason = "blocks that share sums have one tile, which is not divided, ordered or kept any further"
    further = (points.split_k > 1) | (points.group_m > 1) | (points.num_ctas > 0)
    yield Violation(further | bool(points.serial) | tiles.kept, "cluster_k", reason)
    shared = [tiles.any_of(tiles.shared, stage.body.block.args) for op in sums for stage in stages_of(op)]
    yield Violation(~np.logical_and.reduce(shared), "cluster_k", no_shared_rows(points.cluster_k))
    yield Violation(~tiles.any_of(tiles.divides, info.free), "cluster_k", no_parts(points.cluster_k))


def _split(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Divided reductions that cannot be, and atoms of other targets."""
    parts = tiles.points.split_k
    reason = "blocks that share a reduction have no row of their own to keep"
    if tiles.kept:
        yield Violation(parts > 1, "cache_rows", reason)
    for count in map(int, np.unique(parts[parts > 1])):
        try:
            find_split(info.nest, count)
        except ScheduleError as error:
            yield Violation(parts == count, error.argument or "split_k", error.reason)


def _copies(tiles: Tiles, target: Target) -> Iterator[Violation]:
    """Atoms and pipelines of copies that do not exist."""
    points, stages = tiles.points, tiles.points.stages
    yield from _always(
        tiles, points.atom != "fma" and not target.has(points.atom), "atom", f"{target.name} has no {points.atom}"
    )
    lacks = points.copy != "sync" and not target.has(points.copy)
    yield from _always(tiles, lacks, "copy", f"{target.name} has no {points.copy}")
    if points.copy == "sync":
        reason = "synchronous copies do not run ahead: several stages need cp_async"
        yield Violation(stages > 1, "stages", reason)
    many = f"{{}} stages; at most {MOST_STAGES} are possible"
    yield Violation(stages > MOST_STAGES, "stages", many, (stages,))


def _scratch(info: NestInfo, tiles: Tiles) -> Iterator[Violation]:
    """Schedules of which more lies between the kernels of the nest than may."""
    limit, points = limit_of(info.nest, SCRATCH_LIMIT), tiles.points
    if limit is not None:
        taken = scratch_bytes(info, points)
        argument = "pack" if points.pack else "f32_matmul_precision" if points.f32_matmul_precision == STORED else ""
        text = f"{{:.0f}} bytes lie between the kernels of the nest; {SCRATCH_LIMIT} is {limit}"
        yield Violation(taken > limit, argument or "split_k", text, (taken,))


def scratch_bytes(info: NestInfo, points: Points) -> Floats:
    """Bytes of the parts of a divided sum, of factors that are packed before, and of those that are split before."""
    divided = splittable(info.nest)
    stages = () if isinstance(divided, str) else stages_of(divided)
    results = prod(info.extents[i] for i in info.free if i in info.reduced)
    parts = total((aligned(points.split_k * results * element_bytes(op.result.type)) for op in stages), len(points))
    before = [
        aligned(tensor_bytes(r.type)) for i in points.pack for nest in copies(info.nest, info.free[i]) for r in nest.res
    ]
    if points.f32_matmul_precision == STORED:
        before.append(presplit_bytes(info))
    return sum(before) + np.where(points.split_k > 1, parts, 0.0)


def presplit_bytes(info: NestInfo) -> int:
    """Bytes of the factors in parts, of bf16 each, which has half of the bytes of f32."""
    sources = {load.source for load in wide_factors(info.nest)}
    return sum(PARTS * aligned(tensor_bytes(source.type) // 2) for source in sources)


def limit_scratch(info: NestInfo, schedule: ScheduleAttr, memory: Callable[[], HostMemory]) -> bool:
    """Returns true if `schedule` takes more scratch memory than there is room for. The nest then gets a limit."""
    chosen = schedule.data
    if chosen.split_k == 1 and not chosen.pack and chosen.f32_matmul_precision != STORED:
        return False
    (points,), room = points_of([plan_of(schedule)]), memory().room(info.nest)
    if room is None or scratch_bytes(info, points)[0] <= room:
        return False
    set_limit(info.nest, SCRATCH_LIMIT, room)
    return True
