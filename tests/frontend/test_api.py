"""The public API: compiled functions, their printed levels, refused arguments, and the torch.compile backend."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

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


REFUSED_BELOW: dict[str, Any] = {"schedule": "block=7"}
"""Option that `plan-schedules` refuses: below the tensor level."""


def test_a_program_is_lowered_as_far_as_its_executor_reads() -> None:
    x = torch.randn(3, 4)
    compiled = deplodock.compile(torch.relu, (x,), executor="reference")
    assert torch.equal(compiled(x), torch.relu(x))
    assert "convert-tensor-to-loop" not in dict(compiled.compilation.seconds)
    assert "loop.nest" in compiled.ir("loop")
    assert "convert-tile-to-kernel" not in dict(compiled.compilation.seconds)
    assert [k.name for k in compiled.kernels] == ["k0"]
    simulated = deplodock.compile(torch.relu, (x,), executor="simulator")
    assert "convert-tile-to-kernel" in dict(simulated.compilation.seconds)


def test_the_reference_takes_what_only_lower_levels_refuse() -> None:
    x = torch.randn(3, 4)
    compiled = deplodock.compile(torch.relu, (x,), executor="reference", **REFUSED_BELOW)
    assert torch.equal(compiled(x), torch.relu(x))
    for read in (compiled.check, lambda: compiled.kernels, lambda: compiled.ir("tile"), lambda: compiled.remarks):
        with pytest.raises(deplodock.CompileError, match="powers of two in block, but got 7"):
            read()
    for executor in ("auto", "simulator", "emulator"):
        with pytest.raises(deplodock.CompileError, match="powers of two in block, but got 7"):
            deplodock.compile(torch.relu, (x,), executor=executor, **REFUSED_BELOW)
    with pytest.raises(deplodock.CompileError, match="unknown executor 'abacus'; there are auto, cuda, cpu"):
        deplodock.compile(torch.relu, (x,), executor="abacus")


@pytest.mark.parametrize("gradients", [False, True])
def test_torch_compile_lowers_as_far_as_the_executor_reads(gradients: bool) -> None:
    x = torch.randn(3, 4, requires_grad=gradients)
    options = {"executor": "reference", **REFUSED_BELOW}
    assert torch.equal(torch.compile(torch.relu, backend="deplodock", options=options)(x), torch.relu(x))
    with pytest.raises(BackendCompilerFailed, match="powers of two in block, but got 7"):
        torch.compile(torch.sin, backend="deplodock", options={**options, "executor": "simulator"})(x)


def test_other_shapes_are_refused() -> None:
    compiled = deplodock.compile(torch.relu, (torch.randn(3, 4),))
    with pytest.raises(deplodock.CompileError, match=r"\[3, 4\].*\[4, 4\]"):
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


class Shifted:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by

    by = 2.0


def test_any_callable_object() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(deplodock.compile(Shifted(), (x,))(x), x + 2)


def loop(n: torch.Tensor, x: torch.Tensor) -> object:
    return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (n, x))


X = torch.randn(3, 3)
REFUSED = {
    "not callable": (3, (X,), "int"),
    "a tensor for the arguments": (torch.relu, X, "example_args.*Tensor"),
    "no arguments": (torch.relu, None, "example_args.*NoneType"),
    "exits": (lambda x: sys.exit(3), (X,), r"test_api\.py:\d+.*SystemExit"),
    "control flow": (loop, (torch.tensor(3), X), r"test_api\.py:\d+: torch.while_loop\(...\): a loop"),
    "effects": (torch.linalg.inv, (X,), "linalg"),
    "complex": (torch.relu, (torch.randn(3, dtype=torch.complex64),), "complex"),
    "branch on data": (lambda x: x if x.sum() > 0 else -x, (X,), r"test_api\.py:\d+"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, args, message = REFUSED[name]
    with pytest.raises(deplodock.CompileError, match=message) as caught:
        deplodock.compile(function, args)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_what_is_changed_in_place_may_not_share_memory() -> None:
    def add_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    store = torch.arange(6.0)
    compiled = deplodock.compile(add_one, (torch.zeros(3), torch.zeros(3)))
    torch.testing.assert_close(compiled(store[:3], store[3:]), store[3:] * 2)  # parts that do not meet
    torch.testing.assert_close(store[:3], torch.arange(3.0) + 1)
    for a, b in ((store[:3], store[2:5]), (store[:1].expand(3), torch.zeros(3))):
        with pytest.raises(deplodock.CompileError, match="a: changed in place, and shares memory"):
            compiled(a, b)


def test_arguments_without_plain_memory() -> None:
    x = torch.randn(3)
    compiled = deplodock.compile(torch.relu, (x,), executor="simulator")
    negative = torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag
    torch.testing.assert_close(compiled(negative), torch.relu(x))
    assert negative.is_neg()
    with pytest.raises(deplodock.CompileError, match="meta"):
        compiled(x.to("meta"))


def test_torch_compile_of_sizes_that_vary() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.randn(8, 4)
    compiled = torch.compile(lambda x: torch.relu(x @ weight) * x.shape[0], backend="deplodock", dynamic=True)
    for n in (5, 2, 70):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x), torch.relu(x @ weight) * n, rtol=1e-5, atol=1e-4)


CHECKOUT = """
import sys
from importlib import invalidate_caches, metadata

find = metadata.MetadataPathFinder.find_distributions
metadata.MetadataPathFinder.find_distributions = lambda *a: (d for d in find(*a) if d.metadata["Name"] != "deplodock")
import deplodock

invalidate_caches()
assert "torch" not in sys.modules
import torch

add = torch.compile(lambda x: x + 1, backend="deplodock", options={"executor": "reference"})
print(deplodock.__version__, add(torch.ones(2)).tolist())
"""


def test_torch_compile_finds_a_checkout_that_is_not_installed() -> None:
    done = subprocess.run([sys.executable, "-c", CHECKOUT], capture_output=True, text=True, check=False)
    project = tomllib.loads((Path(deplodock.__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (done.stdout, done.returncode) == (f"{project['version']} [2.0, 2.0]\n", 0), done.stderr
