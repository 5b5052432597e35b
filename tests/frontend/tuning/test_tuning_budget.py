"""A search ends at its deadline, however long a candidate takes, and its processes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning import evaluation, search as tuned
from deplodock.frontend.tuning.building import Built
from deplodock.frontend.tuning.running import Measured
from deplodock.frontend.tuning.search import TIME_IS_UP, Search
from deplodock.frontend.tuning.task import Task, tasks_of
from deplodock.frontend.tuning.trial import Deadline
from deplodock.frontend.tuning.worker import Worker, WorkerFailed
from deplodock.passes.record_file import RecordFile

BUDGET = 25.0


class Machine:
    """A simulated clock and worker processes. `takes` returns the seconds of a method's call by name and number."""

    def __init__(self, takes: Callable[[str, int], float]) -> None:
        self.takes, self.now, self.calls = takes, 0.0, dict[str, int]()
        self.workers: list[StubWorker] = []

    def worker(self, make: Callable[..., Any], *arguments: Any, threads: int | None = None) -> StubWorker:
        """Replaces `Worker`."""
        self.workers.append(StubWorker(self))
        return self.workers[-1]

    def wait(self, pipes: Sequence[StubWorker], timeout: float) -> list[StubWorker]:
        """Replaces `multiprocessing.connection.wait`."""
        self.now = min([self.now + timeout, *(max(self.now, p.done) for p in pipes)])
        return [p for p in pipes if p.done <= self.now]


class StubWorker:
    """A worker process of a `Machine`, and the pipe to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.method, self.done, self.kills = machine, "", 0.0, 0
        self.pipe: StubWorker | None = None

    def start(self) -> None:
        self.pipe = self

    def kill(self) -> None:
        self.kills += self.pipe is not None and self.done > self.machine.now
        self.pipe = None

    def ask(self, method: str, *arguments: Any) -> None:
        self.start()
        self.method, calls = method, self.machine.calls
        calls[method] = calls.get(method, 0) + 1
        self.done = self.machine.now + self.machine.takes(method, calls[method])

    def answer(self, limit: float) -> Any:
        if self.done - self.machine.now > limit:
            self.machine.now += limit
            self.kill()
            raise WorkerFailed("killed")
        self.machine.now = max(self.machine.now, self.done)
        built, measured = Built(None, b"", "code", 0.0, 0.0), Measured(1e-3, 1.0, 0.01, False)  # type: ignore[arg-type]
        return {"build": built, "check": "", "time": measured}.get(self.method)

    def call(self, method: str, *arguments: Any, limit: float) -> Any:
        self.ask(method, *arguments)
        return self.answer(limit)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    def two_nests(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1).sum(0)

    return tasks_of(compile_captured(capture(two_nests, [torch.zeros(64, 512)]), "cpu", record="none"))


def searched(
    tasks: list[Task], records: RecordFile | None, monkeypatch: pytest.MonkeyPatch, takes: Callable[[str, int], float]
) -> tuple[Machine, list[Search]]:
    """Runs a search with a budget of 25 seconds on a `Machine`. Returns the machine and the searches."""
    machine = Machine(takes)
    monkeypatch.setattr(evaluation, "Worker", machine.worker)
    monkeypatch.setattr(evaluation, "wait", machine.wait)
    monkeypatch.setattr(tuned, "make_policy", lambda *how: Endless())
    how, deadline = tuned.TuneOptions("cpu", "", BUDGET, 1000), Deadline(BUDGET, lambda: machine.now)
    with evaluation.Workers("cpu", builders=2) as workers:
        return machine, tuned.tune(tasks, how, records, lambda search: None, workers, deadline)


class Endless:
    """A policy that never ends. Its candidates have equal schedules, but differ in an option with their number."""

    asked = 0

    def ask(self, count: int) -> list[Any]:
        from deplodock.frontend.tuning.trial import Candidate

        Endless.asked += count
        return [Candidate(SCHEDULE, (("pass", "number", str(Endless.asked - i)),)) for i in range(count)]

    def tell(self, trial: Any) -> None:
        pass


SCHEDULE = "#tile.schedule<block = [1, 512], chunk = [512], warps = 1, lanes = 1>"
NORMAL = {"begin": 1.0, "build": 0.5, "load": 0.01, "check": 0.01, "time": 0.4}


@pytest.mark.parametrize("method", NORMAL)
@pytest.mark.parametrize("call", [1, 2, 5])
def test_the_deadline_holds(
    method: str, call: int, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of one candidate takes 1,000 seconds: it is cancelled at its limit or at the deadline.

    Its process is killed. The records have no failure for a candidate that was cancelled at the deadline.
    """

    def takes(name: str, number: int) -> float:
        return 1000.0 if (name, number) == (method, call) else NORMAL[name]

    with RecordFile(tmp_path / "records.db") as records:
        machine, searches = searched(tasks, records, monkeypatch, takes)
        failures = [e.failure for e in records.entries() if e.failure]
    assert machine.now <= BUDGET
    assert len(searches) == len(tasks)
    assert searches[-1].ended == TIME_IS_UP
    reached = machine.calls[method] >= call
    assert sum(w.kills for w in machine.workers) >= reached
    assert len(failures) <= (reached and method in ("load", "check", "time"))  # at their limit
    if method != "begin":
        assert (searches[0].untuned is not None) == ((method, call) != ("build", 1))


def test_all_of_the_budget_is_used(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests share the budget. Each search ends by timing the planner's pick and the best candidate in turns."""
    machine, searches = searched(tasks, None, monkeypatch, lambda name, number: NORMAL[name])
    assert 0.8 * BUDGET <= machine.now <= BUDGET
    assert [s.ended for s in searches] == [TIME_IS_UP] * len(tasks)
    assert all(len(s.trials) > 3 for s in searches)


def test_builds_that_all_take_long(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    machine, searches = searched(tasks, None, monkeypatch, lambda name, number: 50.0 if name == "build" else 0.1)
    assert machine.now == BUDGET
    assert not any(s.trials for s in searches)
    assert {s.ended for s in searches} == {TIME_IS_UP}


SLEEPER = partial(SimpleNamespace, sleep=time.sleep)


def test_a_worker_whose_caller_is_gone_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """Regression: a worker whose answer has no reader printed a traceback of BrokenPipeError."""
    worker = Worker(SLEEPER)
    worker.ask("sleep", 0.2)
    assert worker._process is not None
    assert worker.pipe is not None
    worker.pipe.close()
    assert worker._process.wait(30) == 0
    assert capfd.readouterr().err == ""


PARENT = """
import time
from functools import partial
from types import SimpleNamespace
from deplodock.frontend.tuning.worker import Worker
worker = Worker(partial(SimpleNamespace, sleep=time.sleep))
worker.call("sleep", 0.0, limit=60.0)
worker.ask("sleep", 600.0)
print(worker._process.pid, flush=True)
time.sleep(600.0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")
def test_workers_end_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        assert running(number)
        parent.kill()
    end = time.monotonic() + 20.0
    while running(number) and time.monotonic() < end:
        time.sleep(0.01)
    left = running(number)
    if left:
        os.kill(number, signal.SIGKILL)
    assert not left


def running(number: int) -> bool:
    """Returns true if a process with this number runs. A zombie does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
