"""Lowers TMA copies: loads through circular buffers between warp-specialised partitions, and stores of results.

A *ring* (`tile.ring`) is a circular buffer of slots in shared memory with two mbarriers per slot. The module docstring
of `dialects/kernel/barriers.py` describes the protocol. Each partition has a *cursor* in each ring: the number of its
slot and its phase. Every loop that uses a ring carries the cursor.

A *box* is the part of a tile that one TMA instruction copies: one panel, whose rows are as long as the swizzle.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import reduce

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Block, Region, SSAValue

from ....dialects import kernel, tile
from ....dialects.layouts import shared_of_type
from ....dialects.layouts.linear import LANE_BITS, LANES, Linear, Shared, log2
from ....dialects.layouts.mma import Boxes, boxes_of, part_of_group
from ....dialects.payload import element_bytes, element_type, shape_of
from ....dialects.shapes.affine import DIM, number_of
from ....dialects.shapes.extents import extents_of
from ....dialects.support.locations import refused
from ....dialects.tile.copies import box_dimensions, slots_of, tiles_of
from ...analysis.async_copies import divides
from .emitter import LOOP_STATES, Index, LoopState, Lowering, lowers
from .memory import Places, SharedBufferPool, groups_apart


class Queue:
    """Lowered ring, with the cursor of the partition that is being lowered.

    Attributes:
        slots: number of slots.
        tiles: shared layout and element type of each tile in a slot.
        buffers: shared buffer for each tile, with all slots.
        full, empty: mbarriers of the slots.
        per_warpgroup: true if only `wgmma` reads the tiles. Then one thread per warpgroup releases a slot, otherwise
            every thread does.
        cluster: number of blocks that fill a slot together by multicast loads. Then the producer of each of them waits
            for the consumers of all.
        slot, phase: the cursor.
        taken: block of the `tile.consumer_wait` whose slot is not released yet.
        late: slot that is released in the next iteration, because dots in flight still read it.
    """

    def __init__(self, out: Lowering, ring: SSAValue) -> None:
        self.slots, hint = slots_of(ring), ring.name_hint or "ring"
        self.tiles: list[tuple[Shared, Attribute]] = [(shared_of_type(t), element_type(t)) for t in tiles_of(ring)]
        self.buffers = [out.at_head(kernel.SharedOp(e, self.slots * s.size), hint) for s, e in self.tiles]
        self.full, self.empty = (
            out.at_head(kernel.SharedOp(kernel.MbarrierType(), self.slots), name) for name in ("full", "empty")
        )
        users = [u.operation for u in ring.uses]
        taken = [u.operation for o in users if isinstance(o, tile.ConsumerWaitOp) for r in o.res for u in r.uses]
        boxes = [t.owner for o in users if isinstance(o, tile.ProducerLoadOp) for t in o.tiles]
        common = any(isinstance(b, tile.TmaLoadOp) and b.multicast is not None for b in boxes)
        self.per_warpgroup = all(isinstance(o, tile.DotAsyncOp) for o in taken)
        self.cluster = out.op.cluster_size if common else 1
        self.slot: Index = 0
        self.phase: Index = 0
        self.taken: Block | None = None
        self.late: Index | None = None

    def advance(self, out: Lowering) -> None:
        """Emits the step of the cursor to the next slot."""
        op = out.add_op(kernel.AdvanceOp(out.value(self.slot), out.value(self.phase), self.slots))
        self.go_to(op.next_slot, op.next_phase)

    def go_to(self, slot: SSAValue, phase: SSAValue) -> None:
        slot.name_hint, phase.name_hint = "slot", "phase"
        self.slot, self.phase = slot, phase


def queues(op: tile.KernelOp) -> dict[SSAValue, Queue]:
    """Returns an empty table, ring at the tile level -> `Queue`, as the state of a kernel."""
    return {}


@lowers(tile.RingOp)
def ring(out: Lowering, op: tile.RingOp) -> None:
    out.state(queues)[op.result] = Queue(out, op.result)


@lowers(tile.WarpSpecializeOp)
def warp_specialize(out: Lowering, op: tile.WarpSpecializeOp) -> None:
    """Lowers the partitions. The warps of the consumer come first, so its threads keep their numbers.

    One thread of the producer works. Before the partitions start, one thread of the block initialises all mbarriers.
    """
    rings = list(out.state(queues).values())
    with out.when(out.compare("eq", out.id("thread"), 0, "first")):
        for q in rings:
            arrivals = (out.warps // kernel.WARPGROUP if q.per_warpgroup else out.warps * LANES) * q.cluster
            for slot in range(q.slots):
                out.add_op(kernel.MbarInitOp(q.full, out.value(slot), 1))
                out.add_op(kernel.MbarInitOp(q.empty, out.value(slot), arrivals))
        out.add_op(kernel.FenceMbarInitOp())
    clustered = any(q.cluster > 1 for q in rings)
    out.add_op(kernel.ClusterBarrierOp() if clustered else kernel.BarrierOp())
    consumer, producer = Block(arg_types=[IndexType()]), Block(arg_types=[IndexType()])
    for block in (consumer, producer):
        block.args[0].name_hint = "w"
    with out.inside(consumer):
        out.lower_block(op.consumer.block)
    for q in rings:
        q.slot = q.phase = 0
    with out.inside(producer), out.when(out.compare("eq", out.id("thread"), LANES * out.warps, "elected")):
        out.lower_block(op.producer.block)
    out.producers = op.warps.data
    out.location = op.location
    programs, warps = [Region(consumer), Region(producer)], [out.warps, out.producers]
    out.add_op(kernel.WarpSpecializeOp(["consumer", "producer"], warps, op.registers, programs))
    # No block may end while other blocks can still write to its slots or arrive at its mbarriers.
    if clustered:
        out.add_op(kernel.ClusterBarrierOp())


@lowers(tile.ConsumerWaitOp)
def consumer_wait(out: Lowering, op: tile.ConsumerWaitOp) -> None:
    """Lowers the wait for a full slot; its tiles become views of the buffers."""
    queue = out.state(queues)[op.ring]
    if queue.taken is not None:
        raise refused(op, "expected a release of the last stage before the next wait")
    queue.taken = out.block
    out.add_op(kernel.MbarWaitOp(queue.full, out.value(queue.slot), out.value(queue.phase)))
    for buffer, (shared, _), result in zip(queue.buffers, queue.tiles, op.res, strict=True):
        offset = out.value(out.mul(queue.slot, shared.size))
        view = kernel.SubviewOp(buffer, offset, shared.size)
        out.values[result] = out.emit(view, result.name_hint or "taken")


@lowers(tile.ConsumerReleaseOp)
def consumer_release(out: Lowering, op: tile.ConsumerReleaseOp) -> None:
    """Lowers the release of a slot, if the condition holds; advances the cursor if a slot was taken in this block."""
    queue, condition = out.state(queues)[op.ring], out.maybe(op.condition)
    goes_on = queue.taken is not None
    slot = queue.late if op.is_late or not goes_on else queue.slot
    if slot is None or queue.taken not in (None, out.block):
        raise refused(op, "expected a release of a stage in the block that waited for it")
    _arrive(out, queue, out.value(slot), condition)
    queue.late = queue.slot if op.is_late else None
    queue.taken = None
    if goes_on:
        queue.advance(out)


def _arrive(out: Lowering, queue: Queue, slot: SSAValue, condition: SSAValue | None) -> None:
    """Emits the arrival at the `empty` mbarrier of a slot, in all blocks that fill the slot together.

    Args:
        out: the lowering.
        queue: the ring.
        slot: number of the slot.
        condition: condition of the release, if any.
    """
    ranks: list[SSAValue | None] = [None]
    # The first `cluster` threads of a warpgroup arrive, each at the mbarrier of one block.
    if queue.per_warpgroup:
        thread = out.value(out.rem(out.id("thread"), LANES * kernel.WARPGROUP))
        ranks = [thread] if queue.cluster > 1 else ranks
        elected = out.compare(*(("lt", thread, queue.cluster) if queue.cluster > 1 else ("eq", thread, 0)), "elected")
        condition = elected if condition is None else out.emit(arith.AndIOp(elected, condition), "free")
    elif queue.cluster > 1:
        ranks = [out.value(rank) for rank in range(queue.cluster)]
    with nullcontext() if condition is None else out.when(condition):
        for rank in ranks:
            shared = queue.per_warpgroup and rank is not None
            out.add_op(kernel.MbarArriveOp(queue.empty, slot, rank, asynchronous=shared))


@lowers(tile.TmaLoadOp)
def box(out: Lowering, op: tile.TmaLoadOp) -> None:
    """Emits nothing: `producer_load` starts the copy, because it knows the slot."""


@lowers(tile.ProducerLoadOp)
def producer_load(out: Lowering, op: tile.ProducerLoadOp) -> None:
    """Emits a wait for an empty slot, announces the bytes at the `full` mbarrier, and starts the copies."""
    queue = out.state(queues)[op.ring]
    slot = out.value(queue.slot)
    out.add_op(kernel.MbarWaitOp(queue.empty, slot, out.value(out.xor(queue.phase, 1))))
    total = sum(shared.size * element_bytes(element) for shared, element in queue.tiles)
    out.add_op(kernel.MbarExpectOp(queue.full, slot, total))
    for value, buffer, (shared, _) in zip(op.tiles, queue.buffers, queue.tiles, strict=True):
        assert isinstance(value.owner, tile.TmaLoadOp)
        _load(out, value.owner, buffer, out.mul(queue.slot, shared.size), shared, queue)
    queue.advance(out)


def _load(out: Lowering, op: tile.TmaLoadOp, buffer: SSAValue, place: Index, shared: Shared, queue: Queue) -> None:
    """Emits the copies of a tile to a slot, one box per panel.

    With multicast each block copies its share of the rows to all blocks of the cluster.

    Args:
        out: the lowering.
        op: the load.
        buffer: shared buffer of the tile.
        place: offset of the slot in `buffer`, in elements.
        shared: layout of the tile.
        queue: the ring.
    """
    boxes, shape = _boxes(op, op.result), list(shape_of(op.result.type))
    row_bytes, first = boxes.row * element_bytes(op.result.type), 0
    ranks = range(queue.cluster if op.multicast is not None else 0)
    if ranks:
        if not divides(shape[1 - boxes.fast], row_bytes, len(ranks)):
            raise refused(op, f"has no {len(ranks)} parts that start where a swizzle does")
        shape[1 - boxes.fast] //= len(ranks)
        first = out.mul(out.id("rank"), shape[1 - boxes.fast])
    tensor_map = _tensor_map(out, op, op.source, boxes, shape[1 - boxes.fast])
    for start in range(0, shape[boxes.fast], boxes.row):
        coordinates = _coordinates(out, op, op.result, [start if d == boxes.fast else first for d in range(2)])
        inside = out.add(out.add(place, _panel(shared, boxes, start)), out.mul(first, boxes.row))
        where, slot = out.value(inside), out.value(queue.slot)
        out.add_op(kernel.TmaLoadOp(tensor_map, coordinates, buffer, where, queue.full, slot, ranks or None))


@lowers(tile.TmaStoreOp)
def tma_store(out: Lowering, op: tile.TmaStoreOp) -> None:
    """Lowers the store of a staged tile: one thread starts the copies of all boxes, as one bulk group.

    If each warpgroup staged a part of the tile that consists of whole boxes, one thread per warpgroup stores its part.
    """
    stage, buffer = op.value.owner, out.of(op.value)
    if not isinstance(stage, tile.StageOp):
        raise refused(op, "expected a tile that tile.stage has put into shared memory")
    shared, boxes = shared_of_type(op.value.type), _boxes(op, op.value)
    groups = groups_apart(shared, out.layout(stage.source))
    part = part_of_group(shared.shape, groups) or shared.shape
    if part[boxes.fast] < boxes.row:
        groups, part = (), shared.shape
    tensor_map = _tensor_map(out, op, op.target, boxes, part[1 - boxes.fast])
    skipped = [0] * (LANE_BITS + log2(kernel.WARPGROUP))
    first = [out.thread_bits([*skipped, *(b[d] for b in groups)]) for d in range(2)]
    start = out.thread_bits([*skipped, *(shared.place(b) for b in groups)])
    thread = out.rem(out.id("thread"), LANES * kernel.WARPGROUP) if groups else out.id("thread")
    with out.when(out.compare("eq", thread, 0, "elected")):
        for panel in range(0, part[boxes.fast], boxes.row):
            at = [out.add(first[d], panel if d == boxes.fast else 0) for d in range(2)]
            coordinates = _coordinates(out, op, op.value, at)
            where = out.value(out.add(start, _panel(shared, boxes, panel)))
            out.add_op(kernel.TmaStoreOp(buffer, where, tensor_map, coordinates))
        out.add_op(kernel.BulkCommitOp())
    out.state(SharedBufferPool).give(buffer)


Move = tile.TmaLoadOp | tile.TmaStoreOp


def _tensor_map(out: Lowering, op: Move, memory: SSAValue, boxes: Boxes, rows: int) -> SSAValue:
    """Returns the TMA tensor map of a buffer.

    Args:
        out: the lowering.
        op: the load or store.
        memory: the buffer, at the tile level.
        boxes: layout of the tile in shared memory.
        rows: rows of a box.
    """
    if (dimensions := box_dimensions(op.map.data)) is None:
        raise refused(op, "expected a 2-D tile with a TMA layout")
    buffer = out.of(memory)
    extents = [1] * len(extents_of(buffer.type))
    extents[dimensions[boxes.fast]], extents[dimensions[1 - boxes.fast]] = boxes.row, rows
    t = kernel.TensorMapType.get(extents, element_type(buffer.type), boxes.swizzle)
    return out.at_head(kernel.TensorMapOp(buffer, t), f"{buffer.name_hint or 'x'}_map", key=(buffer, t))


def _boxes(op: Move, tile: SSAValue) -> Boxes:
    boxes = boxes_of(shared_of_type(tile.type), element_bytes(tile.type))
    if boxes is None:
        raise refused(op, "expected a 2-D tile with a TMA layout")
    return boxes


def _panel(shared: Shared, boxes: Boxes, start: int) -> int:
    """Returns the offset, in elements, of the panel that begins at `start` of the contiguous dimension."""
    return shared.place((start, 0) if boxes.fast == 0 else (0, start))


def _coordinates(out: Lowering, op: Move, tile: SSAValue, at: Sequence[Index]) -> list[SSAValue]:
    """Returns the coordinates in global memory of the first element of a box.

    Args:
        out: the lowering.
        op: the load or store.
        tile: the tile.
        at: indices of the element in the tile.
    """
    places, coordinates = Places(out, op, Linear(shape_of(tile.type), (), (), ())), list[SSAValue]()
    for form in map(places.form, op.map.data.results):
        factors = [(at[number_of(a)] if a[0] == DIM else places.scalar(a), factor) for a, factor in form.terms]
        coordinates.append(out.value(reduce(out.add, [*(out.mul(*f) for f in factors), form.constant])))
    return coordinates


class Cursors(LoopState):
    """State of a loop that uses rings: the cursor of each ring.

    For a ring whose slots are released one iteration late, the loop also carries the number of the slot that is not
    released yet. Its initial value is arbitrary, since the first release has no effect.
    """

    def __init__(self, out: Lowering, op: scf.ForOp) -> None:
        users = (tile.ProducerLoadOp, tile.ConsumerWaitOp, tile.ConsumerReleaseOp)
        rings = dict.fromkeys(o.ring for o in op.walk() if isinstance(o, users))
        releases = [o for o in op.body.block.ops if isinstance(o, tile.ConsumerReleaseOp)]
        self.out, self.queues = out, [out.state(queues)[ring] for ring in rings]
        self.late = [out.state(queues)[o.ring] for o in releases if o.is_late]
        for q in self.late:
            q.late = q.slot

    def entry(self) -> list[SSAValue]:
        late = [q.late for q in self.late if q.late is not None]
        return [self.out.value(v) for v in (*(v for q in self.queues for v in (q.slot, q.phase)), *late)]

    def bind(self, carried: Sequence[SSAValue], values: Sequence[SSAValue], inside: bool) -> None:
        cursors = values[: 2 * len(self.queues)]
        for q, slot, phase in zip(self.queues, cursors[::2], cursors[1::2], strict=True):
            q.go_to(slot, phase)
        for q, slot in zip(self.late, values[len(cursors) :], strict=True):
            slot.name_hint = "last"
            q.late = slot

    def next(self, carried: Sequence[SSAValue]) -> list[SSAValue]:
        return self.entry()


LOOP_STATES[tile.RingOp] = Cursors
