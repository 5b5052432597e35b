"""The 84 kernel shapes: PyTorch, eager and compiled, and ours side by side, after a check of the results.

    python benchmarks/seed84.py [--dtype f32] [--only SUBSTRING] [--mode torch.compile] [--check] [--out NAME.json]
    python benchmarks/seed84.py --device cpu [--threads 1] ...

Needs a CUDA device and CuPy; or, with `--device cpu`, g++. Writes one JSON file with the GPU, versions, commit and the
raw numbers of every case; with `--journal FILE` each case as it is done, so that a second call goes on where the first
one ended.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from journal import Journal
from prepared import DTYPES, chosen, program, seed_key
from seed84 import make_case
from timing import environment

from deplodock.backend.cpu.timing import on_cores
from deplodock.backend.cuda.runtime import arch_of
from deplodock.backend.cuda.runtime.timing import on_device
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import cuda_missing

_MODES = {"torch.compile": None, "max-autotune": "max-autotune-no-cudagraphs"}


def measure(
    name: str,
    dtype: str,
    target: str,
    modes: tuple[str, ...],
    *,
    small: bool,
    check: bool,
    prepared: Path | None,
    repetitions: int | None,
) -> dict[str, Any]:
    """One case: whether our result is right against PyTorch's, and, unless that is all to `check`, the median device
    time of every arm in seconds."""
    case = make_case(name, DTYPES[dtype], small=small)
    device, executor = ("cpu", "cpu") if target == "cpu" else ("cuda", "cuda")
    inputs = [t.to(device) for t in case.inputs()]
    ours = program(seed_key(name, dtype, small), case, target, prepared, executor)
    arguments = ours.captured.bind(inputs)
    run = ours.executor.run
    allowed = tolerances(ours.compilation.at("tensor"))
    with torch.no_grad():
        (difference,) = compare(run(arguments), [case.function(*inputs)], allowed)
        row: dict[str, Any] = {"name": name, "dtype": dtype, "right": difference.ok}
        row |= {"error_norm": difference.error, "tolerance": difference.tolerance}
        if check:
            return row
        arms = {"eager": lambda: case.function(*inputs), "deplodock": lambda: run(arguments)}
        torch._dynamo.reset()
        for mode in modes:
            compiled = torch.compile(case.function, dynamic=False, mode=_MODES[mode])
            arms[mode] = lambda compiled=compiled: compiled(*inputs)
        timings = on_cores(arms) if target == "cpu" else on_device(arms, repetitions)
    seconds = {name: t.median for name, t in timings.items()}
    row |= {"seconds": seconds, "timings": {name: t.as_dict() for name, t in timings.items()}}
    return row | {"ratio": min(s for arm, s in seconds.items() if arm != "deplodock") / seconds["deplodock"]}


@click.command()
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["f32", "bf16"])
@click.option("--only", default="", help="Only cases whose name has this in it.")
@click.option("--mode", "modes", type=click.Choice(list(_MODES)), multiple=True, default=list(_MODES))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="Where programs run.")
@click.option("--threads", type=int, help="With --device cpu: how many PyTorch and ours may use.")
@click.option("--check", is_flag=True, help="Only whether results are right; nothing is timed.")
@click.option("--small", is_flag=True, help="The same functions of small odd sizes.")
@click.option("--repetitions", type=int, help="Of each measurement, instead of 100 to 1000.")
@click.option("--prepared", type=click.Path(path_type=Path), help="Folder of benchmarks/prepared.py.")
@click.option("--journal", type=click.Path(path_type=Path), help="File of cases that are done.")
@click.option("--limit", default=120.0, help="Seconds of a case, with --journal.")
@click.option("--out", default="seed84.json", help="File below benchmarks/results/.")
def main(
    dtypes: tuple[str, ...],
    only: str,
    modes: tuple[str, ...],
    device: str,
    threads: int | None,
    check: bool,
    small: bool,
    repetitions: int | None,
    prepared: Path | None,
    journal: Path | None,
    limit: float,
    out: str,
) -> None:
    """Run the suite and write the results."""
    if device == "cuda" and (missing := cuda_missing()):
        raise click.ClickException(f"this benchmark needs a GPU, or --device cpu: {missing}")
    target = "cpu" if device == "cpu" else arch_of(torch.cuda.get_device_capability())
    torch.set_num_threads(threads or torch.get_num_threads())
    kept, cases = Journal(journal, limit), list[dict[str, Any]]()
    how: dict[str, Any] = {"small": small, "check": check, "prepared": prepared, "repetitions": repetitions}
    for dtype in dtypes:
        for name in chosen(only):
            one = partial(measure, name, dtype, target, modes, **how)
            row = {"name": name, "dtype": dtype, **kept.run(seed_key(name, dtype, small), one)}
            cases.append(row)
            ratio = f"{row['ratio']:.2f} of the best" if "ratio" in row else row.get("error", "")
            click.echo(f"{dtype} {name:40} {'ok' if row['right'] else 'WRONG'}  {ratio}")
    right = sum(c["right"] for c in cases)
    ratios = [c["ratio"] for c in cases if "ratio" in c]
    geomean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
    click.echo(f"{right} of {len(cases)} right; geomean {geomean:.3f} of the best of PyTorch's")
    if journal is None:
        result = {
            **environment(),
            "target": target,
            "threads": torch.get_num_threads(),
            "geomean_vs_best": geomean,
            "cases": cases,
        }
        path = Path(__file__).parent / "results" / Path(out).name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if right < len(cases):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
