"""Functions whose sizes PyTorch takes from data, although they follow without: against PyTorch, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.errors import CompileError

Tensor = torch.Tensor
EXECUTORS = ("reference", "simulator", "emulator")

torch.manual_seed(0)
X = torch.randn(5, 20)
NUMBERS = torch.randint(0, 30, (50,))
COUNTS = torch.randint(0, 4, (20,))
ROWS = torch.tensor([True, False, True, True, False])
ELEMENTS = X > 0.5
NONE = torch.zeros(5, dtype=torch.bool)

PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "bincount": (lambda n: torch.bincount(n, minlength=40), (NUMBERS,)),
    "bincount of few": (lambda n: (n % 5).bincount(None, 5), (NUMBERS.to(torch.uint8),)),
    "bincount of nothing": (lambda n: torch.bincount(n, minlength=3), (NUMBERS[:0],)),
    "bincount, weights": (lambda n, w: torch.bincount(n, w, minlength=40), (NUMBERS, torch.randn(50))),
    "bincount, counts": (lambda n, w: torch.bincount(n, w, minlength=40), (NUMBERS.int(), torch.arange(50))),
    "cov": (torch.cov, (X,)),
    "cov of one row": (torch.cov, (X[0],)),
    "cov of one number": (lambda x: torch.cov(x, correction=0), (X[0, 0],)),
    "cov of integers": (torch.cov, (COUNTS.reshape(4, 5),)),
    "cov, f64": (lambda x: x.cov(correction=0), (X.double(),)),
    "cov, more correction than observations": (lambda x: torch.cov(x, correction=30), (X,)),
    "cov, weights": (lambda x, f, a: torch.cov(x, fweights=f, aweights=a), (X, COUNTS, torch.rand(20))),
    "cov, one weight": (lambda x, a: torch.cov(x, correction=2, aweights=a), (X, torch.rand(20))),
    "corrcoef": (torch.corrcoef, (X,)),
    "corrcoef of one row": (torch.corrcoef, (X[0],)),
    "a mask of rows": (lambda x: x[ROWS] * 2, (X,)),
    "a mask of nothing": (lambda x: x[NONE], (X,)),
    "a mask of elements": (lambda x: x[ELEMENTS].sum() + x[ELEMENTS].max(), (X,)),
    "a mask of columns": (lambda x: x[:, ELEMENTS[0]], (X,)),
    "a mask of masks": (lambda x: x[ROWS[:, None] & ELEMENTS | ELEMENTS.flip(0)], (X,)),
    "a mask and a slice": (lambda x: x[..., ROWS, ::2], (X[None],)),
    "masked_select": (lambda x: torch.masked_select(x, ELEMENTS), (X,)),
    "masked_select of rows": (lambda x: x.t().masked_select(ROWS), (X,)),
    "combinations": (lambda x: torch.combinations(x[0]), (X,)),
    "combinations of three": (lambda x: torch.combinations(x[0, :6], 3), (X,)),
    "combinations, repeated": (lambda x: torch.combinations(x[0, :6], r=3, with_replacement=True), (X,)),
    "combinations of too few": (lambda x: torch.combinations(x[0, :2], 3), (X,)),
}


@pytest.mark.filterwarnings("ignore:cov")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, args = PROGRAMS[name]
    want = function(*args)
    for executor in EXECUTORS[:: 2 if "bincount" in name or "mask" in name else 3]:
        got = deplodock.compile(function, args, executor=executor)(*args)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_more_bins_than_were_asked_for(executor: str) -> None:
    """PyTorch would return a longer result, so the program raises an error."""
    program = deplodock.compile(lambda n: torch.bincount(n, minlength=40), (NUMBERS,), executor=executor)
    with pytest.raises(CompileError, match=r"bincount: a size that depends on data: a number is outside \[0, 40\)"):
        program(NUMBERS + 20)


def test_covariances_that_pytorch_refuses() -> None:
    for arguments in ({}, {"fweights": torch.rand(20)}, {"aweights": COUNTS}, {"aweights": torch.rand(7)}):
        x = X if arguments else X.reshape(1, 5, 20)
        with pytest.raises(CompileError, match="expected"):
            deplodock.compile(lambda x, given=arguments: torch.cov(x, **given), (x,), executor="reference")
    with pytest.raises(CompileError, match="expected"):
        deplodock.compile(torch.corrcoef, (X.reshape(1, 5, 20),), executor="reference")


@pytest.mark.parametrize("mask", [lambda x: (x > 0).roll(1, 0), lambda x: ((x > 0).flip(0) & (x < 1)).repeat(2)])
def test_masks_of_a_transform(mask: Callable[[Tensor], Tensor]) -> None:
    """Inside of `vmap` tensors have no type of their own and no contents during tracing."""
    function = torch.vmap(mask)
    assert torch.equal(deplodock.compile(function, (X,), executor="reference")(X), function(X))


def test_a_mask_that_the_program_changes() -> None:
    """A mask that the program changes is no constant, so the program is refused."""
    mask = ROWS.clone()

    def changed(x: Tensor) -> Tensor:
        mask.logical_not_()
        return x[mask]

    with pytest.raises(CompileError):
        deplodock.compile(changed, (X,), executor="reference")


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d, (5, 6)), (nn.BatchNorm1d, (4, 6, 3)), (nn.BatchNorm2d, (2, 6, 3, 4))]
)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_batch_norm_with_means_over_all_batches(layer: Any, shape: tuple[int, ...], options: dict[str, bool]) -> None:
    ours = nn.Sequential(nn.Flatten(0, 0), layer(6, momentum=None, **options))
    theirs, x = copy.deepcopy(ours), torch.randn(shape) * 3 + 1
    program = deplodock.compile(ours, (x,), executor="reference")
    for _ in range(3):
        x = torch.randn(shape) * 2 - 1
        torch.testing.assert_close(program(x), theirs(x), rtol=1e-4, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-4, atol=1e-5)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(deplodock.compile(ours, (x,), executor="reference")(x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shift", [0, 3, -7, 1000])
def test_roll_of_all_elements(shift: int) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    program = deplodock.compile(
        lambda x: torch.roll(x, shift), (X,), executor="reference", dynamic_shapes={"x": {0: rows}}
    )
    for n in (2, 5, 33):
        x = torch.randn(n, 20)
        assert torch.equal(program(x), torch.roll(x, shift))


def test_a_mask_inside_of_a_transform() -> None:
    """A mask that is constant outside of `vmap` is not constant inside: refused, as in PyTorch."""

    def selected(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row, mask: row[mask].sum())(x, ELEMENTS)

    with pytest.raises(RuntimeError):
        selected(X)
    with pytest.raises(CompileError):
        deplodock.compile(selected, (X,), executor="reference")
