"""Who needs what of the operands of a contraction: by multiply-adds, or by tensor cores."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.kernel.mma import ROW_BYTES, WORD_BYTES
from ...dialects.layouts.linear import Coordinate, Linear
from ...dialects.layouts.mma import Bits, accumulator_bits, atom_depth, fragment, matrix_rows
from ...dialects.payload import shape_of
from ...dialects.support.locations import location_text
from ...errors import ScheduleError
from .memory_access import element_bytes
from .swizzle import Reader

Dot = tile.DotOp | tile.DotAsyncOp


def bits_of_accumulator(op: Dot, acc: Linear) -> Bits:
    """The register bits of rows and columns. Raises ScheduleError if the layout is not one of tensor cores."""
    bits = accumulator_bits(acc)
    if bits is None:
        raise ScheduleError(
            "accumulates in registers that are not those of a product on tensor cores",
            operator=op.name,
            location=location_text(op),
        )
    return bits


def readers(op: Dot, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """How a warp may read an operand: with rows along k, or transposed; of f32, number by number. Raises
    ScheduleError."""
    bits_of_accumulator(op, acc)
    depth, bytes_each = shape_of(op.lhs.type)[1], element_bytes(op.operands[operand].type)

    def rows(trans: bool) -> Reader:
        layout = matrix_rows(acc, operand, depth, trans, bytes_each).layout
        return Reader(layout, bytes_each, elements=ROW_BYTES // bytes_each)

    if bytes_each == WORD_BYTES:
        return rows(False), Reader(fragment(acc, operand, depth, bytes_each), bytes_each)
    return rows(False), rows(True)


def held_fragments(op: Dot, acc: Linear, lhs: Linear) -> list[tuple[int, ...]] | None:
    """If the threads that hold the left operand are those that multiply it: for every k of an atom their registers."""
    bits_of_accumulator(op, acc)
    depth, bytes_each = shape_of(op.lhs.type)[1], element_bytes(op.lhs.type)
    picks = fragment(acc, 0, depth, bytes_each).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom_depth(bytes_each) // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]


def operand_layout(acc: Linear, operand: int, depth: int) -> Linear:
    """Who needs what of operand 0 ([m, k]) or 1 ([k, n]) of a contraction into `acc`, at k = 0: registers only for the
    accumulator's rows, or columns."""

    def own(b: Coordinate) -> Coordinate:
        return (b[0], 0) if operand == 0 else (0, b[1])

    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    reg = tuple(own(b) for b in acc.reg if b[operand])
    return Linear(shape, reg, tuple(map(own, acc.lane)), tuple(map(own, acc.warp)))
