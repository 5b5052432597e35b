"""Variances near the end of f32's range: what ours are, and what PyTorch's are, as `docs/coverage.md` says.

PyTorch's CUDA kernels move a running mean from element to element (Welford). There is no GPU to ask here, so `welford`
computes what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import deplodock

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]

HUGE = 1e38
EXECUTORS = pytest.mark.parametrize("executor", ["reference", "emulator"])

VARIANCES: dict[str, Function] = {"var": lambda x: torch.var(x, 1), "std": lambda x: torch.std(x, 1)}
NORMS: dict[str, Function] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 1)[:, :, 0],
    "batch_norm": lambda x: F.batch_norm(x.t(), None, None, training=True).t(),
}


def run(function: Function, x: Tensor, executor: str) -> Tensor:
    """Compiles `function` and returns its result."""
    return deplodock.compile(function, (x,), executor=executor)(x)


def mean(x: Tensor) -> Tensor:
    """Returns the mean that `var_mean` computes with the variance."""
    return torch.var_mean(x, 1)[1]


def ordinary(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)) + 3


def equal(n: int, value: float = HUGE) -> Tensor:
    """Returns a row of equal elements, an ordinary row, and a row of equal elements of the other sign."""
    return torch.stack([torch.full((n,), value), ordinary(n), torch.full((n,), -value)])


def mixed(n: int) -> Tensor:
    """Returns a row of huge elements of alternating signs, and an ordinary row."""
    row = torch.full((n,), HUGE)
    row[1::2] = -HUGE
    return torch.stack([row, ordinary(n)])


def welford(row: Tensor) -> tuple[float, float]:
    """Returns mean and variance (divided by n - 1) in f32 by Welford's running mean."""
    moving, squares = np.float32(0), np.float32(0)
    with np.errstate(over="ignore"):
        for number, value in enumerate(row.numpy(), 1):
            away = value - moving
            moving = moving + away / np.float32(number)
            squares = squares + away * (value - moving)
    return float(moving), float(squares) / (len(row) - 1)


@EXECUTORS
@pytest.mark.parametrize("name", VARIANCES)
def test_equal_elements_whose_sum_is_out_of_range(name: str, executor: str) -> None:
    x, function = equal(64), VARIANCES[name]
    actual, cpu = run(function, x, executor), function(x)
    assert welford(x[0]) == (float(x[0, 0]), 0)
    assert cpu[[0, 2]].tolist() == [0, 0]
    assert actual[[0, 2]].tolist() == [inf, inf]
    torch.testing.assert_close(actual[1], cpu[1])


@EXECUTORS
def test_mean_of_equal_elements_whose_sum_is_out_of_range(executor: str) -> None:
    x = equal(64)
    actual, cpu = run(mean, x, executor), mean(x)
    assert cpu[[0, 2]].tolist() == x[[0, 2], 0].tolist()
    assert actual[[0, 2]].tolist() == [inf, -inf]
    torch.testing.assert_close(actual[1], cpu[1])


@EXECUTORS
@pytest.mark.parametrize("name", NORMS)
def test_normalised_equal_elements_whose_sum_is_out_of_range(name: str, executor: str) -> None:
    x, function = equal(64), NORMS[name]
    actual, cpu = run(function, x, executor), function(x)
    assert cpu[[0, 2]].isnan().all()
    assert actual[[0, 2]].isnan().all()
    torch.testing.assert_close(actual[1], cpu[1])


@EXECUTORS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_types(dtype: torch.dtype, executor: str) -> None:
    x = equal(64).to(dtype)
    actual = run(VARIANCES["var"], x, executor)
    assert actual[[0, 2]].tolist() == ([0, 0] if dtype == torch.float64 else [inf, inf])
    torch.testing.assert_close(actual[1], torch.var(x[1]))


@EXECUTORS
def test_long_rows(executor: str) -> None:
    x = equal(20000)
    actual = run(VARIANCES["var"], x, executor)
    assert not actual[[0, 2]].isfinite().any()
    torch.testing.assert_close(actual[1], torch.var(x[1]))


@EXECUTORS
@pytest.mark.parametrize("name", [*VARIANCES, *NORMS])
def test_mixed_signs_are_as_on_cuda(name: str, executor: str) -> None:
    """Any part of four such elements has a sum in range."""
    x, function = mixed(4), {**VARIANCES, **NORMS}[name]
    actual, cpu = run(function, x, executor), function(x)
    assert welford(x[0])[1] == inf
    assert actual[0].flatten().tolist() == ([inf] if name in VARIANCES else [0] * 4)
    torch.testing.assert_close(actual[1], cpu[1])
    if name == "std":
        assert cpu[0].isfinite()


@EXECUTORS
def test_a_rounded_mean_is_away_from_equal_elements(executor: str) -> None:
    """The sum is in range; the square of its rounding is not."""
    x = equal(11, 1.1e30)
    assert welford(x[0])[1] == 0
    assert run(VARIANCES["var"], x, executor)[[0, 2]].tolist() == [inf, inf]
    assert not run(NORMS["layer_norm"], x, executor)[[0, 2]].any()
