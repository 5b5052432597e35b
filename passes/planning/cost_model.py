"""The planning model: how long a nest would take under a schedule, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from .clusters import operand_loads
from .compute import Arithmetic
from .legality import check
from .matmul import Matmul, distinct, find_matmuls, tiled
from .nest_info import NestInfo
from .roofline import GAP, Times
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
        self.loads = Loads(info, operand_loads(self.found))
        self._arithmetic: dict[tuple[int, ...], Arithmetic] = {}

    def predict(self, schedule: ScheduleAttr) -> Prediction:
        """The time under `schedule`; raises ScheduleError if a block would need more than the target has."""
        target, rates = self.target, self.target.rates
        tiles = Tiles(self.info, schedule)
        arithmetic = self._arithmetic_of(tiles)
        products = arithmetic.products
        takes = check(self.info, tiles, schedule, target, self.found)
        blocks = max(1, tiles.blocks)
        each = -(-blocks // target.sms)
        together = min(takes.resident, each)
        cost = arithmetic.cost(tiles, schedule, target, together * schedule.warps.data)
        traffic = self.loads.traffic(tiles, target, takes.resident * target.sms)
        at_once = takes.resident * target.sms // tiles.shared.ranks * tiles.shared.ranks
        waves = -(-blocks // at_once)
        if products:
            waiting = self._waiting(products, tiles, schedule, cost.compute) ** together
            latency = waves * arithmetic.chain(tiles, schedule, target)
        else:
            life = self._life(tiles, schedule, cost.compute, traffic.block)
            waiting, latency = 0.0, waves * life + (waves - 1) * rates.latency
        bulk = rates.bulk if schedule.copy.data == "tma" else rates.cache
        element = traffic.written / max(1, self._results())
        cache = (traffic.near + (0.0 if products else traffic.written)) / bulk
        if products and schedule.copy.data != "tma":  # as if the others drew as much as the busiest
            cache = max(cache, each * traffic.block * target.sms / bulk)
        compute = each * cost.compute / (1 - waiting)
        if schedule.copy.data == "tma" and L2_CONTENTION * compute < cache:
            compute *= L2_CONTENTION_SLOWDOWN
        drain = each / together * results_of(tiles) * element * target.sms / rates.store if products else 0.0
        times = Times(
            start=rates.launch
            + rates.ramp
            + (CLUSTER_SYNC if schedule.cluster.data > 1 and not tiles.shared.indices else 0.0),
            memory=(traffic.read + traffic.written) / rates.memory,
            cache=cache,
            shared=each * cost.shared,
            compute=compute,
            latency=latency,
            drain=min(drain, blocks * results_of(tiles) * element / rates.store),
        )
        combine = self._combine(tiles)
        return Prediction(
            times, combine, blocks, takes.resident, waves, takes.registers, takes.shared, traffic.read, traffic.written
        )

    def _arithmetic_of(self, tiles: Tiles) -> Arithmetic:
        """The operations, with what are matrix products in these tiles."""
        found = tiled(self.products, tiles.tile)
        key = tuple(self.products.index(p) for p in found)
        if key not in self._arithmetic:
            self._arithmetic[key] = Arithmetic(self.info, found)
        return self._arithmetic[key]

    def _results(self) -> int:
        total = 1
        for i in self.info.free:
            total *= self.info.extents[i]
        return total

    def _waiting(self, products: list[Matmul], tiles: Tiles, schedule: ScheduleAttr, compute: float) -> float:
        """The share of its time that a block with products waits for factors or other warps, if it is alone; blocks
        that run at once fill each other's, as far as they don't wait too."""
        rates, free = self.target.rates, self.info.free
        steps = tiles.trip_count(free) * max(
            tiles.trip_count({*p.reduction.indices, *(i for i in p.reduction.around if i not in free)})
            for p in products
        )
        if compute == 0 or steps == 0:
            return 0.0  # sums over an empty range
        own, stages = compute / steps, schedule.stages.data
        barrier = SYNC if schedule.warps.data > 1 else SYNC / 2
        if schedule.copy.data == "sync" or stages == 1:
            wait = rates.latency + 2 * barrier
        else:
            ahead = max(0.0, rates.latency / (stages - 1) - own)
            wait = ahead if schedule.copy.data == "tma" else ahead + barrier
        return wait / (wait + own)

    def _life(self, tiles: Tiles, schedule: ScheduleAttr, compute: float, read: float) -> float:
        """Seconds from the first instruction of a block without products to its last, its first loads left out, if it
        were alone."""
        rates, info = self.target.rates, self.info
        barrier = SYNC if schedule.warps.data > 1 else SYNC / 2
        first = self._first_of_groups
        steps = sum(tiles.trip_count({*r.indices, *r.around} - {*info.free}) for r in info.reductions if r.op in first)
        again = steps - len(first) + (0 if tiles.kept else tiles.trip_count(info.free) - 1)
        life = compute + again * rates.latency + len(info.reductions) * 3 * barrier
        life += CLUSTER_SYNC if tiles.shared.indices else 0.0
        return max(life, read / rates.block - rates.latency)

    @property
    def _first_of_groups(self) -> set[object]:
        return {group[0] for group in self.info.groups}

    def _combine(self, tiles: Tiles) -> float:
        """Seconds to combine the parts of a divided reduction, in f32."""
        if tiles.parts == 1:
            return 0.0
        rates = self.target.rates
        moved = 4.0 * self._results() * tiles.parts * 2 * len(self.info.groups[0])
        return GAP + rates.launch + rates.ramp + moved / rates.cache
