"""Capture of programs of CUDA tensors, for which PyTorch calls other operators, from fake tensors without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deplodock.frontend.capture import export


def captured(build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the torch-level IR of a program, whose tensors `build` makes as fake CUDA tensors."""
    monkeypatch.setattr(export, "kind_of", lambda tensor: None)  # which refuses fake tensors
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        function, args = build()
        if isinstance(function, nn.Module):
            function.requires_grad_(False)
        return str(export.capture(function, args).module)


@pytest.mark.parametrize("name", ["rms norm", "matmul", "attention"])
def test_programs_of_the_smoke_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    smoke: Any = import_module("benchmarks.common.smoke_programs")
    assert "func.func @main" in captured(smoke.PROGRAMS[name][1], monkeypatch)


def test_an_operator_that_is_composite_on_the_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """For CUDA tensors `rms_norm` is one operator, `_fused_rms_norm`, which is decomposed as well."""
    assert "rsqrt" in captured(lambda: (nn.RMSNorm(8), (torch.randn(4, 8),)), monkeypatch)


def test_nothing_is_refused_on_a_gpu_only(request: pytest.FixtureRequest) -> None:
    """Every 94th program is captured; with `--people all` every program."""
    every = 1 if request.config.getoption("--people") == "all" else 94
    script = str(Path(__file__).with_name("cuda_programs.py"))
    run = subprocess.run([sys.executable, script, str(every)], capture_output=True, text=True, timeout=600)
    assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr
