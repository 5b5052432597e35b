"""The cheapest route from one layout of a tile to another, and the operands of contractions on tensor cores."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.kernel.mma import ROW_BYTES, MmaAtom, mma_atom
from ...dialects.layouts.conversion import Exchange, find_exchange
from ...dialects.layouts.linear import Linear, Reader
from ...dialects.layouts.mma import Bits, accumulator_bits, fragment, matrix_rows
from ...dialects.payload import element_bytes, shape_of
from ...dialects.support.locations import refused

SHUFFLED_BYTES, SELECTS_PER_SHUFFLE, BARRIERS_IN_SHUFFLES = 4, 2, 16
"""Bytes of a shuffle, selects in the time of a shuffle, and shuffles in the time that two barriers cost a warp."""


def route(source: Linear, target: Linear, bytes_each: int) -> str:
    """Returns the cheapest route from one layout to another: `registers`, `shuffles` or `shared`.

    A shuffle moves 128 bytes of a warp, as a store to shared memory or a load does. There are two of those, with
    barriers between them.
    """
    if target.picks(source) is not None:
        return "registers"
    found = find_exchange(source, target)
    if found is None:
        return "shared"
    moved = (source.compact()[0].registers + target.registers) * bytes_each / SHUFFLED_BYTES
    return "shuffles" if price(found, source, bytes_each) <= moved + BARRIERS_IN_SHUFFLES else "shared"


def way_of(op: tile.ConvertLayoutOp, source: Linear, target: Linear) -> str:
    """Returns the route of a conversion: the one of its attribute, or the cheapest."""
    return route(source, target, element_bytes(op.source.type)) if op.via is None else op.via.data


def price(found: Exchange, source: Linear, bytes_each: int) -> float:
    """Returns the cost of an exchange, in registers that are shuffled."""
    each = max(1, bytes_each // SHUFFLED_BYTES)
    halves = 2 if bytes_each < SHUFFLED_BYTES and found.paired else 1
    return (found.shuffles + found.choices(source.registers) / SELECTS_PER_SHUFFLE) * each / halves


Dot = tile.DotOp | tile.DotAsyncOp


def atom_of(op: Dot) -> MmaAtom:
    """Returns the atom of a contraction on tensor cores. Raises ScheduleError if there is none for its types."""
    (m, k), (_, n) = shape_of(op.lhs.type), shape_of(op.rhs.type)
    atom = mma_atom(op.lhs.type, (m, n, k))
    if atom is None:
        raise refused(op, f"multiplies tiles of {op.lhs.type}, for which tensor cores have no product")
    return atom


def bits_of_accumulator(op: Dot, acc: Linear) -> Bits:
    """Returns the register bits of rows and columns. Raises ScheduleError for a layout that tensor cores do not
    have."""
    bits = accumulator_bits(acc, atom_of(op))
    if bits is None:
        raise refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: Dot, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """Returns how a warp reads an operand that is contiguous along k, and one that is not: by rows of matrices, which
    can transpose elements of two bytes, or element by element. Raises ScheduleError."""
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    bytes_each = element_bytes(op.operands[operand].type)

    def reader(trans: bool) -> Reader:
        if trans not in atom.matrix_orders:
            return Reader(fragment(acc, operand, depth, atom), bytes_each)
        layout = matrix_rows(acc, operand, depth, trans, atom).layout
        return Reader(layout, bytes_each, elements=ROW_BYTES // bytes_each)

    return reader(False), reader(True)


def held_fragments(op: Dot, acc: Linear, lhs: Linear) -> list[tuple[int, ...]] | None:
    """Returns the registers of the left operand for every k of an atom, or None if other threads multiply it."""
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    picks = fragment(acc, 0, depth, atom).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom.k // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]
