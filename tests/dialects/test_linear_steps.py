"""Registers in another order, as sums of steps over the bits of their numbers."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import DenseArrayBase, i64

from deplodock.backend.cpp.ordering import linear_steps


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([3], (3, ())),
        ([0, 1, 2, 3], (0, (1, 2))),
        ([5, 4, 7, 6], (5, (-1, 2))),
        ([7, 3, 6, 2, 5, 1, 4, 0], (7, (-4, -1, -2))),
        ([2, 2, 2, 2], (2, (0, 0))),
        ([0, 1, 2, 4], None),
        ([0, 1, 2, 3, 4, 5, 7, 6], None),
        ([0, 1, 2], None),
    ],
)
def test_linear_steps(numbers: list[int], expected: object) -> None:
    assert linear_steps(DenseArrayBase.from_list(i64, numbers)) == expected
