"""Timing on a GPU: device time and host time of calls, and performance counters of Nsight Compute (ncu).

An arm is one of several calls that are compared. The arms take turns, so that clocks and temperature are equal.
"""

from __future__ import annotations

import csv
import shutil
import statistics
import subprocess
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from ....errors import DeplodockError, ExecutionError
from ...host.timing import Arms, Timing, in_turns
from ..kernel_texts import ENTRY
from . import torch_with_cuda

_FLUSHED_BYTES = 256 * 1024 * 1024
"""Bytes to write in order to evict L2, several times its size."""

_SAMPLING_SECONDS = 0.1
"""Approximate total time of all repetitions. There are at least 100 and at most 1000 repetitions."""


def on_device(arms: Arms, repetitions: int | None = None, *, cold: bool = True) -> dict[str, Timing]:
    """Returns the device time of each arm, by events around the replay of a CUDA graph.

    An arm that cannot be captured is called directly. Its `Timing` has the reason.

    Args:
        arms: calls by name.
        repetitions: number of samples; default: 100 to 1000.
        cold: whether L2 is flushed before a sample. Otherwise the arm runs once before it.

    Raises:
        ExecutionError: without CUDA.
    """
    torch = torch_with_cuda()
    flushed = torch.empty(_FLUSHED_BYTES if cold else 0, dtype=torch.uint8, device="cuda")
    for arm in arms.values():
        for _ in range(3):
            arm()
    torch.cuda.synchronize()
    graphs = {name: _graph(torch, arm) for name, arm in arms.items()}
    runs = {name: arms[name] if isinstance(graph, str) else graph.replay for name, graph in graphs.items()}
    if repetitions is None:
        longest = sum(map(statistics.median, _seconds(torch, runs, 5, flushed).values()))
        repetitions = max(100, min(1000, int(_SAMPLING_SECONDS / max(longest, 1e-7))))
    samples = _seconds(torch, runs, repetitions, flushed)
    reasons = {name: graph if isinstance(graph, str) else None for name, graph in graphs.items()}
    return {name: Timing.of(samples[name], why is None, why) for name, why in reasons.items()}


def _graph(torch: Any, arm: Callable[[], object]) -> Any:
    """Returns a CUDA graph of an arm, or the reason why it has none.

    Calls that wait for the device are detected before the capture, because an aborted capture may leave the random
    number generator of PyTorch in the state of a capture.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings():
            # PyTorch warns that this mode is a prototype.
            warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        try:
            arm()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with torch.cuda.graph(graph):
            arm()
        graph.replay()
        torch.cuda.synchronize()
    except (RuntimeError, DeplodockError) as error:
        torch.cuda.synchronize()
        return " ".join(str(error).split())[:200] or type(error).__name__
    return graph


def _seconds(torch: Any, runs: Arms, repetitions: int, flushed: Any) -> dict[str, list[float]]:
    """Returns the device seconds of each repetition, by arm."""

    def events(run: Callable[[], object]) -> tuple[Any, Any]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if flushed.numel():
            flushed.zero_()
        else:
            run()
        start.record()
        run()
        end.record()
        return start, end

    samples = in_turns({name: partial(events, run) for name, run in runs.items()}, repetitions)
    torch.cuda.synchronize()
    return {name: [s.elapsed_time(e) / 1e3 for s, e in pairs] for name, pairs in samples.items()}


def whole_calls(arms: Arms, repetitions: int = 200) -> dict[str, Timing]:
    """Returns the host time of each arm, from the start of a call until its result is computed, in seconds."""
    torch = torch_with_cuda()

    def seconds(arm: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        arm()
        torch.cuda.synchronize()
        return perf_counter() - start

    samples = in_turns({name: partial(seconds, arm) for name, arm in arms.items()}, repetitions + 10)
    return {name: Timing.of(s[10:]) for name, s in samples.items()}


_METRICS = (
    "dram__bytes.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
)

_LIMIT = 300
"""Time limit of a program under ncu in seconds. ncu runs each kernel several times."""


@dataclass(frozen=True)
class Counters:
    """Counters of a launch.

    Attributes:
        bytes: bytes of device memory that are read and written.
        memory: share of the peak bandwidth.
        compute: share of the peak of the busiest unit of the SMs.
    """

    bytes: float
    memory: float
    compute: float


def ncu_missing() -> str | None:
    """Returns the reason why ncu cannot be used, or None."""
    return None if shutil.which("ncu") else "ncu is not installed"


def count(command: Sequence[str]) -> dict[str, Counters]:
    """Runs a command under ncu.

    Returns:
        Mean counters of each kernel, by its name in machine code (`kernel_texts.entries`).

    Raises:
        ExecutionError: if ncu returns none, for example without permission.
    """
    options = ("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none")
    ncu = ["ncu", *options, "--metrics", ",".join(_METRICS), "-k", f"regex:^{ENTRY}$", *command]
    try:
        done = subprocess.run(ncu, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutionError(f"counts nothing: {error}", operator="ncu") from None
    counters = _read(done.stdout)
    if not counters:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = next((line for line in lines if "==ERROR==" in line), lines[-1] if lines else "no output")
        raise ExecutionError(f"counts nothing: {reason.removeprefix('==ERROR==').strip()[:200]}", operator="ncu")
    return counters


def _read(text: str) -> dict[str, Counters]:
    """Parses the CSV output of ncu."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, list[Counters]] = {}
    for row in csv.DictReader(lines):
        if row["ID"]:  # The first row contains the units of the columns and has no ID.
            total, memory, compute = (float(row[m].replace(",", "")) for m in _METRICS)
            launches.setdefault(row["Kernel Name"], []).append(Counters(total, memory / 100, compute / 100))
    return {
        name: Counters(*(statistics.fmean(getattr(c, n) for c in some) for n in ("bytes", "memory", "compute")))
        for name, some in launches.items()
    }
