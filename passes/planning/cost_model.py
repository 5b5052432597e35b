"""The planning model: how long a nest would take under a schedule, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from .clusters import operand_loads
from .compute import Arithmetic
from .legality import check, raise_first, violated
from .matmul import Matmul, by_products, distinct, find_matmuls
from .nest_info import NestInfo
from .points import Bools, Floats, Ints, Points, largest, plan_of, points_of
from .resources import Resources, Violation
from .roofline import Times, another_kernel
from .smem_reuse import load_sites
from .tiles import Tiles
from .traffic import Loads, results_of

SYNC = 0.04e-6
"""Seconds of a barrier between the warps of a block."""


CLUSTER_SYNC = 0.5e-6
"""Seconds that blocks of a cluster take to meet, to read what the others have, and to meet again before they end."""


L2_CONTENTION, L2_CONTENTION_SLOWDOWN = 0.8, 1.04
"""From which share of their time on the level-2 cache makes products wait now and then, and how much longer they then
take: what clusters of two gain at 4096^3, as published."""


@dataclass(frozen=True)
class Prediction:
    """What a schedule would give.

    times      seconds by what they go to
    combine    seconds of other kernels: of one that combines the parts of a divided reduction, or that splits factors
    blocks     blocks of the grid; `resident` of them run at once on a multiprocessor, in `waves` one after the other
    registers  of a thread, an estimate; `shared` bytes of a block
    read, written  bytes from and to device memory
    """

    times: Times
    combine: float
    blocks: int
    resident: int
    waves: int
    registers: int
    shared: int
    read: float
    written: float

    @property
    def seconds(self) -> float:
        """How long it takes in all."""
        return self.times.seconds + self.combine

    @property
    def limit(self) -> str:
        """What most of the time goes to."""
        return "other kernels" if self.combine > self.times.seconds else self.times.limit


@dataclass(frozen=True)
class Predictions:
    """What some schedules would give: `Prediction`, a row for each schedule, and what speaks against them."""

    points: Points
    times: Times
    combine: Floats
    blocks: Ints
    waves: Ints
    takes: Resources
    read: Floats
    written: int
    violations: list[Violation]

    @cached_property
    def violated(self) -> Bools:
        """Which of the schedules cannot be carried out."""
        return violated(self.violations, len(self.points))

    @property
    def seconds(self) -> Floats:
        """`Prediction.seconds`."""
        return self.times.seconds + self.combine

    def at(self, row: int) -> Prediction:
        """The prediction for one schedule. Raises ScheduleError if it cannot be carried out."""
        raise_first(self.violations, row)
        takes, whole = self.takes, (self.blocks, self.takes.resident, self.waves, self.takes.registers)
        blocks, resident, waves, registers = (int(v[row]) for v in whole)
        return Prediction(
            self.times.at(row),
            combine=float(self.combine[row]),
            blocks=blocks,
            resident=resident,
            waves=waves,
            registers=registers,
            shared=int(takes.shared[row]),
            read=float(self.read[row]),
            written=self.written,
        )


class Model:
    """Predicts schedules of one nest on one target.

    A kernel takes as long as the one thing that it needs most: bytes from memory, bytes from the cache, bytes through
    shared memory, operations of its busiest multiprocessor, or the latencies of one block after the other; beside them
    a launch, and what is written at the end with nothing else to do. The rates are those of `dialects/target.py`; the
    form for products is the published one for Hopper: per wave the longer of operations and bytes, and its results.
    """

    def __init__(self, info: NestInfo, target: Target) -> None:
        self.info = info
        self.target = target
        self.found = find_matmuls(info)
        """All products, as a schedule has extents for them."""
        self.products = distinct(info, self.found)
        self.loads = Loads(info, load_sites(info), operand_loads(self.found))
        self._arithmetic: dict[tuple[int, ...], Arithmetic] = {}

    def predict(self, schedule: ScheduleAttr) -> Prediction:
        """The time under `schedule`; raises ScheduleError if it cannot be carried out."""
        (points,) = points_of([plan_of(schedule)])
        (found,) = self.predict_all(points)
        return found.at(0)

    def predict_all(self, points: Points) -> Iterator[Predictions]:
        """The times under schedules, those together that have the same matrix products."""
        tiles = Tiles(self.info, points)
        for products, rows in by_products(self.products, tiles):
            yield self._predict(products, tiles if rows.all() else Tiles(self.info, points.at(rows)))

    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        target, rates, points = self.target, self.target.rates, tiles.points
        arithmetic = self._arithmetic_of(products)
        takes, violations = check(self.info, tiles, target, products)
        blocks = np.maximum(1, tiles.blocks)
        each = -(-blocks // target.sms)
        together = np.minimum(takes.resident, each)
        cost = arithmetic.cost(tiles, target, together * points.warps)
        traffic = self.loads.traffic(tiles, target, takes.resident * target.sms)
        at_once = takes.resident * target.sms // tiles.ranks * tiles.ranks
        waves = -(-blocks // at_once)
        bulk = rates.bulk if points.copy == "tma" else rates.cache
        element = traffic.written / max(1, self._results())
        compute, cache, drain = each * cost.compute, traffic.near / bulk, np.zeros(tiles.rows)
        if products:
            compute = compute / (1 - self._waiting(products, tiles, cost.compute) ** together)
            latency = waves * arithmetic.chain(tiles, target)
            alone = results_of(tiles) * element / rates.store
            drain = np.minimum(each / together * alone * target.sms, blocks * alone)
            if points.copy != "tma":  # as if the others drew as much as the busiest
                cache = np.maximum(cache, each * traffic.block * target.sms / bulk)
        else:
            latency = waves * self._life(tiles, cost.compute, traffic.block) + (waves - 1) * rates.latency
            cache = (traffic.near + traffic.written) / bulk
        if points.copy == "tma":
            compute = compute * np.where(L2_CONTENTION * compute < cache, L2_CONTENTION_SLOWDOWN, 1.0)
        meeting = CLUSTER_SYNC * ~tiles.any_of(tiles.shared, tiles.tile) if points.cluster > 1 else 0.0
        times = Times(
            start=rates.launch + rates.ramp + meeting + np.zeros(tiles.rows),
            memory=(traffic.read + traffic.written) / rates.memory,
            cache=cache,
            compute=compute,
            shared=each * cost.shared,
            latency=latency,
            drain=drain,
        )
        combine = self._combine(tiles)
        return Predictions(points, times, combine, blocks, waves, takes, traffic.read, traffic.written, violations)

    def _arithmetic_of(self, products: list[Matmul]) -> Arithmetic:
        """The operations, where these are matrix products."""
        key = tuple(map(self.products.index, products))
        if key not in self._arithmetic:
            self._arithmetic[key] = Arithmetic(self.info, products)
        return self._arithmetic[key]

    def _results(self) -> int:
        total = 1
        for i in self.info.free:
            total *= self.info.extents[i]
        return total

    def _waiting(self, products: list[Matmul], tiles: Tiles, compute: Floats) -> Floats:
        """The share of its time that a block with products waits for factors or other warps, if it is alone; blocks
        that run at once fill each other's, as far as they don't wait too."""
        rates, free, points = self.target.rates, self.info.free, tiles.points
        inner = [{*p.reduction.indices, *(i for i in p.reduction.around if i not in free)} for p in products]
        steps = tiles.trip_count(free) * largest((tiles.trip_count(indices) for indices in inner), tiles.rows)
        own = compute / np.maximum(1, steps)
        barrier = np.where(points.warps > 1, SYNC, SYNC / 2)
        wait = rates.latency + 2 * barrier
        if points.copy != "sync":
            ahead = np.maximum(0.0, rates.latency / np.maximum(1, points.stages - 1) - own)
            ahead = ahead if points.copy == "tma" else ahead + barrier
            wait = np.where(points.stages == 1, wait, ahead)
        working = (compute > 0) & (steps > 0)  # and no sums over an empty range
        return np.where(working, wait / (wait + np.where(working, own, 1.0)), 0.0)

    def _life(self, tiles: Tiles, compute: Floats, read: Floats) -> Floats:
        """Seconds from the first instruction of a block without products to its last, its first loads left out, if it
        were alone."""
        rates, info = self.target.rates, self.info
        barrier = np.where(tiles.points.warps > 1, SYNC, SYNC / 2)
        first = {group[0] for group in info.groups}
        loops = [{*r.indices, *r.around} - {*info.free} for r in info.reductions if r.op in first]
        steps = sum(map(tiles.trip_count, loops))
        again = steps - len(first) + (0 if tiles.kept else tiles.trip_count(info.free) - 1)
        life = compute + again * rates.latency + len(info.reductions) * 3 * barrier
        life = life + CLUSTER_SYNC * tiles.any_of(tiles.shared, tiles.tile)
        return np.maximum(life, read / rates.block - rates.latency)

    def _combine(self, tiles: Tiles) -> Floats:
        """Seconds to combine the parts of a divided reduction, in f32."""
        rates = self.target.rates
        moved = 4.0 * self._results() * tiles.parts * 2 * len(self.info.groups[0]) if self.info.groups else 0.0
        return np.where(tiles.parts > 1, another_kernel(rates, moved / rates.cache), 0.0)
