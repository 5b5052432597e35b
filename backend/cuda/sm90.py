"""What sm_90a has beside tensor cores, as C++: mbarriers, boxes through tensor maps, partitions and clusters."""

from __future__ import annotations

from xdsl.ir import Region

from ...dialects.kernel import (
    AdvanceOp,
    BulkCommitOp,
    BulkWaitOp,
    ClusterBarrierOp,
    FenceAsyncOp,
    FenceMbarInitOp,
    FuncOp,
    GroupBarrierOp,
    MapaOp,
    MbarArriveOp,
    MbarExpectOp,
    MbarInitOp,
    MbarWaitOp,
    TensorMapOp,
    TmaLoadOp,
    TmaStoreOp,
    WarpSpecializeOp,
)
from ...dialects.kernel.mbarrier import MbarrierOp
from ...dialects.kernel.warp_specialize import launch_registers, partition_of
from .control import print_block
from .memory import memory_name
from .names import sanitise
from .statements import Statements, add_calls, add_pointer, add_printer, element_address, nothing
from .types import ADD, EQUALITY, MUL, UNARY
from .writer import Place


def cluster_bounds(func: FuncOp) -> str:
    """What the head of a kernel says about its clusters; a plain launch then makes them."""
    return f"__cluster_dims__({func.cluster_size}, 1, 1) " if func.cluster_size > 1 else ""


def _barrier(statements: Statements, op: MbarrierOp | TmaLoadOp) -> str:
    """`&full[slot]`"""
    return f"&{memory_name(statements.writer, op.barriers)}[{statements.writer.read(op.index).text}]"


def _wait(statements: Statements, op: MbarWaitOp) -> str:
    """Waiting for a phase; for what threads of other blocks have done, if they tell of it."""
    others = [u.operation for u in op.barriers.uses if isinstance(u.operation, MbarArriveOp) and u.operation.rank]
    told = any(isinstance(o, MbarArriveOp) and o.asynchronous is None for o in others)
    helper = "mbar_wait_cluster" if told else "mbar_wait"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.parity).text})"


def _arrive(statements: Statements, op: MbarArriveOp) -> str:
    """Arriving, at the block's own barrier or another's."""
    if op.rank is None:
        return f"mbar_arrive({_barrier(statements, op)})"
    helper = "mbar_arrive_at" if op.asynchronous is None else "mbar_signal_at"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.rank).text})"


def _group_barrier(statements: Statements, op: GroupBarrierOp) -> str:
    """A barrier of the group that the warp belongs to."""
    writer, first, warps = statements.writer, op.first.data, op.warps.data
    found = partition_of(op)
    number = str(first)
    if found is not None and found[0].partition_warps[found[1]] > warps:
        warp = writer.read(found[0].programs[found[1]].block.args[0])
        number = f"{first} + {warp.at(MUL)} / {warps}"
    elif found is None and writer.func.warps.data > warps:
        number = f"{first} + threadIdx.x / {32 * warps}"
    return f"group_barrier<{32 * warps}>({number})"


def _tma_load(statements: Statements, op: TmaLoadOp) -> str:
    """The start of a box's way into shared memory."""
    blocks = [str(sum(1 << r for r in op.ranks))] if op.ranks else []
    head = [element_address(statements, op.shared, op.place), _map(statements, op), _barrier(statements, op), *blocks]
    helper = f"tma_{'multicast' if op.ranks else 'load'}{len(op.coordinates)}"
    return f"{helper}({', '.join([*head, *_coordinates(statements, op)])})"


def _tma_store(statements: Statements, op: TmaStoreOp) -> str:
    """The start of a box's way into global memory."""
    head = [_map(statements, op), element_address(statements, op.shared, op.place)]
    return f"tma_store{len(op.coordinates)}({', '.join([*head, *_coordinates(statements, op)])})"


def _map(statements: Statements, op: TmaLoadOp | TmaStoreOp) -> str:
    return f"&{statements.writer.places[op.map].name}"


def _coordinates(statements: Statements, op: TmaLoadOp | TmaStoreOp) -> list[str]:
    return [statements.writer.read(c).text for c in op.coordinates]


def print_advance(statements: Statements, op: AdvanceOp) -> None:
    """The next slot and phase, as two constants; of a ring with one slot only the phase changes."""
    writer, slots = statements.writer, op.slots.data
    slot, phase = writer.read(op.slot), writer.read(op.phase)
    names = [writer.names.mint(r.name_hint, word) for r, word in zip(op.results, ("slot", "phase"), strict=True)]
    if slots == 1:
        writer.line(f"const {writer.index} {names[0]} = 0, {names[1]} = {phase.at(UNARY)} ^ 1;")
    else:
        step = f"{slot.at(ADD)} + 1"
        writer.line(f"const {writer.index} {names[0]} = {step} == {slots} ? 0 : {step};")
        writer.line(f"const {writer.index} {names[1]} = {phase.at(EQUALITY)} ^ ({names[0]} == 0);")
    for result, name in zip(op.results, names, strict=True):
        writer.places[result] = Place(name, 1)


def print_partitions(statements: Statements, op: WarpSpecializeOp) -> None:
    """The programs of the partitions, one behind each other, each under the condition that a warp belongs to it."""
    writer, last = statements.writer, len(op.programs) - 1
    registers = op.partition_registers
    for number, (name, program) in enumerate(zip(op.partition_names, op.programs, strict=True)):
        first = op.first_warp(number)
        end = 32 * (first + op.partition_warps[number])
        head = f"if (threadIdx.x < {end})" if number == 0 else f"else if (threadIdx.x < {end})"
        head = head if number < last or last == 0 else "else"
        with writer.braces(head):
            writer.line(f"// {sanitise(name)}")
            if registers:
                _set_registers(statements, registers[number], op.blocks_per_sm)
            own = program.block.args[0]
            if own.first_use is not None or _has_groups(program, op.partition_warps[number]):
                warp = writer.names.mint(own.name_hint, "warp")
                writer.line(f"const {writer.index} {warp} = threadIdx.x / 32{f' - {first}' if first else ''};")
                writer.places[own] = Place(warp, 1)
            print_block(writer, program.block)


def _has_groups(program: Region, warps: int) -> bool:
    """Whether some of a partition's warps wait for each other, which takes the number of the warp in the partition."""
    return any(isinstance(o, GroupBarrierOp) and o.warps.data < warps for o in program.walk())


def _set_registers(statements: Statements, wanted: int, blocks_per_sm: int) -> None:
    """Give up or take registers: a thread starts with what its share of the multiprocessor is."""
    share = launch_registers(statements.writer.func.threads, blocks_per_sm)
    if wanted != share:
        helper = "take_registers" if wanted > share else "give_registers"
        statements.writer.use(helper)
        statements.writer.line(f"{helper}<{wanted}>();")


def print_mapa(statements: Statements, op: MapaOp) -> None:
    """A pointer to another block's instance of a buffer."""
    writer = statements.writer
    writer.use("cluster_peer")
    text = f"cluster_peer({memory_name(writer, op.shared)}, {writer.read(op.rank).text})"
    add_pointer(statements, op.result, text, "peer")


add_printer(TensorMapOp, nothing)
add_printer(AdvanceOp, print_advance)
add_printer(WarpSpecializeOp, print_partitions)
add_printer(MapaOp, print_mapa)
add_calls(
    {
        MbarInitOp: lambda s, op: f"mbar_init({_barrier(s, op)}, {op.arrivals.data})",
        MbarExpectOp: lambda s, op: f"mbar_expect({_barrier(s, op)}, {op.bytes.data})",
        MbarArriveOp: _arrive,
        MbarWaitOp: _wait,
        FenceMbarInitOp: lambda s, op: "fence_mbar_init()",
        FenceAsyncOp: lambda s, op: "fence_async()",
        GroupBarrierOp: _group_barrier,
        TmaLoadOp: _tma_load,
        TmaStoreOp: _tma_store,
        BulkCommitOp: lambda s, op: "bulk_commit()",
        BulkWaitOp: lambda s, op: f"bulk_wait{'' if op.read is None else '_read'}<{op.pending.data}>()",
        ClusterBarrierOp: lambda s, op: "cluster_barrier()",
    }
)
