"""The public API: compiled callables, their texts, what they refuse, and the torch.compile backend."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deplodock


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.up = nn.Linear(24, 40)
        self.down = nn.Linear(40, 24)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        h = self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * scale
        return {"sum": x + h, "hidden": h}


def test_a_module_is_called_like_itself() -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 5, 24)
    compiled = deplodock.compile(block, (x,), {"scale": 0.5})
    for value in (x, torch.randn(3, 5, 24)):
        result, expected = compiled(value, scale=0.5), block(value, scale=0.5)
        assert set(result) == {"sum", "hidden"}
        for key, tensor in expected.items():
            torch.testing.assert_close(result[key], tensor, rtol=1e-5, atol=1e-5)


def test_weights_are_those_of_the_module_not_copies() -> None:
    block, x = Block(), torch.randn(2, 24)
    compiled = deplodock.compile(block, (x,))
    with torch.no_grad():
        block.down.weight.mul_(2.0)
    torch.testing.assert_close(compiled(x)["sum"], block(x)["sum"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
def test_executors(executor: str) -> None:
    x, y = torch.randn(7, 13), torch.randn(13)
    compiled = deplodock.compile(lambda a, b: torch.softmax(a * b, -1), (x, y), executor=executor)
    torch.testing.assert_close(compiled(x, y), torch.softmax(x * y, -1))
    assert compiled.executor.name == executor


def test_other_shapes_are_refused() -> None:
    compiled = deplodock.compile(torch.relu, (torch.randn(3, 4),))
    with pytest.raises(deplodock.CompileError, match=r"\[4, 4\].*\[3, 4\]"):
        compiled(torch.randn(4, 4))
    with pytest.raises(deplodock.CompileError, match="float64"):
        compiled(torch.randn(3, 4, dtype=torch.float64))


def test_arguments_and_constants_as_results() -> None:
    x = torch.randn(4)
    compiled = deplodock.compile(lambda a: (a, a + 1, 3), (x,))
    same, plus, three = compiled(x)
    assert same is x
    assert three == 3
    torch.testing.assert_close(plus, x + 1)


def test_non_contiguous_inputs() -> None:
    x = torch.randn(6, 5).t()
    compiled = deplodock.compile(lambda a: a.sum(0), (x,), executor="simulator")
    torch.testing.assert_close(compiled(x), x.sum(0))


def test_unknown_names_are_refused() -> None:
    x = torch.randn(4)
    with pytest.raises(deplodock.CompileError, match="sm_7"):
        deplodock.compile(torch.relu, (x,), target="sm_7")
    with pytest.raises(deplodock.CompileError, match="abacus"):
        deplodock.compile(torch.relu, (x,), executor="abacus")(x)
    with pytest.raises(deplodock.CompileError, match="sky"):
        deplodock.compile(torch.relu, (x,)).ir("sky")


def test_torch_compile_backend() -> None:
    torch._dynamo.reset()
    block, x = Block().eval(), torch.randn(4, 24)
    compiled = torch.compile(block, backend="deplodock")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)["sum"], block(x)["sum"], rtol=1e-5, atol=1e-5)
