"""Modules as people write them are right, or refused by name (`programs/people`).

`--people all` runs every program on the reference and as printed CUDA on the CPU; otherwise all run on the reference,
and every eighth one as CUDA. With the simple strategies `--people all` runs every program as CUDA and as C++, and
otherwise a few.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from programs.people import PROGRAMS
from torch.utils import _pytree as pytree

import deplodock
from deplodock.dialects.loop import NestOp
from deplodock.frontend.executors import make_executor
from deplodock.passes.planning.plan_schedules import check_schedule
from deplodock.target.attribute import get_target

REFUSED: dict[str, str] = {}
"""Program -> what the refusal has to name. A program that starts to work has to leave this list."""

EVERY, EVERY_SIMPLE = 8, 48


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


@pytest.mark.parametrize(("target", "executor"), [("sm_90a", "emulator"), ("cpu", "cpu")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_simple_strategies(name: str, target: str, executor: str, request: pytest.FixtureRequest) -> None:
    """The simple strategies give schedules that are legal, and kernels that are right."""
    number = [*PROGRAMS].index(name)
    if request.config.getoption("--people") != "all" and number % EVERY_SIMPLE:
        pytest.skip("--people all runs it")
    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    with torch.no_grad():
        ours = deplodock.compile(function, args, target=target, executor=executor, strategy="simple", record="none")
        nests = [op for op in ours.compilation.scheduled().walk() if isinstance(op, NestOp)]
        for nest in nests:
            check_schedule(nest, get_target(target))
        assert nests
        compare(ours(*args), function(*args))


def test_size_of_the_corpus() -> None:
    assert len(PROGRAMS) >= 150
    assert len(PROGRAMS) - len(REFUSED) >= 140
