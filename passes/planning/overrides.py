"""Decisions that a user gives for some nests: options of `plan-schedules` laid over what the planner chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...dialects.tile.schedule import DECISIONS, ScheduleAttr
from .nest_info import NestInfo


@dataclass(frozen=True)
class ScheduleOverrides:
    """Decisions as options of a pass: an empty list or None is none."""

    block: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    serial: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warps: int | None = None
    stages: int | None = None
    split_k: int | None = None
    group_m: int | None = None
    num_ctas: int | None = None
    cluster: int | None = None
    blocks_per_sm: int | None = None
    atom: Literal["fma", "mma", "wgmma"] | None = None
    copy: Literal["sync", "cp_async", "tma"] | None = None
    cache_rows: Literal["registers", "shared"] | None = None

    def decisions(self) -> dict[str, Any]:
        """What was decided, by name."""
        names = [n for n in DECISIONS if n in ScheduleOverrides.__dataclass_fields__]
        return {n: v for n in names if (v := getattr(self, n)) not in (None, ())}

    def mismatch(self, info: NestInfo) -> str:
        """Why the lists do not fit a nest; "" if they do."""
        for name, indices, what in (("block", info.free, "free"), ("chunk", info.reduction_indices, "reduction")):
            extents = getattr(self, name)
            if extents and len(extents) != len(indices):
                return f"{name} has {len(extents)} extents; the nest has {len(indices)} {what} indices"
        return ""

    def apply_to(self, schedule: ScheduleAttr) -> ScheduleAttr:
        """`schedule` with these decisions. What depends on one that changed goes with it: without an asynchronous copy
        there is one stage, on tensor cores there is no register tile, serial indices and the grid swizzle are those of
        the old tiles, and how many blocks fit on a multiprocessor was said of the old schedule."""
        plain = {name: d.default for name, d in DECISIONS.items()}
        reset = {"blocks_per_sm"}
        if self.copy == "sync":
            reset.add("stages")
        if self.atom in ("mma", "wgmma"):
            reset.add("thread")
        if self.block:
            reset |= {"serial", "split_k", "group_m", "num_ctas", "cache_rows", "cluster"}
        return schedule.changed(**({n: plain[n] for n in reset} | self.decisions()))
