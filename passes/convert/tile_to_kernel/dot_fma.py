"""Contractions by fused multiply-adds: operands from shared memory slice by slice, the result in registers."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ....dialects import kernel, tile
from ....dialects.layouts.linear import Linear, Shared, log2
from ....dialects.payload import shape_of
from ....dialects.support.locations import refused
from ...analysis.memory_access import element_bytes
from ...analysis.swizzle import operand_layout
from .emitter import Emitter
from .shared_staging import shared_place


def lower_dot(
    out: Emitter, op: tile.DotOp, lhs: SSAValue, rhs: SSAValue, acc: SSAValue, layouts: tuple[Shared, Shared, Linear]
) -> SSAValue:
    """A loop over k that adds the outer product of a column of `lhs` and a row of `rhs`, both in shared memory."""
    a, b, c = layouts
    rows = [i for i, basis in enumerate(c.reg) if basis[0]]
    cols = [i for i, basis in enumerate(c.reg) if basis[1]]
    if set(rows) & set(cols) or len(rows) + len(cols) != len(c.reg):
        raise refused(op, "accumulates in registers that are no grid of rows and columns")
    depth = shape_of(op.lhs.type)[1]

    def add(k: SSAValue, carried: SSAValue) -> SSAValue:
        column = _slice(out, lhs, a, operand_layout(c, 0, depth), k, depth, 0)
        row = _slice(out, rhs, b, operand_layout(c, 1, depth), k, depth, 1)
        return out.emit(kernel.OuterFmaOp(column, row, carried, rows, cols), op.result.name_hint)

    return out.accumulate(acc, depth, 1, op.result.name_hint, add)


def _slice(
    out: Emitter, buffer: SSAValue, shared: Shared, layout: Linear, k: SSAValue, depth: int, operand: int
) -> SSAValue:
    """The registers of `layout`, which is that of k = 0, at `k`."""
    along = 1 - operand
    moving = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    place = shared_place(out, shared, layout, element_bytes(buffer.type), moving, out.bits_of(k, moving))
    return place.load(out, buffer, "a" if operand == 0 else "b")
