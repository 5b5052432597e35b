"""State of a running kernel: the threads of some blocks, the active threads, and their accesses to memory.

Asynchronous operations are completed when they are issued. For an mbarrier, arrivals and bytes are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.shapes.binding import Sizes
from ..interpreter.domains import Array, TypedDomain, ranked, scatter_into
from .memory import GlobalBuffer, SharedBuffer, moved, sectors, wavefronts
from .races import RaceDetector
from .report import KernelCounts, Kind, Report

MAX_WIDTH = 16
"""Widest access of a thread in bytes."""


MemoryOp = (
    kernel.LoadOp | kernel.StoreOp | kernel.AtomicRmwOp | kernel.LdMatrixOp | kernel.StMatrixOp | kernel.CopyAsyncOp
)
"""Operations that access memory."""

Scope: TypeAlias = Mapping[SSAValue, Any]
"""Values that are defined when an operation runs."""


def register_offsets(bases: tuple[int, ...], exclusive_or: bool) -> Array:
    """Returns the offset of every register: the sum, or exclusive or, of the steps of the set bits of its number.

    Args:
        bases: step of each bit.
        exclusive_or: whether steps are combined by exclusive or.
    """
    offsets = np.zeros(1, np.int64)
    for step in bases:
        offsets = np.concatenate([offsets, offsets ^ step if exclusive_or else offsets + step])
    return offsets


@dataclass
class Access:
    """Load or store of all threads, as arrays [blocks, threads, registers].

    Attributes:
        place: index of each element in its buffer, flat.
        mask: true if the access happens and is legal.
    """

    place: Array
    mask: Array

    def selected(self) -> tuple[Array, Array, Array]:
        """Returns block, thread and element index of all accesses that happen, each as a flat array."""
        block, thread, _ = np.nonzero(self.mask)
        return block, thread, self.place[self.mask]

    def spread(self, flags: Array) -> Array:
        """Returns an array [block, thread, register] with `flags` at the accesses that happen, and false elsewhere."""
        where = np.zeros(self.mask.shape, np.bool_)
        where[self.mask] = flags
        return where


@dataclass(eq=False)
class Barrier:
    """State of an mbarrier.

    Attributes:
        arrivals: number of arrivals that complete a phase.
        missing: missing arrivals of the current phase.
        bytes: missing bytes of the current phase.
        phase: number of the phase.
    """

    arrivals: int
    missing: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, announced: int, arrivals: int = 1) -> None:
        """Counts arrivals and bytes. Starts the next phase if nothing is missing.

        Args:
            announced: expected bytes, negative for bytes that a copy has written.
            arrivals: number of arrivals.
        """
        self.bytes += announced
        self.missing -= arrivals
        if not self.missing and not self.bytes:
            self.phase += 1
            self.missing = self.arrivals


@dataclass
class Machine:
    """Blocks of one launch. Values are arrays [blocks, threads] or [blocks, threads, registers].

    A cluster is simulated as one block with the threads of all of its blocks.

    Attributes:
        numbers: number of each block, or of the first block of each cluster.
        threads: threads of a block or cluster.
        measured: whether the first block is measured.
        cluster: blocks of a cluster.
        active: active threads.
        shared: shared buffers.
        waits: waiting thread -> op and condition.
        races: detector of races for shared memory, or None.
    """

    domain: TypedDomain
    report: Report
    counts: KernelCounts
    numbers: Array
    threads: int
    measured: bool
    sizes: Sizes
    cluster: int = 1
    races: RaceDetector | None = None
    active: Array = field(init=False)
    shared: dict[Operation, SharedBuffer] = field(default_factory=dict)
    waits: dict[int, tuple[Operation, str]] = field(default_factory=dict)
    ended: Array = field(init=False)
    arrived: Array = field(init=False)
    """Threads that wait at the barrier of the cluster; `ended` has the threads that have ended."""
    cluster_phase: int = 0

    def __post_init__(self) -> None:
        self.active = np.ones((len(self.numbers), self.threads), np.bool_)
        self.ended, self.arrived = (np.zeros(self.threads, np.bool_) for _ in range(2))

    @property
    def block_threads(self) -> int:
        return self.threads // self.cluster

    @property
    def rows(self) -> Array:
        """Index of each thread's block in the first axis of `SharedBuffer.data`, as [block, thread]."""
        if self.cluster == 1:
            return np.broadcast_to(np.arange(len(self.numbers))[:, None], self.active.shape)
        return np.arange(self.threads)[None, :] // self.block_threads

    @property
    def grid_threads(self) -> Array:
        """Index of each thread in the grid, as [block, thread]."""
        return self.numbers[:, None] * self.block_threads + np.arange(self.threads)

    def everywhere(self, value: Array) -> Array:
        """Returns a value broadcast to [block, thread]."""
        return np.broadcast_to(ranked(value, 2), self.active.shape)

    def running(self) -> list[int]:
        return [int(t) for t in np.flatnonzero(self.active[0])]

    def element(self, buffer: SharedBuffer, place: Array, thread: int) -> int:
        """Returns the number of an element in a whole shared buffer, from its number in a part (`kernel.subview`).

        Args:
            buffer: the part.
            place: element number in the part, for each thread.
            thread: the thread.
        """
        return int(self.everywhere(place)[0, thread] + self.everywhere(buffer.start)[0, thread])

    def uniform(self, value: Array) -> int:
        """Returns the value of the first active thread."""
        return int(self.everywhere(value)[self.active][0])

    def first_runs(self) -> bool:
        """Returns true if the measured block, the first one, is running."""
        return self.measured and (self.cluster == 1 or bool(self.active[0, : self.block_threads].any()))

    def find(self, kind: Kind, op: Operation, where: Array, message: str) -> None:
        """Reports an error of some threads.

        Args:
            kind: kind of the error.
            op: the op.
            where: true for wrong threads, as [block, thread, ...].
            message: text with `{who}` for the first thread.
        """
        if not where.any():
            return
        block, thread = (int(i) for i in np.argwhere(where)[0][:2])
        rank, thread = divmod(thread, self.block_threads)
        who = f"thread {thread} of block {int(self.numbers[block]) + rank}"
        self.report.add(kind, op, message.format(who=who), int(np.count_nonzero(where)))

    def complain(self, kind: Kind, op: Operation, text: str, thread: int) -> None:
        """Reports an error of one thread, if one block or cluster is simulated at a time.

        Args:
            kind: kind of the error.
            op: the op.
            text: text after the name of the thread.
            thread: the thread.
        """
        self.find(kind, op, ranked(np.arange(self.threads) == thread, 2), f"{{who}}{text}")

    def barrier_of_block(self, op: Operation) -> None:
        """Reports threads that do not reach the barrier `op` of their block."""
        active = self.active.reshape(-1, self.block_threads)
        arrive, all_arrive = np.asarray(active.any(axis=1)), np.asarray(active.all(axis=1))
        missing = (~active & (arrive & ~all_arrive)[:, None]).reshape(self.active.shape)
        self.find("divergent", op, missing, "{who} does not reach a barrier that others wait at")
        if self.races is not None:
            self.races.barrier(all_arrive)
        if self.first_runs() and arrive[0]:
            self.counts.barriers += 1

    def together(self, op: Operation, action: str, threads: int = 32) -> None:
        """Reports active threads whose warp, or group of threads, is only partly active.

        Args:
            op: the op.
            action: text about the threads, for the message.
            threads: threads of a group.
        """
        groups = self.active.reshape(len(self.active), -1, threads)
        alone = (groups & ~groups.all(axis=2, keepdims=True)).reshape(self.active.shape)
        self.find("divergent", op, alone, f"{{who}} {action} without the other {threads - 1} threads")

    def count_flops(self, operations: int) -> None:
        self.counts.flops += operations * int(np.count_nonzero(self.active))

    # -- mbarriers and clusters

    def barriers(self, op: Operation, buffer: SharedBuffer, index: Array, ranks: Array | None = None) -> list[Barrier]:
        """Returns the mbarriers of the active threads. Reports mbarriers without `kernel.mbar_init`.

        Args:
            op: the op.
            buffer: buffer of mbarriers.
            index: index of each thread.
            ranks: block of the cluster for each thread; default: its own block.
        """
        rows = buffer.rows(self.rows) if ranks is None else self.everywhere(ranks)
        named = [(t, int(rows[0, t]), int(self.everywhere(index)[0, t])) for t in self.running()]
        legal = [(t, r, i) for t, r, i in named if 0 <= r < self.cluster and 0 <= i < buffer.data.shape[1]]
        states = [buffer.data[r, i] for _, r, i in legal]
        if len(legal) < len(named) or None in states:
            self.find("uninitialised", op, self.active, "{who}: an mbarrier that was not set up")
        return [b for b in states if b is not None]

    def meet(self, arrived: Array | None = None, ended: int | None = None) -> None:
        """Records threads that arrive at the barrier of the cluster, or a block that has ended.

        The barrier does not wait for ended blocks.
        """
        if arrived is not None:
            self.arrived = self.arrived | arrived
        if ended is not None:
            self.ended[ended * self.block_threads : (ended + 1) * self.block_threads] = True
        if self.arrived.any() and (self.arrived | self.ended).all():
            self.arrived = np.zeros(self.threads, np.bool_)
            self.cluster_phase += 1

    def deadlock(self) -> None:
        """Reports a deadlock, with the condition of the first waiting thread."""
        thread = min(self.waits)
        op, text = self.waits[thread]
        self.complain("deadlock", op, f" waits {text}, which never comes", thread)

    # -- accesses

    def locate(
        self,
        op: MemoryOp,
        buffer: GlobalBuffer | SharedBuffer,
        coordinates: Sequence[Array],
        checks: Sequence[Array] = (),
    ) -> Access:
        """Returns the accesses of an op. Reports and skips accesses that are out of bounds.

        Args:
            op: the op.
            buffer: its memory.
            coordinates: coordinates of the first register.
            checks: values of its checks.
        """
        registers, xor = op.registers, op.xor is not None
        full = (*self.active.shape, registers)
        mask = np.broadcast_to(self.active[:, :, None], full)
        for c, (lo, hi) in enumerate(op.bounds):
            value = self.register_places(checks[c], [s[c] for s in op.check_steps], xor)
            mask = mask & (lo <= value) & (value < self.sizes.number(hi))
        places = [self.register_places(c, [b[d] for b in op.reg_bases], xor) for d, c in enumerate(coordinates)]
        return self.inside(op, buffer, mask, places)

    def inside(
        self, op: MemoryOp, buffer: GlobalBuffer | SharedBuffer, mask: Array, coordinates: Sequence[Array]
    ) -> Access:
        """Returns the accesses at coordinates. Reports and skips accesses that are out of bounds.

        Args:
            op: the op.
            buffer: its memory.
            mask: true for accesses that happen.
            coordinates: coordinates of every register.
        """
        place, legal = np.zeros(mask.shape, np.int64), mask
        for d, (extent, value) in enumerate(zip(buffer.shape, coordinates, strict=True)):
            value = np.broadcast_to(value, mask.shape)
            outside = mask & ((value < 0) | (value >= extent))
            if outside.any():
                at = int(value[tuple(np.argwhere(outside)[0])])
                where = f"coordinate {d} is {at}, outside 0..{extent - 1}"
                self.find("out-of-bounds", op, outside, f"{{who}}: {where}")
                legal = legal & ~outside
            place = place * extent + value
        if isinstance(buffer, SharedBuffer):
            place = place + np.asarray(buffer.start)[..., None]
        return Access(np.where(legal, place, 0), legal)

    def register_places(self, value: Array, bases: Sequence[int], xor: bool) -> Array:
        """Returns the value of every register: the value of the thread combined with the offset of the register.

        Args:
            value: value of each thread.
            bases: step of each bit of a register number.
            xor: whether offsets are combined by exclusive or.
        """
        offsets = register_offsets(tuple(bases), xor)
        value = np.asarray(value)
        value = value if value.ndim == 3 else ranked(value, 2)[:, :, None]
        return value ^ offsets if xor else value + offsets

    def measure(self, op: MemoryOp, access: Access, buffer: GlobalBuffer | SharedBuffer) -> None:
        """Reports misaligned accesses, and counts their cost.

        Bytes of global memory are counted for all blocks, sectors and wavefronts for the first block.

        Args:
            op: the op.
            access: its accesses.
            buffer: its memory.
        """
        c, vec, item = self.counts, op.vec.data, buffer.itemsize
        width, address = min(vec * item, MAX_WIDTH), access.place * item + buffer.offset
        wrong = (address[:, :, ::vec] % width != 0) & access.mask[:, :, ::vec]
        if vec > 1:
            self.find("misaligned", op, wrong, f"{{who}}: an access of {width} bytes")
        if isinstance(buffer, GlobalBuffer):
            stores = isinstance(op, kernel.StoreOp | kernel.AtomicRmwOp)
            table, widths = (c.stored, c.store_widths) if stores else (c.loaded, c.load_widths)
            size = moved(address, access.mask, vec, item)
            table[buffer.position] = table.get(buffer.position, 0) + size
            widths[width] = widths.get(width, 0) + size
        elif self.races is not None:
            self.races.access(self, op, access, buffer)
        if self.first_runs():
            if isinstance(buffer, GlobalBuffer):
                touched, least = sectors(address[0], access.mask[0], vec, item)
                c.sectors, c.ideal_sectors = c.sectors + touched, c.ideal_sectors + least
            else:
                needed, ideal = wavefronts(address[0], access.mask[0], vec, item)
                c.wavefronts, c.ideal_wavefronts = c.wavefronts + needed, c.ideal_wavefronts + ideal


def load(
    machine: Machine,
    op: kernel.LoadOp | kernel.CopyAsyncOp | kernel.LdMatrixOp,
    buffer: GlobalBuffer | SharedBuffer,
    access: Access,
    fill: Array,
) -> Array:
    """Returns the registers of a load. Reports reads of unwritten memory.

    Args:
        machine: the blocks.
        op: the op.
        buffer: its memory.
        access: its accesses.
        fill: value of masked registers.
    """
    machine.measure(op, access, buffer)
    if buffer.data.size == 0:
        return np.broadcast_to(fill, access.mask.shape)
    is_shared = isinstance(buffer, SharedBuffer)
    at = (buffer.rows(machine.rows)[:, :, None], access.place) if is_shared else access.place
    space = "shared" if is_shared else "global"
    nothing = access.mask & buffer.missing(at)
    machine.find("uninitialised", op, nothing, f"{{who}} reads {space} memory that was never written")
    return np.where(access.mask, buffer.data[at], fill)


def store_global(machine: Machine, op: kernel.StoreOp, buffer: GlobalBuffer, access: Access, value: Array) -> None:
    """Stores registers to global memory. Reports two threads that write different values to one element.

    Args:
        machine: the blocks.
        op: the op.
        buffer: its memory.
        access: its accesses.
        value: the registers.
    """
    machine.measure(op, access, buffer)
    if not access.mask.any():
        return
    block, thread, place = access.selected()
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    other, wrong = buffer.store(machine.domain, place, machine.grid_threads[block, thread], value)
    machine.counts.duplicates += int(np.count_nonzero(other & ~wrong))
    machine.find("conflict", op, access.spread(wrong), "{who} writes an element that another writes differently")


def combine_global(
    machine: Machine, op: kernel.AtomicRmwOp, buffer: GlobalBuffer, access: Access, value: Array
) -> None:
    """Combines registers into global memory. Reports unwritten memory.

    Args:
        machine: the blocks.
        op: the op.
        buffer: its memory.
        access: its accesses.
        value: the registers.
    """
    machine.measure(op, access, buffer)
    if not access.mask.any():
        return
    place = access.selected()[2]
    nothing = access.spread(buffer.missing(place))
    machine.find("uninitialised", op, nothing, "{who} combines into global memory that was never written")
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    scatter_into(machine.domain, op.kind.data, buffer.data, place, value, buffer.element)


def store_shared(
    machine: Machine,
    op: kernel.StoreOp | kernel.StMatrixOp | kernel.CopyAsyncOp,
    buffer: SharedBuffer,
    access: Access,
    value: Array,
) -> None:
    """Stores registers to shared memory. Reports two threads that write different values to one element in one op.

    Args:
        machine: the blocks.
        op: the op.
        buffer: its memory.
        access: its accesses.
        value: the registers.
    """
    machine.measure(op, access, buffer)
    block, thread, place = access.selected()
    at = machine.rows[block, thread], place
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    buffer.data[at], buffer.written[at] = value, True
    wrong = access.spread(~machine.domain.same(buffer.data[at], value))
    machine.find("conflict", op, wrong, "{who} writes an element that another writes differently")
