"""`bayes`: the model's prediction, corrected by what was measured of similar schedules."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import log, log2
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..trial import Candidate, Trial
from .history import History

OCTAVES = (1.0, 2.0, 4.0)
"""By how many doublings of a number schedules differ that have little to do with each other, each of which may be so;
another word counts as much as `WORD` doublings."""

WORD = 2.0

WRONG = {0.05: -1.0, 0.1: 0.0, 0.2: 0.0, 0.4: -1.0}
"""Standard deviations of the logarithm of measured by predicted time, each of which may be so, with the logarithms of
their weights before any trial."""

UNLIKELY = 0.02
"""The weight below which one of these cases is left out."""

OFFSET, OWN = 0.25, 0.02
"""The same of what all schedules have in common, and of what each has of its own, with the noise of a trial."""

FAILED = log(2.0)
"""A candidate without a time counts as so much slower than predicted, beside the others."""

FIRST, GROWN = 24, 8
"""Of so many of the planner's best, and of the fastest, the neighbours are considered, too."""

Array = NDArray[np.float64]


class BayesPolicy(History):
    """Gaussian processes learn the logarithm of measured by predicted time over the decisions, each weighed by how
    likely the trials are under it. The next candidate is that whose expected improvement on the best is the greatest,
    of the planner's, of neighbours of these, and of neighbours of the fastest.

    Source: Jones et al., Efficient Global Optimization of Expensive Black-Box Functions (1998).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # pyright: ignore[reportArgumentType]
        self._pool: dict[Candidate, list[float]] = {}
        self._codes: list[dict[Hashable, int]] = [{} for _ in self.space.names]
        self._rank = sum(n.startswith("block.") for n in self.space.names)
        self._add(self.space.ranked())
        self._grown: set[Candidate] = set()

    def tell(self, trial: Trial) -> None:
        """Take note of a result; the neighbours of what is among the fastest are considered from now on."""
        super().tell(trial)
        self._add([trial.candidate])
        near = [] if self._grown else self.space.ranked()[:FIRST]
        new = [c for c in dict.fromkeys([*near, *(c for _, c in self.timed()[:GROWN])]) if c not in self._grown]
        if new:
            self._grown.update(new)
            self._add(self.space.neighbours(*new))

    def _next(self) -> Candidate | None:
        left = self.open(self._pool)
        if not left or not self.timed():
            return left[0] if left else None
        known = list(self.asked & self._pool.keys())
        residuals = {c: log(t.seconds / c.predicted) for c, t in self.trials.items() if t.seconds}
        usual = sum(residuals.values()) / len(residuals)
        failed = {c: usual + FAILED for c, t in self.trials.items() if t.seconds is None}
        y = np.array([(failed | residuals).get(c, usual) for c in known])  # what is under way is as wrong as the others
        predicted, best = np.log([c.predicted for c in left]), log(self.timed()[0][0])
        gain = sum(
            weight * _improvement(best - predicted - mean, deviation)
            for weight, mean, deviation in self._posteriors(known, y, left)
        )
        return left[int(np.argmax(gain))]

    def _posteriors(
        self, known: Sequence[Candidate], y: Array, asked: Sequence[Candidate]
    ) -> Iterator[tuple[float, Array, Array]]:
        """Each case that is likely: its weight, the expected residuals of candidates, and their standard deviations."""
        here, there = (np.array([self._pool[c] for c in some]) for some in (known, asked))
        prior = y.mean()
        cases = [(octaves, _alike(here, here, octaves), wrong) for octaves in OCTAVES for wrong in WRONG]
        likely = np.array([WRONG[wrong] + _likelihood(y - prior, alike, wrong) for _, alike, wrong in cases])
        weights = np.exp(likely - likely.max())
        for weight, (octaves, alike, wrong) in zip(weights / weights.sum(), cases, strict=True):
            if weight >= UNLIKELY:
                across = OFFSET**2 + wrong**2 * _alike(there, here, octaves)
                solved = np.linalg.solve(_covariance(alike, wrong), np.column_stack([y - prior, across.T]))
                variance = wrong**2 + OFFSET**2 + OWN**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
                yield weight, prior + across @ solved[:, 0], np.sqrt(np.maximum(variance, 1e-12))

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Take candidates into the pool, each with its place."""
        for c in candidates:
            if c not in self._pool:
                self._pool[c] = [x for i, v in enumerate(self.space.values(c)) for x in self._place(i, v)]

    def _place(self, position: int, value: Hashable) -> list[float]:
        """The coordinates of a value: octaves of a number, whether each index is in a list, or one for each word."""
        if isinstance(value, int):
            return [log2(value + 1)]
        if isinstance(value, tuple):
            return [WORD * (i in value) for i in range(self._rank)]
        code = self._codes[position].setdefault(value, len(self._codes[position]))
        return [code * WORD]


def _alike(a: Array, b: Array, octaves: float) -> Array:
    """How much candidates at some places have to do with each other, from 0 to 1: a Matern covariance (5/2)."""
    distance = np.sqrt(5 * (((a[:, None, :] - b[None, :, :]) / octaves) ** 2).sum(axis=2))
    return (1 + distance + distance**2 / 3) * np.exp(-distance)


def _covariance(alike: Array, wrong: float) -> Array:
    """The covariance of the residuals of trials."""
    return OFFSET**2 + wrong**2 * alike + OWN**2 * np.eye(len(alike))


def _likelihood(y: Array, alike: Array, wrong: float) -> float:
    """The logarithm of the density of residuals, but for a constant."""
    covariance = _covariance(alike, wrong)
    return float(-y @ np.linalg.solve(covariance, y) - np.linalg.slogdet(covariance)[1]) / 2


def _improvement(gain: Array, deviation: Array) -> Array:
    """The expected value of what is positive of a normal variable."""
    normal, z = NormalDist(), gain / deviation
    below = np.array([normal.cdf(v) for v in z])
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return gain * below + deviation * density
