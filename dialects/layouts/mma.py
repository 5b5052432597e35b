"""Layouts of the operands and accumulators of tensor-core instructions.

`fragments` has the layouts of one `mma.sync` instruction (an *atom*). A tile of many atoms may distribute its rows and
columns over the registers and lanes in many ways. So `accumulator_bits` recognises an accumulator by the properties
that an atom needs, and `fragment` derives the operands: an operand has the rows (or columns) in the same bits as the
accumulator.

For `wgmma`, the instruction of a warpgroup (four warps), this module makes and recognises the accumulator layout and
the operand layouts in shared memory (`Boxes`) that `dialects/kernel/wgmma.py` and `copies.py` require.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from ..kernel.barriers import WARPGROUP
from ..kernel.copies import SWIZZLES
from ..kernel.mma import MMA_ATOMS, ROWS, MmaAtom
from ..kernel.wgmma import MOST_COLUMNS, SLICE_BYTES, WARPGROUP_ROWS
from ..payload import element_bytes
from .linear import LANE_BITS, Bases, Coordinate, Linear, Shared, log2

ATOM = MMA_ATOMS[0]
"""Default atom, for tiles whose layout does not depend on the element type."""

PAIR_BITS = 2
"""Number of lane bits that select pairs of columns. The other lane bits select rows."""


def _row(n: int) -> Coordinate:
    return (n, 0)


def _column(n: int) -> Coordinate:
    return (0, n)


class Fragments(NamedTuple):
    """Register layouts of one instruction in a warp: operands [m, k] and [k, n], accumulator [m, n]."""

    lhs: Linear
    rhs: Linear
    acc: Linear


@cache
def fragments(m: int, n: int, k: int, bits: int) -> Fragments:
    """Returns the fragments of `mma.sync` m x n x k, after the tables of the PTX ISA.

    A *word* is 32 bits of operand elements that are contiguous along k, or one element of 64 bits. Its elements are in
    the lowest register bits.

    - lhs: lane t holds word t % 4 of row t // 4, then the same word of row t // 4 + 8 (if m = 16), then the same of
      words 4 and above.
    - rhs: lane t holds word t % 4 of column t // 4, then the same of words 4 and above.
    - accumulator: lane t holds columns 2 * (t % 4) and 2 * (t % 4) + 1 of row t // 4, then of row t // 4 + 8.

    Args:
        m: rows.
        n: columns.
        k: depth.
        bits: bits of an operand element.
    """

    def powers(start: int, end: int) -> list[int]:
        return [1 << i for i in range(log2(start), log2(end))]

    word = max(1, 32 // bits)
    within_word, lanes, further = powers(1, word), powers(word, 4 * word), powers(4 * word, k)
    groups, rows = powers(1, ROWS), powers(ROWS, m)
    lhs = (*map(_column, within_word), *map(_row, rows), *map(_column, further))
    rhs = (*map(_row, within_word), *map(_row, further))
    return Fragments(
        Linear((m, k), lhs, (*map(_column, lanes), *map(_row, groups)), ()),
        Linear((k, n), rhs, (*map(_row, lanes), *map(_column, groups)), ()),
        Linear((m, n), (_column(1), *map(_row, rows)), (*map(_column, powers(2, n)), *map(_row, groups)), ()),
    )


def accumulator(
    shape: Sequence[int], warps: int, *, rows_first: bool = False, vec: int = 2, atom: MmaAtom = ATOM
) -> Linear:
    """Returns the accumulator layout of a tile. The parts of the warps are about square.

    The tile has at least one atom; warps without an atom of their own replicate.

    Args:
        shape: rows and columns of the tile.
        warps: warps of the block.
        rows_first: whether the parts of the warps are as wide as possible, so that a row is in few warps.
        vec: contiguous columns that a thread holds. The atom gives a thread 2 adjacent columns. A larger number assigns
            other columns of the tile to the atom's columns, so the right operand must be read in the same order.
        atom: instruction.
    """
    m, n = shape
    across = min(split_of(shape, warps, rows_first, atom), n // atom.n)
    down = min(warps // across, m // atom.m)
    width, height = n // across, m // down
    vec = max(2, min(vec, width // 4))
    columns = [_column(1 << i) for i in range(log2(width))]
    rows = [_row(1 << i) for i in range(log2(height))]
    own_columns, pairs = columns[: log2(vec)], columns[log2(vec) : log2(vec) + PAIR_BITS]
    reg = (*own_columns, *rows[3 : log2(atom.m)], *columns[log2(vec) + PAIR_BITS :], *rows[log2(atom.m) :])
    warp = [_column(width << i) for i in range(log2(across))] + [_row(height << i) for i in range(log2(down))]
    spare = [(0, 0)] * (log2(warps) - len(warp))
    return Linear(tuple(shape), reg, (*pairs, *rows[:3]), (*warp, *spare))


def split_of(shape: Sequence[int], warps: int, rows_first: bool, atom: MmaAtom) -> int:
    """Returns the number of warps along the columns for which each warp reads the fewest operand elements.

    Args:
        shape: rows and columns of the tile.
        warps: warps of the block.
        rows_first: whether to use the smallest possible number.
        atom: instruction.
    """
    m, n = shape
    splits = (1 << i for i in range(log2(warps) + 1))
    fitting = [across for across in splits if across * atom.n <= n and warps // across * atom.m <= m]
    if not fitting:
        return max(1, warps * atom.m // m)
    return fitting[0] if rows_first else min(fitting, key=lambda a: (n // a + m * a // warps, a))


class Bits(NamedTuple):
    """Register bits of an accumulator. `rows`: those that number rows, first the ones inside an atom. `columns`: those
    that number columns, except bit 0, which selects within a pair."""

    rows: list[int]
    columns: list[int]


def accumulator_bits(layout: Linear, atom: MmaAtom = ATOM) -> Bits | None:
    """Returns the row and column bits of a layout that is an accumulator of `atom`, else None."""
    if len(layout.shape) != 2 or len(layout.reg) < 1 or len(layout.lane) != LANE_BITS:
        return None
    pairs, groups = (layout.reg[0], *layout.lane[:PAIR_BITS]), layout.lane[PAIR_BITS:]
    rows = [i for i, b in enumerate(layout.reg) if b[0]]
    columns = [i for i, b in enumerate(layout.reg) if i and b[1]]
    pure = all(not (b[0] and b[1]) for b in layout.bases)
    if not pure or len(rows) < atom.row_bits or sorted([0, *rows, *columns]) != list(range(len(layout.reg))):
        return None
    if any(b[0] or not b[1] for b in pairs) or any(b[1] or not b[0] for b in groups):
        return None
    return Bits(rows, columns)


def fragment(acc: Linear, operand: int, depth: int, atom: MmaAtom = ATOM) -> Linear:
    """Returns the register layout of an operand of a matmul into `acc`.

    Args:
        acc: accumulator layout, one that `accumulator_bits` recognises.
        operand: 0 for the left operand [m, k], 1 for the right operand [k, n].
        depth: extent of k; bits of k beyond one atom are the last register bits.
        atom: instruction.
    """
    bits = accumulator_bits(acc, atom)
    assert bits is not None
    one = fragments(atom.m, atom.n, atom.k, 8 * element_bytes(atom.element))
    k = (_column, _row)[operand]
    acc_bases = (acc.reg[0], *(acc.reg[b] for b in bits.rows[: atom.row_bits]), *acc.lane)
    basis_of = dict(zip((*one.acc.reg, *one.acc.lane), acc_bases, strict=True))

    def moved(bases: Iterable[Coordinate]) -> Bases:
        return tuple(b if b[1 - operand] else basis_of[b] for b in bases)

    blocks = [acc.reg[b] for b in (bits.rows[atom.row_bits :], bits.columns)[operand]]
    further = [k(1 << i) for i in range(log2(atom.k), log2(depth))]
    warp = tuple((b[0], 0) if operand == 0 else (0, b[1]) for b in acc.warp)
    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    return Linear(shape, (*moved(one[operand].reg), *blocks, *further), moved(one[operand].lane), warp)


class Rows(NamedTuple):
    """Access pattern of `ldmatrix`, which reads 8x8 matrices in rows of 16 bytes.

    layout: the rows whose addresses a lane supplies, written as a layout of their elements: the lowest register bits
        number the elements of a row, the other register bits number the instructions.
    matrices: matrices that one instruction reads.
    """

    layout: Linear
    matrices: int


def matrix_rows(acc: Linear, operand: int, depth: int, trans: bool, atom: MmaAtom = ATOM) -> Rows:
    """Returns the `ldmatrix` access pattern that loads `fragment`. Register bits of k beyond one atom are the last.

    Args:
        acc: accumulator layout.
        operand: 0 for the left operand [m, k], 1 for the right operand [k, n].
        depth: extent of k.
        trans: whether rows are contiguous along m or n instead of k, for two-byte elements.
        atom: instruction.
    """
    part, k = fragment(acc, operand, depth, atom), (_column, _row)[operand]
    along, other = [k(1 << i) for i in range(log2(4 * atom.word))], list(part.lane[PAIR_BITS:])
    row, names = (other, along) if trans else (along, other)
    matrices = part.reg[log2(atom.word) :]
    chosen = matrices[: min(2, len(matrices) - log2(depth // atom.k))]
    lane: Bases = (*names, *chosen, *([(0, 0)] * (2 - len(chosen))))
    return Rows(Linear(part.shape, (*row, *matrices[len(chosen) :]), lane, part.warp), 1 << len(chosen))


PIECE = 16
"""Bytes of a 16-byte unit, which a TMA swizzle moves as a whole."""

PERIOD = 128
"""Bytes after which the banks of shared memory repeat. A TMA swizzle depends on the address divided by this."""

LEAST_COLUMNS = 8
"""Minimum number of columns of a `wgmma` instruction (PTX ISA)."""


def warpgroup_accumulator(shape: Sequence[int], warps: int) -> Linear | str:
    """Returns the `wgmma` accumulator layout of a tile [m, n] in `warps` warps, or the reason why there is none, as
    text.

    Each warpgroup has 64 rows. It has all columns, or an equal part of them if there are more warpgroups than 64-row
    parts.
    """
    m, n = shape
    groups = warps // WARPGROUP
    down = m // WARPGROUP_ROWS
    if warps % WARPGROUP or not down or m % WARPGROUP_ROWS:
        return f"expected whole warpgroups of {WARPGROUP_ROWS} rows, but got {m} rows in {warps} warps"
    if down > groups:
        return f"expected at most {groups * WARPGROUP_ROWS} rows ({WARPGROUP_ROWS} for each warpgroup), but got {m}"
    across = groups // down
    width = n // across
    if not LEAST_COLUMNS <= width <= MOST_COLUMNS:
        return f"expected {LEAST_COLUMNS} to {MOST_COLUMNS} columns for a warpgroup, but got {width}"
    reg = [(0, 1), (8, 0), *((0, 8 << i) for i in range(log2(width) - 3))]
    lane = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    warp = [(16, 0), (32, 0), *((WARPGROUP_ROWS << i, 0) for i in range(log2(down)))]
    warp += [(0, width << i) for i in range(log2(across))]
    return Linear((m, n), tuple(reg), tuple(lane), tuple(warp))


def part_of_group(shape: Sequence[int], groups: Sequence[Coordinate]) -> tuple[int, ...] | None:
    """Returns the extents of the part of a tile that one warpgroup holds.

    None means that a warpgroup's part is not a contiguous block, or that there is only one warpgroup.

    Args:
        shape: extents of the tile.
        groups: bases of the bits of the warpgroup number. Each must be the highest remaining bit of one dimension, so
            that it halves the tile.
    """
    extents = list(shape)
    for basis in reversed(groups):
        d = next((d for d, c in enumerate(basis) if c), None)
        if d is None or any(c for e, c in enumerate(basis) if e != d) or 2 * basis[d] != extents[d]:
            return None
        extents[d] //= 2
    return tuple(extents) if groups else None


class Boxes(NamedTuple):
    """Shared layout of a 2-D tile as TMA writes it: panels, one after the other, of rows with a TMA swizzle.

    fast: dimension that is contiguous in a row.
    row: elements of a row.
    swizzle: bytes of a row, which are also the TMA swizzle mode (128, 64 or 32 bytes).
    """

    fast: int
    row: int
    swizzle: int

    def layout(self, shape: Sequence[int], bytes_each: int) -> Shared:
        """Returns the shared layout of a tile of `shape` whose elements have `bytes_each` bytes."""
        slow = 1 - self.fast

        def basis(along_fast: int, along_slow: int) -> Coordinate:
            return (along_fast, along_slow) if self.fast == 0 else (along_slow, along_fast)

        fast_bits = [basis(1 << i, 0) for i in range(log2(shape[self.fast]))]
        inside = log2(self.row)
        first, pieces = log2(PERIOD // self.swizzle), log2(self.swizzle // PIECE)
        rows = [
            basis((PIECE // bytes_each) << i - first if first <= i < first + pieces else 0, 1 << i)
            for i in range(log2(shape[slow]))
        ]
        return Shared(tuple(shape), (*fast_bits[:inside], *rows, *fast_bits[inside:]))


def boxes_along(shape: Sequence[int], fast: int, bytes_each: int, widest: int = max(SWIZZLES)) -> Boxes | None:
    """Returns the TMA layout with the widest rows, or None if the tile is too small.

    Args:
        shape: extents of the 2-D tile.
        fast: dimension along which rows are contiguous.
        bytes_each: bytes of an element.
        widest: maximum bytes of a row.
    """
    width = min(shape[fast] * bytes_each, widest)
    if width not in SWIZZLES or width < SLICE_BYTES or shape[1 - fast] < 8:
        return None
    return Boxes(fast, width // bytes_each, width)


def boxes_of(shared: Shared, bytes_each: int) -> Boxes | None:
    """Returns the TMA layout that equals `shared`, or None if there is none."""
    if len(shared.shape) != 2:
        return None
    for fast in (1, 0):
        for widest in SWIZZLES[:0:-1]:
            boxes = boxes_along(shared.shape, fast, bytes_each, widest)
            if boxes is not None and boxes.layout(shared.shape, bytes_each) == shared:
                return boxes
    return None
