"""Printing of asynchronous operations: copies, mbarriers, TMA tiles, warp partitions and clusters.

Terms are those of the kernel dialect:

- slot: stage of a circular buffer in shared memory. mbarriers signal when a slot is full or free.
- phase: parity (0 or 1) of the mbarrier of a slot. It changes each time the slot is reused.
- partition: range of warps of a block with a program of its own (warp specialization).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel.barriers import MbarrierOp, partition_of
from ...target.model import launch_registers
from ..cpp.expressions import ADD, EQUALITY, MUL, UNARY, add, c_size, terms
from ..cpp.memory import condition, element_at, memory_name, prepare, xor_address
from ..cpp.statements import Printer, Statements, add_pointer, call_printers, element_address
from ..cpp.writer import sanitise


def _barrier(statements: Statements, op: MbarrierOp | kernel.TmaLoadOp) -> str:
    """Returns the C++ address of the mbarrier of an operation, as in `&full[slot]`."""
    return f"&{memory_name(statements.writer, op.barriers)}[{statements.writer.read(op.index).text}]"


def _wait(statements: Statements, op: kernel.MbarWaitOp) -> str:
    """Returns the C++ call that waits for a phase of an mbarrier.

    If threads of other blocks arrive at the mbarrier, the wait also makes the writes of these blocks visible.
    """
    users = (u.operation for u in op.barriers.uses)
    remote = any(isinstance(o, kernel.MbarArriveOp) and o.rank is not None and o.asynchronous is None for o in users)
    helper = "mbar_wait_cluster" if remote else "mbar_wait"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.parity).text})"


def _arrive(statements: Statements, op: kernel.MbarArriveOp) -> str:
    if op.rank is None:
        return f"mbar_arrive({_barrier(statements, op)})"
    helper = "mbar_arrive_at" if op.asynchronous is None else "mbar_signal_at"
    return f"{helper}({_barrier(statements, op)}, {statements.writer.read(op.rank).text})"


def _group_barrier(statements: Statements, op: kernel.GroupBarrierOp) -> str:
    """Returns the C++ call of a barrier for a group of warps.

    If the partition, or the block, has several groups, the number of the hardware barrier depends on the warp.
    """
    writer, number, warps, partition = statements.writer, str(op.first.data), op.warps.data, partition_of(op)
    if partition is not None and partition[0].partition_warps[partition[1]] > warps:
        warp = writer.read(partition[0].programs[partition[1]].block.args[0])
        number += f" + {warp.at(MUL)} / {warps}"
    elif partition is None and writer.func.warps.data > warps:
        number += f" + threadIdx.x / {32 * warps}"
    return f"group_barrier<{32 * warps}>({number})"


def _tma(statements: Statements, op: kernel.TmaLoadOp | kernel.TmaStoreOp) -> str:
    """Returns the C++ call that starts a TMA copy: a load, a multicast load to several blocks, or a store."""
    tile, tensor_map = element_address(statements, op.shared, op.place), f"&{statements.writer.variables[op.map].name}"
    if isinstance(op, kernel.TmaStoreOp):
        kind, operands = "store", [tensor_map, tile]
    else:
        blocks = [str(sum(1 << r for r in op.ranks))] if op.ranks else []
        kind = "multicast" if op.ranks else "load"
        operands = [tile, tensor_map, _barrier(statements, op), *blocks]
    operands += [statements.writer.read(c).text for c in op.coordinates]
    return f"tma_{kind}{len(op.coordinates)}({', '.join(operands)})"


def print_advance(statements: Statements, op: kernel.AdvanceOp) -> None:
    """Prints `kernel.advance`: the next slot of a circular buffer, and its phase."""
    writer, slots = statements.writer, op.slots.data
    slot, phase = writer.read(op.slot), writer.read(op.phase)
    names = [writer.name(result, word) for result, word in zip(op.results, ("slot", "phase"), strict=True)]
    if slots == 1:
        writer.line(f"const {writer.index} {names[0]} = 0, {names[1]} = {phase.at(UNARY)} ^ 1;")
    else:
        step = f"{slot.at(ADD)} + 1"
        writer.line(f"const {writer.index} {names[0]} = {step} == {slots} ? 0 : {step};")
        writer.line(f"const {writer.index} {names[1]} = {phase.at(EQUALITY)} ^ ({names[0]} == 0);")


def print_partitions(statements: Statements, op: kernel.WarpSpecializeOp) -> None:
    """Prints `kernel.warp_specialize` as a chain of `if`s: each warp runs the program of its partition."""
    writer, last, registers = statements.writer, len(op.programs) - 1, op.partition_registers
    for number, (name, program) in enumerate(zip(op.partition_names, op.programs, strict=True)):
        first, warps = op.first_warp(number), op.partition_warps[number]
        head = f"{'else ' if number else ''}if (threadIdx.x < {32 * (first + warps)})"
        with writer.braces(head if number < last or last == 0 else "else"):
            writer.line(f"// {sanitise(name)}")
            if registers:
                _set_registers(statements, registers[number], op.blocks_per_sm)
            warp, barriers = program.block.args[0], (o for o in program.walk() if isinstance(o, kernel.GroupBarrierOp))
            if warp.first_use is not None or any(o.warps.data < warps for o in barriers):
                start = f" - {first}" if first else ""
                writer.line(f"const {writer.index} {writer.name(warp, 'warp')} = threadIdx.x / 32{start};")
            type(statements)(writer, program.block).print()


def _set_registers(statements: Statements, count: int, blocks_per_sm: int) -> None:
    """Prints `setmaxnreg`, unless threads have that number of registers at launch anyway.

    Args:
        statements: printer of the partition's program.
        count: registers per thread.
        blocks_per_sm: number of blocks that share the registers of an SM at launch.
    """
    share = launch_registers(statements.writer.func.threads, blocks_per_sm)
    if count != share:
        helper = "take_registers" if count > share else "give_registers"
        statements.writer.use(helper)
        statements.writer.line(f"{helper}<{count}>();")


def print_mapa(statements: Statements, op: kernel.MapaOp) -> None:
    """Prints `kernel.mapa`: a pointer to a shared buffer in another block of the cluster."""
    writer = statements.writer
    writer.use("cluster_peer")
    text = f"cluster_peer({memory_name(writer, op.shared)}, {writer.read(op.rank).text})"
    add_pointer(statements, op.result, text, "peer")


def print_copy(statements: Statements, op: kernel.CopyAsyncOp) -> None:
    """Prints `kernel.copy_async`: the `cp.async` copies of a thread, of 4, 8 or 16 bytes each."""
    writer, width = statements.writer, op.vec.data
    size = width * c_size(op.target.type)
    with nullcontext() if op.predicate is None else writer.braces(f"if ({writer.read(op.predicate).text})"):
        prepare(writer, op)
        with writer.registers_loop(op.registers, width) as r:
            met, source = condition(writer, op, r), f"&{element_at(writer, op, r)}"
            base, low = writer.read(op.place), width.bit_length() - 1
            is_swizzled = op.target_xor is not None
            at = (
                xor_address(base, r, op.target_bases, low) if is_swizzled else add(base, terms(r, op.target_bases, low))
            )
            helper, mask = (f"copy_async{size}", "") if met is None else (f"copy_async{size}_or_zero", f", {met.text}")
            writer.use(helper)
            writer.line(f"{helper}(&{memory_name(writer, op.target)}[{at.text}], {source}{mask});")


PRINTERS: Mapping[type[Operation], Printer] = {
    kernel.CopyAsyncOp: print_copy,
    kernel.TensorMapOp: lambda s, op: None,  # a parameter of the kernel
    kernel.AdvanceOp: print_advance,
    kernel.WarpSpecializeOp: print_partitions,
    kernel.MapaOp: print_mapa,
    **call_printers(
        {
            kernel.MbarInitOp: lambda s, op: f"mbar_init({_barrier(s, op)}, {op.arrivals.data})",
            kernel.MbarExpectOp: lambda s, op: f"mbar_expect({_barrier(s, op)}, {op.bytes.data})",
            kernel.MbarArriveOp: _arrive,
            kernel.MbarWaitOp: _wait,
            kernel.FenceMbarInitOp: lambda s, op: "fence_mbar_init()",
            kernel.FenceAsyncOp: lambda s, op: "fence_async()",
            kernel.GroupBarrierOp: _group_barrier,
            kernel.TmaLoadOp: _tma,
            kernel.TmaStoreOp: _tma,
            kernel.BulkCommitOp: lambda s, op: "bulk_commit()",
            kernel.BulkWaitOp: lambda s, op: f"bulk_wait{'' if op.read is None else '_read'}<{op.pending.data}>()",
            kernel.ClusterBarrierOp: lambda s, op: "cluster_barrier()",
            kernel.AsyncCommitOp: lambda s, op: "copy_async_commit()",
            kernel.AsyncWaitOp: lambda s, op: f"copy_async_wait<{op.pending.data}>()",
        }
    ),
}
