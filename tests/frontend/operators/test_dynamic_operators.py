"""Operators on tensors with a dynamic size, along a fixed dimension or along the dynamic one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.dynamic_programs import compiled, rows
from torch import nn
from torch.export import Dim

import deplodock
from deplodock.errors import CaptureError, CompileError, ShapeError

BATCH = Dim("batch", min=1, max=100)
HEIGHT, WIDTH = Dim("height", min=8, max=64), Dim("width", min=8, max=64)
COLUMNS = torch.tensor([0, 2])


def sorted_rows(x: torch.Tensor) -> list[torch.Tensor]:
    return [*x.sort(-1), *x.topk(3, -1), x.kthvalue(2, -1).values, x.median(-1).values, x.argsort(dim=0, stable=True)]


def repeated(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.repeat(2, 1), x.repeat(1, 3), x.repeat_interleave(2, 0), x.repeat_interleave(2, 1), x.tile(3)]


def moved(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.flip(0), x.flip(0, 1), x.roll(1, 0), x.roll((3, -9), (1, 0))]


def scattered(x: torch.Tensor) -> list[torch.Tensor]:
    n = x.shape[0]
    return [
        torch.zeros(4, 8).index_add(0, torch.arange(n) % 4, x),
        x.index_add(1, COLUMNS, torch.ones(n, 2)),
        torch.zeros(n, 4).scatter_add(1, torch.zeros(n, 8, dtype=torch.long), x),
        x.index_copy(1, COLUMNS, torch.ones(n, 2)),
    ]


def searched(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.searchsorted(torch.arange(8.0), x), torch.bucketize(x, torch.arange(8.0)), x.mode(-1).values]


def planes(x: torch.Tensor) -> list[torch.Tensor]:
    w = torch.linspace(-1, 1, 54).view(2, 3, 3, 3)
    return [
        F.conv2d(x, w, padding=1),
        F.conv2d(x, w, stride=2),
        F.max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool2d(x, 1),
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, scale_factor=2, mode="bilinear"),
    ]


@pytest.mark.parametrize("function", [sorted_rows, repeated, moved, scattered, searched])
def test_rows_that_vary_in_number(function: Callable[..., Any]):
    program = compiled(function, (rows(5, 8),), ({0: BATCH},))
    for n in (1, 2, 9):
        torch.testing.assert_close(program(rows(n, 8)), function(rows(n, 8)))


def test_planes_that_vary_in_size():
    program = compiled(planes, (rows(2, 3, 12, 10),), ({2: HEIGHT, 3: WIDTH},))
    for h, w in ((8, 9), (13, 8), (16, 16)):
        x = rows(2, 3, h, w)
        torch.testing.assert_close(program(x), planes(x), rtol=2e-4, atol=2e-5)


NUMBERS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    lambda x: F.interpolate(x, scale_factor=0.5),
    lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    lambda x: x * -(x.shape[2] / 3) - (x.shape[3] - x.shape[2] / 4),
    lambda x: x * x.shape[2] ** -0.5,
]


@pytest.mark.parametrize("function", NUMBERS, ids=["cubic", "half", "to a size", "arithmetic", "power"])
def test_numbers_computed_from_sizes(function: Callable[[torch.Tensor], torch.Tensor]):
    program = compiled(function, (rows(1, 2, 12, 10),), ({2: HEIGHT},))
    for h in (8, 9, 33):
        x = rows(1, 2, h, 10)
        torch.testing.assert_close(program(x), function(x), rtol=2e-4, atol=2e-5)


def test_an_unsupported_function_of_a_size_is_named():
    with pytest.raises(CompileError, match=r"x\.shape\[0\] / 3 % 2: this function of a size is not supported"):
        compiled(lambda x: x * (x.shape[0] / 3 % 2), (rows(4, 4),), ({0: BATCH},))


RECURRENT: list[Callable[[], nn.Module]] = [
    lambda: nn.GRU(8, 6, batch_first=True, bidirectional=True),  # 6 numbers are no multiple of 16 bytes
    lambda: nn.LSTM(8, 8, batch_first=True),
]


@pytest.mark.parametrize("layer", RECURRENT, ids=["gru", "lstm"])
def test_a_recurrence_over_a_batch_that_varies(layer: Callable[[], nn.Module]):
    torch.manual_seed(0)
    module = layer()
    program = compiled(module, (rows(5, 4, 8),), ({0: BATCH},))
    for n in (1, 2, 9):
        with torch.no_grad():
            torch.testing.assert_close(program(rows(n, 4, 8)), module(rows(n, 4, 8)), rtol=2e-4, atol=2e-5)


def test_a_recurrence_over_a_batch_that_varies_as_cuda():
    torch.manual_seed(0)
    module, example = nn.GRU(3, 6, batch_first=True), rows(5, 3, 3)
    program = deplodock.compile(module, (example,), dynamic_shapes=({0: BATCH},), executor="emulator")
    for n in (1, 7):
        with torch.no_grad():
            torch.testing.assert_close(program(rows(n, 3, 3)), module(rows(n, 3, 3)), rtol=2e-4, atol=2e-5)


def test_batch_statistics_of_a_batch_that_varies():
    module, plain = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    program = compiled(module, (rows(5, 8),), ({0: Dim("batch", min=2, max=100)},))
    for n in (2, 9):
        torch.testing.assert_close(program(rows(n, 8)), plain(rows(n, 8)), rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(module.running_var, plain.running_var)


def halves(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 2, 4).sum(1)


def every_other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[::2] + y


@pytest.mark.parametrize(("function", "each"), [(halves, [2]), (every_other, [2, 1])])
def test_a_multiple_of_a_size(function: Callable[..., torch.Tensor], each: Sequence[int]):
    half = Dim("half", min=1, max=50)
    shapes = tuple({0: n * half if n > 1 else half} for n in each)
    program = compiled(function, tuple(rows(3 * n, 4) for n in each), shapes)
    for size in (1, 2, 8):
        args = [rows(size * n, 4) for n in each]
        torch.testing.assert_close(program(*args), function(*args))
    with pytest.raises(ShapeError, match="dimension 0 is 7, not 6"):
        program(*(rows(size, 4) for size in (7, 3)[: len(each)]))


def test_a_place_that_must_exist():
    """For an empty tensor `x[-1]` raises an error, as in PyTorch."""
    program = compiled(lambda x: x[-1], (rows(5, 8),), ({0: Dim("batch", min=0, max=100)},))
    torch.testing.assert_close(program(rows(1, 8)), rows(1, 8)[-1])
    with pytest.raises(ShapeError, match="the size batch is 0, outside of 1 to 100"):
        program(torch.zeros(0, 8))


def shifted_loss(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x[:, :-1].reshape(-1, 5), x[:, 1:].argmax(-1).reshape(-1))


def test_sizes_at_which_views_are_written_in_another_way():
    """Sizes for which PyTorch expresses reshapes and transposes by other operators."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    program = compiled(layer, (rows(5, 4, 8),), ({0: BATCH},))
    for n in (1, 3):
        with torch.no_grad():
            torch.testing.assert_close(program(rows(n, 4, 8)), layer(rows(n, 4, 8)), rtol=2e-4, atol=2e-5)
    program = compiled(shifted_loss, (rows(3, 7, 5),), ({0: BATCH, 1: Dim("time", min=2, max=100)},))
    for n, t in ((1, 2), (4, 9)):
        torch.testing.assert_close(program(rows(n, t, 5)), shifted_loss(rows(n, t, 5)))


def test_a_program_that_is_another_one_at_a_single_size():
    with pytest.raises(CaptureError, match="where batch is 7: .*sub.Tensor .* becomes add.Tensor"):
        compiled(lambda x: x + 1 if x.shape[0] == 7 else x - 1, (rows(5, 8),), ({0: BATCH},))
