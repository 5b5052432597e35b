"""The 84 shapes, shrunk, in f32 and bf16, are right at every level. `test_static_gates.py` has them at full size.

By default each shape is in one type, alternating within a family; `--shapes all` runs each in both.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from support.seed84 import BY_NAME, DISTINCT, Case, make_case

from deplodock.backend.check_each import Checker
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.frontend.capture.export import capture
from deplodock.frontend.comparison import compare, tolerances

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROW_FAMILIES = {"rmsnorm", "softmax", "silu_mul"}
FAMILIES = list(dict.fromkeys(case["family"] for case in BY_NAME.values()))


def compiled(case: Case, target: str = "sm_90a") -> CompiledFunction:
    captured = capture(case.function, case.inputs(), names=list(case.shapes))
    return CompiledFunction(captured, target, "reference")


def small_cases(amount: str) -> list[tuple[str, str]]:
    """Returns the (name, data type) of the shrunk cases to run."""
    found: list[tuple[str, str]] = []
    for family in FAMILIES:
        names = [n for n in DISTINCT if BY_NAME[n]["family"] == family]
        found += [(n, d) for i, n in enumerate(names) for j, d in enumerate(DTYPES) if amount == "all" or i % 2 == j]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"name", "dtype"} <= {*metafunc.fixturenames}:
        metafunc.parametrize(("name", "dtype"), small_cases(metafunc.config.getoption("--shapes")))


def test_every_family_in_every_type() -> None:
    cases = small_cases("slice")
    assert {n for n, _ in cases} == {*DISTINCT}
    assert {(BY_NAME[n]["family"], d) for n, d in cases} == {(f, d) for f in FAMILIES for d in DTYPES}


@cache
def small_program(name: str, dtype: str) -> tuple[Case, CompiledFunction]:
    case = make_case(name, DTYPES[dtype], small=True)
    return case, compiled(case)


def test_small_is_right_at_every_level(name: str, dtype: str) -> None:
    case, program = small_program(name, dtype)
    compilation = program.compilation
    checker = Checker(compilation.at("tensor"), seed=1)
    for level in ("loop", "tile", "kernel"):  # exactly, and in floats
        checker.after(f"the passes to the {level} level", compilation.at(level))
    inputs = case.inputs(seed=2)
    expected = [case.function(*inputs)]
    allowed = tolerances(compilation.at("tensor"))
    arrays = [to_numpy(t) for t in program.captured.bind(inputs)]

    simulated = simulate(compilation.at("kernel"), arrays)
    assert not simulated.report.findings, str(simulated.report)
    emulated = EmulatedProgram(program.ir("cuda"), make_plan(compilation.at("kernel")))
    outputs, reports = emulated.run(arrays)
    assert not reports, str(reports[0])
    for what, results in (("simulator", simulated.outputs), ("emulator", outputs)):
        differences = compare([to_torch(np.asarray(r)) for r in results], expected, allowed)
        assert all(d.ok for d in differences), (what, differences)


@pytest.mark.parametrize("family", ["softmax", "rmsnorm"])
def test_row_kernels_read_their_input_once(family: str) -> None:
    for case, program in (small_program(*c) for c in small_cases("slice") if BY_NAME[c[0]]["family"] == family):
        arrays = [to_numpy(t) for t in program.captured.bind(case.inputs())]
        (counts,) = simulate(program.compilation.at("kernel"), arrays).report.launches
        assert counts.loaded[_position(program, case)] == arrays[list(case.shapes).index("x")].nbytes, case.name


def _position(program: CompiledFunction, case: Case) -> int:
    """Returns the position of the input `x` of `@main` among the kernel's arguments."""
    module = program.compilation.at("kernel")
    main = next(op for op in module.walk() if op.name == "func.func")
    launch = next(op for op in module.walk() if op.name == "kernel.launch")
    x = main.regions[0].block.args[[b.name for b in program.captured.bindings].index("x")]
    return list(launch.operands).index(x)
