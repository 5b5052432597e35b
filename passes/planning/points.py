"""Schedules by the array: what a group of them has in common as words, and their numbers as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...dialects.tile.schedule import PLAIN, Schedule, ScheduleAttr
from ...errors import ScheduleError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Points:
    """Schedules of one nest that agree in all decisions except for `COLUMNS`.

    A column has a row for each schedule. `LISTS` have a column for each index as well (`thread` two or none). Of
    equally good schedules the one with the lowest `order` is taken.
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
        """Returns the schedules that `rows` selects, by number or by mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in (*COLUMNS, "order")})

    def repeated(self, name: str, values: Sequence[int]) -> Points:
        """Returns the schedules with every one of the values of a number."""
        return join([replace(self, **{name: np.full(len(self), n)}) for n in values])

    def schedule(self, row: int) -> ScheduleAttr:
        return ScheduleAttr.get(
            **{name: getattr(self, name) for name in WORDS},
            **{name: getattr(self, name)[row].tolist() for name in COLUMNS},
        )


COLUMNS = tuple(f.name for f in fields(Points) if f.type == "Ints" and f.name in PLAIN)
WORDS = tuple(name for name in Points.__dataclass_fields__ if name not in (*COLUMNS, "order"))
LISTS = tuple(name for name in COLUMNS if isinstance(PLAIN[name], tuple))
"""Decisions by their form in `Points`: arrays, values that all schedules share, and those of the arrays with an entry
for each index."""


def points_of(schedules: Iterable[Schedule]) -> list[Points]:
    """Returns schedules of one nest in groups. Raises ScheduleError for a register tile without rows and columns."""
    groups: dict[tuple[Any, ...], list[tuple[int, Schedule]]] = {}
    for order, schedule in enumerate(schedules):
        if len(schedule.thread) not in (0, 2):
            raise ScheduleError("a register tile has rows and columns", argument="thread")
        key = (*(getattr(schedule, n) for n in WORDS), bool(schedule.thread))
        groups.setdefault(key, []).append((order, schedule))
    return [
        Points(
            *words,
            **{n: np.array([getattr(s, n) for _, s in members], dtype=np.int64) for n in COLUMNS},
            order=np.array([order for order, _ in members]),
        )
        for (*words, _), members in groups.items()
    ]


def join(parts: Sequence[Points]) -> Points:
    """Returns schedules that agree in their words as one group."""
    columns = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*COLUMNS, "order")}
    return replace(parts[0], **columns)


def ceil_div(n: Any, divisor: Any) -> Any:
    return -(-n // divisor)


def product(values: Iterable[Any], rows: int) -> Floats:
    """Returns the product of columns of `rows` numbers; ones without columns."""
    return reduce(np.multiply, values, np.ones(rows))


def total(values: Iterable[Any], rows: int) -> Floats:
    """Returns the sum of columns of `rows` numbers; zeros without columns."""
    return reduce(np.add, values, np.zeros(rows))


def largest(values: Iterable[Any], rows: int) -> Floats:
    """Returns the largest number of each row of columns that are not negative; zeros without columns."""
    return reduce(np.maximum, values, np.zeros(rows))
