"""Atomic operations as C++: one call for each register."""

from __future__ import annotations

from ...dialects.kernel import AtomicRmwOp
from .access import condition, pointer_to, prepare
from .expressions import infix
from .statements import Statements, add_printer
from .types import AND


def print_atomic(statements: Statements, op: AtomicRmwOp) -> None:
    """The calls for all registers."""
    writer = statements.writer
    prepare(writer, op)
    name = f"atomic_{op.kind.data.value}"
    writer.use(f"{name}.{writer.type_of(op.value)}")
    with writer.registers_loop(op.registers, 1) as r:
        met = condition(writer, op, r)
        if op.predicate is not None:
            predicate = writer.read(op.predicate)
            met = predicate if met is None else infix(predicate, "&&", met, AND)
        head = "" if met is None else f"if ({met.text}) "
        writer.line(f"{head}{name}({pointer_to(writer, op, r)}, {writer.read(op.value, r).text});")


add_printer(AtomicRmwOp, print_atomic)
