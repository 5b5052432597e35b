"""place-barriers: the one pass that makes the threads of a block wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.kernel import BarrierOp, FuncOp, SharedOp, is_shared
from ..dialects.kernel_access import LoadOp, StoreOp, memory_bytes
from ..dialects.kernel_matrix import LdMatrixOp
from ..dialects.kernel_ranges import constant_index
from ..dialects.locations import copy_location, location_text
from ..errors import CompileError
from .remarks import emit_remark


@dataclass(frozen=True)
class Access:
    """Bytes [start, end) of a block's shared memory are read or written; without offsets, buffers are apart."""

    buffer: SSAValue
    start: int | None
    end: int
    writes: bool

    def conflicts(self, other: Access) -> bool:
        """Whether the order of the two accesses matters, if different threads make them."""
        return (self.writes or other.writes) and self._touches(other)

    def _touches(self, other: Access) -> bool:
        if self.buffer is other.buffer:
            return True
        if self.start is None or other.start is None:
            return False
        return self.start < other.end and other.start < self.end


Pending = dict[Access, None]
"""Accesses made since the last barrier, in order."""


def access_of(op: Operation) -> Access | None:
    """The access to shared memory that `op` makes, if it does. Raises CompileError for memory of unknown origin."""
    if not isinstance(op, LoadOp | StoreOp | LdMatrixOp) or not is_shared(op.memory.type):
        return None
    buffer = op.memory.owner
    if not isinstance(buffer, SharedOp):
        raise CompileError("shared memory that is no kernel.shared", operator=op.name, location=location_text(op))
    start = None if buffer.offset is None else buffer.offset.data
    return Access(op.memory, start, (start or 0) + memory_bytes(op.memory.type), isinstance(op, StoreOp))


@dataclass(frozen=True)
class PlaceBarriersPass(ModulePass):
    """Insert a barrier wherever threads would otherwise race for shared memory.

    What: follows each kernel in program order and remembers the shared accesses since the last barrier. In front of an
    access that meets a pending one of the same bytes, at least one of them a write, it inserts a barrier, which clears
    all of them. A loop is followed until nothing changes, with what is pending at its end pending at its start; one
    that only reads shared memory waits once, in front of it.
    Why: a barrier is as late as it can be, so one serves as many pairs as it can; and only one pass has to be right.
    Why here: it needs the final offsets of shared buffers (`allocate-shared`) and no later pass may move an access.

    ```mlir
    kernel.store %v, %s[%lane] ...
    %w = kernel.load %s[%other] ...
    ```
    becomes
    ```mlir
    kernel.store %v, %s[%lane] ...
    kernel.barrier
    %w = kernel.load %s[%other] ...
    ```
    """

    name = "place-barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in op.body.ops:
            if isinstance(func, FuncOp):
                placement = _Placement()
                placement.block(func.body.block, {})
                if placement.accesses and not placement.barriers:
                    emit_remark(func, self.name, "no two accesses to shared memory need a barrier between them")


class _Placement:
    """Walks one kernel; counts what it sees and what it inserts."""

    def __init__(self) -> None:
        self.accesses = 0
        self.barriers = 0

    def block(self, block: Block, pending: Pending) -> Pending:
        """Place barriers in a block entered with `pending` accesses; what is pending at its end."""
        for op in list(block.ops):
            if isinstance(op, BarrierOp):
                pending = {}
            elif isinstance(op, scf.ForOp):
                pending = self._loop(op, pending)
            elif op.regions:
                pending = self._conditional(op, pending)
            elif (access := access_of(op)) is not None:
                pending = self._meet(op, [access], pending)
        return pending

    def _meet(self, op: Operation, accesses: list[Access], pending: Pending) -> Pending:
        self.accesses += len(accesses)
        if any(a.conflicts(p) for a in accesses for p in pending):
            barrier = BarrierOp()
            copy_location(op, (barrier,))
            assert op.parent is not None
            op.parent.insert_op_before(barrier, op)
            self.barriers += 1
            pending = {}
        return {**pending, **dict.fromkeys(accesses)}

    def _loop(self, op: scf.ForOp, pending: Pending) -> Pending:
        inside = list(_accesses_inside(op))
        if not any(a.writes for a in inside) and not any(isinstance(o, BarrierOp) for o in op.walk()):
            return self._meet(op, inside, pending)  # a loop that only reads waits once, in front of it
        entry, leaving = pending, self.block(op.body.block, pending)
        while not leaving.keys() <= entry.keys():
            entry = {**entry, **leaving}
            leaving = self.block(op.body.block, entry)
        return leaving if _runs(op) else {**pending, **leaving}

    def _conditional(self, op: Operation, pending: Pending) -> Pending:
        """Threads may disagree about a condition, so no barrier goes inside: its accesses count as simultaneous."""
        inside = list(_accesses_inside(op))
        for number, a in enumerate(inside):
            if any(a.conflicts(b) for b in inside[:number]):
                raise CompileError(
                    "accesses under a condition would need a barrier between them",
                    operator=op.name,
                    location=location_text(op),
                )
        return self._meet(op, inside, pending)


def _accesses_inside(op: Operation) -> Iterator[Access]:
    for inner in op.walk():
        access = access_of(inner)
        if access is not None:
            yield access


def _runs(op: scf.ForOp) -> bool:
    """Whether the loop surely runs at least once."""
    lb, ub = constant_index(op.lb), constant_index(op.ub)
    return lb is not None and ub is not None and lb < ub
