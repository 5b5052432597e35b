"""A program whose nests were searched, one after the other: what was found, and the text that says it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType

from ...passes.pipelines import parse_passes, pipeline_text, value_text
from ...passes.planning.plan_schedules import options_of
from ...passes.record_file import PREDICTED, RecordFile
from ...passes.searched import with_options
from .building import parse_schedule
from .evaluation import Predicting, Workers, prediction
from .policies import DEFAULT_POLICY, make_policy
from .ray_workers import RayWorkers
from .search import Limits, Search, search
from .space import NestSpace
from .task import PLANNER, Task
from .trial import Candidate

LEAST_SHARE = 0.5
"""Of an equal share of the time a nest gets at least so much, however little of the program's time it is."""


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
    workers: Workers | RayWorkers | None,
) -> list[Search]:
    """Search the tasks one after the other; the time is divided by what the model expects them to take. Ends with the
    first that is interrupted. `workers` are needed where something is measured."""
    found: list[Search] = []
    weights = [_weight(task) for task in tasks]
    left = how.seconds
    for number, task in enumerate(tasks):
        share = weights[number] / sum(weights[number:])
        share = max(share, LEAST_SHARE / (len(tasks) - number))
        evaluator = Predicting(task) if workers is None else workers.evaluator(task)
        policy = make_policy(how.policy or DEFAULT_POLICY, space_of(task), how.seed)
        batch = 8 if workers is None else workers.batch
        limits = Limits(left * share, how.trials)
        found.append(search(task, policy, evaluator, limits, records, how.device, told, batch))
        left = max(0.0, left - found[-1].elapsed)
        if found[-1].ended == "interrupted":
            break
    return found


def space_of(task: Task) -> NestSpace:
    """All ways to run a task. Raises ScheduleError where there is none."""
    (planner,) = parse_passes(task.planner)
    precision = getattr(planner, "f32_matmul_precision", "ieee")
    return NestSpace(task.nest, task.target, precision, parse_passes(task.pipeline))


def _weight(task: Task) -> float:
    return task.launches * float(prediction(task, task.untuned).seconds)


def device_of_target(target: str, executes: str | None) -> str:
    """The device on which programs for a target are measured; `executes` is what runs here."""
    if target == "cpu":
        return "cpu"
    return "cuda" if executes == "cuda" else PREDICTED


def schedule_argument(found: Sequence[Search]) -> str:
    """What `--schedule` takes to give every nest that was searched its best schedule."""
    parts = [
        ("" if s.task.only else f"nest={s.task.name} ") + options_of(parse_schedule(s.best.candidate.schedule))
        for s in found
        if s.best is not None
    ]
    return "; ".join(parts)


def pipeline_argument(found: Sequence[Search]) -> str:
    """What `dl-opt -p` takes to make of the program at the loop level the kernels that were measured."""
    task = found[0].task
    (planner,) = parse_passes(task.planner)
    given, planners = planner.spec().normalize_parameter_names().parameters, list[ModulePass]()
    for part in schedule_argument(found).split("; "):
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
    found, best = list[tuple[int, float]](), math.inf
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
        "objective": search.label,
        "trials": len(search.trials),
        "failed": sum(bool(t.failure) for _, t in search.trials),
        "seconds": search.elapsed,
        "ended": search.ended,
        "untuned": None if first is None else _trial(first.candidate, first.seconds, first.noise),
        "best": None if best is None else _trial(best.candidate, best.seconds, best.noise),
        "speedup": search.speedup,
        "roofline": search.share,
        "curve": curve(search),
    }


def _trial(candidate: Candidate, seconds: float | None, noise: float) -> dict[str, object]:
    return {
        "schedule": candidate.schedule,
        "options": candidate.options,
        "seconds": seconds,
        "noise": noise,
        "predicted": candidate.predicted,
    }
