"""The search for schedules: of one nest, by a policy that asks and an evaluator that answers, and of the nests of a
program one after the other. Records keep the trials; the best schedules become text for the command line."""

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
    """State of a search. `trials` are in order, with the seconds since its start; the first one is the planner's pick,
    which took `build_seconds` of the processor to build. `known` counts the trials of the records. `ended` is the
    reason for its end."""

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
        """Seconds from its start to now, or to its end."""
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
        """How many times as fast as the planner's pick the best is; 1 where one of both has no time."""
        first, best = self.untuned, self.best
        return first.seconds / best.seconds if first and best and first.seconds and best.seconds else 1.0

    def take(self, trial: Trial) -> None:
        """Adds a trial."""
        self.trials.append((self.elapsed, trial))
        if trial.seconds is not None and (self.best is None or trial.seconds < (self.best.seconds or 0.0)):
            self.best = trial

    def over(self) -> str:
        """Returns the reason to end the search now, or an empty text."""
        if self.elapsed >= (1 - AGAIN) * self.limits.seconds:
            return TIME_IS_UP
        if len(self.trials) >= self.limits.trials:
            return "all trials are done"
        return "the roofline is reached" if CLOSE_TO_ROOF <= self.share < ABOVE_ROOF else ""


def device_name(device: str) -> str:
    """Returns the name of a device in records: `cpu` and `cuda` are those of this machine, others have theirs."""
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
    """Searches until the limits, the roofline or the end of the space. Ctrl-C ends it too, and keeps the best.

    The planner's pick is tried first, then the best of the records on this device; their other trials are told to the
    policy. Every trial is in `records` before the next one begins; `told` is called after each. At the end the pick of
    the planner takes turns with the best once more, so that the speed-up is no chance of a single trial. A candidate
    that is cancelled at the deadline has no trial.
    """
    keeper, clock = _Keeper(task, records, device_name(device)), limits.deadline.clock
    evaluator.deadline = limits.deadline
    first, known = [Candidate(task.untuned, predicted=task.expected)], keeper.known()
    found = Search(task, evaluator.label, limits, started=clock(), known=len(known))
    best = next((t for t in known if t.seconds is not None), None)
    if best is not None and best.candidate != first[0]:
        first.append(best.candidate)
    for trial in known:
        policy.tell(trial)

    def measure(candidates: list[Candidate]) -> None:
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
    """Times the planner's pick and the best in turns once more; the best is the faster one of these times."""
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
    """Returns what limits a candidate by the model, or why it has no time."""
    return trial.failure or task.predict(trial.candidate.schedule).limit


LEAST_SHARE = 0.5
"""Of an equal share of the time a nest gets at least so much, however little of the program's time it is."""

FUSING = 0.25
"""The share of the time that other plans of fusion get, if there are any: half of it to find them."""

PLANS = 3
"""So many other plans of fusion are searched at most."""

CLEARLY = 0.98
"""The share of the planner's time that another plan of fusion takes at most, to be preferred."""


@dataclass(frozen=True)
class How:
    """Options of a search: the device (`cpu`, `cuda`, `PREDICTED`, or that of other machines as records name it), the
    policy (empty: the default one), and the seconds for all nests together."""

    device: str
    policy: str
    seconds: float
    trials: int
    seed: int = 0
    threads: int | None = None


def tune(
    tasks: Sequence[Task],
    how: How,
    records: RecordFile | None,
    told: Callable[[Search], None],
    workers: WorkerPool | None,
    deadline: Deadline | None = None,
) -> list[Search]:
    """Searches tasks one after the other and returns their searches, up to the first that is interrupted.

    Args:
        tasks: the nests. The time is divided by what the model expects them to take.
        how: how they are searched.
        records: the records of all trials, if any.
        told: called after each trial.
        workers: needed where something is measured.
        deadline: when work is cancelled; by default at the end of the time of all tasks.
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
        searches.append(search(task, policy, evaluator, limits, records, how.device, told, batch))
        if searches[-1].ended == "interrupted":
            break
    return searches


def tune_program(
    compilation: Compilation,
    how: How,
    records: RecordFile | None,
    told: Callable[[Search], None],
    workers: WorkerPool | None,
    deadline: Deadline | None = None,
) -> list[Search]:
    """Search the nests of a program, then those of other plans of fusion; gives the searches of the fastest plan, which
    goes to the records if it is not the planner's.

    A program takes as long as its nests together. A nest that was not searched takes what the model expects, times how
    wrong that was about the planner's plan. The plan that is the fastest by this is searched next. Arguments are those
    of `tune`.
    """
    expected = dict[str, float]()
    deadline = deadline or Deadline().after(how.seconds)
    plans = _plans(compilation, expected, deadline.after(FUSING / 2 * how.seconds))
    if len(plans) < 2:
        return tune(tasks_of(compilation), how, records, told, workers, deadline)
    plan = own = plans[0]
    done, measured = dict[str, Search](), dict[str, float]()
    for share in (1 - FUSING, *[FUSING / 2 / PLANS] * PLANS):
        new = [task for task in plan.tasks if task.key not in done]
        if not new or done and not deadline.left:
            break
        for s in tune(new, replace(how, seconds=share * how.seconds), records, told, workers, deadline):
            done[s.task.key] = s
            measured[s.task.key] = s.best.seconds or inf if s.best else inf
        if [*done.values()][-1].ended == "interrupted":
            break
        wrong = own.seconds(measured) / own.seconds(expected)
        times = {key: wrong * seconds for key, seconds in expected.items()} | measured
        plan = min(plans, key=lambda plan: plan.seconds(times))
    known = [plan for plan in plans if all(task.key in done for task in plan.tasks)]
    best = min(known, key=lambda plan: plan.seconds(measured), default=own)
    if best in known and best.seconds(measured) > CLEARLY * own.seconds(measured):
        best = own
    if records is not None and (best is not own or own.key in records.plans().fusions):
        records.add_fusion(best.key, best.roots)
    return [replace(done[task.key], task=task) for task in best.tasks if task.key in done]


def _plans(compilation: Compilation, expected: dict[str, float], end: Deadline) -> list[Fusion]:
    """The plans of fusion of a program that are found before `end`, the planner's first, and of each nest, by its key,
    what the model expects. One with a nest that has no schedule is left out."""
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
    """Returns the candidates of a task. Raises ScheduleError where there is none."""
    (planner,) = parse_passes(task.planner)
    precision = getattr(planner, "f32_matmul_precision", "ieee")
    return NestSpace(task.nest, task.target, precision, parse_passes(task.pipeline))


def schedule_argument(found: Sequence[Search]) -> str:
    """Returns the argument of `--schedule` for the best schedules, and for the plan of fusion if it is not the
    planner's."""
    return "; ".join(part for part in (fusion_argument(found), *_exactly(found)) if part)


def fusion_argument(found: Sequence[Search]) -> str:
    roots = found[0].task.fusion[0]
    return f"roots={roots}" if roots else ""


def _exactly(found: Sequence[Search]) -> list[str]:
    return [
        ("" if s.task.only else f"nest={s.task.name} ") + options_of(parse_schedule(s.best.candidate.schedule))
        for s in found
        if s.best is not None
    ]


def pipeline_argument(found: Sequence[Search]) -> str:
    """Returns the argument of `dl-opt -p` that makes the measured kernels of the program at the loop level."""
    task = found[0].task
    (planner,) = parse_passes(task.planner)
    given, planners = planner.spec().normalize_parameter_names().parameters, list[ModulePass]()
    for part in _exactly(found):
        (decided,) = parse_passes(f"{PLANNER}{{{part}}}")
        planners += parse_passes(PLANNER, {**given, **decided.spec().normalize_parameter_names().parameters})
    below = pipeline_text([planner, *with_options(parse_passes(task.pipeline), options_in(found))])
    short = ",".join(_named(name, given) for name in ("loop-to-tile", "tile-to-kernel"))
    return f"{pipeline_text(planners)},{short if pipeline_text(parse_passes(short)) == below else below}"


def _named(pipeline: str, given: Mapping[str, ParameterListType]) -> str:
    """A named pipeline with those of the options that any of its passes has."""
    known = {f.name for p in parse_passes(pipeline) for f in fields(p)}
    texts = [f"{n}={','.join(map(value_text, v))}" for n, v in given.items() if n in known]
    return f"{pipeline}{{{' '.join(texts)}}}" if texts else pipeline


def options_in(found: Sequence[Search]) -> tuple[tuple[str, str, str], ...]:
    """Returns the options of passes below `plan-schedules` that the best candidates have in common."""
    best = [s.best.candidate.options for s in found if s.best is not None]
    return best[0] if best and all(o == best[0] for o in best) else ()


def curve(search: Search) -> list[tuple[int, float]]:
    """The numbers of the trials that were faster than all before, with their seconds, and at the end the last trial."""
    found, best = list[tuple[int, float]](), inf
    for number, (_, trial) in enumerate(search.trials, 1):
        if trial.seconds is not None and trial.seconds < best:
            best = trial.seconds
            found.append((number, best))
    return [*found, (len(search.trials), best)] if found else []


def as_dict(search: Search) -> dict[str, object]:
    """Returns a search as JSON."""
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
