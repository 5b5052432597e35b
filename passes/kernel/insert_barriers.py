"""kernel-insert-barriers: the one pass that makes the threads of a block wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.shapes.ranges import trip_count
from ...dialects.support.locations import refused
from ...errors import CompileError
from ..analysis.shared_memory import Access, Renaming, accesses_of, renamings
from ..anchored import FuncPass
from ..rewriting import insert_after, insert_before

ASYNCHRONOUS = (kernel.MapaOp, kernel.CopyAsyncOp, kernel.TmaLoadOp, kernel.TmaStoreOp, kernel.WgmmaOp)
"""Operations that read or write shared memory without the threads of the block, or that of another block."""

OLDEST = 64
"""Groups of copies older than this are not told apart."""


Ages = dict[Access, int]
"""Accesses, each with the number of groups that were closed since its own, -1 for one in an open group; 0 where there
are no groups."""


class State(NamedTuple):
    """What has happened to shared memory: `pending` are the accesses since the last barrier, in order; `flying` the
    copies that may still be on their way; `unfenced` the writes of threads that the asynchronous proxy does not see
    yet; `across` the accesses since the last barrier of the cluster, in kernels that read other blocks' memory;
    `sending` what boxes that are being stored may still read."""

    pending: Ages
    flying: Ages
    unfenced: Ages
    across: Ages
    sending: Ages

    def joined(self, other: State) -> State:
        return State(*(_youngest((*one.items(), *two.items())) for one, two in zip(self, other, strict=True)))

    def covers(self, other: State) -> bool:
        pairs = zip(self, other, strict=True)
        return all(a in own and own[a] <= age for own, theirs in pairs for a, age in theirs.items())

    def renamed(self, slots: Renaming) -> State:
        return State(*(_youngest((a.renamed(slots), age) for a, age in part.items()) for part in self))


NOTHING = State({}, {}, {}, {}, {})


def _youngest(ages: Iterable[tuple[Access, int]]) -> Ages:
    found: Ages = {}
    for access, age in ages:
        found[access] = min(age, found.get(access, age))
    return found


@dataclass(frozen=True)
class Need:
    """What threads do in front of an operation: wait until all but `groups` of their bulk groups have been read, order
    their stores before the asynchronous proxy, and wait for each other: in groups of `apart` warps, all of them, or
    with those of the whole cluster."""

    warp_group_private: int | None = None
    fence: bool = False
    groups: int | None = None
    cluster: bool = False


class InsertBarriersPass(FuncPass):
    """Insert a barrier wherever threads would otherwise race for shared memory.

    What: follows each kernel in program order and remembers the shared accesses since the last barrier. In front of an
    access that meets a pending one of the same bytes, at least one of them a write, it inserts a barrier, which clears
    all of them. A loop is followed until nothing changes, with what is pending at its end pending at its start; one
    that only reads shared memory waits once, in front of it. An asynchronous copy is a write in the place where its
    thread has waited for it; to meet it earlier is an error, which no barrier could mend. Slots of a ring are apart
    where a loop only lets them change places. In front of a product of warpgroups that reads what threads stored, each
    thread also orders its stores before asynchronous readers (`kernel.fence_async`). So it does in front of a box that
    is stored from shared memory; what that may still read is overwritten behind a wait for its bulk group, and the
    kernel ends behind one. Inside of a partition it is the partition's warps that wait, or a warpgroup's, where a
    buffer is used by each of them `apart`; what boxes are loaded into is left to mbarriers. Where a block of a cluster
    reads what others store, or stores what others read, it waits for the whole cluster; and once more before it ends,
    as its memory goes with it. Where that is in a partition, the other partitions wait as often at their ends.
    Why: a barrier is as late as it can be, so one serves as many pairs as it can; and only one pass has to be right.
    Why here: it needs the final offsets of shared buffers (`kernel-allocate-shared`) and no later pass may move an
    access.

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

    name = "kernel-insert-barriers"
    needs: ClassVar[Mapping[str, int]] = {"kernel.shared": 1}

    def on(self, op: kernel.FuncOp) -> None:
        if op.threads > 1:
            placement = _Placement(op)
            placement.end(op, placement.whole(op.body.block, NOTHING))
            placement.insert()
            if placement.accesses and not placement.before and not placement.clustered:
                self.decline(op, "no two accesses to shared memory need a barrier between them")


class _Placement:
    """Walks one kernel and decides in front of which operations threads wait; counts the accesses that it sees."""

    def __init__(self, func: kernel.FuncOp) -> None:
        self.accesses = 0
        self.before: dict[Operation, Need] = {}
        self.ends: list[Block] = []
        self.late: dict[Block, int] = {}
        """Barriers of the cluster at the ends of partitions, for those inside of others."""
        ops = [*func.body.walk()]
        self.clustered = any(isinstance(o, kernel.MapaOp) for o in ops)
        self.asynchronous = any(isinstance(o, ASYNCHRONOUS) for o in ops)
        self.boxes = {o.shared for o in ops if isinstance(o, kernel.TmaLoadOp)}
        self.read = [a for o in ops if isinstance(o, kernel.WgmmaOp | kernel.TmaStoreOp) for a in accesses_of(o)]
        self._known: dict[Operation, list[Access]] = {}

    def insert(self) -> None:
        for op, need in self.before.items():
            wait = [] if need.groups is None else [kernel.BulkWaitOp(need.groups, read=True)]
            fence = [kernel.FenceAsyncOp()] if need.fence else []
            barrier = kernel.ClusterBarrierOp() if need.cluster else _barrier(op, need.warp_group_private)
            place = op
            while isinstance(place.prev_op, kernel.WgmmaFenceOp):  # it belongs to the product
                place = place.prev_op
            insert_before(place, *wait, *fence, barrier, source=op)
        for block in self.ends:
            block.add_op(kernel.BulkWaitOp(0, read=True))
        for block, count in self.late.items():
            block.add_ops(kernel.ClusterBarrierOp() for _ in range(count))

    def whole(self, block: Block, state: State) -> State:
        """Decide for a program, which ends once everything that it stores has been read; the state at its end."""
        state = self.block(block, state)
        if state.sending:
            self.ends.append(block)
        return state

    def end(self, func: kernel.FuncOp, state: State) -> None:
        """A block that others may still read waits for them."""
        if any(a.peer for a in state.across):
            last = func.body.block.last_op
            assert last is not None
            insert_after(last, kernel.ClusterBarrierOp())

    def block(self, block: Block, state: State) -> State:
        """Decide for a block entered in `state`; the state at its end."""
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif op.regions:
                state = self._roles(op, state) if isinstance(op, kernel.WarpSpecializeOp) else self._inside(op, state)
            elif found := self._accesses(op):
                state = self._meet(op, found, state)
            elif (step := _STEPS.get(type(op))) is not None:
                state = step(self, op, state)
        return state

    def _accesses(self, op: Operation) -> list[Access]:
        """The accesses that barriers order: all but those to what boxes are loaded into, which mbarriers order."""
        if op not in self._known:
            self._known[op] = [a for a in accesses_of(op) if a.buffer not in self.boxes]
        return self._known[op]

    def _roles(self, op: kernel.WarpSpecializeOp, state: State) -> State:
        """Warps of one partition wait for each other; different partitions share nothing but what mbarriers order."""
        if state.pending:
            self.before[op] = Need()
        inside: list[Access] = []
        used: dict[SSAValue, int] = {}
        for number, program in enumerate(op.programs):
            for inner in program.walk():
                for access in self._accesses(inner):
                    inside.append(access)
                    if used.setdefault(access.buffer, number) != number:
                        raise refused(inner, "two partitions share a buffer that no mbarrier orders", CompileError)
            self.whole(program.block, NOTHING._replace(unfenced=state.unfenced))
        self._meet_cluster(op)
        return NOTHING._replace(across={**state.across, **self._tracked(inside)})

    def _meet_cluster(self, op: kernel.WarpSpecializeOp) -> None:
        """Lets each partition wait for the cluster as often as the one that does so most often. Raises CompileError for
        a wait in a loop or a condition, as the number of waits is then unknown."""
        found = [[o for o, need in self.before.items() if need.cluster and p.is_ancestor(o)] for p in op.programs]
        for program, waits in zip(op.programs, found, strict=True):
            for inner in waits:
                if inner.parent is not program.block:
                    why = "reads another block's memory in a loop or condition of a partition"
                    raise refused(inner, why, CompileError)
        most = max(map(len, found))
        self.late = {p.block: most - len(waits) for p, waits in zip(op.programs, found, strict=True)}

    def _tracked(self, accesses: Iterable[Access]) -> Ages:
        """What has to be remembered until the next barrier of the cluster."""
        return dict.fromkeys(accesses, 0) if self.clustered else {}

    def _meet(self, op: Operation, accesses: list[Access], state: State) -> State:
        self.accesses += len(accesses)
        met = [(a, p) for a in accesses for p in state.pending if a.conflicts(p)]
        if self.asynchronous:
            return self._meet_asynchronous(op, accesses, met, state)
        state = self._wait(op, met, None, False, state) if met else state
        return state._replace(pending={**state.pending, **dict.fromkeys(accesses, 0)})

    def _meet_asynchronous(
        self, op: Operation, accesses: list[Access], met: list[tuple[Access, Access]], state: State
    ) -> State:
        if any(access.conflicts(f) for access in accesses for f in state.flying):
            why = "touches what an asynchronous copy may still be writing: there is no wait in between"
            raise refused(op, why, CompileError)
        boxes = [a for o in op.walk() if isinstance(o, kernel.TmaStoreOp) for a in accesses_of(o)]
        asynchronous = bool(boxes) or any(isinstance(o, kernel.WgmmaOp) for o in op.walk())
        sent = [(a, s) for a in accesses for s in state.sending if a.writes and a.touches(s)]
        groups = [state.sending[s] for _, s in sent]
        met = sent + met
        if asynchronous:
            met += [(a, p) for a in accesses for p in state.unfenced if a.conflicts(p)]
        if min(groups, default=0) < 0:
            raise refused(op, "overwrites what a box may still be stored from: its bulk group is open", CompileError)
        clusterwide = any(a.conflicts_across(p) for a in accesses for p in state.across)
        if met or clusterwide:
            state = self._wait(op, met, min(groups, default=None), clusterwide, state)
        state = state._replace(across={**state.across, **self._tracked(accesses)})
        if isinstance(op, kernel.CopyAsyncOp):
            return state._replace(flying={**state.flying, **dict.fromkeys(accesses, -1)})
        by_threads = [a for a in accesses if a not in boxes]
        writes = self._read(a for a in by_threads if a.writes)
        return state._replace(
            pending={**state.pending, **dict.fromkeys(by_threads, 0)},
            unfenced={**state.unfenced, **writes},
            sending={**state.sending, **dict.fromkeys(boxes, -1)},
        )

    def _wait(
        self, op: Operation, met: list[tuple[Access, Access]], groups: int | None, cluster: bool, state: State
    ) -> State:
        """Let threads wait in front of `op`; the state behind that."""
        sizes = {a.warp_group_private if a.buffer is b.buffer else None for a, b in met}
        apart = sizes.pop() if len(sizes) == 1 and not cluster else None
        pending, unfenced = (
            {a: 0 for a in d if apart is not None and a.warp_group_private != apart}
            for d in (state.pending, state.unfenced)
        )
        self.before[op] = Need(apart, len(unfenced) < len(state.unfenced), groups, cluster)
        sending = {a: age for a, age in state.sending.items() if groups is None or age < groups}
        across = {} if cluster else state.across
        return state._replace(pending=pending, unfenced=unfenced, sending=sending, across=across)

    def _read(self, writes: Iterable[Access]) -> Ages:
        """Which of `writes` the asynchronous proxy may read, in whatever slot: operands of products, boxes."""
        return {a: 0 for a in writes if any(a.shares_memory(m) for m in self.read)}

    def arrived(self, op: kernel.AsyncWaitOp, state: State) -> State:
        """The state behind a wait: what has arrived is a write that only this thread sees yet."""
        here = {a: 0 for a, age in state.flying.items() if age >= op.pending.data}
        flying = {a: age for a, age in state.flying.items() if a not in here}
        return state._replace(
            pending={**state.pending, **here},
            flying=flying,
            unfenced={**state.unfenced, **self._read(here)},
            across={**state.across, **self._tracked(here)},
        )

    def _loop(self, op: scf.ForOp, state: State) -> State:
        inside = [a for inner in op.walk() for a in self._accesses(inner)]
        kinds = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.AsyncWaitOp | kernel.BulkCommitOp
        synchronises = any(isinstance(o, kinds) for o in op.walk())
        if not any(a.writes for a in inside) and not synchronises:
            return self._meet(op, inside, state)  # a loop that only reads waits once, in front of it
        to_first, to_next, to_after, if_skipped = renamings(op)
        before, entry = dict(self.before), state.renamed(to_first)
        while True:  # what is decided holds for every iteration once the entry covers what an iteration leaves
            self.before = dict(before)
            leaving = self.block(op.body.block, entry)
            again = leaving.renamed(to_next)
            if entry.covers(again):
                break
            entry = entry.joined(again)
        after = leaving.renamed(to_after)
        return after if trip_count(op) else state.renamed(if_skipped).joined(after)

    def _inside(self, op: Operation, state: State) -> State:
        """Threads may disagree about a condition, so no barrier goes inside: its accesses count as simultaneous."""
        if any(isinstance(o, kernel.AsyncCommitOp | kernel.AsyncWaitOp | kernel.CopyAsyncOp) for o in op.walk()):
            raise refused(op, "asynchronous copies under a condition", CompileError)
        inside = [a for inner in op.walk() for a in self._accesses(inner)]
        for number, a in enumerate(inside):
            if any(a.conflicts(b) or a.conflicts_across(b) for b in inside[:number]):
                raise refused(op, "accesses under a condition would need a barrier between them", CompileError)
        state = self._meet(op, inside, state)
        for inner in op.walk():
            if isinstance(inner, kernel.BulkCommitOp | kernel.BulkWaitOp):
                state = _STEPS[type(inner)](self, inner, state)
        return state


_STEPS: dict[type[Operation], Callable[[_Placement, Any, State], State]] = {
    kernel.BarrierOp: lambda placement, op, state: state._replace(pending={}),
    kernel.ClusterBarrierOp: lambda placement, op, state: state._replace(pending={}, across={}),
    kernel.GroupBarrierOp: lambda placement, op, state: state._replace(pending={}) if _of_whole_role(op) else state,
    kernel.AsyncCommitOp: lambda placement, op, state: state._replace(flying=_closed(state.flying)),
    kernel.AsyncWaitOp: lambda placement, op, state: placement.arrived(op, state),
    kernel.BulkCommitOp: lambda placement, op, state: state._replace(sending=_closed(state.sending)),
    kernel.BulkWaitOp: lambda placement, op, state: state._replace(sending=_unread(op, state.sending)),
}
"""Operation -> the state after it."""


def _closed(ages: Ages) -> Ages:
    return {a: min(age + 1, OLDEST) for a, age in ages.items()}


def _unread(op: kernel.BulkWaitOp, sending: Ages) -> Ages:
    """What may still be read behind a wait for bulk groups."""
    return {a: age for a, age in sending.items() if age < op.pending.data}


def _barrier(op: Operation, warp_group_private: int | None) -> Operation:
    """A barrier in front of `op`: of the block, of its partition, or of groups of warps. Partitions come first in the
    numbers of hardware barriers."""
    partitions, mine = kernel.partition_of(op) or (None, 0)
    if warp_group_private is not None:
        return kernel.GroupBarrierOp(1 + (len(partitions.programs) if partitions else 0), warp_group_private)
    return kernel.GroupBarrierOp(1 + mine, partitions.partition_warps[mine]) if partitions else kernel.BarrierOp()


def _of_whole_role(op: kernel.GroupBarrierOp) -> bool:
    """Whether `op` lets all warps of its partition wait for each other."""
    found = kernel.partition_of(op)
    return found is not None and found[0].partition_warps[found[1]] == op.warps.data
