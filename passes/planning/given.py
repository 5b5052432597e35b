"""Decisions that a user gives for some nests: options of `plan-schedules` laid over what the planner chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...dialects.schedule import ScheduleAttr
from .facts import Facts


@dataclass(frozen=True)
class Given:
    """Decisions as the options of the pass have them: an empty list, None or "" is none."""

    block: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    """`chunk`, for short."""
    serial: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warps: int | None = None
    stages: int | None = None
    split_k: int | None = None
    group: int | None = None
    persistent: int | None = None
    cluster: int | None = None
    blocks_per_sm: int | None = None
    atom: Literal["fma", "mma", "wgmma"] | None = None
    copy: Literal["plain", "cp_async", "tma"] | None = None
    row: Literal["registers", "shared"] | None = None

    def decisions(self) -> dict[str, Any]:
        """What was decided, by name."""
        lists = {n: v for n in ("block", "chunk", "serial", "thread") if (v := getattr(self, n))}
        if self.k:
            lists.setdefault("chunk", self.k)
        numbers = ("warps", "stages", "split_k", "group", "persistent", "cluster", "blocks_per_sm")
        rest = {n: getattr(self, n) for n in (*numbers, "atom", "copy", "row")}
        return lists | {n: v for n, v in rest.items() if v is not None}

    def misfit(self, facts: Facts) -> str:
        """Why the lists do not fit a nest; "" if they do."""
        if self.k and self.chunk:
            return "k and chunk are two names of the same"
        for name, found, what in (
            ("block", facts.free, "free"),
            ("chunk", facts.reduction_indices, "reduction"),
        ):
            given = self.decisions().get(name)
            if given and len(given) != len(found):
                return f"{name} has {len(given)} extents; the nest has {len(found)} {what} indices"
        return ""

    def over(self, schedule: ScheduleAttr) -> ScheduleAttr:
        """`schedule` with these decisions. What depends on one that changed goes with it: without a copy ahead of its
        use there is one stage, on tensor cores there is no register tile, serial indices and the order of blocks
        are those of the old tiles, and how many blocks fit on a multiprocessor was said of the old schedule."""
        decided = self.decisions()
        decided.setdefault("blocks_per_sm", 0)
        if decided.get("copy") == "plain":
            decided.setdefault("stages", 1)
        if decided.get("atom", "fma") != "fma":
            decided.setdefault("thread", ())
        if "block" in decided:
            decided.setdefault("serial", ())
            decided.setdefault("split_k", 1)
            decided.setdefault("group", 1)
            decided.setdefault("persistent", 0)
            decided.setdefault("row", "registers")
            decided.setdefault("cluster", 1)
        return schedule.changed(**decided)
