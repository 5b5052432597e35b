"""The space of one nest: which decisions there are, which candidates are legal, and what the planner expects of them.

It is the planner's own: what `rank` enumerates comes first, with its predictions. Further candidates differ from known
ones in a decision, and pass the same check as a schedule that a person wrote (`passes/planning/legality.py`). What an
option of a pass below `plan-schedules` may be, that pass says (`passes/pipelines.py`).
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
"""What was decided, in the order of `NestSpace.names`."""

WORDS = ("f32_matmul_precision", "cluster_k", "cluster", "cache_rows", "atom", "copy")
"""Decisions that bring others with them: another one is taken over from the planner's nearest candidate that has it."""

MOST = {"split_k": 64, "group_m": 16, "warps": 32}
"""Up to where these are worth a look, in powers of two; what is legal may end before."""

MOST_STAGES = 8
"""The same for stages, one more or one less."""

IN_PASS_ORDER = ("f32_matmul_precision", "pack", "split_k", "block", "chunk", "serial", "cluster_k", "group_m",
                 "cluster", "cache_rows", "atom", "warps", "lanes", "thread", "copy", "stages",
                 "promotion_memory")  # fmt: skip
"""The decisions of a schedule in the order of the passes that carry them out. The three others follow from them: how
many blocks share all tiles, how many of them run at once on a multiprocessor, and how many chunks a partial sum has."""


class NestSpace:
    """The candidates of one nest on a target.

    `precision` is the permission that `plan-schedules` has; the searched options of `passes`, those below it, are
    decisions, too. Raises ScheduleError where no schedule can be carried out.
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
        own = [name for n in IN_PASS_ORDER for name in lists.get(n, [n])]
        self.names = (*own, *(f"{p}.{o}" for p, o in self.options))
        """The decisions, in pass order."""
        ranked = rank(self.info, target, precision, cluster_sums=True)
        # What the planner takes comes first: it leaves schedules with `cluster_k` to measurements.
        chosen = next((c for c in ranked if c.schedule.data.cluster_k == 1), ranked[0])
        ranked = [chosen, *(c for c in ranked if c is not chosen)]
        found = [self._candidate(c.schedule, c.prediction) for c in ranked if c.prediction is not None]
        if not found:
            reason = f"no schedule can be carried out on {target.name}: {ranked[0].refused}"
            raise ScheduleError(reason, operator=nest.name)
        self._ranked = [*dict.fromkeys(found)]

    def ranked(self) -> Sequence[Candidate]:
        """The planner's candidates, with predictions, the one that it takes first. Never empty."""
        return self._ranked

    def values(self, candidate: Candidate) -> Values:
        """What `candidate` decides. Raises ScheduleError for one that is not of this space."""
        if candidate not in self._known:
            schedule = parse_schedule(candidate.schedule).data
            if [len(schedule.block), len(schedule.chunk)] != [len(self.info.free), len(self.info.reduction_indices)]:
                raise ScheduleError(f"{candidate.schedule} is of another nest")
            self._known[candidate] = self._decided(schedule, candidate.options)
        return self._known[candidate]

    def candidates(self, points: Iterable[Values]) -> list[Candidate]:
        """The legal ones of some points, each once, with predictions."""
        wanted = [self._schedule(dict(zip(self.names, p, strict=True))) for p in dict.fromkeys(points)]
        found: list[tuple[int, Candidate]] = []
        for group in points_of(schedule for schedule, _ in wanted):
            for p in self.model.predict_all(self.model.completed(group, self.precision)):
                for row in (~(p.violated | p.spills)).nonzero()[0].tolist():
                    order = int(p.points.order[row])
                    schedule = self.model.counted_on(p.points.schedule(row), p.at(row))
                    made = self._candidate(schedule, p.at(row), wanted[order][1])
                    found.append((order, made))
        return [*dict.fromkeys(c for _, c in sorted(found, key=lambda f: f[0]))]

    def neighbours(self, *candidates: Candidate) -> list[Candidate]:
        """Legal candidates that differ from one of these in one decision, or in a factor of two that went from one
        extent of a tile to another; those first that are predicted to be fastest."""
        points: list[Values] = []
        found: list[Candidate] = []
        for candidate in candidates:
            here = dict(zip(self.names, self.values(candidate), strict=True))
            points += (tuple((here | change).values()) for change in self._changes(here))
            found += self._nearest(here, candidate.options)
        new = dict.fromkeys(self.candidates(points) + found)
        return sorted((c for c in new if c not in candidates), key=lambda c: c.predicted)

    def _changes(self, here: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What may be decided in another way, beside words."""
        for name, value in here.items():
            if name == "group_m" and not self.model.swizzles:
                continue
            if most := self._largest.get(name, MOST.get(name, 0)):
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
        """For each other word the planner's candidate that has it and is alike in most else."""
        mine = tuple(here.values())
        for name in WORDS:
            at = self.names.index(name)
            for word in dict.fromkeys(self.values(c)[at] for c in self._ranked):
                if word != here[name]:
                    same = [c for c in self._ranked if self.values(c)[at] == word]
                    best = max(same, key=lambda c: sum(x == y for x, y in zip(self.values(c), mine, strict=True)))
                    yield replace(best, options=options)

    @cached_property
    def _largest(self) -> dict[str, int]:
        """The extents of tiles with the most that each may be."""
        names = [n for n in self.names if n.startswith(("block.", "chunk."))]
        indices = (*self.info.free, *self.info.reduction_indices)
        return {n: pow2_at_least(self.info.extents[i]) for n, i in zip(names, indices, strict=True)}

    def _together(self, name: str, value: int) -> dict[str, int]:
        """`name` decided, and with it the chunks of other stages of the same reduction, which are equal."""
        position = {i: f"chunk.{n}" for n, i in enumerate(self.info.reduction_indices)}
        for group in self.info.groups:
            for axis in zip(*(op.body.block.args for op in group), strict=True):
                if name in (linked := [position[i] for i in axis]):
                    return dict.fromkeys(linked, value)
        return {name: value}

    def _decided(self, schedule: Schedule, options: tuple[tuple[str, str, str], ...]) -> Values:
        """The values of a schedule and of options."""
        found: list[Hashable] = []
        for n in IN_PASS_ORDER:
            value = getattr(schedule, n)
            found += (value or (0, 0) if n == "thread" else value) if n in LISTS else [value]
        given = {(p, o): v for p, o, v in options}
        return (*found, *(given.get(key, values[0]) for key, values in self.options.items()))

    def _schedule(self, decided: dict[str, Any]) -> tuple[Schedule, tuple[tuple[str, str, str], ...]]:
        """The schedule and the options with some values."""
        given: dict[str, Any] = {n: decided[n] for n in IN_PASS_ORDER if n not in LISTS}
        given |= {n: tuple(v for k, v in decided.items() if k.startswith(f"{n}.") and v) for n in LISTS}
        # A free index without further tiles is not walked.
        walked = (
            i
            for i, index in ((i, self.info.free[i]) for i in given["serial"])
            if given["block"][i] < self.info.extents[index] or self.info.may_be_longer([index])
        )
        keys = [(p, o, decided[f"{p}.{o}"]) for p, o in self.options]
        options = tuple(key for key in keys if key[2] != self.options[key[:2]][0])
        return Schedule(**{**given, "serial": tuple(walked)}), options

    def _candidate(
        self, schedule: ScheduleAttr, prediction: Any, options: tuple[tuple[str, str, str], ...] = ()
    ) -> Candidate:
        """The candidate of a schedule that is predicted, with how many blocks it counts on at once."""
        made = Candidate(str(schedule), options, float(prediction.seconds))
        self._known.setdefault(made, self._decided(schedule.data, options))
        return made
