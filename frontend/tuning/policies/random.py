"""`random`: the planner's candidates in any order."""

from __future__ import annotations

from ..trial import Candidate
from .history import History


class RandomPolicy(History):
    """After the planner's pick, each of its other candidates with equal chance, and, when these are over, neighbours of
    what was tried. What every other policy has to be better than."""

    def _next(self) -> Candidate | None:
        left = self.open(self.space.ranked())
        if not left:
            left = self.open(n for _, c in self.timed() for n in self.space.neighbours(c))
        return self.random.choice(left) if left else None
