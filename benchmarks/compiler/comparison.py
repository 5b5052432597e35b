"""Shared code of the conformance runs: words of verdicts, comparison of arrays, and rows of tables."""

from __future__ import annotations

from typing import Any

import numpy as np

EXECUTORS = ("reference", "cpu")
VERDICTS = ("right", "refused", "wrong", "crash")


def difference(number: int, actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], **tolerances: float) -> str:
    """Returns the text of the difference between a result and the expected one, or an empty text.

    Args:
        number: number of the result.
        actual: the result.
        expected: the expected result.
        tolerances: `rtol` and `atol`.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        shown = (f"{a.dtype}{list(a.shape)}" for a in (actual, expected))
        return f"result {number} is {', not '.join(shown)}"
    x, y = (a.astype(np.float64) for a in (actual, expected))
    if not np.allclose(x, y, **tolerances, equal_nan=True):
        return f"result {number} differs by {np.nanmax(np.abs(x - y)):.2g}"
    return ""


def crash_text(error: Exception) -> str:
    """Returns the type and the message of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def table_row(*cells: Any, most: int = 200) -> str:
    """Returns a row of a Markdown table. Of each cell, it has at most the first `most` characters, in one line."""
    return "| " + " | ".join(" ".join(str(c).split())[:most].replace("|", "\\|") for c in cells) + " |"
