"""Verdicts about answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class Wrong(Exception):
    """Error of a wrong answer. The message is a sentence about the fault and its place."""


@dataclass(frozen=True)
class Verdict:
    """Result of judging one answer.

    Attributes:
        exercise: number of the exercise, such as `3.1`.
        solved: whether the answer is right.
        text: sentences about the answer.
        seconds: wall time from the start of the process of the answer to its verdict.
        output: text that the answer printed, cut to its last lines.
    """

    exercise: str
    solved: bool
    text: str
    seconds: float = 0.0
    output: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as a dictionary for JSON."""
        return asdict(self)
