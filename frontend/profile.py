"""Profile of a program: the cost of each kernel.

The time of a kernel is measured launch by launch, or predicted by the planning model. It is compared with the roofline:
the least time for the bytes and operations of the kernel by the rates of the target.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch

from ..backend.cuda.runtime.timing import Counters
from ..backend.host.timing import Span
from ..dialects.shapes.binding import bind_sizes
from ..dialects.support.calls import main_function
from ..target.host import cores, processor
from ..target.model import Target
from .api import CompiledFunction
from .bench import Subject, alone
from .compilation import Compilation
from .kernels import Kernel, kernels_of

TRACE_SECONDS, CALLS_TO_TRACE = 0.5, (5, 50)
"""Seconds during which calls are traced, and the smallest and the largest number of traced calls."""

MAX_STORED_CALLS = 5
"""Largest number of traced calls whose time spans a profile contains."""

LIMITED_SHARE = 0.5
"""Share of the roofline above which memory or compute is reported as the limit of a kernel. Set by hand."""


@dataclass(frozen=True)
class Cost:
    """A row of a profile: one kernel, or an operator that PyTorch computes, which only has times.

    Attributes:
        name: name of the kernel.
        launches: launches in one call of the program.
        seconds: time of all launches of a call.
        share: share of the time of all kernels.
        bytes, flops: least bytes and operations of all launches.
        roofline: least time for these bytes and operations, divided by `seconds`.
        limit: resource that limits the kernel: `memory`, `caches`, `compute` or `neither`; for predicted times a name
            of the planning model.
        schedules: schedule of each nest that the kernel computes.
        lines: lines of the user's Python code that the kernel computes.
        counters: hardware counters of a launch, if they were read.
    """

    name: str
    launches: int
    seconds: float
    share: float
    bytes: int = 0
    flops: int = 0
    roofline: float | None = None
    limit: str = ""
    schedules: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    counters: Counters | None = None


@dataclass(frozen=True)
class Profile:
    """Costs of the kernels of a call, the longest first.

    Attributes:
        source: how the times were obtained and for which device, as a text.
        costs: the rows.
        call: seconds of a call without tracing, or None if it was not measured.
        traced: time spans of some calls; empty for predicted times.
    """

    source: str
    costs: tuple[Cost, ...]
    call: float | None = None
    traced: tuple[tuple[Span, ...], ...] = ()

    def with_counters(self, counters: Mapping[str, Counters]) -> Profile:
        """Returns the profile with hardware counters by kernel name. They also determine the limit of each kernel."""

        def counted(cost: Cost) -> Cost:
            count = counters.get(cost.name)
            return cost if count is None else replace(cost, counters=count, limit=_limit(count.memory, count.compute))

        return replace(self, costs=tuple(map(counted, self.costs)))

    @property
    def seconds(self) -> float:
        """Time of all kernels of a call."""
        return sum(c.seconds for c in self.costs)

    def as_dict(self) -> dict[str, Any]:
        """Returns the profile as JSON data."""
        return {
            "source": self.source,
            "seconds": self.seconds,
            "call_seconds": self.call,
            "kernels": [asdict(c) for c in self.costs],
        }


def predicted(compilation: Compilation) -> Profile:
    """Returns a profile with the times that the planning model predicts. It runs nothing."""
    target, kernels = compilation.resolved, kernels_of(compilation)
    seconds = {k.name: k.launches * k.predicted for k in kernels}
    source = f"predicted for {target.arch} ({target.card}) by the planning model, not measured"
    return Profile(source, _costs(kernels, seconds, target, "predicted"))


def measured(program: CompiledFunction, subject: Subject) -> Profile:
    """Measures the kernels of a program on its device. The time of each launch is the median of many calls.

    Raises:
        ExecutionError: the program fails.
    """
    return measured_in_turns({"": program}, subject)[""]


def measured_in_turns(programs: Mapping[str, CompiledFunction], subject: Subject) -> dict[str, Profile]:
    """Measures the kernels of several versions of a program, one call of each in turn.

    Args:
        programs: the versions by name, on one device.
        subject: the function with its arguments.

    Raises:
        ExecutionError: a program fails.
    """
    arms = {name: _Traced(program, subject) for name, program in programs.items()}
    for arm in arms.values():
        for _ in range(2):
            arm.call()
        arm.clear()
    end, calls = perf_counter() + TRACE_SECONDS * len(arms), 0
    while calls < CALLS_TO_TRACE[0] or calls < CALLS_TO_TRACE[1] and perf_counter() < end:
        calls += 1
        for name in list(arms)[:: 1 if calls % 2 else -1]:
            arms[name].call()
    return {name: arm.profile() for name, arm in arms.items()}


class _Traced:
    """Program whose calls are traced.

    Attributes:
        calls: time spans of the launches of each call.
        seconds: wall time of a call without tracing, for each call.
    """

    def __init__(self, program: CompiledFunction, subject: Subject) -> None:
        self.program, self.isolated = program, alone(subject, program)
        self.args = self.isolated.function.captured.bind(self.isolated.args, self.isolated.kwargs)
        self.clear()

    def clear(self) -> None:
        self.calls, self.seconds = list[tuple[Span, ...]](), list[float]()

    def call(self) -> None:
        """Traces one call, and times another one."""
        trace = self.program.executor.trace
        assert trace is not None
        self.calls.append(tuple(trace(self.args)))
        start = perf_counter()
        self.isolated()
        self.seconds.append(perf_counter() - start)

    def profile(self) -> Profile:
        """Returns the medians of all calls."""
        executor, compilation = self.program.executor, self.program.compilation
        target = compilation.resolved
        seconds_of = Counter[str]()
        for step in zip(*self.calls, strict=True):
            seconds_of[step[0].name] += statistics.median(s.seconds for s in step)  # pyright: ignore
        if executor.name == "cpu":
            here = f"{processor()}, {cores()} cores, {torch.get_num_threads()} threads"
            where, call = here, statistics.median(self.seconds)
        else:
            where, call = torch.cuda.get_device_name(), None
        sizes = bind_sizes(main_function(compilation.at("loop")), [a.shape for a in self.args])
        costs = _costs(kernels_of(compilation, sizes.number), seconds_of, target, "measured")
        source = f"measured on {where}, median of {len(self.calls)} calls; roofs are those of {target.card}"
        return Profile(source, costs, call, tuple(self.calls[-MAX_STORED_CALLS:]))


def _costs(kernels: Sequence[Kernel], seconds: Mapping[str, float], target: Target, how: str) -> tuple[Cost, ...]:
    by_name, total = {k.name: k for k in kernels}, sum(seconds.values()) or 1.0
    costs = [
        _cost(by_name[name], s, s / total, target, how) if name in by_name else Cost(name, 1, s, s / total)
        for name, s in seconds.items()
        if name not in by_name or by_name[name].launches
    ]
    return tuple(sorted(costs, key=lambda c: -c.seconds))


def _cost(k: Kernel, seconds: float, share: float, target: Target, how: str) -> Cost:
    memory = k.launches * k.work.bytes / target.rates.memory
    compute = k.launches * k.work.flops / (target.tensor if k.tensor_cores else target.fp32)
    roofline = max(memory, compute) / seconds if seconds else 0.0
    limit = k.limit if how == "predicted" else _limit(memory / seconds, compute / seconds)
    work = k.launches * k.work.bytes, k.launches * k.work.flops
    return Cost(k.name, k.launches, seconds, share, *work, roofline, limit, k.schedules, k.lines)


def _limit(memory: float, compute: float) -> str:
    """Returns the limit of a measured kernel.

    `memory` and `compute` are the least times for its bytes and operations, divided by its time. If it
    reads faster than memory can, the data comes from the caches.
    """
    if max(memory, compute) < LIMITED_SHARE:
        return "neither"
    if memory > compute:
        return "memory" if memory <= 1.1 else "caches"
    return "compute"
