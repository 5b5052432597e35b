"""The 84 kernel shapes on a GPU: PyTorch, eager and compiled, and ours side by side, after a check of the results.

    python benchmarks/seed84.py [--dtype f32] [--only SUBSTRING] [--mode torch.compile] [--out results/NAME.json]

Needs a CUDA device and CuPy. Writes one JSON file with the GPU, versions, commit and the raw numbers of every case.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from seed84 import NAMES, make_case
from timing import environment

from deplodock.backend.runtime import arch_of
from deplodock.backend.timing import on_device
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture import capture
from deplodock.frontend.comparison import compare, tolerances
from deplodock.frontend.executors import cuda_missing

_MODES = {"torch.compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def measure(name: str, dtype: str, target: str, modes: tuple[str, ...]) -> dict[str, Any]:
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
        torch._dynamo.reset()
        for mode in modes:
            compiled = torch.compile(case.function, dynamic=False, mode=_MODES[mode])
            arms[mode] = lambda compiled=compiled: compiled(*inputs)
        timings = on_device(arms)
    return {
        "name": name,
        "dtype": dtype,
        "right": difference.ok,
        "error": difference.error,
        "tolerance": difference.tolerance,
        "seconds": {name: t.median for name, t in timings.items()},
        "timings": {name: t.as_dict() for name, t in timings.items()},
    }


def _best(seconds: dict[str, float]) -> float:
    """The time of the fastest that is not ours."""
    return min(s for name, s in seconds.items() if name != "deplodock")


@click.command()
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["f32", "bf16"])
@click.option("--only", default="", help="Only cases whose name has this in it.")
@click.option("--mode", "modes", type=click.Choice(list(_MODES)), multiple=True, default=list(_MODES))
@click.option("--out", default="seed84.json", help="File below benchmarks/results/.")
def main(dtypes: tuple[str, ...], only: str, modes: tuple[str, ...], out: str) -> None:
    """Run the suite and write the results."""
    if missing := cuda_missing():
        raise click.ClickException(f"this benchmark needs a GPU: {missing}")
    target = arch_of(torch.cuda.get_device_capability())
    cases = []
    for dtype in dtypes:
        for name in NAMES:
            if only in name:
                cases.append(measure(name, dtype, target, modes))
                seconds = cases[-1]["seconds"]
                cases[-1]["ratio"] = ratio = _best(seconds) / seconds["deplodock"]
                click.echo(f"{dtype} {name:40} {'ok' if cases[-1]['right'] else 'WRONG'}  {ratio:.2f} of the best")
    ratios = [c["ratio"] for c in cases]
    geomean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
    result = {**environment(), "target": target, "geomean_vs_best": geomean, "cases": cases}
    path = Path(__file__).parent / "results" / Path(out).name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(f"geomean {geomean:.3f} of the best of PyTorch's; wrote {path.name}")
    if not all(c["right"] for c in cases):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
