"""Measures programs on the CPU: compiled by `examples/small_compiler`, by deplodock, and run by eager PyTorch.

    OMP_NUM_THREADS=1 python -m benchmarks.compiler.small_compiler_times [-o benchmarks/results/small_compiler.json]

It also compiles the distinct programs of `tests/support/seed84.py` with small shapes. It counts the programs with the
results of PyTorch, and the refused ones.

The three versions are called in turns, on one core: other programs disturb several threads more than one. Of several
runs, the fastest one of each version counts.
docs/learn/small_compiler/08_comparison.md shows the numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import deplodock
from deplodock.backend.host.timing import by_clock
from deplodock.errors import UnsupportedError
from deplodock.frontend.bench import environment

from ..common.cases import seed84

EXAMPLES = Path(__file__).parents[2] / "examples"


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[list[int], ...]]] = {
    "RMSNorm, 32 rows of 2048": (nn.RMSNorm(2048), ([32, 2048],)),
    "softmax, 512 rows of 512": (nn.Softmax(-1), ([512, 512],)),
    "GELU, 1M elements": (nn.GELU(), ([1024, 1024],)),
    "relu(x @ w), 256 x 256 x 256": (lambda x, w: torch.relu(x @ w), ([256, 256], [256, 256])),
    "attention, 4 heads, 128 x 64": (attention, ([4, 128, 64],) * 3),
}
"""Name -> program and the shapes of its inputs."""


def measure(name: str, seconds: float, runs: int) -> dict[str, Any]:
    """Returns the times and the kernels of a program.

    Args:
        name: name of the program.
        seconds: time of the samples of a run.
        runs: number of runs.
    """
    sys.path.insert(0, str(EXAMPLES))
    from small_compiler import c7_text  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    function, shapes = PROGRAMS[name]
    inputs = tuple(torch.randn(shape) for shape in shapes)
    small, real = c7_text.compile(function, inputs), deplodock.compile(function, inputs, target="cpu")
    with torch.no_grad():
        torch.testing.assert_close(small(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)
        arms = {"small": lambda: small(*inputs), "deplodock": lambda: real(*inputs), "eager": lambda: function(*inputs)}
        measured = [by_clock(arms, seconds) for _ in range(runs)]
    times = {arm: min((run[arm] for run in measured), key=lambda time: time.p20) for arm in arms}
    kernels = {
        "small": sum(op.name == "kernel.launch" for op in small.module.walk()),
        "deplodock": sum(op.name == "kernel.launch" for op in real.compilation.at("kernel").walk()),
    }
    return {"kernels": kernels, "times": {arm: time.as_dict() for arm, time in times.items()}}


def coverage() -> dict[str, Any]:
    """Returns the numbers of programs that are right, wrong and refused, and the reasons of refusal."""
    from small_compiler import c6_schedule  # pyright: ignore[reportMissingImports]

    right, wrong, refused = 0, list[str](), Counter[str]()
    for name in seed84.DISTINCT:
        case = seed84.make_case(name, torch.float32, small=True)
        inputs = tuple(case.inputs())
        try:
            result = c6_schedule.compile(case.function, inputs)(*inputs)
        except UnsupportedError as error:
            refused[str(error)] += 1
            continue
        if torch.allclose(result, case.function(*inputs), rtol=1e-4, atol=1e-4):
            right += 1
        else:
            wrong.append(name)
    return {"right": right, "wrong": wrong, "refused": refused}


def main() -> None:
    """Measures all programs."""
    parser = argparse.ArgumentParser(description="Times of the small compiler beside those of deplodock.")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of the samples of a run")
    parser.add_argument("--runs", type=int, default=5, help="runs of a program")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers there as JSON")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in PROGRAMS:
        rows[name] = row = measure(name, options.seconds, options.runs)
        times = "  ".join(f"{arm} {time['p20'] * 1e6:.1f} us" for arm, time in row["times"].items())
        print(f"{name:32} {times}", flush=True)
    counts = coverage()
    print(f"programs of language models: {counts}")
    if options.output:
        text = json.dumps({"machine": environment(), "programs": rows, "coverage": counts}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
