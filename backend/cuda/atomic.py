"""Atomic operations as C++: one call for each register."""

from __future__ import annotations

from ...dialects.kernel import AtomicRmwOp
from .memory import guard, pointer_to, prepare
from .statements import Statements, add_printer


def print_atomic(statements: Statements, op: AtomicRmwOp) -> None:
    """The calls for all registers."""
    writer = statements.writer
    prepare(writer, op)
    name = f"atomic_{op.kind.data.value}"
    writer.use(f"{name}.{writer.type_of(op.value)}")
    with writer.registers_loop(op.registers, 1) as r:
        writer.line(f"{guard(writer, op, r)}{name}({pointer_to(writer, op, r)}, {writer.read(op.value, r).text});")


add_printer(AtomicRmwOp, print_atomic)
