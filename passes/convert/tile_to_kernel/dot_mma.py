"""Contractions on tensor cores: operands from shared memory by `kernel.ldmatrix`, products by `kernel.mma`."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.kernel.mma import ROW_BYTES, WORD_BYTES
from ....dialects.layouts.linear import Linear, Shared, log2
from ....dialects.layouts.mma import atom_depth, fragment, matrix_rows
from ....dialects.payload import shape_of
from ....dialects.support.locations import refused
from ...analysis.memory_access import element_bytes
from ...analysis.swizzle import bits_of_accumulator, held_fragments
from .emitter import Emitter, Index
from .shared_staging import shared_place


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
            raise refused(
                op, "multiplies a tile that other threads hold (tile-stage-dot-operands puts it where they read it)"
            )
        for step, registers in enumerate(held):
            own = registers == tuple(range(shape_of(lhs.type)[0]))
            left = _rounded(out, lhs if own else out.emit(kernel.ShuffleRegistersOp(lhs, registers), "a"))
            right = _matrices(out, op, rhs, b, c, step * atom, 1)
            acc = out.emit(kernel.MmaOp(left, right, acc, bits.rows, bits.columns), op.result.name_hint)
        return acc

    def add(k: SSAValue, carried: SSAValue) -> SSAValue:
        left = _matrices(out, op, lhs, a, c, k, 0)
        right = _matrices(out, op, rhs, b, c, k, 1)
        return out.emit(kernel.MmaOp(left, right, carried, bits.rows, bits.columns), op.result.name_hint)

    return out.accumulate(acc, depth, atom, op.result.name_hint, add)


def _matrices(
    out: Emitter, op: tile.DotOp, buffer: SSAValue, shared: Shared, acc: Linear, k: Index, operand: int
) -> SSAValue:
    """The operand's matrices for the k of one atom from `k` on."""
    depth, along = shape_of(op.lhs.type)[1], 1 - operand
    size = element_bytes(buffer.type)
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
        raise refused(op, f"operand {operand} has no rows of {row} elements in shared memory")
    part = fragment(acc, operand, atom, size)
    layout = Linear(shared.shape, part.reg, part.lane, part.warp)
    place = shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))
    return _rounded(out, place.load(out, buffer, hint))


def _rounded(out: Emitter, registers: SSAValue) -> SSAValue:
    """What a product takes of registers: all of 16 bits, of an f32 the nearest tf32."""
    if element_bytes(registers.type) != WORD_BYTES:
        return registers
    return out.emit(payload.RoundTf32Op(registers), registers.name_hint)
