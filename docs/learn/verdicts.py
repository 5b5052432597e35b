"""Makes the page of verdicts on the solutions of the tutorial and on wrong answers.

    python docs/learn/verdicts.py docs/learn/verdicts.md

It reads the wrong answers in `tests/learn/wrong/`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from deplodock.extras.learn.course import Exercise, all_chapters
from deplodock.extras.learn.judging import Judges

WRONG = Path(__file__).parents[2] / "tests" / "learn" / "wrong"

HEAD = """# What the judges answer

This page is for teachers. It lists the verdict on the solution of every exercise and on the wrong answers of
`tests/learn/wrong/`, which a test keeps true. `python docs/learn/verdicts.py docs/learn/verdicts.md` writes the page.
"""


def wrong_answers(exercise: Exercise) -> list[Path]:
    """Returns the files of the wrong answers to an exercise."""
    return sorted((WRONG / exercise.folder.name / exercise.name).glob(f"*{exercise.suffix}"))


def cell(text: str) -> str:
    """Returns a text as the contents of a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def lines() -> Iterator[str]:
    """Yields the lines of the page."""
    yield HEAD
    with Judges() as judges, TemporaryDirectory() as folder:
        for chapter in all_chapters():
            yield f"## {chapter.number}. {chapter.title}\n"
            for e in chapter.exercises:
                solution = Path(folder, e.file)
                solution.write_text(e.solution, encoding="utf-8")
                yield f"### {e.number} {e.title}\n\n| answer | verdict |\n|---|---|"
                yield f"| the solution | {cell(judges.judge(e, solution).text)} |"
                for file in wrong_answers(e):
                    yield f"| {file.stem.replace('_', ' ')} | {cell(judges.judge(e, file).text)} |"
                yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(lines()).rstrip() + "\n", encoding="utf-8")
