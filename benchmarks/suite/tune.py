"""Tunes the 84 shapes (f32) and the classes of the CPU, and measures them against PyTorch and the untuned programs.

    python -m benchmarks.suite.tune  # all, 20 s a kernel; writes benchmarks/results/
    python -m benchmarks.suite.tune classes --only attention --budget 10
    python -m benchmarks.suite.tune --constants  # no measurement; judges the model by the trials so far

Trials (measured schedules) are stored in a record file next to the results. An interrupted run continues if the command
is repeated with the same sources. At the end the constants of the planning model are fitted to one half of the kernels,
and the schedules that the model picks are judged on the other half. Needs g++.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import torch

from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.bench import OURS, Subject, environment, measure
from deplodock.frontend.tuning import search as tuned
from deplodock.frontend.tuning.calibration import fit, regret, samples_of
from deplodock.frontend.tuning.evaluation import Workers
from deplodock.frontend.tuning.search import device_name
from deplodock.frontend.tuning.task import tasks_of
from deplodock.passes.record_file import RecordFile
from deplodock.target.host import resolve_target

from ..common.cases import Case, cases
from ..common.journal import Journal
from ..common.prepared import program, sources_digest
from ..common.results import FOLDER, UNTUNED, Row, commit_here, file_name, geomean, merge, ratio

SUITES = ("seed84", "classes")


def tune_case(case: Case, records: Path, workers: Workers, how: tuned.TuneOptions, modes: tuple[str, ...]) -> Row:
    """Searches schedules for the kernels of one case, and measures the program with the best ones.

    Args:
        case: the case.
        records: record file of trials.
        workers: processes that build and run candidates.
        how: settings of the search; `seconds` is the budget of one kernel.
        modes: arms of torch.compile to compare with.
    """
    plain = program(case, "cpu", None, "cpu")
    tasks = tasks_of(plain.compilation)
    with RecordFile(records) as file:
        searches = tuned.tune(tasks, replace(how, seconds=how.seconds * len(tasks)), file, lambda search: None, workers)
    if any(s.ended == "interrupted" for s in searches):
        raise KeyboardInterrupt
    schedule = tuned.schedule_argument(searches) or None
    ours = CompiledFunction(plain.captured, "cpu", "cpu", **case.options, record="none", schedule=schedule)
    row = measure(Subject(*case.make()), ours, modes, others={UNTUNED: plain}).as_dict()
    return row | {"kernels": [tuned.as_dict(s) for s in searches]}


def line(row: Row) -> str:
    """Returns the line that is printed when a case is done."""
    share, times = ratio(row), row.get("times", {}).get("call", {})
    text = row.get("error") or ("" if share is None else f"{share:.2f} of the best")
    if UNTUNED in times:
        text += f", {times[UNTUNED]['median'] / times[OURS]['median']:.2f} of untuned"
        text += ", kernels " + " ".join(f"{k['speedup']:.2f} ({k['trials']})" for k in row["kernels"])
    return f"{row['suite']} {row['group']} {row['case']}: {'ok' if row.get('right') else row.get('right')}  {text}"


def constants(records: Path) -> str:
    """Returns a report on the planning model: the time of its picks relative to the best measured candidate.

    It compares the present constants with constants that are fitted to the other half of the kernels.
    """
    target = resolve_target("cpu")
    with RecordFile(records) as file:
        samples = [s for s in samples_of(file, target.name, device_name("cpu")) if len(s.seconds) > 2]
    halves = samples[::2], samples[1::2]
    lines = [f"{len(samples)} kernels, {sum(len(s.seconds) for s in samples)} trials"]
    for fitted, tested in (halves, halves[::-1]):
        calibration = fit(fitted, target)
        if calibration is None or not tested:
            return "too few trials to fit constants to"
        before, after = regret(tested, target), regret(tested, target.scaled(calibration.factors))
        text = f"fitted to {len(fitted)} kernels: predictions are off by "
        text += f"{calibration.off[0]:.2f}, then {calibration.off[1]:.2f};"
        lines.append(
            f"{text} picks for the {len(tested)} others take {before:.3f}, then {after:.3f} of the best's time"
        )
        lines.append("  " + ", ".join(f"{n} {f:.2f}" for n, f in calibration.factors.items()))
    return "\n".join(lines)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
@click.option("--only", default="", help="Cases whose key contains this text.")
@click.option("--budget", default=20.0, show_default=True, help="Seconds of a kernel.")
@click.option("--trials", default=1000, show_default=True, help="Trials of a kernel.")
@click.option("--policy", default="")
@click.option("--threads", type=int, help="Threads of PyTorch and of deplodock.")
@click.option("--mode", "modes", multiple=True, default=("torch.compile",), help="Mode of torch.compile.")
@click.option("--constants", "only_constants", is_flag=True, help="Measure nothing.")
@click.option("--limit", default=900.0, help="Seconds of a case.")
@click.option("--out", type=click.Path(path_type=Path), help="File of results.")
def main(
    suites: tuple[str, ...],
    only: str,
    budget: float,
    trials: int,
    policy: str,
    threads: int | None,
    modes: tuple[str, ...],
    only_constants: bool,
    limit: float,
    out: Path | None,
) -> None:
    """Tunes and measures the cases, and writes the result file."""
    torch.set_num_threads(threads or torch.get_num_threads())
    path = out or FOLDER / f"{file_name(environment())}.json"
    records = path.with_name(f".{path.stem}-tuned.db")
    if only_constants:
        return click.echo(constants(records))
    how = tuned.TuneOptions("cpu", policy, budget, trials, threads=torch.get_num_threads())
    settings = f"{sources_digest()} {torch.get_num_threads()} {modes} {budget} {trials} {policy}"
    journal_path = path.with_name(f".{path.stem}-tuned-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.jsonl")
    journal, commit, rows = Journal(journal_path, limit), commit_here(), list[Row]()
    with Workers("cpu", threads=torch.get_num_threads()) as workers:
        for case in cases(suites or SUITES, "cpu", ("f32",), only):
            key_columns: Row = {"suite": f"{case.suite}, tuned", "group": case.group.name, "case": case.name}
            key_columns |= {"dtype": case.dtype, "threads": torch.get_num_threads(), "commit": commit}
            rows.append(key_columns | journal.run(case.key, partial(tune_case, case, records, workers, how, modes)))
            click.echo(line(rows[-1]))
            merge(path, environment(), rows[-1:])
    times = [r["times"]["call"] for r in rows if UNTUNED in r.get("times", {}).get("call", {})]
    speedups = [t[UNTUNED]["median"] / t[OURS]["median"] for t in times]
    ratios = [r for r in map(ratio, rows) if r is not None]
    right = sum(r.get("right") is not False for r in rows)
    click.echo(
        f"{right} of {len(rows)} right; geomeans {geomean(speedups):.3f} of untuned, {geomean(ratios):.3f} of best"
    )
    click.echo(constants(records))
    journal_path.unlink(missing_ok=True)
    click.echo(f"written to {path}; `python -m benchmarks.suite.results_page` renews docs/results.md")
    if right < len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
