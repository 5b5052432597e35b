"""Calibrates the constants of a target: fits a factor for each rate and cost to the measured trials of a device.

The fit minimises the logarithms of measured over predicted seconds. Differences within a nest have full weight, because
they decide the choice of a schedule. The common error of all schedules of a nest has a lower weight
(`COMMON_ERROR_WEIGHT`). Residuals have Huber's weights, which bound the effect of outliers. A prior draws each factor
to 1, so that constants that no nest depends on do not change. The factors are stored in the records.
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
from .building import nest_of, parse_schedule
from .search import device_name

CPU_CONSTANTS = (
    *("rates.memory", "rates.cache", "rates.vector", "rates.special", "rates.fma", "rates.launch"),
    *("costs.access", "costs.gathered", "costs.turned", "costs.masked", "costs.fold", "costs.step", "costs.block"),
    *("costs.product", "costs.pack", "costs.far_turn", "costs.sum", "costs.seek"),
)
"""Names of the constants of a CPU that are fitted (`Target.numbers`)."""

GPU_CONSTANTS = (
    *("rates.memory", "rates.cache", "rates.bulk", "rates.store", "rates.vector", "rates.special", "rates.fma"),
    *("rates.mma", "rates.clock", "rates.launch", "rates.latency", "rates.barrier", "rates.bulk_latency"),
    *("rates.overlap", "rates.issue_warps", "rates.fma_warps", "rates.shared_read"),
)
"""Names of the constants of a GPU that are fitted (`Target.numbers`)."""

COMMON_ERROR_WEIGHT = 0.4
"""Weight of the common error of the schedules of a nest, relative to their differences. Tuned by hand."""

HUBER_THRESHOLD = 0.3
"""Residual, log(measured / predicted), above which the penalty is linear and not quadratic (Huber). It stands for a
factor of 1.35."""

PRIOR_DEVIATION = 0.6
"""Standard deviation of the prior of log(factor). It stands for a factor of 1.8."""

MAX_FACTOR = 8.0
"""Largest fitted factor; the smallest is 1 / `MAX_FACTOR`."""

NEST_WEIGHT = 8
"""Largest total weight of the trials of a nest, in trials. More trials add no weight, because their errors are
correlated."""

NEWTON_STEPS, DIFFERENCE_STEP = 6, 0.05
"""Number of Gauss-Newton steps, and the change of log(factor) in finite differences."""

MAX_NESTS, MAX_TRIALS_PER_NEST = 60, 40
"""Largest numbers of nests and of trials of a nest in a fit: the nests with most trials, and their fastest trials."""

MIN_TRIALS = 6
"""Smallest number of trials, over all nests, for a fit."""


@dataclass(frozen=True)
class Sample:
    """Measured schedules of a nest, with their seconds."""

    nest: NestOp
    schedules: Sequence[str]
    seconds: Sequence[float]

    @cached_property
    def _models(self) -> dict[str, Model]:
        """Returns the models of the nest by kind of target, made on demand."""
        return {}

    @cached_property
    def _points(self) -> list[Points]:
        return points_of(parse_schedule(s).data for s in self.schedules)

    def predicted(self, target: Target) -> Floats:
        """Returns the predicted seconds with the constants of `target`; NaN for a refused schedule."""
        if target.kind not in self._models:
            self._models[target.kind] = model_of(NestInfo(self.nest), target)
        model, times = self._models[target.kind].on(target), np.full(len(self.schedules), np.nan)
        for points in self._points:
            for p in model.predict_all(points):
                times[p.points.order] = np.where(p.violated, np.nan, p.all.seconds)
        return times


@dataclass(frozen=True)
class Fit:
    """Result of a calibration.

    Attributes:
        factors: factor of each constant that differs from 1 by more than 1 %.
        nests, trials: numbers of the fitted nests and trials.
        off: median factor between predicted and measured seconds, before and after.
        regret: time of the schedule that the model picks over the best measured time, before and after.
    """

    factors: dict[str, float]
    nests: int
    trials: int
    off: tuple[float, float]
    regret: tuple[float, float]

    def about(self) -> dict[str, Any]:
        """Returns the facts of the fit for the records."""
        return {name: getattr(self, name) for name in ("nests", "trials", "off", "regret")}


def fit(samples: Sequence[Sample], target: Target) -> Fit | None:
    """Fits factors for the constants of an uncalibrated target. Returns None for fewer than `MIN_TRIALS` trials."""
    if sum(len(s.seconds) for s in samples) < MIN_TRIALS:
        return None
    names = CPU_CONSTANTS if target.core is not None else GPU_CONSTANTS

    def residuals(logs: Floats) -> Floats:
        """Returns the residuals of all trials, log(measured / predicted), for factors with the logarithms `logs`.

        The common residual of a nest is multiplied by `COMMON_ERROR_WEIGHT`.
        """
        scaled, parts = target.scaled(_factors(names, logs)), list[Floats]()
        for s in samples:
            r = np.nan_to_num(np.log(np.asarray(s.seconds) / s.predicted(scaled)))
            parts.append(r - (1 - COMMON_ERROR_WEIGHT) * r.mean())
        return np.concatenate(parts)

    counts = np.concatenate([np.full(len(s.seconds), len(s.seconds)) for s in samples])
    logs = robust_fit(residuals, len(names), np.minimum(NEST_WEIGHT / counts, 1.0))
    factors = {n: f for n, f in _factors(names, logs).items() if abs(math.log(f)) > 0.01}
    scaled = target.scaled(factors)
    off = _off(samples, target), _off(samples, scaled)
    regrets = regret(samples, target), regret(samples, scaled)
    return Fit(factors, len(samples), sum(len(s.seconds) for s in samples), off, regrets)


def robust_fit(residuals: Callable[[Floats], Floats], count: int, weights: Floats) -> Floats:
    """Fits the logarithms of factors by Gauss-Newton steps with Huber's weights.

    Args:
        residuals: logarithms of measured over predicted seconds, as a function of the logarithms of the factors.
        count: number of factors.
        weights: weight of each residual, which multiplies Huber's weight.
    """
    logs, prior_weight = np.zeros(count), (HUBER_THRESHOLD / PRIOR_DEVIATION) ** 2
    for _ in range(NEWTON_STEPS):
        now = residuals(logs)
        columns = [(residuals(logs + DIFFERENCE_STEP * unit) - now) / DIFFERENCE_STEP for unit in np.eye(count)]
        jacobian = np.stack(columns, axis=1)
        huber = weights * np.minimum(1.0, HUBER_THRESHOLD / np.maximum(np.abs(now), 1e-12))
        normal = jacobian.T @ (huber[:, None] * jacobian) + np.eye(count) * prior_weight
        step = np.linalg.solve(normal, -jacobian.T @ (huber * now) - prior_weight * logs)
        logs = np.clip(logs + np.clip(step, -0.7, 0.7), -math.log(MAX_FACTOR), math.log(MAX_FACTOR))
    return logs


def _factors(names: Sequence[str], logs: Floats) -> dict[str, float]:
    return {name: math.exp(v) for name, v in zip(names, logs, strict=True)}


def _off(samples: Iterable[Sample], target: Target) -> float:
    """Returns the median factor between predicted and measured seconds."""
    logs = [np.abs(np.log(np.asarray(s.seconds) / s.predicted(target))) for s in samples]
    return float(np.exp(np.nanmedian(np.concatenate(logs))))


def regret(samples: Iterable[Sample], target: Target) -> float:
    """Returns how much slower the schedules that the model ranks first are than the best measured ones.

    The ratio is the geometric mean over the nests. Only measured schedules are ranked.
    """
    ratios = [s.seconds[int(np.nanargmin(s.predicted(target)))] / min(s.seconds) for s in samples]
    return float(np.exp(np.mean(np.log(ratios))))


def samples_of(records: RecordFile, target: str, device: str, excluded: Mapping[str, object] = {}) -> list[Sample]:
    """Returns the measured nests of a device in the records.

    Args:
        records: the records.
        target: name of the target.
        device: name of the device.
        excluded: keys of nests to leave out.
    """
    timed: dict[str, dict[str, float]] = defaultdict(dict)
    for e in records.entries(target=target, device=device):
        if e.seconds and e.options == "[]" and e.key not in excluded:
            timed[e.key][e.schedule] = e.seconds
    texts, samples = records.nests(), list[Sample]()
    for key, trials in sorted(timed.items(), key=lambda item: -len(item[1]))[:MAX_NESTS]:
        text = texts.get(key, ("", ""))[1]
        if text and len(trials) > 1:
            nest = nest_of(parse_module(make_context(), text, f"{key}.mlir"))
            chosen = sorted(trials.items(), key=lambda t: t[1])[:MAX_TRIALS_PER_NEST]
            samples.append(Sample(nest, [s for s, _ in chosen], [t for _, t in chosen]))
    return samples


def renew(records: RecordFile, target: Target, device: str) -> Fit | None:
    """Calibrates a target with all trials of a device, and stores the factors in the records.

    Args:
        records: the records.
        target: the target.
        device: `cpu` or `cuda`.

    Returns:
        The fit, or None if there are too few trials, or if a schedule was recorded by another version.
    """
    name = device_name(device)
    try:
        constants = fit(samples_of(records, target.name, name), resolve_target(target.name))
    except CompileError:
        # Another version recorded a schedule that this version does not understand.
        return None
    if constants is not None:
        records.set_constants(target.arch, name, constants.factors, constants.about())
    return constants
