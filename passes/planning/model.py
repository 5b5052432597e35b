"""Base class of the planning models, which enumerate the schedules of a nest, check them and predict their times.

Each kind of target (`Target.kind`) has a subclass of `Model`, in `gpu/model.py` and `cpu/model.py`. A model works on
many schedules at once (`Points`): predictions and checks are arrays with one entry for each schedule.
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
"""Kind of target -> module and class of its model."""

SPECIAL = frozenset(
    f"math.{name}"
    for name in "acos acosh asin asinh atan atan2 atanh cos cosh erf exp exp2 expm1 log log10 log1p log2 powf rsqrt "
    "sin sinh sqrt tan tanh".split()
) | {"arith.divf", "arith.divsi", "arith.remsi", "arith.floordivsi", "payload.fmod", "payload.logaddexp"}
"""Names of operations that are computed at the rate `Rates.special`; all others have the rate `Rates.vector`."""

MIN_PART_BYTES = 1 << 14
"""Minimum number of bytes that one part of a split-K reduction reads. Tuned by hand."""

MOST_PARTS = 256
"""Maximum number of parts of a split-K reduction. With more parts, combining them would be the longer reduction."""


def another_kernel(rates: Rates, seconds: Any) -> Any:
    """Returns the time in seconds that an additional kernel costs: its launch, its ramp and the gap to the next kernel.

    Args:
        rates: rates of the target.
        seconds: time for the bytes that the kernel moves.
    """
    return rates.gap + rates.launch + rates.ramp + seconds


@dataclass(frozen=True)
class Times:
    """Time of a kernel by cause, in seconds: numbers, or arrays with one entry for each schedule.

    Every field except `overlap` is the time of that cause if all other causes took no time.

    start     until the first loads have arrived
    memory    bytes from and to device memory
    cache     bytes from the L2 cache
    compute   operations
    shared    bytes through shared memory
    latency   critical path of a multiprocessor: its blocks run one after another, and each waits for its loads
    drain     results that are written at the end, when nothing overlaps with them
    overlap   exponent p of the norm (sum of t**p)**(1/p) that adds the times of multiprocessor, L2 and memory. With
              infinity, the longest time hides the others.
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
        """Returns the times of the schedule in `row`, as numbers."""
        seconds = (getattr(self, f.name) for f in fields(self) if f.name != "overlap")
        return Times(*(float(s[row] if isinstance(s, np.ndarray) else s) for s in seconds), overlap=self.overlap)

    @property
    def seconds(self) -> Any:
        """Time of the kernel."""
        return self.start + self.between + self.drain

    @property
    def between(self) -> Any:
        """Time between start and drain, in seconds: the norm of the overlapping times."""
        busy = reduce(np.maximum, (self.shared, self.compute, self.latency))
        if math.isinf(self.overlap):
            return reduce(np.maximum, (self.memory, self.cache, busy))
        longest = np.maximum(self.longest, 1e-12)
        return longest * sum((t / longest) ** self.overlap for t in (self.memory, self.cache, busy)) ** (
            1 / self.overlap
        )

    @property
    def hidden(self) -> Any:
        """Sum of the overlapping times except for the longest one, in seconds."""
        return self.memory + self.cache + self.shared + self.compute + self.latency - self.longest

    @property
    def longest(self) -> Any:
        """Longest of the overlapping times, in seconds."""
        return reduce(np.maximum, (self.memory, self.cache, self.shared, self.compute, self.latency))

    @property
    def parts(self) -> dict[str, Any]:
        """Times in seconds, by the names that `--explain` prints."""
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
        """Name of the longest time in `parts`."""
        return max(self.parts, key=self.parts.__getitem__)


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of one schedule, or of many: each field is then an array with one entry for each schedule.

    times      times of the kernel by cause
    combine    seconds of additional kernels that pack or split operands, or combine the parts of a split-K reduction
    blocks     blocks of the grid
    resident   blocks that run on a multiprocessor at the same time
    waves      rounds in which all multiprocessors together execute the blocks
    registers  estimated registers of a thread
    shared     bytes of shared memory of a block
    read       bytes from device memory
    written    bytes to device memory
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
        """Time of all kernels of the nest."""
        return self.times.seconds + self.combine

    @property
    def parts(self) -> dict[str, Any]:
        """Times in seconds by cause, with the additional kernels, by the names that `--explain` prints."""
        return {**self.times.parts, "other kernels": self.combine}

    @property
    def limit(self) -> str:
        """Cause of the longest time, as `--explain` prints it."""
        return "other kernels" if self.combine > self.times.seconds else self.times.limit

    def at(self, row: int) -> Prediction:
        """Returns the prediction of the schedule in `row`, as numbers."""
        columns = {name: v[row].item() for name, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, times=self.times.at(row), **columns)


@dataclass(frozen=True)
class Predictions:
    """Predictions for many schedules.

    points      schedules
    all         predicted costs, one row for each schedule
    spills      mask of the schedules whose registers would spill
    violations  decisions that cannot be carried out
    """

    points: Points
    all: Prediction
    spills: Bools
    violations: list[Violation]

    @cached_property
    def violated(self) -> Bools:
        """Mask of the schedules that cannot be carried out."""
        return violated(self.violations, len(self.points))

    def at(self, row: int) -> Prediction:
        """Returns the prediction of the schedule in `row`. Raises ScheduleError if it cannot be carried out."""
        raise_first(self.violations, row)
        return self.all.at(row)


class Model(ABC):
    """Model of the schedules of one nest on one target: their enumeration, their checks and their times.

    A subclass is the model of a kind of target. Rates are fields of `Rates` in `target/model.py`;
    `benchmarks/gpu/fit.py` fitted those of the H200 to measured times.

    Attributes:
        info: indices, reductions and accesses of the nest.
        target: the target.
        matmuls: all contractions of the nest that may be matmuls.
        products: `matmuls` without duplicates. A subclass may add the same contractions with other indices as rows or
            columns (`_alternatives`).
    """

    unfolds: ClassVar[bool] = False
    """True if a copy with unfolded windows (im2col) may be faster than reading the windows (`plan-unfolding`)."""

    swizzles = False
    """True if schedules may swizzle the grid (`group_m`)."""

    def __init__(self, info: NestInfo, target: Target) -> None:
        self.info, self.target = info, target
        self.matmuls = find_matmuls(info) if info.reductions else []
        self.products = self._alternatives(distinct(info, self.matmuls) if self.matmuls else [])
        self._operations: dict[tuple[Matmul, ...], Operations] = {}
        self._packing: dict[int, list[tuple[Model, list[Points]]]] = {}

    def _alternatives(self, products: list[Matmul]) -> list[Matmul]:
        """Returns `products` and matmuls of the same contractions with other indices as rows or columns."""
        return products

    @abstractmethod
    def space(self, precision: str, cluster_sums: bool = False) -> Iterator[Points]:
        """Yields every schedule that is worth a prediction.

        Args:
            precision: the option `f32_matmul_precision`.
            cluster_sums: whether blocks of a cluster may share the accumulators of a tile (`cluster_k`).
        """

    def further(self, precision: str) -> Iterable[Predictions]:
        """Returns predictions for schedules that need additional nests before this one, such as splitting operands.

        Args:
            precision: the option `f32_matmul_precision`.
        """
        return ()

    @abstractmethod
    def violations(self, tiles: Tiles, products: list[Matmul]) -> list[Violation]:
        """Returns the decisions that cannot be carried out.

        Args:
            tiles: schedules.
            products: contractions that these schedules compute as matmuls.
        """

    @abstractmethod
    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        """Returns the predictions for the schedules of `tiles`, which compute `products` as matmuls."""

    @abstractmethod
    def weighed(self, p: Predictions) -> Floats:
        """Returns the weighted time that ranks each schedule, in seconds."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """Schedules count as equally fast within this multiple of the shortest time; 0 compares exactly."""

    @abstractmethod
    def resources_text(self, p: Prediction) -> str:
        """Returns the number of blocks and the memory of the kernel as text for `--explain`."""

    def with_residency(self, schedule: ScheduleAttr, prediction: Prediction) -> ScheduleAttr:
        """Returns `schedule` with the decision `blocks_per_sm` that its prediction assumes.

        The base class decides nothing.
        """
        return schedule

    def completed(self, points: Points, precision: str) -> Points:
        """Returns schedules with the decisions that follow from their other decisions.

        Args:
            points: the schedules.
            precision: the option `f32_matmul_precision`.
        """
        return points

    @staticmethod
    def together(ranked: Mapping[NestOp, list[Any]], target: Target) -> Iterable[tuple[NestOp, Any]]:
        """Returns nests that should share a launch, each with its candidate (`choose.Candidate`) for that launch.

        Such a candidate may be slower than the fastest one if each kernel had its own launch.

        Args:
            ranked: all candidates of each nest, fastest first.
            target: the target.
        """
        return ()

    def on(self, target: Target) -> Model:
        """Returns a copy of the model for another target of the same kind."""
        model = copy(self)
        model.target = target
        return model

    def operations(self, products: list[Matmul]) -> Operations:
        """Returns the operations of the nest, divided into the matmuls `products` and all others."""
        key = (*products,)
        return self._operations.setdefault(key, Operations(self.info, key))

    def check(self, schedule: ScheduleAttr) -> None:
        """Raises ScheduleError, with the reason, if `schedule` cannot be carried out."""
        for products, tiles in self._by_products(*points_of([schedule.data])):
            raise_first(self.violations(tiles, products))

    def predict(self, schedule: ScheduleAttr) -> Prediction:
        """Returns the predicted cost of `schedule`. Raises ScheduleError if it cannot be carried out."""
        (predictions,) = self.predict_all(*points_of([schedule.data]))
        return predictions.at(0)

    def predict_all(self, points: Points) -> Iterator[Predictions]:
        """Yields the predictions of schedules. Schedules with the same matmuls are predicted together.

        Raises:
            TargetError: if the target has no rates.
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
        """Returns the seconds of additional kernels: they pack operands, and combine the parts of a split-K reduction.

        The parts of a reduction are f32, and each is written once and read once.
        """
        rates, groups = self.target.rates, self.info.groups
        results = prod(self.info.extents[i] for i in self.info.free)
        moved = 4.0 * results * tiles.parts * 2 * len(groups[0]) if groups else 0.0
        combine = np.where(tiles.parts > 1, another_kernel(rates, moved / rates.cache), 0.0)
        return combine + sum(map(self._seconds_to_pack, tiles.points.pack))

    def _seconds_to_pack(self, position: int) -> float:
        """Returns the seconds of the kernels that pack operands along free index `position`, each at its fastest."""
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
    """Returns the subclass of `Model` for a kind of target."""
    return resolve_name(f"{__package__}.{KINDS[target.kind]}")


def model_of(info: NestInfo, target: Target) -> Model:
    """Returns the model of a nest on a target."""
    return model_class(target)(info, target)
