"""Timing on a GPU, side by side: what each arm takes with a cold level-2 cache, and what a whole call takes."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version

import torch

Arms = Mapping[str, Callable[[], object]]

SHORT = 20e-6
"""Seconds; what is shorter is timed as a CUDA graph, or the events would be most of the time."""

_FLUSHED_BYTES = 256 * 1024 * 1024
_AT_LEAST = 0.1
"""Seconds of repetitions, if there are a hundred of them."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one arm: the median, the 20th and the 80th percentile of so many repetitions."""

    median: float
    p20: float
    p80: float
    repetitions: int

    @staticmethod
    def of(samples: list[float]) -> Timing:
        """What the samples say."""
        fifths = statistics.quantiles(samples, n=5)
        return Timing(statistics.median(samples), fifths[0], fifths[3], len(samples))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def on_device(arms: Arms) -> tuple[dict[str, Timing], bool]:
    """Device time of each arm, and whether CUDA graphs were timed, which is so where an arm is shorter than `SHORT`.

    The arms take turns, so that clocks and temperature are the same for all, and the level-2 cache is flushed before
    each. An arm that cannot be captured makes all of them run without graphs.
    """
    for arm in arms.values():
        for _ in range(3):
            arm()
    torch.cuda.synchronize()
    first = _in_turns(arms, 10)
    graphs = _graphs(arms) if min(map(statistics.median, first.values())) < SHORT else None
    longest = sum(map(statistics.median, first.values()))
    repetitions = max(100, min(1000, int(_AT_LEAST / longest)))
    samples = _in_turns({n: g.replay for n, g in graphs.items()} if graphs else arms, repetitions)
    return {name: Timing.of(s) for name, s in samples.items()}, graphs is not None


def whole_calls(arms: Arms, repetitions: int = 200) -> dict[str, Timing]:
    """Seconds from the start of a call until its result is there, by the host's clock; the arms take turns."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(repetitions + 10):
        for name, arm in arms.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            arm()
            torch.cuda.synchronize()
            if i >= 10:
                samples[name].append(time.perf_counter() - start)
    return {name: Timing.of(s) for name, s in samples.items()}


def _graphs(arms: Arms) -> dict[str, torch.cuda.CUDAGraph] | None:
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, arm in arms.items():
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                arm()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        graphs[name] = graph
    return graphs


def _in_turns(arms: Arms, repetitions: int) -> dict[str, list[float]]:
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in arms}
    for _ in range(repetitions):
        for name, arm in arms.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flushed.zero_()
            start.record()
            arm()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [s.elapsed_time(e) / 1e3 for s, e in pairs] for name, pairs in events.items()}


def environment() -> dict[str, str]:
    """What numbers depend on: the GPU if there is one, versions, the commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    import deplodock

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "deplodock": deplodock.__version__,
        "xdsl": version("xdsl"),
        "commit": commit,
    }
