"""Programs of packages by `deplodock.compile`: experts, graphs, detection, packed images.

`python -m benchmarks.compiler.package_programs` runs all of them as C++.
"""

from __future__ import annotations

import pytest

from benchmarks.compiler.package_programs import PROGRAMS, run

QUICK = {p.name: p for p in PROGRAMS if p.name in ("Mixtral", "GCN", "NaViT", "token dropping")}


@pytest.mark.parametrize("name", QUICK)
def test_program(name: str) -> None:
    """Sizes that depend on data differ between the calls of a program."""
    if QUICK[name].package in ("transformers", "torch_geometric"):
        pytest.importorskip(QUICK[name].package)
    outcome = run(QUICK[name], "reference")
    assert outcome.way == "compile", outcome.note
    assert outcome.error < 1e-5
