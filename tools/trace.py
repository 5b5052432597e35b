"""A timeline for Perfetto (https://ui.perfetto.dev) or chrome://tracing: the passes, and the kernels of some calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..frontend.profile import Profile
from .terminal import write_file

_COMPILER, _CALLS = 1, 2


def write_trace(path: str, passes: Sequence[tuple[str, float]], profile: Profile) -> None:
    """Write the passes with the seconds that each took, and the calls of a profile; of a prediction one call, kernel by
    kernel. Raises CompileError if the file cannot be written."""
    events = [*_process(_COMPILER, "passes"), *_process(_CALLS, f"kernels, {profile.source}")]
    starts = accumulate((s for _, s in passes), initial=0.0)
    events += [_event(name, _COMPILER, start, s, {}) for (name, s), start in zip(passes, starts, strict=False)]
    facts = {
        c.name: {"schedule": ", ".join(c.schedules), "lines": ", ".join(c.lines), "limit": c.limit}
        for c in profile.costs
    }
    begin = profile.traced[0][0].start if profile.traced and profile.traced[0] else 0.0
    for call in profile.traced:
        events += [_event(s.name, _CALLS, s.start - begin, s.seconds, facts.get(s.name, {})) for s in call]
    if not profile.traced:
        starts = accumulate((c.seconds for c in profile.costs), initial=0.0)
        times = zip(profile.costs, starts, strict=False)
        events += [_event(c.name, _CALLS, start, c.seconds, facts[c.name]) for c, start in times]
    found = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"source": profile.source}}
    write_file(path, json.dumps(found) + "\n", "--trace")


def _process(number: int, name: str) -> list[dict[str, Any]]:
    return [{"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}}]


def _event(name: str, process: int, start: float, seconds: float, facts: dict[str, str]) -> dict[str, Any]:
    """A complete event; times are in microseconds."""
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"name": name, "ph": "X", "pid": process, "tid": 0, **times, "args": facts}
