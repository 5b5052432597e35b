"""Search policies that wrap the optimizers of Optuna and Nevergrad, for comparison.

Each decision of a schedule is a categorical parameter of the optimizer. Its values are those of the planner's
candidates and their neighbours. An optimizer proposes a value for each decision; the policy tries the untried candidate
that agrees with the proposal in most decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from deplodock.frontend.tuning.policies import History
from deplodock.frontend.tuning.trial import Candidate, Policy, Trial

FAILED_SECONDS = 1.0
"""Time that an optimizer learns for a failed candidate."""


class Proposed(History):
    """Base class of policies that follow the proposals of an optimizer.

    Tries the untried candidate that agrees with the proposal in most decisions; among equals, the one with the best
    prediction. The optimizer learns the time under the decisions of the candidate that was tried.

    Attributes:
        pool: candidates that may be tried.
        choices: values of each decision that has more than one, by its name.
    """

    def __init__(self, space: Any, seed: int = 0) -> None:
        super().__init__(space, seed)
        self.pool = [*dict.fromkeys([*space.ranked(), *space.neighbours(*space.ranked()[:8])])]
        columns = zip(*map(space.values, self.pool), strict=True)
        self.choices = {n: list(dict.fromkeys(c)) for n, c in zip(space.names, columns, strict=True)}
        self.choices = {n: c for n, c in self.choices.items() if len(c) > 1}
        self.start(seed)

    def start(self, seed: int) -> None:
        """Creates the optimizer. Subclasses implement it."""
        raise NotImplementedError

    def propose(self) -> dict[str, Hashable]:
        """Returns a value for each decision. Subclasses implement it."""
        raise NotImplementedError

    def learn(self, values: dict[str, Any], seconds: float) -> None:
        """Tells the optimizer the time of a candidate with these decisions. Subclasses implement it."""
        raise NotImplementedError

    def tell(self, trial: Trial) -> None:
        super().tell(trial)
        self.learn(self._values(trial.candidate), FAILED_SECONDS if trial.seconds is None else trial.seconds)

    def _values(self, candidate: Candidate) -> dict[str, Hashable]:
        values = dict(zip(self.space.names, self.space.values(candidate), strict=True))
        return {n: values[n] for n in self.choices}

    def _next(self) -> Candidate | None:
        proposal, untried = self.propose(), self.open(self.pool)
        agreements = {c: sum(proposal[n] == v for n, v in self._values(c).items()) for c in untried}
        return max(untried, key=lambda c: (agreements[c], -c.predicted)) if untried else None


class OptunaPolicy(Proposed):
    """A policy that follows a sampler of Optuna: `tpe` or `gp`."""

    def __init__(self, sampler: str, space: Any, seed: int = 0) -> None:
        self.sampler = sampler
        super().__init__(space, seed)

    def start(self, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[self.sampler]
        self.study = optuna.create_study(sampler=sampler(seed=seed, n_startup_trials=4))
        categories = {n: optuna.distributions.CategoricalDistribution(range(len(c))) for n, c in self.choices.items()}
        self.distributions = categories

    def propose(self) -> dict[str, Hashable]:
        asked = self.study.ask(self.distributions)
        import optuna

        self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return {n: self.choices[n][i] for n, i in asked.params.items()}

    def learn(self, values: dict[str, Any], seconds: float) -> None:
        import optuna

        known_values = {n: v for n, v in values.items() if v in self.choices[n]}
        if len(known_values) == len(values):
            params = {n: self.choices[n].index(v) for n, v in known_values.items()}
            self.study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self.distributions, value=seconds)
            )


class NevergradPolicy(Proposed):
    """A policy that follows an optimizer of Nevergrad, by its name in Nevergrad's registry."""

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
"""Name -> function that creates the policy from a seed and the space of the schedules of a nest."""
