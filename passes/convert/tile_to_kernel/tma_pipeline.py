"""Rings between partitions, at the kernel level: slots in shared memory, two mbarriers a slot, and a cursor in each
partition.

See `dialects/kernel/mbarrier.py` for how a ring works. The cursor, a slot and its phase, is carried by every loop that
puts into the ring or takes from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)

from ....dialects import kernel, payload, tile
from ....dialects.kernel.mbarrier import MbarrierType
from ....dialects.kernel.tma import TensorMapType
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.layouts.linear import LANES, Shared
from ....dialects.layouts.wgmma import Boxes, boxes_of
from ....dialects.payload import element_bytes, element_type, shape_of
from ....dialects.shapes.extents import extents_of
from ....dialects.support.locations import refused
from ....dialects.tile.async_copy import TmaStoreOp, box_dimensions
from ....dialects.tile.warp_specialize import ConsumerReleaseOp, ConsumerWaitOp, ProducerLoadOp, RingType, TmaLoadOp
from ....errors import ScheduleError
from ...analysis.tile_layouts import shared_of_type
from ...analysis.tma_tiles import divides
from .emitter import Emitter, Index


@dataclass
class Queue:
    """One ring: a buffer of slots for each of its tiles, the barriers, and where the partition that is being lowered
    is.

    `per_warpgroup`: everybody who reads the tiles is a product of warpgroups, so one thread of each gives a slot back;
    otherwise every thread does. `cluster` blocks fill the slots together, if it is more than one: then each has to know
    from the consumers of all of them that a slot is free. `late` is the slot of a group that stays taken into the next
    iteration.
    """

    type: RingType
    buffers: list[SSAValue]
    full: SSAValue
    empty: SSAValue
    per_warpgroup: bool
    cluster: int = 1
    slot: Index = 0
    phase: Index = 0
    taken: Block | None = None
    late: Index | None = None

    @property
    def slots(self) -> int:
        """How many groups of tiles there is room for."""
        return self.type.slots.data

    @property
    def tiles(self) -> list[tuple[Shared, Attribute]]:
        """Layout and element type of each tile of a group."""
        return [(shared_of_type(t), element_type(t)) for t in self.type.tiles]

    def advance(self, out: Emitter) -> None:
        """Go on to the next slot."""
        op = out.add_op(kernel.AdvanceOp(out.value(self.slot), out.value(self.phase), self.slots))
        op.next_slot.name_hint, op.next_phase.name_hint = "slot", "phase"
        self.slot, self.phase = op.results


def make_queue(out: Emitter, ring: SSAValue, cluster: int) -> Queue:
    """Room for the ring in shared memory, in a kernel with clusters of so many blocks."""
    assert isinstance(ring.type, RingType)
    slots = ring.type.slots.data
    hint = ring.name_hint or "ring"
    buffers = [
        out.allocate(kernel.SharedOp(element_type(t), slots * shared_of_type(t).size), hint) for t in ring.type.tiles
    ]
    full = out.allocate(kernel.SharedOp(MbarrierType(), slots), "full")
    empty = out.allocate(kernel.SharedOp(MbarrierType(), slots), "empty")
    return Queue(ring.type, buffers, full, empty, _only_wgmma(ring), cluster if _is_common(ring) else 1)


def _is_common(ring: SSAValue) -> bool:
    """Whether boxes for all blocks of a cluster are put into a ring."""
    puts = [u.operation for u in ring.uses if isinstance(u.operation, ProducerLoadOp)]
    boxes = [t.owner for p in puts for t in p.tiles]
    return any(isinstance(b, TmaLoadOp) and b.multicast is not None for b in boxes)


def _only_wgmma(ring: SSAValue) -> bool:
    """Whether whatever is taken from a ring is read by products of warpgroups alone."""
    readers: list[Operation] = []
    for use in ring.uses:
        if isinstance(use.operation, ConsumerWaitOp):
            readers += [u.operation for r in use.operation.res for u in r.uses]
    return all(isinstance(r, tile.DotAsyncOp) for r in readers)


def set_up(out: Emitter, queues: Sequence[Queue], warps: int) -> None:
    """Let one thread initialise all barriers, before the partitions begin. `warps` are the consumer's."""
    with out.when(out.emit(payload.CmpOp("eq", out.id("thread"), out.value(0)), "first")):
        for q in queues:
            arrivals = (warps // WARPGROUP if q.per_warpgroup else warps * LANES) * q.cluster
            for slot in range(q.slots):
                out.add_op(kernel.MbarInitOp(q.full, out.value(slot), 1))
                out.add_op(kernel.MbarInitOp(q.empty, out.value(slot), arrivals))
        out.add_op(kernel.FenceMbarInitOp())
    out.add_op(kernel.ClusterBarrierOp() if any(q.cluster > 1 for q in queues) else kernel.BarrierOp())


def tear_down(out: Emitter, queues: Sequence[Queue]) -> None:
    """Let no block end while others may still fill its slots or tell it of free ones."""
    if any(q.cluster > 1 for q in queues):
        out.add_op(kernel.ClusterBarrierOp())


def take(out: Emitter, op: ConsumerWaitOp, queue: Queue) -> list[SSAValue]:
    """Wait for the next group; the places of its tiles."""
    if queue.taken is not None:
        raise refused(op, "takes from a ring before what was taken last is given back")
    queue.taken = out.block
    out.add_op(kernel.MbarWaitOp(queue.full, out.value(queue.slot), out.value(queue.phase)))
    places: list[SSAValue] = []
    for buffer, (shared, _), result in zip(queue.buffers, queue.tiles, op.res, strict=True):
        offset = out.value(out.mul(queue.slot, shared.size))
        places.append(out.emit(kernel.SubviewOp(buffer, offset, shared.size), result.name_hint or "taken"))
    return places


def release(out: Emitter, op: ConsumerReleaseOp, queue: Queue, condition: SSAValue | None) -> None:
    """Give a slot back, where the condition holds; and go on to the next, unless that was done where it was taken."""
    goes_on = queue.taken is not None
    slot = queue.late if op.is_late or not goes_on else queue.slot
    if slot is None or queue.taken not in (None, out.block):
        raise refused(op, "gives back what is taken elsewhere")
    _arrive(out, queue, out.value(slot), condition)
    queue.late = queue.slot if op.is_late else None
    queue.taken = None
    if goes_on:
        queue.advance(out)


def _arrive(out: Emitter, queue: Queue, slot: SSAValue, condition: SSAValue | None) -> None:
    """Tell the producer, or those of all blocks that fill the slot together, that it is free."""
    conditions: list[SSAValue] = [] if condition is None else [condition]
    arrivals = [
        kernel.MbarArriveOp(queue.empty, slot, out.value(rank) if queue.cluster > 1 else None)
        for rank in range(0 if queue.per_warpgroup else queue.cluster)
    ]
    if queue.per_warpgroup:
        thread = out.value(out.rem(out.id("thread"), LANES * WARPGROUP))
        if queue.cluster > 1:  # the first threads of a warpgroup tell one block each
            first = payload.CmpOp("lt", thread, out.value(queue.cluster))
            arrivals = [kernel.MbarArriveOp(queue.empty, slot, thread, asynchronous=True)]
        else:
            first = payload.CmpOp("eq", thread, out.value(0))
            arrivals = [kernel.MbarArriveOp(queue.empty, slot)]
        elected = out.emit(first, "elected")
        conditions = [elected if condition is None else out.emit(arith.AndIOp(elected, condition), "free")]
    with out.when(conditions[0]) if conditions else nullcontext():
        for arrive in arrivals:
            out.add_op(arrive)


@dataclass
class Maps:
    """The tensor maps of a kernel: one for every buffer and box."""

    out: Emitter
    known: dict[tuple[SSAValue, TensorMapType], SSAValue] = field(
        default_factory=dict[tuple[SSAValue, TensorMapType], SSAValue]
    )

    def of(self, op: TmaLoadOp | TmaStoreOp, memory: Index, boxes: Boxes, rows: int) -> SSAValue:
        """The map of boxes, of so many rows each, of a buffer that a tile is loaded from or stored to."""
        dimensions = box_dimensions(op.map.data)
        if dimensions is None or not isinstance(memory, SSAValue):
            raise refused(op, "is no tile of two dimensions in boxes")
        extents = [1] * len(extents_of(memory.type))
        extents[dimensions[boxes.fast]], extents[dimensions[1 - boxes.fast]] = boxes.row, rows
        t = TensorMapType.get(extents, element_type(memory.type), boxes.swizzle)
        if (memory, t) not in self.known:
            self.known[memory, t] = self.out.at_head(kernel.TensorMapOp(memory, t), f"{memory.name_hint or 'x'}_map")
        return self.known[memory, t]


def tile_boxes(op: TmaLoadOp | TmaStoreOp, tile: SSAValue) -> Boxes:
    """The boxes that a tile in shared memory lies in. Raises ScheduleError if there are none."""
    boxes = boxes_of(shared_of_type(tile.type), element_bytes(tile.type))
    if boxes is None:
        raise refused(op, "is no tile of two dimensions in boxes")
    return boxes


def put(out: Emitter, op: ProducerLoadOp, queue: Queue, maps: Maps, values: dict[SSAValue, Index]) -> None:
    """Wait for a free slot, announce what comes, and start the boxes."""
    slot = out.value(queue.slot)
    out.add_op(kernel.MbarWaitOp(queue.empty, slot, out.value(out.xor(queue.phase, 1))))
    total = sum(shared.size * element_bytes(element) for shared, element in queue.tiles)
    out.add_op(kernel.MbarExpectOp(queue.full, slot, total))
    for value, buffer, (shared, _) in zip(op.tiles, queue.buffers, queue.tiles, strict=True):
        box = value.owner
        assert isinstance(box, TmaLoadOp)
        _load(out, box, buffer, out.mul(queue.slot, shared.size), shared, queue, maps, values)
    queue.advance(out)


def _load(
    out: Emitter,
    op: TmaLoadOp,
    buffer: SSAValue,
    place: Index,
    shared: Shared,
    queue: Queue,
    maps: Maps,
    values: dict[SSAValue, Index],
) -> None:
    """A tile, as one box for each of its panels; of a tile for all blocks of a cluster, this block's share of the rows,
    for all of them."""
    boxes, shape = tile_boxes(op, op.result), list(shape_of(op.result.type))
    row_bytes = boxes.row * element_bytes(op.result.type)
    first: Index = 0
    ranks = range(queue.cluster if op.multicast is not None else 0)
    if ranks:
        if not divides(shape[1 - boxes.fast], row_bytes, len(ranks)):
            raise refused(op, f"has no {len(ranks)} parts that start where a swizzle does")
        shape[1 - boxes.fast] //= len(ranks)
        first = out.mul(out.id("rank"), shape[1 - boxes.fast])
    tensor_map = maps.of(op, values[op.source], boxes, shape[1 - boxes.fast])
    symbols = [values[s] for s in op.symbols]
    for start in range(0, shape[boxes.fast], boxes.row):
        at = [start if d == boxes.fast else first for d in range(2)]
        coordinates = [out.value(c) for c in evaluate_map(out, op.map.data, at, symbols)]
        where = out.value(out.add(out.add(place, _panel(shared, boxes, start)), out.mul(first, boxes.row)))
        slot = out.value(queue.slot)
        out.add_op(kernel.TmaLoadOp(tensor_map, coordinates, buffer, where, queue.full, slot, ranks or None))


def _panel(shared: Shared, boxes: Boxes, start: int) -> int:
    return shared.place((start, 0) if boxes.fast == 0 else (0, start))


def evaluate_map(out: Emitter, map: AffineMap, dims: Sequence[Index], symbols: Sequence[Index]) -> list[Index]:
    """The results of an affine map at one place."""
    return [_evaluate(out, e, dims, symbols) for e in map.results]


def _evaluate(out: Emitter, expr: AffineExpr, dims: Sequence[Index], symbols: Sequence[Index]) -> Index:
    """An affine expression at known dimensions."""
    if isinstance(expr, AffineConstantExpr):
        return expr.value
    if isinstance(expr, AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, AffineSymExpr):
        return symbols[expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    lhs, rhs = (_evaluate(out, e, dims, symbols) for e in (expr.lhs, expr.rhs))
    match expr.kind:
        case AffineBinaryOpKind.Add:
            return out.add(lhs, rhs)
        case AffineBinaryOpKind.Mul:
            return out.mul(lhs, rhs)
        case AffineBinaryOpKind.FloorDiv if isinstance(rhs, int):
            return out.div(lhs, rhs)
        case AffineBinaryOpKind.Mod if isinstance(rhs, int):
            return out.rem(lhs, rhs)
        case _:
            raise ScheduleError(f"{expr} says where a box starts", operator="tile.tma_load")


@dataclass
class Cursors:
    """The cursors that a loop carries: of the rings that it puts into or takes from; and for those that it gives back
    an iteration late the slot that is still taken, at first any."""

    queues: list[Queue]
    late: list[Queue]

    @staticmethod
    def of(op: scf.ForOp, known: dict[SSAValue, Queue]) -> Cursors:
        """Those of `op`."""
        used = {o.ring: None for o in op.walk() if isinstance(o, ProducerLoadOp | ConsumerWaitOp | ConsumerReleaseOp)}
        late = [known[o.ring] for o in op.body.block.ops if isinstance(o, ConsumerReleaseOp) and o.is_late]
        for q in late:
            q.late = q.slot
        return Cursors([known[r] for r in used], late)

    def values(self, out: Emitter) -> list[SSAValue]:
        """Slot and phase of each, now, and the slots that are still taken."""
        late = [q.late for q in self.late if q.late is not None]
        return [out.value(v) for v in (*(v for q in self.queues for v in (q.slot, q.phase)), *late)]

    def set(self, values: Sequence[SSAValue]) -> None:
        """Let `values` be them from now on."""
        cursors = values[: 2 * len(self.queues)]
        for q, slot, phase in zip(self.queues, cursors[::2], cursors[1::2], strict=True):
            slot.name_hint, phase.name_hint = "slot", "phase"
            q.slot, q.phase = slot, phase
        for q, slot in zip(self.late, values[len(cursors) :], strict=True):
            slot.name_hint = "last"
            q.late = slot
