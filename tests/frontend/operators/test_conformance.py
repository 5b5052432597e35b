"""A slice of PyTorch's operator database: right, or refused as expected. `benchmarks/compiler/coverage.py` runs
all of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

from conformance import opdb, summary
from conformance.levels import down_to
from conformance.tracing import Exporter, Tracer, tracer

from deplodock.passes.convert.torch_to_tensor.conversion import get_decompositions

SEED = 20240229
SLICES = {"float32": 60, "bfloat16": 16, "float16": 12, "int64": 16, "bool": 14}
"""How many operators are drawn for each data type, one sample each."""


@pytest.fixture(scope="module")
def traced():
    with tracer() as t:
        yield t


def _slice(dtype: str, count: int) -> list[Any]:
    found = [op for op in opdb.operators() if op.supports_dtype(getattr(torch, dtype), "cpu")]
    return random.Random(f"{SEED} {dtype}").sample(found, count)


@pytest.mark.parametrize("dtype", SLICES)
def test_slice(traced: Tracer, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    verdicts = [
        opdb.judge(traced, op, i, sample)
        for op in _slice(dtype, SLICES[dtype])
        for i, sample in opdb.samples(op, wanted, 1)
    ]
    assert sum(v.kind == "right" for v in verdicts) > len(verdicts) / 2
    assert not summary.unexpected(verdicts, dtype)


def test_refused_calls(traced: Tracer) -> None:
    """Calls that PyTorch refuses are refused with one line, except recorded calls that capture accepts.

    `benchmarks/compiler/coverage.py --dtypes errors` runs all operators.
    """
    recorded = summary.recorded()["errors"]
    with_errors = [op for op in opdb.operators() if op.error_inputs_func is not None]
    for op in random.Random(SEED).sample(with_errors, 20):
        verdicts = list(opdb.judge_errors(traced, op))
        assert not [v for v in verdicts if v.kind == "crash"]
        assert all(v.reason and "\n" not in v.reason for v in verdicts if v.kind == "refused")
        captured = sum(v.kind == "right" for v in verdicts)
        expected = recorded[op.formatted_name].right if verdicts else 0  # some have no such call on a CPU
        assert captured == expected, f"{op.formatted_name}: {captured} captured"


def test_types_that_pytorch_refuses(traced: Tracer) -> None:
    """Types that PyTorch refuses are refused. `benchmarks/compiler/coverage.py --dtypes types` runs all operators."""
    drawn = random.Random(SEED).sample(opdb.operators(), 16)
    drawn += opdb.operators(["logcumsumexp", "argmax", "lerp", "addmm", "median"])
    verdicts = [v for op in drawn for v in opdb.judge_types(traced, op)]
    assert [v for v in verdicts if v.kind == "refused"]
    assert not [v for v in verdicts if v.kind != "refused" and v.operator not in _DECOMPOSED_BY_PYTORCH]


_DECOMPOSED_BY_PYTORCH = """isin nn_functional_bilinear nn_functional_multi_margin_loss nn_functional_pad_reflect
nn_functional_rrelu nn_functional_soft_margin_loss nn_functional_upsample_nearest nn_functional_interpolate_nearest
nn_functional_interpolate_nearest-exact""".split()
"""What is left of them after capture does work on those types."""


def _verdict(traced: Tracer, name: str) -> list[str]:
    op = opdb.operators([name])[0]
    return [opdb.judge(traced, op, i, sample).kind for i, sample in opdb.samples(op, torch.float32, 4)]


def test_a_wrong_decomposition_is_found(traced: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = get_decompositions()  # pyright: ignore[reportAssignmentType]
    assert set(_verdict(traced, "cumsum")) == {"right"}
    monkeypatch.setitem(table, "cumsum", lambda b, self, dim, dtype: b.cast(self, b.result_element))
    assert "wrong" in _verdict(traced, "cumsum")


def test_an_exception_from_inside_is_a_crash(traced: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = get_decompositions()  # pyright: ignore[reportAssignmentType]

    def broken(b: Any, self: Any, dim: int, dtype: Any) -> Any:
        return [][0]

    monkeypatch.setitem(table, "cumsum", broken)
    assert set(_verdict(traced, "cumsum")) == {"crash"}


def test_the_list_fails_when_a_case_starts_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "expected", lambda dtype: {"works": "operator", "partly": "argument (some)"})
    right, refused = opdb.Verdict("works", 0, "right"), opdb.Verdict("new", 0, "refused", "why")
    assert summary.unexpected([right], "float32")
    assert summary.unexpected([refused], "float32")
    partly = opdb.Verdict("partly", 0, "right")
    assert not summary.unexpected([partly], "float32")
    assert summary.unexpected([partly], "float32", every_sample=True)


@pytest.mark.parametrize("dtype", SLICES)
def test_every_refusal_has_a_named_reason(dtype: str) -> None:
    names = {*opdb.REASONS, "argument"}
    assert {entry.removesuffix(" (some)") for entry in summary.expected(dtype).values()} <= names


_BOTH = ("add", "nn.functional.conv2d", "sort", "scatter_reduce", "cumsum", "nonzero", "quantile", "diff")
_BOTH += ("nn.functional.interpolate", "linalg.inv", "nn.functional.cross_entropy", "index_put", "rand_like")
_BOTH += ("fft.rfft", "stft", "view_as_complex", "polar", "chalf", "cfloat")


def test_both_captures_agree(traced: Tracer) -> None:
    """The traced capture and `torch.export` give the same verdict, for at most two variants of an operator."""
    different: list[str] = []
    for op in (op for name in _BOTH for op in opdb.operators([name])[:2]):
        for number, sample in opdb.samples(op, torch.float32, 1):
            verdicts = [opdb.judge(way, op, number, sample) for way in (traced, Exporter())]
            if verdicts[0].kind != verdicts[1].kind:
                different.append(str(verdicts))
    assert not different


def test_samples_have_constants_of_their_own(traced: Tracer) -> None:
    """Batch norm changes its running statistics, which samples share, so each program gets copies as constants."""
    op = opdb.operators(["nn.functional.batch_norm"])[0]
    drawn = list(opdb.samples(op, torch.float32, mode="constants"))[:9]
    verdicts = opdb.judge_all(traced, op, drawn, down_to("kernel"), "constants")
    assert {v.kind for v in verdicts} == {"right", "refused"}  # those that change a constant
