"""How long calls take on the cores of this machine, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from ..timing import Arms, Timing, in_turns

LEAST = 0.02
"""Seconds that one sample takes at least: shorter calls are repeated for it."""

MOST = 31
"""Samples of each arm at most."""


def on_cores(arms: Arms, seconds: float = 2.0, least: int = 7) -> dict[str, Timing]:
    """Seconds of a call of each arm. The first calls, which compile, are not counted. There are as many samples as fit
    into `seconds`, at least `least`."""
    for arm in arms.values():
        arm()
    once = {name: min(_seconds(arm, 1) for _ in range(3 if least > 1 else 1)) for name, arm in arms.items()}
    repeats = {name: max(1, int(LEAST / time)) for name, time in once.items()}
    rounds = int(seconds / sum(once[name] * repeats[name] for name in arms))
    samplers = {name: partial(_seconds, arm, repeats[name]) for name, arm in arms.items()}
    samples = in_turns(samplers, max(least, min(MOST, rounds)))
    return {name: Timing.of(s) for name, s in samples.items()}


def _seconds(call: Callable[[], object], times: int) -> float:
    """Seconds of a call, by so many of them; by fewer where the machine has become slower and these take `LEAST`."""
    some, done, start = max(1, times // 16), 0, perf_counter()
    while True:
        for _ in range(some):
            call()
        done += some
        taken = perf_counter() - start
        if done >= times or taken >= LEAST:
            return taken / done
