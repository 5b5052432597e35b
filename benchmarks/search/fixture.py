"""40 kernels whose best schedule is known: nests of ordinary programs on synthetic machines.

A search policy is judged by how soon it tries the best schedule. That needs kernels whose best schedule is known, so
times are computed by a formula and not measured. A synthetic machine (`Machine`) starts from the planning model with
random rates, and multiplies its time by factors that the planner cannot predict:

- Each numeric decision (a tile extent, a number of warps) has an optimum near the planner's pick. A value one octave
  (a factor of two) away is `OCTAVE_SLOWDOWN` slower, two octaves four times as much. Pairs of tile extents add a term
  with the product of both distances.
- Each value of a categorical decision (kind of copy, tensor-core atom, serial index) has its own random factor.
- Tiles above a random size are `CLIFF_SLOWDOWN` slower.
- Each schedule has a small random factor, and one in `FAILING_ONE_IN` fails.

A measured sample is the true time with the relative noise `NOISE`. The reachable schedules of a kernel are the
planner's candidates and the neighbours of the best of them; a neighbour differs in one decision. The optimum is the
least true time of the reachable schedules.
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

RATE_DEVIATION, WORD_DEVIATION, OCTAVE_SLOWDOWN, PAIR_DEVIATION, OPTIMUM_DEVIATION, SCHEDULE_DEVIATION = (
    0.3,
    0.08,
    0.03,
    0.015,
    0.7,
    0.005,
)
"""Parameters of a machine's random factors: standard deviations of natural logarithms, unless stated otherwise.

- `RATE_DEVIATION`: factors of the rates of the target.
- `WORD_DEVIATION`: factors of the values of categorical decisions.
- `OCTAVE_SLOWDOWN`: mean relative slowdown of a value one octave from its optimum. Its deviation is half of it.
- `PAIR_DEVIATION`: terms of two tile extents, one octave each from their optima.
- `OPTIMUM_DEVIATION`: distance of an optimum from the planner's pick, in octaves.
- `SCHEDULE_DEVIATION`: factors of single schedules.
"""

CLIFF_SLOWDOWN, CLIFF_OCTAVES = 1.25, 2.0
"""Slowdown of tiles that exceed the machine's size limit, and the range from which the limit is drawn.

The limit is the size of the planner's tiles, increased by 0 to `CLIFF_OCTAVES` octaves.
"""

FLOOR_SHARE, FLOOR_EXPONENT = (0.9, 1.3), 8
"""Range of a kernel's floor relative to its least modelled time, and an exponent `e`.

A modelled time `t` becomes `(f**e + t**e) ** (1 / e)`, a smooth maximum of `t` and the floor `f`. So no schedule is
faster than the floor.
"""

FAILING_ONE_IN, NOISE = 40, 0.05
"""Number of schedules per failing one, and relative standard deviation of a sample."""

EXPANDED_CANDIDATES = 24
"""Number of the planner's best candidates whose neighbours are reachable."""

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
    """A synthetic machine: computes the times of the schedules of one nest from random factors drawn from `seed`."""

    def __init__(self, space: NestSpace, seed: str) -> None:
        self.seed, self.names = seed, space.names
        rng, rates = Random(seed), space.target.rates
        changed = {n: v * exp(rng.gauss(0, RATE_DEVIATION)) for n, v in vars(rates).items() if isinstance(v, float)}
        self._model = model_of(space.info, replace(space.target, rates=replace(rates, **changed)))
        self._space = space
        pick = dict(zip(space.names, space.values(space.ranked()[0]), strict=True))
        self._optimum = {
            n: log2(v + 1) + rng.gauss(0, OPTIMUM_DEVIATION) for n, v in pick.items() if isinstance(v, int)
        }
        self._slope = {n: abs(rng.gauss(OCTAVE_SLOWDOWN, OCTAVE_SLOWDOWN / 2)) for n in self._optimum}
        tiles = [n for n in self._optimum if n.startswith(("block.", "chunk."))]
        self._pair_slopes = {(a, b): rng.gauss(0, PAIR_DEVIATION) for a in tiles for b in tiles if a < b}
        chunks = [n for n in tiles if n.startswith("chunk.")]
        # The chunk extents of a schedule are mostly equal, so each adds only its share of the slowdown.
        self._chunk_count = dict.fromkeys(chunks, len(chunks))
        self._tiles, self._cliff = tiles, sum(log2(pick[n]) for n in tiles) + rng.uniform(0, CLIFF_OCTAVES)
        self._floor_share = rng.uniform(*FLOOR_SHARE)

    def seconds(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """Returns the true time of each candidate in seconds, without noise; None for a candidate that fails."""
        modelled: dict[Candidate, float] = {}
        all_ = [*candidates]
        for group in points_of(parse_schedule(c.schedule).data for c in all_):
            for p in self._model.predict_all(group):
                for row, order in enumerate(p.points.order.tolist()):
                    modelled[all_[order]] = float(p.at(row).seconds) * self._factor(all_[order])
        floor = self._floor_share * min(modelled.values())
        times = {
            c: (floor**FLOOR_EXPONENT + s**FLOOR_EXPONENT) ** (1 / FLOOR_EXPONENT) * self._deviation(c)
            for c, s in modelled.items()
        }
        return [None if self._fails(c) else times[c] for c in all_]

    def _deviation(self, candidate: Candidate) -> float:
        return exp(Random(f"{self.seed} own {candidate.schedule}").gauss(0, SCHEDULE_DEVIATION))

    def _fails(self, candidate: Candidate) -> bool:
        return (
            candidate != self._space.ranked()[0]
            and Random(f"{self.seed} {candidate.schedule}").random() < 1 / FAILING_ONE_IN
        )

    def _factor(self, candidate: Candidate) -> float:
        """Returns the product of the factors by which the modelled time of a candidate is multiplied."""
        values: dict[str, Any] = dict(zip(self.names, self._space.values(candidate), strict=True))
        distances = {n: log2(values[n] + 1) - center for n, center in self._optimum.items()}
        exponent = sum(self._slope[n] * d * d / self._chunk_count.get(n, 1) for n, d in distances.items())
        exponent += sum(t * distances[a] * distances[b] for (a, b), t in self._pair_slopes.items())
        lists = {n: v if isinstance(v, tuple) else (v,) for n, v in values.items() if n not in distances}
        words = ((n, v) for n, members in lists.items() for v in members)
        exponent += sum(Random(f"{self.seed} {n} {v}").gauss(0, WORD_DEVIATION) for n, v in words)
        return exp(exponent) * (CLIFF_SLOWDOWN if sum(log2(values[n]) for n in self._tiles) > self._cliff else 1.0)


@dataclass
class Kernel:
    """A kernel whose best schedule is known. It has the interface of `NestSpace`, restricted to reachable candidates.

    Attributes:
        space: all schedules of the nest.
        machine: the synthetic machine.
        reachable: true time in seconds of each reachable candidate, or None if it fails.
    """

    name: str
    space: NestSpace
    machine: Machine
    reachable: dict[Candidate, float | None] = field(default_factory=dict[Candidate, "float | None"])

    def __post_init__(self) -> None:
        self.names = self.space.names
        first = self.space.ranked()
        candidates = [*first, *self.space.neighbours(*first[:EXPANDED_CANDIDATES])]
        self.reachable = dict(zip(candidates, self.machine.seconds(candidates), strict=True))

    @cached_property
    def optimum(self) -> float:
        """Least true time of the reachable candidates, in seconds."""
        return min(s for s in self.reachable.values() if s is not None)

    def share(self, candidate: Candidate) -> float:
        """Returns the optimum divided by the true time of a candidate: 1 for the best one, 0 for one that fails."""
        seconds = self.reachable[candidate]
        return 0.0 if seconds is None else self.optimum / seconds

    def ranked(self) -> Sequence[Candidate]:
        """Returns `NestSpace.ranked`: the planner's candidates, the best first."""
        return self.space.ranked()

    def values(self, candidate: Candidate) -> Values:
        """Returns `NestSpace.values`: the decisions of a candidate."""
        return self.space.values(candidate)

    def candidates(self, points: Iterable[Values]) -> list[Candidate]:
        """Returns the candidates of `points` whose time the fixture knows."""
        return [c for c in self.space.candidates(points) if c in self.reachable]

    def neighbours(self, *candidates: Candidate) -> list[Candidate]:
        """Returns the neighbours of candidates whose time the fixture knows."""
        return [c for c in self.space.neighbours(*candidates) if c in self.reachable]


@dataclass
class Measured:
    """An evaluator that measures candidates of a kernel: a trial is the median of `samples` noisy samples."""

    kernel: Kernel
    seed: int = 0
    samples: int = 1

    def measure(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Returns a trial for each candidate, as `Evaluator.measure` does."""
        return [self._trial(c) for c in candidates]

    def _trial(self, candidate: Candidate) -> Trial:
        true = self.kernel.reachable[candidate]
        if true is None:
            return Trial(candidate, None, failure="fails on this machine")
        rng = Random(f"{self.kernel.name} {self.seed} {candidate}")
        samples = sorted(true * exp(rng.gauss(0, NOISE)) for _ in range(self.samples))
        return Trial(candidate, samples[len(samples) // 2], NOISE / len(samples) ** 0.5)


def kernels(names: Iterable[str] = PROGRAMS, targets: Iterable[str] = TARGETS) -> Iterator[Kernel]:
    """Yields a kernel for each program and target: the longest nest of the program."""
    for name in names:
        program, args = PROGRAMS[name]()
        captured = capture(program, args)
        for target in targets:
            space = _space(compile_captured(captured, target).at("loop").walk(), _common(target))
            yield Kernel(f"{name}, {target}", space, Machine(space, f"{name} {target}"))


def _common(target: str) -> Target:
    """Returns a fixed target, independent of the local machine."""
    return CPU if target == "cpu" else get_target(target)


def _space(ops: Iterable[Any], target: Target) -> NestSpace:
    """Returns the space of the nest with the longest predicted time."""
    spaces: list[NestSpace] = []
    for op in ops:
        if isinstance(op, NestOp):
            spaces.append(NestSpace(op, target))
    if not spaces:
        raise ScheduleError("the program has no nest")
    return max(spaces, key=lambda s: s.ranked()[0].predicted)
