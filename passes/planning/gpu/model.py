"""Planning model of GPUs: predicts the time of a kernel from its bytes, operations and latencies."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ....dialects.loop import LoadOp, NestOp
from ....dialects.payload import tensor_bytes
from ....dialects.support.printing import quantity
from ....dialects.tile.schedule import ScheduleAttr
from ....target.model import REGISTERS_PER_SM, Target
from ...analysis.host_memory import SCRATCH_LIMIT, limit_of
from ...analysis.operands import PRESPLIT, load_parts, parts_nest, wide_factors
from ..legality import Violation, common_violations, presplit_bytes
from ..matmul import Matmul, is_nested, loads_of, operand_loads, uses_matmul_result
from ..model import Model, Prediction, Predictions, Times, another_kernel, model_of
from ..nest_info import NestInfo
from ..points import Floats, Ints, Points, largest, total
from ..tiles import Tiles, Traffic, results_of, traffic
from .arithmetic import chain, matmul_cost, row_cost, with_interval
from .resources import Resources, resources
from .shared_launches import fusible_pairs, together
from .space import space, with_grid_swizzle

MIN_SPLIT_K_SPEEDUP = 1.1
"""Minimum predicted speedup for split-K of a matmul, because its parts take memory. Tuned by hand."""

MIN_CLUSTER_SPEEDUP = 1.05
"""Minimum predicted speedup for clusters, because their blocks must start and end together. Tuned by hand."""

TOLERANCE = 1.02
"""Schedules without matmuls count as equally fast within this multiple of the shortest time. Tuned by hand."""

OVERLAPPED_TIME_WEIGHT = 0.005
"""Weight of overlapped time in the ranking of matmuls. Breaks ties between schedules with the same bottleneck. Tuned by
hand."""

SPARE_REGISTERS = 16
"""Registers of a thread in addition to the estimate, for kernels with partial sums: `blocks_per_sm` leaves room for
them. Tuned by hand."""


class GpuModel(Model):
    """Model of the schedules of one nest on a GPU.

    The time of the busiest multiprocessor is the largest of these: operations, bytes through shared memory, and the
    critical path of its blocks, wave after wave. The time of the kernel is the norm (exponent `Rates.overlap`) of three
    times: multiprocessor, L2 bytes and memory bytes. The launch, and results that are written at the end, are added.

    Attributes:
        operands: loads that are operands of matmuls.
        results: number of elements of the result.
    """

    def __init__(self, info: NestInfo, target: Target) -> None:
        super().__init__(info, target)
        self.operands = operand_loads(self.matmuls) if self.matmuls else []
        self.results = prod(info.extents[i] for i in info.free)
        self.swizzles = bool(self.matmuls)

    def space(self, precision: str, cluster_sums: bool = False) -> Iterator[Points]:
        return space(self.info, self.target, self.matmuls, precision, cluster_sums)

    def further(self, precision: str) -> Iterable[Predictions]:
        return self._presplit() if precision == "bf16x3" and self.matmuls else ()

    def _presplit(self) -> Iterator[Predictions]:
        """Yields predictions for `f32_matmul_precision = bf16x3_presplit`: kernels of their own split the f32 operands.

        These are the predictions for `bf16x3` of a nest that loads the stored parts by asynchronous copies, plus the
        time of the kernels that split.
        """
        limit = limit_of(self.info.nest, SCRATCH_LIMIT)
        if limit is not None and presplit_bytes(self.info) > limit:
            return
        with split_ahead(self.info.nest) as (nest, makers):
            model = model_of(NestInfo(nest), self.target)
            before = sum(_seconds_to_split(maker, self.target) for maker in makers)
            for points in model.space("bf16x3") if makers else ():
                if points.copy != "sync":
                    for p in model.predict_all(points.at(points.split_k == 1)):
                        split = replace(p.points, f32_matmul_precision=PRESPLIT)
                        yield replace(p, points=split, all=replace(p.all, combine=p.all.combine + before))

    def violations(self, tiles: Tiles, products: list[Matmul]) -> list[Violation]:
        return self._violations(tiles, products, resources(self.info, tiles, self.target, products))

    def _violations(self, tiles: Tiles, products: list[Matmul], takes: Resources) -> list[Violation]:
        return [*common_violations(self.info, tiles, self.target, products), *takes.violations]

    def weighed(self, p: Predictions) -> Floats:
        seconds = p.all.seconds * (MIN_CLUSTER_SPEEDUP if p.points.cluster * p.points.cluster_k > 1 else 1.0)
        if not self.matmuls:
            return seconds
        seconds = seconds * np.where(p.points.split_k > 1, MIN_SPLIT_K_SPEEDUP, 1.0)
        return seconds + OVERLAPPED_TIME_WEIGHT * p.all.times.hidden

    @property
    def tolerance(self) -> float:
        return 0.0 if self.matmuls else TOLERANCE

    def resources_text(self, p: Prediction) -> str:
        text = f"{quantity(p.blocks, 'block')}, {p.resident} on a multiprocessor, {quantity(p.waves, 'wave')}"
        return f"{text}; {p.registers} registers, {p.shared} B shared" if p.registers else text

    def with_residency(self, schedule: ScheduleAttr, prediction: Prediction) -> ScheduleAttr:
        plain = schedule.data.atom == "fma" and not schedule.data.promotion_interval
        return schedule if plain else self._with_residency(schedule, prediction)

    def _with_residency(self, schedule: ScheduleAttr, prediction: Prediction) -> ScheduleAttr:
        """Returns the schedule with `blocks_per_sm`, for kernels on tensor cores or with partial sums.

        On tensor cores it is the predicted number of resident blocks. A kernel with partial sums on CUDA cores gets a
        smaller number, because ptxas would spill accumulators to fit more blocks. The number is 1 if the kernel also
        loads tensors that are not operands, or has several reduction indices.
        """
        decided = schedule.data
        if decided.f32_matmul_precision == PRESPLIT:
            # `prediction` is that of the nest after splitting, which loads bf16 parts. Predict this nest instead.
            prediction = self.predict(schedule)
        if decided.atom != "fma":
            return schedule.changed(blocks_per_sm=prediction.resident) if prediction.resident > 1 else schedule
        if len(self.info.loads) > len(self.operands) or len(self.info.reduction_indices) > 1:
            return schedule.changed(blocks_per_sm=1)
        threads = self.target.lanes * decided.warps
        blocks = REGISTERS_PER_SM // (threads * (prediction.registers + SPARE_REGISTERS))
        return schedule.changed(blocks_per_sm=min(blocks, prediction.resident)) if blocks > 1 else schedule

    def completed(self, points: Points, precision: str) -> Points:
        points = with_interval(
            self.info, with_grid_swizzle(self.info, points) if self.swizzles else points, self.matmuls, precision
        )
        return points if points.promotion_memory == "registers" else points.at(points.promotion_interval > 1)

    @staticmethod
    def together(ranked: Mapping[NestOp, list[Any]], target: Target) -> Iterable[tuple[NestOp, Any]]:
        for pair in fusible_pairs([*ranked]) if len(ranked) > 1 else ():
            yield from zip(pair, together(ranked[pair[0]], ranked[pair[1]], target) or (), strict=False)

    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        target, points = self.target, tiles.points
        takes = resources(self.info, tiles, target, products)
        blocks = np.maximum(1, tiles.blocks)
        at_once = takes.resident * target.sms // tiles.ranks * tiles.ranks
        moved = traffic(tiles, target, takes.resident * target.sms, self.operands)
        waves = -(-blocks // at_once)
        if products:
            times = self._matmul_times(products, tiles, takes, moved, waves)
        else:
            times = self._row_times(tiles, takes, moved, waves)
        # A persistent kernel starts to copy the next tile before the last one ends.
        if points.copy == "tma" and points.cluster_k == 1:
            at_once = at_once - at_once % points.cluster
            points = replace(points, num_ctas=np.where(tiles.blocks > at_once, at_once, 0))
        prediction = Prediction(
            times=times,
            combine=self._other_kernels(tiles),
            blocks=blocks,
            resident=takes.resident,
            waves=waves,
            registers=takes.registers,
            shared=takes.shared,
            read=moved.read,
            written=moved.written,
        )
        return Predictions(points, prediction, takes.spills, self._violations(tiles, products, takes))

    def _start(self, tiles: Tiles, counted: Any) -> Floats:
        """Returns the seconds until the first loads have arrived.

        Args:
            tiles: the schedules.
            counted: mask of the schedules for which the time of the cluster barrier is added here.
        """
        rates, points = self.target.rates, tiles.points
        barrier = rates.cluster_barrier * counted if points.cluster * points.cluster_k > 1 else 0.0
        return rates.launch + rates.ramp + barrier + np.zeros(tiles.rows)

    def _blocks_per_sm(self, tiles: Tiles) -> Ints:
        """Returns the number of blocks that the busiest multiprocessor executes in all waves."""
        return -(-np.maximum(1, tiles.blocks) // self.target.sms)

    def _row_times(self, tiles: Tiles, takes: Resources, moved: Traffic, waves: Ints) -> Times:
        """Returns the times of schedules without matmuls.

        Args:
            tiles: the schedules.
            takes: resources of a block.
            moved: bytes that the kernel moves.
            waves: rounds in which the blocks run.
        """
        rates, points, blocks_per_sm = self.target.rates, tiles.points, self._blocks_per_sm(tiles)
        cost = row_cost(self.operations([]), tiles, self.target, np.minimum(takes.resident, blocks_per_sm))
        bulk = rates.bulk if points.copy == "tma" else rates.cache
        life = self._life(tiles, cost.compute, moved.block) + rates.latency
        life = np.maximum(0.0, waves * life - rates.latency)
        memory = np.maximum((moved.read + moved.written) / rates.memory, 1e-12)
        idle = life / (life + memory)
        return Times(
            # The critical path of blocks that share rows contains the cluster barrier.
            start=self._start(tiles, ~tiles.any_of(tiles.shared, tiles.tile)),
            memory=memory / (1 - idle ** (takes.resident + 1)),
            cache=(moved.near + moved.written) / bulk,
            compute=blocks_per_sm * cost.compute,
            shared=blocks_per_sm * cost.shared,
            latency=life,
            drain=np.zeros(tiles.rows) + self._exchange(tiles, blocks_per_sm),
            overlap=rates.overlap,
        )

    def _life(self, tiles: Tiles, compute: Floats, read: Floats) -> Floats:
        """Returns the lifetime of a block without matmuls that runs alone, in seconds, without its first loads.

        Args:
            tiles: the schedules.
            compute: seconds of the block's operations.
            read: bytes that the block loads.
        """
        rates, info = self.target.rates, self.info
        barrier = np.where(tiles.points.warps > 1, rates.barrier, rates.barrier / 2)
        first = {group[0] for group in info.groups}
        loops = [{*r.indices, *r.outer_indices} - {*info.free} for r in info.reductions if r.op in first]
        steps = sum(map(tiles.trip_count, loops))
        later_loads = steps - len(first) + (0 if tiles.kept else tiles.trip_count(info.free) - 1)
        life = compute + later_loads * rates.latency + len(info.reductions) * 3 * barrier
        life = life + rates.cluster_barrier * tiles.any_of(tiles.shared, tiles.tile)
        return np.maximum(life, read / rates.block - rates.latency)

    def _matmul_times(
        self, products: list[Matmul], tiles: Tiles, takes: Resources, moved: Traffic, waves: Ints
    ) -> Times:
        """Returns the times of schedules with matmuls.

        Args:
            products: contractions that the schedules compute as matmuls.
            tiles: the schedules.
            takes: resources of a block.
            moved: bytes that the kernel moves.
            waves: rounds in which the blocks run.
        """
        target, rates, points, blocks_per_sm = self.target, self.target.rates, tiles.points, self._blocks_per_sm(tiles)
        work, together = self.operations(products), np.minimum(takes.resident, blocks_per_sm)
        cost = matmul_cost(work, tiles, target, together)
        bulk = rates.bulk if points.copy == "tma" else rates.cache
        cache, uneven = moved.near / bulk, tiles.peak - 1
        if points.copy != "tma":
            # All multiprocessors are assumed to load as much as the busiest one.
            cache = np.maximum(cache, blocks_per_sm * moved.block * target.sms / bulk)
        life = cost.alone + self._waits(products, tiles, cost.alone)
        alone = results_of(tiles) * (moved.written / max(1, self.results)) / rates.store
        drain = np.minimum(blocks_per_sm / together * alone * target.sms, np.maximum(1, tiles.blocks) * alone)
        return Times(
            start=self._start(tiles, True),
            memory=(moved.read + moved.written) / rates.memory,
            cache=cache,
            compute=blocks_per_sm * cost.compute + uneven * cost.compute,
            shared=blocks_per_sm * cost.shared,
            latency=(waves + uneven) * np.maximum(chain(work, tiles, target), life),
            drain=drain + self._exchange(tiles, blocks_per_sm),
            overlap=rates.overlap,
        )

    def _exchange(self, tiles: Tiles, blocks_per_sm: Ints) -> Floats | float:
        """Returns the seconds in which the blocks of clusters exchange accumulators (`cluster_k`).

        Args:
            tiles: the schedules.
            each: blocks that the busiest multiprocessor executes.
        """
        if tiles.points.cluster_k == 1:
            return 0.0
        target, others = self.target, tiles.ranks - 1
        return blocks_per_sm * tiles.exchanged * others / tiles.ranks * target.sms / target.rates.peer

    def _waits(self, products: list[Matmul], tiles: Tiles, compute: Floats) -> Floats:
        """Returns the seconds that a block with matmuls waits for operands and for barriers.

        In each iteration it waits for the part of a copy's latency that computation on earlier chunks does not hide. It
        waits for a whole load latency if threads compute an operand, and in reductions before the matmuls.

        Args:
            products: contractions that the schedules compute as matmuls.
            tiles: the schedules.
            compute: seconds of the block's operations.
        """
        rates, info, points = self.target.rates, self.info, tiles.points
        free = info.free
        inner = [{*p.reduction.indices, *(i for i in p.reduction.outer_indices if i not in free)} for p in products]
        steps = tiles.trip_count(free) * largest((tiles.trip_count(indices) for indices in inner), tiles.rows)
        barrier = np.where(points.warps > 1, rates.barrier, rates.barrier / 2)
        wait = load = rates.latency + 2 * barrier
        if points.copy != "sync":
            arrival = rates.bulk_latency if points.copy == "tma" else rates.latency
            exposed = np.maximum(0.0, arrival / np.maximum(1, points.stages - 1) - compute / np.maximum(1, steps))
            exposed = exposed if points.copy == "tma" else exposed + barrier
            wait = np.where(points.stages == 1, wait, exposed)
            wait = np.maximum(wait, load) if self._computes_operands(products) else wait
        if is_nested(products):
            return steps * wait
        multiplied = {p.reduction.op for p in products}
        sums = [r for r in info.reductions for group in info.groups if r.op in group and not multiplied & {*group}]
        before = total(
            (tiles.trip_count({*r.indices, *r.outer_indices} - {*free}) for r in sums if r.outermost), tiles.rows
        )
        return steps * wait + before * rates.latency

    def _computes_operands(self, products: list[Matmul]) -> bool:
        """Returns true if threads compute an operand of a matmul in every chunk, from loaded values."""
        inner = {p.reduction.op for p in self.matmuls}
        return any(
            not loads_of(f, narrow=True) and not uses_matmul_result(f, inner) for p in products for f in p.factors
        )


@contextmanager
def split_ahead(nest: NestOp) -> Generator[tuple[NestOp, list[NestOp]]]:
    """Yields a copy of `nest` that loads bf16 parts of its f32 operands, and the nests that compute these parts.

    The list of nests is empty if no operand can be split. All nests are erased afterwards.
    """
    copy = nest.clone()
    loads = wide_factors(copy)
    makers = {source: parts_nest(source) for source in dict.fromkeys(load.source for load in loads)}
    for load in loads:
        load_parts(load, makers[load.source].res)
    try:
        yield copy, list(makers.values())
    finally:
        for op in (copy, *makers.values()):
            op.erase(safe_erase=False)


def _seconds_to_split(maker: NestOp, target: Target) -> float:
    """Returns the seconds of a kernel that splits a tensor, with the gap to the next kernel."""
    sources = [op.source for op in maker.body.block.ops if isinstance(op, LoadOp)]
    moved = sum(tensor_bytes(v.type) for v in (*sources, *maker.res))
    return another_kernel(target.rates, moved / target.rates.memory)
