"""Space of one nest: its decisions, legal candidates, and their predicted times.

The candidates of the planner (`rank`) come first. Further candidates differ from known ones in one decision, and pass
the check of hand-written schedules (`passes/planning/legality.py`). The options of passes after `plan-schedules` are
decisions too; a pass declares their values (`passes/pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from typing import Any

from xdsl.passes import ModulePass

from ...dialects.loop import NestOp
from ...dialects.tile.schedule import Schedule, ScheduleAttr
from ...errors import ScheduleError
from ...passes.pipelines import searched_options
from ...passes.planning.choose import rank
from ...passes.planning.model import model_of
from ...passes.planning.nest_info import NestInfo, pow2_at_least
from ...passes.planning.points import LISTS, points_of
from ...target.model import Target
from .building import parse_schedule
from .trial import Candidate

Values = tuple[Hashable, ...]
"""Values of the decisions, in the order of `NestSpace.names`."""

LEADING_DECISIONS = ("f32_matmul_precision", "cluster_k", "cluster", "cache_rows", "atom", "copy")
"""Decisions that determine others, so that they are not changed alone. Instead, another value comes with the planner's
most similar candidate that has it (`NestSpace._nearest`)."""

MAX_VALUES = {"split_k": 64, "group_m": 16, "warps": 32}
"""Decision -> largest value, for decisions that change by a factor of two. Legality may be stricter. Tuned by hand."""

MOST_STAGES = 8
"""Largest number of stages."""

IN_PASS_ORDER = ("f32_matmul_precision", "pack", "split_k", "block", "chunk", "serial", "cluster_k", "group_m",
                 "cluster", "cache_rows", "atom", "warps", "lanes", "thread", "copy", "stages",
                 "promotion_memory")  # fmt: skip
"""Decisions of a schedule in the order of the passes that carry them out.

Three others follow from them: the number of persistent blocks, resident blocks per SM, and chunks of a partial sum.
"""


class NestSpace:
    """Candidates of one nest on a target.

    Args:
        nest: the nest.
        target: the target.
        precision: permitted precision of f32 matmuls.
        passes: passes after `plan-schedules`, whose searched options are decisions.

    Raises:
        ScheduleError: if no schedule is legal.
    """

    def __init__(
        self, nest: NestOp, target: Target, precision: str = "ieee", passes: Iterable[ModulePass] = ()
    ) -> None:
        self.info, self.target, self.precision = NestInfo(nest), target, precision
        self.model = model_of(self.info, target)
        self.options = searched_options(passes)
        self._known: dict[Candidate, Values] = {}
        lengths = {"block": len(self.info.free), "chunk": len(self.info.reduction_indices), "thread": 2}
        lists = {n: [f"{n}.{i}" for i in range(lengths[n])] for n in LISTS}
        decisions = [name for n in IN_PASS_ORDER for name in lists.get(n, [n])]
        self.names = (*decisions, *(f"{p}.{o}" for p, o in self.options))
        """Names of the decisions, in pass order."""
        ranked = rank(self.info, target, precision, cluster_sums=True)
        # The planner's pick comes first. The planner never picks `cluster_k`, which only a measurement may choose.
        chosen = next((c for c in ranked if c.schedule.data.cluster_k == 1), ranked[0])
        ranked = [chosen, *(c for c in ranked if c is not chosen)]
        predicted = [self._candidate(c.schedule, c.prediction) for c in ranked if c.prediction is not None]
        if not predicted:
            reason = f"no schedule can be carried out on {target.name}: {ranked[0].refused}"
            raise ScheduleError(reason, operator=nest.name)
        self._ranked = [*dict.fromkeys(predicted)]

    def ranked(self) -> Sequence[Candidate]:
        """Returns the planner's candidates with predictions, its pick first. There is at least one."""
        return self._ranked

    def values(self, candidate: Candidate) -> Values:
        """Returns the values of the decisions of a candidate. Raises ScheduleError for a schedule of another nest."""
        if candidate not in self._known:
            schedule = parse_schedule(candidate.schedule).data
            if [len(schedule.block), len(schedule.chunk)] != [len(self.info.free), len(self.info.reduction_indices)]:
                raise ScheduleError(f"{candidate.schedule} is of another nest")
            self._known[candidate] = self._decided(schedule, candidate.options)
        return self._known[candidate]

    def candidates(self, points: Iterable[Values]) -> list[Candidate]:
        """Returns the legal candidates among some points, without duplicates, with predictions."""
        schedules = [self._schedule(dict(zip(self.names, p, strict=True))) for p in dict.fromkeys(points)]
        ordered: list[tuple[int, Candidate]] = []
        for group in points_of(schedule for schedule, _ in schedules):
            for p in self.model.predict_all(self.model.completed(group, self.precision)):
                for row in (~(p.violated | p.spills)).nonzero()[0].tolist():
                    order = int(p.points.order[row])
                    schedule = self.model.with_residency(p.points.schedule(row), p.at(row))
                    candidate = self._candidate(schedule, p.at(row), schedules[order][1])
                    ordered.append((order, candidate))
        return [*dict.fromkeys(c for _, c in sorted(ordered, key=lambda f: f[0]))]

    def neighbours(self, *candidates: Candidate) -> list[Candidate]:
        """Returns legal candidates that differ from one of these in one decision, the fastest predicted first.

        A factor of two that moves from one tile extent to another counts as one decision.
        """
        points: list[Values] = []
        nearest: list[Candidate] = []
        for candidate in candidates:
            here = dict(zip(self.names, self.values(candidate), strict=True))
            points += (tuple((here | change).values()) for change in self._changes(here))
            nearest += self._nearest(here, candidate.options)
        new = dict.fromkeys(self.candidates(points) + nearest)
        return sorted((c for c in new if c not in candidates), key=lambda c: c.predicted)

    def _changes(self, here: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the changes of one decision, except changes of `LEADING_DECISIONS`."""
        for name, value in here.items():
            if name == "group_m" and not self.model.swizzles:
                continue
            if most := self._largest.get(name, MAX_VALUES.get(name, 0)):
                yield from (self._together(name, n) for n in (value * 2, value // 2) if 1 <= n <= max(most, value))
        for a, b in permutations(self._largest, 2):
            if here[a] * 2 <= self._largest[a] and here[b] > 1:
                yield self._together(a, here[a] * 2) | self._together(b, here[b] // 2)
        if here["thread.0"]:
            yield from ({n: here[n] * 2} for n in ("thread.0", "thread.1"))
            yield from ({n: here[n] // 2} for n in ("thread.0", "thread.1") if here[n] > 1)
        if here["copy"] != "sync":
            yield from ({"stages": n} for n in (here["stages"] + 1, here["stages"] - 1) if 1 < n <= MOST_STAGES)
        for name in ("serial", "pack"):
            for i in range(len(self.info.free)):
                yield {name: tuple(sorted({*here[name]} ^ {i}))}
        for (p, o), values in self.options.items():
            yield from ({f"{p}.{o}": v} for v in values if v != here[f"{p}.{o}"])

    def _nearest(self, here: dict[str, Any], options: tuple[tuple[str, str, str], ...]) -> Iterator[Candidate]:
        """Yields, for each other value of the `LEADING_DECISIONS`, the planner's most similar candidate with it."""
        mine = tuple(here.values())
        for name in LEADING_DECISIONS:
            at = self.names.index(name)
            for word in dict.fromkeys(self.values(c)[at] for c in self._ranked):
                if word != here[name]:
                    same = [c for c in self._ranked if self.values(c)[at] == word]
                    best = max(same, key=lambda c: sum(x == y for x, y in zip(self.values(c), mine, strict=True)))
                    yield replace(best, options=options)

    @cached_property
    def _largest(self) -> dict[str, int]:
        """Largest value of each tile extent, by name."""
        names = [n for n in self.names if n.startswith(("block.", "chunk."))]
        indices = (*self.info.free, *self.info.reduction_indices)
        return {n: pow2_at_least(self.info.extents[i]) for n, i in zip(names, indices, strict=True)}

    def _together(self, name: str, value: int) -> dict[str, int]:
        """Returns the decision `name` = `value` with the decisions that it forces.

        Reductions of one index that run together must have equal chunks.
        """
        position = {i: f"chunk.{n}" for n, i in enumerate(self.info.reduction_indices)}
        for group in self.info.groups:
            for axis in zip(*(op.body.block.args for op in group), strict=True):
                if name in (linked := [position[i] for i in axis]):
                    return dict.fromkeys(linked, value)
        return {name: value}

    def _decided(self, schedule: Schedule, options: tuple[tuple[str, str, str], ...]) -> Values:
        """Returns the values of the decisions of a schedule and of options."""
        decided: list[Hashable] = []
        for n in IN_PASS_ORDER:
            value = getattr(schedule, n)
            decided += (value or (0, 0) if n == "thread" else value) if n in LISTS else [value]
        chosen = {(p, o): v for p, o, v in options}
        return (*decided, *(chosen.get(key, values[0]) for key, values in self.options.items()))

    def _schedule(self, decided: dict[str, Any]) -> tuple[Schedule, tuple[tuple[str, str, str], ...]]:
        """Returns the schedule and the options of some values."""
        fields: dict[str, Any] = {n: decided[n] for n in IN_PASS_ORDER if n not in LISTS}
        fields |= {n: tuple(v for k, v in decided.items() if k.startswith(f"{n}.") and v) for n in LISTS}
        # A free index with one tile needs no loop.
        walked = (
            i
            for i, index in ((i, self.info.free[i]) for i in fields["serial"])
            if fields["block"][i] < self.info.extents[index] or self.info.may_be_longer([index])
        )
        keys = [(p, o, decided[f"{p}.{o}"]) for p, o in self.options]
        options = tuple(key for key in keys if key[2] != self.options[key[:2]][0])
        return Schedule(**{**fields, "serial": tuple(walked)}), options

    def _candidate(
        self, schedule: ScheduleAttr, prediction: Any, options: tuple[tuple[str, str, str], ...] = ()
    ) -> Candidate:
        """Returns the candidate of a schedule with its predicted seconds."""
        candidate = Candidate(str(schedule), options, float(prediction.seconds))
        self._known.setdefault(candidate, self._decided(schedule.data, options))
        return candidate
