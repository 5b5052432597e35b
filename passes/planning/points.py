"""Schedules by the array: what they have in common as words, and their numbers as columns, a row a schedule."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
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

NUMBERS = ("warps", "stages", "split_k", "group_m", "num_ctas", "blocks_per_sm")
LISTS = ("block", "chunk", "thread")


def plan_of(schedule: ScheduleAttr) -> Schedule:
    """The decisions of an attribute. Raises ScheduleError for a register tile that is none."""
    if len(schedule.data.thread) not in (0, 2):
        raise ScheduleError("a register tile has rows and columns", argument="thread")
    return schedule.data


@dataclass(frozen=True)
class Points:
    """Schedules of one nest that agree in `serial`, `cluster`, `atom`, `copy`, `f32_matmul_precision` and `cache_rows`.

    `block`, `chunk` and `thread` have a row for each schedule and a column for each index (`thread` two or none); the
    other numbers are vectors. Of equally good schedules the one with the lowest `order` is to be taken.
    """

    serial: tuple[int, ...]
    cluster: int
    atom: str
    copy: str
    precision: str
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
    order: Ints

    def __len__(self) -> int:
        return len(self.warps)

    def at(self, rows: Ints | Bools) -> Points:
        """Those of the schedules that `rows` selects, by number or by mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in (*LISTS, *NUMBERS, "order")})

    def variants(self, count: int) -> Iterator[Points]:
        """These schedules `count` times, to be changed; what is made of the first comes first."""
        for n in range(count):
            yield replace(self, order=self.order * count + n)

    def repeated(self, **choices: Sequence[int]) -> Points:
        """These schedules with each of the `choices` of one number, of equally good ones the first choice first."""
        ((name, values),) = choices.items()
        variants = zip(self.variants(len(values)), values, strict=True)
        return join([replace(v, **{name: np.full(len(self), n)}) for v, n in variants])

    def schedule(self, row: int) -> ScheduleAttr:
        """One of the schedules as an attribute."""
        numbers = {name: int(getattr(self, name)[row]) for name in NUMBERS}
        lists = {name: [int(n) for n in getattr(self, name)[row]] for name in LISTS}
        words = {"atom": self.atom, "copy": self.copy, "cache_rows": self.cache_rows}
        precision = {"f32_matmul_precision": self.precision}
        return ScheduleAttr.get(serial=self.serial, cluster=self.cluster, **numbers, **lists, **words, **precision)


def points_of(plans: Iterable[Schedule]) -> list[Points]:
    """Schedules of one nest in groups."""
    groups: dict[Hashable, list[tuple[int, Schedule]]] = {}
    for order, p in enumerate(plans):
        words = (p.serial, p.cluster, p.atom, p.copy, p.f32_matmul_precision, p.cache_rows)
        groups.setdefault((words, bool(p.thread)), []).append((order, p))
    found: list[Points] = []
    for members in groups.values():
        order, p = np.array([order for order, _ in members]), members[0][1]
        columns = {n: np.array([getattr(q, n) for _, q in members], dtype=np.int64) for n in (*LISTS, *NUMBERS)}
        words = (p.serial, p.cluster, p.atom, p.copy, p.f32_matmul_precision, p.cache_rows)
        found.append(Points(*words, **columns, order=order))
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
