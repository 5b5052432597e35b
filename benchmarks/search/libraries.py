"""Optuna and Nevergrad as policies, for comparison: each decision is a categorical parameter with the values that the
planner's candidates and their neighbours have; what they propose goes to the nearest candidate that is left."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from deplodock.frontend.tuning.policies import History
from deplodock.frontend.tuning.trial import Candidate, Policy, Trial

FAILED = 1.0
"""Seconds of a candidate that has none."""


class Proposed(History):
    """Tries the candidate, of those left, that agrees in most decisions with what a library proposes; of several the
    one with the best prediction. The library learns the time of what was tried under the values that this has."""

    def __init__(self, space: Any, seed: int = 0) -> None:
        super().__init__(space, seed)
        self.pool = [*dict.fromkeys([*space.ranked(), *space.neighbours(*space.ranked()[:8])])]
        columns = zip(*map(space.values, self.pool), strict=True)
        self.choices = {n: list(dict.fromkeys(c)) for n, c in zip(space.names, columns, strict=True)}
        self.choices = {n: c for n, c in self.choices.items() if len(c) > 1}
        self.start(seed)

    def start(self, seed: int) -> None:
        raise NotImplementedError

    def propose(self) -> dict[str, Hashable]:
        raise NotImplementedError

    def learn(self, values: dict[str, Any], seconds: float) -> None:
        raise NotImplementedError

    def tell(self, trial: Trial) -> None:
        super().tell(trial)
        self.learn(self._values(trial.candidate), FAILED if trial.seconds is None else trial.seconds)

    def _values(self, candidate: Candidate) -> dict[str, Hashable]:
        found = dict(zip(self.space.names, self.space.values(candidate), strict=True))
        return {n: found[n] for n in self.choices}

    def _next(self) -> Candidate | None:
        wanted, left = self.propose(), self.open(self.pool)
        same = {c: sum(wanted[n] == v for n, v in self._values(c).items()) for c in left}
        return max(left, key=lambda c: (same[c], -c.predicted)) if left else None


class OptunaPolicy(Proposed):
    """One of Optuna's samplers."""

    def __init__(self, sampler: str, space: Any, seed: int = 0) -> None:
        self.sampler = sampler
        super().__init__(space, seed)

    def start(self, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        made = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[self.sampler]
        self.study = optuna.create_study(sampler=made(seed=seed, n_startup_trials=4))
        categories = {n: optuna.distributions.CategoricalDistribution(range(len(c))) for n, c in self.choices.items()}
        self.distributions = categories

    def propose(self) -> dict[str, Hashable]:
        asked = self.study.ask(self.distributions)
        import optuna

        self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return {n: self.choices[n][i] for n, i in asked.params.items()}

    def learn(self, values: dict[str, Any], seconds: float) -> None:
        import optuna

        known = {n: v for n, v in values.items() if v in self.choices[n]}
        if len(known) == len(values):
            params = {n: self.choices[n].index(v) for n, v in known.items()}
            self.study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self.distributions, value=seconds)
            )


class NevergradPolicy(Proposed):
    """One of Nevergrad's optimizers."""

    def __init__(self, optimizer: str, space: Any, seed: int = 0) -> None:
        self.optimizer = optimizer
        super().__init__(space, seed)

    def start(self, seed: int) -> None:
        import nevergrad
        import numpy as np

        parameters = nevergrad.p.Dict(**{n: nevergrad.p.Choice(range(len(c))) for n, c in self.choices.items()})
        parameters.random_state = np.random.RandomState(seed)
        self.search = nevergrad.optimizers.registry[self.optimizer](parameters, budget=64)

    def propose(self) -> dict[str, Hashable]:
        return {n: self.choices[n][i] for n, i in self.search.ask().value.items()}

    def learn(self, values: dict[str, Any], seconds: float) -> None:
        if all(v in self.choices[n] for n, v in values.items()):
            indices = {n: self.choices[n].index(v) for n, v in values.items()}
            self.search.tell(self.search.parametrization.spawn_child(new_value=indices), seconds)


def _optuna(sampler: str) -> Callable[[Any, int], Policy]:
    return lambda space, seed: OptunaPolicy(sampler, space, seed)


def _nevergrad(optimizer: str) -> Callable[[Any, int], Policy]:
    return lambda space, seed: NevergradPolicy(optimizer, space, seed)


LIBRARIES = {
    "optuna-tpe": _optuna("tpe"),
    "optuna-gp": _optuna("gp"),
    "ng-discrete": _nevergrad("DiscreteOnePlusOne"),
    "ng-ngopt": _nevergrad("NGOpt"),
}
"""Name -> what makes the policy."""
