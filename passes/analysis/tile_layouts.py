"""Cost of layout conversions, and the layouts of dot operands on tensor cores."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.kernel.mma import ROW_BYTES, MmaAtom, mma_atom
from ...dialects.layouts.conversion import Exchange, find_exchange
from ...dialects.layouts.linear import Linear, Reader
from ...dialects.layouts.mma import Bits, accumulator_bits, fragment, matrix_rows
from ...dialects.payload import element_bytes, shape_of
from ...dialects.support.locations import refused

SHUFFLED_BYTES, SELECTS_PER_SHUFFLE, BARRIERS_IN_SHUFFLES = 4, 2, 16
"""Bytes that a lane moves in one shuffle; selects that take as long as one shuffle; shuffles that take as long as the
two barriers of an exchange through shared memory. The costs are estimates, tuned by hand."""


def route(source: Linear, target: Linear, bytes_each: int) -> str:
    """Returns the cheapest way to convert a tile from one layout to another.

    A shuffle costs as much as a store to shared memory or a load from it: each moves 128 bytes of a warp. An exchange
    through shared memory has both, and two barriers.

    Args:
        source: present layout.
        target: wanted layout.
        bytes_each: bytes of an element.

    Returns:
        The value of the attribute `via` of `tile.convert_layout`: `registers` if every thread has its elements already,
        `shuffles`, or `shared`.
    """
    if target.picks(source) is not None:
        return "registers"
    exchange = find_exchange(source, target)
    if exchange is None:
        return "shared"
    moved = (source.compact()[0].registers + target.registers) * bytes_each / SHUFFLED_BYTES
    return "shuffles" if price(exchange, source, bytes_each) <= moved + BARRIERS_IN_SHUFFLES else "shared"


def route_of(op: tile.ConvertLayoutOp, source: Linear, target: Linear) -> str:
    """Returns the route of a conversion: its attribute `via`, or the cheapest route if it has none.

    Args:
        op: the conversion.
        source: layout of its operand.
        target: layout of its result.
    """
    return route(source, target, element_bytes(op.source.type)) if op.via is None else op.via.data


def price(exchange: Exchange, source: Linear, bytes_each: int) -> float:
    """Returns the cost of an exchange between lanes, in shuffles of 4 bytes.

    Args:
        exchange: the exchange.
        source: layout before it.
        bytes_each: bytes of an element; two elements of 2 bytes may share a shuffle.
    """
    words = max(1, bytes_each // SHUFFLED_BYTES)
    halves = 2 if bytes_each < SHUFFLED_BYTES and exchange.paired else 1
    return (exchange.shuffles + exchange.choices(source.registers) / SELECTS_PER_SHUFFLE) * words / halves


Dot = tile.DotOp | tile.DotAsyncOp


def atom_of(op: Dot) -> MmaAtom:
    """Returns the tensor-core atom of a dot. Raises ScheduleError if there is none for its types."""
    (m, k), (_, n) = shape_of(op.lhs.type), shape_of(op.rhs.type)
    atom = mma_atom(op.lhs.type, (m, n, k))
    if atom is None:
        raise refused(op, f"multiplies tiles of {op.lhs.type}, for which tensor cores have no product")
    return atom


def bits_of_accumulator(op: Dot, acc: Linear) -> Bits:
    """Returns the bits of the register number that select the row and the column of an accumulator element.

    Raises:
        ScheduleError: if `acc` is not an accumulator layout of the atom.
    """
    bits = accumulator_bits(acc, atom_of(op))
    if bits is None:
        raise refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: Dot, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """Returns two ways in which a warp reads an operand from shared memory.

    The first is for an operand that is contiguous along k, the second for one that is not. A warp reads by `ldmatrix`
    if the atom supports this order (`ldmatrix` transposes only 2-byte elements), else by single elements.

    Args:
        op: the dot.
        acc: layout of its accumulator.
        operand: 0 for the left operand, 1 for the right one.

    Raises:
        ScheduleError: if `acc` is not an accumulator layout of the atom.
    """
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
    """Returns the registers of a left operand that each atom along k takes as its fragment.

    Args:
        op: the dot.
        acc: layout of its accumulator.
        lhs: layout of the left operand in registers.

    Returns:
        For each atom along k the register numbers, or None if the atom needs elements of other threads.
    """
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    picks = fragment(acc, 0, depth, atom).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom.k // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]
