"""The steps, in their order: what is cheap and says most comes first."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent
TESTS = BENCHMARKS.parent / "tests"
WORST = 5


@dataclass(frozen=True)
class Step:
    """`command` may take `limit` seconds. One that goes `on` keeps what it has done, so it can be stopped and called
    again; others begin anew. `skipped` says why it is not run here. What it gives is in `results`."""

    name: str
    command: tuple[str, ...]
    limit: float
    on: bool = False
    skipped: str | None = None
    results: Path | None = None


def steps(folder: Path, small: bool, cases: str, limits: dict[str, float]) -> list[Step]:
    """All steps for results in `folder`; `small` ones are a rehearsal."""
    python = sys.executable
    prepared = folder / "prepared"
    some = ("--only", cases)
    shrunk, few = (("--small",), ("--repetitions", "5")) if small else ((), ())
    seed = (python, str(BENCHMARKS / "seed84.py"), *some, *shrunk, "--prepared", str(prepared))
    ahead = (python, str(BENCHMARKS / "prepared.py"), str(prepared), *some, "--jobs", str(_jobs()))
    right, timed, classes = (folder / f"{name}.jsonl" for name in ("right", "seed84", "targets"))
    targets = (python, str(BENCHMARKS / "targets.py"), "--mode", "torch.compile", "--prepared", str(prepared))
    nothing = ("--only", "nothing of this name") if small and not cases else some
    found = [
        Step("versions", (python, str(HERE / "machine.py"), str(folder / "versions.json")), 60),
        Step("compile-ahead", (*ahead, *shrunk), 240, on=True),
        Step("gpu-tests", _tests(folder, small), 240, results=folder / "gpu-tests.xml"),
        Step("right", (*seed, "--check", "--journal", str(right)), 200, on=True, results=right),
        *(_sanitizer(tool, python, prepared, small, cases) for tool in ("memcheck", "racecheck", "synccheck")),
        Step("targets", (*targets, *nothing, "--journal", str(classes)), 300, on=True, results=classes),
        Step("seed84", (*seed, "--mode", "torch.compile", *few, "--journal", str(timed)), 420, on=True, results=timed),
        Step("ncu", (python, str(HERE / "worst_cases.py"), str(folder), *shrunk), 180, on=True),
    ]
    if shutil.which("ncu") is None:
        found[-1] = replace(found[-1], skipped="ncu is not installed")
    return [replace(s, limit=limits.get(s.name, s.limit)) for s in found]


def _jobs() -> int:
    return len(os.sched_getaffinity(0))


def _tests(folder: Path, small: bool) -> tuple[str, ...]:
    """Every test with the marker `gpu`; few of them in a rehearsal."""
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if re.search(r"mark\.gpu\b", f.read_text(encoding="utf-8"))]
    files = [f for f in files if not small or f.name == "test_runtime_gpu.py"]
    report = f"--junitxml={folder / 'gpu-tests.xml'}"
    several = ("-n", str(min(_jobs(), len(files))), "--dist", "loadfile") if find_spec("xdist") and not small else ()
    options = ("-m", "gpu", "-q", "-p", "no:cacheprovider", *several, report)
    return (sys.executable, "-m", "pytest", *options, *map(str, files))


def _sanitizer(tool: str, python: str, prepared: Path, small: bool, cases: str) -> Step:
    """compute-sanitizer on a slice: the device functions one by one, or in a rehearsal one case."""
    report = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20")
    units = str(TESTS / "levels" / "test_hopper_units.py"), str(TESTS / "levels" / "test_runtime_gpu.py")
    what = ("-m", "pytest", "-m", "gpu", "-q", "-x", "-p", "no:cacheprovider", *units)
    if small:
        seed = (str(BENCHMARKS / "seed84.py"), "--check", "--small", "--dtype", "f32", "--only", cases)
        what = (*seed, "--prepared", str(prepared), "--journal", os.devnull)
    missing = shutil.which("compute-sanitizer") is None
    return Step(tool, (*report, python, *what), 90, skipped="compute-sanitizer is not installed" if missing else None)
