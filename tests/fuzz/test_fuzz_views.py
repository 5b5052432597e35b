"""Random chains of views of whole numbers, in the simulator. More: `python -m fuzz --views --level kernel`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("expecttest")

from conformance.levels import down_to
from conformance.opdb import judge_call
from conformance.tracing import Tracer, tracer
from fuzz.views import draw

from deplodock.passes.convert.torch_to_tensor.conversion import get_decompositions


@pytest.fixture(scope="module")
def traced():
    with tracer() as t:
        yield t


def _judge(t: Tracer, seed: int, level: str) -> tuple[str, str]:
    program = draw(seed)
    kind, reason = judge_call(t, program, program.inputs, execute=down_to(level))
    return kind, f"seed {seed}: {kind}: {reason}\n{program}"


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_in_the_simulator(traced: Tracer, first: int) -> None:
    judged = [_judge(traced, seed, "kernel") for seed in range(first, first + 20)]
    assert [text for kind, text in judged if kind != "right"] == []


def test_as_printed_cuda(traced: Tracer) -> None:
    judged = [_judge(traced, seed, "cuda") for seed in range(100, 106)]
    assert [text for kind, text in judged if kind != "right"] == []


def test_a_planted_bug_is_found(traced: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = get_decompositions()
    monkeypatch.setitem(table, "flip", lambda b, self, dims: self)
    assert any(_judge(traced, seed, "tensor")[0] == "wrong" for seed in range(100))
