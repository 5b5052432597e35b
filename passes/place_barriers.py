"""place-barriers: the one pass that makes the threads of a block wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from ..dialects.kernel import AsyncCommitOp, AsyncWaitOp, BarrierOp, CopyAsyncOp, FuncOp
from ..dialects.kernel_ranges import constant_index
from ..dialects.locations import copy_location, location_text
from ..errors import CompileError
from .remarks import emit_remark
from .shared_accesses import Access, Renaming, access_of, renamings

OLDEST = 64
"""Groups of copies older than this are not told apart."""


@dataclass
class State:
    """What has happened to shared memory: `pending` are the accesses since the last barrier, in order; `flying` the
    copies that may still be on their way, each with the number of groups closed since its own, -1 for an open one."""

    pending: dict[Access, None] = field(default_factory=dict[Access, None])
    flying: dict[Access, int] = field(default_factory=dict[Access, int])

    def joined(self, other: State) -> State:
        """What may have happened if either has."""
        flying = dict(self.flying)
        for access, age in other.flying.items():
            flying[access] = min(age, flying.get(access, age))
        return State({**self.pending, **other.pending}, flying)

    def covers(self, other: State) -> bool:
        """Whether everything in `other` is in here."""
        return other.pending.keys() <= self.pending.keys() and all(
            a in self.flying and self.flying[a] <= age for a, age in other.flying.items()
        )

    def renamed(self, slots: Renaming) -> State:
        """The state, with slots called what they are called elsewhere."""
        flying: dict[Access, int] = {}
        for access, age in self.flying.items():
            new = access.renamed(slots)
            flying[new] = min(age, flying.get(new, age))
        return State({a.renamed(slots): None for a in self.pending}, flying)


@dataclass(frozen=True)
class PlaceBarriersPass(ModulePass):
    """Insert a barrier wherever threads would otherwise race for shared memory.

    What: follows each kernel in program order and remembers the shared accesses since the last barrier. In front of an
    access that meets a pending one of the same bytes, at least one of them a write, it inserts a barrier, which clears
    all of them. A loop is followed until nothing changes, with what is pending at its end pending at its start; one
    that only reads shared memory waits once, in front of it. An asynchronous copy is a write in the place where its
    thread has waited for it; to meet it earlier is an error, which no barrier could mend. Slots of a ring are apart
    where a loop only lets them change places.
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
                placement.block(func.body.block, State())
                placement.insert()
                if placement.accesses and not placement.before:
                    emit_remark(func, self.name, "no two accesses to shared memory need a barrier between them")


class _Placement:
    """Walks one kernel and decides in front of which operations threads wait; counts the accesses that it sees."""

    def __init__(self) -> None:
        self.accesses = 0
        self.before: dict[Operation, None] = {}

    def insert(self) -> None:
        """Insert the barriers."""
        for op in self.before:
            barrier = BarrierOp()
            copy_location(op, (barrier,))
            assert op.parent is not None
            op.parent.insert_op_before(barrier, op)

    def block(self, block: Block, state: State) -> State:
        """Decide for a block entered in `state`; the state at its end."""
        for op in block.ops:
            if isinstance(op, BarrierOp):
                state = State({}, state.flying)
            elif isinstance(op, AsyncCommitOp):
                state = State(state.pending, {a: min(age + 1, OLDEST) for a, age in state.flying.items()})
            elif isinstance(op, AsyncWaitOp):
                state = _arrived(op, state)
            elif isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif op.regions:
                state = self._conditional(op, state)
            elif (access := access_of(op)) is not None:
                state = self._meet(op, [access], state)
        return state

    def _meet(self, op: Operation, accesses: list[Access], state: State) -> State:
        self.accesses += len(accesses)
        for access in accesses:
            if any(access.conflicts(f) for f in state.flying):
                raise CompileError(
                    "touches what an asynchronous copy may still be writing: there is no wait in between",
                    operator=op.name,
                    location=location_text(op),
                )
        pending = state.pending
        if any(a.conflicts(p) for a in accesses for p in pending):
            self.before[op] = None
            pending = {}
        if isinstance(op, CopyAsyncOp):
            return State(pending, {**state.flying, **dict.fromkeys(accesses, -1)})
        return State({**pending, **dict.fromkeys(accesses)}, state.flying)

    def _loop(self, op: scf.ForOp, state: State) -> State:
        inside = list(_accesses_inside(op))
        synchronises = any(isinstance(o, BarrierOp | AsyncWaitOp) for o in op.walk())
        if not any(a.writes for a in inside) and not synchronises:
            return self._meet(op, inside, state)  # a loop that only reads waits once, in front of it
        to_first, to_next, to_after = renamings(op)
        before, entry = dict(self.before), state.renamed(to_first)
        while True:  # what is decided holds for every iteration once the entry covers what an iteration leaves
            self.before = dict(before)
            leaving = self.block(op.body.block, entry)
            again = leaving.renamed(to_next)
            if entry.covers(again):
                break
            entry = entry.joined(again)
        after = leaving.renamed(to_after)
        return after if _runs(op) else state.joined(after)

    def _conditional(self, op: Operation, state: State) -> State:
        """Threads may disagree about a condition, so no barrier goes inside: its accesses count as simultaneous."""
        if any(isinstance(o, AsyncCommitOp | AsyncWaitOp | CopyAsyncOp) for o in op.walk()):
            raise CompileError("asynchronous copies under a condition", operator=op.name, location=location_text(op))
        inside = list(_accesses_inside(op))
        for number, a in enumerate(inside):
            if any(a.conflicts(b) for b in inside[:number]):
                raise CompileError(
                    "accesses under a condition would need a barrier between them",
                    operator=op.name,
                    location=location_text(op),
                )
        return self._meet(op, inside, state)


def _arrived(op: AsyncWaitOp, state: State) -> State:
    """The state behind a wait: what has arrived is a write that only this thread sees yet."""
    here = {a: None for a, age in state.flying.items() if age >= op.pending.data}
    return State({**state.pending, **here}, {a: age for a, age in state.flying.items() if a not in here})


def _accesses_inside(op: Operation) -> Iterator[Access]:
    for inner in op.walk():
        access = access_of(inner)
        if access is not None:
            yield access


def _runs(op: scf.ForOp) -> bool:
    """Whether the loop surely runs at least once."""
    lb, ub = constant_index(op.lb), constant_index(op.ub)
    return lb is not None and ub is not None and lb < ub
