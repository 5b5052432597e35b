"""Policies that are compared with those of `tune`: `evolve`, `top-k` and `random`."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from deplodock.frontend.tuning.policies import History
from deplodock.frontend.tuning.space import NestSpace
from deplodock.frontend.tuning.trial import Candidate, Policy

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


GROUPS = 8
"""Groups in the first round."""


class TopKPolicy(History):
    """Candidates that share their tiles and how they multiply form a group. In the first round the best predicted of
    each of the `GROUPS` best groups is tried; then the faster half of the groups goes on, with twice as many tries of
    each, until one is left. Then the next groups of the model's order take their turn in the same way. When no group
    is left the neighbours of what was fastest are tried.

    Source: Jamieson and Talwalkar, Non-stochastic best arm identification (2016); here a group is an arm, and to pull
    it is to try its next candidate.
    """

    def _next(self) -> Candidate | None:
        groups = self._groups()
        while groups:
            round_ = dict([*groups.items()][:GROUPS])
            for name in round_:
                del groups[name]
            if (candidate := self._halving([*round_.values()])) is not None:
                return candidate
        near = (n for _, c in self.timed() for n in self.space.neighbours(c))
        return next((n for n in near if n not in self.asked), None)

    def _groups(self) -> dict[Hashable, list[Candidate]]:
        """The planner's candidates by group, both in the model's order."""
        names = self.space.names
        kept = [i for i, n in enumerate(names) if n.startswith(("block.", "chunk.")) or n in ("atom", "copy", "pack")]
        groups: dict[Hashable, list[Candidate]] = {}
        for c in self.space.ranked():
            values = self.space.values(c)
            groups.setdefault(tuple(values[i] for i in kept), []).append(c)
        return groups

    def _halving(self, groups: list[list[Candidate]]) -> Candidate | None:
        """The next candidate of a round, None if it is over."""
        tries = 1
        while groups:
            for group in groups:
                for candidate in group[:tries]:
                    if candidate not in self.asked:
                        return candidate
            groups = sorted(groups, key=self._best)[: len(groups) // 2]
            tries *= 2
        return None

    def _best(self, group: list[Candidate]) -> float:
        """The best time of a group; infinite where there is none."""
        known = (self.trials[c].seconds for c in group if c in self.trials)
        return min((s for s in known if s is not None), default=float("inf"))


class RandomPolicy(History):
    """After the planner's pick, each of its other candidates with equal chance, and, when these are over, neighbours of
    what was tried. What every other policy has to be better than."""

    def _next(self) -> Candidate | None:
        left = self.open(self.space.ranked())
        if not left:
            left = self.open(n for _, c in self.timed() for n in self.space.neighbours(c))
        return self.random.choice(left) if left else None


POLICIES: dict[str, Callable[[NestSpace, int], Policy]] = {
    "evolve": EvolvePolicy,
    "top-k": TopKPolicy,
    "random": RandomPolicy,
}
"""Name -> what makes the policy from a space and a seed."""
