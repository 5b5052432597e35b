"""Differences of arrays in words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deplodock.extras.learn.differences import Array, describe

EXPECTED = np.random.default_rng(0).standard_normal((8, 6))


def changed(key: object) -> Callable[[Array], Array]:
    """Returns a function that changes the elements at `key`."""

    def change(x: Array) -> Array:
        y = x.copy()
        y[key] += np.arange(1, y[key].size + 1).reshape(y[key].shape)  # pyright: ignore
        return y

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x[:7], "has the shape 7x6, expected 8x6 (1 row missing)"),
        (lambda x: x.T, "has the shape 6x8, expected 8x6 (the dimensions are in another order)"),
        (changed(np.s_[7:, :]), "differs in the last row only (row 7)"),
        (changed(np.s_[5:, :]), "differs from row 5 on"),
        (changed(np.s_[:3, :]), "differs before row 3"),
        (changed(np.s_[:, 0]), "differs in column 0 only"),
        (changed(np.s_[:, ::2]), "differs in every second column from 0 on"),
        (changed(np.s_[2:4, 1]), "differs in rows 2 to 3 and in column 1 only"),
        (changed(np.triu_indices(8, 1, 6)), "differs above the diagonal"),
        (lambda x: -x, "it is the negative of the expected one"),
        (lambda x: x / 6, "it is 1/6 of the expected one"),
        (lambda x: x * 1.5, "it is 1.5 times the expected one"),
        (lambda x: 1 / x, "it is the reciprocal of the expected one"),
        (lambda x: x + 1.5, "it is the expected one plus 1.5"),
        (lambda x: x[::-1], "the rows are in reverse order"),
        (lambda x: np.roll(x, 1, 1), "the columns are shifted by 1"),
        (lambda x: np.zeros_like(x), "all its elements are equal"),
        (lambda x: np.where(x > 1, np.nan, x), "elements are NaN"),
        (lambda x: x * np.arange(1, 9)[:, None], "each row has a factor of its own"),
        (lambda x: x * np.arange(1, 7), "each column has a factor of its own"),
    ],
)
def test_the_difference_is_named(change: Callable[[Array], Array], text: str) -> None:
    assert text in describe(change(EXPECTED), EXPECTED)


def test_equal_arrays_have_no_difference() -> None:
    assert not describe(EXPECTED, EXPECTED.copy())
    assert not describe(np.array([np.nan, 1]), np.array([np.nan, 1]))


def test_the_transpose_of_a_square_is_named() -> None:
    assert "it is the transpose" in describe(EXPECTED[:6].T, EXPECTED[:6])
