"""When the steps of one call of a program ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """`name`, a kernel as the text calls it or a function that PyTorch computed, began at `start`, by
    `time.perf_counter`, and took `seconds`."""

    name: str
    start: float
    seconds: float
