"""`deplodock tune`: searches for faster schedules of a program's nests and prints the result."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from ..errors import CompileError
from ..progress import steps
from ..target.attribute import on_cores
from . import terminal
from .modes import Params, extended, workers
from .records_command import open_records
from .tables import seconds, text_table

if TYPE_CHECKING:
    from ..backend.host.timing import Timing
    from ..frontend.compilation import Compilation
    from ..frontend.tuning.search import Search
    from ..frontend.tuning.task import Task
    from ..frontend.tuning.trial import Deadline, Trial, WorkerPool
    from ..passes.record_file import RecordFile
    from .reports import Loaded

COMPARING = 0.2
"""Fraction of the budget for building the tuned program and timing it against PyTorch."""

TIMING = 1.0
"""Seconds for timing PyTorch, the untuned program and the tuned program together."""

DEVICES = ("auto", "cpu", "cuda", "predicted")


def duration(value: str) -> float:
    """Returns the seconds of a time such as 60, 60s, 2m or 1h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", value)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is no time, as in 60s, 2m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def tune_options(command: Any) -> Any:
    """Adds the options of `tune` about the search to a command."""
    for option in (
        click.option(
            "--budget",
            type=duration,
            metavar="TIME",
            default="60s",
            show_default=True,
            help="From when the program is loaded.",
        ),
        click.option("--trials", type=click.IntRange(min=1), default=1000, show_default=True, help="Of a kernel."),
        click.option("--policy", default="", help="How to search: bayes (the default), mcts or model."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Measures."),
        click.option("--threads", type=click.IntRange(min=1), help="With the device cpu: how many a kernel may use."),
        click.option("--records", "kept", metavar="FILE", help="Where trials are kept: the user's own, FILE, or none."),
        click.option("--kernel", "only", multiple=True, metavar="NAME", help="Only this kernel: k0."),
        click.option("--explain", is_flag=True, help="Print what the model predicted beside what was measured."),
    ):
        command = option(command)
    return command


def tune(
    context: click.Context, params: Params, compiled: Callable[[dict[str, Any]], Sequence[Compilation]] | None = None
) -> None:
    """Runs the command.

    Args:
        context: context of the command.
        params: the options of `tune`.
        compiled: function that compiles the programs with options of `compile_captured`; default: the Python program.
    """
    with terminal.progress(quiet=params.verbose > 1), steps("loading PyTorch"):
        from ..frontend.compilation import device_target
        from ..frontend.tuning.calibration import renew
        from ..frontend.tuning.search import TuneOptions
        from ..frontend.tuning.task import tasks_of
        from ..frontend.tuning.trial import Deadline
        from ..passes.record_file import PREDICTED
        from ..target.host import consulted_record, resolve_target
        from . import reports
    device = _device(params)
    machine = resolve_target(device_target(params.target), consulted_record(params.kept))
    # Earlier records must not affect the compared programs.
    options = {**params.options, "record": "none", "machine": machine}
    with terminal.progress(quiet=params.verbose > 1):
        if compiled is not None:
            compilations, loaded = compiled(options), None
        else:
            how = {"seed": params.seed, "fallback": params.fallback, "dynamic": params.dynamic}
            loaded = reports.load(params.file, params.code, **how, **options)
            compilations = [loaded.compilation]
    by_key = {task.key: task for compilation in compilations for task in tasks_of(compilation)}
    tasks = [t for t in by_key.values() if not params.only or t.name in params.only]
    if not tasks:
        raise CompileError(f"no kernel is called {' or '.join(params.only)}", argument="--kernel")
    deadline = Deadline().after(params.budget)
    records = None if params.kept == "none" else open_records(params.kept, new=True)
    searching = params.budget if device == PREDICTED or loaded is None else (1 - COMPARING) * params.budget
    how = TuneOptions(device, params.policy, searching, params.trials, params.seed, params.threads)
    with extended(context, params, compilations, loaded=loaded) as results:
        searches, device = _searched(compilations, tasks, how, records, params)
        results["searches"] = searches
        if records is not None and device != PREDICTED:
            renew(records, tasks[0].target, device)
        tuned = None if loaded is None else _tuned(loaded, searches, params)
        if tuned is not None:
            results |= {"loaded": tuned, "compilations": [tuned.compilation]}
        _tell(searches, loaded, tuned, records, params, device, deadline)


def _cluster(params: Params) -> str | None:
    """Returns the option of a worker pool that is set, or None."""
    return next((name for name in workers() if getattr(params, name)), None)


def _device(params: Params) -> str:
    """Returns the device on which candidates are measured. Replaces the target `auto` by the target of the device."""
    from ..frontend.executors import DEFAULT_GPU, compiler_missing, cuda_missing, target_for
    from ..passes.record_file import PREDICTED

    if params.target == "auto":
        named = {"cpu": "cpu", PREDICTED: DEFAULT_GPU}
        params.target = named.get(params.device) or target_for("cuda" if params.device == "cuda" else "auto")
    here = "cpu" if on_cores(params.target) else "cuda"
    missing = compiler_missing() if here == "cpu" else cuda_missing()
    if _cluster(params) and params.device in ("auto", here):
        return here
    if params.device == "auto":
        if missing:
            terminal.tell(f"deplodock: note: nothing is measured, times are the model's: {missing}\n")
        return PREDICTED if missing else here
    if params.device != PREDICTED and (missing or params.device != here):
        raise CompileError(missing or f"programs for {params.target} do not run there", argument="--device")
    return params.device


def _searched(
    compilations: Sequence[Compilation], tasks: Sequence[Task], how: Any, records: RecordFile | None, params: Params
) -> tuple[list[Search], str]:
    """Searches schedules of the nests and, for a whole program, fusion plans. Returns the searches and the device."""
    from ..frontend.tuning.evaluation import Workers
    from ..frontend.tuning.search import tune as search_all, tune_program
    from ..passes.record_file import PREDICTED

    def searched(how: Any, pool: WorkerPool | None) -> tuple[list[Search], str]:
        if len(compilations) > 1 or params.only:
            return search_all(tasks, how, records, display_trial, pool), how.device
        return tune_program(compilations[0], how, records, display_trial, pool), how.device

    with display(params.verbose, quiet=params.as_json) as display_trial:
        if how.device == PREDICTED:
            return searched(how, None)
        if cluster := _cluster(params):
            pool: WorkerPool = workers()[cluster](getattr(params, cluster), how.device, how.threads)
        else:
            pool = Workers(how.device, threads=how.threads)
        with pool:
            return searched(replace(how, device=pool.kind), pool)


def _tell(
    searches: Sequence[Search],
    loaded: Loaded | None,
    tuned: Loaded | None,
    records: RecordFile | None,
    params: Params,
    device: str,
    deadline: Deadline,
) -> None:
    """Prints the results."""
    from ..frontend.tuning.search import as_dict
    from ..passes.record_file import PREDICTED

    commands = {} if loaded is None else _commands(searches, params)
    times: dict[str, Timing] = {}
    if loaded is not None and tuned is not None and device != PREDICTED:
        times = _compared(loaded, tuned, searches, params, deadline)
    if params.as_json:
        shown = {name: t.as_dict() for name, t in times.items()}
        file = None if records is None else records.path
        outcome = {"kernels": [as_dict(s) for s in searches], "program": shown, "records": file, "lines": commands}
        return click.echo(json.dumps(outcome, indent=1))
    width = terminal.width_of(sys.stdout)
    text = found_text(searches, times)
    if params.explain:
        text += "".join(explained(s, width) for s in searches)
    terminal.write(terminal.fitted(text, width), "outcome", sys.stdout)
    for title, command in commands.items():
        click.echo(f"{title}:\n  {command}")
    if records is not None:
        click.echo(f"recorded in {records.path}" + ("" if params.kept else ", which compilations consult"))


def _commands(searches: Sequence[Search], params: Params) -> dict[str, str]:
    """Returns commands that compile the program with the best schedules, by their titles in the output.

    Empty if no candidate has a time. `as a schedule` uses `--schedule`, `as passes` pipes loop IR to `dl-opt`.
    """
    from ..frontend.tuning.search import fusion_argument, options_in, pipeline_argument, schedule_argument

    if not any(s.best for s in searches):
        return {}
    source = f"-c {quote(params.code)}" if params.code else str(params.file)
    command = f"deplodock compile {source} --target {params.target} --record none"
    if params.f32_matmul_precision:
        command += f" --f32-matmul-precision {params.f32_matmul_precision}"
    printed = "cpp" if on_cores(params.target) else "cuda"
    loops = command + (f" --schedule {part}" if (part := fusion_argument(searches)) else "")
    commands = {"as passes": f"{loops} --ir loop | dl-opt - -p {quote(pipeline_argument(searches))} -t {printed}"}
    if not options_in(searches) and not params.pipeline:
        commands = {"as a schedule": f"{command} --schedule {quote(schedule_argument(searches))}", **commands}
    return commands


def _tuned(loaded: Loaded, searches: Sequence[Search], params: Params) -> Loaded | None:
    """Returns the program with the best schedules, or None if no candidate has a time."""
    from ..frontend.compilation import compile_captured
    from ..frontend.tuning.search import schedule_argument

    if not any(s.best for s in searches):
        return None
    options = {**loaded.options, "record": "none", "schedule": schedule_argument(searches)}
    return replace(loaded, compilation=compile_captured(loaded.captured, params.target, **options), options=options)


def _compared(
    loaded: Loaded, tuned: Loaded, searches: Sequence[Search], params: Params, deadline: Deadline
) -> dict[str, Any]:
    """Times a call of PyTorch, of the untuned and of the tuned program in turns.

    Returns:
        The times by name; none if the program changes its arguments, or if building both programs would exceed the
        deadline.
    """
    import torch

    from ..backend.cuda.runtime.timing import on_device
    from ..backend.host.timing import by_clock

    if loaded.captured.updates:
        return {}
    expected = TIMING + 2 * sum(search.build_seconds for search in searches)
    if deadline.left < expected:
        why = f"it would take {expected:.0f} s, {deadline.left:.0f} s of --budget are left"
        terminal.tell(f"deplodock: note: no call of the program is timed beside PyTorch: {why}\n")
        return {}
    if params.threads is not None:
        torch.set_num_threads(params.threads)
    plain, changed = loaded.compiled, tuned.compiled
    subject = loaded.subject if on_cores(params.target) else loaded.subject.copied("cuda")
    arms: dict[str, Any] = {
        "PyTorch": subject,
        "untuned": lambda: plain(*subject.args, **subject.kwargs),
        "tuned": lambda: changed(*subject.args, **subject.kwargs),
    }
    with torch.no_grad(), terminal.progress(), steps("timing", len(arms), "arms"):
        return by_clock(arms, seconds=TIMING) if on_cores(params.target) else on_device(arms)


SHOWN = 12
"""Number of candidates that `--explain` prints."""

UNSTEADY = 0.2
"""Relative noise of the best time above which the command advises to repeat the search. Tuned by hand."""


def found_text(searches: Sequence[Search], times: Mapping[str, Timing]) -> str:
    """Returns the results of the searches of a program, and the times of its calls."""
    lines = [line for search in searches for line in result_lines(search)]
    if searches and (change := searches[0].task.fusion[1]):
        lines.append(f"another plan of fusion is faster: {change}")
    if times:
        lines.append(", ".join(f"{name} {seconds(t.median)}" for name, t in times.items()))
        tuned = times["tuned"].median
        others = (f"{t.median / tuned:.2f} times as fast as {name}" for name, t in times.items() if name != "tuned")
        lines.append(f"a call is {' and '.join(others)} (medians of calls, in turns)")
    return "".join(f"{line}\n" for line in lines)


def result_lines(search: Search) -> list[str]:
    """Returns lines about one search: trials, the best time, its schedule, and advice."""
    task, best = search.task, search.best
    failed = sum(bool(t.failure) for _, t in search.trials)
    times = f", in the program {task.launches} times" if task.launches > 1 else ""
    head = f"{task.name}: {task.what}{times}: {len(search.trials)} trials"
    head += f", {failed} of them failed" if failed else ""
    head += f", {search.known} known before" if search.known else ""
    head += f", in {search.elapsed:.1f} s; {search.ended}"
    if best is None or best.seconds is None:
        why = next((t.failure for _, t in search.trials if t.failure), "nothing was tried")
        return [head, f"  no candidate has a time: {why}"]
    first = search.untuned.seconds if search.untuned is not None else None
    took = f"  {search.label}: {seconds(best.seconds)} {noise_text(best.noise)}, {search.share:.0%} of the roofline"
    took += f"; the planner's pick {seconds(first)}: {search.speedup:.2f} times as fast" if first else ""
    advice = ["  the times vary much: repeat it on a quiet machine, or with a longer --budget"] * (
        best.noise > UNSTEADY
    )
    return [head, took, f"  {best.candidate.schedule}", *advice]


def noise_text(noise: float) -> str:
    """Returns the relative noise of a time as text. A noise of 1 stands for too few samples."""
    return "(too few samples to tell the noise)" if noise >= 1 else f"+-{noise:.1%}"


def explained(search: Search, width: int | None) -> str:
    """Returns a table of the fastest candidates with their measured and predicted times."""
    from ..frontend.tuning.search import limit_of

    rows: list[list[str]] = []
    for t in sorted((t for _, t in search.trials if t.seconds), key=lambda t: t.seconds or 0.0)[:SHOWN]:
        took, predicted = t.seconds or 1.0, float(search.task.predict(t.candidate.schedule).seconds)
        cells = [seconds(took), noise_text(t.noise), seconds(predicted), f"{predicted / took:.2f}"]
        rows.append([*cells, limit_of(search.task, t), t.candidate.schedule.removeprefix("#tile.schedule")])
    heads = [search.label, "", "predicted", "by it", "limit", search.task.name]
    return text_table(heads, rows, width) if rows else ""


@contextmanager
def display(verbose: int, quiet: bool = False) -> Generator[Callable[[Search], None]]:
    """Yields a function to call after each trial. It prints a line with `-v`, and shows the progress otherwise."""
    if verbose and not quiet:
        yield _line
        return
    with terminal.progress(quiet), steps("searching", unit="trials") as step:
        yield lambda search: step(1, f"{search.task.name}, best {outcome(search.best) if search.best else 'none'}")


def outcome(trial: Trial) -> str:
    """Returns the time of a trial, or `failed`."""
    return "failed" if trial.seconds is None else f"{seconds(trial.seconds)} {noise_text(trial.noise)}"


def _line(search: Search) -> None:
    from ..frontend.tuning.search import limit_of

    number, (at, trial) = len(search.trials), search.trials[-1]
    mark = "*" if trial is search.best else " "
    options = " ".join(f"{p}.{o}={v}" for p, o, v in trial.candidate.options)
    schedule = f"{trial.candidate.schedule.removeprefix('#tile.schedule')} {options}".rstrip()
    head = f"{search.task.name} {number:4} {at:6.1f} s {mark} {outcome(trial)}"
    terminal.tell(f"{head}  {limit_of(search.task, trial)}  {schedule}\n")
