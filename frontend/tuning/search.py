"""The search for a schedule of one nest: a policy asks, an evaluator answers, and records keep what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from time import time

import torch

from ...passes.record_file import Entry, RecordFile
from ...target.host import device_of_cores
from .building import parse_schedule
from .task import Task
from .trial import Candidate, Deadline, DeadlinePassed, Evaluator, Policy, Trial
from .worker import WorkerFailed

CLOSE_TO_ROOF, ABOVE_ROOF = 0.97, 1.1
"""The share of the roofline at which a search ends, and that from which on the target's rates are not those of the
device."""


AGAIN = 0.1
"""Share of the seconds of a search in which the planner's pick and the best take turns once more."""

TIME_IS_UP = "the time is used up"


@dataclass(frozen=True)
class Limits:
    """End of a search: after so many seconds, which include what `AGAIN` reserves, or trials. The candidate that is
    measured then is the last one. At `deadline` work is cancelled."""

    seconds: float = 60.0
    trials: int = 1000
    deadline: Deadline = Deadline()


@dataclass
class Search:
    """How far a search is. `trials` are those of this one, in order, with the seconds since its start at which each was
    done; the first is the planner's pick, which took `build_seconds` of the processor to build. `ended` says why it
    ended."""

    task: Task
    label: str
    limits: Limits
    trials: list[tuple[float, Trial]] = field(default_factory=list[tuple[float, Trial]])
    untuned: Trial | None = None
    best: Trial | None = None
    known: int = 0
    ended: str = ""
    started: float = 0.0
    stopped: float | None = None
    build_seconds: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began, until it ended."""
        return (self.limits.deadline.clock() if self.stopped is None else self.stopped) - self.started

    @property
    def share(self) -> float:
        """The share of the roofline that the best has reached."""
        if self.best is None or not self.best.seconds:
            return 0.0
        atom = parse_schedule(self.best.candidate.schedule).data.atom
        return self.task.floor(atom) / self.best.seconds

    @property
    def speedup(self) -> float:
        """How many times as fast as the planner's pick the best is; 1 where one of both has no time."""
        first, best = self.untuned, self.best
        return first.seconds / best.seconds if first and best and first.seconds and best.seconds else 1.0

    def take(self, trial: Trial) -> None:
        """Note a trial that was just done."""
        self.trials.append((self.elapsed, trial))
        if trial.seconds is not None and (self.best is None or trial.seconds < (self.best.seconds or 0.0)):
            self.best = trial

    def over(self) -> str:
        """Why the search is to end now; empty if it goes on."""
        if self.elapsed >= (1 - AGAIN) * self.limits.seconds:
            return TIME_IS_UP
        if len(self.trials) >= self.limits.trials:
            return "all trials are done"
        return "the roofline is reached" if CLOSE_TO_ROOF <= self.share < ABOVE_ROOF else ""


def device_name(device: str) -> str:
    """What a device is called in records: `cpu` and `cuda` are those here, others are called what they are."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return device_of_cores() if device == "cpu" else device


def search(
    task: Task,
    policy: Policy,
    evaluator: Evaluator,
    limits: Limits,
    records: RecordFile | None = None,
    device: str = "cpu",
    told: Callable[[Search], None] = lambda search: None,
    batch: int = 4,
) -> Search:
    """Search until the limits, the roofline or the end of the space; Ctrl-C ends it, too, and what was found is kept.

    The planner's pick is tried first, then the best of the records on this device; what else they have the policy is
    told. Every trial is in `records` before the next is begun; `told` is called after each. At the end the planner's
    pick takes turns with the best once more, so that the speed-up is no chance of a single trial. A candidate that is
    cancelled at the deadline has no trial.
    """
    keeper, clock = _Keeper(task, records, device_name(device)), limits.deadline.clock
    evaluator.deadline = limits.deadline
    found = Search(task, evaluator.label, limits, started=clock())
    first = [Candidate(task.untuned, predicted=task.expected)]
    known = keeper.known()
    found.known = len(known)
    best = next((t for t in known if t.seconds is not None), None)
    if best is not None and best.candidate != first[0]:
        first.append(best.candidate)
    for trial in known:
        policy.tell(trial)

    def measure(candidates: list[Candidate]) -> None:
        """Note the trial of each, and tell who wants to know, until the search is over."""
        for trial in evaluator.measure(candidates):
            keeper.keep(trial, evaluator.codes.get(trial.candidate, ""))
            policy.tell(trial)
            found.take(trial)
            found.untuned = found.untuned or trial
            told(found)
            if found.over():
                break

    try:
        evaluator.prepare()
        measure(first)
        seen = {*first, *(t.candidate for t in known)}
        while not (ended := found.over()):
            asked = policy.ask(min(batch, limits.trials - len(found.trials)))
            if not asked:
                ended = "the space is exhausted"
                break
            fresh = [c for c in dict.fromkeys(asked) if c not in seen]
            seen.update(fresh)
            measure(fresh)
        found.ended = ended
        _again(found, evaluator, keeper)
    except KeyboardInterrupt:
        found.ended = "interrupted"
    except (WorkerFailed, DeadlinePassed) as error:
        found.ended = TIME_IS_UP if isinstance(error, DeadlinePassed) else f"it cannot be measured: {error}"
    found.stopped, found.build_seconds = clock(), getattr(evaluator, "build_seconds", 0.0)
    return found


def _again(found: Search, evaluator: Evaluator, keeper: _Keeper) -> None:
    """Let the planner's pick and the best take turns, and believe that."""
    first, best = found.untuned, found.best
    if first is None or best is None or first.seconds is None or first.candidate == best.candidate:
        return
    trial = evaluator.again(first.candidate)
    if trial.seconds is not None:
        found.untuned = trial
        keeper.keep(trial, evaluator.codes.get(trial.candidate, ""))
        if trial.seconds <= (best.seconds or 0.0):
            found.best = trial


class _Keeper:
    """Puts trials of a task into records, if there are any."""

    def __init__(self, task: Task, records: RecordFile | None, device: str) -> None:
        self.task, self.records, self.device = task, records, device
        self.version = version("deplodock")
        if records is not None:
            records.add_nest(task.key, task.what, task.text)

    def keep(self, trial: Trial, code: str) -> None:
        """Put in a trial."""
        if self.records is None:
            return
        c = trial.candidate
        options = json.dumps([list(o) for o in c.options])
        result = trial.seconds, trial.noise, c.predicted, trial.failure
        about = self.version, code, time()
        self.records.add(
            [Entry(self.task.key, self.task.target.name, self.device, c.schedule, options, *result, *about)]
        )

    def known(self) -> list[Trial]:
        """What the records have of the task on this device, of this version, the fastest first."""
        if self.records is None:
            return []
        entries = self.records.entries(key=self.task.key, target=self.task.target.name, device=self.device)
        return [trial_of(e) for e in entries if e.version == self.version]


def trial_of(entry: Entry) -> Trial:
    """An entry of the records as a trial."""
    options = tuple((a, b, c) for a, b, c in json.loads(entry.options))
    return Trial(Candidate(entry.schedule, options, entry.predicted), entry.seconds, entry.noise, entry.failure)


def limit_of(task: Task, trial: Trial) -> str:
    """What limits a candidate by the model, or why it has no time."""
    return trial.failure or task.predict(trial.candidate.schedule).limit
