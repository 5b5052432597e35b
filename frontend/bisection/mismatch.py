"""The worst element of a wrong result, and PyTorch's element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..comparison import Difference, compare, worst_element


@dataclass(frozen=True)
class Mismatch:
    """A wrong result with its worst element.

    Attributes:
        result: number of the result.
        type: type and shape of the expected result.
        element: position of the element; None if types or shapes differ.
        actual: value of the element.
        expected: value of PyTorch's element.
        error: relative error of the element (`Difference.error`).
        tolerance: largest permitted error.
        reason: why the result is wrong regardless of the error, or empty.
    """

    result: int
    type: str
    element: tuple[int, ...] | None
    actual: float
    expected: float
    error: float
    tolerance: float
    reason: str = ""

    def __str__(self) -> str:
        head = f"result {self.result}: {self.type}"
        if self.element is None:
            return f"{head} {self.reason}"
        place = f", element {list(self.element)}" if self.element else ""
        error = f"error {self.error:.2e}, tolerance {self.tolerance:.2e}" if math.isfinite(self.error) else self.reason
        return f"{head}{place}: {self.actual:.9g}, PyTorch {self.expected:.9g} ({error})"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON, which cannot represent infinity and NaN: they become texts."""
        numbers = {name: getattr(self, name) for name in ("actual", "expected", "error", "tolerance")}
        shown = {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
        element = None if self.element is None else list(self.element)
        return {"result": self.result, "type": self.type, "element": element, **shown, "reason": self.reason}


def first_mismatch(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: Sequence[float]
) -> Mismatch | None:
    """Returns the first wrong result, or None if all are within their tolerance.

    Args:
        actual: the results.
        expected: the results of PyTorch.
        allowed: relative tolerance of each result (`comparison.tolerances`).
    """
    wrong = next((d for d in compare(actual, expected, allowed) if not d.ok), None)
    if wrong is None:
        return None
    return _of(wrong, actual, expected)


def _of(difference: Difference, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Mismatch:
    facts = {"error": difference.error, "tolerance": difference.tolerance, "reason": difference.reason}
    if len(actual) != len(expected):
        return Mismatch(0, difference.type, None, math.nan, math.nan, **facts)
    a, e = actual[difference.index], expected[difference.index]
    at = worst_element(a, e) if a.dtype == e.dtype else None
    if at is None:
        return Mismatch(difference.index, difference.type, None, math.nan, math.nan, **facts)
    return Mismatch(difference.index, difference.type, at, float(a[at]), float(e[at]), **facts)
