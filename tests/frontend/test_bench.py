"""Measurements of programs against PyTorch: errors, times, and the timeline of kernels."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import deplodock
from deplodock.frontend.bench import OURS, Subject, _wrong, measure
from deplodock.frontend.capture.eager_fallback import FallbackWarning
from deplodock.frontend.profile import _limit, measured

X = torch.randn(33, 33)


def with_a_gap(x: torch.Tensor) -> torch.Tensor:
    """A program with an operator left to PyTorch between kernels."""
    return torch.linalg.inv(torch.relu(x) @ x).softmax(-1) @ x


@pytest.mark.parametrize("executor", ["cpu", "cuda"])
def test_a_trace_has_every_step_in_order(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "cuda":
        request.getfixturevalue("stub_cuda")
    with pytest.warns(FallbackWarning):
        program = deplodock.compile(with_a_gap, (X,), executor=executor, fallback="eager")
    assert program.executor.trace is not None
    for _ in range(2):
        spans = program.executor.trace(program.captured.bind((X,)))
        eager = ["inv" in s.name for s in spans]
        assert len(spans) >= 3
        assert eager.count(True) == 1
        assert not eager[0]
        assert not eager[-1]
        assert all(a.start + a.seconds <= b.start + 1e-9 for a, b in pairwise(spans))
        assert all(s.seconds > 0 for s in spans)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ y)


@pytest.mark.parametrize("executor", ["cpu", "cuda"])
def test_arms_are_checked_against_float64_and_timed(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "cuda":
        request.getfixturevalue("stub_cuda")
    program = deplodock.compile(product, (X, X), executor=executor)
    found = measure(Subject(product, (X, X)), program, ["torch.compile"], repetitions=3)
    arms = {"eager", "torch.compile", OURS}
    assert set(found.errors) == arms
    assert found.right
    assert 0 < found.errors[OURS] < 1e-6
    assert set(found.times) == ({"call"} if executor == "cpu" else {"cold", "hot", "call"})
    for times in found.times.values():
        assert set(times) == arms
        assert all(t.median > 0 for t in times.values())


def test_arms_of_a_module_that_changes_its_buffers_have_their_own() -> None:
    module = torch.nn.BatchNorm1d(33)
    program = deplodock.compile(module, (X,), target="cpu")
    found = measure(Subject(module, (X,)), program, [], check_only=True)
    assert found.right
    assert module.num_batches_tracked == 0


def test_a_wrong_result_is_seen() -> None:
    program = deplodock.compile(lambda x: x * 1.00001, (X,), target="cpu")
    found = measure(Subject(lambda x: x * 1.0, (X,)), program, [], check_only=True)
    assert found.right is False
    assert found.errors[OURS] == pytest.approx(1e-5, rel=1e-2)
    assert found.as_dict()["times"] == {}


def test_ours_may_err_half_as_much_again_as_the_worst_of_pytorch() -> None:
    others = {"eager": 1e-4, "torch.compile": 1e-3}
    assert _wrong({**others, OURS: 1.4e-3}, [OURS]) == ()
    assert _wrong({**others, OURS: 1.6e-3, "k.cpp": 1e-4}, [OURS, "k.cpp"]) == (OURS,)


def test_what_cannot_be_checked_says_why() -> None:
    weight = torch.ones(33)
    functions = (lambda x: x @ weight, "float64"), (lambda x: torch.dropout(x, 0.5, True), "random")
    for function, why in functions:
        found = measure(Subject(function, (X,)), deplodock.compile(function, (X,), target="cpu"), [], check_only=True)
        assert (found.right, found.errors) == (None, {})
        assert why in found.note


def test_a_profile_is_of_the_sizes_of_the_call() -> None:
    """For a program with a dynamic size, bytes and operations are those of the measured arguments."""
    rows = torch.export.Dim("rows", min=2, max=10_000)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    program = deplodock.compile(function, (X,), dynamic_shapes=({0: rows},), target="cpu")
    for count in (7, 900):
        found = measured(program, Subject(function, (torch.randn(count, 33),)))
        assert [c.bytes for c in found.costs] == [2 * 4 * 33 * count]
        assert [c.flops for c in found.costs] == [33 * count]
        assert all(len(call) == 1 for call in found.traced)


def test_limits_are_told_by_the_roofs() -> None:
    assert [_limit(*shares) for shares in ((0.9, 0.2), (1.4, 0.2), (0.3, 0.8), (0.3, 0.2))] == [
        "memory",
        "caches",
        "compute",
        "neither",
    ]
