"""Asynchronous copies as C++: slots of rings as pointers, copies in a loop, groups and waits."""

from __future__ import annotations

from ...dialects.kernel.cp_async import AsyncCommitOp, AsyncWaitOp, CopyAsyncOp, SubviewOp
from .expressions import add
from .memory import condition, exclusive, memory_name, offset, prepare
from .statements import Statements, add_calls, add_pointer, add_printer
from .types import c_size
from .writer import Register, terms


def print_slot(statements: Statements, op: SubviewOp) -> None:
    """A pointer to the slot."""
    start, ring = statements.writer.read(op.offset).text, memory_name(statements.writer, op.ring)
    add_pointer(statements, op.result, ring if start == "0" else f"{ring} + {start}", "slot")


def print_copy(statements: Statements, op: CopyAsyncOp) -> None:
    """The copies of a thread, 4, 8 or 16 bytes each."""
    writer = statements.writer
    if op.predicate is None:
        _copies(statements, op)
        return
    with writer.braces(f"if ({writer.read(op.predicate).text})"):
        _copies(statements, op)


def _copies(statements: Statements, op: CopyAsyncOp) -> None:
    writer, width = statements.writer, op.vec.data
    size = width * c_size(op.target.type)
    prepare(writer, op)
    with writer.registers_loop(op.registers, width) as r:
        met = condition(writer, op, r)
        source = f"&{memory_name(writer, op.memory)}[{offset(writer, op, r).text}]"
        target = f"&{memory_name(writer, op.target)}[{_place(statements, op, r)}]"
        helper = f"copy_async{size}" if met is None else f"copy_async{size}_or_zero"
        writer.use(helper)
        writer.line(f"{helper}({target}, {source}{'' if met is None else f', {met.text}'});")


def _place(statements: Statements, op: CopyAsyncOp, r: Register) -> str:
    base, low = statements.writer.read(op.place), op.vec.data.bit_length() - 1
    if op.target_xor is not None:
        return exclusive(base, r, op.target_bases, low).text
    return add(base, terms(r, op.target_bases, low)).text


add_printer(SubviewOp, print_slot)
add_printer(CopyAsyncOp, print_copy)
add_calls(
    {
        AsyncCommitOp: lambda s, op: "copy_async_commit()",
        AsyncWaitOp: lambda s, op: f"copy_async_wait<{op.pending.data}>()",
    }
)
