"""The planning model: how long a nest would take under a schedule, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from ...dialects.tile.schedule import ScheduleAttr
from ...target.model import Target
from ..analysis.packed_operands import copies
from .candidates import candidates
from .compute import Arithmetic
from .core_time import CoreTime
from .legality import Violation, check, check_on_core, raise_first, violated
from .matmul import Matmul, by_products, contiguous_alternatives, distinct, find_matmuls, is_nested
from .nest_info import NestInfo
from .points import Bools, Floats, Points, largest, plan_of, points_of, total
from .roofline import Times, another_kernel
from .staging import is_kept, loads_of, operand_loads
from .tiles import Tiles
from .traffic import results_of, traffic

UNEVEN = 0.25
"""Blocks that the core which is ready last works on alone: they do not all take equally long."""


@dataclass(frozen=True)
class Prediction:
    """What a schedule would give; columns, with a row for each, for several schedules.

    times      seconds by what they go to
    combine    seconds of other kernels: of one that combines the parts of a divided reduction, or that splits factors
    blocks     blocks of the grid; `resident` of them run at once on a multiprocessor, in `waves` one after the other
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
        """How long it takes in all."""
        return self.times.seconds + self.combine

    @property
    def limit(self) -> str:
        """What most of the time goes to."""
        return "other kernels" if self.combine > self.times.seconds else self.times.limit

    def at(self, row: int) -> Prediction:
        """That for one schedule."""
        columns = {name: v[row].item() for name, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, times=self.times.at(row), **columns)


@dataclass(frozen=True)
class Predictions:
    """What some schedules would give, which of them would spill registers, and what speaks against them."""

    points: Points
    all: Prediction
    spills: Bools
    violations: list[Violation]

    @cached_property
    def violated(self) -> Bools:
        """Which of the schedules cannot be carried out."""
        return violated(self.violations, len(self.points))

    def at(self, row: int) -> Prediction:
        """The prediction for one schedule. Raises ScheduleError if it cannot be carried out."""
        raise_first(self.violations, row)
        return self.all.at(row)


class Model:
    """Predicts schedules of one nest on one target.

    The busiest multiprocessor takes the longest of its operations, of its bytes through shared memory, and of the
    lives of its blocks, wave by wave. A kernel takes the norm of this time and of those for bytes from the level-2
    cache and from memory, by the exponent `Rates.overlap`; in addition to a launch, and to results that are written at
    the end with nothing else to do. The rates are those of `target/model.py`; those of the H200 were fitted to
    measured times by `benchmarks/gpu/fit.py`.
    """

    def __init__(self, info: NestInfo, target: Target) -> None:
        self.info = info
        self.target = target
        self.results = prod(info.extents[i] for i in info.free)
        self.found = find_matmuls(info) if info.reductions else []
        """All products, as a schedule has extents for them."""
        self.products = distinct(info, self.found) if self.found else []
        if target.core is not None and self.products:
            self.products += contiguous_alternatives(info, self.products)
        self.operands = operand_loads(self.found) if self.found else []
        self._arithmetic = cache(lambda *products: Arithmetic(info, [*products]))
        self._copies = cache(self._models_of_copies)

    def on(self, target: Target) -> Model:
        """The same for another target."""
        found = copy(self)
        found.target = target
        return found

    def predict(self, schedule: ScheduleAttr) -> Prediction:
        """The time under `schedule`; raises ScheduleError if it cannot be carried out."""
        (points,) = points_of([plan_of(schedule)])
        (found,) = self.predict_all(points)
        return found.at(0)

    def predict_all(self, points: Points) -> Iterator[Predictions]:
        """The times under schedules, those together that have the same matrix products."""
        tiles = Tiles(self.info, points)
        predict = self._predict if self.target.core is None else self._predict_on_cores
        if not self.products:
            yield predict([], tiles)
            return
        for products, rows in by_products(self.products, tiles):
            yield predict(products, tiles if rows.all() else Tiles(self.info, points.at(rows)))

    def _predict_on_cores(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        """The times where a block is one task of a core. Cores work next to each other, if that is worth waking them,
        and what one of them waits for its own caches it does not compute."""
        target, rates, core = self.target, self.target.rates, self.target.core
        assert core is not None
        none, blocks = np.zeros(tiles.rows, dtype=np.int64), np.maximum(1, tiles.blocks)
        waves = -(-blocks // target.sms)
        moved = traffic(tiles, target, none + target.sms, ())
        time = CoreTime(self.info, self._arithmetic(*products), core, target)
        work = time.seconds(tiles)
        shared = rates.launch + work * (waves + UNEVEN) / blocks
        one = work <= shared
        read, store = (rates.cache, rates.cache) if time.fits else (rates.memory, rates.store)
        loaded = np.minimum(moved.read, moved.near) / read * np.where(one, target.sms, 1)  # not what is past an end
        memory = loaded + moved.written / store * np.where(one, target.sms, 1)
        start = np.where(one, 0.0, rates.launch)
        compute = np.minimum(work, shared) - start + time.exposed(tiles) * loaded
        nothing = 0.0 * memory
        times = Times(start, memory, nothing, compute, nothing, nothing, nothing)
        taken = (blocks, none + 1, waves, none, none, moved.read, moved.written)
        found = Prediction(times, self._others(tiles), *taken)
        return Predictions(tiles.points, found, none > 0, check_on_core(self.info, tiles, target))

    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        target, rates, points = self.target, self.target.rates, tiles.points
        arithmetic = self._arithmetic(*products)
        takes, violations = check(self.info, tiles, target, products)
        blocks = np.maximum(1, tiles.blocks)
        each = -(-blocks // target.sms)
        together = np.minimum(takes.resident, each)
        cost = arithmetic.cost(tiles, target, together)
        moved = traffic(tiles, target, takes.resident * target.sms, self.operands)
        at_once = takes.resident * target.sms // tiles.ranks * tiles.ranks
        waves = -(-blocks // at_once)
        bulk = rates.bulk if points.copy == "tma" else rates.cache
        memory = (moved.read + moved.written) / rates.memory
        element = moved.written / max(1, self.results)
        compute, cache, drain = each * cost.compute, moved.near / bulk, np.zeros(tiles.rows)
        if products:
            uneven = tiles.peak - 1
            compute = compute + uneven * cost.compute
            life = cost.alone + self._waits(products, tiles, cost.alone)
            latency = (waves + uneven) * np.maximum(arithmetic.chain(tiles, target), life)
            alone = results_of(tiles) * element / rates.store
            drain = np.minimum(each / together * alone * target.sms, blocks * alone)
            if points.copy != "tma":  # as if the others drew as much as the busiest
                cache = np.maximum(cache, each * moved.block * target.sms / bulk)
        else:
            life = np.maximum(
                0.0, waves * (self._life(tiles, cost.compute, moved.block) + rates.latency) - rates.latency
            )
            cache = (moved.near + moved.written) / bulk
            memory = np.maximum(memory, 1e-12)
            idle = life / (life + memory)
            latency, memory = life, memory / (1 - idle ** (takes.resident + 1))
        if points.cluster_k > 1:  # a block reads its part of the sums of the others
            drain = drain + each * tiles.exchanged * (tiles.ranks - 1) / tiles.ranks * target.sms / rates.peer
        counted = bool(products) | ~tiles.any_of(tiles.shared, tiles.tile)  # others have it in their lives
        meeting = rates.cluster_barrier * counted if points.cluster * points.cluster_k > 1 else 0.0
        times = Times(
            start=rates.launch + rates.ramp + meeting + np.zeros(tiles.rows),
            memory=memory,
            cache=cache,
            compute=compute,
            shared=each * cost.shared,
            latency=latency,
            drain=drain,
            overlap=rates.overlap,
        )
        # Blocks of the next tiles would copy only when those of the last have ended.
        if points.copy == "tma" and points.cluster_k == 1:
            at_once -= at_once % points.cluster
            points = replace(points, num_ctas=np.where(tiles.blocks > at_once, at_once, 0))
        found = Prediction(
            times,
            self._others(tiles),
            blocks,
            takes.resident,
            waves,
            takes.registers,
            takes.shared,
            moved.read,
            moved.written,
        )
        return Predictions(points, found, takes.spills, violations)

    def _waits(self, products: list[Matmul], tiles: Tiles, compute: Floats) -> Floats:
        """Returns the seconds that a block with products waits for operands and other warps, with `compute` seconds of
        work: in each step the part of a copy's latency that the work on earlier chunks does not cover. Operands that
        threads compute, and sums before the products, wait for their loads in each step."""
        rates, info, points = self.target.rates, self.info, tiles.points
        free = info.free
        inner = [{*p.reduction.indices, *(i for i in p.reduction.around if i not in free)} for p in products]
        steps = tiles.trip_count(free) * largest((tiles.trip_count(indices) for indices in inner), tiles.rows)
        barrier = np.where(points.warps > 1, rates.barrier, rates.barrier / 2)
        wait = load = rates.latency + 2 * barrier
        if points.copy != "sync":
            arrival = rates.bulk_latency if points.copy == "tma" else rates.latency
            ahead = np.maximum(0.0, arrival / np.maximum(1, points.stages - 1) - compute / np.maximum(1, steps))
            ahead = ahead if points.copy == "tma" else ahead + barrier
            wait = np.where(points.stages == 1, wait, ahead)
            wait = np.maximum(wait, load) if self._computes_operands(products) else wait
        if is_nested(products):
            return steps * wait
        multiplied = {p.reduction.op for p in products}
        sums = [r for r in info.reductions for group in info.groups if r.op in group and not multiplied & {*group}]
        before = total((tiles.trip_count({*r.indices, *r.around} - {*free}) for r in sums if r.outermost), tiles.rows)
        return steps * wait + before * rates.latency

    def _computes_operands(self, products: list[Matmul]) -> bool:
        """Returns true if threads compute an operand of a product chunk by chunk, from what they load."""
        inner = {p.reduction.op for p in self.found}
        return any(not loads_of(f, narrow=True) and not is_kept(f, inner) for p in products for f in p.factors)

    def _life(self, tiles: Tiles, compute: Floats, read: Floats) -> Floats:
        """Seconds from the first instruction of a block without products to its last, its first loads left out, if it
        were alone."""
        rates, info = self.target.rates, self.info
        barrier = np.where(tiles.points.warps > 1, rates.barrier, rates.barrier / 2)
        first = {group[0] for group in info.groups}
        loops = [{*r.indices, *r.around} - {*info.free} for r in info.reductions if r.op in first]
        steps = sum(map(tiles.trip_count, loops))
        again = steps - len(first) + (0 if tiles.kept else tiles.trip_count(info.free) - 1)
        life = compute + again * rates.latency + len(info.reductions) * 3 * barrier
        life = life + rates.cluster_barrier * tiles.any_of(tiles.shared, tiles.tile)
        return np.maximum(life, read / rates.block - rates.latency)

    def _others(self, tiles: Tiles) -> Floats:
        """Seconds of the kernels before and behind."""
        return self._combine(tiles) + sum(map(self._seconds_to_pack, tiles.points.pack))

    def _combine(self, tiles: Tiles) -> Floats:
        """Seconds to combine the parts of a divided reduction, in f32."""
        rates = self.target.rates
        moved = 4.0 * self.results * tiles.parts * 2 * len(self.info.groups[0]) if self.info.groups else 0.0
        return np.where(tiles.parts > 1, another_kernel(rates, moved / rates.cache), 0.0)

    def _seconds_to_pack(self, position: int) -> float:
        """Seconds of the kernels that copy what is loaded along a free index, each with its best schedule."""
        seconds = 0.0
        for model, points in self._copies(position):
            found = [p for some in points for p in model.on(self.target).predict_all(some)]
            seconds += self.target.rates.gap + min(float(p.all.seconds[~p.violated].min(initial=np.inf)) for p in found)
        return seconds

    def _models_of_copies(self, position: int) -> list[tuple[Model, list[Points]]]:
        """For each of these kernels its model, and its schedules."""
        infos = [NestInfo(nest) for nest in copies(self.info.nest, self.info.free[position])]
        return [(Model(info, self.target), [*candidates(info, self.target, [], "ieee")]) for info in infos]
