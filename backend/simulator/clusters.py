"""Blocks of one simulated cluster: where they meet, and for how long each one's shared memory is there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation

from ..interpreter.domains import Array
from .order import Agent, Order


@dataclass
class Arrival:
    """A box on its way into a block's shared memory."""

    op: Operation
    agent: Agent
    work: int


@dataclass
class Cluster:
    """What the blocks of a cluster do to each other. `order` has the warps of all blocks, block after block.

    Nothing may touch a block's shared memory once the block has ended; and what has touched it must be known, by then,
    to a thread of the block, or it could as well have come later.
    """

    size: int
    order: Order
    ended: set[int] = field(default_factory=set[int])
    arrived: set[int] = field(default_factory=set[int])
    meetings: int = 0
    boxes: dict[int, list[Arrival]] = field(default_factory=dict[int, list[Arrival]])
    _uses: dict[int, dict[int, tuple[int, Operation]]] = field(
        default_factory=dict[int, dict[int, tuple[int, Operation]]]
    )

    def warps_of(self, rank: int) -> range:
        """The warps of a block."""
        each = self.order.warps // self.size
        return range(rank * each, (rank + 1) * each)

    def rank_of(self, warp: int) -> int:
        """The block that a warp belongs to."""
        return warp // (self.order.warps // self.size)

    def arrive(self, rank: int) -> None:
        """A block is at the cluster's barrier."""
        self.arrived.add(rank)
        self._open()

    def _open(self) -> None:
        if not self.arrived or len(self.arrived | self.ended) < self.size:
            return
        self.order.meet([w for rank in sorted(self.arrived) for w in self.warps_of(rank)])
        self.arrived.clear()
        self.meetings += 1

    def touch(self, op: Operation, warp: int, rank: int) -> bool:
        """A warp touches a block's shared memory; whether the block has ended."""
        if self.rank_of(warp) != rank:
            self._uses.setdefault(rank, {})[warp] = (int(self.order.clock[warp]), op)
        return rank in self.ended

    def end(self, rank: int) -> list[tuple[Operation, str]]:
        """A block ends; what may still touch its shared memory, and how."""
        self.ended.add(rank)
        mine = [self.order.known[w] for w in self.warps_of(rank)]
        found: list[tuple[Operation, str]] = []
        for warp, (clock, op) in self._uses.get(rank, {}).items():
            if not any(k.warps[warp] >= clock for k in mine):
                found.append((op, f"the block ends while block {self.rank_of(warp)} of the cluster may still do this"))
        for box in self.boxes.get(rank, ()):
            if not any(k.agents[box.agent.number] >= box.work for k in mine):
                found.append((box.op, "the block ends while this box may still be on its way to it"))
        self._open()
        return found


def rows(ranks: Array | None, own: Array) -> Array:
    """Whose instance of a buffer each thread means: that of `ranks`, or its own."""
    return own if ranks is None else np.broadcast_to(ranks, own.shape)
