"""Searches schedules of one nest, or of all nests of a program one after the other.

A policy chooses candidates and an evaluator measures them. Records store the trials. The best schedules are printed as
text for the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from math import inf
from time import time

import torch
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType

from ...errors import ScheduleError
from ...passes.pipelines import parse_passes, pipeline_text, value_text, with_options
from ...passes.planning.plan_schedules import options_of
from ...passes.record_file import Entry, RecordFile
from ...target.host import device_of_cores
from ..compilation import Compilation
from .building import parse_schedule
from .evaluation import Predicting
from .fusion_space import Fusion, fusions
from .policies import DEFAULT_POLICY, make_policy
from .space import NestSpace
from .task import PLANNER, Task, tasks_of
from .trial import Candidate, Deadline, DeadlinePassed, Evaluator, Policy, Trial, WorkerPool
from .worker import WorkerFailed

CLOSE_TO_ROOF, ABOVE_ROOF = 0.97, 1.1
"""Shares of the roofline between which a search ends. Above the second one the rates of the target do not fit the
device, so that the roofline means nothing."""


REMEASURING_SHARE = 0.1
"""Share of the time of a search that is reserved for timing the planner's pick and the best once more, in turns."""

TIME_IS_UP = "the time is used up"


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    Attributes:
        seconds: soft limit: the current measurement is completed. The share `REMEASURING_SHARE` of it is reserved for
            measuring the best again.
        trials: largest number of trials.
        deadline: hard limit, at which the current work is cancelled.
    """

    seconds: float = 60.0
    trials: int = 1000
    deadline: Deadline = Deadline()


@dataclass
class Search:
    """State of a search.

    Attributes:
        trials: trials in order, with the seconds since the start. The first one is the planner's pick.
        untuned, best: trials of the planner's pick and of the fastest candidate.
        known: number of trials from the records.
        ended: reason for the end.
        build_seconds: processor seconds of building the planner's pick.
    """

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
        """Seconds since the start, or from the start to the end."""
        return (self.limits.deadline.clock() if self.stopped is None else self.stopped) - self.started

    @property
    def share(self) -> float:
        """Share of the roofline that the best candidate reaches."""
        if self.best is None or not self.best.seconds:
            return 0.0
        atom = parse_schedule(self.best.candidate.schedule).data.atom
        return self.task.floor(atom) / self.best.seconds

    @property
    def speedup(self) -> float:
        """Time of the planner's pick over the best time; 1 if one of them has none."""
        first, best = self.untuned, self.best
        return first.seconds / best.seconds if first and best and first.seconds and best.seconds else 1.0

    def take(self, trial: Trial) -> None:
        """Adds a trial."""
        self.trials.append((self.elapsed, trial))
        if trial.seconds is not None and (self.best is None or trial.seconds < (self.best.seconds or 0.0)):
            self.best = trial

    def over(self) -> str:
        """Returns the reason to end the search, or ""."""
        if self.elapsed >= (1 - REMEASURING_SHARE) * self.limits.seconds:
            return TIME_IS_UP
        if len(self.trials) >= self.limits.trials:
            return "all trials are done"
        return "the roofline is reached" if CLOSE_TO_ROOF <= self.share < ABOVE_ROOF else ""


def device_name(device: str) -> str:
    """Returns the name of a device in records. `cpu` and `cuda` are the devices of this machine."""
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
    report: Callable[[Search], None] = lambda search: None,
    batch: int = 4,
) -> Search:
    """Searches until a limit, the roofline, the end of the space, or Ctrl-C.

    The planner's pick is tried first, then the best candidate of the records of this device. The policy gets all
    recorded trials. At the end the planner's pick and the best are timed in turns once more, so that the speed-up does
    not depend on the chance of one trial. A candidate that is cancelled at the deadline has no trial.

    Args:
        task: the nest.
        policy: chooses candidates.
        evaluator: measures candidates.
        limits: limits of time and trials.
        records: stores every trial before the next one starts.
        device: name of the device.
        report: function that is called after each trial.
        batch: number of candidates that the policy chooses at a time.
    """
    keeper, clock = _Keeper(task, records, device_name(device)), limits.deadline.clock
    evaluator.deadline = limits.deadline
    first, known = [Candidate(task.untuned, predicted=task.expected)], keeper.known()
    state = Search(task, evaluator.label, limits, started=clock(), known=len(known))
    best = next((t for t in known if t.seconds is not None), None)
    if best is not None and best.candidate != first[0]:
        first.append(best.candidate)
    for trial in known:
        policy.tell(trial)

    def measure(candidates: list[Candidate]) -> None:
        for trial in evaluator.measure(candidates):
            keeper.keep(trial, evaluator.codes.get(trial.candidate, ""))
            policy.tell(trial)
            state.take(trial)
            state.untuned = state.untuned or trial
            report(state)
            if state.over():
                break

    try:
        evaluator.prepare()
        measure(first)
        seen = {*first, *(t.candidate for t in known)}
        while not (ended := state.over()):
            asked = policy.ask(min(batch, limits.trials - len(state.trials)))
            if not asked:
                ended = "the space is exhausted"
                break
            fresh = [c for c in dict.fromkeys(asked) if c not in seen]
            seen.update(fresh)
            measure(fresh)
        state.ended = ended
        _remeasure(state, evaluator, keeper)
    except KeyboardInterrupt:
        state.ended = "interrupted"
    except (WorkerFailed, DeadlinePassed) as error:
        state.ended = TIME_IS_UP if isinstance(error, DeadlinePassed) else f"it cannot be measured: {error}"
    state.stopped, state.build_seconds = clock(), getattr(evaluator, "build_seconds", 0.0)
    return state


def _remeasure(state: Search, evaluator: Evaluator, keeper: _Keeper) -> None:
    """Times the planner's pick and the best in turns once more. The faster one becomes the best."""
    first, best = state.untuned, state.best
    if first is None or best is None or first.seconds is None or first.candidate == best.candidate:
        return
    trial = evaluator.remeasure(first.candidate)
    if trial.seconds is not None:
        state.untuned = trial
        keeper.keep(trial, evaluator.codes.get(trial.candidate, ""))
        if trial.seconds <= (best.seconds or 0.0):
            state.best = trial


class _Keeper:
    """Stores the trials of a task in the record database, or nowhere if the search has none."""

    def __init__(self, task: Task, records: RecordFile | None, device: str) -> None:
        self.task, self.records, self.device = task, records, device
        self.version = version("deplodock")
        if records is not None:
            records.add_nest(task.key, task.what, task.text)

    def keep(self, trial: Trial, code: str) -> None:
        """Adds a trial."""
        if self.records is not None:
            c, place = trial.candidate, (self.task.key, self.task.target.name, self.device)
            result = trial.seconds, trial.noise, c.predicted, trial.failure
            self.records.add([Entry(*place, c.schedule, json.dumps(c.options), *result, self.version, code, time())])

    def known(self) -> list[Trial]:
        """Returns the trials of the task on this device, of this version, the fastest first."""
        if self.records is None:
            return []
        entries = self.records.entries(key=self.task.key, target=self.task.target.name, device=self.device)
        return [trial_of(e) for e in entries if e.version == self.version]


def trial_of(entry: Entry) -> Trial:
    """Returns an entry of the records as a trial."""
    options = tuple((a, b, c) for a, b, c in json.loads(entry.options))
    return Trial(Candidate(entry.schedule, options, entry.predicted), entry.seconds, entry.noise, entry.failure)


def limit_of(task: Task, trial: Trial) -> str:
    """Returns the limiting resource of a candidate by the model, or the reason of its failure."""
    return trial.failure or task.predict(trial.candidate.schedule).limit


LEAST_SHARE = 0.5
"""Smallest search time of a nest, relative to the time it would have if all remaining nests had the same."""

FUSION_SHARE = 0.25
"""Share of the search time for other fusion plans, if there are any. Half of it is for enumerating them."""

MAX_FUSION_PLANS = 3
"""Largest number of other fusion plans that are searched."""

MAX_FUSION_RATIO = 0.98
"""Largest ratio of another plan's time to that of the planner's plan for which the other plan is chosen."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of a search.

    Attributes:
        device: `cpu`, `cuda`, `PREDICTED`, or the name in records of the device of other machines.
        policy: name of the policy; empty for the default.
        seconds: time for all nests.
        trials: largest number of trials of a nest.
        seed: seed of the policy.
        threads: threads of a running program.
    """

    device: str
    policy: str
    seconds: float
    trials: int
    seed: int = 0
    threads: int | None = None


def tune(
    tasks: Sequence[Task],
    how: TuneOptions,
    records: RecordFile | None,
    report: Callable[[Search], None],
    workers: WorkerPool | None,
    deadline: Deadline | None = None,
) -> list[Search]:
    """Searches tasks one after the other. Returns their searches, up to the first interrupted one.

    Args:
        tasks: the nests. Each gets a part of the time in proportion to its predicted seconds.
        how: options of the search.
        records: stores the trials, if not None.
        report: function that is called after each trial.
        workers: processes that measure; None to predict.
        deadline: time at which work is cancelled; default: the end of the time of all tasks.
    """
    searches: list[Search] = []
    weights = [task.launches * task.expected for task in tasks]
    end = (deadline or Deadline()).after(how.seconds)
    deadline = deadline or end
    for number, task in enumerate(tasks):
        if not deadline.left:
            searches.append(Search(task, "measured", Limits(0.0, how.trials), ended=TIME_IS_UP, stopped=0.0))
            continue
        share = max(weights[number] / sum(weights[number:]), LEAST_SHARE / (len(tasks) - number))
        evaluator = Predicting(task) if workers is None else workers.evaluator(task)
        policy = make_policy(how.policy or DEFAULT_POLICY, space_of(task), how.seed)
        batch = 8 if workers is None else workers.batch
        limits = Limits(end.left * share, how.trials, deadline)
        searches.append(search(task, policy, evaluator, limits, records, how.device, report, batch))
        if searches[-1].ended == "interrupted":
            break
    return searches


def tune_program(
    compilation: Compilation,
    how: TuneOptions,
    records: RecordFile | None,
    report: Callable[[Search], None],
    workers: WorkerPool | None,
    deadline: Deadline | None = None,
) -> list[Search]:
    """Searches the nests of a program, then the nests of other fusion plans. Returns the searches of the fastest plan.

    The time of a plan is the sum over its nests. A nest that was not searched has its predicted time, multiplied by the
    error of the predictions for the planner's plan. The fastest plan by this estimate is searched next. A plan other
    than the planner's is stored in the records.

    Args:
        compilation: the program.
        how, records, report, workers, deadline: as for `tune`.
    """
    expected = dict[str, float]()
    deadline = deadline or Deadline().after(how.seconds)
    plans = _plans(compilation, expected, deadline.after(FUSION_SHARE / 2 * how.seconds))
    if len(plans) < 2:
        return tune(tasks_of(compilation), how, records, report, workers, deadline)
    plan = planned = plans[0]
    done, measured = dict[str, Search](), dict[str, float]()
    for share in (1 - FUSION_SHARE, *[FUSION_SHARE / 2 / MAX_FUSION_PLANS] * MAX_FUSION_PLANS):
        new = [task for task in plan.tasks if task.key not in done]
        if not new or done and not deadline.left:
            break
        for s in tune(new, replace(how, seconds=share * how.seconds), records, report, workers, deadline):
            done[s.task.key] = s
            measured[s.task.key] = s.best.seconds or inf if s.best else inf
        if [*done.values()][-1].ended == "interrupted":
            break
        wrong = planned.seconds(measured) / planned.seconds(expected)
        times = {key: wrong * seconds for key, seconds in expected.items()} | measured
        plan = min(plans, key=lambda plan: plan.seconds(times))
    complete = [plan for plan in plans if all(task.key in done for task in plan.tasks)]
    best = min(complete, key=lambda plan: plan.seconds(measured), default=planned)
    if best in complete and best.seconds(measured) > MAX_FUSION_RATIO * planned.seconds(measured):
        best = planned
    if records is not None and (best is not planned or planned.key in records.plans().fusions):
        records.add_fusion(best.key, best.roots)
    return [replace(done[task.key], task=task) for task in best.tasks if task.key in done]


def _plans(compilation: Compilation, expected: dict[str, float], end: Deadline) -> list[Fusion]:
    """Returns the fusion plans of a program that are enumerated before `end`, the planner's first.

    Adds the predicted seconds of their nests to `expected`, by key. Plans with a nest without a schedule are skipped.
    """
    plans = list[Fusion]()
    for plan in fusions(compilation):
        try:
            expected |= {task.key: task.expected for task in plan.tasks if task.key not in expected}
            plans.append(plan)
        except ScheduleError:
            if not plan.change:
                raise
        if not end.left:
            break
    return plans


def space_of(task: Task) -> NestSpace:
    """Returns the space of a task. Raises ScheduleError if it has no candidates."""
    (planner,) = parse_passes(task.planner)
    precision = getattr(planner, "f32_matmul_precision", "ieee")
    return NestSpace(task.nest, task.target, precision, parse_passes(task.pipeline))


def schedule_argument(searches: Sequence[Search]) -> str:
    """Returns the argument of `--schedule` for the best schedules and, if it is not the planner's, the fusion plan."""
    return "; ".join(part for part in (fusion_argument(searches), *_exactly(searches)) if part)


def fusion_argument(searches: Sequence[Search]) -> str:
    roots = searches[0].task.fusion[0]
    return f"roots={roots}" if roots else ""


def _exactly(searches: Sequence[Search]) -> list[str]:
    return [
        ("" if s.task.only else f"nest={s.task.name} ") + options_of(parse_schedule(s.best.candidate.schedule))
        for s in searches
        if s.best is not None
    ]


def pipeline_argument(searches: Sequence[Search]) -> str:
    """Returns the argument of `dl-opt -p` that compiles the measured kernels from the program at the loop level."""
    task = searches[0].task
    (planner,) = parse_passes(task.planner)
    options, planners = planner.spec().normalize_parameter_names().parameters, list[ModulePass]()
    for part in _exactly(searches):
        (decided,) = parse_passes(f"{PLANNER}{{{part}}}")
        planners += parse_passes(PLANNER, {**options, **decided.spec().normalize_parameter_names().parameters})
    below = pipeline_text([planner, *with_options(parse_passes(task.pipeline), options_in(searches))])
    short = ",".join(_named(name, options) for name in ("loop-to-tile", "tile-to-kernel"))
    return f"{pipeline_text(planners)},{short if pipeline_text(parse_passes(short)) == below else below}"


def _named(pipeline: str, options: Mapping[str, ParameterListType]) -> str:
    """Returns a named pipeline as text, with those of the `options` that one of its passes has."""
    names = {f.name for p in parse_passes(pipeline) for f in fields(p)}
    texts = [f"{n}={','.join(map(value_text, v))}" for n, v in options.items() if n in names]
    return f"{pipeline}{{{' '.join(texts)}}}" if texts else pipeline


def options_in(searches: Sequence[Search]) -> tuple[tuple[str, str, str], ...]:
    """Returns the options of passes below `plan-schedules` that the best candidates have in common."""
    best = [s.best.candidate.options for s in searches if s.best is not None]
    return best[0] if best and all(o == best[0] for o in best) else ()


def curve(search: Search) -> list[tuple[int, float]]:
    """Returns the numbers and seconds of trials that were faster than all before, and of the last trial."""
    points, best = list[tuple[int, float]](), inf
    for number, (_, trial) in enumerate(search.trials, 1):
        if trial.seconds is not None and trial.seconds < best:
            best = trial.seconds
            points.append((number, best))
    return [*points, (len(search.trials), best)] if points else []


def as_dict(search: Search) -> dict[str, object]:
    """Returns a search as data for JSON."""
    task, best, first = search.task, search.best, search.untuned

    def trial(t: Trial | None) -> dict[str, object] | None:
        return None if t is None else {**asdict(t.candidate), "seconds": t.seconds, "noise": t.noise}

    return {
        "name": task.name,
        "nest": task.what,
        "key": task.key,
        "launches": task.launches,
        "fusion": dict(zip(("roots", "change"), task.fusion, strict=True)),
        "objective": search.label,
        "trials": len(search.trials),
        "failed": sum(bool(t.failure) for _, t in search.trials),
        "seconds": search.elapsed,
        "ended": search.ended,
        "untuned": trial(first),
        "best": trial(best),
        "speedup": search.speedup,
        "roofline": search.share,
        "curve": curve(search),
    }
