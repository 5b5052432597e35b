"""Programs of the benchmarks, compiled ahead by many processes and kept as artifacts; and compiled now if they are not.

    python -m benchmarks.common.prepared FOLDER [--target sm_90a] [--jobs N] [--suite SUITE] [--only WORD] [--small]

Needs no GPU. A case that cannot be compiled is a line on stderr, and no failure: the benchmark says so again.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import click
import torch

from deplodock.extras.artifact.programs import load
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture
from deplodock.target.host import NONE

from .cases import DTYPES, SUITES, Case, cases
from .sources import library


def program(case: Case, target: str, folder: Path | None, executor: str = "cuda") -> CompiledFunction:
    """The program of a case: the artifact of `folder` if it is there, or compiled now."""
    place = None if folder is None else folder / name_of(case, target)
    if place is not None and place.exists():
        return load(place, target=target, executor=executor).programs["main"]
    function, args = case.make()
    return CompiledFunction(capture(function, args), target, executor, **{"record": NONE, **case.options})


def name_of(case: Case, target: str) -> str:
    """Returns the name of a case's artifact, which the sources of the compiler are part of."""
    return hashlib.sha256(f"{library()} {target} {case.key}".encode()).hexdigest()[:24]


def _prepare(case: Case, target: str, folder: Path) -> tuple[str, float, str]:
    """Compile one case and keep it: its name, the seconds it took, and why it failed."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        place = folder / name_of(case, target)
        if not place.exists():
            program(case, target, None).save(place)
    except Exception as error:  # the others are to be compiled
        return case.key, time.perf_counter() - start, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return case.key, time.perf_counter() - start, ""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", default="sm_90a")
@click.option("--jobs", default=os.cpu_count() or 1)
@click.option("--only", default="")
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["f32", "bf16"])
@click.option("--suite", "suites", type=click.Choice(SUITES), multiple=True, default=["classes", "seed84"])
@click.option("--small", is_flag=True, help="The 84 cases shrunk.")
def main(
    folder: Path, target: str, jobs: int, only: str, dtypes: tuple[str, ...], suites: tuple[str, ...], small: bool
) -> None:
    """Compile every case of the benchmarks into FOLDER."""
    found = cases(suites, "cuda", dtypes, only, small)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "deplodock.frontend.api"])  # or each process imports them anew
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        work = [pool.submit(_prepare, case, target, folder) for case in found]
        for done in as_completed(work):
            name, seconds, problem = done.result()
            failed += bool(problem)
            click.echo(f"{seconds:6.1f} s  {name}  {problem}", err=bool(problem))
    click.echo(f"{len(found) - failed} of {len(found)} cases are compiled")


if __name__ == "__main__":
    main()
