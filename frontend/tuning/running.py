"""Running candidates where they are measured: each is right before it is timed, and takes turns with the best so far.
All of this happens in a process that may be killed (`worker.py`)."""

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

SAMPLE = 5e-4
"""Seconds that a sample takes at least: shorter kernels are launched several times for it."""

LOOK, ROUNDS, MOST = 3, 4, 101
"""Rounds of a first look, between two further ones at what is known, and rounds at most."""

CLEARLY, SURELY = 1.5, 1.02
"""So many times slower than the best at once, or by the whole interval, a candidate is not measured any longer."""

NARROW = 0.005
"""Half an interval that is narrow enough, relative to the time."""

ENOUGH = 0.4
"""Seconds after which nothing more is measured of a candidate, if there are `ROUNDS` rounds."""


@dataclass(frozen=True)
class Measured:
    """What a candidate takes: by the best so far, which took turns with it, or in seconds where there was none; half
    the interval of 95 % of that; and whether it was given up because it is clearly slower."""

    seconds: float
    ratio: float
    noise: float
    slower: bool


class Runner:
    """Checks and times candidates of one task after another on one device: `cpu` or `cuda`."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        self.device = device
        if threads is not None:
            torch.set_num_threads(threads)
        self._programs: dict[str, Any] = {}

    def begin(self, task: Task) -> None:
        """Go over to a task: make its inputs, and what they give in float64."""
        self._programs.clear()
        self.task = task
        self.__dict__.pop("_rounded", None)
        self._arrays = task.inputs()
        self._args = [to_torch(a).to(self.device) for a in self._arrays]
        sizes = bind_sizes(main_function(task.module), [a.shape for a in self._arrays])
        self._allowed = tolerances(task.module, sizes)
        self._exact = self._expected("real")

    def _expected(self, domain: reference.DomainName) -> list[torch.Tensor]:
        found = reference.run(self.task.module, self._arrays, domain)
        types = [DTYPES[str(element_type(r.type))].numpy for r in self.task.nest.res]
        return [to_torch(np.asarray(a).astype(t)) for a, t in zip(found, types, strict=True)]

    @cached_property
    def _rounded(self) -> list[torch.Tensor]:
        """The results by the reference with the roundings of the program."""
        return self._expected("typed")

    def load(self, name: str, built: Built) -> None:
        """Take a candidate in. Raises ExecutionError, and TargetError for an instruction set of other processors."""
        if self.device == "cpu":
            assert isinstance(built.binary, Path)
            assert isinstance(built.plan, CpuPlan)
            self._programs[name] = cpu_program(self.task.target.name, built.plan, built.binary)
        else:
            from ...backend.cuda.runtime import CudaProgram

            saved = self.task.target.arch, built.binary
            self._programs[name] = CudaProgram(built.plan, "", saved)  # pyright: ignore[reportArgumentType]

    def check(self, name: str) -> str:
        """What is wrong with the results of a candidate; empty if they are right: as close to those in float64 as its
        roundings permit, or to those of the reference with these roundings (comparisons may come out otherwise)."""
        found = self._programs[name].run(self._args)
        if self.device != "cpu":
            torch.cuda.synchronize()
        for wanted in (lambda: self._exact, lambda: self._rounded):
            differences = compare(found, wanted(), self._allowed)
            if all(d.ok for d in differences):
                return ""
        return "; ".join(_told(d) for d in differences if not d.ok)

    def time(self, name: str, best: str | None, whole: bool = False) -> Measured:
        """How long a candidate takes, in turns with the best so far; to the end, if it is to be the `whole`, however
        slow it is."""
        if self.device != "cpu":
            return self._on_gpu(name, best)
        arms = [name] if best is None else [name, best]
        once = {arm: min(self._sample(arm, 1) for _ in range(2)) for arm in arms}
        repeats = {arm: max(1, int(SAMPLE / seconds)) for arm, seconds in once.items()}
        samplers = {arm: partial(self._sample, arm, repeats[arm]) for arm in arms}
        samples, start = in_turns(samplers, LOOK), perf_counter()
        if best is not None and not whole and min(samples[name]) > CLEARLY * min(samples[best]):
            ratio = min(samples[name]) / min(samples[best])
            return Measured(min(samples[name]), ratio, 1.0, True)
        while True:
            for arm, more in in_turns(samplers, ROUNDS).items():
                samples[arm] += more
            found = judged(samples[name], None if best is None else samples[best])
            enough = len(samples[name]) >= MOST or perf_counter() - start >= ENOUGH * (1 + whole)
            if found.noise < NARROW or enough or found.slower and not whole:
                return found

    def _sample(self, name: str, repeats: int) -> float:
        """Seconds in the kernels of a call, the average of some."""
        program = self._programs[name]
        return sum(s.seconds for _ in range(repeats) for s in program.trace(self._args)) / repeats

    def _on_gpu(self, name: str, best: str | None) -> Measured:
        from ...backend.cuda.runtime.timing import on_device

        arms: dict[str, Callable[[], object]] = {
            arm: partial(self._programs[arm].run, self._args) for arm in ([name] if best is None else [name, best])
        }
        found = on_device(arms, 5)
        if best is not None and (ratio := found[name].median / found[best].median) > CLEARLY:
            return Measured(found[name].median, ratio, 1.0, True)
        found = on_device(arms, 40)
        other = 1.0 if best is None else found[best].median
        noise = math.hypot(found[name].noise, 0.0 if best is None else found[best].noise)
        ratio = found[name].median / other
        return Measured(found[name].median, ratio, noise, best is not None and ratio * (1 - noise) > SURELY)


def judged(own: Sequence[float], other: Sequence[float] | None = None) -> Measured:
    """What samples say that were taken in turns. Whatever else the machine does only makes them longer, so the lower
    quartile stands for each arm; its interval follows from how far the median is from it, as of samples that scatter
    normally."""
    quartile, noise = _quartile(own)
    if other is None:
        return Measured(quartile, 1.0, noise, False)
    base, more = _quartile(other)
    ratio, noise = quartile / base, math.hypot(noise, more)
    return Measured(quartile, ratio, noise, ratio * (1 - noise) > SURELY)


def _quartile(samples: Sequence[float]) -> tuple[float, float]:
    """The lower quartile, and half the interval of 95 % for it, relative to it: 0.674 sigma lie between it and the
    median, and its error is 1.36 sigma / sqrt(n)."""
    low, median, _ = np.quantile(samples, (0.25, 0.5, 0.75))
    return float(low), float(1.96 * 1.36 / 0.674 * (median - low) / len(samples) ** 0.5 / low)


def _told(d: Difference) -> str:
    return f"result {d.index}: {d.reason or f'error {d.error:.1e}, tolerance {d.tolerance:.1e}'}"
