"""Compile time grows linearly: the work of each pass is about proportional to the size of the program.

Work is counted in calls of Python and C functions, which does not depend on the load of the machine. Each kind of
program is made at 2 and 4 times its smallest size. At that size its kernels have reached their largest size; below it
work also grows with the size of kernels. If doubling a program more than doubles the operations at a level, because a
kernel becomes several, the work of a pass is compared with the number of operations.
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
    "chain_of_views": 4,
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
    "unequal_convolutions": 1,
    "unequal_layers": 2,
    "unequal_transformer_blocks": 4,
    "unrolled_lstm_cells": 4,
}
"""The smallest size of each kind: with twice as many operations, a program has several kernels that are compared."""

LONG = {
    "casts_between",
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
    """Counts the function calls and the operations of every pass."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.operations: dict[str, int] = {}
        self._profile = cProfile.Profile()

    def start(self) -> None:
        """Starts to count calls."""
        self._profile = cProfile.Profile()
        self._profile.enable()

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.size(module_pass.name, module)
        self.start()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.count(module_pass.name)
        self.size(module_pass.name, module)

    def size(self, name: str, module: ModuleOp) -> None:
        """Records the number of operations of a module, if it is the largest that the pass `name` has seen."""
        found = sum(1 for _ in module.walk())
        self.operations[name] = max(found, self.operations.get(name, 0))

    def count(self, name: str) -> None:
        """Adds the calls since `start` to those of the pass `name`."""
        self._profile.disable()
        calls = sum(entry.callcount for entry in self._profile.getstats())
        self.calls[name] = self.calls.get(name, 0) + calls


def measured(kind: str, size: int, limit: int | None = None) -> CountCalls:
    """Counts the calls of all passes and of printing for one program.

    Args:
        kind: key of `KINDS`.
        size: size of the program.
        limit: memory limit of the program in bytes, or None.
    """
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
    """Returns the exponent of growth for each pass, and for all passes as `all`, when the size doubles."""
    found = {"all": log2(sum(large.calls.values()) / sum(small.calls.values()))}
    for name, calls in large.calls.items():
        if name in small.calls and small.calls[name] >= FEW * sum(small.calls.values()):
            operations = max(2, large.operations[name] / small.operations[name])
            found[name] = log2(calls / small.calls[name]) / log2(operations)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_work_grows_with_the_program(kind: str, request: pytest.FixtureRequest) -> None:
    """Compares the second largest with the largest size."""
    if kind in LONG and request.config.getoption("--growth") != "all":
        pytest.skip("only with --growth all")
    small, large = (measured(kind, SMALLEST[kind] << doublings) for doublings in (1, 2))
    steep = {name: round(e, 2) for name, e in exponents(small, large).items() if e > EXPONENT}
    assert not steep


def test_work_within_a_limit_of_memory() -> None:
    """An operator of many steps with the memory limit 0: no value may be materialised, but one kernel is too small."""
    small, large = (measured("crossed_values", size, 0) for size in (128, 256))
    steep = {name: round(e, 2) for name, e in exponents(small, large).items() if e > EXPONENT}
    assert not steep


def test_kernels_of_a_scan_grow_with_its_steps() -> None:
    """Kernels of an unrolled scan do not recompute all earlier steps in each step."""
    sizes = list[int]()
    for steps in (4, 8):
        function, args = KINDS["unrolled_scan"](steps)
        module = Compilation(capture(function, args).module, target="cpu", record="none").at("loop")
        sizes.append(sum(1 for _ in module.walk()))
    assert sizes[1] <= 2**EXPONENT * sizes[0]


def test_quadratic_work_is_seen() -> None:
    """The check refuses a pass that compares all pairs of operations."""

    def pairs(size: int) -> CountCalls:
        counter, module = CountCalls(), capture(*KINDS["many_results"](size)).module
        counter.start()
        ops = [*module.walk()]
        assert sum(isinstance(a, type(b)) for a in ops for b in ops)
        counter.count("pairs")
        counter.size("pairs", module)
        return counter

    assert exponents(pairs(64), pairs(128))["pairs"] > 1.7
