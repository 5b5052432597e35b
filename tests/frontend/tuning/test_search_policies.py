"""Search policies on some kernels whose best schedule is known: a short `benchmarks/search/search_policies.py`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from statistics import mean
from typing import Any

import pytest
from support import ROOT

from deplodock.frontend.tuning.policies import DEFAULT_POLICY
from deplodock.frontend.tuning.trial import Trial

PROGRAMS = ("linear 256x512x2048 bf16", "conv 14", "attention 128", "row means")


@pytest.fixture(scope="module")
def fixture() -> Iterator[Any]:
    """Yields the modules `fixture` and `search_policies` of the benchmarks, and some kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        module = import_module("benchmarks.search.fixture")
        yield module, import_module("benchmarks.search.search_policies"), [*module.kernels(PROGRAMS, ["cpu"])]


def mean_share(fixture: Any, policy: str, trials: int = 16) -> float:
    _, benchmark, kernels = fixture
    return mean(benchmark.run(k, benchmark.POLICIES[policy], 0, trials, 24)[-1] for k in kernels)


def test_the_optimum_is_not_what_the_model_takes(fixture: Any) -> None:
    _, _, kernels = fixture
    picks = [k.share(k.ranked()[0]) for k in kernels]
    assert min(picks) > 0.3
    assert mean(picks) < 0.98
    assert all(sum(k.share(c) >= 0.98 for c in k.reachable) < len(k.reachable) / 4 for k in kernels)


@pytest.mark.parametrize("policy", dict.fromkeys([DEFAULT_POLICY, "evolve", "mcts"]))
def test_a_search_is_better_than_random_and_than_the_model(fixture: Any, policy: str) -> None:
    found = mean_share(fixture, policy)
    assert found > mean_share(fixture, "random")
    assert found > mean_share(fixture, "model")


def test_a_trial_is_the_same_whoever_asks(fixture: Any) -> None:
    module, _, kernels = fixture
    some = kernels[0].ranked()[:5]
    together = module.Measured(kernels[0], 1, 9).measure(some)
    assert together == [module.Measured(kernels[0], 1, 9).measure([c])[0] for c in some]
    assert together != module.Measured(kernels[0], 2, 9).measure(some)


@pytest.mark.parametrize("policy", ["evolve", "top-k", "random"])
def test_a_policy_asks_for_the_planners_pick_and_for_nothing_twice(fixture: Any, policy: str) -> None:
    _, benchmark, kernels = fixture
    search, asked = benchmark.POLICIES[policy](kernels[0], 3), []
    while len(asked) < 20 and (found := search.ask(3)):
        asked += found
        for i, candidate in enumerate(found):
            search.tell(Trial(candidate, None, failure="refused") if i else Trial(candidate, candidate.predicted))
    assert asked[0] == kernels[0].ranked()[0]
    assert len(asked) == len({*asked}) == 21
