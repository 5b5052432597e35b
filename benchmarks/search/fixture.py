"""40 kernels whose best schedule is known: nests of ordinary programs on machines that there are not.

A machine is a target whose rates are not those that the planner counts with, and on which a schedule takes longer for
reasons that the model knows nothing of:

- each decision has an optimum near the planner's pick, and what is an octave away from it is `SLOPE` slower, two
  octaves four times as much; for two extents of tiles together it depends on the product of both distances;
- each word (a copy, an atom, which index is walked) has a factor of its own;
- large tiles fall off a cliff somewhere;
- each schedule has a deviation of its own, and one in `FAILING` fails.

A measurement is the true time with `NOISE` on each sample. The optimum is the least true time of all that is reachable:
the planner's candidates and neighbours of the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log2
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from deplodock.dialects.loop import NestOp
from deplodock.errors import ScheduleError
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.frontend.tuning.space import NestSpace, Values
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.passes.planning.model import model_of
from deplodock.passes.planning.points import points_of
from deplodock.target.architectures import CPU
from deplodock.target.attribute import get_target
from deplodock.target.model import Target

RATE, WORD, SLOPE, TWIST, CENTER, OWN = 0.3, 0.08, 0.03, 0.015, 0.7, 0.005
"""Standard deviations of the logarithms of rates and factors of words, of `SLOPE` itself half of it, of the term of two
extents, of the distance of an optimum in octaves, and of each schedule's own deviation."""

CLIFF, OVER = 1.25, 2.0
"""Tiles of so many octaves more than the planner's, at most, are that much slower."""

FLOOR, SHARP = (0.9, 1.3), 8
"""No schedule is faster than a floor, which lies so far from what would be the least time: the other is `1 / SHARP`-th
power of a sum of `SHARP`-th powers."""

FAILING, NOISE = 40, 0.05
SEEN = 24
"""Of how many of the planner's candidates the neighbours are reachable."""

TARGETS = ("cpu", "sm_90a")


def _linear(m: int, n: int, k: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[nn.Module, Any]]:
    return lambda: (nn.Linear(k, n, dtype=dtype), (torch.empty(m, k, dtype=dtype),))


def _function(f: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[], tuple[Any, Any]]:
    class Program(nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return f(*args)

    return lambda: (Program(), tuple(map(torch.empty, shapes)))


PROGRAMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "linear 128x512x512": _linear(128, 512, 512),
    "linear 512x1024x768": _linear(512, 1024, 768),
    "linear 2048x2048x1024": _linear(2048, 2048, 1024),
    "linear 32x4096x1024": _linear(32, 4096, 1024),
    "linear 256x512x2048 bf16": _linear(256, 512, 2048, torch.bfloat16),
    "linear 4096x1024x1024 bf16": _linear(4096, 1024, 1024, torch.bfloat16),
    "linear 1x4096x4096": _linear(1, 4096, 4096),
    "batched 8x256x256x64": _function(torch.matmul, (8, 256, 64), (8, 64, 256)),
    "linear relu": _function(lambda x, w: F.relu(x @ w), (384, 640), (640, 896)),
    "attention 128": _function(F.scaled_dot_product_attention, *[(1, 4, 128, 64)] * 3),
    "attention 1024": _function(F.scaled_dot_product_attention, *[(2, 8, 1024, 64)] * 3),
    "conv 56": lambda: (nn.Conv2d(64, 64, 3, padding=1), (torch.empty(1, 64, 56, 56),)),
    "conv 14": lambda: (nn.Conv2d(256, 128, 3, padding=1), (torch.empty(4, 256, 14, 14),)),
    "softmax 512": _function(lambda x: x.softmax(-1), (28, 512, 512)),
    "softmax 4096": _function(lambda x: x.softmax(-1), (512, 4096)),
    "rms norm": lambda: (nn.RMSNorm(2048), (torch.empty(512, 2048),)),
    "layer norm": lambda: (nn.LayerNorm(768), (torch.empty(1024, 768),)),
    "column sums": _function(lambda x: x.sum(0), (4096, 1024)),
    "row means": _function(lambda x: x.mean(1), (1024, 8192)),
    "transposed sum": _function(lambda a, b: a + b.T, (2048, 1024), (1024, 2048)),
}


class Machine:
    """How long schedules of one nest take on a machine that the seed makes up."""

    def __init__(self, space: NestSpace, seed: str) -> None:
        self.seed, self.names = seed, space.names
        rng, rates = Random(seed), space.target.rates
        changed = {n: v * exp(rng.gauss(0, RATE)) for n, v in vars(rates).items() if isinstance(v, float)}
        self._model = model_of(space.info, replace(space.target, rates=replace(rates, **changed)))
        self._space = space
        here = dict(zip(space.names, space.values(space.ranked()[0]), strict=True))
        self._center = {n: log2(v + 1) + rng.gauss(0, CENTER) for n, v in here.items() if isinstance(v, int)}
        self._slope = {n: abs(rng.gauss(SLOPE, SLOPE / 2)) for n in self._center}
        tiles = [n for n in self._center if n.startswith(("block.", "chunk."))]
        self._twist = {(a, b): rng.gauss(0, TWIST) for a in tiles for b in tiles if a < b}
        chunks = [n for n in tiles if n.startswith("chunk.")]
        self._chunks = dict.fromkeys(chunks, len(chunks))  # most of them are equal
        self._tiles, self._most = tiles, sum(log2(here[n]) for n in tiles) + rng.uniform(0, OVER)
        self._share = rng.uniform(*FLOOR)

    def seconds(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """The true times of all that is reachable; None for what fails."""
        found: dict[Candidate, float] = {}
        all_ = [*candidates]
        for group in points_of(parse_schedule(c.schedule).data for c in all_):
            for p in self._model.predict_all(group):
                for row, order in enumerate(p.points.order.tolist()):
                    found[all_[order]] = float(p.at(row).seconds) * self._factor(all_[order])
        floor = self._share * min(found.values())
        times = {c: (floor**SHARP + s**SHARP) ** (1 / SHARP) * self._own(c) for c, s in found.items()}
        return [None if self._fails(c) else times[c] for c in all_]

    def _own(self, candidate: Candidate) -> float:
        return exp(Random(f"{self.seed} own {candidate.schedule}").gauss(0, OWN))

    def _fails(self, candidate: Candidate) -> bool:
        return (
            candidate != self._space.ranked()[0] and Random(f"{self.seed} {candidate.schedule}").random() < 1 / FAILING
        )

    def _factor(self, candidate: Candidate) -> float:
        """How much longer it takes than by the rates of the machine."""
        values: dict[str, Any] = dict(zip(self.names, self._space.values(candidate), strict=True))
        away = {n: log2(values[n] + 1) - center for n, center in self._center.items()}
        found = sum(self._slope[n] * d * d / self._chunks.get(n, 1) for n, d in away.items())
        found += sum(t * away[a] * away[b] for (a, b), t in self._twist.items())
        lists = {n: v if isinstance(v, tuple) else (v,) for n, v in values.items() if n not in away}
        words = ((n, v) for n, members in lists.items() for v in members)
        found += sum(Random(f"{self.seed} {n} {v}").gauss(0, WORD) for n, v in words)
        return exp(found) * (CLIFF if sum(log2(values[n]) for n in self._tiles) > self._most else 1.0)


@dataclass
class Kernel:
    """A kernel of the fixture: its space, cut to what is reachable, the true times, and the least of them."""

    name: str
    space: NestSpace
    machine: Machine
    reachable: dict[Candidate, float | None] = field(default_factory=dict[Candidate, "float | None"])

    def __post_init__(self) -> None:
        self.names = self.space.names
        first = self.space.ranked()
        found = [*first, *self.space.neighbours(*first[:SEEN])]
        self.reachable = dict(zip(found, self.machine.seconds(found), strict=True))

    @cached_property
    def optimum(self) -> float:
        """The least true time."""
        return min(s for s in self.reachable.values() if s is not None)

    def share(self, candidate: Candidate) -> float:
        """Which share of the optimum's speed a candidate has; 0 for one that fails."""
        seconds = self.reachable[candidate]
        return 0.0 if seconds is None else self.optimum / seconds

    def ranked(self) -> Sequence[Candidate]:
        """As of `NestSpace`."""
        return self.space.ranked()

    def values(self, candidate: Candidate) -> Values:
        """As of `NestSpace`."""
        return self.space.values(candidate)

    def candidates(self, points: Iterable[Values]) -> list[Candidate]:
        """As of `NestSpace`, what is reachable."""
        return [c for c in self.space.candidates(points) if c in self.reachable]

    def neighbours(self, *candidates: Candidate) -> list[Candidate]:
        """As of `NestSpace`, what is reachable."""
        return [c for c in self.space.neighbours(*candidates) if c in self.reachable]


@dataclass
class Measured:
    """An evaluator of a kernel: the median of `samples` with noise."""

    kernel: Kernel
    seed: int = 0
    samples: int = 1

    def measure(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """As of `Evaluator`."""
        return [self._trial(c) for c in candidates]

    def _trial(self, candidate: Candidate) -> Trial:
        true = self.kernel.reachable[candidate]
        if true is None:
            return Trial(candidate, None, failure="fails on this machine")
        rng = Random(f"{self.kernel.name} {self.seed} {candidate}")
        found = sorted(true * exp(rng.gauss(0, NOISE)) for _ in range(self.samples))
        return Trial(candidate, found[len(found) // 2], NOISE / len(found) ** 0.5)


def kernels(names: Iterable[str] = PROGRAMS, targets: Iterable[str] = TARGETS) -> Iterator[Kernel]:
    """The kernels of some programs, each for some targets."""
    for name in names:
        program, args = PROGRAMS[name]()
        captured = capture(program, args)
        for target in targets:
            space = _space(compile_captured(captured, target).at("loop").walk(), _common(target))
            yield Kernel(f"{name}, {target}", space, Machine(space, f"{name} {target}"))


def _common(target: str) -> Target:
    """The target of a common machine, whatever this one is."""
    return CPU if target == "cpu" else get_target(target)


def _space(ops: Iterable[Any], target: Target) -> NestSpace:
    """The space of the nest that takes longest."""
    found: list[NestSpace] = []
    for op in ops:
        if isinstance(op, NestOp):
            found.append(NestSpace(op, target))
    if not found:
        raise ScheduleError("the program has no nest")
    return max(found, key=lambda s: s.ranked()[0].predicted)
