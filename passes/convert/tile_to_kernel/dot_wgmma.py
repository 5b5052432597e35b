"""Contractions on tensor cores by whole warpgroups: `kernel.wgmma`, with operands read from shared memory."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ....dialects import kernel, tile
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.kernel.wgmma import slice_elements
from ....dialects.layouts.linear import LANE_BITS, Coordinate, Linear, Shared, log2
from ....dialects.layouts.wgmma import Boxes, boxes_of, warpgroup_accumulator
from ....dialects.payload import shape_of
from ....dialects.support.locations import refused
from ....dialects.tile.warp_specialize import ConsumerWaitOp
from ...analysis.memory_access import element_bytes
from ...analysis.swizzle import held_fragments
from ...analysis.tile_layouts import linear_of
from .emitter import Emitter

Place = tuple[Shared, Boxes]
"""An operand in shared memory, and the boxes that it lies in."""


def dot_async(
    out: Emitter,
    op: tile.DotAsyncOp,
    values: tuple[SSAValue, SSAValue, SSAValue],
    use_acc: SSAValue | None,
    layouts: tuple[Shared | Linear, Shared, Linear],
) -> SSAValue:
    """One `kernel.wgmma` for every stretch of k that lies in one row of each operand. `values` are left and right
    operand and accumulators."""
    lhs, rhs, pending = values
    a, b, c = layouts
    warps = 1 << len(c.warp)
    if warpgroup_accumulator(c.shape, warps) != c:
        raise refused(op, "accumulates in registers that are not those of products of warpgroups")
    held = held_fragments(op, c, a) if isinstance(a, Linear) else []
    if held is None:
        raise refused(
            op, "multiplies a tile that other threads hold (tile-stage-dot-operands puts it where it is read)"
        )
    depth, each = shape_of(op.lhs.type)[1], slice_elements(op.lhs.type)
    left = None if isinstance(a, Linear) else (a, _boxes(op, a, 0))
    right = b, _boxes(op, b, 1)
    if left is not None and left[1].swizzle != right[1].swizzle:
        raise refused(op, f"operands swizzled by {left[1].swizzle} and {right[1].swizzle} bytes")
    step = min(depth, *(p[1].row for i, p in enumerate((left, right)) if p is not None and p[1].fast == 1 - i), depth)
    if not _follows(op):
        out.add_op(kernel.WgmmaFenceOp())
    for k in range(0, depth, step):
        if left is None:
            registers = [r for part in held[k // each : (k + step) // each] for r in part]
            whole = registers == list(range(shape_of(lhs.type)[0]))
            source, place = (lhs if whole else out.emit(kernel.ShuffleRegistersOp(lhs, registers), "a")), None
        else:
            source, place = lhs, _place(out, left, c, 0, k)
        product = kernel.WgmmaOp(
            lhs=source,
            lhs_offset=place,
            rhs=rhs,
            rhs_offset=_place(out, right, c, 1, k),
            acc=pending,
            k_steps=step // each,
            swizzle=right[1].swizzle,
            lhs_transposed=left is not None and left[1].fast == 0,
            rhs_transposed=right[1].fast == 1,
            leading_offset=_panel(op, right, c),
            scale_d_zero=k == 0 and op.scale_d_zero is not None,
            use_acc=use_acc if k == 0 else None,
        )
        pending = out.emit(product, op.result.name_hint)
    user = op.result.get_user_of_unique_use()
    if not isinstance(user, tile.DotAsyncOp) or user.parent is not op.parent:
        out.add_op(kernel.WgmmaCommitOp())
    return pending


def _follows(op: tile.DotAsyncOp) -> bool:
    """Whether `op` goes on with the accumulators of another contraction and needs no fence of its own. Behind a wait
    for operands it does: the loop that polls is a divergent path, in which ptxas would otherwise put a fence of its own
    and no longer overlap anything (its message C7519)."""
    before: Operation | None = op.prev_op if linear_of(op.lhs.type) is None else None
    while before is not None and before is not op.acc.owner and not isinstance(before, ConsumerWaitOp):
        before = before.prev_op
    return isinstance(before, tile.DotAsyncOp)


def _boxes(op: tile.DotAsyncOp, shared: Shared, operand: int) -> Boxes:
    boxes = boxes_of(shared, element_bytes(op.operands[operand].type))
    if boxes is None:
        raise refused(op, f"operand {operand} does not lie in boxes in shared memory")
    return boxes


def _place(out: Emitter, side: Place, acc: Linear, operand: int, k: int) -> SSAValue:
    """Where the rows (or columns) of this thread's warpgroup start, at `k`."""
    shared, _ = side

    def at(basis: Coordinate, k: int = 0) -> int:
        return shared.place((basis[0], k) if operand == 0 else (k, basis[1]))

    own = [at(basis) for basis in acc.warp[log2(WARPGROUP) :]]
    origin, _ = out.thread_bits([*([0] * (LANE_BITS + log2(WARPGROUP))), *own])
    return out.value(out.add(origin, at((0, 0), k)))


def _panel(op: tile.DotAsyncOp, right: Place, acc: Linear) -> int | None:
    """The distance of the panels of columns that a warpgroup multiplies, if there are several."""
    shared, boxes = right
    own = acc.registers * 2
    if boxes.fast == 0 or own == boxes.row:
        return None
    if own < boxes.row:
        raise refused(op, f"a warpgroup multiplies {own} of the {boxes.row} columns of a panel")
    return shared.place((0, boxes.row))
