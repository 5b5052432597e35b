"""Compile time has no cliffs: the work of every pass grows about as fast as the program.

Work is counted in calls of Python and C functions, which a busy machine leaves as they are. Each kind of graph is made
2 and 4 times as large as its smallest size, which is one where kernels have reached the size that they are bounded
by: below it the work still grows with the size of the kernels. Where a program twice as large has more than twice as
many operations at a level, as when one kernel becomes several, the work of a pass is held against the operations.
"""

from __future__ import annotations

import cProfile
from math import log2

import pytest
import torch
from support.growing_programs import KINDS
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from deplodock.dialects.support.calls import main_function
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.analysis.host_memory import MEMORY_LIMIT
from deplodock.passes.pass_manager import Observer

EXPONENT = 1.3
"""Of the work as a power of the size, at the last doubling."""

FEW = 1 / 50
"""The share of all work of a pass that has not enough to do to tell how its work grows."""

SMALLEST = {
    **dict.fromkeys(KINDS, 8),
    "casts_between": 64,
    "chain_of_gathers": 32,
    "chain_of_softmaxes": 4,
    "chain_without_repeats": 16,
    "clenshaw_recurrence": 32,
    "conversions": 16,
    "crossed_values": 32,
    "dropouts": 1,
    "embeddings": 16,
    "growing_concatenations": 16,
    "integer_powers": 2,
    "masked_updates": 16,
    "matmuls_of_all_shapes": 4,
    "one_concatenation_of_many": 32,
    "one_value_used_often": 64,
    "pooling_chain": 4,
    "powers_by_squaring": 64,
    "resampling_chain": 4,
    "slice_assignments": 16,
    "slices_of_one_tensor": 16,
    "tree_of_sums": 16,
    "unequal_convolutions": 2,
    "unequal_layers": 4,
    "unequal_transformer_blocks": 4,
    "unrolled_lstm_cells": 4,
}
"""The smallest size of each kind: with twice as many operations, a program has several kernels that are compared."""

LONG = {
    "chain_of_gathers",
    "chain_of_row_reductions",
    "chain_of_sums_over_all",
    "conversions",
    "crossed_values",
    "embeddings",
    "experts_as_a_loop",
    "growing_concatenations",
    "heads_as_a_loop",
    "integer_powers",
    "joined_recurrence",
    "masked_updates",
    "one_concatenation_of_many",
    "pooling_chain",
    "powers_by_squaring",
    "resampling_chain",
    "slice_assignments",
    "slices_of_one_tensor",
    "unequal_transformer_blocks",
    "unrolled_gru_cells",
    "unrolled_lstm_cells",
    "unrolled_scan",
}
"""Kinds whose kernels reach their bound late, so that measuring takes 5 seconds and more: with `--growth all`."""


class CountCalls(Observer):
    """Counts the calls of functions in every pass."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.operations: dict[str, int] = {}
        self._profile = cProfile.Profile()

    def start(self) -> None:
        """Begin to count."""
        self._profile = cProfile.Profile()
        self._profile.enable()

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.size(module_pass.name, module)
        self.start()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.count(module_pass.name)
        self.size(module_pass.name, module)

    def size(self, name: str, module: ModuleOp) -> None:
        """Note how many operations `name` reads or writes at most."""
        found = sum(1 for _ in module.walk())
        self.operations[name] = max(found, self.operations.get(name, 0))

    def count(self, name: str) -> None:
        """Add what was called since `start` to what `name` called."""
        self._profile.disable()
        calls = sum(entry.callcount for entry in self._profile.getstats())
        self.calls[name] = self.calls.get(name, 0) + calls


def measured(kind: str, size: int, limit: int | None = None) -> CountCalls:
    """The calls in every pass, and in printing, for a program of the kind; `limit`: bytes that a call may take."""
    torch.manual_seed(0)
    function, args = KINDS[kind](size)
    with torch.no_grad():
        module = capture(function, args).module
    if limit is not None:
        main_function(module).attributes[MEMORY_LIMIT] = IntegerAttr(limit, i64)
    counter = CountCalls()
    compilation = Compilation(module, observers=[counter])
    counter.size("print-cuda", compilation.at("kernel"))
    counter.start()
    _ = compilation.cuda
    counter.count("print-cuda")
    return counter


def exponents(small: CountCalls, large: CountCalls) -> dict[str, float]:
    """How the work of each pass, and all of it, grows when the size doubles."""
    found = {"all": log2(sum(large.calls.values()) / sum(small.calls.values()))}
    for name, calls in large.calls.items():
        if name in small.calls and small.calls[name] >= FEW * sum(small.calls.values()):
            operations = max(2, large.operations[name] / small.operations[name])
            found[name] = log2(calls / small.calls[name]) / log2(operations)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_work_grows_with_the_program(kind: str, request: pytest.FixtureRequest) -> None:
    """From the second largest size to the largest."""
    if kind in LONG and request.config.getoption("--growth") != "all":
        pytest.skip("only with --growth all")
    small, large = (measured(kind, SMALLEST[kind] << doublings) for doublings in (1, 2))
    steep = {name: round(e, 2) for name, e in exponents(small, large).items() if e > EXPONENT}
    assert not steep


def test_work_within_a_limit_of_memory() -> None:
    """The limit of one operator that has many steps: nothing may be kept in between, and one kernel is too small."""
    small, large = (measured("crossed_values", size, 0) for size in (128, 256))
    steep = {name: round(e, 2) for name, e in exponents(small, large).items() if e > EXPONENT}
    assert not steep


def test_kernels_of_a_scan_grow_with_its_steps() -> None:
    """No step computes all steps before it again, once kernels have reached their size."""
    sizes = list[int]()
    for steps in (16, 32):
        function, args = KINDS["unrolled_scan"](steps)
        module = Compilation(capture(function, args).module, target="cpu", record="none").at("loop")
        sizes.append(sum(1 for _ in module.walk()))
    assert sizes[1] <= 2**EXPONENT * sizes[0]


def test_quadratic_work_is_seen() -> None:
    """A pass that looks at all pairs of operations is one that the bound refuses."""

    def pairs(size: int) -> CountCalls:
        counter, module = CountCalls(), capture(*KINDS["many_results"](size)).module
        counter.start()
        ops = [*module.walk()]
        assert sum(isinstance(a, type(b)) for a in ops for b in ops)
        counter.count("pairs")
        counter.size("pairs", module)
        return counter

    assert exponents(pairs(64), pairs(128))["pairs"] > 1.7
