"""Measures a schedule on this CPU, in turns with the planner's pick."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from pathlib import Path
from time import perf_counter

from .....backend.host.timing import in_turns
from .....dialects.support.printing import print_module
from .....dialects.tile.schedule import ScheduleAttr
from .....frontend.tuning.building import Builder
from .....frontend.tuning.running import Runner
from .....frontend.tuning.task import PLANNER, Task
from .....frontend.tuning.trial import Candidate
from .....passes.pipelines import parse_passes, pipeline_text
from ...trials import Trials
from ...verdicts import Wrong

MOST_ROUNDS, SECONDS = 60, 0.6
"""Samples of each version at most, and the wall seconds after which no further ones are taken."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call: with the schedule of the answer, and with the planner's pick."""

    seconds: float
    pick: float


def measure(trials: Trials, schedule: ScheduleAttr) -> Times:
    """Builds and runs a program with a schedule and with the planner's pick, on one core.

    Both versions run in turns, and the fastest samples count: other work on the machine changes them least.

    Args:
        trials: planner of the program, for this CPU.
        schedule: schedule of its nest.

    Raises:
        Wrong: the results of the schedule are wrong.
    """
    below = [*dropwhile(lambda p: p.name != PLANNER, parse_passes("loop-to-tile,tile-to-kernel"))][1:]
    task = Task("k0", print_module(trials.module), pipeline_text(below))
    runner, builder = Runner("cpu", threads=1), Builder(Path.cwd())
    runner.begin(task)
    versions = {"answer": schedule, "pick": trials.pick.schedule}
    with ThreadPoolExecutor() as threads:
        built = threads.map(lambda chosen: builder.build(task.source, Candidate(str(chosen))), versions.values())
    for name, binary in zip(versions, built, strict=True):
        runner.load(name, binary)
        if error := runner.check(name):
            raise Wrong(f"{name}: the results are wrong: {error}")
    samplers = {name: partial(_seconds, partial(runner.call, name)) for name in versions}
    samples, end = in_turns(samplers, 1), perf_counter() + SECONDS
    while perf_counter() < end and len(samples["answer"]) < MOST_ROUNDS:
        for name, more in in_turns(samplers, 1).items():
            samples[name] += more
    return Times(min(samples["answer"]), min(samples["pick"]))


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
