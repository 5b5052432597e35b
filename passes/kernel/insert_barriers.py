"""`kernel-insert-barriers`: inserts the barriers that accesses of shared memory need.

The pass walks a kernel in program order. A `State` holds the accesses that no barrier has ordered yet. An operation
whose `Access` conflicts with one of them gets a `Wait` before it: a barrier, and perhaps a fence.

Three kinds of accesses are asynchronous:

- `kernel.copy_async` (cp.async) writes shared memory. Its own thread sees the data after `kernel.async_wait`, other
  threads after a further barrier.
- `kernel.tma_store` reads shared memory until its bulk group has been waited for (`kernel.bulk_wait`).
- `kernel.wgmma` and `kernel.tma_store` read through the asynchronous proxy, which sees the stores of threads only after
  `kernel.fence_async`.
"""

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

NOT_BY_WHOLE_BLOCK = (
    kernel.MapaOp,
    kernel.TmaLoadOp,
    kernel.TmaStoreOp,
    kernel.WarpSpecializeOp,
    kernel.WgmmaOp,
)
"""Operations that let some warps, the TMA unit, the tensor cores or another block access shared memory. In kernels with
them, a barrier of all threads of the block is not always enough."""

MAX_TRACKED_GROUPS = 64
"""Number of async copy groups that are tracked separately. Older groups are merged, which is conservative."""


@dataclass(frozen=True)
class Access:
    """Read or write of a buffer in shared memory.

    buffer              the buffer, or the circular buffer that contains the accessed slot
    start, end          byte range of the whole buffer; `start` is None before `kernel-allocate-shared`, and buffers
                        are then disjoint
    slot                the accessed slot of a circular buffer, else None
    peer                true if the memory belongs to another block of the cluster
    warp_group_private  if groups of warps use disjoint parts of the buffer: the warps in a group; else None
    """

    buffer: SSAValue
    start: int | None
    end: int
    writes: bool
    slot: RingSlot | None = None
    peer: bool = False
    warp_group_private: int | None = None

    def conflicts(self, other: Access) -> bool:
        """Returns true if two accesses by different threads of one block must be ordered by a barrier."""
        return self.peer == other.peer and (self.writes or other.writes) and self.touches(other)

    def conflicts_across(self, other: Access) -> bool:
        """Returns true if two accesses by different blocks of a cluster must be ordered by a barrier of the cluster.
        Slots are ignored, as blocks may be in different iterations."""
        return self.peer != other.peer and (self.writes or other.writes) and self.shares_memory(other)

    def touches(self, other: Access) -> bool:
        if self.buffer is other.buffer and self.slot is not None and other.slot is not None:
            return not self.slot.is_disjoint(other.slot)
        return self.shares_memory(other)

    def shares_memory(self, other: Access) -> bool:
        """Returns true if the buffers of two accesses overlap, whatever slots they access."""
        if self.buffer is other.buffer:
            return True
        if self.start is None or other.start is None:
            return False
        return self.start < other.end and other.start < self.end

    def renamed(self, slots: Renaming) -> Access:
        """Returns the access with its slot replaced according to `slots`, unchanged if `slots` does not have it."""
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
"""Operations that read or write their operands in shared memory, and whose accesses need barriers."""


def accesses_of(op: Operation) -> list[Access]:
    """Returns the accesses of `op` to shared memory.

    Raises:
        CompileError: The memory is not the result of a `kernel.shared`, or a slot of one.
    """
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
        raise refused(op, "expected shared memory that kernel.shared defines, but got another value", CompileError)
    start = None if buffer.offset is None else buffer.offset.data
    end = (start or 0) + kernel.memory_bytes(memory.type)
    writes = isinstance(op, kernel.StoreOp | kernel.CopyAsyncOp | kernel.StMatrixOp)
    private = None if buffer.warp_group_private is None else buffer.warp_group_private.data
    return Access(memory, start, end, writes, slot, peer, private)


Ages = dict[Access, int]
"""Access -> its age: the number of async groups that were committed after the group of the access. It is -1 while the
group of the access is open (not committed), and 0 for accesses that belong to no group."""


class State(NamedTuple):
    """Accesses of shared memory that are not ordered yet, at one point of the program.

    pending          accesses since the last barrier of the block, in program order
    async_writes     writes of `kernel.copy_async` that no `kernel.async_wait` has completed
    unfenced         writes of threads since the last `kernel.fence_async`, which the asynchronous proxy may not see
    cluster_pending  accesses since the last barrier of the cluster; empty in kernels that do not access the memory of
                     other blocks
    tma_reads        reads of `kernel.tma_store` whose bulk group no `kernel.bulk_wait` has completed
    """

    pending: Ages
    async_writes: Ages
    unfenced: Ages
    cluster_pending: Ages
    tma_reads: Ages

    def joined(self, other: State) -> State:
        """Returns the state where two paths meet: the accesses of both."""
        return State(*(_youngest((*one.items(), *two.items())) for one, two in zip(self, other, strict=True)))

    def covers(self, other: State) -> bool:
        """Returns true if every access of `other` is in this state, with the same age or a lower one."""
        pairs = zip(self, other, strict=True)
        return all(a in mine and mine[a] <= age for mine, theirs in pairs for a, age in theirs.items())

    def renamed(self, slots: Renaming) -> State:
        """Returns the state with the slots of its accesses replaced according to `slots`."""
        if not slots:
            return self
        return State(*(_youngest((a.renamed(slots), age) for a, age in part.items()) for part in self))


EMPTY_STATE = State({}, {}, {}, {}, {})


def _youngest(ages: Iterable[tuple[Access, int]]) -> Ages:
    lowest: Ages = {}
    for access, age in ages:
        lowest[access] = min(age, lowest.get(access, age))
    return lowest


@dataclass(frozen=True)
class Wait:
    """Synchronisation before an operation.

    warp_group_private  if not None, the barrier is among groups of this many warps; otherwise of all threads of the
                        block or partition
    fence               true if each thread executes `kernel.fence_async` before the barrier
    groups              if not None, each thread waits until at most this many of its bulk groups are still being read
    cluster             true if the barrier is of the whole cluster
    """

    warp_group_private: int | None = None
    fence: bool = False
    groups: int | None = None
    cluster: bool = False


class InsertBarriersPass(FuncPass):
    """Inserts a barrier wherever threads would otherwise race for shared memory.

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

    The pass tracks the accesses since the last barrier, in program order. If an access and a tracked access overlap and
    one of them is a write, it inserts a barrier, which clears the tracked accesses.

    - **Loops** are walked until the tracked accesses no longer change, so dependences on earlier iterations count. A
      loop that only reads shared memory gets one barrier, before it.
    - **Circular buffers**: two slots are disjoint if the loop only rotates them.
    - **`kernel.copy_async`** is a write at the `kernel.async_wait` of its thread. An access before the wait is an
      error, which no barrier can repair.
    - **`kernel.wgmma`** and **`kernel.tma_store`** read through the asynchronous proxy. If they read the stores of
      threads, `kernel.fence_async` is inserted before the barrier. The source of a `kernel.tma_store` is overwritten
      only after a wait for its bulk group, and the kernel ends with such a wait.
    - **Partitions**: a barrier in a partition is of its warps only, or of one group of warps if each group uses its own
      part of the buffer. Buffers that `kernel.tma_load` writes are skipped, as mbarriers order their accesses.
    - **Clusters**: an access of another block's memory gets a barrier of the whole cluster. A further one at the end
      keeps a block's memory alive until no block reads it. If one partition waits for the cluster, the other
      partitions wait equally often at their ends.

    **Rationale**: a barrier is inserted as late as possible, so that it orders as many accesses as possible. No other
    pass has to reason about races.

    **Pipeline position**: after `kernel-allocate-shared`, as buffers may overlap. No later pass moves an access.
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

    accesses        operation -> its accesses that need barriers; buffers that `kernel.tma_load` writes are excluded, as
                    mbarriers order their accesses
    before          operation -> the wait to insert before it
    rotates         true if the kernel has circular buffers
    by_whole_block  true if all threads of the block make every access, so that barriers of the block suffice
    clustered       true if the kernel accesses the memory of other blocks
    async_reads     accesses that read through the asynchronous proxy (`kernel.wgmma`, `kernel.tma_store`)
    """

    def __init__(self, func: kernel.FuncOp) -> None:
        ops = [*func.body.walk()]
        tma_buffers = {o.shared for o in ops if isinstance(o, kernel.TmaLoadOp)}
        self.accesses = {o: [a for a in accesses_of(o) if a.buffer not in tma_buffers] for o in ops}
        self.before: dict[Operation, Wait] = {}
        self.rotates = any(isinstance(o, kernel.SubviewOp) for o in ops)
        private = any(a.warp_group_private is not None for a in chain(*self.accesses.values()))
        self.by_whole_block = not private and not any(isinstance(o, NOT_BY_WHOLE_BLOCK) for o in ops)
        self.clustered = any(isinstance(o, kernel.MapaOp) for o in ops)
        self.async_reads = [a for o in ops if isinstance(o, kernel.WgmmaOp | kernel.TmaStoreOp) for a in accesses_of(o)]

    def place(self, func: kernel.FuncOp) -> None:
        """Inserts the waits of a kernel."""
        end = self.block(func.body.block, EMPTY_STATE)
        for op, wait in self.before.items():
            position = op
            # The fence must directly precede its kernel.wgmma.
            while isinstance(position.prev_op, kernel.WgmmaFenceOp):
                position = position.prev_op
            insert_before(position, *([kernel.BarrierOp()] if self.by_whole_block else _wait_ops(op, wait)), source=op)
        if not self.by_whole_block:
            self.end(func, end)

    def end(self, func: kernel.FuncOp, state: State) -> None:
        """Inserts the waits at the end of a kernel: for other blocks that may still read this block's memory, and for
        TMA stores that may still read it."""
        if any(a.peer for a in state.cluster_pending):
            last = func.body.block.last_op
            assert last is not None
            insert_after(last, kernel.ClusterBarrierOp())
        _await_tma_stores(func.body.block, state)

    def block(self, block: Block, state: State) -> State:
        """Decides the waits in a block of operations. `state` is the state before it; returns the state after it."""
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif op.regions:
                state = (
                    self._partitions(op, state)
                    if isinstance(op, kernel.WarpSpecializeOp)
                    else self._condition(op, state)
                )
            elif accesses := self.accesses[op]:
                state = self._visit(op, accesses, state)
            elif (update := _STATE_UPDATES.get(type(op))) is not None:
                state = update(self, op, state)
        return state

    def _partitions(self, op: kernel.WarpSpecializeOp, state: State) -> State:
        """Decides the waits in each partition on its own. Raises CompileError if two partitions access the same buffer,
        as no barrier inside a partition can order them."""
        if state.pending:
            self.before[op] = Wait()
        inside: list[Access] = []
        partition_of_buffer: dict[SSAValue, int] = {}
        for number, program in enumerate(op.programs):
            for inner in program.walk():
                for access in self.accesses[inner]:
                    inside.append(access)
                    if partition_of_buffer.setdefault(access.buffer, number) != number:
                        raise refused(inner, "two partitions share a buffer that no mbarrier orders", CompileError)
            _await_tma_stores(program.block, self.block(program.block, EMPTY_STATE._replace(unfenced=state.unfenced)))
        self._balance_cluster_barriers(op)
        return EMPTY_STATE._replace(cluster_pending={**state.cluster_pending, **self._tracked(inside)})

    def _balance_cluster_barriers(self, op: kernel.WarpSpecializeOp) -> None:
        """Appends barriers of the cluster so that every partition executes the same number. Raises CompileError if one
        is in a loop or condition, as their number is then unknown."""
        waits_of_partitions = [
            [o for o, wait in self.before.items() if wait.cluster and p.is_ancestor(o)] for p in op.programs
        ]
        for program, waits in zip(op.programs, waits_of_partitions, strict=True):
            for inner in waits:
                if inner.parent is not program.block:
                    why = "reads another block's memory in a loop or condition of a partition"
                    raise refused(inner, why, CompileError)
        most = max(map(len, waits_of_partitions))
        for program, waits in zip(op.programs, waits_of_partitions, strict=True):
            program.block.add_ops(kernel.ClusterBarrierOp() for _ in range(most - len(waits)))

    def _tracked(self, accesses: Iterable[Access]) -> Ages:
        """Returns `accesses` with age 0, for `State.cluster_pending`; empty if blocks access only their own memory."""
        return dict.fromkeys(accesses, 0) if self.clustered else {}

    def _visit(self, op: Operation, accesses: list[Access], state: State) -> State:
        """Decides the wait before an operation with `accesses`, and returns the state after the operation."""
        if state.async_writes:
            _refuse_in_flight(op, accesses, state)
        conflicts = [(a, p) for a in accesses for p in state.pending if a.conflicts(p)]
        if not self.by_whole_block:
            return self._visit_mixed(op, accesses, conflicts, state)
        if conflicts:
            self.before[op] = Wait()
            state = state._replace(pending={})
        if isinstance(op, kernel.CopyAsyncOp):
            return state._replace(async_writes={**state.async_writes, **dict.fromkeys(accesses, -1)})
        return state._replace(pending={**state.pending, **dict.fromkeys(accesses, 0)})

    def _visit_mixed(
        self, op: Operation, accesses: list[Access], conflicts: list[tuple[Access, Access]], state: State
    ) -> State:
        """Does the same as `_visit` in a kernel where some warps, the hardware or other blocks access shared memory.

        `conflicts` are pairs of an access of `op` and a pending access.
        """
        tma_reads = [a for o in op.walk() if isinstance(o, kernel.TmaStoreOp) for a in accesses_of(o)]
        asynchronous = bool(tma_reads) or any(isinstance(o, kernel.WgmmaOp) for o in op.walk())
        overwritten = [(a, s) for a in accesses for s in state.tma_reads if a.writes and a.touches(s)]
        groups = [state.tma_reads[s] for _, s in overwritten]
        conflicts = overwritten + conflicts
        if asynchronous:
            conflicts += [(a, p) for a in accesses for p in state.unfenced if a.conflicts(p)]
        if min(groups, default=0) < 0:
            raise refused(
                op,
                "overwrites the source of a TMA store whose bulk group is open: commit the group and wait for it first",
                CompileError,
            )
        clusterwide = any(a.conflicts_across(p) for a in accesses for p in state.cluster_pending)
        if conflicts or clusterwide:
            state = self._wait(op, conflicts, min(groups, default=None), clusterwide, state)
        state = state._replace(cluster_pending={**state.cluster_pending, **self._tracked(accesses)})
        if isinstance(op, kernel.CopyAsyncOp):
            return state._replace(async_writes={**state.async_writes, **dict.fromkeys(accesses, -1)})
        by_threads = [a for a in accesses if a not in tma_reads]
        writes = self._read_asynchronously(a for a in by_threads if a.writes)
        return state._replace(
            pending={**state.pending, **dict.fromkeys(by_threads, 0)},
            unfenced={**state.unfenced, **writes},
            tma_reads={**state.tma_reads, **dict.fromkeys(tma_reads, -1)},
        )

    def _wait(
        self, op: Operation, conflicts: list[tuple[Access, Access]], groups: int | None, cluster: bool, state: State
    ) -> State:
        """Records the wait before `op` that `conflicts` need, and returns the state after the wait."""
        sizes = {a.warp_group_private if a.buffer is b.buffer else None for a, b in conflicts}
        group_warps = sizes.pop() if len(sizes) == 1 and not cluster else None
        pending, unfenced = (
            {a: 0 for a in d if group_warps is not None and a.warp_group_private != group_warps}
            for d in (state.pending, state.unfenced)
        )
        self.before[op] = Wait(group_warps, len(unfenced) < len(state.unfenced), groups, cluster)
        tma_reads = {a: age for a, age in state.tma_reads.items() if groups is None or age < groups}
        cluster_pending = {} if cluster else state.cluster_pending
        return state._replace(pending=pending, unfenced=unfenced, tma_reads=tma_reads, cluster_pending=cluster_pending)

    def _read_asynchronously(self, writes: Iterable[Access]) -> Ages:
        """Returns the `writes` that `kernel.wgmma` or `kernel.tma_store` may read, with age 0. Slots are ignored."""
        return {a: 0 for a in writes if any(a.shares_memory(m) for m in self.async_reads)}

    def after_async_wait(self, op: kernel.AsyncWaitOp, state: State) -> State:
        """Returns the state after `kernel.async_wait`. The completed copies become pending: other threads see them only
        after a barrier."""
        completed = {a: 0 for a, age in state.async_writes.items() if age >= op.pending.data}
        async_writes = {a: age for a, age in state.async_writes.items() if a not in completed}
        if not self.by_whole_block:
            unfenced, cluster_pending = (
                {**state.unfenced, **self._read_asynchronously(completed)},
                {**state.cluster_pending, **self._tracked(completed)},
            )
            state = state._replace(unfenced=unfenced, cluster_pending=cluster_pending)
        return state._replace(pending={**state.pending, **completed}, async_writes=async_writes)

    def _loop(self, op: scf.ForOp, state: State) -> State:
        inside = [a for inner in op.walk() for a in self.accesses[inner]]
        kinds = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.AsyncWaitOp | kernel.BulkCommitOp
        synchronises = any(isinstance(o, kinds) for o in op.walk())
        if not any(a.writes for a in inside) and not synchronises:
            # A loop that only reads waits once, before it.
            return self._visit(op, inside, state)
        names = renamings(op) if self.rotates else LoopRenamings()
        before, entry = dict(self.before), state.renamed(names.entry)
        # The waits are right for every iteration once the state at the entry covers the state at the end.
        while True:
            self.before = dict(before)
            leaving = self.block(op.body.block, entry)
            back_edge = leaving.renamed(names.back_edge)
            if entry.covers(back_edge):
                break
            entry = entry.joined(back_edge)
        after = leaving.renamed(names.leaving)
        return after if trip_count(op) else state.renamed(names.skipped).joined(after)

    def _condition(self, op: Operation, state: State) -> State:
        """Handles a condition as one operation that makes all accesses inside it. Threads may take different branches,
        so no barrier may be inside. Raises CompileError if the accesses inside need one."""
        if any(isinstance(o, kernel.AsyncCommitOp | kernel.AsyncWaitOp | kernel.CopyAsyncOp) for o in op.walk()):
            raise refused(
                op,
                "expected no asynchronous copies under a condition, because threads may take different branches",
                CompileError,
            )
        inside = [a for inner in op.walk() for a in self.accesses[inner]]
        for number, a in enumerate(inside):
            if any(a.conflicts(b) or a.conflicts_across(b) for b in inside[:number]):
                raise refused(op, "accesses under a condition would need a barrier between them", CompileError)
        state = self._visit(op, inside, state)
        for inner in op.walk():
            if isinstance(inner, kernel.BulkCommitOp | kernel.BulkWaitOp):
                state = _STATE_UPDATES[type(inner)](self, inner, state)
        return state


_STATE_UPDATES: dict[type[Operation], Callable[[_Placement, Any, State], State]] = {
    kernel.BarrierOp: lambda placement, op, state: state._replace(pending={}),
    kernel.ClusterBarrierOp: lambda placement, op, state: state._replace(pending={}, cluster_pending={}),
    kernel.GroupBarrierOp: lambda placement, op, state: (
        state._replace(pending={}) if _is_of_whole_partition(op) else state
    ),
    kernel.AsyncCommitOp: lambda placement, op, state: state._replace(async_writes=_closed(state.async_writes)),
    kernel.AsyncWaitOp: lambda placement, op, state: placement.after_async_wait(op, state),
    kernel.BulkCommitOp: lambda placement, op, state: state._replace(tma_reads=_closed(state.tma_reads)),
    kernel.BulkWaitOp: lambda placement, op, state: state._replace(tma_reads=_unread(op, state.tma_reads)),
}
"""Operation class -> function that returns the state after an operation of that class."""


def _closed(ages: Ages) -> Ages:
    return {a: min(age + 1, MAX_TRACKED_GROUPS) for a, age in ages.items()}


def _unread(op: kernel.BulkWaitOp, tma_reads: Ages) -> Ages:
    """Returns the reads of TMA stores that may be incomplete after the wait `op`."""
    return {a: age for a, age in tma_reads.items() if age < op.pending.data}


def _refuse_in_flight(op: Operation, accesses: Iterable[Access], state: State) -> None:
    """Raises CompileError if an access overlaps the destination of a copy that has not been waited for."""
    if any(access.conflicts(copy) for access in accesses for copy in state.async_writes):
        why = "accesses shared memory that an asynchronous copy may still write; wait for the copy first"
        raise refused(op, why, CompileError)


def _await_tma_stores(block: Block, state: State) -> None:
    """Appends a wait for the TMA stores that may still read shared memory at the end of `block`, if there are any."""
    if state.tma_reads:
        block.add_op(kernel.BulkWaitOp(0, read=True))


def _wait_ops(op: Operation, wait: Wait) -> Iterator[Operation]:
    if wait.groups is not None:
        yield kernel.BulkWaitOp(wait.groups, read=True)
    if wait.fence:
        yield kernel.FenceAsyncOp()
    yield kernel.ClusterBarrierOp() if wait.cluster else _barrier(op, wait.warp_group_private)


def _barrier(op: Operation, warp_group_private: int | None) -> Operation:
    """Returns the barrier before `op`: of the block, of its partition, or of groups of warps.

    Hardware barrier 0 is that of the block. Partition i has barrier 1 + i, and groups of warps have the numbers after
    the partitions.
    """
    partitions, number = kernel.partition_of(op) or (None, 0)
    if warp_group_private is not None:
        return kernel.GroupBarrierOp(1 + (len(partitions.programs) if partitions else 0), warp_group_private)
    return kernel.GroupBarrierOp(1 + number, partitions.partition_warps[number]) if partitions else kernel.BarrierOp()


def _is_of_whole_partition(op: kernel.GroupBarrierOp) -> bool:
    partition = kernel.partition_of(op)
    return partition is not None and partition[0].partition_warps[partition[1]] == op.warps.data
