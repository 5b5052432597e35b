"""kernel-insert-barriers: the one pass that makes the threads of a block wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.shapes.ranges import trip_count
from ...dialects.support.locations import refused
from ...errors import CompileError
from ..pass_manager import FuncPass
from ..rewriting import insert_after, insert_before
from .ring_slots import LoopRenamings, Renaming, RingSlot, renamings

PARTIAL = (
    kernel.MapaOp,
    kernel.TmaLoadOp,
    kernel.TmaStoreOp,
    kernel.WarpSpecializeOp,
    kernel.WgmmaOp,
)
"""Operations by which a part of the threads, the hardware, or another block accesses shared memory."""

OLDEST = 64
"""Groups of copies older than this are not told apart."""


@dataclass(frozen=True)
class Access:
    """A read or write of the bytes [start, end) of a block's shared memory; without offsets, buffers are disjoint.

    slot                of a circular buffer, if the access is to one
    peer                true if the memory is that of another block
    warp_group_private  warps of a group that has a part of the buffer of its own
    """

    buffer: SSAValue
    start: int | None
    end: int
    writes: bool
    slot: RingSlot | None = None
    peer: bool = False
    warp_group_private: int | None = None

    def conflicts(self, other: Access) -> bool:
        """Returns true if the order of two accesses by different threads of a block matters."""
        return self.peer == other.peer and (self.writes or other.writes) and self.touches(other)

    def conflicts_across(self, other: Access) -> bool:
        """Returns true if the order of two accesses by different blocks of a cluster matters, in any iterations."""
        return self.peer != other.peer and (self.writes or other.writes) and self.shares_memory(other)

    def touches(self, other: Access) -> bool:
        if self.buffer is other.buffer and self.slot is not None and other.slot is not None:
            return not self.slot.is_disjoint(other.slot)
        return self.shares_memory(other)

    def shares_memory(self, other: Access) -> bool:
        """Returns true if the buffers of two accesses overlap, in any slots."""
        if self.buffer is other.buffer:
            return True
        if self.start is None or other.start is None:
            return False
        return self.start < other.end and other.start < self.end

    def renamed(self, slots: Renaming) -> Access:
        """Returns the access with the name of its slot elsewhere."""
        new = None if self.slot is None else slots.get((self.buffer, self.slot.offset))
        return self if self.slot is None or new is None else replace(self, slot=replace(self.slot, offset=new))


ACCESSING = (
    kernel.LoadOp,
    kernel.StoreOp,
    kernel.MatrixRows,
    kernel.CopyAsyncOp,
    kernel.TmaStoreOp,
    kernel.WgmmaOp,
)
"""Operations whose operands in shared memory barriers order."""


def accesses_of(op: Operation) -> list[Access]:
    """Returns the accesses of `op` to shared memory. Raises CompileError for memory of unknown origin."""
    memories = op.operands if isinstance(op, ACCESSING) else ()
    return [_access(op, m) for m in memories if (space := kernel.space_of(m.type)) is not None and space.of_block]


def _access(op: Operation, memory: SSAValue) -> Access:
    peer = isinstance(memory.owner, kernel.MapaOp)
    if isinstance(memory.owner, kernel.MapaOp):
        memory = memory.owner.shared
    slot = None
    if isinstance(memory.owner, kernel.SubviewOp):
        slot, memory = RingSlot.of(op, memory.owner), memory.owner.ring
    buffer = memory.owner
    if not isinstance(buffer, kernel.SharedOp):
        raise refused(op, "shared memory that is no kernel.shared", CompileError)
    start = None if buffer.offset is None else buffer.offset.data
    end = (start or 0) + kernel.memory_bytes(memory.type)
    writes = isinstance(op, kernel.StoreOp | kernel.CopyAsyncOp | kernel.StMatrixOp)
    private = None if buffer.warp_group_private is None else buffer.warp_group_private.data
    return Access(memory, start, end, writes, slot, peer, private)


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
        if not slots:
            return self
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
        if op.threads == 1:
            return
        placement = _Placement(op)
        placement.place(op)
        if any(placement.accesses.values()) and not placement.before and not placement.clustered:
            self.decline(op, "no two accesses to shared memory need a barrier between them")


class _Placement:
    """Walks one kernel and decides before which operations threads wait.

    accesses  operation -> the accesses that barriers order: all but those to what boxes are loaded into, which
              mbarriers order
    before    operation -> what threads do before it
    plain     true if every access is made by all threads of the block
    """

    def __init__(self, func: kernel.FuncOp) -> None:
        ops = [*func.body.walk()]
        boxes = {o.shared for o in ops if isinstance(o, kernel.TmaLoadOp)}
        self.accesses = {o: [a for a in accesses_of(o) if a.buffer not in boxes] for o in ops}
        self.before: dict[Operation, Need] = {}
        self.rotates = any(isinstance(o, kernel.SubviewOp) for o in ops)
        private = any(a.warp_group_private is not None for a in chain(*self.accesses.values()))
        self.plain = not private and not any(isinstance(o, PARTIAL) for o in ops)
        self.clustered = any(isinstance(o, kernel.MapaOp) for o in ops)
        self.read = [a for o in ops if isinstance(o, kernel.WgmmaOp | kernel.TmaStoreOp) for a in accesses_of(o)]

    def place(self, func: kernel.FuncOp) -> None:
        """Decides where threads wait, and inserts the waits."""
        end = self.block(func.body.block, NOTHING)
        for op, need in self.before.items():
            place = op
            while isinstance(place.prev_op, kernel.WgmmaFenceOp):  # it belongs to the product
                place = place.prev_op
            insert_before(place, *([kernel.BarrierOp()] if self.plain else _waits(op, need)), source=op)
        if not self.plain:
            self.end(func, end)

    def end(self, func: kernel.FuncOp, state: State) -> None:
        """Lets a block wait at its end: for the blocks that may still read its memory, and for the boxes that are being
        stored from it."""
        if any(a.peer for a in state.across):
            last = func.body.block.last_op
            assert last is not None
            insert_after(last, kernel.ClusterBarrierOp())
        _end_sending(func.body.block, state)

    def block(self, block: Block, state: State) -> State:
        """Decide for a block entered in `state`; the state at its end."""
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif op.regions:
                state = self._roles(op, state) if isinstance(op, kernel.WarpSpecializeOp) else self._inside(op, state)
            elif accesses := self.accesses[op]:
                state = self._meet(op, accesses, state)
            elif (step := _STEPS.get(type(op))) is not None:
                state = step(self, op, state)
        return state

    def _roles(self, op: kernel.WarpSpecializeOp, state: State) -> State:
        """Warps of one partition wait for each other; different partitions share nothing but what mbarriers order."""
        if state.pending:
            self.before[op] = Need()
        inside: list[Access] = []
        used: dict[SSAValue, int] = {}
        for number, program in enumerate(op.programs):
            for inner in program.walk():
                for access in self.accesses[inner]:
                    inside.append(access)
                    if used.setdefault(access.buffer, number) != number:
                        raise refused(inner, "two partitions share a buffer that no mbarrier orders", CompileError)
            _end_sending(program.block, self.block(program.block, NOTHING._replace(unfenced=state.unfenced)))
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
        for program, waits in zip(op.programs, found, strict=True):
            program.block.add_ops(kernel.ClusterBarrierOp() for _ in range(most - len(waits)))

    def _tracked(self, accesses: Iterable[Access]) -> Ages:
        """What has to be remembered until the next barrier of the cluster."""
        return dict.fromkeys(accesses, 0) if self.clustered else {}

    def _meet(self, op: Operation, accesses: list[Access], state: State) -> State:
        if state.flying:
            _refuse_in_flight(op, accesses, state)
        met = [(a, p) for a in accesses for p in state.pending if a.conflicts(p)]
        if not self.plain:
            return self._meet_partial(op, accesses, met, state)
        if met:
            self.before[op] = Need()
            state = state._replace(pending={})
        if isinstance(op, kernel.CopyAsyncOp):
            return state._replace(flying={**state.flying, **dict.fromkeys(accesses, -1)})
        return state._replace(pending={**state.pending, **dict.fromkeys(accesses, 0)})

    def _meet_partial(
        self, op: Operation, accesses: list[Access], met: list[tuple[Access, Access]], state: State
    ) -> State:
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
        if not self.plain:
            unfenced, across = {**state.unfenced, **self._read(here)}, {**state.across, **self._tracked(here)}
            state = state._replace(unfenced=unfenced, across=across)
        return state._replace(pending={**state.pending, **here}, flying=flying)

    def _loop(self, op: scf.ForOp, state: State) -> State:
        inside = [a for inner in op.walk() for a in self.accesses[inner]]
        kinds = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.AsyncWaitOp | kernel.BulkCommitOp
        synchronises = any(isinstance(o, kinds) for o in op.walk())
        if not any(a.writes for a in inside) and not synchronises:
            return self._meet(op, inside, state)  # a loop that only reads waits once, in front of it
        names = renamings(op) if self.rotates else LoopRenamings()
        before, entry = dict(self.before), state.renamed(names.entry)
        while True:  # what is decided holds for every iteration once the entry covers what an iteration leaves
            self.before = dict(before)
            leaving = self.block(op.body.block, entry)
            again = leaving.renamed(names.again)
            if entry.covers(again):
                break
            entry = entry.joined(again)
        after = leaving.renamed(names.leaving)
        return after if trip_count(op) else state.renamed(names.skipped).joined(after)

    def _inside(self, op: Operation, state: State) -> State:
        """Threads may disagree about a condition, so no barrier goes inside: its accesses count as simultaneous."""
        if any(isinstance(o, kernel.AsyncCommitOp | kernel.AsyncWaitOp | kernel.CopyAsyncOp) for o in op.walk()):
            raise refused(op, "asynchronous copies under a condition", CompileError)
        inside = [a for inner in op.walk() for a in self.accesses[inner]]
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


def _refuse_in_flight(op: Operation, accesses: Iterable[Access], state: State) -> None:
    """Raises CompileError if an access touches the target of a copy that no thread has waited for."""
    if any(access.conflicts(copy) for access in accesses for copy in state.flying):
        why = "touches what an asynchronous copy may still be writing: there is no wait in between"
        raise refused(op, why, CompileError)


def _end_sending(block: Block, state: State) -> None:
    """Lets a program end once everything that it stores has been read."""
    if state.sending:
        block.add_op(kernel.BulkWaitOp(0, read=True))


def _waits(op: Operation, need: Need) -> Iterator[Operation]:
    """The operations before `op` by which threads do what they need."""
    if need.groups is not None:
        yield kernel.BulkWaitOp(need.groups, read=True)
    if need.fence:
        yield kernel.FenceAsyncOp()
    yield kernel.ClusterBarrierOp() if need.cluster else _barrier(op, need.warp_group_private)


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
