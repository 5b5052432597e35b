"""Policies: what a search tries next, by name."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import ScheduleError
from ..space import NestSpace
from ..trial import Policy
from .bayes import BayesPolicy
from .evolve import EvolvePolicy
from .history import ModelPolicy, RandomPolicy
from .mcts import MctsPolicy
from .top_k import TopKPolicy

POLICIES: dict[str, Callable[[NestSpace, int], Policy]] = {
    "model": ModelPolicy,
    "top-k": TopKPolicy,
    "evolve": EvolvePolicy,
    "mcts": MctsPolicy,
    "bayes": BayesPolicy,
    "random": RandomPolicy,
}
"""Name -> what makes the policy from a space and a seed."""

DEFAULT_POLICY = "bayes"


def make_policy(name: str, space: NestSpace, seed: int = 0) -> Policy:
    """The policy `name` on `space`; the same seed and the same trials give the same candidates. Raises ScheduleError
    for a name that none has."""
    if name not in POLICIES:
        raise ScheduleError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}", argument="policy")
    return POLICIES[name](space, seed)
