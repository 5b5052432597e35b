"""Candidates, trials and the deadline of a search: the two interfaces between policies and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Protocol


@dataclass(frozen=True)
class Candidate:
    """One way to run a nest.

    schedule   text of a `#tile.schedule<...>`
    options    (pass, option, value) of passes below `plan-schedules` that are not at their default
    predicted  seconds by the planner's model; no part of what the candidate is
    """

    schedule: str
    options: tuple[tuple[str, str, str], ...] = ()
    predicted: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Trial:
    """A candidate that was evaluated: its median time and the relative half width of the interval of that, or why it
    has none (`failure`: refused, wrong, killed, …)."""

    candidate: Candidate
    seconds: float | None
    noise: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Deadline:
    """Moment at which work is cancelled, in seconds of `clock`; by default never."""

    at: float = inf
    clock: Callable[[], float] = monotonic

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.at - self.clock())

    def after(self, seconds: float) -> Deadline:
        """Returns the moment in `seconds` from now, or this deadline if it is earlier."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)


class DeadlinePassed(Exception):
    """The deadline of a search passed during work on a candidate, which therefore has no trial."""


class Policy(Protocol):
    """Decides what to try next."""

    def ask(self, count: int) -> list[Candidate]:
        """At most `count` candidates that were not asked for before; none when there is nothing left to try."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take note of the result of a candidate. Trials of records, which were never asked for, may come, too."""
        ...


class Evaluator(Protocol):
    """Compiles, checks and times candidates of one nest. `label` says how it finds times, `codes` are the hashes of the
    texts of candidates that were built, `build_seconds` the processor's seconds for the first one. After `deadline` all
    methods raise DeadlinePassed."""

    label: str
    codes: dict[Candidate, str]
    deadline: Deadline = Deadline()
    build_seconds: float = 0.0

    def prepare(self) -> None:
        """Do what it takes before the first candidate."""

    def measure(self, candidates: Sequence[Candidate]) -> Iterable[Trial]:
        """A trial for each candidate, in order; those before the deadline precede DeadlinePassed."""
        ...

    def again(self, candidate: Candidate) -> Trial:
        """A candidate once more, in turns with the best."""
        (trial,) = self.measure([candidate])
        return trial


class WorkerPool(Protocol):
    """The machines or processes that measure candidates, an entry of the group `deplodock.workers`: made from an
    address, a device (`cpu` or `cuda`) and a number of threads (or None), and closed at the end of `with`.

    `kind` is the device, as records name it, and `batch` the number of candidates that are measured at a time. The
    class of an entry has a text `help` for the option of `tune`.
    """

    kind: str

    @property
    def batch(self) -> int: ...

    def evaluator(self, task: Any) -> Evaluator:
        """Returns what measures the candidates of a task."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...
