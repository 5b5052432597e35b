"""The one time model: a kernel takes as long as what it needs most, once it has started and until it has drained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np

from ...target.model import Rates

MIN_PART_BYTES = 1 << 14
"""Bytes that a part of a divided reduction reads at least."""

MOST_PARTS = 256
"""Parts at most; more would make combining them the long reduction."""


def another_kernel(rates: Rates, seconds: Any) -> Any:
    """Seconds that one more kernel takes, whose bytes alone take `seconds`, with the gap before or behind it."""
    return rates.gap + rates.launch + rates.ramp + seconds


@dataclass(frozen=True)
class Times:
    """Seconds that a kernel would take if nothing but one thing took time: a number each, or a column with a row for
    each of several schedules.

    start     until it does anything, and its first loads have arrived
    memory    bytes from and to device memory
    cache     bytes from the level-2 cache
    shared    bytes through shared memory
    compute   operations
    latency   one block after the other on every place for a block, each waiting for its own loads
    drain     results written while nothing else is done
    overlap   exponent of the norm by which the multiprocessors, the level-2 cache and memory add up: infinite where
              what takes longest hides the others
    """

    start: Any
    memory: Any
    cache: Any
    compute: Any
    shared: Any = 0.0
    latency: Any = 0.0
    drain: Any = 0.0
    overlap: float = math.inf

    def at(self, row: int) -> Times:
        """Those of one schedule."""
        seconds = (float(getattr(self, f.name)[row]) for f in fields(self) if f.name != "overlap")
        return Times(*seconds, overlap=self.overlap)

    @property
    def seconds(self) -> Any:
        """How long the kernel takes."""
        return self.start + self.between + self.drain

    @property
    def between(self) -> Any:
        """Seconds between start and drain."""
        busy = reduce(np.maximum, (self.shared, self.compute, self.latency))
        if math.isinf(self.overlap):
            return reduce(np.maximum, (self.memory, self.cache, busy))
        longest = np.maximum(self.longest, 1e-12)
        return longest * sum((t / longest) ** self.overlap for t in (self.memory, self.cache, busy)) ** (
            1 / self.overlap
        )

    @property
    def hidden(self) -> Any:
        """Seconds of what goes on behind the longest."""
        return self.memory + self.cache + self.shared + self.compute + self.latency - self.longest

    @property
    def longest(self) -> Any:
        """Seconds of the one thing that takes longest between start and drain."""
        return reduce(np.maximum, (self.memory, self.cache, self.shared, self.compute, self.latency))

    @property
    def parts(self) -> dict[str, Any]:
        """Seconds by what they go to, in words for people."""
        return {
            "memory": self.memory,
            "cache": self.cache,
            "shared memory": self.shared,
            "compute": self.compute,
            "latency": self.latency,
            "start": self.start,
            "epilogue": self.drain,
        }

    @property
    def limit(self) -> str:
        """What most of the time goes to."""
        return max(self.parts, key=self.parts.__getitem__)


SPECIAL = frozenset(
    f"math.{name}"
    for name in "acos acosh asin asinh atan atan2 atanh cos cosh erf exp exp2 expm1 log log10 log1p log2 powf rsqrt "
    "sin sinh sqrt tan tanh".split()
) | {"arith.divf", "arith.divsi", "arith.remsi", "arith.floordivsi", "payload.fmod", "payload.logaddexp"}
"""Operations that a few units of a multiprocessor do, at a fraction of the rate of sums."""
