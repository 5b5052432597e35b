"""Chapters and exercises of the tutorial, and the packages that define them."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DeplodockError
from . import chapters as packages

if TYPE_CHECKING:
    from .answers import Answer

SECONDS = 5
"""Processor seconds that an answer may take by default. Set by hand: a reader waits for the verdict."""

MEMORY = 2 << 30
"""Bytes that the process of an answer may allocate by default, in addition to the imported modules."""


class CourseError(DeplodockError):
    """A chapter or an exercise that does not exist."""


@dataclass(frozen=True)
class Exercise:
    """A task with a file that has a hole.

    Attributes:
        name: stem of the files of the exercise.
        title: the task in a few words.
        suffix: suffix of the answer's file: `.py`, `.mlir` or `.txt`.
        judge: takes the answer and returns a sentence about it. Raises Wrong for a wrong answer.
        hints: hints, from a nudge to the whole idea.
        modules: names of modules that are imported before the limits begin, such as `torch`.
        seconds: processor seconds that the answer may take.
        memory: bytes that the answer may allocate.
        number: number of the exercise, such as `3.1`; set by the chapter.
        folder: folder of the chapter's package; set by the chapter.
    """

    name: str
    title: str
    suffix: str
    judge: Callable[[Answer], str]
    hints: tuple[str, ...]
    modules: tuple[str, ...] = ()
    seconds: int = SECONDS
    memory: int = MEMORY
    number: str = ""
    folder: Path = Path()

    @property
    def file(self) -> str:
        """Name of the answer's file in the reader's folder."""
        return f"{self.number.replace('.', '_')}_{self.name}{self.suffix}"

    @property
    def template(self) -> str:
        """Text of the file with the hole."""
        return (self.folder / "templates" / f"{self.name}{self.suffix}").read_text(encoding="utf-8")

    @property
    def solution(self) -> str:
        """Text of a right answer."""
        return (self.folder / "solutions" / f"{self.name}{self.suffix}").read_text(encoding="utf-8")


class Chapter:
    """A page of the tutorial and its exercises.

    Attributes:
        number: number of the chapter, from 0.
        title: title of the page.
        page: path of the page in the repository.
        exercises: the exercises, from the easiest to the hardest.
    """

    def __init__(self, package: str, title: str, exercises: list[Exercise]) -> None:
        """Numbers the exercises of a chapter.

        Args:
            package: `__package__` of the chapter's module, which ends with `cNN_NAME`.
            title: title of the page.
            exercises: the exercises, without numbers.
        """
        name = package.rpartition(".")[2]
        self.number, self.title = int(name[1:3]), title
        self.page = f"docs/learn/{name[1:]}.md"
        folder = Path(str(packages.__file__)).parent / name
        self.exercises = [
            Exercise(**(vars(e) | {"number": f"{self.number}.{i}", "folder": folder}))
            for i, e in enumerate(exercises, start=1)
        ]


@cache
def all_chapters() -> tuple[Chapter, ...]:
    """Returns the chapters in their order."""
    names = sorted(m.name for m in pkgutil.iter_modules(packages.__path__) if re.match(r"c\d\d_", m.name))
    return tuple(import_module(f"{packages.__name__}.{name}.exercises").CHAPTER for name in names)


def chapter(number: int) -> Chapter:
    """Returns a chapter.

    Args:
        number: number of the chapter.

    Raises:
        CourseError: no chapter has the number.
    """
    for c in all_chapters():
        if c.number == number:
            return c
    numbers = ", ".join(str(c.number) for c in all_chapters())
    raise CourseError(f"expected a chapter of {numbers}, but got {number}")


def exercises(selection: str) -> list[Exercise]:
    """Returns the exercise `3.1`, or all exercises of chapter `3`.

    Raises:
        CourseError: for any other text, and for numbers that do not exist.
    """
    if not (match := re.fullmatch(r"(\d+)(?:\.(\d+))?", selection)):
        raise CourseError(f"expected a chapter such as 3 or an exercise such as 3.1, but got {selection!r}")
    c = chapter(int(match[1]))
    if match[2] is None:
        return c.exercises
    matching = [e for e in c.exercises if e.number == f"{c.number}.{int(match[2])}"]
    if not matching:
        raise CourseError(
            f"expected an exercise from {c.number}.1 to {c.number}.{len(c.exercises)}, but got {selection}"
        )
    return matching
