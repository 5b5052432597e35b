"""Schedules by the array: what they have in common as words, and their numbers as columns, a row a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...dialects.tile.schedule import Schedule, ScheduleAttr
from ...errors import ScheduleError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

WORDS = (
    "serial",
    "pack",
    "cluster_k",
    "cluster",
    "lanes",
    "atom",
    "copy",
    "f32_matmul_precision",
    "promotion_memory",
    "cache_rows",
)
NUMBERS = ("warps", "stages", "split_k", "group_m", "num_ctas", "blocks_per_sm", "promotion_interval")
LISTS = ("block", "chunk", "thread")


def plan_of(schedule: ScheduleAttr) -> Schedule:
    """The decisions of an attribute. Raises ScheduleError for a register tile that is none."""
    if len(schedule.data.thread) not in (0, 2):
        raise ScheduleError("a register tile has rows and columns", argument="thread")
    return schedule.data


@dataclass(frozen=True)
class Points:
    """Schedules of one nest that agree in `WORDS`.

    `block`, `chunk` and `thread` have a row for each schedule and a column for each index (`thread` two or none); the
    other numbers are vectors. Of equally good schedules the one with the lowest `order` is to be taken.
    """

    serial: tuple[int, ...]
    pack: tuple[int, ...]
    cluster_k: int
    cluster: int
    lanes: int
    atom: str
    copy: str
    f32_matmul_precision: str
    promotion_memory: str
    cache_rows: str
    block: Ints
    chunk: Ints
    thread: Ints
    warps: Ints
    stages: Ints
    split_k: Ints
    group_m: Ints
    num_ctas: Ints
    blocks_per_sm: Ints
    promotion_interval: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.warps)

    def at(self, rows: Ints | Bools) -> Points:
        """Those of the schedules that `rows` selects, by number or by mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in (*LISTS, *NUMBERS, "order")})

    def repeated(self, name: str, values: Sequence[int]) -> Points:
        """These schedules with each of the values of one number."""
        return join([replace(self, **{name: np.full(len(self), n)}) for n in values])

    def schedule(self, row: int) -> ScheduleAttr:
        """One of the schedules as an attribute."""
        words: dict[str, Any] = {name: getattr(self, name) for name in WORDS}
        words |= {name: int(getattr(self, name)[row]) for name in NUMBERS}
        return ScheduleAttr.get(**words, **{name: getattr(self, name)[row].tolist() for name in LISTS})


def points_of(plans: Iterable[Schedule]) -> list[Points]:
    """Schedules of one nest in groups."""
    groups: dict[tuple[Any, ...], list[tuple[int, Schedule]]] = {}
    for order, p in enumerate(plans):
        groups.setdefault((*(getattr(p, n) for n in WORDS), bool(p.thread)), []).append((order, p))
    found: list[Points] = []
    for words, members in groups.items():
        columns = {n: np.array([getattr(p, n) for _, p in members], dtype=np.int64) for n in (*LISTS, *NUMBERS)}
        found.append(Points(*words[:-1], **columns, order=np.array([order for order, _ in members])))
    return found


def join(parts: Sequence[Points]) -> Points:
    """Schedules that agree in their words, together."""
    columns = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*LISTS, *NUMBERS, "order")}
    return replace(parts[0], **columns)


def product(values: Iterable[Any], rows: int) -> Floats:
    """The product of columns of `rows` numbers; ones, if there are none."""
    return reduce(np.multiply, values, np.ones(rows))


def ceil_div(n: Any, divisor: Any) -> Any:
    """Rounded up, of numbers or columns."""
    return -(-n // divisor)


def total(values: Iterable[Any], rows: int) -> Floats:
    """The sum of columns of `rows` numbers; zeros, if there are none."""
    return reduce(np.add, values, np.zeros(rows))


def largest(values: Iterable[Any], rows: int) -> Floats:
    """Row by row the largest of columns of numbers that are not negative; zeros, if there are none."""
    return reduce(np.maximum, values, np.zeros(rows))
