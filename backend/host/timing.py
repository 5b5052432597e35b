"""What the samples of a time say, and how the samples of several arms are taken: side by side; on cores by the clock of
the host. And when the steps of one call of a program ran."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from timeit import timeit
from typing import Any, TypeVar

SampleT = TypeVar("SampleT")

Arms = Mapping[str, Callable[[], object]]
"""What is compared, by its name: calls that do the same."""

LEAST = 0.02
"""Seconds that one sample takes at least: shorter calls are repeated for it."""

MOST = 31
"""Samples of each arm at most."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one arm: median, 20th and 80th percentile of `repetitions`. `graph`: a CUDA graph was timed; `why`:
    the reason why the arm cannot be one."""

    median: float
    p20: float
    p80: float
    repetitions: int
    graph: bool = False
    why: str | None = None

    @staticmethod
    def of(samples: list[float], graph: bool = False, why: str | None = None) -> Timing:
        fifths = statistics.quantiles(samples, n=5) if len(samples) > 1 else samples * 4
        return Timing(statistics.median(samples), fifths[0], fifths[3], len(samples), graph, why)

    @property
    def noise(self) -> float:
        """Half the interval of 95 % for the median, relative to it, as of samples that scatter normally: sigma is
        (p80 - p20) / 1.683, the median's error 1.253 sigma / sqrt(n), and the interval 1.96 of that. It does not know
        what changes from one run to another."""
        return 1.96 * 1.253 / 1.683 * (self.p80 - self.p20) / self.repetitions**0.5 / self.median

    def as_dict(self) -> dict[str, Any]:
        found = {name: float(f"{getattr(self, name):.5g}") for name in ("median", "p20", "p80")}
        found["repetitions"] = self.repetitions
        return found | ({"graph": True} if self.graph else {}) | ({"why": self.why} if self.why else {})


@dataclass(frozen=True)
class Span:
    """A step `name`, a kernel or a function of PyTorch, that began at `start` (`time.perf_counter`) and took
    `seconds`."""

    name: str
    start: float
    seconds: float


def in_turns(samplers: Mapping[str, Callable[[], SampleT]], rounds: int) -> dict[str, list[SampleT]]:
    """Returns samples of each arm, one a round, so that other load meets all arms; every other round goes backwards, so
    that none always follows the same."""
    samples: dict[str, list[SampleT]] = {name: [] for name in samplers}
    for i in range(rounds):
        for name in list(samplers)[:: 1 if i % 2 == 0 else -1]:
            samples[name].append(samplers[name]())
    return samples


def by_clock(arms: Arms, seconds: float = 2.0, least: int = 7) -> dict[str, Timing]:
    """Returns the time of a call of each arm. First calls, which compile, are not counted. There are as many samples as
    fit into `seconds`, at least `least`."""
    for arm in arms.values():
        arm()
    once = {name: min(_seconds(arm, 1) for _ in range(3 if least > 1 else 1)) for name, arm in arms.items()}
    repeats = {name: max(1, int(LEAST / time)) for name, time in once.items()}
    rounds = int(seconds / sum(once[name] * repeats[name] for name in arms))
    samplers = {name: partial(_seconds, arm, repeats[name]) for name, arm in arms.items()}
    samples = in_turns(samplers, max(least, min(MOST, rounds)))
    return {name: Timing.of(s) for name, s in samples.items()}


def _seconds(call: Callable[[], object], times: int) -> float:
    """Returns the seconds of a call, by up to `times` of them, or fewer once these take `LEAST`."""
    some, done, taken = max(1, times // 16), 0, 0.0
    while done < times and taken < LEAST:
        taken += timeit(call, number=some)
        done += some
    return taken / done
