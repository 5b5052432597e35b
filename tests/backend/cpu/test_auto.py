"""The target `auto`, the default: the GPU or CPU of this machine that can run compiled code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import deplodock
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.host.compiler import OPENMP, find_compiler
from deplodock.errors import ExecutionError
from deplodock.frontend import executors
from deplodock.tools.cli import main

pytestmark = pytest.mark.auto

X = torch.linspace(-2, 2, 33)


def test_the_cpu_where_there_is_no_gpu() -> None:
    program = deplodock.compile(torch.relu, (X,))
    assert torch.equal(program(X), X.relu())
    assert (program.compilation.target, program.executor.name) == ("cpu", "cpu")


def test_the_gpu_where_there_is_one(stub_cuda: Any) -> None:
    assert executors.target_for() == "sm_90a"
    assert executors.target_for("cpu") == "cpu"


def test_the_cpu_where_the_gpu_is_one_that_there_is_no_code_for(
    stub_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (7, 5))
    assert executors.target_for() == "cpu"


def test_a_compiler_counts_where_it_finds_its_openmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some distributions package clang without libomp. A compiler that cannot link OpenMP is not used."""
    made = tmp_path / "clang++"
    monkeypatch.setenv("CXX", str(made))
    for linked, wanted in ((1, None), (0, str(made))):
        made.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo clang version 14 || exit {linked}\n')
        made.chmod(0o755)
        assert find_compiler((), OPENMP) == wanted


def test_the_reference_where_there_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise ExecutionError("no g++")

    monkeypatch.setattr(executors, "compiler", none)
    program = deplodock.compile(torch.relu, (X,))
    assert torch.equal(program(X), X.relu())
    assert (program.compilation.target, program.executor.name) == ("sm_90a", "reference")
    assert "no CUDA device" in program.executor.why
    assert "no C++ compiler" in program.executor.why


@pytest.mark.parametrize("executor", ["simulator", "reference"])
def test_who_checks_looks_at_the_program_of_a_gpu(executor: str) -> None:
    program = deplodock.compile(torch.relu, (X,), executor=executor)
    assert (program.compilation.target, program.executor.name) == ("sm_90a", executor)


def test_torch_compile_runs_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = [], CpuProgram.run
    monkeypatch.setattr(CpuProgram, "run", lambda self, args: calls.append(len(args)) or run(self, args))
    torch._dynamo.reset()
    layer = torch.nn.Linear(33, 5)
    compiled = torch.compile(layer, backend="deplodock")
    compiled(X).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, X.expand(5, 33))
    assert len(calls) == 2  # forward and backward


def test_run_times_it_beside_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "torch.relu(torch.randn(4, 33))", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["executor"], found["ok"]) == ("cpu", True)
    assert set(found["bench"]["times"]["call"]) == {"eager", "deplodock"}


def test_what_is_changed_in_place_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """PyTorch is compared on copies of the arguments from before the program changed them."""
    assert main(["run", "-c", "x = torch.ones(5); y = x.mul_(3) + 1; y * x"]) == 0
    assert "executor: cpu" in capsys.readouterr().out


def test_compile_prints_the_text_of_a_gpu_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    code = ["-c", "torch.relu(torch.randn(4, 33))"]
    for target, expected in (([], "__global__"), (["--target", "auto"], 'extern "C" void run(')):
        assert main(["compile", *code, *target]) == 0
        assert expected in capsys.readouterr().out


def test_who_runs_a_program_of_a_gpu_gets_one() -> None:
    for executor in ("cuda", "emulator", "simulator", "reference"):
        assert executors.target_for(executor).startswith("sm_")
    assert executors.target_for("cpu") == "cpu"
