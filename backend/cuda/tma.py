"""Boxes through tensor maps as C++: the maps are parameters of the kernel."""

from __future__ import annotations

from xdsl.ir import Operation

from ...dialects.kernel import BulkCommitOp, BulkWaitOp, TensorMapOp, TmaLoadOp, TmaStoreOp
from .memory import memory_name
from .statements import Statements, add_printer


def _box(statements: Statements, op: TmaLoadOp | TmaStoreOp) -> str:
    """`&s[place]`, where the box lies in shared memory."""
    place = statements.writer.read(op.place).text
    name = memory_name(statements.writer, op.shared)
    return name if place == "0" else f"&{name}[{place}]"


def print_tma_load(statements: Statements, op: TmaLoadOp) -> None:
    """The start of a box's way into shared memory."""
    writer = statements.writer
    helper = f"tma_{'multicast' if op.ranks else 'load'}{len(op.coordinates)}"
    barrier = f"&{memory_name(writer, op.barriers)}[{writer.read(op.index).text}]"
    places = [writer.read(c).text for c in op.coordinates]
    writer.use(helper)
    blocks = [str(sum(1 << r for r in op.ranks))] if op.ranks else []
    arguments = [_box(statements, op), f"&{writer.places[op.map].name}", barrier, *blocks, *places]
    writer.line(f"{helper}({', '.join(arguments)});")


def print_tma_store(statements: Statements, op: TmaStoreOp) -> None:
    """The start of a box's way into global memory."""
    writer = statements.writer
    helper = f"tma_store{len(op.coordinates)}"
    places = [writer.read(c).text for c in op.coordinates]
    writer.use(helper)
    writer.line(f"{helper}({', '.join([f'&{writer.places[op.map].name}', _box(statements, op), *places])});")


def print_commit(statements: Statements, op: BulkCommitOp) -> None:
    """The end of a group of stores."""
    statements.writer.use("bulk_commit")
    statements.writer.line("bulk_commit();")


def print_wait(statements: Statements, op: BulkWaitOp) -> None:
    """Waiting for groups of stores."""
    helper = "bulk_wait" if op.read is None else "bulk_wait_read"
    statements.writer.use(helper)
    statements.writer.line(f"{helper}<{op.pending.data}>();")


def _nothing(_: Statements, __: Operation) -> None:
    """Maps are parameters."""


add_printer(TensorMapOp, _nothing)
add_printer(TmaLoadOp, print_tma_load)
add_printer(TmaStoreOp, print_tma_store)
add_printer(BulkCommitOp, print_commit)
add_printer(BulkWaitOp, print_wait)
