"""Fixtures of the tests of tile passes."""

import numpy as np
import pytest

from deplodock.backend.interpreter import tile as tile_interpreter


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Returns a list of the (start, stop) of loops that the tile interpreter runs, for every block."""
    ranges: list[np.ndarray] = []
    trips = tile_interpreter.trips

    def recorded(lower: np.ndarray, upper: np.ndarray, step: np.ndarray) -> tuple[int, np.ndarray]:
        ranges.append(np.stack(np.broadcast_arrays(lower, upper), axis=-1))
        return trips(lower, upper, step)

    monkeypatch.setattr(tile_interpreter, "trips", recorded)
    return ranges
