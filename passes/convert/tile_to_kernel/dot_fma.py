"""Contractions by fused multiply-adds: operands from shared memory slice by slice, the result in registers."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, UnitAttr
from xdsl.ir import Block, SSAValue

from ....dialects import kernel, tile
from ....dialects.layouts.linear import Linear, Shared, log2
from ....dialects.payload import shape_of
from ....dialects.support.locations import refused
from ...analysis.dot_operands import operand_layout
from ...analysis.memory_access import element_bytes
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
    body = Block(arg_types=[IndexType(), acc.type])
    loop = scf.ForOp(out.value(0), out.value(depth), out.value(1), [acc], body)
    k, carried = body.args
    k.name_hint = "kk"
    carried.name_hint = op.result.name_hint or "acc"
    with out.inside(body):
        column = _slice(out, lhs, a, operand_layout(c, 0, depth), k, depth, 0)
        row = _slice(out, rhs, b, operand_layout(c, 1, depth), k, depth, 1)
        total = out.emit(kernel.OuterFmaOp(column, row, carried, rows, cols), op.result.name_hint)
        out.add_op(scf.YieldOp(total))
    loop.attributes["unroll"] = UnitAttr()
    return out.emit(loop, op.result.name_hint)


def _slice(
    out: Emitter, buffer: SSAValue, shared: Shared, layout: Linear, k: SSAValue, depth: int, operand: int
) -> SSAValue:
    """The registers of `layout`, which is that of k = 0, at `k`."""
    along = 1 - operand
    moving = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    place = shared_place(out, shared, layout, element_bytes(buffer.type), moving, out.bits_of(k, moving))
    hint = "a" if operand == 0 else "b"
    return out.emit(
        kernel.LoadOp(buffer, [out.value(place.origin)], [[r] for r in place.regs], vec=place.vec, xor=place.xor), hint
    )
