"""Rings and row buffers of the tile dialect, executed.

A ring is a queue with one partition at either end, so who runs first cannot change what is computed: the producer does.
That somebody would wait for ever is found by counting: a group can be taken once everything that the producer puts up
to it has found a free slot. Tiles that were given back turn into NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ExecutionError
from .domains import Array


@dataclass(eq=False)
class Ring:
    """What one ring holds, for a block that runs alone. `puts` are all groups in order, each with how many groups every
    ring had by then; so many of them were `taken`, and so many `released`."""

    slots: int
    puts: list[tuple[tuple[Array, ...], list[int]]] = field(default_factory=list)
    taken: int = 0
    released: int = 0

    def put(self, tiles: tuple[Array, ...], rings: Sequence[Ring]) -> None:
        """Put a group; `rings` are all of the kernel."""
        self.puts.append((tiles, [len(r.puts) + (r is self) for r in rings]))

    def take(self, rings: Sequence[Ring]) -> tuple[Array, ...]:
        """The next group. Raises ExecutionError where the block waits for ever."""
        if self.taken == len(self.puts):
            raise ExecutionError("waits for ever: takes more from a ring than is put into it")
        tiles, counts = self.puts[self.taken]
        for other, count in zip(rings, counts, strict=True):
            if count > other.slots + other.released:
                raise ExecutionError(f"waits for ever: no slot of {other.slots} gets free")
        self.taken += 1
        return tiles

    def release(self, pending: int, nothing: Sequence[Array]) -> None:
        """Give back the group that was taken before the `pending` newest ones: each tile becomes its `nothing`."""
        if self.released + pending >= self.taken:
            raise ExecutionError("gives back a slot of a ring that it did not take")
        if self.released + pending + 1 != self.taken:
            raise ExecutionError("gives back a group of a ring before an older one")
        for tile, value in zip(self.puts[self.released][0], nothing, strict=True):
            tile[...] = value
        self.released += 1

    def check_empty(self) -> None:
        """Raise ExecutionError if somebody put what nobody took, and so would have waited or left it lying."""
        if not len(self.puts) == self.taken == self.released:
            raise ExecutionError("leaves groups in a ring that were put and not taken, or taken and not given back")


@dataclass
class Row:
    """The tiles in the places of one row, `[blocks, places, *tile]`, and which places hold one, `[blocks, places]`."""

    data: Array
    full: Array

    @staticmethod
    def create(places: int, blocks: int, shape: Sequence[int], dtype: Any) -> Row:
        """A row with nothing in it."""
        return Row(np.zeros((blocks, places, *shape), dtype), np.zeros((blocks, places), np.bool_))

    def keep(self, value: Array, place: Array, active: Array) -> None:
        """Put the tile of each block in `active` into its own `place`."""
        blocks, places = self._where(place, active)
        value = np.broadcast_to(value, (len(active), *self.data.shape[2:]))
        self.data[blocks, places], self.full[blocks, places] = value[blocks], True

    def kept(self, place: Array, active: Array) -> Array:
        """The tile in its own `place` of each block in `active`. Raises ExecutionError where none was put."""
        blocks, places = self._where(place, active)
        if not self.full[blocks, places].all():
            missing = int(places[np.argmin(self.full[blocks, places])])
            raise ExecutionError(f"reads place {missing} of a row, where nothing was put")
        found = np.zeros((len(active), *self.data.shape[2:]), self.data.dtype)
        found[blocks] = self.data[blocks, places]
        return found

    def _where(self, place: Array, active: Array) -> tuple[Array, Array]:
        """The blocks in `active` and their places."""
        blocks = np.flatnonzero(active)
        places = np.broadcast_to(place, active.shape)[blocks]
        if np.any((places < 0) | (places >= self.full.shape[1])):
            raise ExecutionError(f"a row of {self.full.shape[1]} places has no place {int(np.max(places))}")
        return blocks, places
