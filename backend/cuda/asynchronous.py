"""What is asynchronous, as C++: copies in groups, mbarriers, boxes through tensor maps, partitions and clusters."""

from __future__ import annotations

from contextlib import nullcontext

from xdsl.ir import Region

from ...dialects import kernel
from ...dialects.kernel.mbarrier import MbarrierOp
from ...dialects.kernel.warp_specialize import partition_of
from ...target.model import launch_registers
from ..cpp.expressions import ADD, EQUALITY, MUL, UNARY, add, c_size
from ..cpp.memory import condition, exclusive, memory_name, pointer_to, prepare
from ..cpp.names import sanitise
from ..cpp.statements import Statements, add_calls, add_pointer, add_printer, element_address, nothing
from ..cpp.writer import Place, Register, terms


def _barrier(statements: Statements, op: MbarrierOp | kernel.TmaLoadOp) -> str:
    """`&full[slot]`"""
    return f"&{memory_name(statements.writer, op.barriers)}[{statements.writer.read(op.index).text}]"


def _wait(statements: Statements, op: kernel.MbarWaitOp) -> str:
    """Waiting for a phase; for what threads of other blocks have done, if they tell of it."""
    users = (u.operation for u in op.barriers.uses)
    told = any(isinstance(o, kernel.MbarArriveOp) and o.rank is not None and o.asynchronous is None for o in users)
    helper = "mbar_wait_cluster" if told else "mbar_wait"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.parity).text})"


def _arrive(statements: Statements, op: kernel.MbarArriveOp) -> str:
    """Arriving, at the block's own barrier or another's."""
    if op.rank is None:
        return f"mbar_arrive({_barrier(statements, op)})"
    helper = "mbar_arrive_at" if op.asynchronous is None else "mbar_signal_at"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.rank).text})"


def _group_barrier(statements: Statements, op: kernel.GroupBarrierOp) -> str:
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


def _tma_load(statements: Statements, op: kernel.TmaLoadOp) -> str:
    """The start of a box's way into shared memory."""
    blocks = [str(sum(1 << r for r in op.ranks))] if op.ranks else []
    head = [element_address(statements, op.shared, op.place), _map(statements, op), _barrier(statements, op), *blocks]
    helper = f"tma_{'multicast' if op.ranks else 'load'}{len(op.coordinates)}"
    return f"{helper}({', '.join([*head, *_coordinates(statements, op)])})"


def _tma_store(statements: Statements, op: kernel.TmaStoreOp) -> str:
    """The start of a box's way into global memory."""
    head = [_map(statements, op), element_address(statements, op.shared, op.place)]
    return f"tma_store{len(op.coordinates)}({', '.join([*head, *_coordinates(statements, op)])})"


def _map(statements: Statements, op: kernel.TmaLoadOp | kernel.TmaStoreOp) -> str:
    return f"&{statements.writer.places[op.map].name}"


def _coordinates(statements: Statements, op: kernel.TmaLoadOp | kernel.TmaStoreOp) -> list[str]:
    return [statements.writer.read(c).text for c in op.coordinates]


def print_advance(statements: Statements, op: kernel.AdvanceOp) -> None:
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


def print_partitions(statements: Statements, op: kernel.WarpSpecializeOp) -> None:
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
            Statements(writer, program.block).print()


def _has_groups(program: Region, warps: int) -> bool:
    """Whether some of a partition's warps wait for each other, which takes the number of the warp in the partition."""
    return any(isinstance(o, kernel.GroupBarrierOp) and o.warps.data < warps for o in program.walk())


def _set_registers(statements: Statements, wanted: int, blocks_per_sm: int) -> None:
    """Give up or take registers: a thread starts with what its share of the multiprocessor is."""
    share = launch_registers(statements.writer.func.threads, blocks_per_sm)
    if wanted != share:
        helper = "take_registers" if wanted > share else "give_registers"
        statements.writer.use(helper)
        statements.writer.line(f"{helper}<{wanted}>();")


def print_mapa(statements: Statements, op: kernel.MapaOp) -> None:
    """A pointer to another block's instance of a buffer."""
    writer = statements.writer
    writer.use("cluster_peer")
    text = f"cluster_peer({memory_name(writer, op.shared)}, {writer.read(op.rank).text})"
    add_pointer(statements, op.result, text, "peer")


def print_slot(statements: Statements, op: kernel.SubviewOp) -> None:
    """A pointer to the slot."""
    start, ring = statements.writer.read(op.offset).text, memory_name(statements.writer, op.ring)
    add_pointer(statements, op.result, ring if start == "0" else f"{ring} + {start}", "slot")


def print_copy(statements: Statements, op: kernel.CopyAsyncOp) -> None:
    """The copies of a thread, 4, 8 or 16 bytes each."""
    writer, width = statements.writer, op.vec.data
    size = width * c_size(op.target.type)
    with nullcontext() if op.predicate is None else writer.braces(f"if ({writer.read(op.predicate).text})"):
        prepare(writer, op)
        with writer.registers_loop(op.registers, width) as r:
            met = condition(writer, op, r)
            source = pointer_to(writer, op, r)
            target = f"&{memory_name(writer, op.target)}[{_place(statements, op, r)}]"
            helper = f"copy_async{size}" if met is None else f"copy_async{size}_or_zero"
            writer.use(helper)
            writer.line(f"{helper}({target}, {source}{'' if met is None else f', {met.text}'});")


def _place(statements: Statements, op: kernel.CopyAsyncOp, r: Register) -> str:
    base, low = statements.writer.read(op.place), op.vec.data.bit_length() - 1
    if op.target_xor is not None:
        return exclusive(base, r, op.target_bases, low).text
    return add(base, terms(r, op.target_bases, low)).text


add_printer(kernel.SubviewOp, print_slot)
add_printer(kernel.CopyAsyncOp, print_copy)
add_printer(kernel.TensorMapOp, nothing)
add_printer(kernel.AdvanceOp, print_advance)
add_printer(kernel.WarpSpecializeOp, print_partitions)
add_printer(kernel.MapaOp, print_mapa)
add_calls(
    {
        kernel.MbarInitOp: lambda s, op: f"mbar_init({_barrier(s, op)}, {op.arrivals.data})",
        kernel.MbarExpectOp: lambda s, op: f"mbar_expect({_barrier(s, op)}, {op.bytes.data})",
        kernel.MbarArriveOp: _arrive,
        kernel.MbarWaitOp: _wait,
        kernel.FenceMbarInitOp: lambda s, op: "fence_mbar_init()",
        kernel.FenceAsyncOp: lambda s, op: "fence_async()",
        kernel.GroupBarrierOp: _group_barrier,
        kernel.TmaLoadOp: _tma_load,
        kernel.TmaStoreOp: _tma_store,
        kernel.BulkCommitOp: lambda s, op: "bulk_commit()",
        kernel.BulkWaitOp: lambda s, op: f"bulk_wait{'' if op.read is None else '_read'}<{op.pending.data}>()",
        kernel.ClusterBarrierOp: lambda s, op: "cluster_barrier()",
        kernel.AsyncCommitOp: lambda s, op: "copy_async_commit()",
        kernel.AsyncWaitOp: lambda s, op: f"copy_async_wait<{op.pending.data}>()",
    }
)
