"""Search policies for comparison with those of `deplodock tune`: `evolve`, `top-k` and `random`.

A policy chooses the next candidate, a schedule, to measure. The candidates are ranked by the planning model, and each
has neighbours, which differ in one decision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from deplodock.frontend.tuning.policies import History
from deplodock.frontend.tuning.space import NestSpace
from deplodock.frontend.tuning.trial import Candidate, Policy

PARENTS, FIRST_GENERATION = 6, 4
"""Number of fastest candidates that have children, and number of the planner's candidates that are tried first."""

CHILDREN = 4
"""Number of crossovers per draw. All mutations of the first parent are considered in addition."""

GREEDY_PROBABILITY = 0.85
"""Probability that the child with the best prediction is tried; otherwise a random child is."""


class EvolvePolicy(History):
    """An evolutionary search.

    The first generation is the planner's best `FIRST_GENERATION` candidates. Then each trial is a child of the fastest
    candidates: a mutation (one decision of a parent changed) or a crossover (decisions of two parents mixed). Usually
    the child with the best predicted time is tried (`GREEDY_PROBABILITY`).

    Source: Shao et al., Tensor Program Optimization with Probabilistic Programs (MetaSchedule, 2022).
    """

    def _next(self) -> Candidate | None:
        timed = self.timed()
        if len(self.trials) < FIRST_GENERATION or not timed:
            untried = self.open(self.space.ranked())
            if untried:
                return untried[0]
        parents = [c for _, c in timed[:PARENTS]]
        while parents:
            first = parents[min(int(self.random.expovariate(1.0)), len(parents) - 1)]
            children = self.open([*self.space.neighbours(first), *self._crossed(first, parents)])
            if children:
                if self.random.random() < GREEDY_PROBABILITY:
                    return min(children, key=lambda c: c.predicted)
                return self.random.choice(children)
            parents.remove(first)
        untried = self.open(self.space.ranked())
        return untried[0] if untried else None

    def _crossed(self, first: Candidate, parents: list[Candidate]) -> list[Candidate]:
        """Returns `CHILDREN` random crossovers of `first` with other parents, as far as they are legal."""
        mine = self.space.values(first)
        others = [self.space.values(self.random.choice(parents)) for _ in range(CHILDREN)]
        return self.space.candidates(
            tuple(self.random.choice(pair) for pair in zip(mine, other, strict=True)) for other in others
        )


GROUPS = 8
"""Number of groups in a first round."""


class TopKPolicy(History):
    """A search by successive halving of groups.

    A group has the candidates with equal tiles, tensor-core atom, copies and packing. A first round tries the best
    predicted candidate of each of the `GROUPS` best groups. Each further round keeps the faster half of the groups and
    doubles the candidates tried per group, until one group remains. Then the next `GROUPS` groups follow. After the
    last group the neighbours of the fastest candidates are tried.

    Source: Jamieson and Talwalkar, Non-stochastic best arm identification (2016). A group is an arm of their bandit,
    and pulling the arm tries the next candidate of the group.
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
        """Returns the planner's candidates by group. Groups and candidates are ordered by prediction."""
        names = self.space.names
        group_decisions = [
            i for i, n in enumerate(names) if n.startswith(("block.", "chunk.")) or n in ("atom", "copy", "pack")
        ]
        groups: dict[Hashable, list[Candidate]] = {}
        for c in self.space.ranked():
            values = self.space.values(c)
            groups.setdefault(tuple(values[i] for i in group_decisions), []).append(c)
        return groups

    def _halving(self, groups: list[list[Candidate]]) -> Candidate | None:
        """Returns the next candidate of successive halving over `groups`, or None at its end."""
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
        """Returns the best measured time of a group, or infinity without one."""
        seconds = (self.trials[c].seconds for c in group if c in self.trials)
        return min((s for s in seconds if s is not None), default=float("inf"))


class RandomPolicy(History):
    """The baseline of all policies: random candidates of the planner, then random neighbours of measured ones."""

    def _next(self) -> Candidate | None:
        untried = self.open(self.space.ranked())
        if not untried:
            untried = self.open(n for _, c in self.timed() for n in self.space.neighbours(c))
        return self.random.choice(untried) if untried else None


POLICIES: dict[str, Callable[[NestSpace, int], Policy]] = {
    "evolve": EvolvePolicy,
    "top-k": TopKPolicy,
    "random": RandomPolicy,
}
"""Name -> function that creates the policy from a seed and the space of the schedules of a nest."""
