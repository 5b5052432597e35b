"""Differences of two arrays in words: which rows and columns differ, and how the values are related."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def describe(actual: Array, expected: Array, same: NDArray[np.bool_] | None = None, noun: str = "result 0") -> str:
    """Returns a sentence about the difference of two arrays, or an empty text if they are equal.

    Args:
        actual: the array that is judged.
        expected: the right array.
        same: mask of the elements that count as equal; by default those that are equal or NaN in both.
        noun: name of the array in the sentence.
    """
    if actual.shape != expected.shape:
        return f"{noun} has the shape {_shape(actual)}, expected {_shape(expected)}{_shape_relation(actual, expected)}"
    equal = (actual == expected) | ((actual != actual) & (expected != expected)) if same is None else same
    if np.all(equal):
        return ""
    wrong = np.logical_not(equal)
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    values = f"at {list(first)} it is {_value(actual[first])} instead of {_value(expected[first])}"
    relation = _relation(actual, expected)
    return f"{noun} differs {where(wrong)}: {values}{f'; {relation}' if relation else ''}"


def _shape(array: Array) -> str:
    return "x".join(map(str, array.shape)) or "of a scalar"


def _value(value: Any) -> str:
    return f"{float(value):.6g}"


def _shape_relation(actual: Array, expected: Array) -> str:
    if sorted(actual.shape) == sorted(expected.shape):
        return " (the dimensions are in another order)"
    if actual.ndim == expected.ndim:
        pairs = enumerate(zip(actual.shape, expected.shape, strict=True))
        parts = [f"{abs(a - e)} {_axis(d, actual.ndim, abs(a - e))} {'missing' if a < e else 'too many'}"
                 for d, (a, e) in pairs if a != e]  # fmt: skip
        return f" ({' and '.join(parts)})"
    return ""


def _axis(dimension: int, rank: int, count: int) -> str:
    """Returns the word for `count` positions of a dimension."""
    if rank == 2:
        word = ("row", "column")[dimension]
    elif rank == 1:
        word = "element"
    else:
        word = f"position of dimension {dimension}"
        return word if count == 1 else word.replace("position", "positions")
    return word if count == 1 else word + "s"


def where(wrong: NDArray[np.bool_]) -> str:
    """Returns words for the positions of the wrong elements: `everywhere`, `from row 7 on`, `in column 0 only`.

    Args:
        wrong: mask with at least one true element.
    """
    if wrong.all():
        return "everywhere"
    if (band := _band(wrong)) is not None:
        return band
    parts: list[str] = []
    box = np.ones_like(wrong)
    for d in range(wrong.ndim):
        lines = np.asarray(wrong.any(axis=tuple(k for k in range(wrong.ndim) if k != d)))
        box &= lines.reshape([-1 if k == d else 1 for k in range(wrong.ndim)])
        if not lines.all():
            parts.append(_positions(np.flatnonzero(lines), len(lines), d, wrong.ndim))
    count = int(wrong.sum())
    if not parts:
        return f"at {count} of {wrong.size} elements"
    text = " and ".join(parts)
    return text if np.array_equal(box, wrong) else f"{text}, at {count} of {int(box.sum())} elements there"


def _positions(indices: NDArray[np.int64], extent: int, dimension: int, rank: int) -> str:
    """Returns words for the positions of one dimension that have wrong elements."""
    one, many = _axis(dimension, rank, 1), _axis(dimension, rank, 2)
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)

    def numbered(i: int) -> str:
        return f"{one} {i}" if rank <= 2 else f"{one.replace('position', f'position {i}')}"

    if count == 1:
        if first == extent - 1 and extent > 1:
            return (
                f"in the last {one} only ({numbered(first)})" if rank <= 2 else f"in {numbered(first)} only, the last"
            )
        return f"in {numbered(first)} only"
    steps = np.diff(indices)
    if (steps == 1).all():
        if last == extent - 1:
            return f"from {numbered(first)} on"
        if first == 0:
            return f"before {numbered(last + 1)}"
        return f"in {many} {first} to {last}"
    if (steps == steps[0]).all():
        return f"in every {_ordinal(int(steps[0]))} {one} from {first} on"
    return f"in {count} of {extent} {many}"


def _ordinal(n: int) -> str:
    return {2: "second", 3: "third"}.get(n, f"{n}th")


def _band(wrong: NDArray[np.bool_]) -> str | None:
    """Returns words for a triangle or everything except the diagonal, or None."""
    if wrong.ndim != 2:
        return None
    rows, columns = np.indices(wrong.shape)
    for mask, words in (
        (columns > rows, "above the diagonal"),
        (columns < rows, "below the diagonal"),
        (columns != rows, "everywhere except on the diagonal"),
        (columns == rows, "on the diagonal"),
    ):
        if np.array_equal(wrong, mask):
            return words
    return None


def _relation(actual: Array, expected: Array) -> str:
    """Returns words for a simple relation between two arrays of one shape, or an empty text."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    scale = max(float(np.nanmax(np.abs(e), initial=0.0)), 1e-30)

    def close(x: Array, y: Array) -> bool:
        return x.shape == y.shape and bool(np.allclose(x, y, rtol=1e-5, atol=1e-6 * scale, equal_nan=True))

    if np.isnan(a).any() and not np.isnan(e).any():
        return f"{int(np.isnan(a).sum())} elements are NaN"
    if a.size > 1 and close(a, np.full_like(a, a.flat[0])) and not close(e, np.full_like(e, e.flat[0])):
        return "all its elements are equal"
    if close(-a, e):
        return "it is the negative of the expected one"
    if np.all(a != 0) and close(1 / a, e):
        return "it is the reciprocal of the expected one"
    if not close(np.abs(e), np.ones_like(e)) and close(a, e * e):
        return "it is the square of the expected one"
    if a.ndim == 2 and close(a.T, e):
        return "it is the transpose of the expected one"
    for d in range(a.ndim):
        name = _axis(d, a.ndim, 2)
        if a.shape[d] > 1 and close(np.flip(a, d), e):
            return f"the {name} are in reverse order"
        for shift in range(1, min(a.shape[d], 9)):
            if close(np.roll(a, -shift, d), e) or close(np.roll(a, shift, d), e):
                return f"the {name} are shifted by {shift}"
    return _scaled(a, e, close)


_FUNCTIONS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("square", np.square),
    ("root", np.sqrt),
    ("exponential", np.exp),
    ("logarithm", np.log),
)
"""Functions that an answer may lack or have too many, with their names."""


def _scaled(a: Array, e: Array, close: Any) -> str:
    """Returns words for a constant factor or difference, or for one that is constant in each row or column."""
    with np.errstate(all="ignore"):
        for words, function in _FUNCTIONS:
            if a.size > 1 and close(a, function(e)):
                return f"it is the {words} of the expected one"
    nonzero = np.abs(e) > 1e-12
    if nonzero.any():
        factor = float(np.median(a[nonzero] / e[nonzero]))
        if factor not in (0.0, 1.0) and close(a, factor * e):
            part = round(1 / factor)
            times = f"1/{part} of" if part > 1 and abs(part * factor - 1) < 1e-5 else f"{factor:.6g} times"
            return f"it is {times} the expected one"
    offset = float(np.median(a - e))
    if offset and close(a, e + offset):
        return f"it is the expected one {'plus' if offset > 0 else 'minus'} {abs(offset):.6g}"
    if a.ndim == 2 and nonzero.all():
        for d in (0, 1):
            ratio = a / e
            if min(a.shape) > 1 and close(ratio, np.broadcast_to(np.take(ratio, [0], axis=1 - d), ratio.shape)):
                return f"each {_axis(d, 2, 1)} has a factor of its own"
    return ""


def names_equal(actual: Array, candidates: Sequence[tuple[str, Array]]) -> str:
    """Returns the name of the first array that equals `actual`, or an empty text.

    Args:
        actual: the array.
        candidates: names and arrays, such as the arguments of a program.
    """
    return next((n for n, c in candidates if c.shape == actual.shape and np.array_equal(c, actual)), "")
