"""Layouts of matrix products on tensor cores: who holds what of the accumulator and of the operands.

The atom is a product of 16 x 16 and 16 x 8 elements of two bytes, or of 16 x 8 and 8 x 8 elements of four (f32 as
tf32). Its accumulator gives lane t the columns 2 * (t % 4) and the next of the rows t / 4 and t / 4 + 8. Which columns
and rows of the tile these are is free, so a layout is described by what must hold, and operands follow from it:
wherever an accumulator's bit of the row (or column) goes, that bit of the left (or right) operand goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..kernel.mma import MMA_ATOMS, WORD_BYTES
from .linear import LANE_BITS, Bases, Coordinate, Linear, log2

ATOM = (MMA_ATOMS[0].m, MMA_ATOMS[0].n, MMA_ATOMS[0].k)
"""Rows, columns and depth of one product of elements of two bytes."""


def atom_depth(bytes_each: int) -> int:
    """The depth of one product of elements of `bytes_each` bytes: 32 bytes of each factor."""
    return ATOM[2] * 2 // bytes_each


PAIR_BITS = 2
"""Lane bits that choose among pairs of columns; the others choose among rows."""


def _row(n: int) -> Coordinate:
    return (n, 0)


def _column(n: int) -> Coordinate:
    return (0, n)


def accumulator(shape: Sequence[int], warps: int, *, rows_first: bool = False, vec: int = 2) -> Linear:
    """The accumulator of a tile in `warps` warps, whose parts are about square, or with `rows_first` as wide as
    possible, so that a row is in as few warps as possible.

    `vec` is how many neighbouring columns a thread should hold: 2 as in the plain atom, or more where the operand may
    be read with its columns in another order. The tile is at least one atom; warps without one of their own replicate.
    """
    m, n = shape
    across = min(split_of(shape, warps, rows_first), n // ATOM[1])
    down = min(warps // across, m // ATOM[0])
    width, height = n // across, m // down
    vec = max(2, min(vec, width // 4))
    columns = [_column(1 << i) for i in range(log2(width))]
    rows = [_row(1 << i) for i in range(log2(height))]
    own, pairs = columns[: log2(vec)], columns[log2(vec) : log2(vec) + PAIR_BITS]
    reg = (*own, rows[3], *columns[log2(vec) + PAIR_BITS :], *rows[4:])
    warp = [_column(width << i) for i in range(log2(across))] + [_row(height << i) for i in range(log2(down))]
    spare = [(0, 0)] * (log2(warps) - len(warp))
    return Linear(tuple(shape), reg, (*pairs, *rows[:3]), (*warp, *spare))


def split_of(shape: Sequence[int], warps: int, rows_first: bool) -> int:
    """Into how many parts the columns are split among `warps`: such that least is read of the operands."""
    m, n = shape
    fitting = [a for a in (1 << i for i in range(log2(warps) + 1)) if a * ATOM[1] <= n and warps // a * ATOM[0] <= m]
    if not fitting:
        return max(1, warps * ATOM[0] // m)
    return fitting[0] if rows_first else min(fitting, key=lambda a: (n // a + m * a // warps, a))


class Bits(NamedTuple):
    """The register bits of an accumulator that number its rows (the first: eight rows of one atom) and its columns
    (without bit 0, the pair)."""

    rows: list[int]
    columns: list[int]


def accumulator_bits(layout: Linear) -> Bits | None:
    """The register bits of a layout if it is the accumulator of a matrix product, else None."""
    if len(layout.shape) != 2 or len(layout.reg) < 2 or len(layout.lane) != LANE_BITS:
        return None
    pairs, groups = (layout.reg[0], *layout.lane[:PAIR_BITS]), layout.lane[PAIR_BITS:]
    rows = [i for i, b in enumerate(layout.reg) if b[0]]
    columns = [i for i, b in enumerate(layout.reg) if i and b[1]]
    pure = all(not (b[0] and b[1]) for b in layout.bases)
    if not pure or not rows or sorted([0, *rows, *columns]) != list(range(len(layout.reg))):
        return None
    if any(b[0] or not b[1] for b in pairs) or any(b[1] or not b[0] for b in groups):
        return None
    return Bits(rows, columns)


def fragment(acc: Linear, operand: int, depth: int, bytes_each: int = 2) -> Linear:
    """Who holds what of operand 0 ([m, k]) or 1 ([k, n]) of a product into `acc`, of elements of `bytes_each` bytes; k
    beyond one product is in further bits."""
    bits = accumulator_bits(acc)
    assert bits is not None
    own, k = _placing(acc, operand)
    word, high = WORD_BYTES // bytes_each, atom_depth(bytes_each) // 2
    reg: list[Coordinate] = [k(1 << i) for i in range(log2(word))]
    if operand == 0:
        reg += [own(acc.reg[bits.rows[0]]), k(high), *(own(acc.reg[b]) for b in bits.rows[1:])]
        groups = acc.lane[PAIR_BITS:]
    else:
        reg += [k(high), *(own(acc.reg[b]) for b in bits.columns)]
        groups = (acc.reg[0], *acc.lane[:PAIR_BITS])
    lane = (k(word), k(2 * word), *map(own, groups))
    reg += [k(1 << i) for i in range(log2(2 * high), log2(depth))]
    return Linear(_shape(acc, operand, depth), tuple(reg), lane, tuple(map(own, acc.warp)))


class Rows(NamedTuple):
    """How a warp reads an operand matrix by matrix: `layout` has the elements of a row of 16 bytes in its first
    register bits, the lane that names the row, and the steps in the further bits; `matrices` of them a step."""

    layout: Linear
    matrices: int


def matrix_rows(acc: Linear, operand: int, depth: int, trans: bool, bytes_each: int = 2) -> Rows:
    """The rows of the matrices that make up `fragment`: along k, or, transposed, along the operand's other dimension,
    which elements of two bytes can be.

    Register bits of k beyond one product come last.
    """
    part = fragment(acc, operand, depth, bytes_each)
    _, k = _placing(acc, operand)
    inside = log2(atom_depth(bytes_each)) - 1
    along, other = [k(1 << i) for i in range(inside)], list(part.lane[PAIR_BITS:])
    row, names = (other, along) if trans else (along, other)
    matrices = part.reg[log2(WORD_BYTES // bytes_each) :]
    chosen = matrices[: min(2, len(matrices) - (log2(depth) - inside - 1))]
    lane: Bases = (*names, *chosen, *([(0, 0)] * (2 - len(chosen))))
    return Rows(Linear(part.shape, (*row, *matrices[len(chosen) :]), lane, part.warp), 1 << len(chosen))


def _shape(acc: Linear, operand: int, depth: int) -> tuple[int, int]:
    return (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])


def _placing(acc: Linear, operand: int) -> tuple[Callable[[Coordinate], Coordinate], Callable[[int], Coordinate]]:
    """The operand's coordinate of an accumulator's basis, and of a number k."""
    if operand == 0:
        return (lambda b: _row(b[0])), _column
    return (lambda b: _column(b[1])), _row
