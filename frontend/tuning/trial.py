"""Candidates, trials and deadlines of a search, and the interfaces of policies and evaluators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Protocol


@dataclass(frozen=True)
class Candidate:
    """Schedule and options of a nest.

    Attributes:
        schedule: text of a `#tile.schedule<...>`.
        options: (pass, option, value) for options of passes after `plan-schedules` that differ from their default.
        predicted: seconds by the planner's model. It does not affect equality.
    """

    schedule: str
    options: tuple[tuple[str, str, str], ...] = ()
    predicted: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Trial:
    """Result of a candidate.

    Attributes:
        candidate: the candidate.
        seconds: time: the median on a GPU, the lower quartile on the CPU; None if the candidate failed.
        noise: relative half width of the interval of the time.
        failure: reason for a missing time: refused, wrong, killed.
    """

    candidate: Candidate
    seconds: float | None
    noise: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Deadline:
    """Time at which work is cancelled, in seconds of `clock`; default: never."""

    at: float = inf
    clock: Callable[[], float] = monotonic

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.at - self.clock())

    def after(self, seconds: float) -> Deadline:
        """Returns the deadline in `seconds` from now, or this one if it is earlier."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)


class DeadlinePassed(Exception):
    """Raised at the deadline of a search. The candidate has no trial."""


class Policy(Protocol):
    """Chooses the next candidates of a search."""

    def ask(self, count: int) -> list[Candidate]:
        """Returns at most `count` new candidates, or none at the end of the space."""
        ...

    def tell(self, trial: Trial) -> None:
        """Records a trial. It may be a trial of the records, whose candidate `ask` never returned."""
        ...


class Evaluator(Protocol):
    """Compiles, checks and times candidates of one nest.

    Attributes:
        label: source of the times: `measured` or `predicted`.
        codes: hashes of the texts of built candidates.
        deadline: time after which all methods raise DeadlinePassed.
        build_seconds: processor seconds of building the first candidate.
    """

    label: str
    codes: dict[Candidate, str]
    deadline: Deadline = Deadline()
    build_seconds: float = 0.0

    def prepare(self) -> None:
        """Starts in the background what the first candidate needs, such as the expected results."""

    def measure(self, candidates: Sequence[Candidate]) -> Iterable[Trial]:
        """Yields a trial for each candidate, in order. Raises DeadlinePassed after the trials before the deadline."""
        ...

    def remeasure(self, candidate: Candidate) -> Trial:
        """Measures a candidate once more, in turns with the best."""
        (trial,) = self.measure([candidate])
        return trial


class WorkerPool(Protocol):
    """Machines or processes that measure candidates: an entry of the group `deplodock.workers`.

    A pool is made from an address, a device (`cpu` or `cuda`) and a number of threads or None. It is closed at the end
    of `with`. The class has a text `help` for the option of `tune`.

    Attributes:
        kind: name of the device in records.
        batch: number of candidates that are measured at a time.
    """

    kind: str

    @property
    def batch(self) -> int: ...

    def evaluator(self, task: Any) -> Evaluator:
        """Returns the evaluator of a task."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...
