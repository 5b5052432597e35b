"""Choosing where the elements of a tile are kept in shared memory, so that the banks are not fought over, and who reads
which operands of a contraction: by multiply-adds, or by tensor cores.

A swizzle is not looked up but searched for: every slow bit of the offset may be added, by exclusive or, to one of the
bits that choose the bank, and the choice with the fewest wavefronts over all accesses wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects import tile
from ...dialects.kernel.mma import ROW_BYTES, MmaAtom, mma_atom
from ...dialects.layouts.linear import Coordinate, Linear, Shared, ordered, register_width, wavefronts
from ...dialects.layouts.mma import Bits, accumulator_bits, fragment, matrix_rows
from ...dialects.payload import shape_of
from ...dialects.support.locations import refused
from .memory_access import element_bytes

IMPOSSIBLE = 1 << 40
"""More than any access costs."""


@dataclass(frozen=True)
class Reader:
    """An access to a shared tile: by whom, of elements of how many bytes, and how often compared with others."""

    layout: Linear
    bytes_each: int
    weight: int = 1
    elements: int = 1
    """Elements that have to lie next to each other: fewer are not only slow, but wrong."""

    def cost(self, shared: Shared) -> tuple[int, bool]:
        """What one warp pays for all its registers, weighted: mostly wavefronts, a little for each instruction; and
        whether no other layout with accesses of this width could be cheaper."""
        regs = shared.images(self.layout.reg)
        lanes = shared.images(self.layout.lane)
        vec = register_width(regs, (*lanes, *shared.images(self.layout.warp)), 16 // self.bytes_each)
        if vec < self.elements:
            return IMPOSSIBLE, False
        fronts = wavefronts(tuple(lanes), vec, self.bytes_each)
        best = fronts <= max(vec * self.bytes_each // 4, 1)
        return (4 * fronts + 1) * (self.layout.registers // vec) * self.weight, best


def choose_shared(
    shape: Sequence[int], readers: Sequence[Reader], *, by_order: Sequence[Sequence[Reader]] | None = None
) -> Shared:
    """The shared layout on which `readers` take the fewest wavefronts; the plainest of equals.

    Tried are row-major order, and that with the first dimension made the fastest, each with swizzles. `by_order` has
    further readers for the one and for the other.
    """
    rank = len(shape)
    orders = [tuple(reversed(range(rank)))]
    if rank > 1:
        orders.append((0, *reversed(range(1, rank))))
    more = by_order or [()] * len(orders)
    found = [_swizzled(tuple(shape), o, [*readers, *m]) for o, m in zip(orders, more, strict=True)]
    return min(found, key=lambda pair: pair[0])[1]


def _swizzled(shape: tuple[int, ...], order: Sequence[int], readers: Sequence[Reader]) -> tuple[int, Shared]:
    """The best swizzle on one order of dimensions, found bit by bit: its cost and the layout."""

    def cost(shared: Shared) -> tuple[int, bool]:
        costs = [r.cost(shared) for r in readers]
        return sum(c for c, _ in costs), all(free for _, free in costs)

    shared = ordered(shape, order)
    best, free = cost(shared)
    pairs: list[tuple[int, int]] = []
    source = shape[order[0]]
    banks = 128 // min(r.bytes_each for r in readers)
    while source < shared.size and not free:
        choice: tuple[int, int] | None = None
        target = min(source, banks) // 2
        while target >= 1:
            candidate = ordered(shape, order, [*pairs, (source, target)])
            found, unhindered = cost(candidate)
            if found < best:
                best, free, shared, choice = found, unhindered, candidate, (source, target)
            target //= 2
        if choice is not None:
            pairs.append(choice)
        source *= 2
    return best, shared


Dot = tile.DotOp | tile.DotAsyncOp


def atom_of(op: Dot) -> MmaAtom:
    """The atom whose fragments the operands of a contraction on tensor cores are. Raises ScheduleError."""
    atom = mma_atom(op.lhs.type, shape_of(op.lhs.type)[1])
    if atom is None:
        raise refused(op, f"multiplies tiles of {op.lhs.type}, for which tensor cores have no product")
    return atom


def bits_of_accumulator(op: Dot, acc: Linear) -> Bits:
    """The register bits of rows and columns. Raises ScheduleError if the layout is not one of tensor cores."""
    bits = accumulator_bits(acc, atom_of(op))
    if bits is None:
        raise refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: Dot, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """How a warp may read an operand that lies along k, and one that lies across: by rows of matrices, which only
    elements of two bytes are transposed from, or element by element. Raises ScheduleError."""
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
    """If the threads that hold the left operand are those that multiply it: for every k of an atom their registers."""
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    picks = fragment(acc, 0, depth, atom).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom.k // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]


def operand_layout(acc: Linear, operand: int, depth: int) -> Linear:
    """Who needs what of operand 0 ([m, k]) or 1 ([k, n]) of a contraction into `acc`, at k = 0: registers only for the
    accumulator's rows, or columns."""

    def own(b: Coordinate) -> Coordinate:
        return (b[0], 0) if operand == 0 else (0, b[1])

    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    reg = tuple(own(b) for b in acc.reg if b[operand])
    return Linear(shape, reg, tuple(map(own, acc.lane)), tuple(map(own, acc.warp)))
