"""Many schedules of one nest as arrays (`Points`), so that NumPy predicts and checks all of them at once."""

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
    """Schedules of one nest that differ only in the decisions named in `COLUMNS`.

    The fields are the decisions of `#tile.schedule` (`docs/schedules.md`), and `order`, the position of a schedule in
    the enumeration, by which equally fast schedules are sorted. A field that is not an array is the same in all
    schedules. An array has one row for each schedule. The arrays named in `LISTS` have a second dimension with one
    column for each index; `thread` has two columns, or none without register tiles.
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
        """Returns the schedules in `rows`, an array of row numbers or a mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in (*COLUMNS, "order")})

    def repeated(self, name: str, values: Sequence[int]) -> Points:
        """Returns every schedule once for each of `values`, with the decision `name` set to it."""
        return join([replace(self, **{name: np.full(len(self), n)}) for n in values])

    def schedule(self, row: int) -> ScheduleAttr:
        """Returns the schedule in `row`."""
        return ScheduleAttr.get(
            **{name: getattr(self, name) for name in SHARED_DECISIONS},
            **{name: getattr(self, name)[row].tolist() for name in COLUMNS},
        )


COLUMNS = tuple(f.name for f in fields(Points) if f.type == "Ints" and f.name in PLAIN)
"""Decisions that are arrays in `Points`."""

SHARED_DECISIONS = tuple(name for name in Points.__dataclass_fields__ if name not in (*COLUMNS, "order"))
"""Decisions that all schedules of a `Points` share."""

LISTS = tuple(name for name in COLUMNS if isinstance(PLAIN[name], tuple))
"""Decisions in `COLUMNS` that are lists in a schedule, with one number for each index."""


def points_of(schedules: Iterable[Schedule]) -> list[Points]:
    """Returns schedules of one nest in groups that agree in `SHARED_DECISIONS`.

    Raises:
        ScheduleError: if a register tile (`thread`) does not have two extents.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, Schedule]]] = {}
    for order, schedule in enumerate(schedules):
        if len(schedule.thread) not in (0, 2):
            reason = f"expected a register tile of 2 extents (rows, columns), but got {len(schedule.thread)}"
            raise ScheduleError(reason, argument="thread")
        key = (*(getattr(schedule, n) for n in SHARED_DECISIONS), bool(schedule.thread))
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
    """Concatenates schedules that agree in `SHARED_DECISIONS`."""
    columns = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*COLUMNS, "order")}
    return replace(parts[0], **columns)


def ceil_div(n: Any, divisor: Any) -> Any:
    """Returns `n / divisor`, rounded up."""
    return -(-n // divisor)


def product(values: Iterable[Any], rows: int) -> Floats:
    """Returns the elementwise product of arrays of length `rows`; ones if there is no array."""
    return reduce(np.multiply, values, np.ones(rows))


def total(values: Iterable[Any], rows: int) -> Floats:
    """Returns the elementwise sum of arrays of length `rows`; zeros if there is no array."""
    return reduce(np.add, values, np.zeros(rows))


def largest(values: Iterable[Any], rows: int) -> Floats:
    """Returns the elementwise maximum of zero and arrays of length `rows`; zeros if there is no array."""
    return reduce(np.maximum, values, np.zeros(rows))
