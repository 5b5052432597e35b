"""`deplodock tune`: search for faster schedules of a program's nests, and say what was found as text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from ..errors import CompileError
from ..progress import steps
from ..target.architectures import on_cores
from . import terminal
from .modes import Given, mode_of_file, refuse_ignored
from .records_command import open_records

if TYPE_CHECKING:
    from ..frontend.compilation import Compilation
    from ..frontend.tuning.search import Search
    from ..frontend.tuning.task import Task
    from ..frontend.tuning.trial import Deadline
    from ..passes.record_file import RecordFile
    from .reports import Loaded

COMPARING = 0.2
"""Share of the budget in which the program that was found is built and timed beside PyTorch."""

TIMING = 1.0
"""Seconds in which PyTorch and the two programs are timed."""

DEVICES = ("auto", "cpu", "cuda", "predicted")


class Seconds(click.ParamType):
    """A time as people write it: 60, 60s, 2m, 1h."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no time, as in 60s, 2m or 1h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def tune_options(command: Any) -> Any:
    """The options of `tune` that say how to search."""
    for option in (
        click.option(
            "--budget", type=Seconds(), default="60s", show_default=True, help="From when the program is loaded."
        ),
        click.option("--trials", type=click.IntRange(min=1), default=1000, show_default=True, help="Of a kernel."),
        click.option("--policy", default="", help="How to search: mcts, top-k, evolve ..."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Measures."),
        click.option("--ray", metavar="ADDRESS", help="Measure on a Ray cluster: HOST:PORT, auto, or local."),
        click.option("--threads", type=click.IntRange(min=1), help="With the device cpu: how many a kernel may use."),
        click.option("--records", "kept", metavar="FILE", help="Where trials are kept: the user's own, FILE, or none."),
        click.option("--kernel", "only", multiple=True, metavar="NAME", help="Only this kernel: k0."),
        click.option("--explain", is_flag=True, help="Print what the model predicted beside what was measured."),
        click.option("--plot", metavar="FILE.svg", help="The best time after each trial, as curves."),
        click.option("--report", metavar="FILE.html", help="All trials, as a page."),
    ):
        command = option(command)
    return command


def tune(context: click.Context, given: Given) -> None:
    """What the command does."""
    mode = mode_of_file("tune", given.file)
    refuse_ignored(context, mode)
    with terminal.progress(quiet=given.verbose > 1), steps("loading PyTorch"):
        from ..frontend.tuning import tuned
        from ..frontend.tuning.calibration import renew
        from ..frontend.tuning.trial import Deadline
        from ..passes.record_file import PREDICTED
    device = _device(given)
    compilations, loaded = _program(given, mode)
    tasks = [t for t in _tasks(compilations) if not given.only or t.name in given.only]
    if not tasks:
        raise CompileError(f"no kernel is called {' or '.join(given.only)}", argument="--kernel")
    deadline = Deadline().after(given.budget)
    records = None if given.kept == "none" else open_records(given.kept, new=True)
    searching = given.budget if device == PREDICTED or loaded is None else (1 - COMPARING) * given.budget
    how = tuned.How(device, given.policy, searching, given.trials, given.seed, given.threads)
    found, device = _searched(compilations, tasks, how, records, given)
    if records is not None and device != PREDICTED:
        renew(records, tasks[0].target, device)
    _tell(found, loaded, records, given, device, deadline)


def _device(given: Given) -> str:
    """Where candidates are measured; and the target that this means, where none was given."""
    from ..frontend.executors import DEFAULT_GPU, choose_target, compiler_missing, cuda_missing
    from ..passes.record_file import PREDICTED

    if given.target == "auto":
        named = {"cpu": "cpu", PREDICTED: DEFAULT_GPU}
        given.target = named.get(given.device) or choose_target("auto", "cuda" if given.device == "cuda" else "auto")
    here = "cpu" if on_cores(given.target) else "cuda"
    missing = compiler_missing() if here == "cpu" else cuda_missing()
    if given.ray and given.device in ("auto", here):
        return here
    if given.device == "auto":
        if missing:
            terminal.tell(f"deplodock: note: nothing is measured, times are the model's: {missing}\n")
        return PREDICTED if missing else here
    if given.device != PREDICTED and (missing or given.device != here):
        raise CompileError(missing or f"programs for {given.target} do not run there", argument="--device")
    return given.device


def _program(given: Given, mode: str) -> tuple[list[Compilation], Loaded | None]:
    """The program that was named, without records: they are to be written; the steps of a model are several."""
    from ..frontend.compilation import device_target
    from ..target.host import consulted_record, resolve_target

    machine = resolve_target(device_target(given.target), consulted_record(given.kept))
    options = {**given.options, "record": "none", "machine": machine}
    with terminal.progress(quiet=given.verbose > 1):
        if mode.startswith("a MODEL"):
            from ..frontend.llm import build_model, load_config
            from ..frontend.llm.compile import compile_model

            compiled = compile_model(build_model(load_config(str(given.file))), **options)
            return list(compiled.compilations.values()), None
        from . import reports

        how = {"seed": given.seed, "fallback": given.fallback, "dynamic": given.dynamic}
        loaded = reports.load(given.file, given.code, **how, **options)
        return [loaded.compilation], loaded


def _tasks(compilations: Sequence[Compilation]) -> list[Task]:
    """The nests of all programs, each once."""
    from ..frontend.tuning.task import tasks_of

    found = {task.key: task for compilation in compilations for task in tasks_of(compilation)}
    return list(found.values())


def _searched(
    compilations: Sequence[Compilation], tasks: Sequence[Task], how: Any, records: RecordFile | None, given: Given
) -> tuple[list[Search], str]:
    """Search the nests, and for a whole program its plans of fusion, and show how far it is; with the device on which
    that was."""
    from ..frontend.tuning.evaluation import Workers
    from ..frontend.tuning.ray_workers import RayWorkers
    from ..frontend.tuning.tuned import tune as search_all, tune_program
    from ..passes.record_file import PREDICTED
    from .tune_report import display

    def searched(how: Any, workers: Workers | RayWorkers | None) -> tuple[list[Search], str]:
        if len(compilations) > 1 or given.only:
            return search_all(tasks, how, records, told, workers), how.device
        return tune_program(compilations[0], how, records, told, workers), how.device

    with display(len(tasks), how.seconds, given.verbose, quiet=given.as_json) as told:
        if how.device == PREDICTED:
            return searched(how, None)
        if given.ray:
            with RayWorkers(given.ray, how.device, how.threads) as workers:
                return searched(replace(how, device=workers.kind), workers)
        with Workers(how.device, threads=how.threads) as workers:
            return searched(how, workers)


def _tell(
    found: Sequence[Search],
    loaded: Loaded | None,
    records: RecordFile | None,
    given: Given,
    device: str,
    deadline: Deadline,
) -> None:
    """Print what came of it."""
    from ..frontend.tuning import tuned
    from ..passes.record_file import PREDICTED
    from .plot import write_plot
    from .tune_report import curve_svg, explained, found_text, write_report

    if given.plot:
        write_plot(given.plot, curve_svg(found))
    if given.report:
        write_report(given.report, found)
    lines = {} if loaded is None else _lines(found, given)
    times = {} if loaded is None or device == PREDICTED else _compared(loaded, found, given, deadline)
    if given.as_json:
        shown = {name: t.as_dict() for name, t in times.items()}
        file = None if records is None else records.path
        outcome = {"kernels": [tuned.as_dict(s) for s in found], "program": shown, "records": file, "lines": lines}
        return click.echo(json.dumps(outcome, indent=1))
    width = terminal.width_of(sys.stdout)
    text = found_text(found, times)
    if given.explain:
        text += "".join(explained(s, width) for s in found)
    terminal.write(terminal.fitted(text, width), "outcome", sys.stdout)
    for what, line in lines.items():
        click.echo(f"{what}:\n  {line}")
    if records is not None:
        click.echo(f"recorded in {records.path}" + ("" if given.kept else ", which compilations consult"))


def _lines(found: Sequence[Search], given: Given) -> dict[str, str]:
    """What to type for the same kernels."""
    from ..frontend.tuning.tuned import fusion_argument, options_in, pipeline_argument, schedule_argument

    if not any(s.best for s in found):
        return {}
    source = f"-c {quote(given.code)}" if given.code else str(given.file)
    command = f"deplodock compile {source} --target {given.target} --record none"
    if given.f32_matmul_precision:
        command += f" --f32-matmul-precision {given.f32_matmul_precision}"
    printed = "cpp" if on_cores(given.target) else "cuda"
    loops = command + (f" --schedule {part}" if (part := fusion_argument(found)) else "")
    lines = {"as passes": f"{loops} --ir loop | dl-opt - -p {quote(pipeline_argument(found))} -t {printed}"}
    if not options_in(found) and not given.pipeline:
        lines = {"as a schedule": f"{command} --schedule {quote(schedule_argument(found))}", **lines}
    return lines


def _compared(loaded: Loaded, found: Sequence[Search], given: Given, deadline: Deadline) -> dict[str, Any]:
    """The time of a call by PyTorch, as the planner's model says, and as was found, in turns; none where the program
    changes its arguments, or where both programs, whose kernels take as long to build as in the search, are not built
    and timed before the deadline."""
    import torch

    from ..backend.cuda.runtime.timing import on_device
    from ..backend.host.timing import by_clock
    from ..frontend.api import CompiledFunction
    from ..frontend.tuning.tuned import schedule_argument

    if loaded.captured.updates or not any(s.best for s in found):
        return {}
    expected = TIMING + 2 * sum(search.build_seconds for search in found)
    if deadline.left < expected:
        why = f"it would take {expected:.0f} s, {deadline.left:.0f} s of --budget are left"
        terminal.tell(f"deplodock: note: no call of the program is timed beside PyTorch: {why}\n")
        return {}
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    how = {**loaded.options, "record": "none", "schedule": schedule_argument(found)}
    plain = loaded.compiled
    changed = CompiledFunction(loaded.captured, given.target, **how)
    subject = loaded.subject if on_cores(given.target) else loaded.subject.copied("cuda")
    arms: dict[str, Any] = {
        "PyTorch": subject,
        "untuned": lambda: plain(*subject.args, **subject.kwargs),
        "tuned": lambda: changed(*subject.args, **subject.kwargs),
    }
    with torch.no_grad(), terminal.progress(), steps("timing", len(arms), "arms"):
        return by_clock(arms, seconds=TIMING) if on_cores(given.target) else on_device(arms)
