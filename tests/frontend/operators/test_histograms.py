"""Histograms over edges of bins, and fractional max pooling with the caller's samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import deplodock


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


EDGES = torch.cat([torch.tensor([-2.0, 2.0, -1.2, 0.4, 1.2, float("nan"), float("inf")]), rand(40)])
UNEVEN = torch.tensor([-2.0, 0.0, 0.25, 1.0])
WEIGHT = torch.linspace(0, 1, 47)
IMAGE, VOLUME = rand(2, 3, 16, 13), rand(1, 2, 9, 10, 11)
NANS = IMAGE.clone()
NANS[0, 0, 3:6, 3:8] = float("nan")
SAMPLES = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
IN_TIME = torch.rand(1, 2, 3, generator=torch.Generator().manual_seed(1))

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "range": (lambda x: torch.histogram(x, bins=5, range=(-2.0, 2.0)), (EDGES,)),
    "of all": (lambda x: torch.histogram(x, bins=7), (rand(45),)),
    "double": (lambda x: torch.histogram(x, bins=7), (rand(45, dtype=torch.float64),)),
    "edges": (lambda x, b: torch.histogram(x, b), (EDGES, UNEVEN)),
    "density": (
        lambda x, w: torch.histogram(x, bins=4, range=(-1.0, 1.0), weight=w, density=True),
        (EDGES, WEIGHT),
    ),
    "equal elements": (lambda x: torch.histogram(x, bins=3), (torch.ones(4),)),
    "no elements": (lambda x: torch.histogram(x, bins=3), (torch.ones(0),)),
    "two columns": (lambda x: torch.histogramdd(x, bins=[3, 4], range=[-1.0, 1.0, -2.0, 2.0]), (rand(50, 2),)),
    "density of columns": (lambda x: torch.histogramdd(x, bins=[3, 4], density=True), (rand(50, 2),)),
    "edges of columns": (lambda x, a: torch.histogramdd(x, bins=[a, a[1:]]), (rand(5, 10, 2), UNEVEN)),
    "edges that are arguments": (lambda x, a: torch.histogramdd(x, bins=[a]), (rand(9, 1), UNEVEN)),
    "weights": (lambda x, w: torch.histogramdd(x, bins=3, weight=w), (rand(47, 3), WEIGHT)),
    "pool": (lambda x, s: F.fractional_max_pool2d(x, 2, (5, 4), None, True, s), (IMAGE, SAMPLES)),
    "ratio": (lambda x, s: F.fractional_max_pool2d(x, (2, 3), None, (0.5, 0.4), True, s), (IMAGE, SAMPLES)),
    "one window": (lambda x, s: F.fractional_max_pool2d(x, (2, 3), (1, 1), None, True, s), (IMAGE, SAMPLES)),
    "NaN": (lambda x, s: F.fractional_max_pool2d(x, 3, (5, 4), None, True, s), (NANS, SAMPLES)),
    "no batch": (lambda x, s: F.fractional_max_pool2d(x, 3, (5, 4), None, True, s), (IMAGE[0], SAMPLES[:1])),
    "3-D": (lambda x, s: F.fractional_max_pool3d(x, (2, 3, 2), (3, 4, 5), None, True, s), (VOLUME, IN_TIME)),
}


def assert_same(results: Any, expected: Any) -> None:
    for result, value in zip(pytree.tree_leaves(results), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(result, value, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_what_pytorch_computes(name: str) -> None:
    function, args = PROGRAMS[name]
    assert_same(deplodock.compile(function, args, executor="reference")(*args), function(*args))


def test_on_the_cores() -> None:
    chosen = [PROGRAMS[name] for name in ("range", "two columns", "NaN", "3-D")]
    leaves = [a for _, args in chosen for a in args]

    def program(*leaves: Tensor) -> Any:
        rest = iter(leaves)
        return [function(*(next(rest) for _ in args)) for function, args in chosen]

    assert_same(deplodock.compile(program, leaves, target="cpu")(*leaves), program(*leaves))


@pytest.mark.parametrize("name", ["pool", "3-D"])
def test_gradient(name: str) -> None:
    function, (x, samples) = PROGRAMS[name]
    compiled = torch.compile(lambda x, s: function(x, s)[0], backend="deplodock", options={"executor": "reference"})
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(mine, samples).square().sum().backward()
    function(theirs, samples)[0].square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_windows_that_are_drawn() -> None:
    """Without samples of the caller, windows differ from eager PyTorch's; each result is an element of the image."""
    pooled = deplodock.compile(lambda x: F.fractional_max_pool2d(x, 2, (5, 4)), (IMAGE,), executor="reference")(IMAGE)
    assert torch.isin(pooled, IMAGE).all()
