"""Measures the suites on deplodock and PyTorch, after a check that the results are right.

The suites are the 84 shapes, the classes with targets, whole models, and on the CPU decoding (`decode.py`).

    python -m benchmarks.suite.run --device cpu  # all; writes benchmarks/results/DEVICE-DATE.json
    python -m benchmarks.suite.run classes --only attention --device cpu --threads 1
    python -m benchmarks.suite.run seed84 --dtype bf16 --check  # on a GPU; checks results, without times
    python -m benchmarks.suite.run classes --predict  # without a GPU; times of the planning model

An interrupted run continues if the command is repeated with the same sources. `deplodock.frontend.bench` describes how
arms are measured. Needs a CUDA device and CuPy; or, with `--device cpu`, g++.
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
from ..common.sources import sources_digest

ALL = (*(s for s in SUITES if s != "smoke"), "decode")

DEFAULT_MODES = ("torch.compile", "max-autotune")


def measured(case: Case, target: str, modes: tuple[str, ...], prepared: Path | None, **options: Any) -> Row:
    """Checks and times one case.

    Args:
        case: the case.
        target: target name.
        modes: arms of torch.compile, keys of `deplodock.frontend.bench.MODES`. Eager PyTorch is always measured.
        prepared: folder of compiled programs, or None.
        **options: options of `deplodock.frontend.bench.measure`.
    """
    ours = program(case, target, prepared, "cpu" if target == "cpu" else "cuda")
    return measure(Subject(*case.make()), ours, modes, **options).as_dict()


def row_of(case: Case, result: Row, commit: str) -> Row:
    """Returns the row of a case for a result file.

    Args:
        case: the case.
        result: the measured or predicted columns.
        commit: commit of the compiler.
    """
    key_columns: Row = {"suite": case.suite, "group": case.group.name, "case": case.name, "dtype": case.dtype}
    return {**key_columns, "threads": torch.get_num_threads(), "commit": commit, **result}


def line(row: Row) -> str:
    """Returns the line that is printed when a case is done."""
    if "predicted" in row:
        return prediction_text(row)
    share = ratio(row)
    detail = row.get("error") or ("" if share is None else f"{share:.2f} of the best")
    right = {True: "ok", False: "WRONG", None: "not checked"}[row.get("right")]
    return f"{row['suite']} {row['group']} {row['case']} {row['dtype']}: {right}  {detail}"


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("suites", nargs=-1, type=click.Choice(ALL))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="Where programs run.")
@click.option("--threads", type=int, help="With --device cpu: threads of PyTorch and of deplodock.")
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, help="Of the 84 shapes; f32, bf16.")
@click.option("--only", default="", help="Cases whose key contains this text.")
@click.option("--mode", "modes", type=click.Choice(list(MODES)), multiple=True, default=DEFAULT_MODES)
@click.option("--eager", is_flag=True, help="Compare with eager PyTorch only, which needs no compilation.")
@click.option("--first", "first_words", multiple=True, help="Run cases whose name contains this text first.")
@click.option("--check", is_flag=True, help="Check results; time nothing.")
@click.option("--predict", "predicts", is_flag=True, help="Run nothing; predict times on an H200.")
@click.option("--small", is_flag=True, help="The 84 shapes shrunk to small odd sizes.")
@click.option("--repetitions", type=int, help="Samples of each measurement on a GPU, instead of 100 to 1000.")
@click.option("--prepared", type=click.Path(path_type=Path), help="Folder of benchmarks/common/prepared.py.")
@click.option(
    "--journal", "journal_path", type=click.Path(path_type=Path), help="Journal to use; writes no result file."
)
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
    first_words: tuple[str, ...],
    check: bool,
    predicts: bool,
    small: bool,
    repetitions: int | None,
    prepared: Path | None,
    journal_path: Path | None,
    limit: float,
    out: Path | None,
) -> None:
    """Measures or predicts the cases, and writes the result file."""
    if device == "cuda" and not predicts and (missing := cuda_missing()):
        raise click.ClickException(f"this needs a GPU, or --device cpu, or --predict: {missing}")
    target = "cpu" if device == "cpu" else "sm_90a" if predicts else arch_of(torch.cuda.get_device_capability())
    torch.set_num_threads(threads or torch.get_num_threads())
    modes = () if eager else modes
    selected = cases([s for s in suites or ALL if s in SUITES], device, dtypes or ("f32", "bf16"), only, small)
    selected.sort(key=lambda c: next((i for i, word in enumerate(first_words) if word in c.name), len(first_words)))
    name = "h200-predicted" if predicts else file_name(environment())
    path = out or FOLDER / f"{name}.json"
    settings = f"{sources_digest()} {torch.get_num_threads()} {modes} {check} {predicts} {repetitions}"
    default_journal = path.with_name(f".{path.stem}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.jsonl")
    journal, commit, rows = Journal(journal_path or default_journal, limit), commit_here(), list[Row]()
    for case in selected:
        if predicts:
            measure_case = partial(predict, case, target)
        else:
            measure_case = partial(measured, case, target, modes, prepared, repetitions=repetitions, check_only=check)
        rows.append(row_of(case, journal.run(case.key, measure_case), commit))
        click.echo(line(rows[-1]))
    if device == "cpu" and not (predicts or check):
        from . import decode  # needs transformers

        for name in [n for n in decode.MODELS if "decode" in (suites or ALL) and only in f"decode: {Path(n).stem}"]:
            case = Case("decode", Group(""), Path(name).stem, "bf16")
            rows.append(row_of(case, journal.run(case.key, partial(decode.measure, name)), commit))
            click.echo(line(rows[-1]))
    ratios = [r for r in map(ratio, rows) if r is not None]
    right = sum(r.get("right") is not False for r in rows)
    mean = f"; geomean {geomean(ratios):.3f} of the best of PyTorch's" if ratios else ""
    click.echo(f"{right} of {len(rows)} {'predicted' if predicts else 'right'}{mean}")
    if journal_path is None:
        default_journal.unlink(missing_ok=True)
    if journal_path is None and not check:
        merge(path, environment(), rows)
        click.echo(f"written to {path}; `python -m benchmarks.suite.results_page` renews docs/results.md")
    if right < len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
