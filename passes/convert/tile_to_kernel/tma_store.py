"""Results on their way out: the boxes that they leave as."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.layouts.linear import LANE_BITS, LANES, Linear, log2
from ....dialects.layouts.wgmma import part_of_group
from ....dialects.support.locations import refused
from ....dialects.tile.async_copy import TmaStoreOp
from ...analysis.tile_layouts import shared_of_type
from .emitter import Emitter, Index
from .scratch import groups_apart
from .tma_pipeline import Maps, evaluate_map, tile_boxes


def tma_store(
    out: Emitter, op: TmaStoreOp, buffer: SSAValue, maps: Maps, memory: Index, symbols: Sequence[Index], held: Linear
) -> None:
    """Let one thread start the boxes of a tile; if each warpgroup, which held it as `held`, has boxes of its own, let
    one of each do so. They are one bulk group."""
    shared, boxes = shared_of_type(op.value.type), tile_boxes(op, op.value)
    groups = groups_apart(shared, held)
    own = part_of_group(shared.shape, groups) or shared.shape
    row = min(boxes.row, own[boxes.fast])
    if row != boxes.row:
        groups, own = (), shared.shape
    tensor_map = maps.of(op, memory, boxes, own[1 - boxes.fast])
    threads = LANES * WARPGROUP if groups else LANES * held.warps
    skipped = [0] * (LANE_BITS + log2(WARPGROUP))
    first = [out.thread_bits([*skipped, *(b[d] for b in groups)])[0] for d in range(2)]
    start, _ = out.thread_bits([*skipped, *(shared.place(b) for b in groups)])
    thread = out.rem(out.id("thread"), threads) if groups else out.id("thread")
    with out.when(out.emit(payload.CmpOp("eq", out.value(thread), out.value(0)), "elected")):
        for panel in range(0, own[boxes.fast], boxes.row):
            at = [out.add(first[d], panel if d == boxes.fast else 0) for d in range(2)]
            inside = shared.place(tuple(panel if d == boxes.fast else 0 for d in range(2)))
            coordinates = [out.value(c) for c in evaluate_map(out, op.map.data, at, symbols)]
            out.add_op(kernel.TmaStoreOp(buffer, out.value(out.add(start, inside)), tensor_map, coordinates))
        out.add_op(kernel.BulkCommitOp())


def staged_as(op: TmaStoreOp) -> tile.StageOp:
    """Where the tile of a box was put into shared memory. Raises ScheduleError if that is not known."""
    stage = op.value.owner
    if not isinstance(stage, tile.StageOp):
        raise refused(op, "stores what no tile.stage has staged")
    return stage
