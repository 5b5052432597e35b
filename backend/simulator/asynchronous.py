"""What goes on beside the threads of a simulated block: mbarriers, boxes on their way, products of warpgroups.

Nothing arrives before it has to, which is when no warp can go on; products are computed when they are waited for. That
an access is ordered does not depend on it: see order.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel_barriers import MbarrierOp
from ..interpreter.domains import Array
from .control import Ready
from .machine import Machine, ranked
from .memory import SharedBuffer
from .order import Agent, Knowledge, Order, OrderedShadow
from .report import Kind


@dataclass(eq=False)
class Barrier:
    """A barrier: what is missing in this phase, and what those know who completed the last one."""

    arrivals: int
    missing: int
    maker: int
    made: int
    gathered: Knowledge
    complete: Knowledge
    bytes: int = 0
    phase: int = 0
    fenced: bool = False


@dataclass(eq=False)
class Box:
    """A box on its way: `places` are elements of the shared buffer, `elements` those of the buffer in global memory,
    both flat, `inside` where there is one."""

    op: kernel.TmaLoadOp | kernel.TmaStoreOp
    shared: SharedBuffer
    memory: Any
    places: Array
    elements: Array
    inside: Array
    agent: Agent
    work: int
    thread: int
    barrier: Barrier | None = None


@dataclass(eq=False)
class Product:
    """A product that was started: what it adds to is an array, or the product before it."""

    op: kernel.WgmmaOp
    args: tuple[Any, ...]
    start: Any
    accumulate: bool
    active: Array
    groups: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    result: Array | None = None


class Asynchronous:
    """The state of one block."""

    def __init__(self, machine: Machine, cells: int) -> None:
        self.machine = machine
        warps = machine.threads // 32
        self.order = Order(warps)
        self.shadow = OrderedShadow(1, cells, self.order)
        self.barriers: dict[tuple[int, int], Barrier] = {}
        self.loads: list[Box] = []
        self.stores: dict[int, list[Box]] = {}
        self.store_groups: dict[int, list[list[Box]]] = {}
        self.products: list[Product] = []
        self.fenced: set[int] = set()
        self.closed: dict[int, int] = {}
        self.waits: dict[int, tuple[Operation, str]] = {}

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
        who = f"block {int(self.machine.numbers[0])}" if warp is None else f"warp {warp}"
        self.machine.report.add(kind, op, f"{who}: {text}")

    # -- mbarriers

    def barrier(self, op: Operation, buffer: SharedBuffer, index: int, warp: int) -> Barrier | None:
        """A barrier that was set up, which the warp has to know of."""
        found = self.barriers.get((buffer.number, index))
        if found is None:
            self.complain("uninitialised", op, f"mbarrier {index} was not set up", warp)
        elif found.maker != warp and self.order.known[warp].warps[found.maker] < found.made:
            self.complain("race", op, f"mbarrier {index} was set up by another warp, with no barrier in between", warp)
        return found

    def set_up(self, op: kernel.MbarInitOp, buffer: SharedBuffer, index: Array) -> None:
        """Make barriers."""
        for warp, i, threads in self.uses(index):
            if threads > 1:
                self.complain("conflict", op, f"{threads} threads set mbarrier {i} up", warp)
            if not 0 <= i < buffer.data.shape[1]:
                self.complain("out-of-bounds", op, f"mbarrier {i} of {buffer.data.shape[1]}", warp)
            gathered, complete = (Knowledge.nothing(self.order.warps) for _ in range(2))
            made, count = int(self.order.clock[warp]), op.arrivals.data
            self.barriers[buffer.number, i] = Barrier(count, count, warp, made, gathered, complete)
            self.order.give(warp)

    def fence_barriers(self) -> None:
        """Barriers that an active warp has made can be signalled by copies."""
        makers = self.warps()
        for barrier in self.barriers.values():
            barrier.fenced |= barrier.maker in makers

    def arrive(self, op: MbarrierOp, buffer: SharedBuffer, index: Array, announced: int) -> None:
        """Every active thread arrives, each announcing bytes."""
        for warp, i, threads in self.uses(index):
            barrier = self.barrier(op, buffer, i, warp)
            for _ in range(threads if barrier is not None else 0):
                assert barrier is not None
                if not barrier.missing:
                    self.complain("protocol", op, f"more arrivals at mbarrier {i} than the {barrier.arrivals}", warp)
                    break
                barrier.gathered.learn(self.order.give(warp))
                barrier.bytes += announced
                barrier.missing -= 1
                self.complete(barrier)

    def complete(self, barrier: Barrier) -> None:
        """Begin the next phase, if nothing of this one is missing."""
        if barrier.missing or barrier.bytes:
            return
        barrier.phase += 1
        barrier.missing = barrier.arrivals
        barrier.complete, barrier.gathered = barrier.gathered, Knowledge.nothing(self.order.warps)

    def ready(self, op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> Ready:
        """Whether the active threads' wait is over."""
        parity, buffer, index = self.split(op, args)
        wanted = self.uniform(parity)
        found = [(w, self.barrier(op, buffer, i, w), i) for w, i, _ in self.uses(index)]
        for w, _, i in found:
            self.waits[w] = (op, f"for parity {wanted} of mbarrier {i}")
        return lambda: all(b is None or b.phase % 2 != wanted for _, b, _ in found)

    def pass_wait(self, op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> None:
        """The wait of the active threads is over: they learn what was gathered."""
        _, buffer, index = self.split(op, args)
        for warp, i, _ in self.uses(index):
            self.waits.pop(warp, None)
            barrier = self.barriers.get((buffer.number, i))
            if barrier is not None and barrier.phase:
                self.order.known[warp].learn(barrier.complete)

    @staticmethod
    def split(op: kernel.MbarWaitOp, args: tuple[Any, ...]) -> tuple[Array, SharedBuffer, Array]:
        """(parity, barriers, index)"""
        values = dict(zip(op.operands, args, strict=True))
        return values[op.parity], values[op.barriers], values[op.index]

    # -- boxes arrive

    def deliver(self) -> bool:
        """Let the oldest box arrive; whether there was one."""
        if not self.loads:
            return False
        box = self.loads.pop(0)
        zero = self.machine.domain.constant(0, box.shared.element)
        box.shared.data[0, box.places] = np.where(
            box.inside, box.memory.data[np.where(box.inside, box.elements, 0)], zero
        )
        box.agent.finish(box.work)
        if box.barrier is not None:
            agents = box.barrier.gathered.agents
            agents[box.agent.number] = max(int(agents[box.agent.number]), box.agent.ended)
            box.barrier.bytes -= len(box.places) * box.shared.itemsize
            self.complete(box.barrier)
        return True

    # -- ends

    def deadlock(self) -> None:
        """Nobody can go on: say who waits for what."""
        for warp, (op, text) in sorted(self.waits.items()):
            self.complain("deadlock", op, f"waits {text}, which never comes", warp)
            return

    def end(self) -> None:
        """The block ends: nothing may be going on."""
        for box in self.loads:
            self.complain("protocol", box.op, "the block ends while a box is on its way to shared memory")
        for thread, boxes in [*self.stores.items(), *((t, b) for t, g in self.store_groups.items() for b in g)]:
            for box in boxes:
                self.complain("protocol", box.op, f"thread {thread} ends while the box is read from shared memory")
        for product in self.products:
            if product.result is None:
                self.complain("protocol", product.op, "the warpgroup ends without having waited for the product")
