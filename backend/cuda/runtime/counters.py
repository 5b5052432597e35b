"""What ncu counts of kernels, where it is installed: bytes of device memory, and how busy that and the SMs are."""

from __future__ import annotations

import csv
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import ExecutionError
from ..kernel_texts import ENTRY

_METRICS = (
    "dram__bytes.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
)

_LIMIT = 300
"""Seconds of a program under ncu, which runs each kernel several times."""


@dataclass(frozen=True)
class Counters:
    """Of a launch of a kernel: the bytes read from and written to device memory, and the shares of what the memory and
    the busiest unit of the multiprocessors could have done at most."""

    bytes: float
    memory: float
    compute: float


def ncu_missing() -> str | None:
    """Why nothing can be counted; None where it can."""
    return None if shutil.which("ncu") else "ncu is not installed"


def count(command: Sequence[str]) -> dict[str, Counters]:
    """The counters of each of our kernels in a run of `command`, by what it is called in machine code
    (`kernel_texts.entries`), means of its launches. Raises ExecutionError where
    ncu gives none, such as without the permission to count."""
    options = ("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none")
    ncu = ["ncu", *options, "--metrics", ",".join(_METRICS), "-k", f"regex:^{ENTRY}$", *command]
    try:
        done = subprocess.run(ncu, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutionError(f"counts nothing: {error}", operator="ncu") from None
    found = _read(done.stdout)
    if not found:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = next((line for line in said if "==ERROR==" in line), said[-1] if said else "it says nothing")
        raise ExecutionError(f"counts nothing: {reason.removeprefix('==ERROR==').strip()[:200]}", operator="ncu")
    return found


def _read(text: str) -> dict[str, Counters]:
    """The table in what ncu prints: names, units, and a line for each launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, list[Counters]] = {}
    for row in csv.DictReader(lines):
        if row["ID"]:  # which the line of the units has not
            total, memory, compute = (float(row[m].replace(",", "")) for m in _METRICS)
            launches.setdefault(row["Kernel Name"], []).append(Counters(total, memory / 100, compute / 100))
    return {
        name: Counters(*(statistics.fmean(getattr(c, n) for c in some) for n in ("bytes", "memory", "compute")))
        for name, some in launches.items()
    }
