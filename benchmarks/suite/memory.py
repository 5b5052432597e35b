"""Compares the memory that programs need in addition to their arguments with the memory that eager PyTorch needs.

    python -m benchmarks.suite.memory  # the classes, the 84 shapes in f32 and bf16, and models
    python -m benchmarks.suite.memory classes --target cpu --only softmax

Programs are compiled and not run, so no GPU is needed. Prints a line for each program that needs more than eager
PyTorch's tensors, with its largest intermediate buffer. A second limit adds the scratch memory that PyTorch's kernels
use for reductions (`Target.workspace`). The exit status is 1 if a program exceeds the second limit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import torch

import deplodock
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects.support.calls import main_function
from deplodock.errors import CompileError
from deplodock.frontend.compilation import memory_excess
from deplodock.passes.analysis.host_memory import MEMORY_LIMIT, limit_of
from deplodock.target.host import NONE

from ..common.cases import DTYPES, SUITES, cases


@click.command(help=__doc__)
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
@click.option("--target", default="sm_90a", show_default=True)
@click.option("--dtypes", multiple=True, type=click.Choice(list(DTYPES)), default=("f32", "bf16"))
@click.option("--only", default="", help="Cases whose key contains this text.")
def main(suites: Sequence[str], target: str, dtypes: Sequence[str], only: str) -> None:
    """Compiles the programs and prints those that need more memory."""
    count = over_eager = over_limit = 0
    for case in cases(suites or SUITES, "cpu" if target == "cpu" else "cuda", dtypes, only):
        function, args = case.make()
        if isinstance(function, torch.nn.Module):
            function.requires_grad_(False)
        try:
            program = deplodock.compile(function, args, target=target, **{"record": NONE, **case.options})
        except CompileError as error:
            print(f"{case.key}: {error}", file=sys.stderr)
            continue
        plan, limit = make_plan(program.compilation.at("kernel")), program.compilation.most_bytes
        eager = limit_of(main_function(program.captured.module), MEMORY_LIMIT)
        count += 1
        if eager is not None and (excess := memory_excess(plan, eager)):
            over_eager += 1
            is_over_limit = limit is not None and plan.peak_bytes > limit
            over_limit += is_over_limit
            print(f"{case.key}: {excess}" + ("; over the limit" if is_over_limit else ""), flush=True)
    print(f"{over_eager} of {count} programs take more than eager PyTorch's tensors, {over_limit} are over the limit")
    sys.exit(over_limit > 0)


if __name__ == "__main__":
    main()
