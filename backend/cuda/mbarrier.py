"""mbarriers, barriers of some warps, and partitions as C++."""

from __future__ import annotations

from xdsl.ir import Region

from ...dialects.kernel import (
    AdvanceOp,
    FenceAsyncOp,
    FenceMbarInitOp,
    GroupBarrierOp,
    MbarArriveOp,
    MbarExpectOp,
    MbarInitOp,
    MbarWaitOp,
    WarpSpecializeOp,
)
from ...dialects.kernel.mbarrier import MbarrierOp
from ...dialects.kernel.warp_specialize import launch_registers, partition_of
from .control import print_block
from .memory import memory_name
from .names import sanitise
from .statements import Statements, add_printer
from .types import ADD, EQUALITY, MUL, UNARY
from .writer import Place


def barrier_at(statements: Statements, op: MbarrierOp) -> str:
    """`&full[slot]`"""
    return f"&{memory_name(statements.writer, op.barriers)}[{statements.writer.read(op.index).text}]"


def _call(statements: Statements, helper: str, *arguments: str, template: int | None = None) -> None:
    statements.writer.use(helper)
    chosen = "" if template is None else f"<{template}>"
    statements.writer.line(f"{helper}{chosen}({', '.join(arguments)});")


def print_init(statements: Statements, op: MbarInitOp) -> None:
    """Setting a barrier up."""
    _call(statements, "mbar_init", barrier_at(statements, op), str(op.arrivals.data))


def print_expect(statements: Statements, op: MbarExpectOp) -> None:
    """Arriving with an announcement."""
    _call(statements, "mbar_expect", barrier_at(statements, op), str(op.bytes.data))


def print_wait(statements: Statements, op: MbarWaitOp) -> None:
    """Waiting for a phase; for what threads of other blocks have done, if they tell of it."""
    others = [u.operation for u in op.barriers.uses if isinstance(u.operation, MbarArriveOp) and u.operation.rank]
    told = any(isinstance(o, MbarArriveOp) and o.asynchronous is None for o in others)
    helper = "mbar_wait_cluster" if told else "mbar_wait"
    _call(statements, helper, barrier_at(statements, op), statements.writer.read(op.parity).text)


def print_arrive(statements: Statements, op: MbarArriveOp) -> None:
    """Arriving, at the block's own barrier or another's."""
    if op.rank is None:
        _call(statements, "mbar_arrive", barrier_at(statements, op))
    else:
        helper = "mbar_arrive_at" if op.asynchronous is None else "mbar_signal_at"
        _call(statements, helper, barrier_at(statements, op), statements.writer.read(op.rank).text)


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


def print_group_barrier(statements: Statements, op: GroupBarrierOp) -> None:
    """A barrier of the group that the warp belongs to."""
    writer, first, warps = statements.writer, op.first.data, op.warps.data
    found = partition_of(op)
    number = str(first)
    if found is not None and found[0].partition_warps[found[1]] > warps:
        warp = writer.read(found[0].programs[found[1]].block.args[0])
        number = f"{first} + {warp.at(MUL)} / {warps}"
    elif found is None and statements.writer.func.warps.data > warps:
        number = f"{first} + threadIdx.x / {32 * warps}"
    _call(statements, "group_barrier", number, template=32 * warps)


def print_roles(statements: Statements, op: WarpSpecializeOp) -> None:
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
        _call(statements, "take_registers" if wanted > share else "give_registers", template=wanted)


add_printer(MbarInitOp, print_init)
add_printer(MbarExpectOp, print_expect)
add_printer(MbarArriveOp, print_arrive)
add_printer(MbarWaitOp, print_wait)
add_printer(FenceMbarInitOp, lambda s, _: _call(s, "fence_mbar_init"))
add_printer(FenceAsyncOp, lambda s, _: _call(s, "fence_async"))
add_printer(AdvanceOp, print_advance)
add_printer(GroupBarrierOp, print_group_barrier)
add_printer(WarpSpecializeOp, print_roles)
