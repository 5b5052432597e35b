"""Rows of the tile dialect, executed: what each block keeps in its places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ExecutionError
from .domains import Array


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
        self.data[blocks, places] = value[blocks]
        self.full[blocks, places] = True

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
