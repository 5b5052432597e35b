"""Steps of `benchmarks/gpu_minutes.sh`, a script for a few minutes on a rented GPU.

The cheapest and most informative steps come first. Their time limits add up to nine minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

FILES = (
    "state.jsonl",
    "smoke.jsonl",
    "gpu-tests.jsonl",
    "right.jsonl",
    "seed84.jsonl",
    "ncu.txt",
    "log.txt",
    "summary.txt",
)
"""Names of all result files. A machine may return at most eight files."""


@dataclass(frozen=True)
class Settings:
    """Settings of a call of the script.

    Attributes:
        folder: folder of the result files.
        prepared: folder of compiled programs.
        helpers: file of expected results of device functions.
        small: whether this is a rehearsal with small cases and few tests.
        cases: part of the keys of the cases to run; empty for all.
    """

    folder: Path
    prepared: Path
    helpers: Path
    small: bool = False
    cases: str = ""


@dataclass(frozen=True)
class Step:
    """A command and its time limit.

    Attributes:
        limit: seconds of all calls together.
        resumable: whether a restarted command continues where it stopped. Other commands start from the beginning.
        required: whether no other step runs if this one fails.
        skipped: reason why the machine cannot run the step, or None.
        results: file that grows with each result, or None.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    resumable: bool = False
    required: bool = False
    skipped: str | None = None
    results: Path | None = None


def steps(settings: Settings, limits: dict[str, float]) -> list[Step]:
    """Returns all steps. `limits` replaces the limits of steps, in seconds by the step's name."""
    python, folder = sys.executable, settings.folder
    smoke = (python, "-m", "benchmarks.gpu_minutes.smoke")
    prepared = ("--prepared", str(settings.prepared))
    smoke_results, test_results, check_results, timing_results = (
        folder / f"{n}.jsonl" for n in ("smoke", "gpu-tests", "right", "seed84")
    )
    gpu_tests = (
        python,
        "-m",
        "benchmarks.gpu_minutes.gpu_tests",
        str(test_results),
        "--helpers",
        str(settings.helpers),
    )
    shrunk, few_tests = (("--small",), ("--small",)) if settings.small else ((), ())
    order = ("--first", ".s512", "--first", ".s128")
    seed = (python, "-m", "benchmarks.suite.run", "seed84", "--only", settings.cases, *shrunk, *order, *prepared)
    times = ("--eager", "--repetitions", "5")
    profile = (python, "-m", "benchmarks.gpu_minutes.worst_case", str(folder), *prepared, *shrunk)
    all_steps = [
        Step(
            "smoke", (*smoke, str(smoke_results), *prepared), 40, resumable=True, required=True, results=smoke_results
        ),
        Step("uses", (*smoke, str(smoke_results), "--uses"), 40, resumable=True, results=smoke_results),
        Step("gpu-tests", (*gpu_tests, *few_tests), 90, resumable=True, results=test_results),
        Step(
            "right",
            (*seed, "--eager", "--check", "--journal", str(check_results)),
            120,
            resumable=True,
            results=check_results,
        ),
        *(_sanitizer(tool, (*smoke, os.devnull, *prepared)) for tool in ("memcheck", "racecheck")),
        Step("seed84", (*seed, *times, "--journal", str(timing_results)), 180, resumable=True, results=timing_results),
        Step("ncu", profile, 30, skipped=_absent("ncu"), results=folder / "ncu.txt"),
    ]
    return [replace(s, limit=limits.get(s.name, s.limit)) for s in all_steps]


def _absent(tool: str) -> str | None:
    return None if shutil.which(tool) else f"{tool} is not installed"


def _sanitizer(tool: str, command: tuple[str, ...]) -> Step:
    """Returns the step of a tool of compute-sanitizer.

    On an H200, racecheck reports a race in a kernel of cuDNN, which PyTorch uses for attention. Restricting the tool to
    generated kernels (`--kernel-name kns=k_`) ended in an internal error of the tool.
    """
    report = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20")
    return Step(tool, (*report, *command), 20, skipped=_absent(report[0]))
