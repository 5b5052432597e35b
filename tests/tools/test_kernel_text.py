"""Kernels and schedules as the commands print them: order, terms of the target, hidden helper functions."""

from __future__ import annotations

import re

import pytest

from deplodock.frontend.tuning.search import Limits, Search
from deplodock.frontend.tuning.task import tasks_of
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.tools import cli
from deplodock.tools.reports import load
from deplodock.tools.tune import found_text


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main([*arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_candidates_are_sorted_and_can_be_pasted(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Candidates are sorted by the printed time, and `--schedule` accepts a printed schedule."""
    program = ["-c", "torch.relu(torch.randn(96, 64) @ torch.randn(64, 80) + 1)", "--target", target]
    _, out, _ = run(capsys, "compile", *program, "--explain")
    lines = re.findall(r"^  \d+\. ([\d.]+) us.*?(<.*>)", out, re.M)
    costs = [float(cost) for cost, _ in lines]
    assert len(costs) > 4
    assert costs == sorted(costs)
    assert (" tasks on 4 cores" if target == "cpu" else "blocks, ") in out
    for _, schedule in lines[:3]:
        code, text, _ = run(capsys, "compile", *program, "--schedule", schedule, "--ir", "tile")
        assert code == 0
        assert f"#tile.schedule{schedule}" in " ".join(text.split())  # lines of 120 columns
    brackets = "block=[8, 16] chunk = [64]"
    _, text, _ = run(capsys, "compile", *program, "--schedule", brackets, "--ir", "tile")
    assert "#tile.schedule<block = [8, 16], chunk = [64]" in text


def test_the_text_of_a_cpu_is_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    program = ["compile", "-c", "torch.relu(torch.randn(64))"]
    _, text, _ = run(capsys, *program, "--target", "cpu")
    assert run(capsys, *program, "--target", "cpu", "--ir", "cpp")[1].endswith(text[text.index("// --- helpers") :])
    assert "// k0: 1 task\n" in text
    code, _, err = run(capsys, *program, "--ir", "cpp")
    assert code == 1
    assert "expected the level cuda for sm_90a, but got cpp" in err


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_helpers_are_folded(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = ["compile", "-c", "torch.relu(torch.randn(64))", "--target", target]
    _, whole, _ = run(capsys, *program)
    _, short, _ = run(capsys, *program, "--no-helpers")
    assert run(capsys, *program, "--helpers")[1].count("\n") == whole.count("\n")
    assert short.count("\n") < 40
    assert "// --- kernels\n// k0: " in short
    lines = sum(int(n) for n in re.findall(r": (\d+) lines, shown by --helpers", short))
    assert abs(whole.count("\n") - short.count("\n") - lines) <= 3


@pytest.mark.parametrize(("noise", "shown", "advised"), [(0.03, "+-3.0%", False), (0.4, "+-40.0%", True)])
def test_an_unsteady_search_is_better_repeated(noise: float, shown: str, advised: bool) -> None:
    text = found_text([searched(noise)], {})
    assert shown in text
    assert ("repeat it on a quiet machine" in text) == advised


def test_too_few_samples_have_no_noise() -> None:
    text = found_text([searched(1.0)], {})
    assert "(too few samples to tell the noise)" in text
    assert "100.0%" not in text


def searched(noise: float) -> Search:
    """Returns a search with one measured candidate."""
    program = "torch.relu(torch.randn(64))"
    (task,) = tasks_of(load(None, program, "cpu").compilation)
    search = Search(task, "cpu", Limits())
    search.take(Trial(Candidate(task.untuned), 1e-5, noise))
    return search
