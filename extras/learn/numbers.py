"""Numbers of an answer, one a line: `name = 12`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .answers import HOLE, Answer
from .verdicts import Wrong

CLOSE = 0.01
"""Relative difference up to which a number counts as right."""


@dataclass(frozen=True)
class Quantity:
    """A number that a reader works out.

    Attributes:
        value: the right number.
        how: how to get it, for a wrong answer without a known mistake.
        mistakes: wrong number -> words for the mistake that leads to it.
    """

    value: float
    how: str
    mistakes: Mapping[float, str]


def read_numbers(answer: Answer, names: Mapping[str, Quantity]) -> dict[str, float]:
    """Returns the numbers of an answer by their names.

    Args:
        answer: a text with lines `name = number`. `#` begins a comment.
        names: the names that the answer must define.

    Raises:
        Wrong: a line is malformed, or a name is missing or unknown.
    """
    numbers: dict[str, float] = {}
    for n, line in enumerate(answer.text.splitlines(), 1):
        name, sign, text = (part.strip() for part in line.partition("#")[0].partition("="))
        if not name and not sign:
            continue
        if not sign or name not in names:
            raise Wrong(
                f"line {n}: expected `name = number` with a name of {', '.join(names)}, but got {line.strip()!r}"
            )
        if text == HOLE:
            raise Wrong(f"line {n}: {name} is still a hole (...): replace it by a number")
        try:
            numbers[name] = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            raise Wrong(f"line {n}: expected a number for {name}, but got {text!r}") from None
    if missing := [name for name in names if name not in numbers]:
        raise Wrong(f"the file does not define {', '.join(missing)}")
    return numbers


def require_numbers(answer: Answer, names: Mapping[str, Quantity]) -> None:
    """Requires that all numbers of an answer are right, within 1 %.

    Args:
        answer: the answer.
        names: name -> the right number and known mistakes.

    Raises:
        Wrong: some are not. The message has a line about the way to each of them, without its value.
    """
    numbers = read_numbers(answer, names)
    faults = [f"{n}: {_fault(numbers[n], q)}" for n, q in names.items() if not _close(numbers[n], q.value)]
    if faults:
        count = len(names) - len(faults)
        raise Wrong(f"{count} of {len(names)} numbers are right" + "".join(f"\n  {fault}" for fault in faults))


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * abs(b)


def _fault(number: float, quantity: Quantity) -> str:
    mistake = next((words for wrong, words in quantity.mistakes.items() if _close(number, wrong)), None)
    return f"{number:g} is {'too large' if number > quantity.value else 'too small'}: {mistake or quantity.how}"
