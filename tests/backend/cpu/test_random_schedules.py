"""Random schedules for one-thread blocks: exact in the simulator, and right as C++ on this machine.

`python -m fuzz --schedules --targets cpu` runs more of them.
"""

from __future__ import annotations

import pytest
from fuzz import schedules
from fuzz.schedules import LOWERING, case_for, judge

SEEDS = (*range(24), 115)
"""Of the last one the blocks are no multiple of 32."""


def test_random_schedules() -> None:
    right = 0
    for seed in SEEDS:
        case = case_for(seed, "cpu")
        text = str(case)
        kind, why = judge(case, "cpu")
        assert kind in ("right", "refused"), f"{text}: {kind}: {why}"
        assert kind == "right" or "not executed" not in why, f"{text}: {why}"
        right += kind == "right"
    assert right >= 0.8 * len(SEEDS), f"{LOWERING} refuses too many"


def test_wrong_cpp_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = schedules.CpuProgram.run
    monkeypatch.setattr(schedules.CpuProgram, "run", lambda self, args: [r + 1 for r in run(self, args)])
    assert judge(case_for(0, "cpu"), "cpu")[0] == "wrong"
