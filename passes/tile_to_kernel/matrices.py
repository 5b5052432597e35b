"""Contractions on tensor cores: operands from shared memory by `kernel.ldmatrix`, products by `kernel.mma`."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, UnitAttr
from xdsl.ir import Block, SSAValue

from ...dialects import kernel, tile
from ...dialects.linear_layout import Linear, Shared, log2
from ...dialects.locations import location_text
from ...dialects.matrix_layouts import ATOM, Bits, accumulator_bits, fragment, matrix_rows
from ...dialects.payload import shape_of
from ...errors import ScheduleError
from ..shared_layouts import Reader
from .accesses import element_bytes, memory_type
from .emitter import Emitter, Index
from .shared import shared_place

ROW = 8
"""Elements of a row of a matrix."""


def bits_of_accumulator(op: tile.DotOp, acc: Linear) -> Bits:
    """The register bits of rows and columns. Raises ScheduleError if the layout is not one of tensor cores."""
    bits = accumulator_bits(acc)
    if bits is None:
        raise _refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: tile.DotOp, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """How a warp may read an operand: with rows along k, or transposed. Raises ScheduleError."""
    bits_of_accumulator(op, acc)
    depth, bytes_each = shape_of(op.lhs.type)[1], element_bytes(op.operands[operand].type)
    first, second = (
        Reader(matrix_rows(acc, operand, depth, trans).layout, bytes_each, together=ROW) for trans in (False, True)
    )
    return first, second


def held_fragments(op: tile.DotOp, acc: Linear, lhs: Linear) -> list[tuple[int, ...]] | None:
    """If the threads that hold the left operand are those that multiply it: for every sixteen k their registers."""
    bits_of_accumulator(op, acc)
    depth = shape_of(op.lhs.type)[1]
    picks = fragment(acc, 0, depth).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * ATOM[2] // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]


def lower_mma(
    out: Emitter,
    op: tile.DotOp,
    lhs: SSAValue,
    rhs: SSAValue,
    acc: SSAValue,
    layouts: tuple[Shared | Linear, Shared, Linear],
) -> SSAValue:
    """Sixteen k at a time: a loop with both operands in shared memory, or unrolled if the left one is in registers."""
    a, b, c = layouts
    bits = bits_of_accumulator(op, c)
    depth = shape_of(op.lhs.type)[1]
    if isinstance(a, Linear):
        held = held_fragments(op, c, a)
        if held is None:
            raise _refused(
                op, "multiplies a tile that other threads hold (tile-stage-operands puts it where they read it)"
            )
        for step, registers in enumerate(held):
            own = registers == tuple(range(shape_of(lhs.type)[0]))
            left = lhs if own else out.emit(kernel.PickOp(lhs, registers), "a")
            right = _matrices(out, op, rhs, b, c, step * ATOM[2], 1)
            acc = out.emit(kernel.MmaOp(left, right, acc, bits.rows, bits.columns), op.result.name_hint)
        return acc
    body = Block(arg_types=[IndexType(), acc.type])
    loop = scf.ForOp(out.value(0), out.value(depth), out.value(ATOM[2]), [acc], body)
    k, carried = body.args
    k.name_hint = "kk"
    carried.name_hint = op.result.name_hint or "acc"
    with out.inside(body):
        left = _matrices(out, op, lhs, a, c, k, 0)
        right = _matrices(out, op, rhs, b, c, k, 1)
        total = out.emit(kernel.MmaOp(left, right, carried, bits.rows, bits.columns), op.result.name_hint)
        out.add_op(scf.YieldOp(total))
    loop.attributes["unroll"] = UnitAttr()
    return out.emit(loop, op.result.name_hint)


def _matrices(
    out: Emitter, op: tile.DotOp, buffer: SSAValue, shared: Shared, acc: Linear, k: Index, operand: int
) -> SSAValue:
    """The operand's matrices for the sixteen k from `k` on."""
    depth = shape_of(op.lhs.type)[1]
    along = 1 - operand
    images = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    moving = [0] * log2(ATOM[2]) + images[log2(ATOM[2]) :]
    size = element_bytes(memory_type(buffer).element_type)
    for trans in (False, True):
        layout, count = matrix_rows(acc, operand, ATOM[2], trans)
        layout = Linear(shared.shape, layout.reg, layout.lane, layout.warp)
        place = shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))
        if place.vec == ROW:
            steps = place.regs[log2(ROW) :]
            found = kernel.LdMatrixOp(buffer, out.value(place.origin), steps, count=count, trans=trans, xor=place.xor)
            return out.emit(found, "a" if operand == 0 else "b")
    raise _refused(op, f"operand {operand} has no rows of {ROW} elements in shared memory")


def _refused(op: tile.DotOp, why: str) -> ScheduleError:
    return ScheduleError(why, operator=op.name, location=location_text(op))
