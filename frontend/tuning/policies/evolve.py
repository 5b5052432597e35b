"""`evolve`: the best so far, mutated and crossed."""

from __future__ import annotations

from ..trial import Candidate
from .history import History

PARENTS, START = 6, 4
"""How many of the fastest have children; how many of the planner's candidates are tried before any has."""

CHILDREN = 4
"""Crossings of two parents that are considered at a time, beside all mutations of one."""

GREEDY = 0.85
"""How often the child is tried that is expected to be the fastest; else any of them."""


class EvolvePolicy(History):
    """The planner's best `START` candidates are the first generation. After them each trial is a child: a parent with
    one decision changed, or decisions of two parents put together. Of the children of one draw that one is tried which
    the model predicts to be fastest, its prediction corrected by how wrong it was about the parent.

    Source: Shao et al., Tensor Program Optimization with Probabilistic Programs (MetaSchedule, 2022).
    """

    def _next(self) -> Candidate | None:
        timed = self.timed()
        if len(self.trials) < START or not timed:
            left = self.open(self.space.ranked())
            if left:
                return left[0]
        parents = [c for _, c in timed[:PARENTS]]
        while parents:
            first = parents[min(int(self.random.expovariate(1.0)), len(parents) - 1)]
            children = self.open([*self.space.neighbours(first), *self._crossed(first, parents)])
            if children:
                if self.random.random() < GREEDY:
                    return min(children, key=lambda c: c.predicted)
                return self.random.choice(children)
            parents.remove(first)
        left = self.open(self.space.ranked())
        return left[0] if left else None

    def _crossed(self, first: Candidate, parents: list[Candidate]) -> list[Candidate]:
        """Legal mixtures of the decisions of `first` and of other parents."""
        mine = self.space.values(first)
        others = [self.space.values(self.random.choice(parents)) for _ in range(CHILDREN)]
        return self.space.candidates(
            tuple(self.random.choice(pair) for pair in zip(mine, other, strict=True)) for other in others
        )
