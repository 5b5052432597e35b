"""Planted bugs in the cost model of fusion for matmul operands: a test of fusion plans must fail for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support import load_file

from mutation.editing import Code, edited

tests = load_file("passes/tensor/test_computed_operands")
within_the_limit = tests.test_an_operand_beyond_the_memory_limit_is_computed
computed, loaded = tests.test_operands_are_computed, tests.test_operands_are_loaded
asks_nothing = tests.test_other_programs_do_not_ask_the_planning_model

Search = Code("passes.tensor.fusion.search").Search
operands = Code("passes.tensor.fusion.contractions")


@dataclass(frozen=True)
class PlanMutant:
    """A planted bug: `new` replaces `old` in a function, and the test `check` must fail."""

    name: str
    function: Code
    old: str
    new: str
    check: Callable[[], None]


def _asks_nothing(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        asks_nothing(name, patch)


MUTANTS = [
    PlanMutant("the slower plan", Search._is_faster, "sum(A) < sum(B)", "sum(A) > sum(B)", lambda: loaded("norm")),
    PlanMutant(
        "no price of the operand",
        Search._is_faster,
        "map(self._planned, kernels.items())",
        "map(self._planned, [*kernels.items()][1:])",
        lambda: computed("norm of one row"),
    ),
    PlanMutant(
        "readers that still compute it",
        Search._materialize_operands,
        "{*self.inlined, value}",
        "{*self.inlined}",
        lambda: loaded("norm"),
    ),
    PlanMutant("more memory", Search._is_faster, "A <= read_bytes(B)", "True", lambda: computed("dequantized")),
    PlanMutant(
        "a limit that is not kept", Search._materialize_operands, "value not in without", "True", within_the_limit
    ),
    PlanMutant(
        "operands of attention",
        operands.contracts_flat,
        "contractions.isdisjoint(A)",
        "True",
        lambda: _asks_nothing("decoding"),
    ),
    PlanMutant("the largest form", operands._smallest_form, "min(A, key=B)", "max(A, key=B)", lambda: loaded("gated")),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_planted_bugs_in_plans_are_caught(mutant: PlanMutant) -> None:
    mutant.check()
    with edited(mutant.function.find(), mutant.old, mutant.new), pytest.raises(AssertionError):
        mutant.check()
