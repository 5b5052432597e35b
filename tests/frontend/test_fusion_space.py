"""Fusion plans with one materialised value more or less than the planner's, and the search among them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.calls import main_function
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation, compile_captured
from deplodock.frontend.tuning.evaluation import Predicting
from deplodock.frontend.tuning.fusion_space import Fusion, explain_fusion, fusion_prices, fusions
from deplodock.frontend.tuning.search import Search, TuneOptions, schedule_argument, tune_program
from deplodock.frontend.tuning.task import Task
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.passes.record_file import RecordFile
from deplodock.passes.records import plan_key
from deplodock.tools.cli import main
from deplodock.tools.tables import seconds


class Chain(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.exp(x) @ w)


def compiled(**options: str) -> Compilation:
    captured = capture(Chain(), (torch.randn(64, 32), torch.randn(32, 48)))
    return compile_captured(captured, "cpu", **({"record": "none"} | options))  # type: ignore[arg-type]


def keys(compilation: Compilation) -> set[str]:
    return {plan_key(op) for op in compilation.at("loop").walk() if isinstance(op, NestOp)}


def keys_of(plan: Fusion) -> set[str]:
    return {task.key for task in plan.tasks}


class Machine:
    """A device on which nests take their predicted time, except for some that are faster or slower."""

    batch = 4

    def __init__(self, fast: set[str], failing: bool = False, slow: Collection[str] = ()) -> None:
        self.fast, self.failing, self.slow, self.asked = fast, failing, slow, set[str]()

    def evaluator(self, task: Task) -> Predicting:
        machine = self
        machine.asked.add(task.key)

        class Measuring(Predicting):
            def measure(self, candidates: Sequence[Candidate]) -> list[Trial]:
                return [*map(self.remeasure, candidates)]

            def remeasure(self, candidate: Candidate) -> Trial:
                fast = task.key in machine.fast
                if fast and machine.failing:
                    return Trial(candidate, None, failure="wrong: result 0")
                return Trial(candidate, task.expected * (0.01 if fast else 100.0 if task.key in machine.slow else 1.0))

        return Measuring(task)


def tuned(machine: Machine, records: RecordFile, trials: int = 2) -> list[Search]:
    how = TuneOptions("somewhere", "mcts", 300.0, trials)
    return tune_program(compiled(), how, records, lambda search: None, machine)  # type: ignore[arg-type]


def test_one_more_and_one_less() -> None:
    """An operand is materialised or recomputed by its users. The planner's plan comes first.

    Each plan has a text, and the option with this text gives the same nests.
    """
    own, *others = fusions(compilation := compiled())
    assert own.change == ""
    assert keys_of(own) == keys(compilation)
    assert others
    assert {len(f.tasks) for f in others} != {len(own.tasks)}
    for fusion in others:
        assert len({*fusion.roots} ^ {*own.roots}) == 1
        assert fusion.change.endswith(("is materialised", "is recomputed by its users"))
        (roots,) = {task.fusion[0] for task in fusion.tasks}
        assert keys(compiled(schedule=f"roots={roots}")) == keys_of(fusion)


def test_the_fastest_plan_is_found_and_recorded(tmp_path: Path) -> None:
    """Nests of all plans are searched. `--schedule` and later compilations for the target use the fastest plan."""
    own, *others = fusions(compiled())
    other = min(others, key=lambda plan: plan.seconds({t.key: t.expected for t in plan.tasks}))
    fast, slow, path = keys_of(other) - keys_of(own), keys_of(own) - keys_of(other), tmp_path / "records.db"
    with RecordFile(path) as records:
        found = tuned(machine := Machine(fast, slow=slow), records)
    assert machine.asked >= keys_of(own) | keys_of(other)
    assert [s.task.key for s in found] == [t.key for t in other.tasks]
    text = schedule_argument(found)
    assert text.startswith(f"roots={','.join(map(str, other.roots))}; ")
    assert keys(compiled(schedule=text)) == keys_of(other)
    assert keys(compiled(record=str(path))) == keys_of(other)
    captured = capture(Chain(), (torch.randn(64, 32), torch.randn(32, 48)))
    elsewhere = compile_captured(captured, "sm_90a", record=str(path))
    assert keys(elsewhere) == keys(compile_captured(captured, "sm_90a", record="none"))
    with RecordFile(path) as records:  # and the planner's again, where it is the fastest
        tuned(Machine(keys_of(own)), records)
    assert keys(compiled(record=str(path))) == keys_of(own)


@pytest.mark.parametrize("failing", [False, True])
def test_the_planners_plan_stays(tmp_path: Path, failing: bool) -> None:
    """The planner's plan is kept if no other plan is faster, or if the nests of faster plans are wrong."""
    own, *others = fusions(compiled())
    fast = {key for plan in others for key in keys_of(plan)} - keys_of(own) if failing else keys_of(own)
    with RecordFile(tmp_path / "records.db") as records:
        found = tuned(Machine(fast, failing), records)
        assert not records.plans().fusions
    assert [s.task.key for s in found] == [t.key for t in own.tasks]
    assert "roots" not in schedule_argument(found)


def test_a_plan_that_does_not_fit_is_left_to_the_planner(tmp_path: Path) -> None:
    own, *_ = fusions(compiled())
    with RecordFile(path := tmp_path / "records.db") as records:
        records.add_fusion(own.key, [99])
    compilation = compiled(record=str(path))
    assert keys(compilation) == keys_of(own)
    (remark,) = map(str, compilation.remarks)
    assert "there is no operation 99 with a result to keep, and the planner's plan is taken" in remark


def test_explained_plans_can_be_pasted() -> None:
    """`--explain` prints for each plan the difference of predicted times, and a `--schedule` that gives this plan."""
    compilation = compiled()
    text = explain_fusion(compilation)
    plans = {plan.change: plan for plan in fusions(compilation)}
    base = sum(task.launches * task.expected for task in plans[""].tasks)
    lines = re.findall(r"\((\S+), \d+ bytes\) is .*; the other way ([+-][\d.]+) us: --schedule '(.*)'", text)
    assert len(lines) == len(plans) - 1 > 1
    for name, price, schedule in lines:
        (plan,) = (p for change, p in plans.items() if name in change)
        seconds = sum(task.launches * task.expected for task in plan.tasks)
        assert float(price) == pytest.approx((seconds - base) * 1e6, abs=0.01)
        assert keys(compiled(schedule=schedule)) == keys_of(plan)
    assert "not priced" in explain_fusion(compilation, most=1)


def test_prices_of_cuts() -> None:
    """Each cut has the bytes that it writes and reads, and the predicted times of both decisions about it."""
    prices = fusion_prices(compilation := compiled())
    assert prices is not None
    chosen, *others = fusions(compilation)
    assert [k.root for k in prices.kernels] == prices.schedule.removeprefix("roots=").split(",")
    assert prices.launches == chosen.launches == len(prices.kernels)
    by_roots = {plan.roots: plan for plan in others}
    operation = {i: op.name for i, op in enumerate(main_function(compilation.at("tensor")).body.block.ops)}
    for cut in prices.cuts:
        plan = by_roots.pop(tuple(sorted({*chosen.roots} ^ {cut.position})))
        assert cut.seconds == plan.seconds({task.key: task.expected for task in plan.tasks})
        assert (cut.materialized, cut.launches) == (cut.position in chosen.roots, plan.launches)
        assert cut.operation == operation[cut.position]
        assert cut.read == cut.written * cut.readers > 0
        loaded = [k.reads[cut.name] for k in prices.kernels if cut.name in k.reads]
        assert sum(loaded) == (cut.read if cut.materialized else 0)
    assert not by_roots
    cast = next(cut for cut in prices.cuts if cut.operation == "math.exp")
    assert (cast.operator, cast.written, cast.readers) == ("torch.exp", 64 * 32 * 4, 1)
    assert all(
        cut.seconds is None and "not priced" in cut.refusal for cut in getattr(fusion_prices(compilation, 1), "cuts")
    )


class Scanned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.relu(x).sum(0), 0) * 2


def test_a_value_that_every_plan_materializes_has_no_price() -> None:
    captured = capture(Scanned(), (torch.randn(8, 30),))
    prices = fusion_prices(compile_captured(captured, "cpu", record="none"))
    assert prices is not None
    (cut,) = (cut for cut in prices.cuts if cut.required)
    assert cut == replace(cut, operation="tensor.reduce", materialized=True, seconds=None, schedule="")
    assert (cut.written, cut.read, cut.readers) == (120, 120, 1)


def test_the_command_prints_both_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain fusion` prints the plan, and takes a plan. `--explain` alone does not take the next word as its
    value."""
    (file := tmp_path / "fusion.py").write_text("import torch\nx = torch.randn(64, 32)\ntorch.exp(x).sum(-1)\n")
    assert main(["compile", "--explain", "fusion", "--json", str(file), "--target", "cpu"]) == 0
    fusion = json.loads(capsys.readouterr().out)["fusion"]
    (cut,) = fusion["cuts"]
    assert (cut["location"], cut["materialized"], cut["written"]) == ("fusion.py:3", False, 8192)
    assert main(["compile", "--explain=fusion", str(file), "--target", "cpu", "--schedule", cut["schedule"]]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"{cut['name']} .* kept .* {seconds(cut['seconds'])}", text)
    assert f"fuse {cut['name']}: --schedule '{fusion['schedule']}'" in text
    assert main(["compile", "--explain", str(file), "--target", "cpu"]) == 0
    assert "k0: a nest over [64]" in capsys.readouterr().out
    assert main(["compile", "--explain", "fusions", "--target", "cpu"]) == 1
    assert "fusions" in capsys.readouterr().err
