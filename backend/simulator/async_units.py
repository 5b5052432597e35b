"""What is asynchronous in a simulated block: mbarriers, TMA copies in flight, wgmma.

A TMA load arrives only when no warp can go on, and a wgmma is computed when it is waited for, so that most accesses
without the synchronization that they need give other values. What is merely unordered, not fenced, or never waited for,
the emulator finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.mbarrier import MbarrierOp
from ..interpreter.domains import Array, ranked
from .buffers import GlobalBuffer, SharedBuffer
from .cp_async import Copy
from .machine import Machine

MOST_BARRIERS = 1 << 20
"""More than a buffer has mbarriers."""

Scope: TypeAlias = Mapping[SSAValue, Any]
"""The values that are there when an operation runs."""


@dataclass(eq=False)
class Barrier:
    """An mbarrier: the arrivals and bytes that are missing in this phase."""

    arrivals: int
    missing: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, announced: int, arrivals: int = 1) -> None:
        """Count arrivals and announced bytes, negative ones of a copy; begin the next phase if nothing is missing."""
        self.bytes += announced
        self.missing -= arrivals
        if not self.missing and not self.bytes:
            self.phase += 1
            self.missing = self.arrivals


@dataclass(eq=False)
class TmaCopy:
    """A TMA copy on its way: `places` are elements of the shared buffer, `elements` those of the buffer in global
    memory, both flat, `inside` where there is one. `targets` are the blocks of the cluster that a loaded copy arrives
    in, each with its barrier; a stored one leaves the block of its thread."""

    op: kernel.TmaLoadOp | kernel.TmaStoreOp
    shared: SharedBuffer
    memory: GlobalBuffer
    places: Array
    elements: Array
    inside: Array
    thread: int
    targets: dict[int, Barrier | None] = field(default_factory=dict[int, Barrier | None])


@dataclass(eq=False)
class PendingWgmma:
    """A wgmma that was started with operands `values`: what it adds to is an array, or the wgmma before it."""

    op: kernel.WgmmaOp
    values: Scope
    start: Any
    accumulate: bool
    groups: dict[int, int] = field(default_factory=dict[int, int])
    result: Array | None = None


@dataclass
class AsyncUnits(Machine):
    """A machine with what goes on beside its threads. Copies of `cp.async` may be those of many blocks; everything else
    is of one block, or of the blocks of one cluster."""

    copies: list[Copy] = field(default_factory=list[Copy])
    barriers: dict[tuple[int, int, int], Barrier] = field(default_factory=dict[tuple[int, int, int], Barrier])
    loads: list[TmaCopy] = field(default_factory=list[TmaCopy])
    stores: dict[int, list[TmaCopy]] = field(default_factory=dict[int, list[TmaCopy]])
    store_groups: dict[int, list[list[TmaCopy]]] = field(default_factory=dict[int, list[list[TmaCopy]]])
    wgmmas: list[PendingWgmma] = field(default_factory=list[PendingWgmma])
    closed_wgmmas: dict[int, int] = field(default_factory=dict[int, int])
    waits: dict[int, tuple[Operation, str]] = field(default_factory=dict[int, tuple[Operation, str]])
    ended: set[int] = field(default_factory=set[int])
    arrived: set[int] = field(default_factory=set[int])
    cluster_phase: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.closed_copies = np.zeros(len(self.numbers) * self.cluster, np.int64)
        self.free_registers = [0] * self.cluster
        """Of each block: what its warps have given up and none has taken. At a launch all of them are somebody's."""

    # -- mbarriers

    def barrier(self, op: Operation, buffer: SharedBuffer, index: int, warp: int, rank: int) -> Barrier | None:
        """A barrier of the block `rank` that was set up."""
        found = self.barriers.get((buffer.number, rank, index))
        if found is None:
            self.complain("uninitialised", op, f"mbarrier {index} was not set up", warp)
        return found

    def set_up(self, op: kernel.MbarInitOp, values: Scope) -> None:
        """Make barriers."""
        buffer: SharedBuffer = values[op.barriers]
        for warp, i, threads in self.uses(values[op.index]):
            if threads > 1:
                self.complain("conflict", op, f"{threads} threads set mbarrier {i} up", warp)
            if not 0 <= i < buffer.data.shape[1]:
                self.complain("out-of-bounds", op, f"mbarrier {i} of {buffer.data.shape[1]}", warp)
            self.barriers[buffer.number, self.rank_of(warp), i] = Barrier(op.arrivals.data, op.arrivals.data)

    def arrive(self, op: MbarrierOp, values: Scope, announced: int = 0, ranks: Array | None = None) -> None:
        """Every active thread arrives, each announcing bytes; at its own block's barrier, or at that of `ranks`."""
        index = ranked(values[op.index], 2)
        for warp, number, threads in self.uses(index if ranks is None else index + MOST_BARRIERS * ranked(ranks, 2)):
            rank, i = (self.rank_of(warp), number) if ranks is None else divmod(number, MOST_BARRIERS)
            if not 0 <= rank < self.cluster:
                self.complain("out-of-bounds", op, f"block {rank} of a cluster of {self.cluster}", warp)
                continue
            barrier = self.barrier(op, values[op.barriers], i, warp, rank)
            for _ in range(threads if barrier is not None else 0):
                assert barrier is not None
                if not barrier.missing:
                    self.complain("protocol", op, f"more arrivals at mbarrier {i} than the {barrier.arrivals}", warp)
                    break
                barrier.arrive(announced)

    def deliver(self) -> bool:
        """Let the oldest copy arrive; whether there was one."""
        if not self.loads:
            return False
        copy = self.loads.pop(0)
        zero = self.domain.constant(0, copy.shared.element)
        value = np.where(copy.inside, copy.memory.data[np.where(copy.inside, copy.elements, 0)], zero)
        for rank, barrier in copy.targets.items():
            copy.shared.data[rank, copy.places], copy.shared.written[rank, copy.places] = value, True
            if barrier is not None:
                barrier.arrive(-len(copy.places) * copy.shared.itemsize, 0)
        return True

    # -- clusters

    def meet(self, rank: int | None = None, ended: int | None = None) -> None:
        """A block is at the cluster's barrier, or has ended, so that the barrier no longer waits for it."""
        self.arrived |= set() if rank is None else {rank}
        self.ended |= set() if ended is None else {ended}
        if self.arrived and len(self.arrived | self.ended) >= self.cluster:
            self.arrived.clear()
            self.cluster_phase += 1

    def deadlock(self) -> None:
        """Nobody can go on: say who waits for what; for registers before all else, because the others wait for whoever
        does."""
        order = sorted(self.waits, key=lambda w: (not isinstance(self.waits[w][0], kernel.WarpSpecializeOp), w))
        for warp in order[:1]:
            op, text = self.waits[warp]
            self.complain("deadlock", op, f"waits {text}, which never comes", warp)
