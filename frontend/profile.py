"""What each kernel of a program costs: its time, measured launch by launch or predicted by the planning model, beside
the bytes and operations that it cannot do without and the time that the machine needs for these."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from time import perf_counter
from typing import Any

import torch

from ..backend.cuda.runtime.timing import Counters
from ..backend.host.launch_plan import make_plan
from ..backend.host.timing import Span
from ..dialects.kernel import FuncOp, kernel_names
from ..dialects.loop import NestOp
from ..dialects.loop.work import Size, Work, nest_work
from ..dialects.shapes.binding import bind_sizes
from ..dialects.shapes.extents import typical
from ..dialects.support.calls import main_function
from ..dialects.support.locations import line_text
from ..passes.analysis.host_memory import parts_of
from ..passes.analysis.nest_schedule import schedule_of
from ..passes.planning.matmul import on_tensor_cores
from ..passes.planning.model import Prediction, model_of
from ..passes.planning.nest_info import NestInfo
from ..target.host import cores, processor
from ..target.model import Target
from .api import CompiledFunction
from .bench import Subject, alone
from .compilation import Compilation

SECONDS, CALLS = 0.5, (5, 50)
"""How long calls are traced, and of how many of them: at least, at most."""

TRACED = 5
"""So many of the calls are kept span by span."""

FULL = 0.5
"""The share of the roofline from which on it is what limits a kernel."""


@dataclass(frozen=True)
class Kernel:
    """A kernel as the text calls it: how often a call launches it, its grid, the least work of a launch, how it is
    scheduled (each nest, if it stands for several), the lines of Python that it computes, and what the planning model
    expects of a launch."""

    name: str
    launches: int
    blocks: int | str
    threads: int
    shared_bytes: int
    work: Work
    schedules: tuple[str, ...]
    lines: tuple[str, ...]
    tensor_cores: bool
    predicted: float
    limit: str


@dataclass(frozen=True)
class Cost:
    """One row of a profile: seconds in a call of all `launches` of a kernel, and their share of all kernels' time; the
    least bytes and operations; `roofline` is the least time for these by the target's rates over the time. For what
    PyTorch computes there is only the time."""

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
    """The kernels of a call, those first that take longest. `source` says how the times were found and for what card;
    `call` are the seconds of a call that nobody watches, and `traced` some calls span by span, where they were
    measured."""

    source: str
    costs: tuple[Cost, ...]
    call: float | None = None
    traced: tuple[tuple[Span, ...], ...] = ()

    def with_counters(self, counters: Mapping[str, Counters]) -> Profile:
        """The same with what was counted of a launch of each kernel, which then tells what limits it."""

        def counted(cost: Cost) -> Cost:
            found = counters.get(cost.name)
            return cost if found is None else replace(cost, counters=found, limit=_limit(found.memory, found.compute))

        return replace(self, costs=tuple(map(counted, self.costs)))

    @property
    def seconds(self) -> float:
        """Of all kernels."""
        return sum(c.seconds for c in self.costs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "seconds": self.seconds,
            "call_seconds": self.call,
            "kernels": [asdict(c) for c in self.costs],
        }


def kernels_of(compilation: Compilation, size: Size = typical) -> list[Kernel]:
    """The kernels of a program in the order of its text, with their work where extents have these sizes."""
    module = compilation.at("kernel")
    names, launches = kernel_names(module), Counter(x.kernel for x in make_plan(module).launches)
    nests = {f"k{i}": op for i, op in enumerate(op for op in compilation.scheduled().walk() if isinstance(op, NestOp))}
    target = compilation.resolved
    found: list[Kernel] = []
    for f in (op for op in module.walk() if isinstance(op, FuncOp)):
        name, parts = names[f.sym_name.data], [nests[n] for n in parts_of(f)]
        schedules = [schedule_of(nest) for nest in parts]
        atoms = ((NestInfo(nest), s.data.atom) for nest, s in zip(parts, schedules, strict=True))
        lines = (line_text(op.location) for nest in parts for op in nest.walk())
        made = Kernel(
            name,
            launches.get(name, 0),
            " * ".join(map(str, f.grid_shape)) if any(not isinstance(n, int) for n in f.grid_shape) else f.blocks,
            f.threads,
            f.shared.data if f.shared is not None else 0,
            reduce(Work.__add__, (nest_work(nest, size) for nest in parts)),
            tuple(str(s).removeprefix("#tile.schedule") for s in schedules),
            tuple(dict.fromkeys(filter(None, lines))),
            any(on_tensor_cores(info, atom, target) for info, atom in atoms),
            *_predicted(parts, target),
        )
        found.append(made)
    return found


def _predicted(nests: Sequence[NestOp], target: Target) -> tuple[float, str]:
    """Seconds that nests take in one launch, each under its schedule, by the planning model, and what limits the
    longest; the launch starts once."""
    found: list[Prediction] = [model_of(NestInfo(nest), target).predict(schedule_of(nest)) for nest in nests]
    starts = [min(p.times.start, target.rates.launch + target.rates.ramp) for p in found]
    seconds = sum(p.seconds for p in found) - (sum(starts) - max(starts))
    return seconds, max(found, key=lambda p: p.seconds).limit


def predicted(compilation: Compilation) -> Profile:
    """What the planning model expects of each kernel. Nothing is run."""
    target, kernels = compilation.resolved, kernels_of(compilation)
    seconds = {k.name: k.launches * k.predicted for k in kernels}
    source = f"predicted for {target.arch} ({target.card}) by the planning model, not measured"
    return Profile(source, _costs(kernels, seconds, target, "predicted"))


def measured(program: CompiledFunction, subject: Subject) -> Profile:
    """The times of each kernel where the program runs: medians of many calls. Raises ExecutionError as a call does."""
    executor, compilation = program.executor, program.compilation
    assert executor.trace is not None
    target = compilation.resolved
    own = alone(subject, program)
    args = own.function.captured.bind(own.args, own.kwargs)
    for _ in range(2):
        executor.trace(args)
        own()
    calls, seconds, end = list[tuple[Span, ...]](), list[float](), perf_counter() + SECONDS
    while len(calls) < CALLS[0] or len(calls) < CALLS[1] and perf_counter() < end:
        calls.append(tuple(executor.trace(args)))
        start = perf_counter()
        own()
        seconds.append(perf_counter() - start)
    found = Counter[str]()
    for step in zip(*calls, strict=True):
        found[step[0].name] += statistics.median(s.seconds for s in step)  # pyright: ignore
    if executor.name == "cpu":
        here = f"{processor()}, {cores()} cores, {torch.get_num_threads()} threads"
        where, call = here, statistics.median(seconds)
    else:
        where, call = torch.cuda.get_device_name(), None
    sizes = bind_sizes(main_function(compilation.at("loop")), [a.shape for a in args])
    costs = _costs(kernels_of(compilation, sizes.number), found, target, "measured")
    source = f"measured on {where}, median of {len(calls)} calls; roofs are those of {target.card}"
    return Profile(source, costs, call, tuple(calls[-TRACED:]))


def _costs(kernels: Sequence[Kernel], seconds: Mapping[str, float], target: Target, how: str) -> tuple[Cost, ...]:
    known, total = {k.name: k for k in kernels}, sum(seconds.values()) or 1.0
    found = [
        _cost(known[name], s, s / total, target, how) if name in known else Cost(name, 1, s, s / total)
        for name, s in seconds.items()
        if name not in known or known[name].launches
    ]
    return tuple(sorted(found, key=lambda c: -c.seconds))


def _cost(k: Kernel, seconds: float, share: float, target: Target, how: str) -> Cost:
    memory = k.launches * k.work.bytes / target.rates.memory
    compute = k.launches * k.work.flops / (target.tensor if k.tensor_cores else target.fp32)
    roofline = max(memory, compute) / seconds if seconds else 0.0
    limit = k.limit if how == "predicted" else _limit(memory / seconds, compute / seconds)
    work = k.launches * k.work.bytes, k.launches * k.work.flops
    return Cost(k.name, k.launches, seconds, share, *work, roofline, limit, k.schedules, k.lines)


def _limit(memory: float, compute: float) -> str:
    """What a measured kernel spends its time on, by the shares of it that its bytes and its operations would take."""
    if max(memory, compute) < FULL:
        return "neither"
    if memory > compute:
        return "memory" if memory <= 1.1 else "caches"
    return "compute"
