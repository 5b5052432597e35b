"""The targets on an H200, class by class: our programs and PyTorch's side by side, after a check of the results.

    python benchmarks/targets.py [--only SUBSTRING] [--no-autotune] [--predict] [--out NAME.json]
    python benchmarks/targets.py --device cpu [--threads 1] ...

Needs a CUDA device and CuPy; or, with `--device cpu`, g++, for the targets on the cores of a CPU. Writes one JSON file
with the GPU, versions, commit and the raw numbers of every case to benchmarks/results/. A result is right if its error
against float64 is at most 1.5 times eager's (on cores: that of PyTorch's arms that errs most). With `--predict`
nothing is run: it tells the times that the planning model expects and the floor below which no kernel can be, for
programs compiled for an H200.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from classes import CLASSES, CORE_CLASSES, Case, Class
from journal import Journal
from prepared import program
from rich.console import Console
from rich.table import Table
from timing import environment, whole_calls

from deplodock.backend.cpu.timing import on_cores
from deplodock.backend.cuda.runtime import arch_of
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.cuda.runtime.timing import on_device
from deplodock.dialects.loop import NestOp
from deplodock.dialects.target import get_target
from deplodock.errors import CompileError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture
from deplodock.frontend.executors import cuda_missing
from deplodock.passes.analysis.nest_schedule import schedule_of
from deplodock.passes.planning.cost_model import Model
from deplodock.passes.planning.nest_info import NestInfo

COPY = 4.3e12
"""Bytes a second of a copy on an H200, read and written."""

LAUNCH = 1.3e-6
"""Seconds of a launch inside a CUDA graph."""

WORSE = 1.5
"""So many times the baseline's error against float64 ours may be."""


def compiled(case: Case, target: str, executor: str) -> CompiledFunction:
    """The case as a program of ours."""
    examples = case.inputs()
    captured = capture(case.function, examples, names=list(case.shapes))
    return CompiledFunction(captured, target, executor, f32_matmul_precision=case.f32_matmul_precision)


def floor(case: Case, kind: Class) -> float:
    """Seconds that no program can do without: its operations, or its inputs and its result once through memory."""
    tensors = [torch.empty(s, dtype=torch.int64 if n in case.indices else case.dtype) for n, s in case.shapes.items()]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    with torch.device("meta"):
        result = case.function(*[t.to("meta") for t in tensors])
    moved += result.numel() * result.element_size()
    return max(case.flops / kind.rate, moved / COPY) + LAUNCH


def predict(case: Case, kind: Class, target: str) -> dict[str, Any]:
    """What the planning model expects of a case, kernel by kernel, and what the compiler of CUDA says of them."""
    compilation = compiled(case, target, "reference").compilation
    nests = [op for op in compilation.scheduled().walk() if isinstance(op, NestOp)]
    kernels: list[dict[str, Any]] = []
    for nest in nests:
        schedule = schedule_of(nest)
        prediction = Model(NestInfo(nest), get_target(target)).predict(schedule)
        text = str(schedule).removeprefix("#tile.schedule")
        kernels.append({"seconds": prediction.seconds, "limit": prediction.limit, "schedule": text})
    cubin = compile_cubin(compilation.cuda, target)
    spills = sum(use.spills for use in cubin.kernels.values())
    seconds = sum(k["seconds"] for k in kernels)
    return {"case": case.name, "seconds": seconds, "floor": floor(case, kind), "spills": spills, "kernels": kernels}


def _predicted(case: Case, kind: Class, target: str) -> dict[str, Any]:
    try:
        return predict(case, kind, target)
    except CompileError as refused:
        return {"case": case.name, "right": False, "refused": str(refused)}


def error(result: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference by the norm of what is wanted; infinite if there is a NaN."""
    difference = (result.double() - wanted).norm() / wanted.norm()
    return float(difference) if bool(torch.isfinite(difference)) else math.inf


def measure(case: Case, kind: Class, target: str, autotune: bool, prepared: Path | None) -> dict[str, Any]:
    """One case: errors against float64, device times with a cold cache (on cores: of calls, as they are), and times of
    whole calls, arm by arm."""
    cores = target == "cpu"
    inputs, key = case.inputs("cpu" if cores else "cuda", seed=1), f"{kind.name}: {case.name}"
    executor = "cpu" if cores else "cuda"
    ours = program(key, case, target, prepared, executor, f32_matmul_precision=case.f32_matmul_precision)
    arms: dict[str, Callable[[], torch.Tensor]] = {
        "eager": lambda: case.function(*inputs),
        "deplodock": lambda: ours(*inputs),
    }
    torch._dynamo.reset()
    modes = {"torch.compile": None} | ({"max-autotune": "max-autotune-no-cudagraphs"} if autotune else {})
    for name, mode in modes.items():
        function = torch.compile(case.function, dynamic=False, mode=mode)
        arms[name] = lambda function=function: function(*inputs)
    with torch.no_grad():
        wanted = case.function(*[t.double() if t.is_floating_point() else t for t in inputs])
        errors = {name: error(arm(), wanted) for name, arm in arms.items()}
        del wanted
        allowed = max(e for arm, e in errors.items() if arm in ("eager", *modes)) if cores else errors["eager"]
        device = on_cores(arms) if cores else on_device(arms)
        calls = {} if cores else whole_calls(arms)
    return {
        "case": case.name,
        "errors": errors,
        "right": errors["deplodock"] <= WORSE * allowed + torch.finfo(torch.float32).eps,
        "device": {name: t.as_dict() for name, t in device.items()},
        "whole_calls": {name: t.as_dict() for name, t in calls.items()},
    }


def ratio(kind: Class, found: dict[str, Any]) -> float:
    """The baseline's device time over ours; a baseline that was left out is replaced by torch.compile."""
    times = found["device"]
    if kind.baseline == "best":
        return min(t["median"] for arm, t in times.items() if arm != "deplodock") / times["deplodock"]["median"]
    return times.get(kind.baseline, times["torch.compile"])["median"] / times["deplodock"]["median"]


def geomean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def summary(results: list[dict[str, Any]], classes: Sequence[Class]) -> Table:
    """A row for each of `classes`, of measured results."""
    table = Table("class", "baseline", "ours", "ship", "goal", "stretch", "reached")
    for r in results:
        mean, kind = r["geomean"], next(c for c in classes if c.name == r["class"])
        marks = [n for n in ("stretch", "goal", "ship") if mean >= getattr(kind, n)]
        wrong = [c["case"] for c in r["cases"] if not c.get("right", True)]
        reached = "WRONG: " + ", ".join(wrong) if wrong else (marks or ["-"])[0]
        table.add_row(kind.name, kind.baseline, f"{mean:.2f}", *map(str, (kind.ship, kind.goal, kind.stretch)), reached)
    return table


def predictions(results: list[dict[str, Any]]) -> Table:
    """A row for each case, of predicted results."""
    table = Table("class", "case", "us", "floor", "of floor", "limited by", "schedules")
    for r in results:
        for c in r["cases"]:
            if "refused" in c:
                table.add_row(r["class"], c["case"], "", "", "", "REFUSED", c["refused"])
                continue
            limits = ", ".join(dict.fromkeys(k["limit"] for k in c["kernels"]))
            times = (f"{c['seconds'] * 1e6:.1f}", f"{c['floor'] * 1e6:.1f}", f"{c['seconds'] / c['floor']:.2f}")
            spills = f" {c['spills']} B SPILLED" if c["spills"] else ""
            shown = "\n".join(k["schedule"] for k in c["kernels"]) + spills
            table.add_row(r["class"], c["case"], *times, limits, shown)
    return table


@click.command()
@click.option("--only", default="", help="Only classes and cases whose name has this in it.")
@click.option("--no-autotune", is_flag=True, help="Leave max-autotune out.")
@click.option("--predict", "only_predict", is_flag=True, help="Run nothing: what the planning model expects.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="Where programs run.")
@click.option("--threads", type=int, help="With --device cpu: how many PyTorch and ours may use.")
@click.option("--prepared", type=click.Path(path_type=Path), help="Folder of benchmarks/prepared.py.")
@click.option("--journal", type=click.Path(path_type=Path), help="File of cases that are done, to go on from there.")
@click.option("--limit", default=180.0, help="Seconds of a case, with --journal.")
@click.option("--out", default=None, help="File below benchmarks/results/; targets.json of a measurement.")
def main(
    only: str,
    no_autotune: bool,
    only_predict: bool,
    device: str,
    threads: int | None,
    prepared: Path | None,
    journal: Path | None,
    limit: float,
    out: str | None,
) -> None:
    """Measure, or predict, and write the results."""
    if device == "cuda" and not only_predict and (missing := cuda_missing()):
        raise click.ClickException(f"this benchmark needs a GPU, or --predict: {missing}")
    if device == "cpu":
        target = "cpu"
        torch.set_num_threads(threads or torch.get_num_threads())
    else:
        target = "sm_90a" if only_predict else arch_of(torch.cuda.get_device_capability())
    kept, results = Journal(journal, limit), list[dict[str, Any]]()
    classes = CORE_CLASSES if device == "cpu" else CLASSES
    for kind in classes:
        found: list[dict[str, Any]] = []
        for case in kind.cases:
            if only not in f"{kind.name} {case.name}":
                continue
            if only_predict:
                found.append(_predicted(case, kind, target))
            else:
                one = partial(measure, case, kind, target, not no_autotune, prepared)
                found.append({"case": case.name, **kept.run(f"{kind.name}: {case.name}", one)})
            click.echo(f"{kind.name}: {case.name}", err=True)
        ratios = [ratio(kind, f) for f in found if "device" in f]
        results += [{"class": kind.name, "geomean": geomean(ratios), "cases": found}] if found else []
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(predictions(results) if only_predict else summary(results, classes))
    if out is not None or not only_predict and journal is None:
        path = Path(__file__).parent / "results" / Path(out or "targets.json").name
        made = {**environment(), "target": target, "threads": torch.get_num_threads(), "classes": results}
        path.write_text(json.dumps(made, indent=1) + "\n")
    if not all(c.get("right", True) for r in results for c in r["cases"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
