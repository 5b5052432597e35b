"""What is asynchronous in a simulated block: mbarriers, TMA copies in flight, wgmma.

A TMA load arrives only when no warp can go on, and a wgmma is computed when it is waited for, so that most accesses
without the synchronization that they need give other values. What is merely unordered, the emulator finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel.mbarrier import MbarrierOp
from ...dialects.kernel.warp_specialize import WARPGROUP
from ..interpreter.domains import Array
from .cluster import Cluster
from .control import Ready
from .machine import Machine, ranked
from .report import Kind
from .shadow_memory import SharedBuffer

MOST_BARRIERS = 1 << 20
"""More than a buffer has mbarriers."""


@dataclass(eq=False)
class Barrier:
    """An mbarrier: the arrivals and bytes that are missing in this phase; `maker` is the warp that initialised it."""

    arrivals: int
    missing: int
    maker: int
    bytes: int = 0
    phase: int = 0
    fenced: bool = False


@dataclass(eq=False)
class TmaCopy:
    """A TMA copy on its way: `places` are elements of the shared buffer, `elements` those of the buffer in global
    memory, both flat, `inside` where there is one. `targets` are the blocks of the cluster that a loaded copy arrives
    in, each with its barrier; a stored one leaves the block of its thread."""

    op: kernel.TmaLoadOp | kernel.TmaStoreOp
    shared: SharedBuffer
    memory: Any
    places: Array
    elements: Array
    inside: Array
    thread: int
    targets: dict[int, Barrier | None] = field(default_factory=dict[int, Barrier | None])


@dataclass(eq=False)
class PendingWgmma:
    """A wgmma that was started: what it adds to is an array, or the wgmma before it."""

    op: kernel.WgmmaOp
    args: tuple[Any, ...]
    start: Any
    accumulate: bool
    active: Array
    groups: dict[int, int] = field(default_factory=dict[int, int])
    result: Array | None = None


class AsyncUnits:
    """The state of one block, or of the blocks of one cluster."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cluster = Cluster(machine.cluster, machine.threads // 32)
        self.barriers: dict[tuple[int, int, int], Barrier] = {}
        self.loads: list[TmaCopy] = []
        self.stores: dict[int, list[TmaCopy]] = {}
        self.store_groups: dict[int, list[list[TmaCopy]]] = {}
        self.wgmmas: list[PendingWgmma] = []
        self.fenced: set[int] = set()
        self.closed: dict[int, int] = {}
        self.waits: dict[int, tuple[Operation, str]] = {}
        self.free_registers = [0] * machine.cluster
        """Of each block: what its warps have given up and none has taken. At a launch all of them are somebody's."""

    # -- who acts

    def warps(self) -> list[int]:
        """The warps with an active thread."""
        active = self.machine.active.reshape(-1, 32).any(axis=1)
        return [int(w) for w in np.flatnonzero(active)]

    def uses(self, index: Array) -> Iterator[tuple[int, int, int]]:
        """(warp, value, threads) for every value that active threads of a warp have."""
        values = np.broadcast_to(ranked(index, 2), self.machine.active.shape)[0]
        for w in self.warps():
            lanes = slice(32 * w, 32 * w + 32)
            mine = values[lanes][self.machine.active[0, lanes]]
            for value, count in zip(*np.unique(mine, return_counts=True), strict=True):
                yield w, int(value), int(count)

    def uniform(self, value: Array) -> int:
        """The one value that active threads have, or the first one's, which is then a finding of the caller."""
        return int(np.broadcast_to(ranked(value, 2), self.machine.active.shape)[self.machine.active][0])

    def complain(self, kind: Kind, op: Operation, text: str, warp: int | None = None) -> None:
        """Record a finding."""
        first, each = int(self.machine.numbers[0]), self.machine.block_threads // 32
        who = f"block {first}" if warp is None else f"warp {warp % each}"
        if self.machine.cluster > 1:
            who = f"clusters from block {first} on" if warp is None else f"{who} of block {first + warp // each}"
        self.machine.report.add(kind, op, f"{who}: {text}")

    def touch(self, op: Operation, warp: int, rank: int) -> None:
        """A warp touches the shared memory of a block of the cluster, which has to be there."""
        if rank in self.cluster.ended:
            self.complain(
                "protocol", op, f"touches shared memory of block {rank} of the cluster, which has ended", warp
            )

    def reads_peers(self, op: Operation, ranks: Array) -> None:
        """The active threads read the shared memory of the blocks `ranks`."""
        for warp, rank, _ in self.uses(ranks):
            self.touch(op, warp, rank)

    # -- mbarriers

    def barrier(
        self, op: Operation, buffer: SharedBuffer, index: int, warp: int, rank: int | None = None
    ) -> Barrier | None:
        """A barrier that was set up, which the warp has to know of: its own block's, or that of `rank`."""
        rank = self.cluster.rank_of(warp) if rank is None else rank
        self.touch(op, warp, rank)
        found = self.barriers.get((buffer.number, rank, index))
        if found is None:
            self.complain("uninitialised", op, f"mbarrier {index} was not set up", warp)
        return found

    def set_up(self, op: kernel.MbarInitOp, buffer: SharedBuffer, index: Array) -> None:
        """Make barriers."""
        for warp, i, threads in self.uses(index):
            if threads > 1:
                self.complain("conflict", op, f"{threads} threads set mbarrier {i} up", warp)
            if not 0 <= i < buffer.data.shape[1]:
                self.complain("out-of-bounds", op, f"mbarrier {i} of {buffer.data.shape[1]}", warp)
            count, rank = op.arrivals.data, self.cluster.rank_of(warp)
            self.barriers[buffer.number, rank, i] = Barrier(count, count, warp)

    def fence_barriers(self) -> None:
        """Barriers that an active warp has made can be signalled by copies."""
        makers = self.warps()
        for barrier in self.barriers.values():
            barrier.fenced |= barrier.maker in makers

    def arrive(
        self, op: MbarrierOp, buffer: SharedBuffer, index: Array, announced: int, ranks: Array | None = None
    ) -> None:
        """Every active thread arrives, each announcing bytes; at its own block's barrier, or at that of `ranks`."""
        both = ranked(index, 2) if ranks is None else ranked(index, 2) + MOST_BARRIERS * ranked(ranks, 2)
        for warp, number, threads in self.uses(both):
            rank, i = (None, number) if ranks is None else divmod(number, MOST_BARRIERS)
            if rank is not None and not 0 <= rank < self.cluster.size:
                self.complain("out-of-bounds", op, f"block {rank} of a cluster of {self.cluster.size}", warp)
                continue
            barrier = self.barrier(op, buffer, i, warp, rank)
            for _ in range(threads if barrier is not None else 0):
                assert barrier is not None
                if not barrier.missing:
                    self.complain("protocol", op, f"more arrivals at mbarrier {i} than the {barrier.arrivals}", warp)
                    break
                barrier.bytes += announced
                barrier.missing -= 1
                self.complete(barrier)

    def complete(self, barrier: Barrier) -> None:
        """Begin the next phase, if nothing of this one is missing."""
        if barrier.missing or barrier.bytes:
            return
        barrier.phase += 1
        barrier.missing = barrier.arrivals

    def ready(self, op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> Ready:
        """Whether the active threads' wait is over."""
        parity, buffer, index = self.split(op, args)
        wanted = self.uniform(parity)
        found = [(w, self.barrier(op, buffer, i, w), i) for w, i, _ in self.uses(index)]
        for w, _, i in found:
            self.waits[w] = (op, f"for parity {wanted} of mbarrier {i}")
        return lambda: all(b is None or b.phase % 2 != wanted for _, b, _ in found)

    def pass_wait(self, op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> None:
        """The wait of the active threads is over."""
        for warp, _, _ in self.uses(self.split(op, args)[2]):
            self.waits.pop(warp, None)

    @staticmethod
    def split(op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> tuple[Array, SharedBuffer, Array]:
        """(parity, barriers, index)"""
        values = dict(zip(op.operands, args, strict=True))
        return values[op.parity], values[op.barriers], values[op.index]

    # -- copies arrive

    def deliver(self) -> bool:
        """Let the oldest copy arrive; whether there was one."""
        if not self.loads:
            return False
        copy = self.loads.pop(0)
        zero = self.machine.domain.constant(0, copy.shared.element)
        value = np.where(copy.inside, copy.memory.data[np.where(copy.inside, copy.elements, 0)], zero)
        for rank, barrier in copy.targets.items():
            copy.shared.data[rank, copy.places] = value
            if barrier is not None:
                barrier.bytes -= len(copy.places) * copy.shared.itemsize
                self.complete(barrier)
        return True

    # -- ends

    def deadlock(self) -> None:
        """Nobody can go on: say who waits for what; for registers before all else, because the others wait for whoever
        does."""
        order = sorted(
            self.waits, key=lambda warp: (not isinstance(self.waits[warp][0], kernel.WarpSpecializeOp), warp)
        )
        for warp in order[:1]:
            op, text = self.waits[warp]
            self.complain("deadlock", op, f"waits {text}, which never comes", warp)

    def end(self, rank: int) -> None:
        """A block ends: nothing of it may be going on, and nobody may need its shared memory."""
        mine = self.cluster.warps_of(rank)
        for copy in self.loads:
            if rank in copy.targets:
                self.complain("protocol", copy.op, "the block ends while a TMA copy is on its way to shared memory")
        for thread, copies in [*self.stores.items(), *((t, b) for t, g in self.store_groups.items() for b in g)]:
            for copy in copies if thread // 32 in mine else ():
                self.complain(
                    "protocol", copy.op, f"thread {thread} ends while the TMA copy is read from shared memory"
                )
        for wgmma in self.wgmmas:
            if wgmma.result is None and any(WARPGROUP * g in mine for g in wgmma.groups):
                self.complain("protocol", wgmma.op, "the warpgroup ends without having waited for the wgmma")
        self.cluster.end(rank)
