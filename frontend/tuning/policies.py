"""Policies of the search: what is tried next. `model` takes the planner's pick, `mcts` searches a tree with a node for
each decision, and `bayes` learns how wrong the model is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log, log2, sqrt
from random import Random
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ...errors import ScheduleError
from ...plugins import plugins
from .space import NestSpace
from .trial import Candidate, Policy, Trial


class History:
    """A policy without `_next`: subclasses say in which order they would try what."""

    def __init__(self, space: NestSpace, seed: int = 0) -> None:
        self.space = space
        self.random = Random(seed)
        self.asked: set[Candidate] = set()
        self.trials: dict[Candidate, Trial] = {}

    def ask(self, count: int) -> list[Candidate]:
        """At most `count` candidates that were not asked for before; the planner's own is the first of all."""
        found: list[Candidate] = []
        first = self.space.ranked()[0]
        while len(found) < count:
            candidate = self._next() if first in self.asked else first
            if candidate is None:
                break
            self.asked.add(candidate)
            found.append(candidate)
        return found

    def tell(self, trial: Trial) -> None:
        """Take note of a result."""
        self.asked.add(trial.candidate)
        self.trials[trial.candidate] = trial

    def _next(self) -> Candidate | None:
        """What to try next; None when nothing is left."""
        raise NotImplementedError

    def open(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that were not asked for, each once, in order."""
        return [c for c in dict.fromkeys(candidates) if c not in self.asked]

    def timed(self) -> list[tuple[float, Candidate]]:
        """The candidates with a time, the fastest first."""
        found = [(t.seconds, c) for c, t in self.trials.items() if t.seconds is not None]
        return sorted(found, key=lambda f: f[0])


class ModelPolicy(History):
    """Asks for what the planner takes, and for nothing else."""

    def _next(self) -> Candidate | None:
        return None


EXPLORATION, DEVIATION = 0.03, 0.01
"""The weights of the two terms that make nodes worth a visit which were visited seldom: C and D of SP-MCTS."""

GROWN = 8
"""Number of candidates whose neighbours are considered: the planner's best (`mcts`), and the fastest (`bayes`)."""

PRIOR = 1.0
"""Visits that the model's prediction counts as."""


@dataclass
class Node:
    """What candidates have in common that agree in the first decisions: `seconds` of those that were tried, infinite
    for failures, those that are `left`, and the least time that the model predicts for one of them all."""

    children: dict[Hashable, Node] = field(default_factory=dict[Hashable, "Node"])
    seconds: list[float] = field(default_factory=list[float])
    left: set[Candidate] = field(default_factory=set[Candidate])
    predicted: float = float("inf")


class MctsPolicy(History):
    """The tree has a level for each decision in pass order; a path to a leaf is a candidate, so what is legal needs no
    second look. A visit goes down to the child with the highest

        mean + C sqrt(2 ln N / n) + sqrt((sum x^2 - n mean^2 + D) / n)

    of rewards x = best so far / time, which change when there is a new best; the model's prediction is the first visit
    of every node. The tree has the planner's candidates, the neighbours of its best, and those of each new best.

    Source: Schadd et al., Single-Player Monte-Carlo Tree Search (2008).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # pyright: ignore[reportArgumentType]
        self._root = Node()
        self._seen: set[Candidate] = set()
        self._grow(self.space.ranked())

    def tell(self, trial: Trial) -> None:
        """Take note of a result on the whole path to it; a new best brings its neighbours."""
        if not self.trials:
            self._grow(self.space.neighbours(*self.space.ranked()[:GROWN]))
        timed = self.timed()
        super().tell(trial)
        self._grow([trial.candidate])
        seconds = float("inf") if trial.seconds is None else trial.seconds
        for node in self._path(trial.candidate):
            node.seconds.append(seconds)
            node.left.discard(trial.candidate)
        if trial.seconds is not None and (not timed or trial.seconds < timed[0][0]):
            self._grow(self.space.neighbours(trial.candidate))

    def _grow(self, candidates: Iterable[Candidate]) -> None:
        """Put candidates into the tree."""
        for candidate in candidates:
            if candidate not in self._seen:
                self._seen.add(candidate)
                for node in self._path(candidate):
                    node.left.add(candidate)
                    node.predicted = min(node.predicted, candidate.predicted)

    def _path(self, candidate: Candidate) -> list[Node]:
        """The nodes from the root to the leaf of a candidate."""
        path = [self._root]
        for value in self.space.values(candidate):
            path.append(path[-1].children.setdefault(value, Node()))
        return path

    def _next(self) -> Candidate | None:
        node = self._root
        if not node.left - self.asked:
            return None
        timed = self.timed()
        best = timed[0][0] if timed else 0.0
        while node.children:
            open_ = [c for c in node.children.values() if c.left - self.asked]
            if len(open_) > 1:
                visits = PRIOR + sum(PRIOR + len(c.seconds) for c in node.children.values())
                node = max(open_, key=lambda c: self._worth(c, best, visits))
            else:
                node = open_[0]
        return next(iter(node.left - self.asked))

    def _worth(self, node: Node, best: float, visits: float) -> float:
        """How much a visit of a node is worth."""
        prior = self._root.predicted / node.predicted
        rewards = [best / s for s in node.seconds]
        n = PRIOR + len(rewards)
        mean = (PRIOR * prior + sum(rewards)) / n
        squares = PRIOR * prior**2 + sum(r * r for r in rewards)
        return mean + EXPLORATION * sqrt(2 * log(visits) / n) + sqrt(max(0.0, squares - n * mean**2 + DEVIATION) / n)


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

FIRST = 24
"""Number of the planner's best whose neighbours `bayes` considers."""

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


POLICIES: dict[str, Callable[[NestSpace, int], Policy]] = {
    "model": ModelPolicy,
    "mcts": MctsPolicy,
    "bayes": BayesPolicy,
}
"""Name -> what makes the policy from a space and a seed. Further ones are entry points of `deplodock.policies`."""

DEFAULT_POLICY = "bayes"


def make_policy(name: str, space: NestSpace, seed: int = 0) -> Policy:
    """The policy `name` on `space`; the same seed and the same trials give the same candidates. Raises ScheduleError
    for a name that none has."""
    if name in POLICIES:
        return POLICIES[name](space, seed)
    further = plugins("deplodock.policies", POLICIES, "policy")
    if name not in further:
        raise ScheduleError(
            f"there is no policy {name!r}; there are {', '.join([*POLICIES, *further])}", argument="policy"
        )
    return further[name]()(space, seed)
