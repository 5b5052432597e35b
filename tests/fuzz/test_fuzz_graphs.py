"""Random graphs: right at every level, or refused. `python -m fuzz --count 5000 --level kernel` runs more of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

from conformance.levels import down_to
from conformance.opdb import judge_call
from conformance.tracing import Tracer, tracer
from fuzz import campaign
from fuzz.graphs import Generator

from deplodock.passes.convert.torch_to_tensor.conversion import get_decompositions

FOUND = [(275, 12, "kernel"), (316, 8, "loop"), (1036, 10, "kernel")]
FOUND += [(20389, 8, "kernel"), (20589, 8, "kernel"), (600149, 8, "cuda")]
"""Programs that once were wrong or crashed: seed, how many operators it draws, and where."""


@pytest.fixture(scope="module")
def traced():
    with tracer() as t:
        yield t


def _failures(t: Tracer, seeds: range | list[int], level: str, steps: int = 8) -> list[str]:
    found: list[str] = []
    rights = 0
    for seed in seeds:
        program = Generator(seed).draw(steps)
        kind, reason = judge_call(t, program, program.inputs, execute=down_to(level))
        rights += kind == "right"
        if kind in ("wrong", "crash"):
            found.append(f"seed {seed}: {kind}: {reason}\n{program}")
    assert found or rights >= 0.9 * len(seeds)  # most programs are ones that can be compiled
    return found


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_at_the_tensor_level(traced: Tracer, first: int) -> None:
    assert not _failures(traced, range(first, first + 50), "tensor")


@pytest.mark.parametrize("level", ["loop", "tile"])
def test_at_the_levels_between(traced: Tracer, level: str) -> None:
    assert not _failures(traced, range(300, 320), level)


@pytest.mark.parametrize("first", range(400, 440, 40))
def test_in_the_simulator(traced: Tracer, first: int) -> None:
    assert not _failures(traced, range(first, first + 40), "kernel", 10)


def test_as_printed_cuda(traced: Tracer) -> None:
    assert not _failures(traced, range(500, 510), "cuda")


@pytest.mark.parametrize(("seed", "steps", "level"), FOUND)
def test_what_was_found(traced: Tracer, seed: int, steps: int, level: str) -> None:
    assert not _failures(traced, [seed], level, steps)


@pytest.mark.parametrize("level", ["loop", "kernel"])
def test_a_nest_of_nothing_beside_a_row(traced: Tracer, level: str) -> None:
    """Found with seed 200 when it drew a softmax of whole numbers."""
    columns = [torch.zeros(0), torch.zeros(3, 0).transpose(0, 1)]

    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x.square().cumsum(0) + 2, 0), torch.softmax(y.reshape(0, 3), 1)]

    assert judge_call(traced, program, columns, execute=down_to(level)) == ("right", "")


def test_a_run_that_was_ended_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, targets = tmp_path / "verdicts.jsonl", ["sm_80", "sm_90a"]

    def program(seed: int) -> campaign.Program:
        return Generator(seed, simple=True).draw(4)

    assert campaign.run(program, range(6), "tensor", targets, log) == 0
    lines = log.read_text().splitlines(keepends=True)
    assert sorted(json.loads(line)["seed"] for line in lines) == list(range(6))
    log.write_text("".join(lines[:4]) + lines[4][:9])  # ended while it wrote
    capsys.readouterr()
    assert campaign.run(program, range(6), "tensor", targets, log) == 0
    assert log.read_text().count("\n") == 6
    assert ": 2 programs in" in capsys.readouterr().out


def test_programs_follow_from_their_seed() -> None:
    assert str(Generator(7).draw(10)) == str(Generator(7).draw(10))
    assert len({str(Generator(seed).draw(10)) for seed in range(20)}) == 20


@pytest.mark.parametrize(("name", "planted"), [("amax", "amin"), ("sin", "cos"), ("maximum", "minimum")])
def test_a_planted_bug_is_found(traced: Tracer, monkeypatch: pytest.MonkeyPatch, name: str, planted: str) -> None:
    table: Any = get_decompositions()
    monkeypatch.setitem(table, name, table[planted])
    programs = (Generator(seed).draw(8) for seed in range(200))
    assert any(judge_call(traced, program, program.inputs)[0] == "wrong" for program in programs)
