"""Measures how fast the candidates of a search are built: processor time of lowering and of compilation.

The candidates are the best predicted schedules of one matmul. They are lowered, printed and compiled in one process per
core.

    python -m benchmarks.search.lowering_rate  # 200 candidates of a bf16 matmul 4096x4096x4096, sm_90a
    python -m benchmarks.search.lowering_rate --target cpu --count 50

Needs NVRTC, or for the CPU g++; no GPU.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter

import click
import torch

from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.building import Built
from deplodock.frontend.tuning.evaluation import Workers
from deplodock.frontend.tuning.search import space_of
from deplodock.frontend.tuning.task import tasks_of
from deplodock.target.host import NONE, cores


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="sm_90a", show_default=True)
@click.option("--count", default=200, show_default=True, help="Number of candidates.")
@click.option("--size", default=4096, show_default=True, help="Size of each side of the matmul.")
@click.option("--dtype", type=click.Choice(["bf16", "f32"]), default="bf16", show_default=True)
@click.option("--jobs", default=cores(), show_default=True, help="Number of processes.")
def main(target: str, count: int, size: int, dtype: str, jobs: int) -> None:
    """Builds the candidates and prints the times."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    operands = [torch.zeros(size, size, dtype=kind, device="meta")] * 2
    (task,) = tasks_of(compile_captured(capture(torch.matmul, operands), target, record=NONE))
    start = time.perf_counter()
    ranked = space_of(task).ranked()
    chosen = ranked[:count]
    click.echo(f"{len(ranked)} candidates ranked in {time.perf_counter() - start:.2f} s; {len(chosen)} taken")
    with Workers("cpu" if target == "cpu" else "cuda", jobs) as workers:
        workers.build(task, chosen[:1] * jobs)  # Start the processes and their imports.
        start = time.perf_counter()
        results = workers.build(task, chosen)
        wall = time.perf_counter() - start
    built = [b for b in results if isinstance(b, Built)]
    lowering, compiling = ([getattr(b, part) for b in built] for part in ("lowering", "compiling"))
    for name, seconds in (("lowering and printing", lowering), ("the compiler", compiling)):
        statistics_text = (
            f"{statistics.median(seconds) * 1e3:.0f} ms each (median), {max(seconds) * 1e3:.0f} ms at most"
        )
        click.echo(f"{name}: {sum(seconds):.1f} s of a processor, {statistics_text}")
    click.echo(f"{wall:.1f} s with {jobs} processes, {len(built)} of {len(results)} taken")
    for why, times in Counter(b for b in results if isinstance(b, str)).most_common(5):
        click.echo(f"  {times} times: {why}")


if __name__ == "__main__":
    main()
