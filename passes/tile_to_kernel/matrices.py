"""Contractions on tensor cores: operands from shared memory by `kernel.ldmatrix`, products by `kernel.mma`."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, UnitAttr
from xdsl.ir import Block, SSAValue

from ...dialects import kernel, payload, tile
from ...dialects.kernel_matrix import ROW_BYTES, WORD_BYTES
from ...dialects.linear_layout import Linear, Shared, log2
from ...dialects.locations import location_text
from ...dialects.matrix_layouts import Bits, accumulator_bits, atom_depth, fragment, matrix_rows
from ...dialects.payload import shape_of
from ...errors import ScheduleError
from ..shared_layouts import Reader
from .accesses import element_bytes, memory_type
from .emitter import Emitter, Index
from .shared import shared_place


def bits_of_accumulator(op: tile.DotOp, acc: Linear) -> Bits:
    """The register bits of rows and columns. Raises ScheduleError if the layout is not one of tensor cores."""
    bits = accumulator_bits(acc)
    if bits is None:
        raise _refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: tile.DotOp, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """How a warp may read an operand: with rows along k, or transposed; of f32, number by number. Raises
    ScheduleError."""
    bits_of_accumulator(op, acc)
    depth, bytes_each = shape_of(op.lhs.type)[1], element_bytes(op.operands[operand].type)

    def rows(trans: bool) -> Reader:
        layout = matrix_rows(acc, operand, depth, trans, bytes_each).layout
        return Reader(layout, bytes_each, together=ROW_BYTES // bytes_each)

    if bytes_each == WORD_BYTES:
        return rows(False), Reader(fragment(acc, operand, depth, bytes_each), bytes_each)
    return rows(False), rows(True)


def held_fragments(op: tile.DotOp, acc: Linear, lhs: Linear) -> list[tuple[int, ...]] | None:
    """If the threads that hold the left operand are those that multiply it: for every k of an atom their registers."""
    bits_of_accumulator(op, acc)
    depth, bytes_each = shape_of(op.lhs.type)[1], element_bytes(op.lhs.type)
    picks = fragment(acc, 0, depth, bytes_each).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom_depth(bytes_each) // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]


def lower_mma(
    out: Emitter,
    op: tile.DotOp,
    lhs: SSAValue,
    rhs: SSAValue,
    acc: SSAValue,
    layouts: tuple[Shared | Linear, Shared, Linear],
) -> SSAValue:
    """The k of an atom at a time: a loop with both operands in shared memory, or unrolled if the left one is in
    registers. What is in f32 is rounded to tf32 on the way."""
    a, b, c = layouts
    bits = bits_of_accumulator(op, c)
    depth, atom = shape_of(op.lhs.type)[1], atom_depth(element_bytes(op.lhs.type))
    if isinstance(a, Linear):
        held = held_fragments(op, c, a)
        if held is None:
            raise _refused(
                op, "multiplies a tile that other threads hold (tile-stage-operands puts it where they read it)"
            )
        for step, registers in enumerate(held):
            own = registers == tuple(range(shape_of(lhs.type)[0]))
            left = _rounded(out, lhs if own else out.emit(kernel.PickOp(lhs, registers), "a"))
            right = _matrices(out, op, rhs, b, c, step * atom, 1)
            acc = out.emit(kernel.MmaOp(left, right, acc, bits.rows, bits.columns), op.result.name_hint)
        return acc
    body = Block(arg_types=[IndexType(), acc.type])
    loop = scf.ForOp(out.value(0), out.value(depth), out.value(atom), [acc], body)
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
    """The operand's matrices for the k of one atom from `k` on."""
    depth, along = shape_of(op.lhs.type)[1], 1 - operand
    size = element_bytes(memory_type(buffer).element_type)
    atom, row = atom_depth(size), ROW_BYTES // size
    images = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    moving = [0] * log2(atom) + images[log2(atom) :]
    hint = "a" if operand == 0 else "b"
    for trans in (False,) if size == WORD_BYTES else (False, True):
        layout, count = matrix_rows(acc, operand, atom, trans, size)
        layout = Linear(shared.shape, layout.reg, layout.lane, layout.warp)
        place = shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))
        if place.vec == row:
            steps = place.regs[log2(row) :]
            found = kernel.LdMatrixOp(buffer, out.value(place.origin), steps, count=count, trans=trans, xor=place.xor)
            return _rounded(out, out.emit(found, hint))
    if size != WORD_BYTES:
        raise _refused(op, f"operand {operand} has no rows of {row} elements in shared memory")
    part = fragment(acc, operand, atom, size)
    layout = Linear(shared.shape, part.reg, part.lane, part.warp)
    place = shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))
    steps = [[r] for r in place.regs]
    return _rounded(
        out, out.emit(kernel.LoadOp(buffer, [out.value(place.origin)], steps, vec=place.vec, xor=place.xor), hint)
    )


def _rounded(out: Emitter, registers: SSAValue) -> SSAValue:
    """What a product takes of registers: all of 16 bits, of an f32 the nearest tf32."""
    if element_bytes(registers.type) != WORD_BYTES:
        return registers
    return out.emit(payload.RoundTf32Op(registers), registers.name_hint)


def _refused(op: tile.DotOp, why: str) -> ScheduleError:
    return ScheduleError(why, operator=op.name, location=location_text(op))
