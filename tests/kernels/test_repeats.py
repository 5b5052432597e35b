"""Repeats in a program are found as by comparing every distance, in fewer steps."""

from __future__ import annotations

import random

import pytest

from deplodock.passes.torch.outline_layers import _longest


def by_comparing_every_distance(colors: list[int], min_period: int) -> tuple[int, int, int]:
    best = (0, 0, 0)
    for period in range(min_period, len(colors) // 2 + 1):
        run = 0
        for i in range(len(colors) - period):
            run = run + 1 if colors[i] == colors[i + period] else 0
            if run >= period and run + period > best[2]:
                best = (i - run + 1, period, run + period)
    return best


@pytest.mark.parametrize("seed", range(200))
def test_longest_repetition(seed: int) -> None:
    random.seed(seed)
    colors = [random.randrange(random.choice([1, 2, 3, 5])) for _ in range(random.randrange(60))]
    unit = colors[: random.randrange(1, 12)]
    colors = colors[:20] + unit * random.randrange(5) + colors[20:]
    for min_period in (1, 3, 7):
        assert _longest(colors, min_period) == by_comparing_every_distance(colors, min_period)
