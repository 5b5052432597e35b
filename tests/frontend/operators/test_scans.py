"""Cumulative operators: values in all executors, along every dimension, and the kernels that they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import deplodock
from deplodock.dialects import loop
from deplodock.dialects.loop.work import count_work

EXECUTORS = {"reference": "cpu", "cpu": "cpu", "simulator": "sm_90a", "emulator": "sm_80"}
"""Executor -> the target that it runs here."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def all_scans(x: torch.Tensor, dim: int = 1) -> tuple[torch.Tensor, ...]:
    """Returns the results of every cumulative operator that PyTorch has for the type of `x`."""
    results = [x.cumsum(dim), (x / 100 + 1).cumprod(dim), *x.cummax(dim), *x.cummin(dim)]
    return (*results, x.logcumsumexp(dim)) if x.is_floating_point() else tuple(results)


def row(length: int) -> torch.Tensor:
    """Returns two rows with ties, a NaN and infinities, also at the ends of vectors."""
    x = torch.randn(2, length, generator=torch.Generator().manual_seed(length)).round(decimals=1)
    x[1, length // 2] = torch.nan
    x[1, min(15, length - 1)] = -torch.inf
    x[0, :3] = -torch.inf
    return x


def check(function: Callable[..., Any], *args: torch.Tensor, executor: str, **options: Any) -> None:
    """Compares the program with PyTorch."""
    program = deplodock.compile(function, args, executor=executor, target=EXECUTORS[executor], **options)
    compare(program(*args), function(*args))


def compare(results: Any, expected: Any) -> None:
    """Compares results with those of PyTorch, with the tolerance of their type."""
    for result, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
        tolerance = TOLERANCE.get(wanted.dtype, 0)
        torch.testing.assert_close(result, wanted, equal_nan=True, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("executor", "lengths"),
    [
        ("reference", (1, 16, 33, 2100)),
        ("cpu", (1, 7, 33, 512, 9000)),
        ("simulator", (1, 33, 2100)),
        ("emulator", (97, 9000)),
    ],
)
def test_values(executor: str, lengths: tuple[int, ...]) -> None:
    rows = [row(n) for n in lengths]
    check(lambda *rows: sum(map(all_scans, rows), ()), *rows, executor=executor)


@pytest.mark.parametrize("executor", ["cpu", "simulator"])
def test_every_dimension(executor: str) -> None:
    """Scans along each dimension, with strides, backwards, of a matmul's result, into a matmul, and of another scan."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator) for shape in ((3, 70, 40), (200, 3)))

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x[0]
        return (
            *(x.cumsum(d) for d in range(3)),
            y.cumsum(0),
            y.cumsum(1),
            y[:, :2].cummin(1).indices,
            y[:, :2].cumsum(0),
            y.t().cummax(1).values,
            a[:, ::2].cumsum(1),
            a.flip(1).cumsum(1).flip(1),
            a.cumsum(0).cumsum(1),
            a.cumsum(1) - a.sum(1, keepdim=True),
            (a @ a.t()).cumsum(1),
            a.cumsum(0) @ a.t(),
            a.reshape(-1).cumsum(0),
            torch.nn.functional.pad(a, (3, 4)).cumsum(1),
            a[:, 0].sum().cumsum(0),
        )

    check(function, x, y, executor=executor)


@pytest.mark.parametrize("executor", ["cpu", "simulator"])
def test_types(executor: str) -> None:
    integers = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    draws = [torch.randint(0, 2 if t == torch.bool else 100, (3, 70)).to(t) for t in integers]
    floats = [torch.randn(3, 70).to(t) for t in (torch.float64, torch.bfloat16, torch.float16)]

    def function(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return sum(((x.cumsum(1), x.cumprod(1), *x.cummax(1), *x.cummin(0)) for x in args), ())

    check(function, *draws, *floats, executor=executor)


@pytest.mark.parametrize("executor", ["cpu", "simulator"])
def test_sizes_known_only_at_run_time(executor: str) -> None:
    sizes = {0: Dim("rows", min=1, max=500), 1: Dim("length", min=1, max=9000)}
    x = torch.randn(6, 50)
    program = deplodock.compile(all_scans, (x,), executor=executor, target=EXECUTORS[executor], dynamic_shapes=(sizes,))
    for shape in ((6, 50), (1, 1), (3, 5000), (300, 7)):
        x = torch.randn(shape)
        compare(program(x), all_scans(x))


def test_gradients() -> None:
    x, w = torch.randn(4, 40, requires_grad=True), torch.randn(4, 40)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x.cumsum(1) + x.cummax(1).values + x.logcumsumexp(1) + (1 + x / 9).cumprod(1)) * w).sum()

    wanted = torch.autograd.grad(loss(x, w), x)[0]
    got = torch.autograd.grad(torch.compile(loss, backend="deplodock")(x, w), x)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_empty_dimensions() -> None:
    check(lambda x, y: (*all_scans(x), *all_scans(y)), torch.zeros(0, 3), torch.zeros(3, 0), executor="cpu")


def test_long_sums_are_as_exact_as_blocks_of_them() -> None:
    """A single chain of 2^16 roundings has an error of some 1e-5 of the result."""
    x, y = torch.rand(1, 1 << 16), torch.rand(1 << 16, 16)
    program = deplodock.compile(lambda x, y: (x.cumsum(1), y.cumsum(0)), (x, y), target="cpu")
    for result, wanted in zip(program(x, y), (x.double().cumsum(1), y.double().cumsum(0)), strict=True):
        assert ((result - wanted) / wanted).abs().max() < 2e-6


def test_one_kernel() -> None:
    """The elementwise operations before and after a scan are part of its kernel."""
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    program = deplodock.compile(lambda x: (x * 2).cumsum(1).relu(), (x,), target="cpu")
    nests = [op for op in program.compilation.at("loop").walk() if isinstance(op, loop.NestOp)]
    assert [loop.scanned_index(nest) is not None for nest in nests] == [True]


def test_work_is_linear() -> None:
    """Float operations per element, of all kernels together, and the bytes of one reading and one writing."""
    for shape in ((256, 4096), (16, 100_000)):
        x = torch.zeros(shape)
        work = count_work(deplodock.compile(lambda x: x.cumsum(1), (x,)).compilation.scheduled())
        assert [(w.flops, w.bytes) for w in work] == [(x.numel(), 8 * x.numel())]
