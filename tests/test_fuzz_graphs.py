"""Random graphs: right at every level, or refused."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest")

from conformance.levels import down_to
from conformance.opdb import judge_call
from conformance.tracing import Tracer, tracer
from fuzz.graphs import Generator


@pytest.fixture(scope="module")
def traced():
    with tracer() as t:
        yield t


def _failures(t: Tracer, seeds: range, level: str) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        program = Generator(seed).draw(8)
        kind, reason = judge_call(t, program, program.inputs, execute=down_to(level))
        if kind in ("wrong", "crash"):
            found.append(f"seed {seed}: {kind}: {reason}\n{program}")
    return found


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_at_the_tensor_level(traced: Tracer, first: int) -> None:
    assert not _failures(traced, range(first, first + 50), "tensor")
