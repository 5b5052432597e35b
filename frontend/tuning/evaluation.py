"""Candidates as trials: built in parallel, by processes that may be killed; then one after the other, while nothing is
built, checked and timed on the device."""

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
"""Seconds for a candidate to be built, for a task's results in float64, and for a candidate to be checked or timed."""


class Workers:
    """The processes that build and run candidates of all tasks on one device, `cpu` or `cuda`.

    `builders` is how many build at once; with 0 this process builds, which then cannot be helped if a pass hangs.
    """

    def __init__(self, device: str, builders: int | None = None, threads: int | None = None) -> None:
        self.kind = device
        self._folder = tempfile.TemporaryDirectory(prefix="deplodock-tune-")
        self.folder = Path(self._folder.name)
        count = cores() if builders is None else builders
        self.builders = [Worker(Builder, self.folder, threads=1) for _ in range(count)]
        self.runner = Worker(Runner, device, threads)

    def __enter__(self) -> Workers:
        self.runner.start()  # which takes seconds, while the first candidates are built
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
        """Returns the candidates as code, or the reason for which there is none.

        Args:
            task: the nest of the candidates.
            candidates: the candidates to build.
            deadline: when all of it is cancelled.
            limit: seconds after which one candidate is cancelled.
        Raises:
            DeadlinePassed: at the deadline; processes that build are killed.
        """
        if not self.builders:
            return [self._build_here(task, c, deadline) for c in candidates]
        found: dict[int, Built | str] = {}
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
                        found[number] = worker.answer(limit)
                    except WorkerFailed as error:
                        found[number] = str(error)
                elif not end.left and deadline.left:
                    del busy[worker]
                    worker.kill()
                    found[number] = f"killed: it was not built within {limit:.3g} s"
        return [found[i] for i in range(len(candidates))]

    def _build_here(self, task: Task, candidate: Candidate, deadline: Deadline) -> Built | str:
        if not deadline.left:
            raise DeadlinePassed
        try:
            return Builder(self.folder).build(task.source, candidate)
        except CompileError as error:
            return str(error)


@dataclass
class Best:
    """The fastest candidate so far: its code, and the seconds that others are compared with."""

    candidate: Candidate
    built: Built
    seconds: float


class Measuring(Evaluator):
    """Evaluates candidates of a task by running them. A candidate is faster than the best so far if it is by more than
    the noise; otherwise it is said to be as fast, so that chance does not add up over many of them.

    `codes` are the hashes of the texts of those that were built, `best` the fastest, `first` the code of the first one.
    `limit` are the seconds that checking or timing one may take before it is killed.
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
        """Have the results computed that others are compared with, once, while the first candidates are built."""
        if not self._begun:
            self.workers.runner.ask("begin", replace(self.task))
            self._begun = True

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """A trial for each candidate, in order. Raises WorkerFailed where the task cannot be run."""
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
        """Remove the shared object of a candidate that is neither the best nor the first."""
        used = (self.best and self.best.built, self.first and self.first[1])
        if isinstance(built, Built) and isinstance(built.binary, Path) and not any(b is built for b in used):
            built.binary.unlink(missing_ok=True)

    def _call(self, method: str, *arguments: object, limit: float) -> Any:
        """Calls a method of the process that runs candidates; raises as `_answer`."""
        if not self.deadline.left:
            raise DeadlinePassed
        self.workers.runner.ask(method, *arguments)
        return self._answer(limit)

    def _answer(self, limit: float) -> Any:
        """Returns the answer of the process that runs candidates. Raises WorkerFailed, and DeadlinePassed at the
        deadline, at which the process is killed."""
        try:
            return self.workers.runner.answer(min(limit, self.deadline.left))
        except WorkerFailed:
            if not self.deadline.left:
                raise DeadlinePassed from None
            raise

    def _trial(self, candidate: Candidate, built: Built | str) -> Trial:
        found = self._run(candidate, built)
        if isinstance(found, Trial):
            return found
        assert isinstance(built, Built)
        if self.first is None:
            self.first, self.build_seconds = (candidate, built), built.lowering + built.compiling
        seconds, ratio = found.seconds, 0.0
        if self.best is not None:
            ratio = found.ratio if found.ratio * (1 + found.noise) < 1 else max(1.0, found.ratio)
            seconds = ratio * self.best.seconds
        if ratio < 1:
            try:
                self._call("load", "best", built, limit=self.limit)
            except WorkerFailed as error:
                return self._failed(candidate, error)
            former, self.best = self.best, Best(candidate, built, seconds)
            if former is not None:
                self._drop(former.built)
        return Trial(candidate, seconds, min(found.noise, 1.0))

    def _failed(self, candidate: Candidate, error: WorkerFailed) -> Trial:
        """Returns the trial of a candidate that cannot be run. If it ended the process, another one is made ready."""
        if self.workers.runner.pipe is None:
            self._call("begin", replace(self.task), limit=PREPARE_LIMIT)
            if self.best is not None:
                self._call("load", "best", self.best.built, limit=self.limit)
        return Trial(candidate, None, failure=str(error))

    def again(self, candidate: Candidate) -> Trial:
        """A candidate in turns with the best once more, for longer than it takes to see that it is slower. Which of
        both is faster, this decides."""
        assert self.best is not None
        if self.first is not None and self.first[0] == candidate:
            built = self.first[1]
        else:
            (built,) = self.workers.build(self.task, [candidate], self.deadline)
        found = self._run(candidate, built, whole=True)
        if isinstance(found, Trial):
            return found
        return Trial(candidate, found.ratio * self.best.seconds, min(found.noise, 1.0))

    def _run(self, candidate: Candidate, built: Built | str, whole: bool = False) -> Measured | Trial:
        """The time of a candidate, or the trial of one that has none."""
        if isinstance(built, str):
            return Trial(candidate, None, failure=built)
        self.codes[candidate] = built.code
        call, best = self._call, None if self.best is None else "best"
        try:
            call("load", "candidate", built, limit=self.limit)
            if wrong := call("check", "candidate", limit=self.limit):
                return Trial(candidate, None, failure=f"wrong: {wrong}")
            return call("time", "candidate", best, whole, limit=self.limit)
        except WorkerFailed as error:
            return self._failed(candidate, error)


class Predicting(Evaluator):
    """Evaluates candidates of a task by the planning model, where nothing can be measured."""

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
