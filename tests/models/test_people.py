"""Modules as people write them are right, or refused by name (`programs/people`).

`--people all` runs every program on the reference and as printed CUDA on the CPU; otherwise all run on the reference,
and every eighth one as CUDA.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from programs.people import PROGRAMS
from torch.utils import _pytree as pytree

import deplodock
from deplodock.frontend.executors import make_executor

REFUSED: dict[str, str] = {}
"""Program -> what the refusal has to name. A program that starts to work has to leave this list."""

EVERY = 8


def compare(actual: Any, expected: Any) -> None:
    """Values, types and structure, with a tolerance for sums in another order."""
    got, structure = pytree.tree_flatten(actual)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for a, b in zip(got, wanted, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.shape == b.shape
        narrow = b.dtype in (torch.bfloat16, torch.float16)
        rtol, atol = (5e-2, 5e-2) if narrow else (2e-4, 2e-5)
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, request: pytest.FixtureRequest) -> None:
    """Compiled, run twice (buffers may change), and compared with PyTorch."""
    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    emulated = request.config.getoption("--people") == "all" or [*PROGRAMS].index(name) % EVERY == 0
    if name in REFUSED:
        with pytest.raises(deplodock.CompileError, match=REFUSED[name]):
            deplodock.compile(function, args, executor="reference")
        return
    with torch.no_grad():
        compiled = deplodock.compile(function, args, executor="reference")
        for executor in ("reference", "emulator") if emulated else ("reference",):
            ours = copy.deepcopy(compiled)
            ours._executor = make_executor(executor, compiled.compilation)
            eager = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
            for _ in range(2):
                compare(ours(*args), eager(*args))


def test_size_of_the_corpus() -> None:
    assert len(PROGRAMS) >= 150
    assert len(PROGRAMS) - len(REFUSED) >= 140
