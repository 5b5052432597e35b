"""Results on their way out: scratch memory that parts of them take in turns, and the boxes that they leave as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Region, SSAValue

from ...dialects import kernel, payload, tile
from ...dialects.kernel_roles import WARPGROUP
from ...dialects.kernel_tma import TensorMapType
from ...dialects.linear_layout import LANE_BITS, LANES, Coordinate, Linear, Shared, log2
from ...dialects.locations import location_text
from ...dialects.payload import element_bytes, element_type
from ...dialects.tile_outputs import StoreBoxOp
from ...dialects.tile_roles import box_dimensions
from ...dialects.warpgroup_layouts import boxes_of, part_of_group
from ...errors import ScheduleError
from ..tile_layouts import shared_of_type
from .accesses import memory_type
from .emitter import Emitter, Index
from .queues import Maps, evaluate_map

TURNS = 2
"""Buffers of a kind: one is filled while what is in the other leaves."""

Kind = tuple[Attribute, int, int | None]
"""Element type, elements, warps that stay among themselves."""


@dataclass
class Scratch:
    """Shared buffers for tiles that are there for a short time. Whoever takes one has what was free for longest."""

    out: Emitter
    free: dict[Kind, list[SSAValue]] = field(default_factory=dict[Kind, list[SSAValue]])
    made: dict[Kind, int] = field(default_factory=dict[Kind, int])

    def take(self, element: Attribute, shared: Shared, apart: int | None, hint: str) -> SSAValue:
        """A buffer of the size of `shared`; a new one, until there are enough for turns."""
        kind = element, shared.size, apart
        free = self.free.setdefault(kind, [])
        if free and self.made[kind] >= TURNS:
            return free.pop(0)
        self.made[kind] = self.made.get(kind, 0) + 1
        return self.out.allocate(kernel.SharedOp(element, shared.size, apart=apart), hint)

    def give(self, buffer: SSAValue) -> None:
        """Whoever took `buffer` needs it no more."""
        op = buffer.owner
        assert isinstance(op, kernel.SharedOp)
        t = memory_type(buffer)
        kind = t.element_type, t.get_shape()[0], None if op.apart is None else op.apart.data
        self.free[kind].append(buffer)


def groups_apart(shared: Shared, *layouts: Linear) -> tuple[Coordinate, ...]:
    """The bases of the number of the warpgroup, if every warpgroup keeps to its own part of `shared` in all layouts,
    and the parts lie one behind the other; else, or for one warpgroup, none."""
    groups = layouts[0].warp[log2(WARPGROUP) :]
    if any(layout.warp[log2(WARPGROUP) :] != groups for layout in layouts):
        return ()
    if not groups or part_of_group(shared.shape, groups) is None:
        return ()
    part = shared.size >> len(groups)
    return groups if [shared.place(b) // part for b in groups] == [1 << i for i in range(len(groups))] else ()


def store_box(
    out: Emitter, op: StoreBoxOp, buffer: SSAValue, maps: Maps, memory: Index, symbols: Sequence[Index], held: Linear
) -> None:
    """Let one thread start the boxes of a tile; if each warpgroup, which held it as `held`, has boxes of its own, let
    one of each do so. They are one bulk group."""
    shared, element = shared_of_type(op.value.type), element_type(op.value.type)
    boxes, dimensions = boxes_of(shared, element_bytes(element)), box_dimensions(op.map.data)
    if boxes is None or dimensions is None or not isinstance(memory, SSAValue):
        raise ScheduleError("is no tile of two dimensions in boxes", operator=op.name, location=location_text(op))
    groups = groups_apart(shared, held)
    own = part_of_group(shared.shape, groups) or shared.shape
    row = min(boxes.row, own[boxes.fast])
    if row != boxes.row:
        groups, own = (), shared.shape
    extents = [1] * len(memory_type(memory).get_shape())
    extents[dimensions[boxes.fast]], extents[dimensions[1 - boxes.fast]] = boxes.row, own[1 - boxes.fast]
    tensor_map = maps.of(memory, TensorMapType.get(extents, element, boxes.swizzle))
    threads = LANES * WARPGROUP if groups else LANES * held.warps
    skipped = [0] * (LANE_BITS + log2(WARPGROUP))
    first = [out.thread_bits([*skipped, *(b[d] for b in groups)])[0] for d in range(2)]
    start, _ = out.thread_bits([*skipped, *(shared.place(b) for b in groups)])
    thread = out.rem(out.id("thread"), threads) if groups else out.id("thread")
    elected = out.emit(payload.CmpOp("eq", out.value(thread), out.value(0)), "elected")
    body = Block()
    with out.inside(body):
        for panel in range(0, own[boxes.fast], boxes.row):
            at = [out.add(first[d], panel if d == boxes.fast else 0) for d in range(2)]
            inside = shared.place(tuple(panel if d == boxes.fast else 0 for d in range(2)))
            coordinates = [out.value(c) for c in evaluate_map(out, op.map.data, at, symbols)]
            out.add_op(kernel.TmaStoreOp(buffer, out.value(out.add(start, inside)), tensor_map, coordinates))
        out.add_op(kernel.BulkCommitOp())
        out.add_op(scf.YieldOp())
    out.add_op(scf.IfOp(elected, [], Region(body)))


def staged_as(op: StoreBoxOp) -> tile.StageOp:
    """Where the tile of a box was put into shared memory. Raises ScheduleError if that is not known."""
    stage = op.value.owner
    if not isinstance(stage, tile.StageOp):
        raise ScheduleError("stores what no tile.stage has staged", operator=op.name, location=location_text(op))
    return stage
