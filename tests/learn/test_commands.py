"""The command `deplodock learn`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deplodock.errors import DeplodockError
from deplodock.extras.learn.commands import learn
from deplodock.extras.learn.course import exercises


def _call(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(learn, [*words, "--folder", str(folder)])


def test_a_chapter_is_worked_through(tmp_path: Path) -> None:
    folder, e = tmp_path / "answers", exercises("2.1")[0]
    started = _call(folder, "2")
    assert "docs/learn/02_tensor_ir.md" in started.output
    assert (folder / e.file).read_text(encoding="utf-8") == e.template
    wrong = _call(folder, "check", "2.1")
    assert wrong.exit_code == 1
    assert "not yet" in wrong.output
    hints = [_call(folder, "hint", "2.1").output for _ in range(len(e.hints) + 1)]
    assert hints[0] == f"hint 1 of {len(e.hints)}: {e.hints[0]}\n"
    assert hints[-1] == hints[-2]
    (folder / e.file).write_text(CliRunner().invoke(learn, ["show", "2.1"]).output, encoding="utf-8")
    right = _call(folder, "check", "2.1")
    assert right.exit_code == 0, right.output
    assert " 1 of " in next(line for line in _call(folder, "list").output.splitlines() if line.startswith(" 2 "))
    assert "exists already" in _call(folder, "2.1").output
    assert _call(folder, "check", "2.1").exit_code == 0


def test_a_course_gets_all_verdicts_as_json(tmp_path: Path) -> None:
    e = exercises("2.1")[0]
    (tmp_path / e.file).write_text(e.solution, encoding="utf-8")
    result = _call(tmp_path, "check", "--all", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == (data["solved"] < len(data["exercises"]))
    by_number = {v["exercise"]: v for v in data["exercises"]}
    assert by_number["2.1"]["solved"] is True
    assert all("no answer" in v["text"] for n, v in by_number.items() if n != "2.1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["99"], "expected a chapter of "),
        (["2.9"], "expected an exercise from 2.1 to"),
        (["check"], "expected chapters or exercises"),
        (["check", "x"], "expected a chapter such as 3"),
        (["check", "2.1"], "`deplodock learn 2.1` makes the file"),
        (["hint", "2"], "expected an exercise such as 2.1"),
    ],
)
def test_a_mistake_is_named(words: list[str], text: str, tmp_path: Path) -> None:
    error = _call(tmp_path / "answers", *words).exception
    assert isinstance(error, DeplodockError)
    assert text in str(error)
