"""Result files: the rows of cases that were measured on one machine. Imports the standard library only.

A file `DEVICE-DATE.json` has an `environment` (the machine and the versions) and `rows`. A row has:

| key | value |
|---|---|
| `suite`, `group`, `case`, `dtype`, `threads` | the case, and the number of threads |
| `commit` | commit of the compiler |
| `right` | whether the result of deplodock was right; null if it was not checked |
| `errors` | arm -> error against float64 |
| `times` | regime -> arm -> statistics in seconds (`deplodock.backend.host.timing.Timing`) |

An arm is a compared version of the program: `eager`, `torch.compile`, `deplodock`. The regimes are `cold` and `hot`
(time on a GPU with a cold or hot level-2 cache) and `call` (time of a whole call on the host).
"""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"
OURS = "deplodock"

UNTUNED = "untuned"
"""Arm of deplodock with the planner's schedules, in rows whose arm `deplodock` has schedules found by a search."""

Row = dict[str, Any]


def file_name(environment: Row) -> str:
    """Returns the stem of a result file: the device's name and today's date, such as `h200-2026-11-28`."""
    device = environment["gpu"] or f"{environment['processor']} {environment['cores']} cores"
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")
    return f"{slug}-{time.strftime('%Y-%m-%d')}"


def commit_here() -> str:
    """Returns the commit of the working tree, with a `+` if sources of the compiler are changed."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=FOLDER.parent.parent, capture_output=True, text=True, check=False)

    changed = git("diff", "--quiet", "HEAD", "--", "backend", "dialects", "frontend", "passes").returncode
    return git("rev-parse", "--short=12", "HEAD").stdout.strip() + "+" * (changed == 1)


def key_of(row: Row) -> tuple[Any, ...]:
    """Returns the key of a row: suite, group, case, data type and threads."""
    return tuple(row.get(n) for n in ("suite", "group", "case", "dtype", "threads"))


def merge(path: Path, environment: Row, rows: Iterable[Row]) -> None:
    """Adds rows to a result file, or replaces the rows with the same keys. Writes one row per line for short diffs.

    Args:
        path: the file, which may be absent.
        environment: the machine and the versions.
        rows: the rows to add.
    """
    merged = {key_of(r): r for r in read(path)["rows"]} if path.exists() else {}
    merged |= {key_of(r): r for r in rows}
    # Each row has its own number of threads.
    machine = {n: v for n, v in environment.items() if n != "threads"}
    lines = ",\n  ".join(json.dumps(r) for r in merged.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{\n "environment": {json.dumps(machine)},\n "rows": [\n  {lines}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a result file, with the keys `environment` and `rows`."""
    return json.loads(path.read_text(encoding="utf-8"))


def times_of(row: Row) -> dict[str, Row]:
    """Returns the statistics of each arm that comparisons use: the regime `cold`, or `call` for rows without it."""
    times = row.get("times", {})
    return times.get("cold", times.get("call", {}))


def ratio(row: Row, baseline: str = "best") -> float | None:
    """Returns the time of a baseline divided by the time of deplodock, or None if one of them was not measured.

    The baseline is an arm. `best` is the fastest arm of PyTorch; torch.compile replaces an arm that was not measured.
    """
    seconds = {arm: t["median"] for arm, t in times_of(row).items()}
    others = [s for arm, s in seconds.items() if arm not in (OURS, UNTUNED)]
    if OURS not in seconds or not others:
        return None
    reference = seconds.get(baseline, seconds.get("torch.compile")) if baseline != "best" else min(others)
    return None if reference is None else reference / seconds[OURS]


def noise(timing: Row) -> float:
    """Returns half the width of the 95 % interval of the median, relative to the median (see `Timing.noise`)."""
    return 1.46 * (timing["p80"] - timing["p20"]) / timing["repetitions"] ** 0.5 / timing["median"]


def geomean(values: Sequence[float]) -> float:
    """Returns the geometric mean, or NaN of an empty sequence."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan
