"""What a search tries and what came of it: the two interfaces between policies and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


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
    texts of candidates that were built."""

    label: str
    codes: dict[Candidate, str]

    def prepare(self) -> None:
        """Do what it takes before the first candidate."""

    def measure(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """A trial for each candidate, in order."""
        ...

    def again(self, candidate: Candidate) -> Trial:
        """A candidate once more, in turns with the best."""
        (trial,) = self.measure([candidate])
        return trial
