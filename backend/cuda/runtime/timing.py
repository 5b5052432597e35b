"""Timing on a GPU, side by side: what each arm takes on the device, and by the clock of the host."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from ....errors import DeplodockError
from ...host.timing import Arms, Timing, in_turns
from . import torch_with_cuda

_FLUSHED_BYTES = 256 * 1024 * 1024
_AT_LEAST = 0.1
"""Seconds of repetitions, if there are a hundred of them."""


def on_device(arms: Arms, repetitions: int | None = None, *, cold: bool = True) -> dict[str, Timing]:
    """Device time of each arm, by events around the replay of a CUDA graph, so that no launch of the host is in it.

    The arms take turns, so that clocks and temperature are the same for all. Before each the level-2 cache is flushed,
    or, if it is not to be `cold`, the arm has run already. An arm that cannot be captured runs without a graph, and its
    `Timing` says why. Without `repetitions` there are 100 to 1000 of them. Raises ExecutionError without CUDA.
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
        longest = sum(map(statistics.median, _in_turns(torch, runs, 5, flushed).values()))
        repetitions = max(100, min(1000, int(_AT_LEAST / max(longest, 1e-7))))
    samples = _in_turns(torch, runs, repetitions, flushed)
    found: dict[str, Timing] = {}
    for name, graph in graphs.items():
        why = graph if isinstance(graph, str) else None
        found[name] = Timing.of(samples[name], why is None, why)
    return found


def _graph(torch: Any, arm: Callable[[], object]) -> Any:
    """A CUDA graph of the arm, or why there is none.

    What waits for the device is found before anything is captured: a capture that breaks off may leave PyTorch's
    generator of random numbers as if it still went on.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings():  # PyTorch calls the mode a prototype at each first use
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


def _in_turns(torch: Any, runs: Arms, repetitions: int, flushed: Any) -> dict[str, list[float]]:
    """Seconds of each repetition of each arm."""
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if flushed.numel():
                flushed.zero_()
            else:
                run()
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [s.elapsed_time(e) / 1e3 for s, e in pairs] for name, pairs in events.items()}


def whole_calls(arms: Arms, repetitions: int = 200) -> dict[str, Timing]:
    """Seconds from the start of a call until its result is there, by the host's clock; the arms take turns."""
    torch = torch_with_cuda()

    def seconds(arm: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        arm()
        torch.cuda.synchronize()
        return perf_counter() - start

    samples = in_turns({name: partial(seconds, arm) for name, arm in arms.items()}, repetitions + 10)
    return {name: Timing.of(s[10:]) for name, s in samples.items()}
