"""Programs need no more memory than eager PyTorch, unless the user lifts the limit."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import Tensor, nn

import deplodock
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.calls import main_function
from deplodock.frontend.capture.export import capture
from deplodock.passes.analysis.host_memory import MEMORY_LIMIT, limit_of
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.records import Record
from deplodock.target.attribute import get_target
from deplodock.target.host import NONE

sys.path.insert(0, str(ROOT))

from benchmarks.common.cases import Case, cases

LIFTED = "default{limit_memory=false}"

SLICE = {
    "sm_90a": ("f32 product: 2048x2048x2048", "B1 H32/8 S8192", "matmul.tinyllama.down_proj.s128 bf16", "2 blocks"),
    "cpu": ("3x3: 256 channels of 14x14",),
}
"""Of each target programs of the suites that take more than eager PyTorch's tensors if nothing limits them."""

BEYOND = {"f32 product: 2048x2048x2048"}
"""Those that take more than PyTorch may need for sums, too."""


def _subjects() -> list[tuple[str, str]]:
    return [(target, name) for target, names in SLICE.items() for name in names]


def _case(target: str, name: str) -> Case:
    suites = ("seed84", "classes", "models")
    return next(c for c in cases(suites, "cpu" if target == "cpu" else "cuda", ("f32", "bf16")) if name in c.key)


def _peak(compiled: deplodock.CompiledFunction) -> int:
    return make_plan(compiled.compilation.at("kernel")).peak_bytes


def _told(compiled: deplodock.CompiledFunction) -> list[str]:
    return [r.why for r in compiled.compilation.remarks if r.pass_name == "memory"]


@pytest.mark.parametrize(("target", "name"), _subjects())
def test_a_slice_of_the_suites(target: str, name: str) -> None:
    case = _case(target, name)
    function, args = case.make()
    options: dict[str, Any] = {"target": target, "record": NONE, **case.options}
    compiled = deplodock.compile(function, args, **options)
    eager = limit_of(main_function(compiled.captured.module), MEMORY_LIMIT)
    assert eager is not None
    assert _peak(compiled) <= eager + get_target(target).workspace
    assert not _told(compiled)
    lifted = deplodock.compile(function, args, **options, pipeline=LIFTED)
    assert _peak(lifted) > eager
    assert bool(_told(lifted)) == (name in BEYOND)
    assert (_peak(lifted) > _peak(compiled)) == (name in BEYOND)


class Remembers(nn.Module):
    """A module that stores its last result in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = x + 1
        return x * self.weight + self.seen


def test_the_limit_leaves_modules_as_they_are() -> None:
    module = Remembers()
    before = dict(module.named_buffers())["seen"]
    captured = capture(module, (torch.ones(4),))
    assert limit_of(main_function(captured.module), MEMORY_LIMIT) is not None
    assert module.seen is before
    assert type(module.seen) is Tensor
    assert torch.equal(module(torch.ones(4)), torch.full((4,), 3.0))


def test_sizes_that_vary_have_no_limit() -> None:
    captured = capture(lambda x: x + 1, (torch.ones(8, 4),), dynamic_shapes=({0: torch.export.Dim("n", max=64)},))
    assert limit_of(main_function(captured.module), MEMORY_LIMIT) is None


def test_what_a_person_decides_may_take_more() -> None:
    """An option of the user may exceed the limit, with a remark: `split_k=64` takes 64 parts of 1 MiB."""
    args = torch.randn(128, 5632), torch.randn(5632, 2048)
    for schedule, told in ((None, 0), ("split_k=64", 1)):
        compiled = deplodock.compile(torch.matmul, args, target="sm_90a", record=NONE, schedule=schedule)
        assert (_peak(compiled) > 64 << 20) == told
        assert len(why := _told(compiled)) == told
        assert not told or re.search(r"in step \d, with \w+, f32\[64, 128, 2048\] of 67108864 bytes", why[0])


def test_a_record_that_takes_more_is_refused(tmp_path: Path) -> None:
    """For a recorded schedule that exceeds the limit the planner's schedule is used, with a remark."""
    args, path = (torch.randn(128, 5632), torch.randn(5632, 2048)), str(tmp_path / "plans.json")
    record = Record(path)
    given = deplodock.compile(torch.matmul, args, target="sm_90a", record=NONE, schedule="split_k=64").compilation
    module, passes = given.at("loop").clone(), given.passes_to("tile")
    run_passes(given.ctx, module, [p for p in passes if p.name == "plan-schedules"][:1])
    record.add_nest(next(op for op in module.walk() if isinstance(op, NestOp)), "sm_90a")
    record.save()
    compiled = deplodock.compile(torch.matmul, args, target="sm_90a", record=path)
    assert not _told(compiled)
    assert any("67108864 bytes lie between" in str(r) for r in compiled.compilation.remarks)
