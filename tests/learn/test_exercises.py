"""Every exercise of the tutorial accepts its solution, refuses its template, and distinguishes three wrong answers.

A wrong answer is a file in `wrong/CHAPTER/EXERCISE/`. Its first line is a comment `judged: TEXT`, a
part of the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from learn import verdicts
from support import ROOT

from deplodock.extras.learn.course import Chapter, Exercise, all_chapters
from deplodock.extras.learn.judging import Judges

EXERCISES = [pytest.param(e, id=f"{e.number}-{e.name}") for c in all_chapters() for e in c.exercises]


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    """Yields a connection to one host process for all answers."""
    with Judges() as connection:
        yield connection


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_is_right(exercise: Exercise, judges: Judges, tmp_path: Path) -> None:
    file = tmp_path / exercise.file
    file.write_text(exercise.solution, encoding="utf-8")
    verdict = judges.judge(exercise, file)
    assert verdict.solved, verdict.text
    assert verdict.text


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_template_has_a_hole(exercise: Exercise, judges: Judges, tmp_path: Path) -> None:
    file = tmp_path / exercise.file
    file.write_text(exercise.template, encoding="utf-8")
    verdict = judges.judge(exercise, file)
    assert not verdict.solved
    assert "Traceback" not in verdict.text


@pytest.mark.parametrize("exercise", EXERCISES)
def test_wrong_answers_are_distinguished(exercise: Exercise, judges: Judges) -> None:
    files = verdicts.wrong_answers(exercise)
    assert len(files) >= 3, "expected three wrong answers"
    texts: list[str] = []
    for file in files:
        expected = re.match(r"(?:#|//) judged: (.+)", file.read_text(encoding="utf-8"))
        assert expected, f"{file.name}: expected a first line `judged: TEXT`"
        verdict = judges.judge(exercise, file)
        assert not verdict.solved, f"{file.name}: {verdict.text}"
        assert expected[1] in verdict.text, file.name
        texts.append(verdict.text)
    assert len({*texts}) == len(texts), texts


@pytest.mark.parametrize("chapter", all_chapters(), ids=lambda c: str(c.number))
def test_a_page_names_its_exercises(chapter: Chapter) -> None:
    text = (ROOT / chapter.page).read_text(encoding="utf-8")
    assert 3 <= len(chapter.exercises) <= 5
    for e in chapter.exercises:
        assert re.search(rf"^### {re.escape(e.number)} ", text, re.M), f"no heading for {e.number}"


def test_the_page_of_verdicts_has_all_answers() -> None:
    """The page has a row for each answer, with the part of the verdict that the file of a wrong answer names."""
    page = (ROOT / "docs" / "learn" / "verdicts.md").read_text(encoding="utf-8")
    for chapter in all_chapters():
        for e in chapter.exercises:
            rows = page.partition(f"### {e.number} {e.title}\n")[2].partition("\n\n#")[0].splitlines()
            assert any(row.startswith("| the solution | ") for row in rows), e.number
            for file in verdicts.wrong_answers(e):
                judged = file.read_text(encoding="utf-8").splitlines()[0].partition("judged: ")[2]
                shown = verdicts.cell(judged)
                assert any(shown in row for row in rows), f"{file}: {shown}"
