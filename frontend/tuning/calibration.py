"""Correcting the constants of a target by what was measured: a robust fit of a dozen factors, kept with the records.

The model of a schedule's time stays as it is; what it multiplies is fitted so that predictions come close to the times
of all trials on a device. Differences within one nest count fully, because they decide which schedule is taken, and how
far all schedules of a nest are off counts less. Residuals are logarithms, weighted after Huber, so that what the model
does not know about does not bend the rest, and each factor is drawn to 1, so that what no nest depends on stays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...dialects import make_context
from ...dialects.loop import NestOp
from ...dialects.support.parsing import parse_module
from ...errors import CompileError
from ...passes.planning.model import Model, model_of
from ...passes.planning.nest_info import NestInfo
from ...passes.planning.points import Floats, Points, points_of
from ...passes.record_file import RecordFile
from ...target.host import resolve_target
from ...target.model import Target
from .building import parse_schedule
from .search import device_name

CORE = (
    *("rates.memory", "rates.cache", "rates.vector", "rates.special", "rates.fma", "rates.launch"),
    *("costs.access", "costs.gathered", "costs.turned", "costs.masked", "costs.fold", "costs.step", "costs.block"),
    *("costs.product", "costs.pack", "costs.far_turn", "costs.sum", "costs.seek"),
)
"""What is fitted of the cores of a CPU."""

CARD = (
    *("rates.memory", "rates.cache", "rates.bulk", "rates.store", "rates.vector", "rates.special", "rates.fma"),
    *("rates.mma", "rates.clock", "rates.launch", "rates.latency", "rates.barrier", "rates.bulk_latency"),
    *("rates.overlap", "rates.issue_warps", "rates.fma_warps", "rates.shared_read"),
)
"""What is fitted of a GPU."""

OFFSET = 0.4
"""So much counts by how much all schedules of a nest are off, beside how much each differs from that."""

FAR = 0.3
"""Residuals from which on they count by their amount, not their square: a factor of 1.35."""

DRAWN = 0.6
"""How far from 1 a factor is expected to be, as the logarithm: a factor of 1.8."""

WIDEST = 8.0
"""A factor is at most that, and at least one by that."""

WEIGHT = 8
"""So many trials all those of a nest count as, where there are more: they have their errors in common."""

STEPS, CHANGE = 6, 0.05
"""Steps of Gauss and Newton, and by how much a logarithm is changed for a derivative."""

NESTS, TRIALS = 60, 40
"""So many nests are taken, those first of which most is known, and so many trials of each."""

FEWEST = 6
"""Trials of all nests together, below which nothing is fitted."""


@dataclass(frozen=True)
class Sample:
    """A nest with what was measured of it: schedules and their seconds."""

    nest: NestOp
    schedules: Sequence[str]
    seconds: Sequence[float]

    @cached_property
    def _models(self) -> dict[str, Model]:
        """Kind of target -> the model of the nest."""
        return {}

    @cached_property
    def _points(self) -> list[Points]:
        return points_of(parse_schedule(s).data for s in self.schedules)

    def predicted(self, target: Target) -> Floats:
        """The model's seconds, with the constants of `target`; not a number where a schedule is refused."""
        if target.kind not in self._models:
            self._models[target.kind] = model_of(NestInfo(self.nest), target)
        model, found = self._models[target.kind].on(target), np.full(len(self.schedules), np.nan)
        for points in self._points:
            for p in model.predict_all(points):
                found[p.points.order] = np.where(p.violated, np.nan, p.all.seconds)
        return found


@dataclass(frozen=True)
class Fit:
    """Factors by name, of how many nests and trials they are, and how far predictions were off before and after: the
    median factor, and by how much the schedule that is picked is slower than the best that was measured."""

    factors: dict[str, float]
    nests: int
    trials: int
    off: tuple[float, float]
    regret: tuple[float, float]

    def about(self) -> dict[str, Any]:
        """For the records."""
        return {name: getattr(self, name) for name in ("nests", "trials", "off", "regret")}


def fit(samples: Sequence[Sample], target: Target) -> Fit | None:
    """The factors for the constants of `target`, which has none; None where there is too little to fit."""
    if sum(len(s.seconds) for s in samples) < FEWEST:
        return None
    names = CORE if target.core is not None else CARD

    def residuals(logs: Floats) -> Floats:
        """Of all trials."""
        scaled, parts = target.scaled(_factors(names, logs)), list[Floats]()
        for s in samples:
            r = np.nan_to_num(np.log(np.asarray(s.seconds) / s.predicted(scaled)))
            parts.append(r - (1 - OFFSET) * r.mean())
        return np.concatenate(parts)

    counts = np.concatenate([np.full(len(s.seconds), len(s.seconds)) for s in samples])
    logs = robust_fit(residuals, len(names), np.minimum(WEIGHT / counts, 1.0))
    factors = {n: f for n, f in _factors(names, logs).items() if abs(math.log(f)) > 0.01}
    scaled = target.scaled(factors)
    off = _off(samples, target), _off(samples, scaled)
    regrets = regret(samples, target), regret(samples, scaled)
    return Fit(factors, len(samples), sum(len(s.seconds) for s in samples), off, regrets)


def robust_fit(residuals: Callable[[Floats], Floats], count: int, weights: Floats) -> Floats:
    """Returns the logarithms of the factors that make residuals small, by steps of Gauss and Newton.

    Args:
        residuals: logarithms of measured over predicted seconds, as a function of the logarithms of the factors.
        count: number of factors.
        weights: weight of each residual, in addition to that of Huber.
    """
    logs, drawn = np.zeros(count), (FAR / DRAWN) ** 2
    for _ in range(STEPS):
        now = residuals(logs)
        jacobian = np.stack([(residuals(logs + CHANGE * unit) - now) / CHANGE for unit in np.eye(count)], axis=1)
        huber = weights * np.minimum(1.0, FAR / np.maximum(np.abs(now), 1e-12))
        normal = jacobian.T @ (huber[:, None] * jacobian) + np.eye(count) * drawn
        step = np.linalg.solve(normal, -jacobian.T @ (huber * now) - drawn * logs)
        logs = np.clip(logs + np.clip(step, -0.7, 0.7), -math.log(WIDEST), math.log(WIDEST))
    return logs


def _factors(names: Sequence[str], logs: Floats) -> dict[str, float]:
    return {name: math.exp(v) for name, v in zip(names, logs, strict=True)}


def _off(samples: Iterable[Sample], target: Target) -> float:
    """The median factor between predicted and measured."""
    logs = [np.abs(np.log(np.asarray(s.seconds) / s.predicted(target))) for s in samples]
    return float(np.exp(np.nanmedian(np.concatenate(logs))))


def regret(samples: Iterable[Sample], target: Target) -> float:
    """How many times as long as the best that was measured the schedules take that the model likes best, of those that
    were measured: the geometric mean over the nests."""
    found = [s.seconds[int(np.nanargmin(s.predicted(target)))] / min(s.seconds) for s in samples]
    return float(np.exp(np.mean(np.log(found))))


def samples_of(records: RecordFile, target: str, device: str, without: Mapping[str, object] = {}) -> list[Sample]:
    """What the records have of nests on a device, apart from those whose keys are in `without`."""
    timed: dict[str, dict[str, float]] = defaultdict(dict)
    for e in records.entries(target=target, device=device):
        if e.seconds and e.options == "[]" and e.key not in without:
            timed[e.key][e.schedule] = e.seconds
    texts, found = records.nests(), list[Sample]()
    for key, trials in sorted(timed.items(), key=lambda item: -len(item[1]))[:NESTS]:
        text = texts.get(key, ("", ""))[1]
        if text and len(trials) > 1:
            module = parse_module(make_context(), text, f"{key}.mlir")
            nest = next(op for op in module.walk() if isinstance(op, NestOp))
            chosen = sorted(trials.items(), key=lambda t: t[1])[:TRIALS]
            found.append(Sample(nest, [s for s, _ in chosen], [t for _, t in chosen]))
    return found


def renew(records: RecordFile, target: Target, device: str) -> Fit | None:
    """Fit the constants of a target anew to all that the records have of a device (`cpu` or `cuda`), and keep them
    there; None where there is too little."""
    name = device_name(device)
    try:
        found = fit(samples_of(records, target.name, name), resolve_target(target.name))
    except CompileError:  # of another version's schedules
        return None
    if found is not None:
        records.set_constants(target.arch, name, found.factors, found.about())
    return found
