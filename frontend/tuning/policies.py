"""Policies of the search: they choose the next candidates.

`model` tries the planner's pick, `mcts` searches a tree of decisions, and `bayes` learns the error of the model.
"""

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
    """Base class of policies. It records trials; a subclass implements `_next`, which chooses the next candidate."""

    def __init__(self, space: NestSpace, seed: int = 0) -> None:
        self.space = space
        self.random = Random(seed)
        self.asked: set[Candidate] = set()
        self.trials: dict[Candidate, Trial] = {}

    def ask(self, count: int) -> list[Candidate]:
        """Returns at most `count` new candidates. The very first one is the planner's pick."""
        candidates: list[Candidate] = []
        first = self.space.ranked()[0]
        while len(candidates) < count:
            candidate = self._next() if first in self.asked else first
            if candidate is None:
                break
            self.asked.add(candidate)
            candidates.append(candidate)
        return candidates

    def tell(self, trial: Trial) -> None:
        """Records a trial."""
        self.asked.add(trial.candidate)
        self.trials[trial.candidate] = trial

    def _next(self) -> Candidate | None:
        """Returns the next candidate, or None at the end of the space. Subclasses implement it."""
        raise NotImplementedError

    def open(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Returns the candidates that were not returned by `ask`, without duplicates, in order."""
        return [c for c in dict.fromkeys(candidates) if c not in self.asked]

    def timed(self) -> list[tuple[float, Candidate]]:
        """Returns the measured candidates with their seconds, the fastest first."""
        times = [(t.seconds, c) for c, t in self.trials.items() if t.seconds is not None]
        return sorted(times, key=lambda f: f[0])


class ModelPolicy(History):
    """Tries the planner's pick only."""

    def _next(self) -> Candidate | None:
        return None


EXPLORATION, DEVIATION = 0.03, 0.01
"""Weights C and D in the score of a node (`MctsPolicy`). They raise the score of nodes with few visits."""

MOST_EXPANDED = 8
"""Number of candidates whose neighbours are added: the planner's best (`mcts`), the fastest measured (`bayes`)."""

PRIOR_VISITS = 1.0
"""Weight of the model's prediction, in visits."""


@dataclass
class Node:
    """Node of the tree: the candidates that agree in the decisions on the path from the root.

    Attributes:
        children: nodes by the value of the next decision.
        seconds: times of the tried candidates, infinite for failures.
        untried: candidates without a trial.
        predicted: least predicted seconds of all candidates.
    """

    children: dict[Hashable, Node] = field(default_factory=dict[Hashable, "Node"])
    seconds: list[float] = field(default_factory=list[float])
    untried: set[Candidate] = field(default_factory=set[Candidate])
    predicted: float = float("inf")


class MctsPolicy(History):
    """Monte-Carlo tree search over the decisions of a schedule.

    The tree has one level for each decision, in pass order. Its leaves are legal candidates. A visit descends to the
    child with the highest

        mean + C sqrt(2 ln N / n) + sqrt((sum x^2 - n mean^2 + D) / n)

    of rewards x = best time so far / time. The model's prediction counts as the first visit of a node. The tree has the
    planner's candidates, the neighbours of the best of them, and the neighbours of each new best.

    Source: Schadd et al., Single-Player Monte-Carlo Tree Search (2008).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # pyright: ignore[reportArgumentType]
        self._root = Node()
        self._seen: set[Candidate] = set()
        self._grow(self.space.ranked())

    def tell(self, trial: Trial) -> None:
        """Records a trial in all nodes on its path. Adds the neighbours of a new best."""
        if not self.trials:
            self._grow(self.space.neighbours(*self.space.ranked()[:MOST_EXPANDED]))
        timed = self.timed()
        super().tell(trial)
        self._grow([trial.candidate])
        seconds = float("inf") if trial.seconds is None else trial.seconds
        for node in self._path(trial.candidate):
            node.seconds.append(seconds)
            node.untried.discard(trial.candidate)
        if trial.seconds is not None and (not timed or trial.seconds < timed[0][0]):
            self._grow(self.space.neighbours(trial.candidate))

    def _grow(self, candidates: Iterable[Candidate]) -> None:
        """Adds candidates to the tree."""
        for candidate in candidates:
            if candidate not in self._seen:
                self._seen.add(candidate)
                for node in self._path(candidate):
                    node.untried.add(candidate)
                    node.predicted = min(node.predicted, candidate.predicted)

    def _path(self, candidate: Candidate) -> list[Node]:
        """Returns the nodes from the root to the leaf of a candidate, made on demand."""
        path = [self._root]
        for value in self.space.values(candidate):
            path.append(path[-1].children.setdefault(value, Node()))
        return path

    def _next(self) -> Candidate | None:
        node = self._root
        if not node.untried - self.asked:
            return None
        timed = self.timed()
        best = timed[0][0] if timed else 0.0
        while node.children:
            open_ = [c for c in node.children.values() if c.untried - self.asked]
            if len(open_) > 1:
                visits = PRIOR_VISITS + sum(PRIOR_VISITS + len(c.seconds) for c in node.children.values())
                node = max(open_, key=lambda c: self._worth(c, best, visits))
            else:
                node = open_[0]
        return next(iter(node.untried - self.asked))

    def _worth(self, node: Node, best: float, visits: float) -> float:
        """Returns the score of a node by SP-MCTS.

        Args:
            node: the node.
            best: least measured seconds.
            visits: visits of the parent.
        """
        prior = self._root.predicted / node.predicted
        rewards = [best / s for s in node.seconds]
        n = PRIOR_VISITS + len(rewards)
        mean = (PRIOR_VISITS * prior + sum(rewards)) / n
        squares = PRIOR_VISITS * prior**2 + sum(r * r for r in rewards)
        return mean + EXPLORATION * sqrt(2 * log(visits) / n) + sqrt(max(0.0, squares - n * mean**2 + DEVIATION) / n)


LENGTH_SCALES = (1.0, 2.0, 4.0)
"""Length scales of the covariance, in doublings of a decision. All are weighed by their likelihood."""

WORD_DISTANCE = 2.0
"""Distance of two different words of a decision, in doublings."""

MODEL_DEVIATIONS = {0.05: -1.0, 0.1: 0.0, 0.2: 0.0, 0.4: -1.0}
"""Standard deviations of the model's error, the logarithm of measured over predicted time -> logarithm of the prior."""

LEAST_WEIGHT = 0.02
"""Posterior weight below which a pair of length scale and deviation is skipped."""

COMMON_DEVIATION, TRIAL_DEVIATION = 0.25, 0.02
"""Standard deviations, as logarithms of time, of the error that all schedules of a nest share, and of the error of a
single trial, which includes the noise of its measurement."""

FAILURE_PENALTY = log(2.0)
"""Error of a failed candidate, in addition to the mean error: a factor of 2, as a logarithm."""

MOST_PLANNED = 24
"""Number of the planner's best candidates whose neighbours `bayes` adds."""

Array = NDArray[np.float64]


class BayesPolicy(History):
    """Bayesian optimisation with Gaussian processes.

    Each process has a length scale and a deviation, and learns the model's error, the logarithm of measured over
    predicted time, as a function of the decisions. Processes are weighed by the likelihood of the trials. The next
    candidate has the largest expected improvement on the best time. The pool has the planner's candidates, the
    neighbours of the best of them, and the neighbours of the fastest measured ones.

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
        """Records a trial. Adds the neighbours of the fastest candidates to the pool."""
        super().tell(trial)
        self._add([trial.candidate])
        near = [] if self._grown else self.space.ranked()[:MOST_PLANNED]
        new = [c for c in dict.fromkeys([*near, *(c for _, c in self.timed()[:MOST_EXPANDED])]) if c not in self._grown]
        if new:
            self._grown.update(new)
            self._add(self.space.neighbours(*new))

    def _next(self) -> Candidate | None:
        untried = self.open(self._pool)
        if not untried or not self.timed():
            return untried[0] if untried else None
        tried = list(self.asked & self._pool.keys())
        residuals = {c: log(t.seconds / c.predicted) for c, t in self.trials.items() if t.seconds}
        usual = sum(residuals.values()) / len(residuals)
        failed = {c: usual + FAILURE_PENALTY for c, t in self.trials.items() if t.seconds is None}
        # Candidates without a result yet count with the mean error.
        y = np.array([(failed | residuals).get(c, usual) for c in tried])
        predicted, best = np.log([c.predicted for c in untried]), log(self.timed()[0][0])
        gain = sum(
            weight * _improvement(best - predicted - mean, deviation)
            for weight, mean, deviation in self._posteriors(tried, y, untried)
        )
        return untried[int(np.argmax(gain))]

    def _posteriors(
        self, tried: Sequence[Candidate], y: Array, untried: Sequence[Candidate]
    ) -> Iterator[tuple[float, Array, Array]]:
        """Yields the likely processes: weight, expected errors of the untried candidates, their standard deviations.

        Args:
            tried: candidates with an error.
            y: errors of `tried`.
            untried: candidates without a trial.
        """
        at_tried, at_untried = (np.array([self._pool[c] for c in some]) for some in (tried, untried))
        prior = y.mean()
        similarities = {octaves: _similarity(at_tried, at_tried, octaves) for octaves in LENGTH_SCALES}
        cases = [(octaves, model_error) for octaves in LENGTH_SCALES for model_error in MODEL_DEVIATIONS]
        likely = [MODEL_DEVIATIONS[e] + _likelihood(y - prior, similarities[o], e) for o, e in cases]
        weights = np.exp(np.array(likely) - max(likely))
        for weight, (octaves, model_error) in zip(weights / weights.sum(), cases, strict=True):
            if weight >= LEAST_WEIGHT:
                across = COMMON_DEVIATION**2 + model_error**2 * _similarity(at_untried, at_tried, octaves)
                covariance = _covariance(similarities[octaves], model_error)
                solved = np.linalg.solve(covariance, np.column_stack([y - prior, across.T]))
                explained = np.einsum("ij,ji->i", across, solved[:, 1:])
                variance = model_error**2 + COMMON_DEVIATION**2 + TRIAL_DEVIATION**2 - explained
                yield weight, prior + across @ solved[:, 0], np.sqrt(np.maximum(variance, 1e-12))

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Adds candidates to the pool, with their coordinates."""
        for c in candidates:
            if c not in self._pool:
                self._pool[c] = [x for i, v in enumerate(self.space.values(c)) for x in self._place(i, v)]

    def _place(self, position: int, value: Hashable) -> list[float]:
        """Returns the coordinates of a decision: log2 of a number, a flag per index of a list, a code for a word."""
        if isinstance(value, int):
            return [log2(value + 1)]
        if isinstance(value, tuple):
            return [WORD_DISTANCE * (i in value) for i in range(self._rank)]
        code = self._codes[position].setdefault(value, len(self._codes[position]))
        return [code * WORD_DISTANCE]


def _similarity(a: Array, b: Array, octaves: float) -> Array:
    """Returns the Matern 5/2 covariance, from 0 to 1, of the rows of `a` and `b`."""
    distance = np.sqrt(5 * (((a[:, None, :] - b[None, :, :]) / octaves) ** 2).sum(axis=2))
    return (1 + distance + distance**2 / 3) * np.exp(-distance)


def _covariance(similarity: Array, model_error: float) -> Array:
    """Returns the covariance of the errors of trials, if the model's error has the standard deviation `model_error`."""
    return COMMON_DEVIATION**2 + model_error**2 * similarity + TRIAL_DEVIATION**2 * np.eye(len(similarity))


def _likelihood(y: Array, similarity: Array, model_error: float) -> float:
    """Returns the Gaussian log-likelihood of errors, up to a constant.

    Args:
        y: errors of trials: logarithms of measured over predicted time, minus their mean.
        similarity: correlation of the trials.
        model_error: standard deviation of the model's error.
    """
    covariance = _covariance(similarity, model_error)
    return float(-y @ np.linalg.solve(covariance, y) - np.linalg.slogdet(covariance)[1]) / 2


def _improvement(gain: Array, deviation: Array) -> Array:
    """Returns the expected positive part of normal variables with means `gain` and standard deviations `deviation`."""
    normal, z = NormalDist(), gain / deviation
    below = np.array([normal.cdf(v) for v in z])
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return gain * below + deviation * density


POLICIES: dict[str, Callable[[NestSpace, int], Policy]] = {
    "model": ModelPolicy,
    "mcts": MctsPolicy,
    "bayes": BayesPolicy,
}
"""Name -> class of a policy, made from a space and a seed. Plug-ins add classes by the group `deplodock.policies`."""

DEFAULT_POLICY = "bayes"


def make_policy(name: str, space: NestSpace, seed: int = 0) -> Policy:
    """Returns the policy `name` on a space. Equal seeds and trials give equal candidates.

    Args:
        name: name of the policy.
        space: space of the nest.
        seed: seed of its random numbers.

    Raises:
        ScheduleError: for an unknown name.
    """
    if name in POLICIES:
        return POLICIES[name](space, seed)
    further = plugins("deplodock.policies", POLICIES, "policy")
    if name not in further:
        raise ScheduleError(
            f"there is no policy {name!r}; there are {', '.join([*POLICIES, *further])}", argument="policy"
        )
    return further[name]()(space, seed)
