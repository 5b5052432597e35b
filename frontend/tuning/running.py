"""Runs candidates on the device, in a process that may be killed (`worker.py`).

A candidate is checked before it is timed. Timing alternates with the best candidate so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...backend import reference
from ...backend.cpu.runtime import CpuPlan
from ...backend.dtypes import DTYPES
from ...backend.host.timing import in_turns
from ...dialects.payload import element_type
from ...dialects.shapes.binding import bind_sizes
from ...dialects.support.calls import main_function
from ..capture.arrays import to_torch
from ..comparison import Difference, compare, tolerances
from ..executors import cpu_program
from .building import Built
from .task import Task

MIN_SAMPLE_SECONDS = 5e-4
"""Shortest sample in seconds. Shorter kernels are launched several times for a sample."""

FIRST_ROUNDS, ROUNDS_PER_STEP, MAX_ROUNDS = 3, 4, 101
"""Numbers of rounds, each with one sample of the candidate and one of the best: before the first decision, between
further decisions, and at most."""

SLOWER_AT_FIRST, SLOWER = 1.5, 1.02
"""Ratios of a candidate's time to that of the best above which timing stops. The first applies to the few samples of
the first decision. The second applies to the lower end of the 95 % interval of the ratio."""

NARROW_INTERVAL = 0.005
"""Relative half width of the 95 % interval of the time below which timing stops."""

MAX_TIMING_SECONDS = 0.4
"""Seconds after which timing stops on the CPU; twice as many if it is thorough."""


@dataclass(frozen=True)
class Measured:
    """Time of a candidate.

    Attributes:
        seconds: lower quartile or median.
        ratio: time over the time of the best candidate, measured in turns; 1 without a best.
        noise: relative half width of the 95 % interval of `ratio`.
        slower: whether timing stopped because the candidate is clearly slower.
    """

    seconds: float
    ratio: float
    noise: float
    slower: bool


class Runner:
    """Checks and times candidates on one device, `cpu` or `cuda`, for one task at a time."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        self.device = device
        if threads is not None:
            torch.set_num_threads(threads)
        self._programs: dict[str, Any] = {}

    def begin(self, task: Task) -> None:
        """Starts a task: makes its inputs and computes its results in float64."""
        self._programs.clear()
        self.task = task
        self.__dict__.pop("_rounded", None)
        self._arrays = task.inputs()
        self._args = [to_torch(a).to(self.device) for a in self._arrays]
        sizes = bind_sizes(main_function(task.module), [a.shape for a in self._arrays])
        self._allowed = tolerances(task.module, sizes)
        self._exact = self._expected("real")

    def _expected(self, domain: reference.DomainName) -> list[torch.Tensor]:
        results = reference.run(self.task.module, self._arrays, domain)
        types = [DTYPES[str(element_type(r.type))].numpy for r in self.task.nest.res]
        return [to_torch(np.asarray(a).astype(t)) for a, t in zip(results, types, strict=True)]

    @cached_property
    def _rounded(self) -> list[torch.Tensor]:
        """Results of the reference in the types of the program."""
        return self._expected("typed")

    def load(self, name: str, built: Built) -> None:
        """Loads a candidate under a name.

        Raises:
            ExecutionError: if it cannot be loaded.
            TargetError: if the CPU lacks instructions that it needs.
        """
        if self.device == "cpu":
            assert isinstance(built.binary, Path)
            assert isinstance(built.plan, CpuPlan)
            self._programs[name] = cpu_program(self.task.target.name, built.plan, built.binary)
        else:
            from ...backend.cuda.runtime import CudaProgram

            saved = self.task.target.arch, built.binary
            self._programs[name] = CudaProgram(built.plan, "", saved)  # pyright: ignore[reportArgumentType]

    def call(self, name: str) -> list[torch.Tensor]:
        """Runs a loaded candidate once and returns its results."""
        return self._programs[name].run(self._args)

    def check(self, name: str) -> str:
        """Returns the error of a candidate's results, or "" if they are right.

        They are right if they are within the tolerance of the float64 results, or of the typed reference, whose
        comparisons may take another branch than float64.
        """
        results = self.call(name)
        if self.device != "cpu":
            torch.cuda.synchronize()
        for expected in (lambda: self._exact, lambda: self._rounded):
            differences = compare(results, expected(), self._allowed)
            if all(d.ok for d in differences):
                return ""
        return "; ".join(_described(d) for d in differences if not d.ok)

    def time(self, name: str, best: str | None, thorough: bool = False) -> Measured:
        """Times a candidate in turns with the best so far.

        Args:
            name: name of the loaded candidate.
            best: name of the loaded best candidate, or None.
            thorough: whether to continue until the interval is narrow or the time is up, even if the candidate is
                clearly slower.
        """
        if self.device != "cpu":
            return self._on_gpu(name, best, thorough)
        arms = [name] if best is None else [name, best]
        once = {arm: min(self._sample(arm, 1) for _ in range(2)) for arm in arms}
        repeats = {arm: max(1, int(MIN_SAMPLE_SECONDS / seconds)) for arm, seconds in once.items()}
        samplers = {arm: partial(self._sample, arm, repeats[arm]) for arm in arms}
        samples, start = in_turns(samplers, FIRST_ROUNDS), perf_counter()
        if best is not None and not thorough and min(samples[name]) > SLOWER_AT_FIRST * min(samples[best]):
            ratio = min(samples[name]) / min(samples[best])
            return Measured(min(samples[name]), ratio, 1.0, True)
        while True:
            for arm, more in in_turns(samplers, ROUNDS_PER_STEP).items():
                samples[arm] += more
            measured = compared(samples[name], None if best is None else samples[best])
            seconds = perf_counter() - start
            enough = len(samples[name]) >= MAX_ROUNDS or seconds >= MAX_TIMING_SECONDS * (1 + thorough)
            if measured.noise < NARROW_INTERVAL or enough or measured.slower and not thorough:
                return measured

    def _sample(self, name: str, repeats: int) -> float:
        """Calls the candidate `name` `repeats` times. Returns the mean seconds of its kernels in one call."""
        program = self._programs[name]
        return sum(s.seconds for _ in range(repeats) for s in program.trace(self._args)) / repeats

    def _on_gpu(self, name: str, best: str | None, thorough: bool) -> Measured:
        from ...backend.cuda.runtime.timing import on_device

        arms: dict[str, Callable[[], object]] = {
            arm: partial(self._programs[arm].run, self._args) for arm in ([name] if best is None else [name, best])
        }
        times = on_device(arms, 5)
        if best is not None and not thorough and (ratio := times[name].median / times[best].median) > SLOWER_AT_FIRST:
            return Measured(times[name].median, ratio, 1.0, True)
        times = on_device(arms, 40)
        if best is None:
            return Measured(times[name].median, 1.0, times[name].noise, False)
        noise = math.hypot(times[name].noise, times[best].noise)
        ratio = times[name].median / times[best].median
        return Measured(times[name].median, ratio, noise, ratio * (1 - noise) > SLOWER)


def compared(samples: Sequence[float], base_samples: Sequence[float] | None = None) -> Measured:
    """Compares samples that were taken in turns.

    Other work of the machine only lengthens samples. So each arm is represented by its lower quartile, and the interval
    is computed from the distance of the median, as for a normal distribution.

    Args:
        samples: seconds of the candidate.
        base_samples: seconds of the best candidate, or None.
    """
    quartile, noise = _quartile(samples)
    if base_samples is None:
        return Measured(quartile, 1.0, noise, False)
    base, more = _quartile(base_samples)
    ratio, noise = quartile / base, math.hypot(noise, more)
    return Measured(quartile, ratio, noise, ratio * (1 - noise) > SLOWER)


def _quartile(samples: Sequence[float]) -> tuple[float, float]:
    """Returns the lower quartile and the relative half width of its 95 % interval.

    In a normal distribution the median is 0.674 sigma above the quartile, whose error is 1.36 sigma / sqrt(n).
    """
    low, median, _ = np.quantile(samples, (0.25, 0.5, 0.75))
    return float(low), float(1.96 * 1.36 / 0.674 * (median - low) / len(samples) ** 0.5 / low)


def _described(d: Difference) -> str:
    return f"result {d.index}: {d.reason or f'error {d.error:.1e}, tolerance {d.tolerance:.1e}'}"
