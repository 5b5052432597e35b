"""Random legal schedules of a corpus of kernels: each is right or refused.

`python -m fuzz --schedules --count 1000` runs more. Of seeds 3000 to 3999, 967 were right and 33 refused, nearly all
for clusters that do not divide the grid.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz.schedules import PARTS, Case, corpus, draw, judge, made_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from deplodock.dialects import loop, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.passes.convert.loop_to_tile.reductions import Reducer

SEEDS = sorted({*range(0, 50, 3), 19, 26, 36, 45})
"""Every third seed, and four in whose kernels all of `PARTS` occur."""


def test_random_schedules() -> None:
    """Kernels are right, cover all parts that a kernel may have, and at least 90 % are not refused."""
    wrong: list[str] = []
    right: list[list[str]] = []
    for seed in SEEDS:
        case = draw(seed)
        text = str(case)
        kind, why = judge(case)
        if kind == "right":
            right.append(made_of(case))
        elif kind != "refused":
            wrong.append(f"{text}: {kind}: {why}")
    assert wrong == []
    assert len(right) >= 0.9 * len(SEEDS)
    tried = Counter(part for parts in right for part in parts)
    assert [part for part in PARTS if not tried[part]] == []


def test_what_is_drawn() -> None:
    """Random schedules have all values of each decision, none of them rarely."""
    assert len(corpus()) >= 20
    cases = [draw(seed) for seed in range(6 * len(corpus()))]
    assert len({str(case) for case in cases}) == len(cases)
    seen: dict[str, Counter[object]] = {}
    for case in cases:
        for name, value in vars(case.schedule.data).items():
            seen.setdefault(name, Counter())[bool(value) if isinstance(value, tuple) else value] += 1
    rare = {name: dict(counts) for name, counts in seen.items() if min(counts.values()) < 5 and name != "split_k"}
    assert rare == {}
    several = {name for name, counts in seen.items() if len(counts) > 1}
    # `blocks_per_sm` is a promise to ptxas and changes no value; blocks of one thread, and packing, are tests/cpu's.
    assert several == set(seen) - {"block", "blocks_per_sm", "lanes", "pack"}
    for name, values in (
        ("atom", 3),
        ("copy", 3),
        ("stages", 4),
        ("warps", 4),
        ("f32_matmul_precision", 4),
        ("split_k", 4),
    ):
        assert len(seen[name]) >= values, name


ONCE_WRONG = {
    "product with a bias, bf16": "block = [16, 32], chunk = [16], warps = 2, stages = 4, atom = mma, copy = tma",
    "product of columns, f16": "block = [64, 32], chunk = [32], warps = 8, stages = 2, atom = wgmma, copy = cp_async",
}
"""A box aligned to more than its swizzle needs; a left operand by columns in panels narrower than a warpgroup."""


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_was_once_wrong(name: str) -> None:
    module = parse_module(make_context(), corpus()[name], "once.mlir")
    schedule = Parser(make_context(), f"#tile.schedule<{ONCE_WRONG[name]}>").parse_attribute()
    assert isinstance(module, ModuleOp)
    assert isinstance(schedule, ScheduleAttr)
    next(op for op in module.walk() if isinstance(op, loop.NestOp)).attributes["schedule"] = schedule
    assert judge(Case(0, name, module, schedule)) == ("right", "")


def test_a_wrong_schedule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the masks of partial tiles some of these schedules are wrong."""
    monkeypatch.setattr(Reducer, "_masked", lambda self, value, tails, op: self.emitter.tile_of(value))  # type: ignore[reportUnknownLambdaType]
    assert any(judge(draw(s))[0] == "wrong" for s in range(8, 24))
