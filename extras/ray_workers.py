"""Tuning on a Ray cluster: `tune --ray` measures candidate schedules on the machines of the cluster.

Candidates are in one queue. If a machine is lost, another one measures its candidate again. Ray is only used to start
processes and to send messages (`pip install "deplodock[ray]"`).

A machine is a worker of the cluster: a node, or one of its GPUs. It compiles, checks and times candidates exactly as
local tuning does (`frontend/tuning/evaluation.py`), and compares them with the best candidate on the same machine.
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

MAX_LOSSES = 3
"""Number of machines that may be lost while they measure a candidate. Then it is given up, as the likely cause."""

CONNECT_TIMEOUT_SECONDS = 5.0
"""Timeout of the connection to a cluster, in seconds."""


class LocalEvaluators:
    """Factory of evaluators. It is copied to each machine, and makes evaluators that measure there.

    Args:
        device: `cpu` or `cuda`.
        threads: threads of a kernel; default: all cores.
    """

    def __init__(self, device: str, threads: int | None = None) -> None:
        self.device, self.threads = device, threads
        self._workers: Any = None

    def kind(self) -> str:
        """Returns the name of the machine's device in tuning records."""
        from ..frontend.tuning.search import device_name

        return device_name(self.device)

    def __call__(self, task: Any) -> Evaluator:
        from ..frontend.tuning.evaluation import Measuring, Workers

        if self._workers is None:
            self._workers = Workers(self.device, threads=self.threads)
        return Measuring(task, self._workers)


class Machine:
    """Ray actor: a machine of the cluster, with the evaluator of its current task.

    Args:
        make: factory of evaluators.
    """

    def __init__(self, make: Any) -> None:
        self._make = make
        self._evaluator: Any = None
        self._number = -1

    def kind(self) -> str:
        return self._make.kind()

    def begin(self, number: int, task: Any) -> None:
        """Makes and prepares the evaluator of `task`, unless it is the current task. `number` identifies the task."""
        if number != self._number:
            self._evaluator, self._number = self._make(task), number
            self._evaluator.prepare()

    def measure(self, number: int, task: Any, candidate: Candidate) -> tuple[Trial, str]:
        """Measures a candidate.

        Args:
            number: number of the task.
            task: the task.
            candidate: the candidate.

        Returns:
            The trial, and the hash of the candidate's text, or "".
        """
        self.begin(number, task)
        (trial,) = self._evaluator.measure([candidate])
        return trial, getattr(self._evaluator, "codes", {}).get(candidate, "")


class RayWorkers(WorkerPool):
    """Worker pool of the machines of a cluster whose devices are of the same kind.

    Attributes:
        machines: actors (`Machine`).
        kind: name of their devices in tuning records.
        left_out: number of unused devices by kind. Their times would not be comparable.

    Args:
        address: address for `ray.init`; `local` starts a cluster on the local machine.
        device: `cpu` or `cuda`. A machine has all cores of a node, or one GPU.
        threads: threads of a kernel; default: all cores.
        kind: name of the devices to use; default: the most frequent one.
        count: number of actors to start; default: the number of nodes or GPUs.
        make: factory of evaluators; default: `LocalEvaluators`.

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
        # Disconnects. Stops the cluster only if it was started here.
        self.ray.shutdown()

    @property
    def batch(self) -> int:
        return len(self.machines)

    def evaluator(self, task: Any) -> RayMeasuring:
        self._tasks += 1
        return RayMeasuring(self, self._tasks, task)

    def replace(self, machine: Any) -> None:
        """Starts another actor that replaces a lost or killed one."""
        if machine in self.machines:
            self.machines[self.machines.index(machine)] = self._start()

    def _start(self) -> Any:
        return self.ray.remote(Machine).options(**self._options).remote(self._make)


def _connected(address: str) -> Any:
    """Returns the module `ray`, connected to a cluster. Raises ExecutionError if that fails."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ExecutionError('Ray is not installed: pip install "deplodock[ray]"', argument="--ray") from None
    host, _, port = address.rpartition(":")
    local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 100 << 20} if address == "local" else {}
    try:
        # Ray itself retries for minutes if the host does not answer.
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ExecutionError(f"no Ray cluster at {address}: {_one_line(error)}", argument="--ray") from None
    return ray


@dataclass
class RayMeasuring(Evaluator):
    """Evaluator that distributes candidates to the free machines of a cluster.

    Attributes:
        workers: the machines.
        number: number of the task.
        task: the task.
        codes: hash of the text of each measured candidate.
        deadline: time at which measuring stops.
    """

    workers: RayWorkers
    number: int
    task: Any
    codes: dict[Candidate, str] = field(default_factory=dict[Candidate, str])
    deadline: Deadline = field(default=Deadline())
    label = "measured"

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Trial]:
        """Yields a trial for each candidate, in order.

        A candidate whose machine is lost is measured by another machine, until `MAX_LOSSES` are lost.

        Raises:
            DeadlinePassed: at the deadline, after the completed trials. Busy machines are killed and replaced.
        """
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
                if losses[n] < MAX_LOSSES:
                    todo.append(n)
                else:
                    trials[n] = Trial(candidates[n], None, failure=f"killed: {_one_line(error)}")
            except ray.exceptions.RayTaskError as error:
                trials[n] = Trial(candidates[n], None, failure=_one_line(error))
        yield from (trials[n] for n in range(len(candidates)))

    def prepare(self) -> None:
        """Prepares all machines in parallel. A failure is reported by the first `measure` on the machine.

        Raises DeadlinePassed at the deadline.
        """
        started = [m.begin.remote(self.number, self.task) for m in self.workers.machines]
        self._first_ready(started, len(started))
        if not self.deadline.left:
            raise DeadlinePassed

    def _first_ready(self, calls: list[Any], count: int = 1) -> Any:
        """Waits until `count` of the remote calls are ready. Returns the first ready one, or None at the deadline."""
        timeout = None if self.deadline.at == inf else self.deadline.left
        ready, _ = self.workers.ray.wait(calls, num_returns=count, timeout=timeout)
        return ready[0] if len(ready) == count else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())[:200]
