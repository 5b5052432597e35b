"""`mcts`: single-player Monte-Carlo tree search, one node a decision."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import log, sqrt

from ..trial import Candidate, Trial
from .history import History

EXPLORATION, DEVIATION = 0.03, 0.01
"""The weights of the two terms that make nodes worth a visit which were visited seldom: C and D of SP-MCTS."""

GROWN = 8
"""Of so many of the planner's best the neighbours are in the tree from the first trial on."""

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
