"""Programs of tensors on a GPU, for which PyTorch has operators of its own: captured without one, from fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deplodock.frontend.capture import export

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def captured(build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the torch level of a program whose tensors are made by `build`."""
    monkeypatch.setattr(export, "kind_of", lambda tensor: None)  # which refuses fake tensors
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        function, args = build()
        if isinstance(function, nn.Module):
            function.requires_grad_(False)
        return str(export.capture(function, args).module)


@pytest.mark.parametrize("name", ["rms norm", "matmul", "attention"])
def test_programs_of_the_smoke_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    smoke: Any = import_module("smoke_programs")
    assert "func.func @main" in captured(smoke.PROGRAMS[name][1], monkeypatch)


def test_an_operator_that_is_composite_on_the_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU `rms_norm` is one operator, `_fused_rms_norm`, which has a decomposition all the same."""
    assert "rsqrt" in captured(lambda: (nn.RMSNorm(8), (torch.randn(4, 8),)), monkeypatch)
