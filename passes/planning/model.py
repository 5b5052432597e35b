"""The planning model: which schedules a nest has on a target, which of them can be carried out, and their times.

A kind of target (`Target.kind`) has a room of its own with a subclass of `Model`: `gpu/` and `cpu/`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from math import prod
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np

from ...dialects.loop import NestOp
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import TargetError
from ...target.model import Rates, Target
from ..analysis.operands import copies
from .legality import Violation, raise_first, violated
from .matmul import Matmul, Operations, by_products, distinct, find_matmuls
from .nest_info import NestInfo
from .points import Bools, Floats, Points, points_of
from .tiles import Tiles

KINDS = {"gpu": "gpu.model:GpuModel", "cpu": "cpu.model:CpuModel"}
"""Kind of target -> its model. A new kind is one more line."""

SPECIAL = frozenset(
    f"math.{name}"
    for name in "acos acosh asin asinh atan atan2 atanh cos cosh erf exp exp2 expm1 log log10 log1p log2 powf rsqrt "
    "sin sinh sqrt tan tanh".split()
) | {"arith.divf", "arith.divsi", "arith.remsi", "arith.floordivsi", "payload.fmod", "payload.logaddexp"}
"""Operations at the rate `Rates.special`."""

MIN_PART_BYTES = 1 << 14
"""Bytes that a part of a divided reduction reads, at least. Tuned by hand."""

MOST_PARTS = 256
"""Parts of a reduction, at most: the sum of more parts would be the long reduction."""


def another_kernel(rates: Rates, seconds: Any) -> Any:
    """Returns the seconds of one more kernel, whose bytes alone take `seconds`, with the gap to its neighbour."""
    return rates.gap + rates.launch + rates.ramp + seconds


@dataclass(frozen=True)
class Times:
    """Seconds of a kernel by cause, as if nothing else took time: numbers, or columns for several schedules.

    start     until its first loads have arrived
    memory    bytes from and to device memory
    cache     bytes from the level-2 cache
    compute   operations
    shared    bytes through shared memory
    latency   blocks one after another, each waiting for its loads
    drain     results that are written while nothing else is done
    overlap   exponent of the norm that adds multiprocessors, level-2 cache and memory: infinite where the longest hides
              the others
    """

    start: Any
    memory: Any
    cache: Any
    compute: Any
    shared: Any = 0.0
    latency: Any = 0.0
    drain: Any = 0.0
    overlap: float = math.inf

    def at(self, row: int) -> Times:
        seconds = (getattr(self, f.name) for f in fields(self) if f.name != "overlap")
        return Times(*(float(s[row] if isinstance(s, np.ndarray) else s) for s in seconds), overlap=self.overlap)

    @property
    def seconds(self) -> Any:
        return self.start + self.between + self.drain

    @property
    def between(self) -> Any:
        busy = reduce(np.maximum, (self.shared, self.compute, self.latency))
        if math.isinf(self.overlap):
            return reduce(np.maximum, (self.memory, self.cache, busy))
        longest = np.maximum(self.longest, 1e-12)
        return longest * sum((t / longest) ** self.overlap for t in (self.memory, self.cache, busy)) ** (
            1 / self.overlap
        )

    @property
    def hidden(self) -> Any:
        """Seconds that the longest part hides."""
        return self.memory + self.cache + self.shared + self.compute + self.latency - self.longest

    @property
    def longest(self) -> Any:
        """Seconds of the longest part between start and drain."""
        return reduce(np.maximum, (self.memory, self.cache, self.shared, self.compute, self.latency))

    @property
    def parts(self) -> dict[str, Any]:
        """Seconds by the words of `--explain`."""
        return {
            "memory": self.memory,
            "cache": self.cache,
            "shared memory": self.shared,
            "compute": self.compute,
            "latency": self.latency,
            "start": self.start,
            "epilogue": self.drain,
        }

    @property
    def limit(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of one schedule, or of many: each field is then a column.

    times      seconds by cause
    combine    seconds of other kernels, which combine the parts of a reduction, split operands or pack them
    blocks     blocks of the grid; `resident` of them run at once on a multiprocessor, in `waves` one after another
    registers  of a thread, an estimate; `shared` bytes of a block
    read, written  bytes from and to device memory
    """

    times: Times
    combine: Any
    blocks: Any
    resident: Any
    waves: Any
    registers: Any
    shared: Any
    read: Any
    written: int

    @property
    def seconds(self) -> Any:
        return self.times.seconds + self.combine

    @property
    def limit(self) -> str:
        return "other kernels" if self.combine > self.times.seconds else self.times.limit

    def at(self, row: int) -> Prediction:
        columns = {name: v[row].item() for name, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, times=self.times.at(row), **columns)


@dataclass(frozen=True)
class Predictions:
    """Predictions for schedules, a mask of those that would spill registers, and the violations of all."""

    points: Points
    all: Prediction
    spills: Bools
    violations: list[Violation]

    @cached_property
    def violated(self) -> Bools:
        """Mask of the schedules that cannot be carried out."""
        return violated(self.violations, len(self.points))

    def at(self, row: int) -> Prediction:
        raise_first(self.violations, row)
        return self.all.at(row)


class Model(ABC):
    """Space, legality and times of the schedules of one nest on one target.

    A subclass is the model of a kind of target. The rates are those of `target/model.py`; those of the H200 were fitted
    to measured times by `benchmarks/gpu/fit.py`.
    """

    unfolds: ClassVar[bool] = False
    """True if copies of windows may be faster than windows (`plan-unfolding`)."""

    swizzles = False
    """True if schedules may order their blocks in patches (`group_m`)."""

    def __init__(self, info: NestInfo, target: Target) -> None:
        self.info, self.target = info, target
        self.matmuls = find_matmuls(info) if info.reductions else []
        """All contractions that may be matmuls."""
        self.products = self._alternatives(distinct(info, self.matmuls) if self.matmuls else [])
        """Those that are computed once, with the alternatives of the kind."""
        self._operations: dict[tuple[Matmul, ...], Operations] = {}
        self._packing: dict[int, list[tuple[Model, list[Points]]]] = {}

    def _alternatives(self, products: list[Matmul]) -> list[Matmul]:
        """Returns matmuls with those that compute the same along other indices."""
        return products

    @abstractmethod
    def space(self, precision: str, cluster_sums: bool = False) -> Iterator[Points]:
        """Yields every schedule that is worth a prediction.

        Args:
            precision: permission of `f32_matmul_precision`.
            cluster_sums: whether blocks of a cluster may share sums (`cluster_k`).
        """

    def further(self, precision: str) -> Iterable[Predictions]:
        """Returns schedules that take nests of their own before this one, with their predictions."""
        return ()

    @abstractmethod
    def violations(self, tiles: Tiles, products: list[Matmul]) -> list[Violation]:
        """Returns the decisions that cannot be carried out, for schedules with the matmuls `products`."""

    @abstractmethod
    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        """Returns the predictions for schedules with the matmuls `products`."""

    @abstractmethod
    def weighed(self, p: Predictions) -> Floats:
        """Returns the seconds by which schedules are compared."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """Schedules that take at most this many times the shortest time count as equally fast; 0 for none."""

    @abstractmethod
    def resources_text(self, p: Prediction) -> str:
        """Returns the parallel work and the memory of the kernel, in words of the target."""

    def counted_on(self, schedule: ScheduleAttr, prediction: Prediction) -> ScheduleAttr:
        """Returns the schedule with the number of blocks that it counts on at once on a multiprocessor."""
        return schedule

    def completed(self, points: Points, precision: str) -> Points:
        """Returns schedules with the decisions that follow from the others."""
        return points

    @staticmethod
    def together(ranked: Mapping[NestOp, list[Any]], target: Target) -> Iterable[tuple[NestOp, Any]]:
        """Returns candidates that are slower alone, and faster for nests that share a launch. `ranked` has all
        candidates of nests (`choose.Candidate`), fastest first."""
        return ()

    def on(self, target: Target) -> Model:
        """Returns the model with the numbers of another target of the kind."""
        model = copy(self)
        model.target = target
        return model

    def operations(self, products: list[Matmul]) -> Operations:
        key = (*products,)
        return self._operations.setdefault(key, Operations(self.info, key))

    def check(self, schedule: ScheduleAttr) -> None:
        """Raises ScheduleError, with the reason, if `schedule` cannot be carried out."""
        for products, tiles in self._by_products(*points_of([schedule.data])):
            raise_first(self.violations(tiles, products))

    def predict(self, schedule: ScheduleAttr) -> Prediction:
        """Returns the time under `schedule`. Raises ScheduleError if it cannot be carried out."""
        (predictions,) = self.predict_all(*points_of([schedule.data]))
        return predictions.at(0)

    def predict_all(self, points: Points) -> Iterator[Predictions]:
        """Yields the times under schedules, those together that have the same matmuls.

        Raises:
            TargetError: for a target without rates.
        """
        if not self.target.rates.known:
            reason = f"{self.target.name} has no rates, so no time can be predicted; use strategy=simple"
            raise TargetError(reason, argument="target")
        for products, tiles in self._by_products(points):
            yield self._predict(products, tiles)

    def _by_products(self, points: Points) -> Iterator[tuple[list[Matmul], Tiles]]:
        tiles = Tiles(self.info, points)
        if not self.products:
            yield [], tiles
            return
        for products, rows in by_products(self.products, tiles):
            yield products, tiles if rows.all() else Tiles(self.info, points.at(rows))

    def _other_kernels(self, tiles: Tiles) -> Floats:
        """Returns the seconds of the kernels before and after: they combine the parts of a divided reduction, in f32,
        and pack operands."""
        rates, groups = self.target.rates, self.info.groups
        results = prod(self.info.extents[i] for i in self.info.free)
        moved = 4.0 * results * tiles.parts * 2 * len(groups[0]) if groups else 0.0
        combine = np.where(tiles.parts > 1, another_kernel(rates, moved / rates.cache), 0.0)
        return combine + sum(map(self._seconds_to_pack, tiles.points.pack))

    def _seconds_to_pack(self, position: int) -> float:
        """Returns the seconds of the kernels that pack operands along a free index, with their best schedules."""
        if position not in self._packing:
            models = [model_of(NestInfo(n), self.target) for n in copies(self.info.nest, self.info.free[position])]
            self._packing[position] = [(model, [*model.space("ieee")]) for model in models]
        seconds = 0.0
        for model, groups in self._packing[position]:
            predictions = [p for points in groups for p in model.on(self.target).predict_all(points)]
            fastest = min(float(p.all.seconds[~p.violated].min(initial=np.inf)) for p in predictions)
            seconds += self.target.rates.gap + fastest
        return seconds


def model_class(target: Target) -> type[Model]:
    return resolve_name(f"{__package__}.{KINDS[target.kind]}")


def model_of(info: NestInfo, target: Target) -> Model:
    return model_class(target)(info, target)
