"""Asynchronous copies as C++: slots of rings as pointers, copies in a loop, groups and waits."""

from __future__ import annotations

from ...dialects.kernel.cp_async import AsyncCommitOp, AsyncWaitOp, CopyAsyncOp, SubviewOp
from .expressions import add
from .memory import condition, exclusive, memory_name, offset, prepare
from .statements import Statements, add_printer
from .types import c_size
from .writer import Place, Register, terms


def print_slot(statements: Statements, op: SubviewOp) -> None:
    """A pointer to the slot."""
    writer = statements.writer
    element = writer.type_of(op.result.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
    start = writer.read(op.offset)
    ring = memory_name(writer, op.ring)
    name = writer.names.mint(op.result.name_hint, "slot")
    writer.line(f"{element}* const {name} = {ring if start.text == '0' else f'{ring} + {start.text}'};")
    writer.places[op.result] = Place(name, 1)


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
    size = width * c_size(op.target.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
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


def print_commit(statements: Statements, op: AsyncCommitOp) -> None:
    """The end of a group."""
    statements.writer.use("copy_async_commit")
    statements.writer.line("copy_async_commit();")


def print_wait(statements: Statements, op: AsyncWaitOp) -> None:
    """Waiting for groups."""
    statements.writer.use("copy_async_wait")
    statements.writer.line(f"copy_async_wait<{op.pending.data}>();")


add_printer(SubviewOp, print_slot)
add_printer(CopyAsyncOp, print_copy)
add_printer(AsyncCommitOp, print_commit)
add_printer(AsyncWaitOp, print_wait)
