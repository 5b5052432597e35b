"""Capture, from Python to the torch dialect: arguments, source locations, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.dialects.support.locations import location_text
from deplodock.dialects.torch import AtenOp
from deplodock.errors import CaptureError, CompileError, ShapeError, UnsupportedError
from deplodock.frontend.capture.export import capture
from deplodock.passes.pass_manager import verify_module

X = torch.randn(3, 4)


def _ops(function: Callable[..., Any], *args: Any) -> list[str]:
    program = capture(function, args)
    verify_module(program.module)
    return [op.SCHEMA.name for op in program.module.walk() if isinstance(op, AtenOp)]


def test_parameters_are_bound_by_identity() -> None:
    module = nn.Linear(4, 2)
    program = capture(module, (X,))
    assert [(b.name, b.kind) for b in program.bindings] == [
        ("weight", "parameter"),
        ("bias", "parameter"),
        ("input", "input"),
    ]
    assert program.bindings[0].tensor is module.weight
    tensors = program.bind((X,))
    assert tensors[1] is module.bias
    assert tensors[2] is X


def test_large_operators_are_kept_whole() -> None:
    assert _ops(nn.Softmax(-1), X) == ["softmax.int"]
    assert _ops(nn.Linear(4, 4), X) == ["linear"]
    q = torch.randn(1, 2, 3, 4)
    assert _ops(nn.functional.scaled_dot_product_attention, q, q, q) == ["scaled_dot_product_attention"]
    assert _ops(lambda x: x.flip(0).tril(), X) == ["flip", "tril"]


def test_numbers_become_the_overload_for_numbers() -> None:
    assert _ops(lambda x: (x * 2 + 1) / 3 > 0.5, X) == ["mul.Scalar", "add.Scalar", "div.Scalar", "gt.Scalar"]


def test_functions_keep_the_names_of_their_parameters() -> None:
    def function(left: torch.Tensor, scale: float, *, right: torch.Tensor) -> torch.Tensor:
        return left * scale + right

    program = capture(function, (X, 2.0), {"right": X})
    assert [b.name for b in program.bindings] == ["left", "right"]
    assert program.bind((X, 2.0), {"right": X})[0] is X
    with pytest.raises(ShapeError, match=r"scale: expected 2.0, .* but got 3.0"):
        program.bind((X, 3.0), {"right": X})


def test_hostile_names_do_not_reach_the_ir() -> None:
    module = nn.Module()
    name = 'w"); #include <x> /* \u00e9'
    module.register_parameter(name, nn.Parameter(torch.ones(4)))
    module.forward = lambda x: x + getattr(module, name)
    text = str(capture(module, (X,)).module)
    assert "#" not in text
    assert "/*" not in text


def test_locations_are_the_users_lines() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    program = capture(function, (X,))
    first = inner.__code__.co_firstlineno + 1
    second = function.__code__.co_firstlineno + 1
    places = [str(location_text(op)) for op in program.module.walk() if isinstance(op, AtenOp)]
    assert [p.rpartition("test_capture.py:")[2] for p in places] == [str(first), str(second)]


def test_results_are_restored_to_their_structure() -> None:
    program = capture(lambda x: {"a": (x + 1, x), "b": [3, x * 2]}, (X,))
    assert [o.kind for o in program.outputs] == ["result", "argument", "constant", "result"]
    restored = program.restore([X + 1, X * 2], program.bind((X,)))
    assert restored["a"][1] is X
    assert restored["b"][0] == 3
    assert torch.equal(restored["b"][1], X * 2)


def test_one_value_returned_twice_is_one_result() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y

    program = capture(function, (X,))
    assert [o.index for o in program.outputs] == [0, 0]


def test_changes_of_inputs_and_buffers_are_updates() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    module = Counter()
    program = capture(module, (X,))
    (update,) = program.updates
    arguments = program.bind((X,))
    assert arguments[update[1]] is module.count
    results = [torch.full((4,), 5.0), X]
    if update[0] == 1:
        results.reverse()
    program.restore(results, arguments)
    assert module.count.tolist() == [5.0] * 4


def test_a_buffer_that_is_only_written_is_updated() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3, 4))
            self.register_buffer("unused", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x * 2)
            return x + 1

    program = capture(Recorder(), (X,))
    assert [b.name for b in program.bindings] == ["last", "x"]
    assert [argument for _, argument in program.updates] == [0]


def test_calls_unlike_the_example_are_refused() -> None:
    program = capture(torch.relu, (X,))
    for bad in (torch.randn(4, 3), X.double(), 3):
        with pytest.raises(ShapeError, match="input 0"):
            program.bind((bad,))
    with pytest.raises(ShapeError, match=r"takes 1 tensor \(input 0\), 2 given"):
        program.bind((X, X))


REFUSED: list[tuple[str, Callable[..., Any], type[CompileError], str]] = [
    ("data-dependent branch", lambda x: x if x.sum() > 0 else -x, CaptureError, r"test_capture\.py:\d+"),
    ("complex", lambda x: torch.fft.fft(x).cumprod(0), UnsupportedError, r"cumprod.*complex numbers"),
    ("factorisation", lambda x: torch.linalg.svd(x), UnsupportedError, r"torch.linalg.svd\(x\)"),
    ("random numbers", lambda x: torch.poisson(x), UnsupportedError, "poisson"),
    ("mismatched shapes", lambda x: x @ x, CaptureError, r"test_capture\.py:\d+:\d+: x @ x: RuntimeError: a and b"),
    ("Python error", lambda x: x.no_such_method(), CaptureError, "no_such_method"),
]


@pytest.mark.parametrize(("function", "error", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused_in_one_line(function: Callable[..., Any], error: type[CompileError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        capture(function, (X,))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_types_without_ir_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="x: the data type float8_e4m3fnuz is not supported"):
        capture(lambda x: x.reshape(-1), (X.to(torch.float8_e4m3fnuz),))


def test_conversions_assert_nothing_that_is_lost() -> None:
    assert _ops(lambda x: x.to(torch.bfloat16).float(), X) == ["to.dtype", "to.dtype"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32])
def test_a_number_divided_by_a_tensor(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, -3, -8, 7], dtype=dtype)
    compiled = deplodock.compile(lambda x: [7 // x, -7 // x], (x,), executor="reference")
    torch.testing.assert_close(compiled(x), [7 // x, -7 // x])


def test_one_tensor_for_two_arguments() -> None:
    """The example passes the same tensor for two arguments; later calls may pass different tensors."""
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    program = deplodock.compile(lambda a, b, c: (a - b["c"]) * c, (x, {"c": x}, x))
    torch.testing.assert_close(program(y, {"c": x}, y), ((y - x) * y).detach(), check_stride=False)
