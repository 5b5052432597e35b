"""Kernel-level programs of the CPU target with the results that PyTorch or the reference interpreter computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fuzz.schedules import LOWERING, case_for, expected
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.kernel import FuncOp
from deplodock.errors import CompileError
from deplodock.frontend.capture.arrays import to_torch
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from support import seed84
from support.alone import Failed, Machine
from support.cpu_programs import PROGRAMS


@dataclass(frozen=True)
class Sample:
    """A module at the kernel level, its arguments, and its expected results."""

    name: str
    module: ModuleOp
    args: list[torch.Tensor]
    results: list[torch.Tensor]

    @property
    def kernels(self) -> int:
        """Number of kernels in the module."""
        return sum(isinstance(op, FuncOp) for op in self.module.body.ops)

    def check(self, results: list[torch.Tensor]) -> None:
        """Asserts that results are close to the expected ones. The tolerance allows another order of sums."""
        for r, e in zip(results, self.results, strict=True):
            tolerance = {torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(r.dtype, 1e-4)
            size = e[e.isfinite()].double().abs().mean().item() if e.isfinite().any() else 1.0
            bound = tolerance * max(4 * size, 1.0)
            torch.testing.assert_close(r, e, rtol=tolerance, atol=bound, equal_nan=True)


def of_function(name: str, function: Callable[..., Any], args: list[torch.Tensor]) -> Sample:
    """Returns the sample of a PyTorch function.

    Args:
        name: name of the sample.
        function: the function.
        args: its arguments.
    """
    captured = capture(function, args)
    with torch.no_grad():
        results = pytree.tree_leaves(function(*(a.clone() for a in args)))
    arguments = captured.bind(args)
    return Sample(name, compile_captured(captured, "cpu").at("kernel"), list(arguments), results)


def of_schedule(seed: int) -> Sample | None:
    """Returns a nest with a random schedule, or None if the schedule is refused."""
    case = case_for(seed, "cpu")
    inputs, _ = expected(case.name)
    results = run(case.module.clone(), inputs)
    try:
        run_passes(make_context(), case.module, parse_passes(LOWERING, {"target": ("cpu",)}))
    except CompileError:
        return None
    return Sample(str(case), case.module, [to_torch(a) for a in inputs], [to_torch(r) for r in results])


def samples(seeds: range = range(400)) -> Iterator[Sample]:
    """Yields samples of `PROGRAMS`, of the 84 shapes and of random schedules with these seeds, in turns."""
    sources = [
        (of_function(name, function, list(args)) for name, (function, args) in PROGRAMS.items()),
        (of_shape(name, dtype) for name in seed84.DISTINCT for dtype in (torch.float32, torch.bfloat16)),
        filter(None, map(of_schedule, seeds)),
    ]
    while sources:
        for source in list(sources):
            sample = next(source, None)
            if sample is None:
                sources.remove(source)
            else:
                yield sample


def of_shape(name: str, dtype: torch.dtype) -> Sample:
    """Returns the sample of one of the 84 shapes, shrunk."""
    case = seed84.make_case(name, dtype, small=True)
    return of_function(f"{name} {dtype}", case.function, case.inputs())


def enough(request: pytest.FixtureRequest, few: int, kernels: int) -> Iterator[Sample]:
    """Yields samples until they have enough kernels together.

    Args:
        request: request of the test, with the option `--kernels`.
        few: number of kernels by default.
        kernels: number of kernels with `--kernels all`.
    """
    remaining = kernels if request.config.getoption("--kernels") == "all" else few
    for sample in samples():
        if remaining <= 0:
            return
        remaining -= sample.kernels
        yield sample


def check_all(samples: Iterable[Sample], machine: Machine) -> None:
    """Runs and checks all samples on a machine. Raises AssertionError with the names of the wrong ones."""
    wrong: list[str] = []
    for sample in samples:
        try:
            sample.check(machine.run(sample.module, sample.args))
        except (AssertionError, Failed) as error:
            wrong.append(f"{sample.name}: {error}")
    assert not wrong, "\n\n".join(wrong)
