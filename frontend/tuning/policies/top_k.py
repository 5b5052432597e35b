"""`top-k`: the model's order, by successive halving of groups of schedules that are alike."""

from __future__ import annotations

from collections.abc import Hashable

from ..trial import Candidate
from .history import History

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
