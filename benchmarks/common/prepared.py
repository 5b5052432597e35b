"""Compiles cases ahead of time in many processes, and stores them as artifacts for a later benchmark.

    python -m benchmarks.common.prepared FOLDER [--target sm_90a] [--jobs N] [--suite SUITE] [--only WORD] [--small]

Needs no GPU. A case that cannot be compiled is a line on stderr; the exit status stays 0, because the benchmark
reports the case again.
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
from .sources import sources_digest


def program(case: Case, target: str, folder: Path | None, executor: str = "cuda") -> CompiledFunction:
    """Returns the compiled program of a case.

    Args:
        case: the case.
        target: target name, such as `sm_90a` or `cpu`.
        folder: folder of artifacts. A case without an artifact in it is compiled now; None compiles every case.
        executor: name of the executor that runs the program.
    """
    file = None if folder is None else folder / artifact_name(case, target)
    if file is not None and file.exists():
        return load(file, target=target, executor=executor).programs["main"]
    function, args = case.make()
    return CompiledFunction(capture(function, args), target, executor, **{"record": NONE, **case.options})


def artifact_name(case: Case, target: str) -> str:
    """Returns the file name of a case's artifact, a hash of the compiler's sources, the target and the case's key."""
    return hashlib.sha256(f"{sources_digest()} {target} {case.key}".encode()).hexdigest()[:24]


def _prepare(case: Case, target: str, folder: Path) -> tuple[str, float, str]:
    """Compiles a case into `folder`. Returns its key, the seconds, and the error message, empty on success."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        file = folder / artifact_name(case, target)
        if not file.exists():
            program(case, target, None).save(file)
    except Exception as error:  # The other cases must still be compiled.
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
    """Compiles every case of the benchmarks into FOLDER."""
    selected = cases(suites, "cuda", dtypes, only, small)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "deplodock.frontend.api"])  # Workers share these imports.
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(_prepare, case, target, folder) for case in selected]
        for future in as_completed(futures):
            name, seconds, problem = future.result()
            failed += bool(problem)
            click.echo(f"{seconds:6.1f} s  {name}  {problem}", err=bool(problem))
    click.echo(f"{len(selected) - failed} of {len(selected)} cases are compiled")


if __name__ == "__main__":
    main()
