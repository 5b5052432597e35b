"""Ranks the schedules of a nest by predicted time, and prints the ranking for `--explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...dialects.loop import NestOp
from ...dialects.shapes.extents import extents_text
from ...dialects.support.locations import location_text
from ...dialects.support.printing import quantity
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...target.model import Target
from .model import Model, Prediction, Predictions, model_of
from .nest_info import NestInfo


@dataclass(frozen=True)
class Candidate:
    """Schedule of a nest, with its prediction or with the reason why it cannot be carried out.

    predictions  predictions of a group of schedules
    row          number of this schedule in the group
    cost         seconds that `rank` sorts by: the weighted time (`Model.weighed`), or the same number for all schedules
                 within `Model.tolerance` of the fastest
    model        model that made the prediction
    """

    predictions: Predictions
    row: int
    cost: float
    model: Model

    @cached_property
    def schedule(self) -> ScheduleAttr:
        """The schedule, with the decision `blocks_per_sm` that its prediction assumes."""
        schedule = self.predictions.points.schedule(self.row)
        return schedule if self.prediction is None else self.model.with_residency(schedule, self.prediction)

    @cached_property
    def prediction(self) -> Prediction | None:
        """Predicted cost, or None if the schedule cannot be carried out."""
        return None if self.predictions.violated[self.row] else self.predictions.at(self.row)

    @property
    def refused(self) -> str:
        """Reason why the schedule cannot be carried out, or an empty text."""
        try:
            self.predictions.at(self.row)
        except ScheduleError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        schedule = str(self.schedule).removeprefix("#tile.schedule")
        p = self.prediction
        if p is None:
            return f"refused: {self.refused}  {schedule}"
        parts = ", ".join(f"{name} {_us(s)}" for name, s in p.parts.items() if s > 0)
        time = f"{_us(self.cost)} us"
        if time != f"{_us(p.seconds)} us":
            time += f" ({_us(p.seconds)} predicted)"
        spills = "; its registers would spill" if self.predictions.spills[self.row] else ""
        resources = self.model.resources_text(p)
        return f"{time}, limited by {p.limit}  {schedule}  ({parts}; {resources}{spills})"


def rank(
    info: NestInfo, target: Target, precision: str = "ieee", divide: bool = True, cluster_sums: bool = False
) -> list[Candidate]:
    """Returns the candidates of a nest, the best first.

    Schedules are sorted by these criteria, in this order: they can be carried out; their registers do not spill; lowest
    cost; a single kernel; order of enumeration.

    Args:
        info: the nest.
        target: the target.
        precision: the option `f32_matmul_precision`.
        divide: whether to consider split-K and packed operands.
        cluster_sums: whether to consider clusters whose blocks share accumulators (`cluster_k`). No GPU has confirmed
            their predicted times yet.

    Returns:
        All candidates; an empty list if the model enumerates none.
    """
    model = model_of(info, target)
    points = (p if divide else replace(p.at(p.split_k == 1), pack=()) for p in model.space(precision, cluster_sums))
    groups = [p for some in points for p in model.predict_all(some)]
    groups += model.further(precision)
    rows = [(p, row) for p in groups for row in range(len(p.points))]
    if not rows:
        return []
    order = np.concatenate([p.points.order for p in groups])
    several = np.concatenate([p.all.combine > 0 for p in groups])
    spills = np.concatenate([p.spills for p in groups])
    refused = np.concatenate([p.violated for p in groups])
    seconds = np.concatenate([*map(model.weighed, groups)])
    able = seconds[~(refused | spills)]
    costs = np.maximum(seconds, model.tolerance * able.min()) if len(able) else seconds
    ranked: list[int] = np.lexsort((order, several, costs, spills, refused)).tolist()
    ordered = zip((rows[n] for n in ranked), costs[ranked].tolist(), strict=True)
    return [Candidate(p, row, cost, model) for (p, row), cost in ordered]


def explain_nest(name: str, nest: NestOp, target: Target, shown: int = 8, precision: str = "ieee") -> str:
    """Returns the ranked schedules of a nest as text, one line for each. A line begins with the cost in microseconds.

    Args:
        name: name of the nest in the text, such as `k0`.
        nest: the nest.
        target: the target.
        shown: number of schedules that are listed, and of refused schedules that are listed with the reason.
        precision: the option `f32_matmul_precision`.
    """
    info = NestInfo(nest)
    ranked = rank(info, target, precision)
    reduced = ", ".join(extents_text(group[0].sizes) for group in info.groups)
    place = location_text(nest)
    head = f"{name}: a nest over {extents_text(nest.sizes)}" + (f", sums over [{reduced}]" if reduced else "")
    lines = [
        head
        + (f", {place}" if place else "")
        + f": {quantity(len(ranked), 'schedule')} for {target.name} ({target.card}), by cost"
    ]
    possible = [c for c in ranked if c.prediction is not None]
    lines += [f"  {i + 1}. {c}" for i, c in enumerate(possible[:shown])]
    if len(possible) > shown:
        slowest = possible[-1].prediction
        assert slowest is not None
        lines.append(f"  and {len(possible) - shown} slower, up to {_us(slowest.seconds)} us")
    refused = [c for c in ranked if c.prediction is None]
    lines += [f"  {c}" for c in refused[:shown]]
    lines += [f"  and {len(refused) - shown} more that are refused"] if len(refused) > shown else []
    return "".join(f"{line}\n" for line in lines)


def _us(seconds: float) -> str:
    """Returns a time in microseconds as text."""
    return f"{seconds * 1e6:.2f}"
