"""Files of results: rows of cases, each with what it was measured on. Nothing but the standard library is needed here.

A file DEVICE-DATE.json has the machine and the versions, and for each case a row: its suite, group, name and type, the
threads and the commit, whether our result was right, the errors against float64, and the times of each arm in each
regime.
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
"""Ours with the schedules of the planner's model, where `deplodock` has those that were searched."""

Row = dict[str, Any]


def file_name(environment: Row) -> str:
    """DEVICE-DATE."""
    device = environment["gpu"] or f"{environment['processor']} {environment['cores']} cores"
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")
    return f"{slug}-{time.strftime('%Y-%m-%d')}"


def commit_here() -> str:
    """The commit of the working tree, with a + where the compiler differs from it."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=FOLDER.parent.parent, capture_output=True, text=True, check=False)

    changed = git("diff", "--quiet", "HEAD", "--", "backend", "dialects", "frontend", "passes").returncode
    return git("rev-parse", "--short=12", "HEAD").stdout.strip() + "+" * (changed == 1)


def key_of(row: Row) -> tuple[Any, ...]:
    """What a row is about."""
    return tuple(row.get(n) for n in ("suite", "group", "case", "dtype", "threads"))


def merge(path: Path, environment: Row, rows: Iterable[Row]) -> None:
    """Put rows into a file of results, in place of those that are about the same. A line each, for readable diffs."""
    found = {key_of(r): r for r in read(path)["rows"]} if path.exists() else {}
    found |= {key_of(r): r for r in rows}
    about = {n: v for n, v in environment.items() if n != "threads"}  # which is said of each row
    lines = ",\n  ".join(json.dumps(r) for r in found.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{\n "environment": {json.dumps(about)},\n "rows": [\n  {lines}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """A file of results."""
    return json.loads(path.read_text(encoding="utf-8"))


def times_of(row: Row) -> dict[str, Row]:
    """The times by arm that count: on the device with a cold cache, or else of calls."""
    times = row.get("times", {})
    return times.get("cold", times.get("call", {}))


def ratio(row: Row, baseline: str = "best") -> float | None:
    """The time of a baseline, the fastest of PyTorch's if it is the `best`, over ours; that of torch.compile where the
    baseline was left out. None where nothing was measured."""
    seconds = {arm: t["median"] for arm, t in times_of(row).items()}
    others = [s for arm, s in seconds.items() if arm not in (OURS, UNTUNED)]
    if OURS not in seconds or not others:
        return None
    wanted = seconds.get(baseline, seconds.get("torch.compile")) if baseline != "best" else min(others)
    return None if wanted is None else wanted / seconds[OURS]


def noise(timing: Row) -> float:
    """Half the interval of 95 % for a median, relative to it (`deplodock.backend.host.timing`)."""
    return 1.46 * (timing["p80"] - timing["p20"]) / timing["repetitions"] ** 0.5 / timing["median"]


def geomean(values: Sequence[float]) -> float:
    """The geometric mean; not a number of none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan
