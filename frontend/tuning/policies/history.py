"""What policies know (which candidates were asked for, and what came of them), and the one that needs no more: `model`,
the planner's pick and no search."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from ..space import NestSpace
from ..trial import Candidate, Trial


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
