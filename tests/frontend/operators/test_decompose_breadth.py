"""Windows, scans, sorting, scatters, interpolation and special functions: the corners, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("expecttest")

from conformance import opdb
from conformance.levels import down_to
from conformance.tracing import Tracer, tracer

from deplodock.errors import CompileError

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def traced():
    with tracer() as t:
        yield t


FAMILIES = {
    "convolution": ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
    "pooling": ["max_pool2d", "avg_pool1d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_max_pool1d"],
    "losses": ["cross_entropy", "nll_loss", "huber_loss", "kl_div", "binary_cross_entropy", "smooth_l1_loss"],
    "resampling": ["interpolate", "grid_sample", "pixel_shuffle", "unfold", "upsample_nearest"],
}
PLAIN = ["cumsum", "cumprod", "cummax", "logcumsumexp", "sort", "topk", "kthvalue", "median", "mode", "searchsorted"]
PLAIN += ["scatter", "scatter_reduce", "index_add", "index_put", "masked_scatter", "put", "histc", "cdist", "lgamma"]
PLAIN += ["digamma", "erfinv", "i0", "polygamma", "diagonal_scatter", "native_batch_norm", "bucketize"]
NAMES = [*PLAIN, *(f"nn.functional.{name}" for names in FAMILIES.values() for name in names)]


@pytest.mark.parametrize("name", NAMES)
def test_samples(traced: Tracer, name: str) -> None:
    """Four samples at the tensor level, two of each variant of an operator; one in the simulator, too."""
    found = opdb.operators([name])
    assert found
    for op in found:
        drawn = list(opdb.samples(op, torch.float32, 4 if len(found) == 1 else 2))
        verdicts = [opdb.judge(traced, op, i, sample) for i, sample in drawn]
        verdicts += [opdb.judge(traced, op, i, sample, down_to("kernel")) for i, sample in drawn[1:2]]
        assert not [v for v in verdicts if v.kind in ("wrong", "crash")]
        assert any(v.kind == "right" for v in verdicts)


def _scatter(index: list[int], **arguments: Any) -> Callable[..., torch.Tensor]:
    return lambda x, src: x.scatter_reduce(0, torch.tensor(index), src, **arguments)


HARD = torch.tensor([1.0, NAN, -INF, 2.0, 2.0, INF, -0.0, 0.0, NAN, -3.0])

CORNERS: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "cummax with NaN and ties": (lambda x: torch.cummax(x, 0), [HARD]),
    "cummin with NaN and ties": (lambda x: torch.cummin(x, 0), [HARD]),
    "logcumsumexp from -inf": (lambda x: x.logcumsumexp(0), [torch.tensor([-INF, -INF, 1.0, 90.0, 0.0])]),
    "logcumsumexp to inf": (lambda x: x.logcumsumexp(0), [torch.tensor([0.0, INF, 1.0])]),
    "cumsum in int8 is int64": (lambda x: x.cumsum(0), [torch.full((9,), 100, dtype=torch.int8)]),
    "stable sort with NaN": (lambda x: x.sort(stable=True), [HARD]),
    "descending stable sort with NaN": (lambda x: x.sort(stable=True, descending=True), [HARD]),
    "sort of truth values": (lambda x: x.sort(stable=True), [HARD > 0]),
    "median with NaN": (lambda x: x.median(0), [HARD]),
    "nanmedian": (lambda x: x.nanmedian(), [HARD]),
    "max_pool of -inf and NaN": (lambda x: F.max_pool1d(x[None], 2, 1, 1, return_indices=True), [HARD]),
    "avg_pool in ceil mode": (lambda x: F.avg_pool1d(x[None], 3, 2, 1, ceil_mode=True), [torch.arange(8.0)]),
    "avg_pool without its padding": (
        lambda x: F.avg_pool1d(x[None], 3, 2, 1, ceil_mode=True, count_include_pad=False),
        [torch.arange(8.0)],
    ),
    "adaptive pool, uneven": (lambda x: F.adaptive_avg_pool1d(x[None], 5), [torch.arange(7.0)]),
    "scatter add to one place": (_scatter([2, 2, 0], reduce="sum"), [torch.ones(4), torch.tensor([1.0, 2.0, NAN])]),
    "scatter amax of NaN": (_scatter([2, 2, 0], reduce="amax"), [torch.ones(4), torch.tensor([1.0, NAN, -INF])]),
    "scatter mean without self": (
        _scatter([1, 1, 1], reduce="mean", include_self=False),
        [torch.ones(3), torch.tensor([1.0, 2.0, 6.0])],
    ),
    "scatter of integers, mean": (
        _scatter([1, 1], reduce="mean", include_self=False),
        [torch.ones(3, dtype=torch.int64), torch.tensor([-3, -4])],
    ),
    "cross entropy, all ignored": (
        lambda x: F.cross_entropy(x, torch.full((2,), -100), ignore_index=-100),
        [torch.randn(2, 3)],
    ),
    "grouped strided dilated convolution": (
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), (1, 2), 2),
        [torch.randn(2, 4, 7, 9), torch.randn(6, 2, 3, 2)],
    ),
    "transposed grouped convolution": (
        lambda x, w: F.conv_transpose2d(x, w, None, (2, 3), (1, 0), (1, 2), 2, (1, 2)),
        [torch.randn(2, 4, 3, 4), torch.randn(4, 3, 3, 2)],
    ),
    "convolution of integers": (F.conv1d, [torch.arange(8).reshape(1, 1, 8), torch.tensor([[[1, -2, 1]]])]),
    "convolution in bf16": (F.conv1d, [torch.randn(1, 3, 9).bfloat16(), torch.randn(2, 3, 3).bfloat16()]),
    "batch norm in training": (
        lambda x, m, v: (F.batch_norm(x, m, v, training=True), m, v),
        [torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3)],
    ),
    "bucketize of NaN": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0])), [HARD]),
    "lgamma at its poles": (torch.lgamma, [torch.tensor([-3.0, -0.0, 0.5, 1.0, 2.0, -2.5, INF, -INF, 1e20, NAN])]),
    "digamma at its poles": (torch.digamma, [torch.tensor([-3.0, -0.0, 0.0, 1.5, -2.5, INF, 1e6, NAN])]),
    "erfinv at its ends": (torch.erfinv, [torch.tensor([-1.0, 1.0, 0.0, 0.999999, 1.5, NAN])]),
    "bicubic to an odd size": (lambda x: F.interpolate(x, (5, 3), mode="bicubic"), [torch.randn(1, 2, 4, 7)]),
}


@pytest.mark.parametrize("level", ["tensor", "kernel"])
@pytest.mark.parametrize("name", CORNERS)
def test_corners(traced: Tracer, name: str, level: str) -> None:
    call, tensors = CORNERS[name]

    def flat(*args: torch.Tensor) -> list[Any]:
        found = call(*args)
        return list(found) if isinstance(found, tuple) else [found]

    assert opdb.judge_call(traced, flat, tensors, execute=down_to(level)) == ("right", "")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: x.nonzero(), "depends on data"),
        (lambda x: x[x > 0], "depends on data"),
        (lambda x: torch.fft.rfft(x, 5003), "Fourier transform"),
        (lambda x: torch.linalg.inv(x), "factorization"),
        (lambda x: torch.poisson(x), "random numbers"),
        (lambda x: torch.complex(x, x).cumprod(0), "complex numbers"),
    ],
)
def test_refused_by_name(traced: Tracer, call: Callable[..., Any], reason: str) -> None:
    with pytest.raises(CompileError) as caught:
        opdb.lower(traced.trace(lambda x: [call(x)], [torch.randn(3, 3)]).module)
    assert opdb.named_reason(str(caught.value)) == reason
    assert caught.value.operator


def test_a_write_outside_is_dropped(traced: Tracer) -> None:
    """A write at an index outside of the tensor has no effect; PyTorch raises."""
    x, index = torch.arange(4.0), torch.tensor([1, 1])
    program = traced.trace(lambda x, i: [x.scatter(0, i, 9.0)], [x, index])
    (found,) = down_to("kernel")(program.module, [x.numpy(), torch.tensor([7, -5]).numpy()])
    assert found.tolist() == x.tolist()
