"""The arena: buffers of a program in one allocation, without overlap of live buffers and with little waste."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.host import launch_plan
from deplodock.backend.host.arena import Lifetime, place
from deplodock.backend.host.launch_plan import LaunchPlan, make_plan
from deplodock.dialects.kernel import BUFFER_ALIGNMENT as ALIGNMENT
from deplodock.frontend.bench import Subject
from deplodock.frontend.capture.features.memory_limit import LivePeak
from deplodock.target.attribute import get_target
from deplodock.tools.cli import main


def live_peak(buffers: Sequence[Lifetime]) -> int:
    """Returns the largest number of bytes that are live in one step, a lower bound of the size of an arena."""
    change: defaultdict[int, int] = defaultdict(int)
    for b in buffers:
        change[b.first] += b.bytes
        change[b.last + 1] -= b.bytes
    return max(accumulate(change[step] for step in sorted(change)), default=0)


def _in_each_other(buffers: Sequence[Lifetime], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pairs of buffers that are live in the same step and overlap."""
    found = []
    for i, (a, at) in enumerate(zip(buffers, offsets, strict=True)):
        for j, (b, other) in enumerate(zip(buffers[:i], offsets, strict=False)):
            together = a.first <= b.last and b.first <= a.last
            if together and at < other + b.bytes and other < at + a.bytes:
                found.append((j, i))
    return found


def _random(seed: int, count: int = 120) -> list[Lifetime]:
    """Returns random lifetimes like those of a program: most are short, some are long."""
    numbers = random.Random(seed)
    first = [numbers.randrange(count) for _ in range(count)]
    return [Lifetime(n, n + int(numbers.expovariate(0.3)), numbers.choice((0, 4, 1000, 4096, 70000))) for n in first]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_lies_in_something_else(seed: int) -> None:
    buffers = _random(seed)
    offsets, size = place(buffers)
    assert not _in_each_other(buffers, offsets)
    assert all(o % ALIGNMENT == 0 and o + b.bytes <= size for b, o in zip(buffers, offsets, strict=True))
    assert live_peak(buffers) <= size <= 1.15 * live_peak(buffers) + ALIGNMENT * len(buffers)
    steps = range(max(b.last for b in buffers) + 1)
    assert live_peak(buffers) == max(sum(b.bytes for b in buffers if b.first <= s <= b.last) for s in steps)


def test_a_chain_takes_two_buffers() -> None:
    chain = [Lifetime(i, i + 1, 4096) for i in range(50)]
    assert place(chain)[1] == live_peak(chain) == 2 * 4096
    assert place([]) == ([], 0)
    assert place([Lifetime(0, 0, 1), Lifetime(0, 0, 1)]) == ([0, ALIGNMENT], 2 * ALIGNMENT)


def test_small_buffers_lie_where_a_large_one_was() -> None:
    buffers = [Lifetime(0, 1, 8192), *(Lifetime(2, 4, 2048) for _ in range(4))]
    assert place(buffers) == ([0, 0, 2048, 4096, 6144], 8192)


def _deep(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A chain of matmuls and softmaxes, whose end adds early results."""
    kept, y = [], x
    for i in range(12):
        y = (y @ w).softmax(-1)
        kept += [y] if i % 6 == 0 else []
    return F.layer_norm(sum(kept[:-1], y @ w.t()), (48,))


def _plan(compiled: deplodock.CompiledFunction) -> LaunchPlan:
    return make_plan(compiled.compilation.at("kernel"))


def _lifetimes(plan: LaunchPlan) -> tuple[list[Lifetime], list[int]]:
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0]
    return [Lifetime(b.first, b.last, b.bytes) for b in scratch], [b.offset for b in scratch]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_a_program(target: str) -> None:
    compiled = deplodock.compile(_deep, (torch.randn(16, 48), torch.randn(48, 48)), target=target)
    plan = _plan(compiled)
    lifetimes, offsets = _lifetimes(plan)
    assert len(lifetimes) > 3
    assert not _in_each_other(lifetimes, offsets)
    assert plan.arena_bytes < sum(b.bytes for b in lifetimes)
    assert plan.peak_bytes == plan.arena_bytes + 16 * 48 * 4


@pytest.mark.parametrize("wrong", [False, True])
def test_lifetimes_matter(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in which buffers end after their first step makes the result wrong."""
    if wrong:
        short = lambda buffers: place([Lifetime(b.first, b.first, b.bytes) for b in buffers])  # noqa: E731
        monkeypatch.setattr(launch_plan, "place", short)
    x, w = torch.randn(16, 48), torch.randn(48, 48)
    compiled = deplodock.compile(_deep, (x, w), target="cpu")
    compiled(x, w)
    assert torch.allclose(compiled(x, w), _deep(x, w), rtol=1e-3, atol=1e-3) != wrong
    assert bool(_in_each_other(*_lifetimes(_plan(compiled)))) == wrong


@pytest.mark.parametrize(
    ("function", "buffers"),
    [
        (lambda x: (x + 1) * 2 + x, 2),
        (lambda x: x.t(), 0),
        (lambda x: x.add_(1), 0),
        (lambda x: (x + 1).mul_(2).t(), 1),
        (lambda x: [x + i for i in range(5)], 5),
        (lambda x: sum(x.sin() for _ in range(5)), 3),
        (lambda x: x[x > 0], None),
    ],
)
def test_what_eager_pytorch_takes(function: Callable[[torch.Tensor], Any], buffers: int | None) -> None:
    """`LivePeak` returns the peak memory of eager PyTorch, in multiples of the argument, without computing anything."""
    x = torch.ones(64, 64)
    assert LivePeak().of(Subject(function, (x,))) == (None if buffers is None else buffers * x.nbytes)
    assert torch.equal(x, torch.ones(64, 64))


def test_memory_is_told_beside_that_of_eager_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    code = "torch.softmax(torch.randn(64, 64), -1)"
    assert main(["compile", "-c", code, "--target", "sm_90a", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    most = 16384 + get_target("sm_90a").workspace
    assert memory == {"arguments": 16384, "results": 16384, "arena": 0, "largest": None, "eager": 16384, "limit": most}
    code = "nn.Linear(2048, 2048)(torch.randn(8, 2048))"  # in parts, which a second kernel adds
    assert main(["compile", "-c", code, "--target", "sm_90a", "-v"]) == 0
    assert re.search(r"eager PyTorch takes 65.5 kB .* less: step 0 writes f32\[\d+, 8, 2048\]", capsys.readouterr().err)
