"""Layouts of matrix products on tensor cores: who holds what of the accumulator and of the operands.

`fragments` is one `mma.sync`. In a tile, which of its columns and rows the accumulator's registers and lanes hold is
free, so a layout is described by what must hold, and operands follow from it: wherever an accumulator's bit of the row
(or column) goes, that bit of the left (or right) operand goes too.

Of products of a warpgroup (`wgmma`), the layouts that `dialects/kernel/wgmma.py` and `copies.py` demand are made, and
recognised: the accumulator, and operands in boxes in shared memory.
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
"""The atom that tiles are made for where their type does not matter."""

PAIR_BITS = 2
"""Lane bits that choose among pairs of columns; the others choose among rows."""


def _row(n: int) -> Coordinate:
    return (n, 0)


def _column(n: int) -> Coordinate:
    return (0, n)


class Fragments(NamedTuple):
    """What a warp holds of one instruction: its operands [m, k] and [k, n] and its accumulator [m, n]."""

    lhs: Linear
    rhs: Linear
    acc: Linear


@cache
def fragments(m: int, n: int, k: int, bits: int) -> Fragments:
    """The fragments of `mma.sync` m x n x k with operands of `bits` bits, by the tables of the PTX ISA.

    A lane t holds words of the operands: as many neighbours along k as 32 bits have, or one. Its word t % 4 is of row
    (or column) t / 4; further registers have the rows from 8 on, then the words from 4 on. Of the accumulator it holds
    columns 2 * (t % 4) and the next one, of row t / 4 and, in further registers, of the rows from 8 on.
    """

    def powers(start: int, end: int) -> list[int]:
        return [1 << i for i in range(log2(start), log2(end))]

    word = max(1, 32 // bits)
    own, lanes, further = powers(1, word), powers(word, 4 * word), powers(4 * word, k)
    groups, rows = powers(1, ROWS), powers(ROWS, m)
    lhs = (*map(_column, own), *map(_row, rows), *map(_column, further))
    rhs = (*map(_row, own), *map(_row, further))
    return Fragments(
        Linear((m, k), lhs, (*map(_column, lanes), *map(_row, groups)), ()),
        Linear((k, n), rhs, (*map(_row, lanes), *map(_column, groups)), ()),
        Linear((m, n), (_column(1), *map(_row, rows)), (*map(_column, powers(2, n)), *map(_row, groups)), ()),
    )


def accumulator(
    shape: Sequence[int], warps: int, *, rows_first: bool = False, vec: int = 2, atom: MmaAtom = ATOM
) -> Linear:
    """The accumulator of a tile in `warps` warps, whose parts are about square, or with `rows_first` as wide as
    possible, so that a row is in as few warps as possible.

    `vec` is how many neighbouring columns a thread should hold: 2 as in the plain atom, or more where the operand may
    be read with its columns in another order. The tile is at least one atom; warps without one of their own replicate.
    """
    m, n = shape
    across = min(split_of(shape, warps, rows_first, atom), n // atom.n)
    down = min(warps // across, m // atom.m)
    width, height = n // across, m // down
    vec = max(2, min(vec, width // 4))
    columns = [_column(1 << i) for i in range(log2(width))]
    rows = [_row(1 << i) for i in range(log2(height))]
    own, pairs = columns[: log2(vec)], columns[log2(vec) : log2(vec) + PAIR_BITS]
    reg = (*own, *rows[3 : log2(atom.m)], *columns[log2(vec) + PAIR_BITS :], *rows[log2(atom.m) :])
    warp = [_column(width << i) for i in range(log2(across))] + [_row(height << i) for i in range(log2(down))]
    spare = [(0, 0)] * (log2(warps) - len(warp))
    return Linear(tuple(shape), reg, (*pairs, *rows[:3]), (*warp, *spare))


def split_of(shape: Sequence[int], warps: int, rows_first: bool, atom: MmaAtom) -> int:
    """Into how many parts the columns are split among `warps`: such that least is read of the operands."""
    m, n = shape
    ways = (1 << i for i in range(log2(warps) + 1))
    fitting = [across for across in ways if across * atom.n <= n and warps // across * atom.m <= m]
    if not fitting:
        return max(1, warps * atom.m // m)
    return fitting[0] if rows_first else min(fitting, key=lambda a: (n // a + m * a // warps, a))


class Bits(NamedTuple):
    """The register bits of an accumulator that number its rows (first those inside of an atom) and its columns (without
    bit 0, the pair)."""

    rows: list[int]
    columns: list[int]


def accumulator_bits(layout: Linear, atom: MmaAtom = ATOM) -> Bits | None:
    """The register bits of a layout if it is the accumulator of a matrix product by `atom`, else None."""
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
    """Who holds what of operand 0 ([m, k]) or 1 ([k, n]) of a product into `acc` by `atom`; k beyond one product is in
    further bits."""
    bits = accumulator_bits(acc, atom)
    assert bits is not None
    one = fragments(atom.m, atom.n, atom.k, 8 * element_bytes(atom.element))
    k = (_column, _row)[operand]
    held = (acc.reg[0], *(acc.reg[b] for b in bits.rows[: atom.row_bits]), *acc.lane)
    place = dict(zip((*one.acc.reg, *one.acc.lane), held, strict=True))

    def own(bases: Iterable[Coordinate]) -> Bases:
        return tuple(b if b[1 - operand] else place[b] for b in bases)

    blocks = [acc.reg[b] for b in (bits.rows[atom.row_bits :], bits.columns)[operand]]
    further = [k(1 << i) for i in range(log2(atom.k), log2(depth))]
    warp = tuple((b[0], 0) if operand == 0 else (0, b[1]) for b in acc.warp)
    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    return Linear(shape, (*own(one[operand].reg), *blocks, *further), own(one[operand].lane), warp)


class Rows(NamedTuple):
    """How a warp reads an operand matrix by matrix: `layout` has the elements of a row of 16 bytes in its first
    register bits, the lane that names the row, and the steps in the further bits; `matrices` of them a step."""

    layout: Linear
    matrices: int


def matrix_rows(acc: Linear, operand: int, depth: int, trans: bool, atom: MmaAtom = ATOM) -> Rows:
    """The rows of the matrices that make up `fragment`: along k, or, transposed, along the operand's other dimension,
    which elements of two bytes can be.

    Register bits of k beyond one product come last.
    """
    part, k = fragment(acc, operand, depth, atom), (_column, _row)[operand]
    along, other = [k(1 << i) for i in range(log2(4 * atom.word))], list(part.lane[PAIR_BITS:])
    row, names = (other, along) if trans else (along, other)
    matrices = part.reg[log2(atom.word) :]
    chosen = matrices[: min(2, len(matrices) - log2(depth // atom.k))]
    lane: Bases = (*names, *chosen, *([(0, 0)] * (2 - len(chosen))))
    return Rows(Linear(part.shape, (*row, *matrices[len(chosen) :]), lane, part.warp), 1 << len(chosen))


PIECE = 16
"""Bytes that a swizzle moves together."""

PERIOD = 128
"""Bytes after which the banks of shared memory repeat, from which a swizzle counts rows."""

LEAST_COLUMNS = 8
"""Columns of the smallest product."""


def warpgroup_accumulator(shape: Sequence[int], warps: int) -> Linear | str:
    """The accumulator of a tile [m, n] in `warps` warps: each warpgroup has 64 rows, and all columns or, where there
    are more warpgroups than 64 rows, an equal part of them. A text says why there is none."""
    m, n = shape
    groups = warps // WARPGROUP
    down = m // WARPGROUP_ROWS
    if warps % WARPGROUP or not down or m % WARPGROUP_ROWS:
        return f"{m} rows in {warps} warps are no whole warpgroups of {WARPGROUP_ROWS} rows"
    if down > groups:
        return f"{m} rows are more than {groups} warpgroups have, {WARPGROUP_ROWS} each"
    across = groups // down
    width = n // across
    if not LEAST_COLUMNS <= width <= MOST_COLUMNS:
        return f"{width} columns for a warpgroup; it takes {LEAST_COLUMNS} to {MOST_COLUMNS}"
    reg = [(0, 1), (8, 0), *((0, 8 << i) for i in range(log2(width) - 3))]
    lane = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    warp = [(16, 0), (32, 0), *((WARPGROUP_ROWS << i, 0) for i in range(log2(down)))]
    warp += [(0, width << i) for i in range(log2(across))]
    return Linear((m, n), tuple(reg), tuple(lane), tuple(warp))


def part_of_group(shape: Sequence[int], groups: Sequence[Coordinate]) -> tuple[int, ...] | None:
    """The extents of the part of a tile that one warpgroup holds, where the bits of the warpgroup's number, whose bases
    are `groups`, are the highest of the tile's indices; None if they are anything else, or there are none."""
    left = list(shape)
    for basis in reversed(groups):
        d = next((d for d, c in enumerate(basis) if c), None)
        if d is None or any(c for e, c in enumerate(basis) if e != d) or 2 * basis[d] != left[d]:
            return None
        left[d] //= 2
    return tuple(left) if groups else None


class Boxes(NamedTuple):
    """A tile as boxes lie in shared memory: rows of `row` elements along dimension `fast`, swizzled by all their bytes;
    one panel of rows behind the other."""

    fast: int
    row: int
    swizzle: int

    def layout(self, shape: Sequence[int], bytes_each: int) -> Shared:
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
    """The widest boxes of a tile of two dimensions with rows along `fast`, of at most `widest` bytes; None if it is too
    small for any."""
    width = min(shape[fast] * bytes_each, widest)
    if width not in SWIZZLES or width < SLICE_BYTES or shape[1 - fast] < 8:
        return None
    return Boxes(fast, width // bytes_each, width)


def boxes_of(shared: Shared, bytes_each: int) -> Boxes | None:
    if len(shared.shape) != 2:
        return None
    for fast in (1, 0):
        for widest in SWIZZLES[:0:-1]:
            boxes = boxes_along(shared.shape, fast, bytes_each, widest)
            if boxes is not None and boxes.layout(shared.shape, bytes_each) == shared:
                return boxes
    return None
