"""The suites: the 84 shapes, the classes with targets, whole models and decoding (`decode.py`, on cores), beside
PyTorch's, after a check of the results.

    python -m benchmarks.suite.run --device cpu  # all; writes benchmarks/results/DEVICE-DATE.json
    python -m benchmarks.suite.run classes --only attention --device cpu --threads 1
    python -m benchmarks.suite.run seed84 --dtype bf16 --check  # on a GPU: only whether results are right
    python -m benchmarks.suite.run classes --predict  # without a GPU: what the planning model expects

A call that was stopped goes on with the cases that it has not done, if it is called again with the same sources. What
is measured and how is in `deplodock.frontend.bench`. Needs a CUDA device and CuPy; or, with `--device cpu`, g++.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from deplodock.backend.cuda.runtime import arch_of
from deplodock.frontend.bench import MODES, Subject, environment, measure
from deplodock.frontend.executors import cuda_missing

from ..common.cases import DTYPES, SUITES, Case, Group, cases
from ..common.journal import Journal
from ..common.predictions import predict, prediction_text
from ..common.prepared import program
from ..common.results import FOLDER, Row, commit_here, file_name, geomean, merge, ratio
from ..common.sources import library

ALL = (*(s for s in SUITES if s != "smoke"), "decode")

DEFAULT_MODES = ("torch.compile", "max-autotune")


def measured(case: Case, target: str, modes: tuple[str, ...], prepared: Path | None, **how: Any) -> Row:
    """One case, in all arms."""
    ours = program(case, target, prepared, "cpu" if target == "cpu" else "cuda")
    return measure(Subject(*case.make()), ours, modes, **how).as_dict()


def row_of(case: Case, found: Row, commit: str) -> Row:
    """The row of a case in a file of results."""
    named: Row = {"suite": case.suite, "group": case.group.name, "case": case.name, "dtype": case.dtype}
    return {**named, "threads": torch.get_num_threads(), "commit": commit, **found}


def line(row: Row) -> str:
    """What is said of a case when it is done."""
    if "predicted" in row:
        return prediction_text(row)
    share = ratio(row)
    found = row.get("error") or ("" if share is None else f"{share:.2f} of the best")
    right = {True: "ok", False: "WRONG", None: "not checked"}[row.get("right")]
    return f"{row['suite']} {row['group']} {row['case']} {row['dtype']}: {right}  {found}"


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("suites", nargs=-1, type=click.Choice(ALL))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="Where programs run.")
@click.option("--threads", type=int, help="With --device cpu: how many PyTorch and ours may use.")
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, help="Of the 84 shapes; f32, bf16.")
@click.option("--only", default="", help="Only cases whose name has this in it.")
@click.option("--mode", "modes", type=click.Choice(list(MODES)), multiple=True, default=DEFAULT_MODES)
@click.option("--eager", is_flag=True, help="Only beside eager PyTorch, which needs no compilation.")
@click.option("--first", "words", multiple=True, help="Cases with this in their names come before all others.")
@click.option("--check", is_flag=True, help="Only whether results are right; nothing is timed.")
@click.option("--predict", "predicts", is_flag=True, help="Run nothing: what the planning model expects on an H200.")
@click.option("--small", is_flag=True, help="The 84 shapes shrunk to small odd sizes.")
@click.option("--repetitions", type=int, help="Of each measurement on a GPU, instead of 100 to 1000.")
@click.option("--prepared", type=click.Path(path_type=Path), help="Folder of benchmarks/common/prepared.py.")
@click.option("--journal", "kept", type=click.Path(path_type=Path), help="File of cases that are done; no results.")
@click.option("--limit", default=600.0, help="Seconds of a case.")
@click.option("--out", type=click.Path(path_type=Path), help="File of results.")
def main(
    suites: tuple[str, ...],
    device: str,
    threads: int | None,
    dtypes: tuple[str, ...],
    only: str,
    modes: tuple[str, ...],
    eager: bool,
    words: tuple[str, ...],
    check: bool,
    predicts: bool,
    small: bool,
    repetitions: int | None,
    prepared: Path | None,
    kept: Path | None,
    limit: float,
    out: Path | None,
) -> None:
    """Measure, or predict, and write the results."""
    if device == "cuda" and not predicts and (missing := cuda_missing()):
        raise click.ClickException(f"this needs a GPU, or --device cpu, or --predict: {missing}")
    target = "cpu" if device == "cpu" else "sm_90a" if predicts else arch_of(torch.cuda.get_device_capability())
    torch.set_num_threads(threads or torch.get_num_threads())
    modes = () if eager else modes
    found = cases([s for s in suites or ALL if s in SUITES], device, dtypes or ("f32", "bf16"), only, small)
    found.sort(key=lambda c: next((i for i, word in enumerate(words) if word in c.name), len(words)))
    name = "h200-predicted" if predicts else file_name(environment())
    path = out or FOLDER / f"{name}.json"
    how = f"{library()} {torch.get_num_threads()} {modes} {check} {predicts} {repetitions}"
    goes_on = path.with_name(f".{path.stem}-{hashlib.sha256(how.encode()).hexdigest()[:12]}.jsonl")
    journal, commit, rows = Journal(kept or goes_on, limit), commit_here(), list[Row]()
    for case in found:
        if predicts:
            one = partial(predict, case, target)
        else:
            one = partial(measured, case, target, modes, prepared, repetitions=repetitions, check_only=check)
        rows.append(row_of(case, journal.run(case.key, one), commit))
        click.echo(line(rows[-1]))
    if device == "cpu" and not (predicts or check):
        from . import decode  # which needs transformers

        for name in [n for n in decode.MODELS if "decode" in (suites or ALL) and only in f"decode: {Path(n).stem}"]:
            case = Case("decode", Group(""), Path(name).stem, "bf16")
            rows.append(row_of(case, journal.run(case.key, partial(decode.measure, name)), commit))
            click.echo(line(rows[-1]))
    ratios = [r for r in map(ratio, rows) if r is not None]
    right = sum(r.get("right") is not False for r in rows)
    mean = f"; geomean {geomean(ratios):.3f} of the best of PyTorch's" if ratios else ""
    click.echo(f"{right} of {len(rows)} {'predicted' if predicts else 'right'}{mean}")
    if kept is None:
        goes_on.unlink(missing_ok=True)
    if kept is None and not check:
        merge(path, environment(), rows)
        click.echo(f"written to {path}; `python -m benchmarks.suite.results_page` renews docs/results.md")
    if right < len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
