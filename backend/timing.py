"""What the samples of a time say, and how the samples of several arms are taken: side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Arms = Mapping[str, Callable[[], object]]
"""What is compared, by its name: calls that do the same."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one arm: the median, the 20th and the 80th percentile of so many repetitions. `graph` says whether a
    CUDA graph was timed; it was not where `why` says that the arm cannot be one."""

    median: float
    p20: float
    p80: float
    repetitions: int
    graph: bool = False
    why: str | None = None

    @staticmethod
    def of(samples: list[float], graph: bool = False, why: str | None = None) -> Timing:
        """What the samples say."""
        fifths = statistics.quantiles(samples, n=5) if len(samples) > 1 else samples * 4
        return Timing(statistics.median(samples), fifths[0], fifths[3], len(samples), graph, why)

    @property
    def noise(self) -> float:
        """Half the interval of 95 % for the median, relative to it, as of samples that scatter normally: sigma is
        (p80 - p20) / 1.683, the median's error 1.253 sigma / sqrt(n), and the interval 1.96 of that. It does not know
        what changes from one run to another."""
        return 1.96 * 1.253 / 1.683 * (self.p80 - self.p20) / self.repetitions**0.5 / self.median

    def as_dict(self) -> dict[str, Any]:
        """For JSON, in five digits."""
        found = {name: float(f"{getattr(self, name):.5g}") for name in ("median", "p20", "p80")}
        found["repetitions"] = self.repetitions
        return found | ({"graph": True} if self.graph else {}) | ({"why": self.why} if self.why else {})


def in_turns(samplers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Samples of each arm, one of each a round, so that whatever else the machine does meets all of them; every other
    round goes backwards, so that none always comes behind the same."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for i in range(rounds):
        for name in list(samplers)[:: 1 if i % 2 == 0 else -1]:
            samples[name].append(samplers[name]())
    return samples
