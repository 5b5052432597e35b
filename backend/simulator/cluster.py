"""Blocks of one simulated cluster: which warps they have, which have ended, and their barrier."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..interpreter.domains import Array


@dataclass
class Cluster:
    """The blocks of a cluster, with `warps` warps in all, block after block. Nothing may touch the shared memory of a
    block that has ended."""

    size: int
    warps: int
    ended: set[int] = field(default_factory=set[int])
    arrived: set[int] = field(default_factory=set[int])
    phase: int = 0

    def warps_of(self, rank: int) -> range:
        """The warps of a block."""
        each = self.warps // self.size
        return range(rank * each, (rank + 1) * each)

    def rank_of(self, warp: int) -> int:
        """The block that a warp belongs to."""
        return warp // (self.warps // self.size)

    def arrive(self, rank: int) -> None:
        """A block is at the cluster's barrier."""
        self.arrived.add(rank)
        self._complete()

    def end(self, rank: int) -> None:
        """A block ends: the barriers of the cluster no longer wait for it."""
        self.ended.add(rank)
        self._complete()

    def _complete(self) -> None:
        if self.arrived and len(self.arrived | self.ended) >= self.size:
            self.arrived.clear()
            self.phase += 1


def rows(ranks: Array | None, own: Array) -> Array:
    """Whose instance of a buffer each thread means: that of `ranks`, or its own."""
    return own if ranks is None else np.broadcast_to(ranks, own.shape)
