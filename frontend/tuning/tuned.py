"""A program whose nests were searched, one after the other: what was found, and the text that says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType

from ...errors import ScheduleError
from ...passes.pipelines import parse_passes, pipeline_text, value_text, with_options
from ...passes.planning.plan_schedules import options_of
from ...passes.record_file import RecordFile
from ..compilation import Compilation
from .building import parse_schedule
from .evaluation import Predicting
from .fusion_space import Fusion, fusions
from .policies import DEFAULT_POLICY, make_policy
from .search import TIME_IS_UP, Limits, Search, search
from .space import NestSpace
from .task import PLANNER, Task, tasks_of
from .trial import Deadline, Trial, WorkerPool

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
    """How nests are searched: on which device (`cpu`, `cuda`, `PREDICTED`, or what the
    device of other machines is called), by which policy (empty: the default one),
    and how long all of them together."""

    device: str
    policy: str
    seconds: float
    trials: int
    seed: int = 0
    threads: int | None = None

    def times(self, count: int) -> How:
        """The same for so many nests: `count` times as long."""
        return replace(self, seconds=self.seconds * count)


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
    found: list[Search] = []
    weights = [task.launches * task.expected for task in tasks]
    end = (deadline or Deadline()).after(how.seconds)
    deadline = deadline or end
    for number, task in enumerate(tasks):
        share = weights[number] / sum(weights[number:])
        share = max(share, LEAST_SHARE / (len(tasks) - number))
        if not deadline.left:
            found.append(Search(task, "measured", Limits(0.0, how.trials), ended=TIME_IS_UP, stopped=0.0))
            continue
        evaluator = Predicting(task) if workers is None else workers.evaluator(task)
        policy = make_policy(how.policy or DEFAULT_POLICY, space_of(task), how.seed)
        batch = 8 if workers is None else workers.batch
        limits = Limits(end.left * share, how.trials, deadline)
        found.append(search(task, policy, evaluator, limits, records, how.device, told, batch))
        if found[-1].ended == "interrupted":
            break
    return found


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
    """All ways to run a task. Raises ScheduleError where there is none."""
    (planner,) = parse_passes(task.planner)
    precision = getattr(planner, "f32_matmul_precision", "ieee")
    return NestSpace(task.nest, task.target, precision, parse_passes(task.pipeline))


def schedule_argument(found: Sequence[Search]) -> str:
    """What `--schedule` takes to give every nest that was searched its best schedule, and the program its plan of
    fusion, if it is not the planner's."""
    return "; ".join(part for part in (fusion_argument(found), *_exactly(found)) if part)


def fusion_argument(found: Sequence[Search]) -> str:
    """The part of that which is the plan of fusion."""
    roots = found[0].task.fusion[0]
    return f"roots={roots}" if roots else ""


def _exactly(found: Sequence[Search]) -> list[str]:
    """The options of `plan-schedules` for each nest."""
    return [
        ("" if s.task.only else f"nest={s.task.name} ") + options_of(parse_schedule(s.best.candidate.schedule))
        for s in found
        if s.best is not None
    ]


def pipeline_argument(found: Sequence[Search]) -> str:
    """What `dl-opt -p` takes to make of the program at the loop level the kernels that were measured."""
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
    """The options of passes below `plan-schedules` that the best candidates have in common."""
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
    """A search for programs to read."""
    task, best, first = search.task, search.best, search.untuned
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
        "untuned": None if first is None else _trial(first),
        "best": None if best is None else _trial(best),
        "speedup": search.speedup,
        "roofline": search.share,
        "curve": curve(search),
    }


def _trial(trial: Trial) -> dict[str, object]:
    c = trial.candidate
    about = {"schedule": c.schedule, "options": c.options, "predicted": c.predicted}
    return about | {"seconds": trial.seconds, "noise": trial.noise}
