"""A frontend at the tensor level without PyTorch: the traced arrays of `support/arrays.py`, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.arrays import Array, attention, linear, outer, random_arrays, softmax, trace

import deplodock
from deplodock.backend.emulator import EmulatedModule, EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


PROGRAMS: dict[str, tuple[Callable[..., Array], Callable[..., np.ndarray], tuple[tuple[int, ...], ...]]] = {
    "softmax": (softmax, _softmax, ((5, 37),)),
    "linear": (linear, lambda x, w, b: x @ w + b, ((9, 24), (24, 17), (17,))),
    "attention": (attention, lambda q, k, v: _softmax(q @ k * 0.25) @ v, ((16, 8), (8, 24), (24, 16))),
    "outer": (outer, lambda x, y: (x * 2 - y) / 4, ((3, 1), (2, 1, 5))),
}
"""Name -> function of traced arrays, the same of NumPy's, and shapes."""


def compiled(name: str, target: str, executor: str) -> deplodock.CompiledModule:
    function, _, shapes = PROGRAMS[name]
    module = trace(function, *shapes)
    return deplodock.compile_module(module, random_arrays(*shapes), target=target, executor=executor)


@pytest.fixture(scope="module")
def emulated() -> dict[str, tuple[str, EmulatedModule, Any]]:
    """Returns the CUDA of all programs with their emulated modules, built together, and launch plans."""
    programs = {name: compiled(name, "sm_90a", "reference") for name in PROGRAMS}
    texts = {name: p.ir("cuda") for name, p in programs.items()}
    plans = [make_plan(p.compilation.at("kernel")) for p in programs.values()]
    built = compile_many(list(texts.values()))
    return {n: (texts[n], *both) for n, *both in zip(texts, built, plans, strict=True)}


def check(name: str, result: Any) -> None:
    _, function, shapes = PROGRAMS[name]
    np.testing.assert_allclose(result, function(*random_arrays(*shapes)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("target", "executor"), [("cpu", "cpu"), ("cpu", "reference")])
def test_right(name: str, target: str, executor: str) -> None:
    program = compiled(name, target, executor)
    assert program.compilation.level == "tensor"
    check(name, program(*random_arrays(*PROGRAMS[name][2])))


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_as_cuda(name: str, emulated: dict[str, Any]) -> None:
    text, module, plan = emulated[name]
    outputs, reports = EmulatedProgram(text, plan, module).run(random_arrays(*PROGRAMS[name][2]))
    assert not reports, str(reports[0])
    check(name, outputs[0])
