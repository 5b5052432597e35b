"""place-barriers: the one pass that makes the threads of a block wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.kernel import (
    AsyncCommitOp,
    AsyncWaitOp,
    BarrierOp,
    ClusterBarrierOp,
    CopyAsyncOp,
    FenceAsyncOp,
    FuncOp,
    GroupBarrierOp,
    PeerOp,
    RolesOp,
    TmaLoadOp,
    WgmmaFenceOp,
    WgmmaOp,
)
from ..dialects.kernel_ranges import constant_index
from ..dialects.kernel_roles import role_of
from ..dialects.locations import copy_location, location_text
from ..errors import CompileError
from .remarks import emit_remark
from .shared_accesses import Access, Renaming, accesses_of, renamings

OLDEST = 64
"""Groups of copies older than this are not told apart."""


@dataclass
class State:
    """What has happened to shared memory: `pending` are the accesses since the last barrier, in order; `flying` the
    copies that may still be on their way, each with the number of groups closed since its own, -1 for an open one;
    `unfenced` the writes of threads that the asynchronous proxy does not see yet; `across` the accesses since the last
    barrier of the cluster, in kernels that read other blocks' memory."""

    pending: dict[Access, None] = field(default_factory=dict[Access, None])
    flying: dict[Access, int] = field(default_factory=dict[Access, int])
    unfenced: dict[Access, None] = field(default_factory=dict[Access, None])
    across: dict[Access, None] = field(default_factory=dict[Access, None])

    def joined(self, other: State) -> State:
        """What may have happened if either has."""
        flying = dict(self.flying)
        for access, age in other.flying.items():
            flying[access] = min(age, flying.get(access, age))
        unfenced, across = {**self.unfenced, **other.unfenced}, {**self.across, **other.across}
        return State({**self.pending, **other.pending}, flying, unfenced, across)

    def covers(self, other: State) -> bool:
        """Whether everything in `other` is in here."""
        return (
            other.pending.keys() <= self.pending.keys()
            and other.unfenced.keys() <= self.unfenced.keys()
            and other.across.keys() <= self.across.keys()
            and all(a in self.flying and self.flying[a] <= age for a, age in other.flying.items())
        )

    def renamed(self, slots: Renaming) -> State:
        """The state, with slots called what they are called elsewhere."""
        flying: dict[Access, int] = {}
        for access, age in self.flying.items():
            new = access.renamed(slots)
            flying[new] = min(age, flying.get(new, age))
        return State(
            {a.renamed(slots): None for a in self.pending},
            flying,
            {a.renamed(slots): None for a in self.unfenced},
            {a.renamed(slots): None for a in self.across},
        )


@dataclass(frozen=True)
class PlaceBarriersPass(ModulePass):
    """Insert a barrier wherever threads would otherwise race for shared memory.

    What: follows each kernel in program order and remembers the shared accesses since the last barrier. In front of an
    access that meets a pending one of the same bytes, at least one of them a write, it inserts a barrier, which clears
    all of them. A loop is followed until nothing changes, with what is pending at its end pending at its start; one
    that only reads shared memory waits once, in front of it. An asynchronous copy is a write in the place where its
    thread has waited for it; to meet it earlier is an error, which no barrier could mend. Slots of a ring are apart
    where a loop only lets them change places. In front of a product of warpgroups that reads what threads stored, each
    thread also orders its stores before asynchronous readers (`kernel.fence_async`). Inside of a role it is the role's
    warps that wait; what boxes are loaded into is left to mbarriers. Where a block of a cluster reads what others
    store, or stores what others read, it waits for the whole cluster; and once more before it ends, as its memory goes
    with it.
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
                placement = _Placement(func)
                placement.end(func, placement.block(func.body.block, State()))
                placement.insert()
                if placement.accesses and not placement.before and not placement.clustered:
                    emit_remark(func, self.name, "no two accesses to shared memory need a barrier between them")


class _Placement:
    """Walks one kernel and decides in front of which operations threads wait; counts the accesses that it sees."""

    def __init__(self, func: FuncOp) -> None:
        self.accesses = 0
        self.before: dict[Operation, bool] = {}
        """In front of what threads wait, and whether for the whole cluster."""
        self.clustered = any(isinstance(o, PeerOp) for o in func.body.walk())
        self.fences: dict[Operation, None] = {}
        self.boxes = {o.shared for o in func.body.walk() if isinstance(o, TmaLoadOp)}
        self.multiplied = [a for o in func.body.walk() if isinstance(o, WgmmaOp) for a in accesses_of(o)]

    def insert(self) -> None:
        """Insert the barriers."""
        for op, cluster in self.before.items():
            found = role_of(op)
            barrier = BarrierOp() if found is None else GroupBarrierOp(1 + found[1], found[0].role_warps[found[1]])
            barrier = ClusterBarrierOp() if cluster else barrier
            made = [*([FenceAsyncOp()] if op in self.fences else []), barrier]
            copy_location(op, made)
            while isinstance(op.prev_op, WgmmaFenceOp):  # it belongs to the product
                op = op.prev_op
            assert op.parent is not None
            op.parent.insert_ops_before(made, op)

    def end(self, func: FuncOp, state: State) -> None:
        """A block that others may still read waits for them."""
        if any(a.peer for a in state.across):
            last = func.body.block.last_op
            assert last is not None
            barrier = ClusterBarrierOp()
            copy_location(last, (barrier,))
            func.body.block.add_op(barrier)

    def block(self, block: Block, state: State) -> State:
        """Decide for a block entered in `state`; the state at its end."""
        for op in block.ops:
            if isinstance(op, ClusterBarrierOp):
                state = replace(state, pending={}, across={})
            elif isinstance(op, BarrierOp) or _of_whole_role(op):
                state = replace(state, pending={})
            elif isinstance(op, RolesOp):
                state = self._roles(op, state)
            elif isinstance(op, AsyncCommitOp):
                state = replace(state, flying={a: min(age + 1, OLDEST) for a, age in state.flying.items()})
            elif isinstance(op, AsyncWaitOp):
                state = self._arrived(op, state)
            elif isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif op.regions:
                state = self._conditional(op, state)
            elif found := self._accesses(op):
                state = self._meet(op, found, state)
        return state

    def _accesses(self, op: Operation) -> list[Access]:
        """The accesses that barriers order: all but those to what boxes are loaded into, which mbarriers order."""
        return [a for a in accesses_of(op) if a.buffer not in self.boxes]

    def _roles(self, op: RolesOp, state: State) -> State:
        """Warps of one role wait for each other; different roles share nothing but what mbarriers order."""
        if state.pending:
            self.before[op] = False
        inside: list[Access] = []
        used: dict[SSAValue, int] = {}
        for number, program in enumerate(op.programs):
            for inner in program.walk():
                for access in self._accesses(inner):
                    inside.append(access)
                    if access.peer:
                        raise CompileError(
                            "reads another block's memory in a role, which no barrier of the cluster reaches",
                            operator=inner.name,
                            location=location_text(inner),
                        )
                    if used.setdefault(access.buffer, number) != number:
                        raise CompileError(
                            "two roles share a buffer that no mbarrier orders",
                            operator=inner.name,
                            location=location_text(inner),
                        )
            self.block(program.block, State(unfenced=state.unfenced))
        return State(across={**state.across, **self._tracked(inside)})

    def _tracked(self, accesses: Iterable[Access]) -> dict[Access, None]:
        """What has to be remembered until the next barrier of the cluster."""
        return dict.fromkeys(accesses) if self.clustered else {}

    def _meet(self, op: Operation, accesses: list[Access], state: State) -> State:
        self.accesses += len(accesses)
        for access in accesses:
            if any(access.conflicts(f) for f in state.flying):
                raise CompileError(
                    "touches what an asynchronous copy may still be writing: there is no wait in between",
                    operator=op.name,
                    location=location_text(op),
                )
        pending, unfenced, across = state.pending, state.unfenced, state.across
        clusterwide = any(a.conflicts_across(p) for a in accesses for p in across)
        unseen = any(a.conflicts(p) for a in accesses for p in unfenced) and self._multiplies(op)
        if clusterwide or unseen or any(a.conflicts(p) for a in accesses for p in pending):
            self.before[op] = clusterwide
            if unfenced:
                self.fences[op] = None
            pending, unfenced, across = {}, {}, {} if clusterwide else across
        across = {**across, **self._tracked(accesses)}
        if isinstance(op, CopyAsyncOp):
            return State(pending, {**state.flying, **dict.fromkeys(accesses, -1)}, unfenced, across)
        writes = self._multiplied(a for a in accesses if a.writes)
        return State({**pending, **dict.fromkeys(accesses)}, state.flying, {**unfenced, **writes}, across)

    def _multiplies(self, op: Operation) -> bool:
        return any(isinstance(o, WgmmaOp) for o in op.walk())

    def _multiplied(self, writes: Iterable[Access]) -> dict[Access, None]:
        """Which of `writes` may be to operands of products of warpgroups, in whatever slot."""
        return {a: None for a in writes if any(a.shares_memory(m) for m in self.multiplied)}

    def _accesses_inside(self, op: Operation) -> Iterator[Access]:
        for inner in op.walk():
            yield from self._accesses(inner)

    def _arrived(self, op: AsyncWaitOp, state: State) -> State:
        """The state behind a wait: what has arrived is a write that only this thread sees yet."""
        here = {a: None for a, age in state.flying.items() if age >= op.pending.data}
        flying = {a: age for a, age in state.flying.items() if a not in here}
        unfenced, across = {**state.unfenced, **self._multiplied(here)}, {**state.across, **self._tracked(here)}
        return State({**state.pending, **here}, flying, unfenced, across)

    def _loop(self, op: scf.ForOp, state: State) -> State:
        inside = list(self._accesses_inside(op))
        synchronises = any(isinstance(o, BarrierOp | ClusterBarrierOp | AsyncWaitOp) for o in op.walk())
        if not any(a.writes for a in inside) and not synchronises:
            return self._meet(op, inside, state)  # a loop that only reads waits once, in front of it
        to_first, to_next, to_after, if_skipped = renamings(op)
        before, fences, entry = dict(self.before), dict(self.fences), state.renamed(to_first)
        while True:  # what is decided holds for every iteration once the entry covers what an iteration leaves
            self.before, self.fences = dict(before), dict(fences)
            leaving = self.block(op.body.block, entry)
            again = leaving.renamed(to_next)
            if entry.covers(again):
                break
            entry = entry.joined(again)
        after = leaving.renamed(to_after)
        return after if _runs(op) else state.renamed(if_skipped).joined(after)

    def _conditional(self, op: Operation, state: State) -> State:
        """Threads may disagree about a condition, so no barrier goes inside: its accesses count as simultaneous."""
        if any(isinstance(o, AsyncCommitOp | AsyncWaitOp | CopyAsyncOp) for o in op.walk()):
            raise CompileError("asynchronous copies under a condition", operator=op.name, location=location_text(op))
        inside = list(self._accesses_inside(op))
        for number, a in enumerate(inside):
            if any(a.conflicts(b) or a.conflicts_across(b) for b in inside[:number]):
                raise CompileError(
                    "accesses under a condition would need a barrier between them",
                    operator=op.name,
                    location=location_text(op),
                )
        return self._meet(op, inside, state)


def _of_whole_role(op: Operation) -> bool:
    """Whether `op` lets all warps of its role wait for each other."""
    if not isinstance(op, GroupBarrierOp) or (found := role_of(op)) is None:
        return False
    return found[0].role_warps[found[1]] == op.warps.data


def _runs(op: scf.ForOp) -> bool:
    """Whether the loop surely runs at least once."""
    lb, ub = constant_index(op.lb), constant_index(op.ub)
    return lb is not None and ub is not None and lb < ub
