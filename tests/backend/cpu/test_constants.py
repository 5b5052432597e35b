"""Prepacked weights: results of constant launches are reused by later calls, until the weights change."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.host.calls import building
from deplodock.errors import ExecutionError
from deplodock.extras.artifact.programs import load

building().result()  # so that the second call of a program is made without Python

PACKED = "block=4,16 chunk=64 pack=1"


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(64, 96).requires_grad_(False).eval()


def packed(module: nn.Module, x: torch.Tensor, **options: object) -> deplodock.CompiledFunction:
    """Compiles a module for the CPU with prepacked weights."""
    options = {"target": "cpu", "schedule": PACKED, "prepack_weights": True} | options
    return deplodock.compile(module, (x,), **options)  # pyright: ignore[reportArgumentType]


def launched(program: deplodock.CompiledFunction, x: torch.Tensor) -> int:
    """Returns the number of launches of a call."""
    trace = program.executor.trace
    assert trace is not None
    return len(trace(program.captured.bind((x,), {})))


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-5)


def test_packed_once() -> None:
    module, x = linear(), torch.randn(4, 64)
    program, always = packed(module, x), packed(module, x, prepack_weights=False)
    assert [launched(p, x) for p in (program, always)] == [1, 2]
    assert "{constant}" in program.ir("kernel")
    assert "{constant}" not in always.ir("kernel")
    memory = program.executor.program._constants.memory
    for _ in range(4):
        x = torch.randn(4, 64)
        close(program(x), module(x))
    assert program.executor.program._constants.memory is memory
    assert memory.nbytes == 64 * 96 * 4


@pytest.mark.parametrize("change", [lambda w: w.add_(1), lambda w: w.copy_(torch.ones(96, 64))])
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_weights_that_are_changed(change: Callable[[torch.Tensor], object], calls: int) -> None:
    """The weights change before the first call, after one call through Python, or after several repeated calls."""
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x)
    for _ in range(calls):
        close(program(x), module(x))
    for _ in range(3):
        change(module.weight)
        for _ in range(3):
            close(program(x), module(x))


def test_weights_that_are_replaced() -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x)
    for seed in range(3):
        module.weight.data = linear(seed).weight.data * 2
        for _ in range(3):
            close(program(x), module(x))


UNCOUNTED: list[Callable[[torch.Tensor], object]] = [
    lambda w: w.data.copy_(torch.ones(96, 64)),
    lambda w: w.data.neg_(),
    lambda w: w.detach().numpy().fill(2),
    lambda w: torch.from_dlpack(w.detach()).add_(1),
    lambda w: w.detach().numpy().__setitem__((0, 0), 100),
    lambda w: w.detach().numpy().__setitem__((-1, -1), 100),
]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("change", UNCOUNTED)
def test_changes_that_pytorch_does_not_count(change: Callable[[torch.Tensor], object], calls: int) -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x)
    for _ in range(calls):
        close(program(x), module(x))
    version = module.weight._version
    change(module.weight)
    module.weight.requires_grad_(False)
    assert module.weight._version == version
    for _ in range(3):
        close(program(x), module(x))


@pytest.mark.parametrize("calls", [1, 4])
def test_refresh(calls: int) -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x)
    for row in range(3):
        for _ in range(calls):
            close(program(x), module(x))
        module.weight.numpy()[row, 5:9] += 100
        program.refresh()
    close(program(x), module(x))


def test_a_deep_copy_has_its_own() -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x)
    wanted = module(x)
    close(program(x), wanted)
    other = copy.deepcopy(program)
    next(b.tensor for b in other.captured.bindings if b.tensor is not None and b.tensor.dim() == 2).zero_()
    for _ in range(4):
        close(program(x), wanted)
        close(other(x), module.bias.expand(4, 96))


def test_weights_of_inference_mode() -> None:
    with torch.inference_mode():
        module, x = linear(), torch.randn(4, 64)
        program = packed(module, x)
        for _ in range(4):
            close(program(x), module(x))


def test_weights_out_of_order() -> None:
    module, x = linear(), torch.randn(4, 64)
    module.weight = nn.Parameter(module.weight.T.contiguous().T, requires_grad=False)
    assert not module.weight.is_contiguous()
    program = packed(module, x)
    for _ in range(4):
        close(program(x), module(x))
    assert launched(program, x) == 1


def test_sizes_that_vary_share_them() -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x, dynamic_shapes=({0: torch.export.Dim("n", max=16)},))
    for n in (4, 3, 16, 4):
        x = torch.randn(n, 64)
        close(program(x), module(x))
    kept = {id(p.constants.memory) for p in program.executor.program._placed.values()}
    assert len(program.executor.program._placed) == 3
    assert len(kept) == 1


def test_buffers_that_a_program_changes_are_none() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(96, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.linear(x, self.weight)
            self.weight.add_(1)
            return y

    module, x = Counting(), torch.randn(4, 64)
    program = packed(copy.deepcopy(module), x)
    assert "{constant}" not in program.ir("kernel")
    for _ in range(4):
        close(program(x), module(x))


def test_layers() -> None:
    """Equal layers become one function, whose arguments are their prepacked weights."""

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(8):  # so many operations that the layers become a function
                x = (x * 0.9).sin()
            return super().forward(x)

    torch.manual_seed(0)
    module, x = nn.Sequential(*(Layer(64, 64) for _ in range(3))).requires_grad_(False), torch.randn(4, 64)
    program = packed(module, x)
    assert "func.call @layer" in program.ir("tensor")
    assert program.ir("kernel").count("{constant}") == 3
    for _ in range(3):
        close(program(x), module(x))


def with_other_elements(module: nn.Module) -> nn.Module:
    """Returns a copy of the module with some changed elements in its parameters."""
    changed = copy.deepcopy(module)
    for tensor in changed.parameters():
        tensor.detach()[..., 1:3] = 7
    return changed


def test_artifacts_pack_weights(tmp_path: Path) -> None:
    module, x = linear(), torch.randn(4, 64)
    program = packed(module, x, prepack_weights=False)
    for name, options in (("packed", {}), ("plain", {"prepack_weights": False})):
        program.save(tmp_path / name, **options)
        loaded = load(tmp_path / name)
        assert ("{constant}" in loaded.programs["main"].ir("kernel")) == (name == "packed")
        for _ in range(4):
            close(loaded(x), module(x))
        for b in loaded.programs["main"].captured.bindings:
            if b.tensor is not None:
                b.tensor.numpy()[..., 1:3] = 7
        loaded.refresh()
        close(loaded(x), with_other_elements(module)(x))


def test_an_assertion_about_constants() -> None:
    """An assertion that fails in a constant launch is raised by the call."""

    class Picking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(96, 64))
            self.register_buffer("order", torch.arange(96))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight[self.order].T @ self.weight)

    module, x = Picking(), torch.randn(4, 64)
    program = packed(module, x, schedule=None, checked=True)
    torch.testing.assert_close(program(x), module(x), atol=1e-3, rtol=1e-4)
    assert "{constant}" in program.ir("kernel")
    module.order[3] = 96
    with pytest.raises(ExecutionError, match="index"):
        program(x)
