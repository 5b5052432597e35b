"""Tuning with workers of a Ray cluster on this machine."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

PROGRAM = """
import os, signal, sys
from dataclasses import astuple, replace
from pathlib import Path
ROOT, FOLDER = sys.argv[1:3]
sys.path.insert(0, ROOT)
import torch
from benchmarks.search.policies import POLICIES
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.extras import ray_workers
from deplodock.extras.ray_workers import RayWorkers
from deplodock.frontend.tuning.search import Limits, search
from deplodock.frontend.tuning.task import tasks_of
from deplodock.frontend.tuning.search import space_of
from deplodock.passes.record_file import RecordFile

class Make:
    # Workers of machines that there are not: two are of one kind, a third is of another; whoever measures the
    # planner's fourth candidate first is killed, for each of `ending`.
    def __init__(self, kinds, ending=()):
        self.kinds, self.ending = kinds, ending

    def kind(self):
        number = 0
        while True:
            try:
                Path(FOLDER, f"worker{number}").touch(exist_ok=False)
                return self.kinds[min(number, len(self.kinds) - 1)]
            except FileExistsError:
                number += 1

    def __call__(self, task):
        sys.path.insert(0, ROOT)
        from benchmarks.search.fixture import Kernel, Machine, Measured
        space = space_of(task)
        return Fixture(Measured(Kernel("k", space, Machine(space, "k"))), self.ending)

class Fixture:
    label = "measured"
    def __init__(self, measured, ending):
        self.measured, self.ending, self.codes = measured, ending, {}

    def measure(self, candidates):
        for c in candidates:
            for n in self.ending:
                if c == self.measured.kernel.ranked()[3]:
                    try:
                        Path(FOLDER, f"ended{n}").touch(exist_ok=False)
                        os.kill(os.getpid(), signal.SIGKILL)
                    except FileExistsError:
                        pass
        self.codes.update((c, c.schedule) for c in candidates)
        return self.measured.measure(candidates)

    def prepare(self):
        pass

    def remeasure(self, candidate):
        return self.measure([candidate])[0]

module = torch.nn.Linear(256, 256)
(task,) = tasks_of(compile_captured(capture(module, (torch.randn(128, 256),)), "cpu"))

def found(name, evaluator):
    with RecordFile(str(Path(FOLDER, name))) as records:
        policy = POLICIES["top-k"](space_of(task), 1)
        search(task, policy, evaluator, Limits(300.0, 20), records, "machine", batch=2)
        return {astuple(replace(e, at=0.0)) for e in records.entries()}

alone = found("alone.db", Make(["machine"])(task))
with RayWorkers("local", count=3, make=Make(["machine", "machine", "other"], ending=[1])) as workers:
    assert workers.kind == "machine" and workers.batch == 2 and dict(workers.left_out) == {"other": 1}
    assert found("together.db", workers.evaluator(task)) == alone
    assert Path(FOLDER, "ended1").exists() and len(workers.machines) == 2
    Path(FOLDER, "ended1").unlink()
    ray_workers.MAX_LOSSES = 1  # a candidate that ends whoever measures it
    third = space_of(task).ranked()[3]
    (trial,) = workers.evaluator(task).measure([third])
    assert trial.seconds is None and trial.failure.startswith("killed"), trial
    (other,) = workers.evaluator(task).measure([space_of(task).ranked()[1]])
    assert other.seconds
print(len(alone), sum(e[5] is None for e in alone))
"""


def test_two_workers_find_what_one_process_finds_though_one_is_killed(tmp_path: Path) -> None:
    """Two workers, of which one is killed, record the same as one process.

    Another worker measures the candidate of the lost one. Workers on another kind of machine are not used, and a
    candidate that ends too many workers is given up.
    """
    command = [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    trials, failed = map(int, done.stdout.split()[-2:])
    assert trials >= 20
    assert failed < trials


def test_no_cluster_at_an_address() -> None:
    from deplodock.errors import ExecutionError
    from deplodock.extras.ray_workers import RayWorkers

    with pytest.raises(ExecutionError, match="no Ray cluster at 127.0.0.1:1"):
        RayWorkers("127.0.0.1:1")
