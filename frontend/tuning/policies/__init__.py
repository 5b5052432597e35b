"""Policies: what a search tries next, by name."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import ScheduleError
from ....plugins import plugins
from ..space import NestSpace
from ..trial import Policy
from .bayes import BayesPolicy
from .history import ModelPolicy
from .mcts import MctsPolicy

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
