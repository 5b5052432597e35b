"""Candidates measured by the machines of a Ray cluster: one queue; a machine that is lost loses at most its candidate,
which another one measures again.

Ray starts processes and carries what they are asked; that is all it is needed for (`pip install "deplodock[ray]"`). A
worker of the cluster is a machine that measures as this one would: its processes build, check and time
(`evaluation.py`), and its candidates take turns with its own best.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..errors import ExecutionError
from ..frontend.tuning.trial import Candidate, Deadline, DeadlinePassed, Evaluator, Trial, WorkerPool

LOSSES = 3
"""Number of machines that may be lost with a candidate before it is given up: it may be what ends them."""

ANSWER = 5.0
"""Seconds in which a cluster answers, if there is one."""


class LocalEvaluators:
    """Makes the evaluator of a task on the machine on which it is called; a copy goes to each worker."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        self.device, self.threads = device, threads
        self._workers: Any = None

    def kind(self) -> str:
        """Returns the name of the device in records."""
        from ..frontend.tuning.search import device_name

        return device_name(self.device)

    def __call__(self, task: Any) -> Evaluator:
        from ..frontend.tuning.evaluation import Measuring, Workers

        if self._workers is None:
            self._workers = Workers(self.device, threads=self.threads)
        return Measuring(task, self._workers)


class Machine:
    """A worker of the cluster, with the evaluator of the task that it was asked about last."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._evaluator: Any = None
        self._number = -1

    def kind(self) -> str:
        return self._make.kind()

    def begin(self, number: int, task: Any) -> None:
        """Makes the evaluator of the task `number` and prepares it for the first candidate."""
        if number != self._number:
            self._evaluator, self._number = self._make(task), number
            self._evaluator.prepare()

    def measure(self, number: int, task: Any, candidate: Candidate) -> tuple[Trial, str]:
        """Returns a candidate of the task `number` as a trial, and the hash of its text."""
        self.begin(number, task)
        (trial,) = self._evaluator.measure([candidate])
        return trial, getattr(self._evaluator, "codes", {}).get(candidate, "")


class RayWorkers(WorkerPool):
    """The machines of a cluster that have a device of one kind: `kind`, or the one that most of them have.

    `left_out` counts the devices of other kinds, whose times say nothing about these.

    Args:
        address: as for `ray.init`; `local` starts a cluster on this machine.
        device: `cpu` or `cuda`: a worker has all cores of its node, or one GPU.
        threads: threads of a kernel; left out, all cores.
        kind: the name of the device in records.
        count: number of workers; left out, the number of nodes or GPUs.
        make: makes the evaluators.

    Raises:
        ExecutionError: if Ray is not installed, does not answer, or has no such device.
    """

    help = "Measure on a Ray cluster: HOST:PORT, auto, or local."

    def __init__(
        self,
        address: str,
        device: str = "cpu",
        threads: int | None = None,
        kind: str | None = None,
        count: int | None = None,
        make: Any = None,
    ) -> None:
        self.ray = _connected(address)
        self._make = make or LocalEvaluators(device, threads)
        self._options = {"num_gpus": 1} if device == "cuda" else {"scheduling_strategy": "SPREAD"}
        if count is None and device == "cuda":
            count = int(self.ray.cluster_resources().get("GPU", 0))
        elif count is None:
            count = sum(n["Alive"] for n in self.ray.nodes())
        machines = [self._start() for _ in range(count)]
        kinds = [self.ray.get(m.kind.remote()) for m in machines]
        self.kind = kind or next((k for k, _ in Counter(kinds).most_common(1)), "")
        self.machines = [m for m, k in zip(machines, kinds, strict=True) if k == self.kind]
        self.left_out = Counter(k for k in kinds if k != self.kind)
        for machine in machines:
            if machine not in self.machines:
                self.ray.kill(machine)
        if not self.machines:
            raise ExecutionError(f"the Ray cluster at {address} has no device {kind or device}", argument="--ray")
        self._tasks = 0

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()  # a cluster that was there before stays

    @property
    def batch(self) -> int:
        return len(self.machines)

    def evaluator(self, task: Any) -> RayMeasuring:
        self._tasks += 1
        return RayMeasuring(self, self._tasks, task)

    def replace(self, machine: Any) -> None:
        """Starts another worker in place of one that is lost or killed."""
        if machine in self.machines:
            self.machines[self.machines.index(machine)] = self._start()

    def _start(self) -> Any:
        return self.ray.remote(Machine).options(**self._options).remote(self._make)


def _connected(address: str) -> Any:
    """Returns Ray with a cluster."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ExecutionError('Ray is not installed: pip install "deplodock[ray]"', argument="--ray") from None
    host, _, port = address.rpartition(":")
    local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 100 << 20} if address == "local" else {}
    try:
        if port.isdecimal():  # of which Ray tries for minutes whether it answers
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ExecutionError(f"no Ray cluster at {address}: {_told(error)}", argument="--ray") from None
    return ray


@dataclass
class RayMeasuring(Evaluator):
    """An evaluator whose candidates go to the machines as these are free. `codes` are the hashes of their texts."""

    workers: RayWorkers
    number: int
    task: Any
    codes: dict[Candidate, str] = field(default_factory=dict[Candidate, str])
    deadline: Deadline = field(default=Deadline())
    label = "measured"

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """Yields a trial for each candidate, in order. One whose machine is lost goes to another, up to `LOSSES` times.
        Machines that are busy at the deadline are replaced, and DeadlinePassed follows the trials that are done."""
        ray, trials = self.workers.ray, dict[int, Trial]()
        todo, losses = list(range(len(candidates)))[::-1], Counter[int]()
        busy: dict[Any, tuple[Any, int]] = {}
        while todo or busy:
            used = [machine for machine, _ in busy.values()]
            for machine in [m for m in self.workers.machines if m not in used][: len(todo)]:
                n = todo.pop()
                busy[machine.measure.remote(self.number, self.task, candidates[n])] = machine, n
            if (ready := self._first_ready([*busy])) is None:
                for machine, _ in busy.values():
                    ray.kill(machine)
                    self.workers.replace(machine)
                yield from (trials[n] for n in sorted(trials))
                raise DeadlinePassed
            machine, n = busy.pop(ready)
            try:
                trials[n], self.codes[candidates[n]] = ray.get(ready)
            except ray.exceptions.RayActorError as error:
                self.workers.replace(machine)
                losses[n] += 1
                if losses[n] < LOSSES:
                    todo.append(n)
                else:
                    trials[n] = Trial(candidates[n], None, failure=f"killed: {_told(error)}")
            except ray.exceptions.RayTaskError as error:
                trials[n] = Trial(candidates[n], None, failure=_told(error))
        yield from (trials[n] for n in range(len(candidates)))

    def prepare(self) -> None:
        """Prepares all machines together. One that fails says so when it is asked for a candidate."""
        started = [m.begin.remote(self.number, self.task) for m in self.workers.machines]
        self._first_ready(started, len(started))
        if not self.deadline.left:
            raise DeadlinePassed

    def _first_ready(self, asked: list[Any], count: int = 1) -> Any:
        """Returns the first answer, after `count` of those `asked` for are there, or None at the deadline."""
        timeout = None if self.deadline.at == inf else self.deadline.left
        ready, _ = self.workers.ray.wait(asked, num_returns=count, timeout=timeout)
        return ready[0] if len(ready) == count else None


def _told(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())[:200]
