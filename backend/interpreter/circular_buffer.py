"""Rings and partitions of the tile dialect, executed: the producer first, into queues without end, then the consumer.

A ring is a queue with one partition at either end, so who runs first cannot change what is computed. That somebody
would wait for ever is found by counting: a group can be taken once everything that the producer puts up to it has found
a free slot. Tiles that were given back turn into NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import ExecutionError
from .domains import Array

Counts = dict[int, Array]
"""Number of a ring -> how many groups each block has put, or has given back."""


@dataclass
class Ring:
    """What one ring holds, for all blocks: `puts` in order, each with the blocks that made it and how many groups of
    every ring each block had put by then; `groups` that were taken, each with the number that it is to every block, or
    0; `taken` and `released` count for each block."""

    number: int
    slots: int
    blocks: int
    puts: list[tuple[tuple[Array, ...], Array, Counts]] = field(
        default_factory=list[tuple[tuple[Array, ...], Array, Counts]]
    )
    groups: list[tuple[tuple[Array, ...], Array]] = field(default_factory=list[tuple[tuple[Array, ...], Array]])
    taken: Array = field(init=False)
    released: Array = field(init=False)

    def __post_init__(self) -> None:
        self.taken = np.zeros(self.blocks, np.int64)
        self.released = np.zeros(self.blocks, np.int64)


class Rings:
    """All rings of the kernel that runs."""

    def __init__(self) -> None:
        self.all: list[Ring] = []

    def create(self, slots: int, blocks: int) -> Ring:
        """A new ring, empty."""
        self.all.append(Ring(len(self.all), slots, blocks))
        return self.all[-1]

    def put(self, ring: Ring, tiles: tuple[Array, ...], active: Array) -> None:
        """Let the blocks `active` put their parts of `tiles`."""
        before = {r.number: r.puts[-1][2][r.number] if r.puts else np.zeros(r.blocks, np.int64) for r in self.all}
        before[ring.number] = before[ring.number] + active
        ring.puts.append((tiles, active.copy(), before))

    def take(self, ring: Ring, active: Array) -> tuple[Array, ...]:
        """The next group of each block in `active`. Raises ExecutionError where a block waits for ever."""
        which = np.full(ring.blocks, -1)
        for number, (_, made, counts) in enumerate(ring.puts):
            which[made & active & (counts[ring.number] == ring.taken + 1)] = number
        if np.any(which[active] < 0):
            raise ExecutionError("waits for ever: takes more from a ring than is put into it")
        for number in np.unique(which[active]):
            counts = ring.puts[number][2]
            for other in self.all:
                full = active & (which == number) & (counts[other.number] > other.slots + other.released)
                if full.any():
                    block = int(np.argmax(full))
                    raise ExecutionError(f"waits for ever: no slot of {other.slots} gets free for block {block}")
        ring.taken = ring.taken + active
        tiles = tuple(self._gather(ring, which, i) for i in range(len(ring.puts[0][0])))
        ring.groups.append((tiles, ring.taken * active))
        return tiles

    def _gather(self, ring: Ring, which: Array, tile: int) -> Array:
        """Tile number `tile` of the put `which` of each block."""
        found: Array | None = None
        for number in np.unique(which[which >= 0]):
            value = ring.puts[number][0][tile]
            value = np.broadcast_to(value, (ring.blocks, *value.shape[1:]))
            here = (which == number).reshape((-1,) + (1,) * (value.ndim - 1))
            found = value.copy() if found is None else np.where(here, value, found)
        assert found is not None
        return found

    def release(self, ring: Ring, active: Array, pending: int, nothing: Sequence[Array]) -> None:
        """Give back what the blocks `active` took before the `pending` newest groups: each tile becomes its
        `nothing`."""
        active = np.broadcast_to(active, (ring.blocks,))
        if np.any(active & (ring.released + pending >= ring.taken)):
            raise ExecutionError("gives back a slot of a ring that it did not take")
        ring.released = ring.released + active
        if np.any(active & (ring.released + pending != ring.taken)):
            raise ExecutionError("gives back a group of a ring before an older one")
        for tiles, number in ring.groups:
            for tile, value in zip(tiles, nothing, strict=True):
                tile[active & (number == ring.released)] = value
        ring.groups = [(tiles, number) for tiles, number in ring.groups if np.any(number > ring.released)]

    def check_empty(self) -> None:
        """Raise ExecutionError if somebody put what nobody took, and so would have waited or left it lying."""
        for ring in self.all:
            put = ring.puts[-1][2][ring.number] if ring.puts else 0
            if np.any(put != ring.taken) or np.any(ring.taken != ring.released):
                raise ExecutionError("leaves groups in a ring that were put and not taken, or taken and not given back")
