"""Compiling a program that is twice as large takes about twice the steps, whatever the program is like.

Steps are calls of functions, built-in ones included, which no other work on the machine changes. Each kind of graph
(`growing_programs.py`) is made larger by 2, 4 and 8; at the last doubling no pass, and not all of them together, may
take more than 2^1.3 times the steps.
"""

from __future__ import annotations

import math
from collections import Counter
from cProfile import Profile

import pytest
from growing_programs import KINDS
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from deplodock.frontend.capture import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.running import Observer

EXPONENT = 1.3

FEW_STEPS = 20_000
"""A pass that takes fewer steps than this on the largest program is not looked at by itself."""


class CountSteps(Observer):
    """Counts the calls that happen in each pass."""

    def __init__(self) -> None:
        self.steps = Counter[str]()

    def start(self) -> None:
        """Count from here on."""
        self._profile = Profile()
        self._profile.enable()

    def stop(self, name: str) -> None:
        """Count what happened since `start` as steps of `name`."""
        self._profile.disable()
        self.steps[name] += sum(entry.callcount for entry in self._profile.getstats())

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.start()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.stop(module_pass.name)


def steps(kind: str, size: int) -> Counter[str]:
    """Pass -> how many steps it takes on a program of this kind and size, printing CUDA included."""
    function, args = KINDS[kind](size)
    counter = CountSteps()
    compilation = Compilation(capture(function, args).module, observers=[counter])
    compilation.at("kernel")
    counter.start()
    assert compilation.cuda
    counter.stop("print-cuda")
    return counter.steps


def exponents(less: Counter[str], more: Counter[str]) -> dict[str, float]:
    """Pass -> the exponent with which its steps grow when the program is doubled; of all passes as `all`."""
    totals = Counter({"all": less.total()}), Counter({"all": more.total()})
    return {
        name: math.log2(after[name] / max(before[name], 1))
        for before, after in ((less, more), totals)
        for name in after
        if name == "all" or after[name] > FEW_STEPS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_steps_grow_with_the_program(kind: str, base_size: int) -> None:
    counted = [steps(kind, base_size * factor) for factor in (1, 2, 4, 8)]
    found = exponents(counted[-2], counted[-1])
    steep = {name: round(exponent, 2) for name, exponent in found.items() if exponent > EXPONENT}
    assert not steep, f"at size {8 * base_size}: {steep}; steps at each size: {[c.total() for c in counted]}"


@pytest.fixture
def base_size(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--growth", default=1))
