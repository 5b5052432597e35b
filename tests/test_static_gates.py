"""Every kernel of the 84 shapes, on every target, passes what can be checked without a GPU: see `static_gates.py`.

By default a slice that has every family in every type, on targets in turn; `--gates all` runs all 1,008 combinations.
"""

from __future__ import annotations

import random

import pytest
from seed84 import BY_NAME, NAMES
from static_gates import DTYPES, failures

from deplodock.backend.targets import TARGETS

FAMILIES = list(dict.fromkeys(case["family"] for case in BY_NAME.values()))


def combinations(amount: str) -> list[tuple[str, str, str]]:
    """The cases, types and targets to check."""
    if amount == "all":
        return [(n, d, t) for n in NAMES for d in DTYPES for t in TARGETS]
    rng, targets = random.Random(int(amount)), list(TARGETS)
    found: list[tuple[str, str, str]] = []
    for family in FAMILIES:
        for dtype in DTYPES:
            name = rng.choice([n for n in NAMES if BY_NAME[n]["family"] == family])
            found.append((name, dtype, targets[len(found) % len(targets)]))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" in metafunc.fixturenames:
        found = combinations(str(metafunc.config.getoption("--gates")))
        metafunc.parametrize("combination", found, ids=["-".join(c) for c in found])


def test_gates(combination: tuple[str, str, str]) -> None:
    assert not failures(*combination)
