"""Operators of the user that change tensors in place, left to PyTorch between kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import deplodock
from deplodock.errors import UnsupportedError
from deplodock.frontend.capture.eager_fallback import FallbackWarning


@torch.library.custom_op("deplodock_tests::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, factor: float) -> None:
    x.mul_(factor)


@torch.library.custom_op("deplodock_tests::accumulate", mutates_args={"total"})
def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return x * 2


@torch.library.custom_op("deplodock_tests::both", mutates_args={"a", "b"})
def both(a: torch.Tensor, b: torch.Tensor, others: list[torch.Tensor]) -> None:
    a.add_(others[0])
    b.copy_(others[1] * a.sum())


@accumulate.register_fake
def _(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def value(x: torch.Tensor) -> Any:
    y = torch.relu(x) + 1
    scale_(y, 3.0)
    return y * 2


def argument(x: torch.Tensor) -> Any:
    return accumulate(x, x * 1), x + 1


def part_of_an_argument(x: torch.Tensor) -> Any:
    scale_(x[1], 2.0)
    return x * 2


def views_of_a_value(x: torch.Tensor) -> Any:
    """Rows and columns of one value, as changed and as read arguments."""
    y = x * 2
    scale_(y[1:3], 5.0)
    z = accumulate(y[0], y[1])
    both(y[:, 0], y[:, 1], [y[:, 2], y[:, 0].clone()])
    return y, y.sum(), z


def transposed(x: torch.Tensor) -> Any:
    y = x.t() * 2
    scale_(y[0], 2.0)
    return y @ x


PROGRAMS = [value, argument, part_of_an_argument, views_of_a_value, transposed]


@pytest.mark.parametrize("program", PROGRAMS)
def test_changes_are_those_of_eager_pytorch(program: Callable[..., Any]) -> None:
    x = torch.arange(12.0).reshape(4, 3) - 5
    same = x.clone()
    with pytest.warns(FallbackWarning, match="changes a tensor in place"):
        compiled = deplodock.compile(program, (x.clone(),), executor="reference", fallback="eager")
    torch.testing.assert_close(compiled(x), program(same))
    torch.testing.assert_close(x, same)


def test_changes_under_torch_compile() -> None:
    options = {"executor": "cpu", "fallback": "eager"}
    compiled = torch.compile(views_of_a_value, backend="deplodock", fullgraph=True, options=options)
    x = torch.arange(12.0).reshape(4, 3) - 5
    with pytest.warns(FallbackWarning, match="changes a tensor in place"):
        results = compiled(x)
    torch.testing.assert_close(results, views_of_a_value(x))


def test_the_operator_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"scale_\(y, 3.0\).*changes a tensor in place.*fallback=\"eager\""):
        deplodock.compile(value, (torch.ones(2),))
