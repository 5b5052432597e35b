"""The 84 kernel shapes on a GPU: eager PyTorch, torch.compile and ours side by side, after a check of the results.

    python benchmarks/seed84.py [--dtype f32] [--only SUBSTRING] [--no-compile] [--out results/NAME.json]

Needs a CUDA device and CuPy. Writes one JSON file with the GPU, versions, commit and the raw numbers of every case.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from seed84 import NAMES, make_case

from deplodock.backend.runtime import arch_of, time_on_device
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture import capture
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import cuda_missing

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def measure(name: str, dtype: str, target: str, with_compile: bool) -> dict[str, Any]:
    """One case: whether our result is right against PyTorch's, and the median device time of every arm in seconds."""
    case = make_case(name, DTYPES[dtype])
    inputs = [t.cuda() for t in case.inputs()]
    captured = capture(case.function, case.inputs(), names=list(case.shapes))
    program = CompiledFunction(captured, target, "cuda")
    arguments = captured.bind(inputs)
    ours = program.executor.run
    allowed = tolerances(program.compilation.at("tensor"))
    with torch.no_grad():
        (difference,) = compare(ours(arguments), [case.function(*inputs)], allowed)
        arms = {"eager": lambda: case.function(*inputs), "deplodock": lambda: ours(arguments)}
        if with_compile:
            torch._dynamo.reset()
            compiled = torch.compile(case.function, dynamic=False)
            arms["torch.compile"] = lambda: compiled(*inputs)
        seconds = time_on_device(arms)
    return {
        "name": name,
        "dtype": dtype,
        "right": difference.ok,
        "error": difference.error,
        "tolerance": difference.tolerance,
        "seconds": seconds,
    }


def environment() -> dict[str, str]:
    """What the numbers depend on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "deplodock": version("deplodock"),
        "xdsl": version("xdsl"),
        "commit": commit,
    }


@click.command()
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["f32", "bf16"])
@click.option("--only", default="", help="Only cases whose name has this in it.")
@click.option("--no-compile", is_flag=True, help="Leave torch.compile out.")
@click.option("--out", default="seed84.json", help="File below benchmarks/results/.")
def main(dtypes: tuple[str, ...], only: str, no_compile: bool, out: str) -> None:
    """Run the suite and write the results."""
    if missing := cuda_missing():
        raise click.ClickException(f"this benchmark needs a GPU: {missing}")
    target = arch_of(torch.cuda.get_device_capability())
    cases = []
    for dtype in dtypes:
        for name in NAMES:
            if only in name:
                cases.append(measure(name, dtype, target, not no_compile))
                seconds = cases[-1]["seconds"]
                ratio = seconds["eager"] / seconds["deplodock"]
                click.echo(f"{dtype} {name:40} {'ok' if cases[-1]['right'] else 'WRONG'}  {ratio:.2f} of eager")
    ratios = [c["seconds"]["eager"] / c["seconds"]["deplodock"] for c in cases]
    geomean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
    result = {**environment(), "target": target, "geomean_vs_eager": geomean, "cases": cases}
    path = Path(__file__).parent / "results" / Path(out).name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(f"geomean {geomean:.3f} of eager; wrote {path.name}")
    if not all(c["right"] for c in cases):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
