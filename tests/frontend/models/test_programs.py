"""Many small programs as a user types them (`-c`): by all executors of the host they are what PyTorch computes, or they
are refused in one line.

`data/programs.txt` has a program a line. Their CUDA is built for the host some dozens at a time, which takes the
longest.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from support import TESTS

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.errors import CompileError
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import make_executor
from deplodock.target.architectures import TARGETS
from deplodock.tools.cli import main
from deplodock.tools.reports import Loaded, load

PROGRAMS = (TESTS / "data" / "programs.txt").read_text(encoding="utf-8").splitlines()
BATCH = 36

Results = list[torch.Tensor]


@cache
def load_program(code: str) -> Loaded:
    """A program, compiled once; whoever lets PyTorch change its arguments in place is the last to use it."""
    return load(None, code, "sm_90a", 0)


@cache
def emulated(batch: int) -> dict[str, Results]:
    """What the programs of a batch give as CUDA; those without a kernel are left out."""
    loaded = [(code, load_program(code)) for code in PROGRAMS[batch * BATCH : (batch + 1) * BATCH]]
    loaded = [(code, p) for code, p in loaded if "__global__" in p.compilation.cuda]
    modules = compile_many([p.compilation.cuda for _, p in loaded])
    found: dict[str, Results] = {}
    for (code, p), module in zip(loaded, modules, strict=True):
        program = EmulatedProgram(p.compilation.cuda, make_plan(p.compilation.at("kernel")), module)
        arguments = [to_numpy(t) for t in p.captured.bind(p.program.args, p.program.kwargs)]
        outputs, reports = program.run(arguments, seeds=(0,))
        assert not reports, f"{code}: {reports[0]}"
        found[code] = [to_torch(o) for o in outputs]
    return found


@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=lambda i: re.sub(r"[^\w.]+", "-", PROGRAMS[i])[:60])
def test_is_what_pytorch_computes(number: int) -> None:
    code = PROGRAMS[number]
    loaded = load_program(code)
    arguments = loaded.captured.bind(loaded.program.args, loaded.program.kwargs)
    actual = {e: make_executor(e, loaded.compilation).run(arguments) for e in ("reference", "simulator")}
    if "__global__" in loaded.compilation.cuda:
        actual["emulator"] = emulated(number // BATCH)[code]
    with torch.no_grad():  # after ours: PyTorch may change its arguments in place
        expected = loaded.captured.flatten(loaded.program.function(*loaded.program.args, **loaded.program.kwargs))
    allowed = tolerances(loaded.compilation.at("tensor"))
    assert max(allowed, default=0) < 0.5
    shown = sorted({o.index for o in loaded.captured.outputs if o.kind == "result"})
    for executor, results in actual.items():
        wrong = [d for d in compare([results[i] for i in shown], expected, [allowed[i] for i in shown]) if not d.ok]
        assert not wrong, (executor, code, wrong)


@pytest.mark.parametrize("number", range(0, len(PROGRAMS), 22))
def test_compiles_for_every_target(number: int) -> None:
    for target in TARGETS:
        loaded = load(None, PROGRAMS[number], target, 0)
        if "__global__" in loaded.compilation.cuda:
            result = compile_cubin(loaded.compilation.cuda, target)
            assert result.kernels
            assert not result.warnings
            assert not any(k.spill_stores or k.spill_loads for k in result.kernels.values())


REFUSED = {
    "x = torch.randn(5); torch.arange(int((x > 0).sum()))": r"<expression>:1:\d+: error: int\(.*\): .* depends on",
    "x = torch.randn(3, 4); x if x.sum() > 0 else -x": r"<expression>:1:29: error: x.sum\(\) > 0: the branch depends",
    "torch.linalg.inv(torch.randn(3, 3))": r"<expression>:1: error: torch.linalg.inv\(.*\): ",
    "torch.cumprod(torch.randn(3, dtype=torch.complex64), 0)": r"<expression>:1: error: torch.cumprod\(.*\): complex",
    "torch.arange(3).to(torch.float4_e2m1fn_x2)": r"<expression>:1: error: torch.arange\(3\).to\(.*\): ",
    "torch.poisson(torch.rand(5))": r"<expression>:1: error: torch.poisson\(.*\): random numbers",
    "torch.randn(2, 3) @ torch.randn(2, 3)": r"<expression>:1:1: error: .* @ .*: RuntimeError: .*reduction dim.*[^.]; ",
    "torch.randn(2, 3).no_such_method()": r"<expression>:1:1: error: .*\.no_such_method: AttributeError",
    "nn.Linear(3)": "<expression>:1:1: error: TypeError",
    "nn.Linear(3, 4)": "<expression>:1:1: error: a module alone",
    "1 + 1": "nothing is computed from a tensor",
    "import os": "not an expression",
    "x = torch.randn(3); del x; y": "NameError",
    "[][0] + torch.randn(3)": "IndexError",
    "raise ValueError('a\\nb')": "not an expression",
    "torch.relu(torch.randn(3)": "SyntaxError",
    "exit(3)": "SystemExit",
    "": "not an expression",
    "\0": "SyntaxError|ValueError",
}


@pytest.mark.parametrize("code", REFUSED)
def test_refused_in_one_line(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "-c", code]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert re.search(REFUSED[code], lines[0]), err
    assert len(lines) <= 3, err  # with the source and a caret
    assert "internal error" not in err
    assert "aten." not in lines[0]


def test_a_program_in_place_changes_its_argument_once() -> None:
    loaded = load_program("x = torch.zeros(3); x += 1; x * 2")
    arguments = loaded.captured.bind(loaded.program.args, loaded.program.kwargs)
    results = make_executor("reference", loaded.compilation).run(arguments)
    torch.testing.assert_close(loaded.captured.restore(results, arguments), torch.full((3,), 2.0))
    torch.testing.assert_close(arguments[0], torch.ones(3))


def test_wrong_code_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="nothing is computed"):
        load_program("x = torch.randn(3); x")
