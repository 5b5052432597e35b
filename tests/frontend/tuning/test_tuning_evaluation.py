"""Candidates are checked before they are timed, and the search continues whatever they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from deplodock.backend.cpu.printer import print_cpp
from deplodock.dialects.support.printing import print_module
from deplodock.errors import TargetError
from deplodock.frontend.capture.export import capture
from deplodock.frontend.comparison import tolerances
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning import building
from deplodock.frontend.tuning.calibration import Sample, fit, regret
from deplodock.frontend.tuning.evaluation import Measuring, Predicting, Workers
from deplodock.frontend.tuning.running import Runner, compared
from deplodock.frontend.tuning.search import Limits, search
from deplodock.frontend.tuning.task import Task, tasks_of
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.passes.record_file import RecordFile
from deplodock.target.attribute import get_target, set_target
from deplodock.target.host import device_of_cores

RIGHT = "#tile.schedule<block = [1, 256], chunk = [256], warps = 1, lanes = 1>"
OTHER = "#tile.schedule<block = [2, 256], chunk = [256], warps = 1, lanes = 1>"
THIRD = "#tile.schedule<block = [4, 256], chunk = [256], warps = 1, lanes = 1>"
ILLEGAL = "#tile.schedule<block = [3, 256], chunk = [256], warps = 1, lanes = 1>"


@pytest.fixture(scope="module")
def task() -> Task:
    captured = capture(lambda x: torch.nn.functional.rms_norm(x, (256,)), [torch.zeros(16, 256)])
    (found,) = tasks_of(compile_captured(captured, "cpu", record="none"))
    return found


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("cpu", builders=0, threads=1) as found:
        yield found


class Listed:
    """A policy that tries the given schedules in order."""

    def __init__(self, *schedules: str) -> None:
        self.left, self.told = [Candidate(s) for s in schedules], list[Trial]()

    def ask(self, count: int) -> list[Candidate]:
        asked, self.left = self.left[:count], self.left[count:]
        return asked

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


def block_of(module: ModuleOp) -> str:
    return next(str(op.attributes["schedule"]) for op in module.walk() if "schedule" in op.attributes)


def test_what_is_wrong_hangs_or_faults_is_not_taken(
    task: Task, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong candidate gets no time, one that hangs is killed, and one that faults ends its process.

    The failures are recorded, and later candidates are measured.
    """
    lowered: list[str] = []

    def changed(module: ModuleOp) -> ModuleOp:
        if lowered[-1] == OTHER:
            sums = [o for o in module.walk() if isinstance(o, arith.MulfOp)]
            for o in sums[-1:]:
                Rewriter.replace_op(o, arith.AddfOp(o.lhs, o.rhs, result_type=o.result.type))
        return module

    def printed(module: ModuleOp) -> str:
        text, body = (
            print_cpp(changed(module)),
            {THIRD: "for (volatile int hang = 1; hang;);", FAULTS: "*(volatile int*)8 = 1;"},
        )
        head, mark, rest = text.partition("__global__") if "__global__" in text else (text, "", "")
        return insert(text, body[lowered[-1]]) if lowered[-1] in body else head + mark + rest

    def lower(source: building.Source, candidate: Candidate) -> tuple[ModuleOp, str]:
        lowered.append(candidate.schedule)
        return plain_lower(source, candidate)

    plain_lower = building.lower
    monkeypatch.setattr(building, "lower", lower)
    monkeypatch.setattr(building, "print_cpp", printed)
    policy, path = Listed(OTHER, THIRD, ILLEGAL, FAULTS, LAST), tmp_path / "records.db"
    with RecordFile(path) as records:
        found = search(task, policy, Measuring(task, workers, limit=2.0), Limits(300.0), records, batch=2)
        why = {e.schedule: e.failure for e in records.entries(key=task.key, device=device_of_cores())}
        assert why[OTHER].startswith("wrong: result 0: error")
        assert why[THIRD] == "killed: it did not end within 2 s"
        assert "expected powers of two" in why[ILLEGAL]
        assert why[FAULTS] == "killed: SIGSEGV"
        assert why[LAST] == why[task.untuned] == ""
        (taken, _) = records.plans().schedules["cpu"][task.key]
    assert found.ended == "the space is exhausted"
    assert found.best is not None
    assert taken == found.best.candidate.schedule
    assert taken in (LAST, task.untuned)
    with RecordFile(path) as records:  # another search does not try again what it knows
        policy = Listed(OTHER, THIRD, FAULTS)
        again = search(task, policy, Predicting(task), Limits(9.0), records, "cpu")
        assert [t.candidate.schedule for _, t in again.trials][0] == task.untuned
        assert not {OTHER, THIRD, FAULTS} & {t.candidate.schedule for _, t in again.trials}
        assert {t.candidate.schedule for t in policy.told} >= {OTHER, THIRD, FAULTS}


FAULTS = "#tile.schedule<block = [8, 256], chunk = [256], warps = 1, lanes = 1>"
LAST = "#tile.schedule<block = [16, 256], chunk = [256], warps = 1, lanes = 1>"


def insert(text: str, statement: str) -> str:
    """Returns the C++ of a program with a statement at the beginning of its kernel."""
    from deplodock.backend.cpp.writer import KERNELS_MARK

    head, mark, kernels = text.partition(KERNELS_MARK)
    begin = kernels.index("{", kernels.index("k0")) + 1
    return head + mark + kernels[:begin] + f" {statement} " + kernels[begin:]


def for_target(task: Task, name: str) -> Task:
    """Returns the task with another target in its text."""
    module = task.module.clone()
    set_target(module, get_target(name))
    return replace(task, text=print_module(module))


def test_candidates_run_as_the_target_says(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = building.Builder(tmp_path).build(task.source, Candidate(RIGHT))
    runner = Runner("cpu")
    for target, most in (("cpu", 1 << 16), ("cpu{cores=1}", 1)):
        runner.begin(for_target(task, target))
        runner.load("it", built)
        assert runner.check("it") == ""
        assert runner._programs["it"].cores == most
    monkeypatch.setattr("deplodock.frontend.executors.has_isa", lambda isa: False)
    runner.begin(for_target(task, "cpu{isa=neon}"))
    with pytest.raises(TargetError, match="does not have neon"):
        runner.load("it", built)


def test_inputs_that_are_indices_are_within_their_range() -> None:
    table, place = torch.zeros(50, 4), torch.zeros(9, dtype=torch.int64)
    captured = capture(torch.nn.functional.embedding, [place, table])
    (task,) = tasks_of(compile_captured(captured, "cpu", record="none"))
    numbers = next(a for a in task.inputs() if a.dtype.kind == "i")
    assert 0 <= numbers.min() <= numbers.max() < 50
    assert tolerances(task.module) == [0.0]  # nothing is rounded


def test_nests_that_are_alike_are_one_task() -> None:
    a, b, c = (torch.zeros(s) for s in ((8, 16), (8, 16), (4, 32)))
    captured = capture(lambda a, b, c: (a.softmax(-1), b.softmax(-1), c.softmax(-1)), [a, b, c])
    found = tasks_of(compile_captured(captured, "cpu", record="none"))
    assert sum(t.launches for t in found) == 3 or len(found) < 3  # nests side by side may be one
    assert len({t.key for t in found}) == len(found)


def test_noise_of_others_does_not_count() -> None:
    """Other work of the machine only lengthens samples, so arms are compared by their lower quartiles."""
    assert compared([2.0, 2.0, 2.0, 9.0], [1.0, 1.0, 1.0, 1.0]).ratio == 2.0
    assert compared([1.0, 1.0, 7.0, 8.0, 9.0], [1.0] * 5).ratio == 1.0
    assert compared([1.0, 1.01, 1.02, 1.0] * 4, [1.0, 1.01, 1.0, 1.02] * 4).noise < 0.05
    assert compared([1.5] * 8, [1.0] * 8).slower


def test_constants_are_fitted_to_what_was_measured() -> None:
    """Constants fitted to times of some nests, on a machine with other constants, give better picks for other nests."""
    target = get_target("cpu")
    real = target.scaled({"rates.vector": 0.3, "costs.access": 2.5, "costs.block": 4.0, "rates.launch": 2.0})

    def sample(function: object, *shapes: tuple[int, ...]) -> Sample:
        from deplodock.frontend.tuning.search import space_of

        captured = capture(function, [torch.zeros(s) for s in shapes])  # type: ignore[arg-type]
        (task,) = tasks_of(compile_captured(captured, "cpu", record="none"))
        schedules = [c.schedule for c in space_of(task).ranked()[:24]]
        seconds = Sample(task.nest, schedules, []).predicted(real)
        return Sample(task.nest, schedules, seconds.tolist())

    own = [sample(lambda x: x.softmax(-1), (64, 512)), sample(lambda x: x.sum(0), (256, 512))]
    own += [sample(lambda x, y: x * y + x, (512, 256), (512, 256))]
    others = [sample(lambda x: torch.nn.functional.layer_norm(x, (384,)), (128, 384))]
    found = fit(own, target)
    assert found is not None
    assert found.off[1] - 1 < (found.off[0] - 1) / 3
    fitted = target.scaled(found.factors)
    assert regret(others, fitted) < 1.05
    assert fit(own[:0], target) is None
