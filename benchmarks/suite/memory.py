"""Compare the memory that programs take beside their arguments with what they may: as much as eager PyTorch.

    python -m benchmarks.suite.memory  # the classes, the 84 shapes in f32 and bf16, and models
    python -m benchmarks.suite.memory classes --target cpu --only softmax

Nothing is computed and no GPU is needed. A line each for the programs that take more than eager PyTorch's tensors, with
the largest buffer between arguments and results, and whether that is more than PyTorch takes with what it needs for
sums (`Target.workspace`); the exit status says whether there is one of these.
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
from deplodock.frontend.compilation import beyond
from deplodock.passes.analysis.host_memory import MEMORY_LIMIT, limit_of
from deplodock.target.host import NONE

from ..common.cases import DTYPES, SUITES, cases


@click.command(help=__doc__)
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
@click.option("--target", default="sm_90a", show_default=True)
@click.option("--dtypes", multiple=True, type=click.Choice(list(DTYPES)), default=("f32", "bf16"))
@click.option("--only", default="", help="Those with this in their names.")
def main(suites: Sequence[str], target: str, dtypes: Sequence[str], only: str) -> None:
    """Compare, and print."""
    count = more = too_much = 0
    for case in cases(suites or SUITES, "cpu" if target == "cpu" else "cuda", dtypes, only):
        function, args = case.make()
        if isinstance(function, torch.nn.Module):
            function.requires_grad_(False)
        try:
            program = deplodock.compile(function, args, target=target, **{"record": NONE, **case.options})
        except CompileError as error:
            print(f"{case.key}: {error}", file=sys.stderr)
            continue
        plan, most = make_plan(program.compilation.at("kernel")), program.compilation.most_bytes
        eager = limit_of(main_function(program.captured.module), MEMORY_LIMIT)
        count += 1
        if eager is not None and (why := beyond(plan, eager)):
            more += 1
            over = most is not None and plan.peak_bytes > most
            too_much += over
            print(f"{case.key}: {why}" + ("; more than it may" if over else ""), flush=True)
    print(f"{more} of {count} programs take more than eager PyTorch's tensors, {too_much} more than they may")
    sys.exit(too_much > 0)


if __name__ == "__main__":
    main()
