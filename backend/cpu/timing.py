"""How long calls take on the cores of this machine, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from ..cuda.runtime.timing import Timing

LEAST = 0.02
"""Seconds that one sample takes at least: shorter calls are repeated for it."""

MOST = 31
"""Samples of each arm at most."""


def on_cores(arms: Mapping[str, Callable[[], object]], seconds: float = 2.0, least: int = 7) -> dict[str, Timing]:
    """Seconds of a call of each arm. The arms take turns, so that whatever else the machine does meets all of them; the
    first calls, which compile, are not counted. There are as many samples as fit into `seconds`, at least `least`."""
    for arm in arms.values():
        arm()
    once = {name: min(_seconds(arm, 1) for _ in range(3 if least > 1 else 1)) for name, arm in arms.items()}
    repeats = {name: max(1, int(LEAST / time)) for name, time in once.items()}
    round_trip = sum(once[name] * repeats[name] for name in arms)
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(max(least, min(MOST, int(seconds / round_trip)))):
        for name, arm in arms.items():
            samples[name].append(_seconds(arm, repeats[name]))
    return {name: Timing.of(s) for name, s in samples.items()}


def _seconds(call: Callable[[], object], times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times
