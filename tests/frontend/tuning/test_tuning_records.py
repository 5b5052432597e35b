"""The tuning records: a database that survives killed writers, and its use by compilations."""

from __future__ import annotations

import io
import json
import os
import random
import select
import shlex
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import deplodock
from deplodock.dialects.loop import NestOp
from deplodock.errors import CompileError
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.frontend.tuning.evaluation import Predicting
from deplodock.frontend.tuning.search import Limits, search
from deplodock.frontend.tuning.task import Task, tasks_of
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.passes.planning.plan_schedules import options_of
from deplodock.passes.record_file import Entry, RecordFile, read_record
from deplodock.passes.records import RecordError, plan_key, read_json
from deplodock.target.attribute import get_target
from deplodock.target.host import RECORDS, device_of_cores, read_factors, resolve_target
from deplodock.tools import cli, dl_opt

ROUNDS, TUNERS = 13, 4
"""So many times so many tuners are killed."""


def task_of(size: int, target: str = "cpu", **options: str) -> Task:
    captured = capture(lambda x: x.softmax(-1), [torch.zeros(8, size)])
    (task,) = tasks_of(compile_captured(captured, target, record="none", **options))
    return task


class Counting:
    """A policy whose candidates differ in an option with their number."""

    def __init__(self, seed: int) -> None:
        self.number, self.seed = 0, seed

    def ask(self, count: int) -> list[Candidate]:
        self.number += 1
        text = "#tile.schedule<block = [1, 64], chunk = [64, 64], warps = 1, lanes = 1>"
        return [Candidate(text, (("pass", f"tuner{self.seed}", str(self.number)),))]

    def tell(self, trial: Trial) -> None:
        pass


class Instant:
    """An evaluator without measurement: the time of a candidate is its number, in microseconds."""

    label, best = "measured", None

    def __init__(self) -> None:
        self.codes: dict[Candidate, str] = {}

    def prepare(self) -> None:
        pass

    def measure(self, candidates: list[Candidate]) -> list[Trial]:
        return [Trial(c, 1e-6 * (1 + int(c.options[0][2]) if c.options else 1e3)) for c in candidates]


def test_tuners_may_be_killed_at_any_time(tmp_path: Path) -> None:
    """Tuners on one file are killed at random moments. The file stays valid and has all reported trials."""
    path, task, rng = tmp_path / "records.db", task_of(64), random.Random(3)
    assert task.untuned  # which is then known
    for round in range(ROUNDS):
        tuners = []
        for seed in range(TUNERS * round, TUNERS * (round + 1)):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    with RecordFile(path) as records:
                        told = lambda s: os.write(write, b"x")  # noqa: E731
                        search(task, Counting(seed), Instant(), Limits(9.0), records, report=told)  # type: ignore
                finally:
                    os._exit(1)
            os.close(write)
            tuners.append((seed, child, read))
        for _, _, read in tuners:
            select.select([read], [], [], 0.5 if round % 4 else 0.0)  # most have done something
        for _, child, _ in tuners:
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(child, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        with RecordFile(path) as records:
            entries = records.entries(key=task.key)
            for seed, _, read in tuners:
                done = len(os.read(read, 1 << 20))
                os.close(read)
                mine = sum(f'"tuner{seed}"' in e.options for e in entries)
                assert done - 2 <= mine <= done, f"{done} were done, {mine} are there"  # first what is everybody's
    assert len(entries) > ROUNDS  # they got somewhere
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def entry(key: str, schedule: str, seconds: float | None, **more: object) -> Entry:
    given = {"device": device_of_cores(), "at": 1.0, **more}
    return Entry(key, "cpu", schedule=schedule, seconds=seconds, **given)  # type: ignore[arg-type]


def test_the_best_that_has_not_failed_is_taken(tmp_path: Path) -> None:
    """The best schedule measured on this machine is used, or else the best of another device."""
    path = tmp_path / "records.db"
    with RecordFile(path) as file:
        file.add(
            [
                entry("a", "slow", 2.0),
                entry("a", "fast", 1.0),
                entry("a", "wrong", None, failure="wrong: result 0"),
                entry("a", "elsewhere", 0.5, device="another"),
                entry("b", "elsewhere", 0.5, device="another"),
                entry("b", "guessed", 0.1, device="predicted"),
                entry("c", "hangs", None, failure="killed"),
                entry("d", "decided", None, device=""),
            ]
        )
        file.add([entry("a", "slow", 0.9)])  # measured again
    record = read_record(str(path), device_of_cores())
    found = {key: schedule for key, (schedule, _) in record.schedules["cpu"].items()}
    assert found == {"a": "slow", "b": "elsewhere", "d": "decided"}


def test_exchange_and_clearing_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export and import keep all entries. Of two entries for a schedule the later one stays."""
    one, two, three = (str(tmp_path / name) for name in ("one.db", "two.db", "three.db"))
    with RecordFile(one) as file:
        file.add([entry("a", "x", 2.0), entry("a", "y", 1.0, version="0.0.1"), entry("a", "z", None, failure="killed")])
        file.add_nest("a", "a nest", "text")
        file.add_fusion("f", [1, 2])
        file.set_constants("cpu", "here", {"rates.memory": 2.0}, {"nests": 1})
    with RecordFile(two) as file:
        file.add([entry("a", "x", 3.0, at=9.0), entry("b", "x", 1.0)])
    out = str(tmp_path / "all.json")
    assert cli.main(["records", "export", "--file", one, out]) == 0
    assert read_record(out).schedules["cpu"]["a"] == ("y", "a nest")  # JSON is a record, too
    assert cli.main(["records", "import", "--file", three, out]) == 0
    assert cli.main(["records", "merge", "--file", three, two]) == 0
    assert "2 entries" in capsys.readouterr().out
    with RecordFile(three) as file, RecordFile(one) as first:
        assert file.entries(key="a", schedule="x")[0].seconds == 3.0
        assert len(file.entries()) == 4
        assert file.constants("cpu", "here") == first.constants("cpu", "here")
        assert read_record(three).fusions == {"f": [1, 2]}
    assert cli.main(["records", "list", "--file", three]) == 0
    shown = capsys.readouterr().out
    assert "3 schedules, 1 of them failed" in shown
    assert "1 s +-0.0%  y" in shown
    assert cli.main(["records", "prune", "--file", three, "--failed", "--other-versions"]) == 0
    with RecordFile(three) as file:
        assert {(e.key, e.schedule) for e in file.entries()} == {("a", "x"), ("b", "x")}
    assert cli.main(["records", "prune", "--file", three]) == 2
    assert cli.main(["records", "list", "--file", str(tmp_path / "none.db")]) == 1


@pytest.mark.parametrize("kind", ["foreign", "newer", "torn", "other"])
def test_files_of_something_else_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "records.db"
    with RecordFile(path) as file:
        file.add([entry("a", "x", 1.0)])
    if kind == "torn":
        path.write_bytes(path.read_bytes()[:5000] + b"\0" * 4000)
    elif kind == "other":
        path.write_text("hello")
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99" if kind == "newer" else "PRAGMA application_id = 7")
    with pytest.raises(RecordError, match="records.db: record: "):
        read_record(str(path))


def test_a_record_serves_a_renamed_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilations use the user's records by default. The planner replaces an impossible schedule, with a remark."""
    path, task = tmp_path / "records.db", task_of(64)
    tuned = "#tile.schedule<block = [4, 64], chunk = [64, 64], warps = 1, lanes = 1>"
    assert tuned != task.untuned
    monkeypatch.setenv(RECORDS, str(path))
    with RecordFile(path) as file:
        file.add([entry(task.key, tuned, 1e-6)])

    class Renamed(torch.nn.Module):
        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.softmax(-1)

    def schedule(**options: str) -> tuple[str, list[str]]:
        program = deplodock.compile(Renamed(), [torch.zeros(8, 64)], target="cpu", **options)  # type: ignore
        (plain,) = (op for op in program.compilation.at("loop").walk() if isinstance(op, NestOp))
        assert plan_key(plain) == task.key
        (nest,) = (op for op in program.compilation.scheduled().walk() if isinstance(op, NestOp))
        remarks = [*map(str, program.compilation.remarks)]
        return str(nest.attributes["schedule"]), [r for r in remarks if "[plan-schedules]" in r]

    assert schedule() == (tuned, [])
    assert schedule(record="none") == (task.untuned, [])
    with RecordFile(path) as file:
        file.add([entry(task.key, tuned.replace("block = [4, 64]", "block = [8]"), 1e-7)])
    found, remarks = schedule()
    assert found == task.untuned
    assert any("is refused, and the planner's is taken: block: 1 extents for 2" in r for r in remarks), remarks


CASES = {
    "norm": "nn.RMSNorm(256)(torch.randn(1, 4, 256))",
    "product": "F.gelu(nn.Linear(64, 96, dtype=torch.half)(torch.randn(64, 64, dtype=torch.half)))",
    "attention": "F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 64, 32).unbind(0), is_causal=True)",
}


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_what_was_found_is_a_line_of_text(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed commands and the next compilation give identical kernels.

    An edited entry gives other kernels. For an impossible entry the planner's schedule is used, with a remark.
    """
    path = tmp_path / "records.db"
    code = CASES[name].replace(", dtype=torch.half", "") if target == "cpu" else CASES[name]
    monkeypatch.setenv(RECORDS, str(path))
    predicted = Predicting._trial

    def trial(self: Predicting, candidate: Candidate) -> Trial:
        found = predicted(self, candidate)
        own = candidate.schedule == self.task.untuned
        return replace(found, seconds=9 * found.seconds) if own and found.seconds else found

    def printed(*words: str) -> str:
        """Returns the kernels that a command prints, without comments on the command."""
        assert (dl_opt if words[0] == "dl-opt" else cli).main([*words[1:]]) == 0
        text = capsys.readouterr().out
        return "".join(line for line in text.splitlines(True) if not line.startswith("// deplodock"))

    compiled = "deplodock", "compile", "-c", code, "--target", target
    monkeypatch.setattr(Predicting, "_trial", trial)
    how = ["--device", "predicted", "--target", target, "--policy", "bayes", "--trials", "6", "--json"]
    assert cli.main(["tune", "-c", code, *how]) == 0
    outcome = json.loads(capsys.readouterr().out)
    (found,) = outcome["kernels"]
    assert (found["objective"], outcome["records"]) == ("predicted", str(path))
    assert found["best"]["schedule"] != found["untuned"]["schedule"]
    tuned, untuned = printed(*compiled), printed(*compiled, "--record", "none")
    assert tuned != untuned
    assert printed(*shlex.split(outcome["lines"]["as a schedule"])) == tuned
    above, _, below = outcome["lines"]["as passes"].partition(" | ")
    level = io.BytesIO(printed(*shlex.split(above)).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(level))
    assert printed(*shlex.split(below)) == tuned

    with RecordFile(path) as file:
        best, *others = file.entries(key=found["key"], failure="")
        assert best.schedule == found["best"]["schedule"]
        other = next(e for e in others if e.schedule != found["untuned"]["schedule"])
        file.add([replace(best, schedule=other.schedule, seconds=1e-12)])
    edited = printed(*compiled)
    assert edited not in (tuned, untuned)
    assert edited == printed(*compiled, "--schedule", options_of(parse_schedule(other.schedule)))
    with RecordFile(path) as file:
        file.add([replace(best, schedule=best.schedule.replace("chunk = [", "chunk = [3, "), seconds=1e-13)])
    assert cli.main([*compiled[1:], "-v"]) == 0
    text, said = capsys.readouterr()
    assert "".join(line for line in text.splitlines(True) if not line.startswith("// deplodock")) == untuned
    assert "is refused, and the planner's is taken" in said


def test_options_of_passes_are_part_of_a_record(tmp_path: Path) -> None:
    """Recorded pass options are used if they are the same for all nests; otherwise a remark says why not."""
    path, schedule = tmp_path / "records.db", "#tile.schedule<block = [4, 64], chunk = [64, 64], warps = 1, lanes = 1>"
    option = ("kernel-allocate-shared", "target", "sm_80")
    two = [torch.zeros(8, 64), torch.zeros(8, 32)]
    both = capture(lambda x, y: (x.softmax(-1), y.sum(0)), two)
    one = capture(lambda x: x.softmax(-1), two[:1])
    with RecordFile(path) as file:
        file.add([entry(task_of(64).key, schedule, 1e-6, options=json.dumps([option]))])
    found = compile_captured(one, "cpu", record=path)
    found.at("kernel")
    assert "kernel-allocate-shared{target=sm_80}" in found.pipeline()
    found = compile_captured(both, "cpu", record=path)
    found.at("kernel")
    assert "kernel-allocate-shared," in found.pipeline()
    assert any("are ignored, because they differ between the nests" in str(r) for r in found.remarks)


def test_schedules_of_several_nests() -> None:
    captured = capture(lambda x: (x.sum(0), x.sum(1)), [torch.zeros(64, 128)])
    text = "nest=k0 exact block=8 chunk=16 warps=2; nest=k1 exact block=16 chunk=32 warps=8"
    ir = str(compile_captured(captured, "sm_90a", record="none", schedule=text).scheduled())
    assert "<block = [8], chunk = [16], warps = 2>" in ir
    assert "<block = [16], chunk = [32], warps = 8>" in ir
    with pytest.raises(CompileError, match="several schedules have to be `exact`"):
        compile_captured(captured, "sm_90a", schedule="nest=k0 warps=2; nest=k1 warps=4")


def test_constants_that_were_fitted_are_those_of_the_target(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with RecordFile(path) as file:
        factors = {"rates.memory": 2.0, "costs.block": 3.0, "costs.gone": 5.0}
        file.set_constants("cpu", device_of_cores(), factors, {})
        file.set_constants("sm_80", "A100", {"rates.mma": 0.5}, {})
    plain = {name: get_target(name) for name in ("cpu", "sm_80", "sm_90a")}
    fitted = {name: resolve_target(name, str(path)) for name in plain}
    cpu, core = fitted["cpu"], plain["cpu"].core
    assert core is not None
    assert cpu.core is not None
    assert (cpu.rates.memory, cpu.core.costs.block) == (2 * plain["cpu"].rates.memory, 3 * core.costs.block)
    assert fitted["sm_80"].rates.mma == 0.5 * plain["sm_80"].rates.mma
    assert fitted["sm_90a"] == plain["sm_90a"]
    assert resolve_target("sm_80") == plain["sm_80"]
    path.write_bytes(b"damaged" * 1000)
    assert read_factors(path, "cpu", None) == {}


def test_json_that_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": "deplodock plans", "version": 1, "schedules": {}, "fusions": {}}')
    with RecordFile(tmp_path / "records.db") as file:
        data = read_json(str(tmp_path / "x.json"))
        assert file.absorb(data) == 0
        with pytest.raises(RecordError, match="is damaged"):
            file.absorb({**data, "trials": [{"key": "a", "colour": "red"}]})
