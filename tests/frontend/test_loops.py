"""Loops of PyTorch inside a program: scan, map, associative_scan and while_loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree
from xdsl.dialects.func import FuncOp

import deplodock
from deplodock.dialects.tensor import PrefixScanOp, ScanOp
from deplodock.errors import UnsupportedError
from deplodock.frontend.capture.eager_fallback import FallbackWarning

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def cell(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    new = torch.tanh(x + h)
    return new, new * 2


def recurrence(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        return cell(h @ w, x)

    return scan(step, h, x), scan(step, h, x.t(), dim=1, reverse=True)


def several_carries(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    """Carries of two types, an output that is a carry, and an output of booleans."""

    def step(carries: Any, slices: Any) -> Any:
        h, n = carries
        new = torch.tanh(slices[0] @ w + h)
        return (new, n + 1), {"carry": new.clone(), "mask": slices[1] > 0.5}

    return scan(step, (h, torch.zeros((), dtype=torch.int64)), (x, x + 1))


def nested_and_mapped(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    def outer(h: torch.Tensor, x: torch.Tensor) -> Any:
        last, rows = scan(lambda a, r: (a + r, a * r), h, torch.stack([x, x * 2, x + h]))
        return last, rows.sum(0) @ w

    return scan(outer, h, x), mapped(x, h, w)


def mapped(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    return map_over(lambda row: torch.sin(row) @ w + h, x)


def counted(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    """Counters that are integers and tensors, that rise and fall, and one of no step at all."""
    up = while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, h * 0.5 + i), (torch.tensor(0), h))
    down = while_loop(lambda i, h: i > 0, lambda i, h: (i - 2, torch.tanh(h @ w)), (torch.full((), 7), h))
    integer = while_loop(lambda i, h: i <= 3, lambda i, h: (i + 1, h + i * 2), (0, h))[1]
    none = while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, h * 2), (torch.tensor(9), h))
    return up, down, integer, none


def combined(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    """Prefix scans, and a recurrence of a state-space model, whose elements are pairs."""

    def pair(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    sums = associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")
    largest = associative_scan(torch.maximum, x, 1, reverse=True, combine_mode="generic")
    return sums, largest, associative_scan(pair, (x, x + 1), 0, combine_mode="generic")


def arguments(columns: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.rand(columns, columns), torch.rand(columns), torch.rand(columns, columns)


PROGRAMS = [recurrence, several_carries, nested_and_mapped, counted, combined]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_loop_gives_what_pytorch_gives(program: Program) -> None:
    args = arguments(3)  # Rows of 12 bytes, which are padded to 16.
    compiled = deplodock.compile(program, args, executor="reference")
    results, expected = compiled(*args), program(*args)
    torch.testing.assert_close(results, expected)
    assert pytree.tree_structure(results) == pytree.tree_structure(expected)


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
def test_a_loop_runs_as_launches(executor: str) -> None:
    args = arguments(4)
    compiled = deplodock.compile(recurrence, args, executor=executor)
    torch.testing.assert_close(compiled(*args), recurrence(*args))
    module = compiled.compilation.at("torch")
    scans = [op for op in module.walk() if isinstance(op, ScanOp)]
    assert [scan.steps for scan in scans] == [4, 4]
    assert len([f for f in module.ops if isinstance(f, FuncOp)]) == 2  # Equal steps are one function.


def test_a_combination_of_one_operator_is_a_prefix_scan() -> None:
    module = deplodock.compile(combined, arguments(4), executor="reference").compilation.at("tensor")
    kinds = [op.kind.data for op in module.walk() if isinstance(op, PrefixScanOp)]
    assert sorted(map(str, kinds)) == ["add", "max"]


def test_a_loop_under_torch_compile_has_gradients() -> None:
    def program(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        last, rows = recurrence(x, h, w)[0]
        return last.sum() + rows.square().sum() + mapped(x, h, w).sum()

    args, same = ([a.clone().requires_grad_() for a in arguments(4)] for _ in range(2))
    compiled = torch.compile(program, backend="deplodock", fullgraph=True, options={"executor": "reference"})
    compiled(*args).backward()
    program(*same).backward()
    torch.testing.assert_close([a.grad for a in args], [a.grad for a in same])


def depends_on_data(x: torch.Tensor) -> Any:
    return while_loop(lambda x: x.sum() < 100, lambda x: (x * 2,), (x,))


def bound_is_an_argument(n: torch.Tensor, x: torch.Tensor) -> Any:
    return while_loop(lambda i, x, n: i < n, lambda i, x, n: (i + 1, x * 2, n.clone()), (torch.tensor(0), x, n))


LIMIT = torch.tensor(0)


def start_may_change(x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (LIMIT.clone(), x))


def random_step(x: torch.Tensor) -> Any:
    return scan(lambda h, x: (h + torch.rand_like(h), x * 2), x[0], x)


@torch.library.custom_op("deplodock_loops::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def refused_step(x: torch.Tensor) -> Any:
    return scan(lambda h, x: (doubled(h) + x, h.sum()), x[0], x)


@pytest.mark.parametrize(
    ("program", "args", "reason"),
    [
        (depends_on_data, (torch.ones(3),), "number of steps depends on the values"),
        (bound_is_an_argument, (torch.tensor(3), torch.ones(3)), "number of steps depends on the values"),
        (start_may_change, (torch.ones(3),), "number of steps depends on the values"),
        (random_step, (torch.ones(3, 2),), "random numbers"),
        (refused_step, (torch.ones(3, 2),), "operators of this library"),
    ],
)
def test_a_loop_that_is_not_supported_is_refused(program: Any, args: Any, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as error:
        deplodock.compile(program, args)
    assert "test_loops.py" in str(error.value)


def test_a_loop_that_depends_on_data_can_be_left_to_pytorch() -> None:
    x = torch.ones(3)
    with pytest.warns(FallbackWarning, match="while_loop"):
        compiled = deplodock.compile(lambda x: depends_on_data(x * 2)[0] + 1, (x,), executor="cpu", fallback="eager")
    torch.testing.assert_close(compiled(x), depends_on_data(x * 2)[0] + 1)
