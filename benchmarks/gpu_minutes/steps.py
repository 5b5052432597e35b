"""The steps in their order: the cheapest and most telling one comes first. Limits add up to nine minutes."""

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
"""All files of results: a machine may return eight."""


@dataclass(frozen=True)
class Place:
    """Folders and the extent of a call.

    Attributes:
        folder: results.
        prepared: compiled programs.
        helpers: results of device functions that another machine computed.
        small: a rehearsal with small cases and few tests.
        cases: part of the names of cases.
    """

    folder: Path
    prepared: Path
    helpers: Path
    small: bool = False
    cases: str = ""


@dataclass(frozen=True)
class Step:
    """A command and its limit.

    Attributes:
        limit: seconds.
        on: an interrupted command continues in another call; others begin anew.
        required: no other step follows if this one fails.
        skipped: reason if the machine cannot run the step.
        results: file that grows with each result.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    on: bool = False
    required: bool = False
    skipped: str | None = None
    results: Path | None = None


def steps(place: Place, limits: dict[str, float]) -> list[Step]:
    """Returns all steps. `limits` are other seconds, by the name of a step."""
    python, folder = sys.executable, place.folder
    smoke = (python, "-m", "benchmarks.gpu_minutes.smoke")
    prepared = ("--prepared", str(place.prepared))
    looks, tests, right, timed = (folder / f"{n}.jsonl" for n in ("smoke", "gpu-tests", "right", "seed84"))
    gpu_tests = (python, "-m", "benchmarks.gpu_minutes.gpu_tests", str(tests), "--helpers", str(place.helpers))
    shrunk, few = (("--small",), ("--small",)) if place.small else ((), ())
    order = ("--first", ".s512", "--first", ".s128")
    seed = (python, "-m", "benchmarks.suite.run", "seed84", "--only", place.cases, *shrunk, *order, *prepared)
    times = ("--eager", "--repetitions", "5")
    profile = (python, "-m", "benchmarks.gpu_minutes.worst_case", str(folder), *prepared, *shrunk)
    found = [
        Step("smoke", (*smoke, str(looks), *prepared), 40, on=True, required=True, results=looks),
        Step("uses", (*smoke, str(looks), "--uses"), 40, on=True, results=looks),
        Step("gpu-tests", (*gpu_tests, *few), 90, on=True, results=tests),
        Step("right", (*seed, "--eager", "--check", "--journal", str(right)), 120, on=True, results=right),
        *(_sanitizer(tool, (*smoke, os.devnull, *prepared)) for tool in ("memcheck", "racecheck")),
        Step("seed84", (*seed, *times, "--journal", str(timed)), 180, on=True, results=timed),
        Step("ncu", profile, 30, skipped=_absent("ncu"), results=folder / "ncu.txt"),
    ]
    return [replace(s, limit=limits.get(s.name, s.limit)) for s in found]


def _absent(tool: str) -> str | None:
    return None if shutil.which(tool) else f"{tool} is not installed"


def _sanitizer(tool: str, command: tuple[str, ...]) -> Step:
    """Returns the step of a tool. On an H200, racecheck reports a race of a kernel of cuDNN, to which attention
    is compared. `--kernel-name kns=k_` ended there in an internal error of the tool."""
    report = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20")
    return Step(tool, (*report, *command), 20, skipped=_absent(report[0]))
