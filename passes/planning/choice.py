"""Choosing among the schedules of a nest: the one that the model predicts to be fastest."""

from __future__ import annotations

from dataclasses import dataclass

from ...backend.targets import Target
from ...dialects.extents import extents_text
from ...dialects.locations import location_text
from ...dialects.loop import NestOp
from ...dialects.schedule import ScheduleAttr
from ...errors import ScheduleError
from .candidates import candidates
from .facts import Facts
from .model import Model, Prediction
from .products import is_nested
from .stored import stored_plans

WORTH_DIVIDING, WORTH_DIVIDING_ROWS = 1.5, 1.1
"""So many times faster a product must be in parts, and one inside another reduction: its rows have no end."""

WORTH_MEETING = 1.02
"""So many times faster a product must be with blocks in clusters, which start and end together."""

HIDING, NEARLY = 0.02, 0.9
"""The share of what is done while memory is waited for that counts, where that is nearly all: of products that wait
for the same bytes the one with the least besides is taken."""


@dataclass(frozen=True)
class Candidate:
    """A schedule with its prediction, or with why it is refused."""

    schedule: ScheduleAttr
    prediction: Prediction | None
    refused: str = ""

    def __str__(self) -> str:
        schedule = str(self.schedule).removeprefix("#tile.schedule")
        p = self.prediction
        if p is None:
            return f"refused: {self.refused}  {schedule}"
        t = p.times
        spent = {
            "memory": t.memory,
            "cache": t.cache,
            "shared": t.shared,
            "compute": t.compute,
            "latency": t.latency,
            "epilogue": t.drain,
            "other kernels": p.combine,
        }
        parts = ", ".join(f"{name} {_us(s)}" for name, s in spent.items() if s > 0)
        waves = "1 wave" if p.waves == 1 else f"{p.waves} waves"
        return (
            f"{_us(p.seconds)} us, limited by {p.limit}  {schedule}  ({parts}; {p.blocks} blocks, {p.resident} on a"
            f" multiprocessor, {waves}; {p.registers} registers, {p.shared} B shared)"
        )


def rank(facts: Facts, target: Target, narrow: str = "never", divide: bool = True) -> list[Candidate]:
    """All candidates, the fastest first; those that cannot be carried out last. Of equally fast ones the one that was
    enumerated first comes first. A product with a divided sum counts as `WORTH_DIVIDING` times slower: it takes a
    second kernel and memory for its parts, inside another reduction as `WORTH_DIVIDING_ROWS` times; one in clusters as
    `WORTH_MEETING` times. Without `divide` there are none with divided sums."""
    model = Model(facts, target)
    schedules = candidates(facts, target, model.found, narrow)
    found = [judge(model, s) for s in schedules if divide or s.split_k.data == 1]
    if narrow == "parts" and model.found:
        for schedule, given in stored_plans(facts, target):
            refused = isinstance(given, ScheduleError)
            found.append(Candidate(schedule, None if refused else given, str(given) if refused else ""))
    worth, meeting = (WORTH_DIVIDING, WORTH_MEETING) if model.found else (1.0, 1.0)
    if is_nested(model.found):
        worth = WORTH_DIVIDING_ROWS

    def seconds(c: Candidate) -> float:
        if c.prediction is None:
            return float("inf")
        times = (worth if c.schedule.split_k.data > 1 else 1.0) * (meeting if c.schedule.cluster.data > 1 else 1.0)
        t = c.prediction.times
        waits = model.found and t.memory > NEARLY * t.longest
        return c.prediction.seconds * times + (HIDING * t.hidden if waits else 0.0)

    return sorted(found, key=seconds)


def judge(model: Model, schedule: ScheduleAttr) -> Candidate:
    """A schedule with its prediction, or why it cannot be carried out."""
    try:
        return Candidate(schedule, model.predict(schedule))
    except ScheduleError as error:
        return Candidate(schedule, None, str(error))


def explain_nest(name: str, nest: NestOp, target: Target, shown: int = 8, narrow: str = "never") -> str:
    """What was considered for a nest, as text: a line for each of the `shown` fastest candidates and for those that are
    refused."""
    facts = Facts(nest)
    ranked = rank(facts, target, narrow)
    reduced = ", ".join(extents_text(group[0].sizes) for group in facts.groups)
    place = location_text(nest)
    head = f"{name}: a nest over {extents_text(nest.sizes)}" + (f", sums over [{reduced}]" if reduced else "")
    lines = [head + (f", {place}" if place else "") + f": {len(ranked)} schedules for {target.name} ({target.card})"]
    possible = [c for c in ranked if c.prediction is not None]
    lines += [f"  {i + 1}. {c}" for i, c in enumerate(possible[:shown])]
    if len(possible) > shown:
        slowest = possible[-1].prediction
        assert slowest is not None
        lines.append(f"  and {len(possible) - shown} slower ones, up to {_us(slowest.seconds)} us")
    lines += [f"  {c}" for c in ranked if c.prediction is None]
    return "".join(f"{line}\n" for line in lines)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"
