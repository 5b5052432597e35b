"""Evaluates candidates: builds them in parallel, then checks and times them one at a time on the device.

Nothing is built while a candidate is timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ...errors import CompileError
from ...target.host import cores
from .building import Builder, Built, parse_schedule
from .running import Measured, Runner
from .task import Task
from .trial import Candidate, Deadline, DeadlinePassed, Evaluator, Trial
from .worker import Worker, WorkerFailed

BUILD_LIMIT, PREPARE_LIMIT, RUN_LIMIT = 60.0, 600.0, 10.0
"""Limits in seconds: to build a candidate, to compute the expected results of a task, to check or time a candidate."""


class Workers:
    """Worker processes that build and run candidates on one device.

    Args:
        device: `cpu` or `cuda`.
        builders: number of building processes; default: one for each core. With 0 this process builds, without a limit
            for a pass that hangs.
        threads: threads of a running program.
    """

    def __init__(self, device: str, builders: int | None = None, threads: int | None = None) -> None:
        self.kind = device
        self._folder = tempfile.TemporaryDirectory(prefix="deplodock-tune-")
        self.folder = Path(self._folder.name)
        count = cores() if builders is None else builders
        self.builders = [Worker(Builder, self.folder, threads=1) for _ in range(count)]
        self.runner = Worker(Runner, device, threads)

    def __enter__(self) -> Workers:
        # The start takes seconds. In the meantime the first candidates are built.
        self.runner.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self.builders, self.runner):
            worker.kill()
        self._folder.cleanup()

    @property
    def batch(self) -> int:
        return max(1, len(self.builders))

    def evaluator(self, task: Task) -> Measuring:
        return Measuring(task, self)

    def build(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        deadline: Deadline = Deadline(),
        limit: float = BUILD_LIMIT,
    ) -> list[Built | str]:
        """Builds candidates. Returns machine code, or the reason of a failure, for each.

        Args:
            task: the nest of the candidates.
            candidates: the candidates to build.
            deadline: time at which all builds are cancelled.
            limit: seconds after which one build is cancelled.

        Raises:
            DeadlinePassed: at the deadline; processes that build are killed.
        """
        if not self.builders:
            return [self._build_here(task, c, deadline) for c in candidates]
        results: dict[int, Built | str] = {}
        todo = list(enumerate(candidates))[::-1]
        busy: dict[Worker, tuple[int, Deadline]] = {}
        while todo or busy:
            if not deadline.left:
                for worker in busy:
                    worker.kill()
                raise DeadlinePassed
            for worker in self.builders:
                if worker not in busy and todo:
                    number, candidate = todo.pop()
                    worker.ask("build", task.source, candidate)
                    busy[worker] = number, deadline.after(limit)
            first = min(end.left for _, end in busy.values())
            ready = wait([w.pipe for w in busy if w.pipe is not None], first)
            for worker, (number, end) in [*busy.items()]:
                if worker.pipe in ready:
                    del busy[worker]
                    try:
                        results[number] = worker.answer(limit)
                    except WorkerFailed as error:
                        results[number] = str(error)
                elif not end.left and deadline.left:
                    del busy[worker]
                    worker.kill()
                    results[number] = f"killed: it was not built within {limit:.3g} s"
        return [results[i] for i in range(len(candidates))]

    def _build_here(self, task: Task, candidate: Candidate, deadline: Deadline) -> Built | str:
        if not deadline.left:
            raise DeadlinePassed
        try:
            return Builder(self.folder).build(task.source, candidate)
        except CompileError as error:
            return str(error)


@dataclass
class Best:
    """Fastest candidate so far, with its time in seconds. Times of later candidates are measured relative to it."""

    candidate: Candidate
    built: Built
    seconds: float


class Measuring(Evaluator):
    """Evaluates candidates of a task by running them.

    A candidate replaces the best so far if it is faster by more than the noise. A candidate that is faster by less gets
    the time of the best, so that chance does not accumulate over many candidates.

    Attributes:
        limit: seconds after which checking or timing is cancelled.
        best: the fastest candidate.
        first: the first candidate, with its machine code.
        codes: hashes of the texts of built candidates.
    """

    label = "measured"

    def __init__(self, task: Task, workers: Workers, limit: float = RUN_LIMIT) -> None:
        self.task, self.workers, self.limit = task, workers, limit
        self.best: Best | None = None
        self.first: tuple[Candidate, Built] | None = None
        self.codes: dict[Candidate, str] = {}
        self.deadline = Deadline()
        self._begun = self._ready = False

    def prepare(self) -> None:
        """Starts to compute the expected results, once, while the first candidates are built."""
        if not self._begun:
            self.workers.runner.ask("begin", replace(self.task))
            self._begun = True

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """Yields a trial for each candidate, in order. Raises WorkerFailed if the task cannot be run."""
        self.prepare()
        built = self.workers.build(self.task, candidates, self.deadline)
        try:
            if not self._ready:
                self._answer(PREPARE_LIMIT)
                self._ready = True
            for c, b in zip(candidates, built, strict=True):
                yield self._trial(c, b)
        finally:
            for b in built:
                self._drop(b)

    def _drop(self, built: Built | str) -> None:
        """Removes the shared object of a candidate, unless it is the best or the first."""
        used = (self.best and self.best.built, self.first and self.first[1])
        if isinstance(built, Built) and isinstance(built.binary, Path) and not any(b is built for b in used):
            built.binary.unlink(missing_ok=True)

    def _call(self, method: str, *arguments: object, limit: float) -> Any:
        """Calls a method of `Runner` in its process. Raises the errors of `_answer`."""
        if not self.deadline.left:
            raise DeadlinePassed
        self.workers.runner.ask(method, *arguments)
        return self._answer(limit)

    def _answer(self, limit: float) -> Any:
        """Returns the answer of the running process. Kills the process at the limit and at the deadline.

        Raises:
            WorkerFailed: if the call failed or took longer than `limit` seconds.
            DeadlinePassed: at the deadline.
        """
        try:
            return self.workers.runner.answer(min(limit, self.deadline.left))
        except WorkerFailed:
            if not self.deadline.left:
                raise DeadlinePassed from None
            raise

    def _trial(self, candidate: Candidate, built: Built | str) -> Trial:
        measured = self._run(candidate, built)
        if isinstance(measured, Trial):
            return measured
        assert isinstance(built, Built)
        if self.first is None:
            self.first, self.build_seconds = (candidate, built), built.lowering + built.compiling
        seconds, ratio = measured.seconds, 0.0
        if self.best is not None:
            ratio = measured.ratio if measured.ratio * (1 + measured.noise) < 1 else max(1.0, measured.ratio)
            seconds = ratio * self.best.seconds
        if ratio < 1:
            try:
                self._call("load", "best", built, limit=self.limit)
            except WorkerFailed as error:
                return self._failed(candidate, error)
            former, self.best = self.best, Best(candidate, built, seconds)
            if former is not None:
                self._drop(former.built)
        return Trial(candidate, seconds, min(measured.noise, 1.0))

    def _failed(self, candidate: Candidate, error: WorkerFailed) -> Trial:
        """Returns the trial of a candidate that failed. Starts a new process if the candidate ended the process."""
        if self.workers.runner.pipe is None:
            self._call("begin", replace(self.task), limit=PREPARE_LIMIT)
            if self.best is not None:
                self._call("load", "best", self.best.built, limit=self.limit)
        return Trial(candidate, None, failure=str(error))

    def remeasure(self, candidate: Candidate) -> Trial:
        """Times a candidate and the best in turns once more, and does not stop early if the candidate is slower."""
        assert self.best is not None
        if self.first is not None and self.first[0] == candidate:
            built = self.first[1]
        else:
            (built,) = self.workers.build(self.task, [candidate], self.deadline)
        measured = self._run(candidate, built, thorough=True)
        if isinstance(measured, Trial):
            return measured
        return Trial(candidate, measured.ratio * self.best.seconds, min(measured.noise, 1.0))

    def _run(self, candidate: Candidate, built: Built | str, thorough: bool = False) -> Measured | Trial:
        """Returns the times of a candidate, or the trial of a failed one."""
        if isinstance(built, str):
            return Trial(candidate, None, failure=built)
        self.codes[candidate] = built.code
        call, best = self._call, None if self.best is None else "best"
        try:
            call("load", "candidate", built, limit=self.limit)
            if wrong := call("check", "candidate", limit=self.limit):
                return Trial(candidate, None, failure=f"wrong: {wrong}")
            return call("time", "candidate", best, thorough, limit=self.limit)
        except WorkerFailed as error:
            return self._failed(candidate, error)


class Predicting(Evaluator):
    """Evaluates candidates of a task by the planning model, if nothing can be measured."""

    label = "predicted"

    def __init__(self, task: Task) -> None:
        self.task = task
        self.codes: dict[Candidate, str] = {}
        self._model = task.model()

    def measure(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Returns a trial for each candidate, in order, with the seconds that the model predicts."""
        return [self._trial(c) for c in candidates]

    def _trial(self, candidate: Candidate) -> Trial:
        try:
            return Trial(candidate, float(self._model.predict(parse_schedule(candidate.schedule)).seconds))
        except CompileError as error:
            return Trial(candidate, None, failure=str(error))
