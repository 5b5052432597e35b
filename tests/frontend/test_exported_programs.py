"""Compilation of programs exported by torch.export."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import deplodock
from deplodock.errors import CaptureError, ShapeError


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.linear = nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, *, b: list[torch.Tensor], c: int = 2) -> dict[str, Any]:
        self.calls.add_(1)
        return {"sum": self.linear(a) + b[0] * c, "tail": b[1][1:] * 2, "calls": self.calls + 0}


def compiled(program: Any, *args: Any, **options: Any) -> Any:
    return deplodock.compile(program, *args, executor="reference", **options)


def test_a_program_with_and_without_arguments() -> None:
    module, x = nn.Sequential(nn.Linear(6, 4), nn.GELU()).eval(), torch.randn(3, 6)
    program = export(module, (x,))
    for function in (compiled(program), compiled(program, (x,)), compiled(program.run_decompositions(), (x,))):
        torch.testing.assert_close(function(x), module(x))
    with pytest.raises(CaptureError, match="another structure"):
        compiled(program, (x, x))


def test_sizes_that_vary_stay_so_after_saving() -> None:
    module, size = Counted(), Dim("size", max=100)
    a, b = torch.randn(3, 4), [torch.randn(3, 4), torch.randn(7, 2)]
    shapes = {"a": {0: size}, "b": [{0: size}, {0: 2 * size + 1}], "c": None}
    saved = io.BytesIO()
    torch.export.save(export(module, (a,), {"b": b, "c": 3}, dynamic_shapes=shapes), saved)
    saved.seek(0)
    function = compiled(torch.export.load(saved))
    for calls, n in enumerate((3, 7, 1), 1):
        a, b = torch.randn(n, 4), [torch.randn(n, 4), torch.randn(2 * n + 1, 2)]
        found, want = function(a, b=b, c=3), module(a, b=b, c=3)
        torch.testing.assert_close((found["sum"], found["tail"]), (want["sum"], want["tail"]))
        assert found["calls"] == calls
    with pytest.raises(ShapeError, match="outside of"):
        function(torch.randn(101, 4), b=[torch.randn(101, 4), torch.randn(203, 2)], c=3)


def test_a_graph_module_is_taken_and_torchscript_is_refused() -> None:
    module, x = nn.Linear(6, 4), torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.fx.symbolic_trace(module), (x,))(x), module(x))
    for script in (torch.jit.script(module), torch.jit.trace(module, (x,))):
        with pytest.raises(CaptureError, match="TorchScript"):
            compiled(script, (x,))
    with pytest.raises(CaptureError, match="expected a tuple of arguments, but got NoneType"):
        compiled(module)
