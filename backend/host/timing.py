"""Timing of calls: sampling, statistics of samples, and times of the steps of a call.

An arm is one of several calls that are compared. Arms are sampled alternately.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from timeit import timeit
from typing import Any, TypeVar

SampleT = TypeVar("SampleT")

Arms = Mapping[str, Callable[[], object]]
"""The compared calls, by name."""

MIN_SAMPLE_SECONDS = 0.02
"""Shortest duration of a sample. Shorter calls are repeated within the sample."""

MAX_SAMPLES = 31
"""Largest number of samples of an arm."""


@dataclass(frozen=True)
class Timing:
    """Time of an arm, in seconds.

    Attributes:
        median, p20, p80: median, 20th and 80th percentile.
        repetitions: number of samples.
        graph: whether a CUDA graph was timed.
        why: the reason why the arm could not be captured as a CUDA graph, or None.
    """

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
        """Relative half width of the 95 % interval of the median, for a normal distribution.

        sigma is (p80 - p20) / 1.683, and the error of the median 1.253 sigma / sqrt(n). Differences between runs are
        not included.
        """
        return 1.96 * 1.253 / 1.683 * (self.p80 - self.p20) / self.repetitions**0.5 / self.median

    def as_dict(self) -> dict[str, Any]:
        facts = {name: float(f"{getattr(self, name):.5g}") for name in ("median", "p20", "p80")}
        facts["repetitions"] = self.repetitions
        return facts | ({"graph": True} if self.graph else {}) | ({"why": self.why} if self.why else {})


@dataclass(frozen=True)
class Span:
    """Time of a step: a kernel or a function of PyTorch.

    Attributes:
        name: name of the step.
        start: start in seconds of `time.perf_counter`.
        seconds: duration.
    """

    name: str
    start: float
    seconds: float


def in_turns(samplers: Mapping[str, Callable[[], SampleT]], rounds: int) -> dict[str, list[SampleT]]:
    """Returns samples of several arms, one of each arm per round, so that other load affects all arms.

    Every second round has the reverse order, so that an arm does not always follow the same one.
    """
    samples: dict[str, list[SampleT]] = {name: [] for name in samplers}
    for i in range(rounds):
        for name in list(samplers)[:: 1 if i % 2 == 0 else -1]:
            samples[name].append(samplers[name]())
    return samples


def by_clock(arms: Arms, seconds: float = 2.0, least: int = 7) -> dict[str, Timing]:
    """Returns the host time of several arms. Their first calls, which compile, are not counted.

    Args:
        arms: calls by name.
        seconds: time of all samples.
        least: smallest number of samples of an arm.
    """
    for arm in arms.values():
        arm()
    once = {name: min(_seconds(arm, 1) for _ in range(3 if least > 1 else 1)) for name, arm in arms.items()}
    repeats = {name: max(1, int(MIN_SAMPLE_SECONDS / time)) for name, time in once.items()}
    rounds = int(seconds / sum(once[name] * repeats[name] for name in arms))
    samplers = {name: partial(_seconds, arm, repeats[name]) for name, arm in arms.items()}
    samples = in_turns(samplers, max(least, min(MAX_SAMPLES, rounds)))
    return {name: Timing.of(s) for name, s in samples.items()}


def _seconds(call: Callable[[], object], times: int) -> float:
    """Returns the mean seconds of up to `times` calls. It stops when the calls have taken `MIN_SAMPLE_SECONDS`."""
    some, done, taken = max(1, times // 16), 0, 0.0
    while done < times and taken < MIN_SAMPLE_SECONDS:
        taken += timeit(call, number=some)
        done += some
    return taken / done
