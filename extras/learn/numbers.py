"""Numbers that a reader works out: values of a Python file, or lines `name = 12` of a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    faults = [
        f"{n}: {numbers[n]:g} is {_fault(numbers[n], q.value, q.mistakes.items(), q.how)}"
        for n, q in names.items()
        if not _is_near(numbers[n], q.value)
    ]
    if faults:
        count = len(names) - len(faults)
        raise Wrong(f"{count} of {len(names)} numbers are right" + "".join(f"\n  {fault}" for fault in faults))


def require_number(
    name: str, value: Any, expected: float, mistakes: Iterable[tuple[float, str]] = (), tolerance: float = CLOSE
) -> None:
    """Requires that a number of the reader is right.

    Args:
        name: its name in the answer.
        value: the number.
        expected: the right number.
        mistakes: numbers that mistakes lead to, and sentences about the mistakes.
        tolerance: relative difference that is allowed.

    Raises:
        Wrong: it is no number, or another one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{name}: expected a number, but got {value!r}")
    if not _is_near(value, expected, tolerance):
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
        raise Wrong(f"{name} = {number} is {_fault(value, expected, mistakes, '', tolerance)}")


def _is_near(number: float, expected: float, tolerance: float = CLOSE) -> bool:
    return abs(number - expected) <= tolerance * abs(expected)


def _fault(
    number: float, expected: float, mistakes: Iterable[tuple[float, str]], otherwise: str, tolerance: float = CLOSE
) -> str:
    """Returns the direction of a wrong number, and words for the mistake that leads to it, else `otherwise`."""
    words = next((words for wrong, words in mistakes if _is_near(number, wrong, tolerance)), otherwise)
    return f"too {'small' if number < expected else 'large'}{f': {words}' if words else ''}"
