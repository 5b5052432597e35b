"""Programs of the benchmarks, compiled ahead by many processes and kept as artifacts; and compiled now if they are not.

    python benchmarks/prepared.py FOLDER [--target sm_90a] [--jobs N] [--only SUBSTRING] [--small]

Needs no GPU. A case that cannot be compiled is a line on stderr, and no failure: the benchmark says so again.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import click
import torch
from cases import DTYPES, Case, cases

from deplodock.dialects.cores import NONE
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.artifact import load
from deplodock.frontend.capture.export import capture


def program(case: Case, target: str, folder: Path | None, executor: str = "cuda") -> CompiledFunction:
    """The program of a case: the artifact of `folder` if it is there, or compiled now."""
    place = _place(case, target, folder)
    if place is not None and place.exists():
        return load(place, target=target, executor=executor).programs["main"]
    function, args = case.make()
    return CompiledFunction(capture(function, args), target, executor, **{"record": NONE, **case.options})


def _place(case: Case, target: str, folder: Path | None) -> Path | None:
    text = f"{library()} {target} {case.key}"
    return None if folder is None else folder / hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def library() -> str:
    """A digest of deplodock's sources: what another version has compiled, or measured, is not used."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for package in ("backend", "dialects", "frontend", "passes"):
        for file in sorted((root / package).rglob("*.*p*")):
            if file.suffix in (".py", ".hpp", ".cpp"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _prepare(case: Case, target: str, folder: Path) -> tuple[str, float, str]:
    """Compile one case and keep it: its name, the seconds it took, and why it failed."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        place = _place(case, target, folder)
        assert place is not None
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
@click.option("--small", is_flag=True, help="The 84 cases shrunk, and no others.")
def main(folder: Path, target: str, jobs: int, only: str, dtypes: tuple[str, ...], small: bool) -> None:
    """Compile every case of the benchmarks into FOLDER."""
    suites = ["seed84"] if small else ["classes", "seed84"]  # the large ones first
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
