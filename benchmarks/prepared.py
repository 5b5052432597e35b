"""Programs of the benchmarks, compiled ahead by many processes and kept as artifacts; and compiled now if they are not.

    python benchmarks/prepared.py FOLDER [--target sm_90a] [--jobs N] [--only SUBSTRING] [--small]

Needs no GPU. A case that cannot be compiled is a line on stderr, and no failure: the benchmark says so again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from classes import CLASSES, Case
from seed84 import NAMES, make_case

from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.artifact import load
from deplodock.frontend.capture.export import capture

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def chosen(only: str) -> list[str]:
    """The case of the 84 called `only`, or those with it in their names."""
    return [only] if only in NAMES else [n for n in NAMES if only in n]


def program(name: str, case: Any, target: str, folder: Path | None, executor: str = "cuda", **options: Any) -> Any:
    """The program of a case: the artifact `name` of `folder` if it is there, or compiled now."""
    place = _place(name, target, folder)
    if place is not None and place.exists():
        return load(place, target=target, executor=executor).programs["main"]
    captured = capture(case.function, case.inputs(), names=list(case.shapes))
    return CompiledFunction(captured, target, executor, **options)


def _place(name: str, target: str, folder: Path | None) -> Path | None:
    text = f"{_library()} {target} {name}"
    return None if folder is None else folder / hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def _library() -> str:
    """A digest of deplodock's sources: what another version has compiled is not used."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for package in ("backend", "dialects", "frontend", "passes"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def seed_key(name: str, dtype: str, small: bool) -> str:
    """What a case of the 84 is called among prepared programs and in journals."""
    return f"{dtype} {name}{' small' if small else ''}"


def _cases(only: str, small: bool, dtypes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """(kind, name, data type) of every case, large ones of the classes first."""
    if not small:
        yield from (("class", c.name, k.name) for k in CLASSES for c in k.cases if only in f"{k.name} {c.name}")
    yield from (("seed", name, dtype) for dtype in dtypes for name in chosen(only))


def class_case(kind: str, name: str) -> Case:
    """The case `name` of the class `kind`."""
    return next(c for k in CLASSES if k.name == kind for c in k.cases if c.name == name)


def _prepare(job: tuple[str, str, str], target: str, folder: Path, small: bool) -> tuple[str, float, str]:
    """Compile one case and keep it: its name, the seconds it took, and why it failed."""
    torch.set_num_threads(1)
    kind, name, more = job
    start = time.perf_counter()
    key, options = name, {}
    try:
        if kind == "seed":
            key, case = seed_key(name, more, small), make_case(name, DTYPES[more], small=small)
        else:
            key, case = f"{more}: {name}", class_case(more, name)
            options = {"f32_matmul_precision": case.f32_matmul_precision}
        place = _place(key, target, folder)
        assert place is not None
        if not place.exists():
            program(key, case, target, None, **options).save(place)
    except Exception as error:  # the others are to be compiled
        return key, time.perf_counter() - start, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return key, time.perf_counter() - start, ""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", default="sm_90a")
@click.option("--jobs", default=os.cpu_count() or 1)
@click.option("--only", default="")
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["f32", "bf16"])
@click.option("--small", is_flag=True, help="The 84 cases shrunk, and no others.")
def main(folder: Path, target: str, jobs: int, only: str, dtypes: tuple[str, ...], small: bool) -> None:
    """Compile every case of the benchmarks into FOLDER."""
    cases = list(_cases(only, small, dtypes))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "deplodock.frontend.api"])  # or each process imports them anew
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        work = [pool.submit(_prepare, case, target, folder, small) for case in cases]
        for done in as_completed(work):
            name, seconds, problem = done.result()
            failed += bool(problem)
            click.echo(f"{seconds:6.1f} s  {name}  {problem}", err=bool(problem))
    click.echo(f"{len(cases) - failed} of {len(cases)} cases are compiled")


if __name__ == "__main__":
    main()
