"""Linear layouts over GF(2): the algebra behind `#tile.layout` and `#tile.shared`, free of IR.

A `Linear` sends the bits of (register, lane, warp) to the coordinates of a tile, a `Shared` the bits of an element
offset in shared memory. Both are linear over GF(2): the coordinate of a set of bits is the exclusive or of their bases.
Tiles have power-of-two extents, so a coordinate fits in one integer (`pack`: its row-major position), and questions
about layouts become questions about small sets of integers: which registers are contiguous in memory, which lanes hold
the same element, how one layout is turned into another.

A swizzle is searched for: every slow bit of the offset may be added, by exclusive or, to one of the bits that choose
the bank, and the choice with the fewest wavefronts over all accesses wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from math import prod
from typing import NamedTuple, TypeAlias

Coordinate: TypeAlias = tuple[int, ...]
Bases: TypeAlias = tuple[Coordinate, ...]

LANES = 32
LANE_BITS = 5


def log2(n: int) -> int:
    """The exponent of the power of two `n`; ValueError for anything else."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"{n} is not a power of two")
    return n.bit_length() - 1


def pack(shape: Sequence[int], coordinate: Sequence[int]) -> int:
    """The row-major position of `coordinate`; exclusive or of coordinates is exclusive or of positions."""
    position = 0
    for extent, c in zip(shape, coordinate, strict=True):
        position = position * extent + c
    return position


def unpack(shape: Sequence[int], position: int) -> Coordinate:
    coordinate: list[int] = []
    for extent in reversed(shape):
        coordinate.append(position % extent)
        position //= extent
    return tuple(reversed(coordinate))


def combine(images: Sequence[int], number: int) -> int:
    """The exclusive or of the images of the set bits of `number`."""
    return reduce(int.__xor__, (image for bit, image in enumerate(images) if number >> bit & 1), 0)


def combinations(images: Iterable[int], first: int = 0) -> tuple[int, ...]:
    """`first ^ combine(images, n)` for every number n of as many bits: a tile of a core has tens of thousands."""
    found = [first]
    for image in images:
        found += [f ^ image for f in found]
    return tuple(found)


class Span:
    """The span of vectors over GF(2), each remembered as a combination of the vectors that were added."""

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._reduced: list[tuple[int, int]] = []
        self.size = 0
        for v in vectors:
            self.add(v)

    def _reduce(self, vector: int) -> tuple[int, int]:
        combination = 0
        for v, c in self._reduced:
            if vector ^ v < vector:
                vector, combination = vector ^ v, combination ^ c
        return vector, combination

    def add(self, vector: int) -> bool:
        """Add a vector; whether it was independent of those before it."""
        rest, combination = self._reduce(vector)
        number, self.size = self.size, self.size + 1
        if rest:
            self._reduced.append((rest, combination | 1 << number))
            self._reduced.sort(reverse=True)
        return bool(rest)

    @property
    def rank(self) -> int:
        return len(self._reduced)

    def solve(self, vector: int) -> int | None:
        """A set of added vectors, as a bit mask of their numbers, that combines to `vector`; None if there is none."""
        rest, combination = self._reduce(vector)
        return None if rest else combination

    def solve_all(self, vectors: Iterable[int]) -> list[int] | None:
        """`solve` of each vector; None if there is none for some."""
        found = [self.solve(v) for v in vectors]
        known = [f for f in found if f is not None]
        return known if len(known) == len(found) else None


@dataclass(frozen=True)
class Reduction:
    """How a tile is reduced: which register bits are folded by each thread, which lanes are exchanged by shuffles
    (as masks for an exclusive or), and over which bits of the warp number partial results meet in shared memory."""

    registers: tuple[int, ...]
    shuffles: tuple[int, ...]
    warps: tuple[int, ...]


@dataclass(frozen=True)
class Redundant:
    """Bits that may be held at zero without losing an element: their holders only repeat what others hold."""

    reg: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """Who holds which element of a tile of `shape` in registers. `lane` has log2(lanes) bases, `warp` log2(warps)."""

    shape: tuple[int, ...]
    reg: Bases
    lane: Bases
    warp: Bases

    @property
    def registers(self) -> int:
        """Registers a thread uses for the tile (of the element's width)."""
        return 1 << len(self.reg)

    @property
    def lanes(self) -> int:
        return 1 << len(self.lane)

    @property
    def warps(self) -> int:
        return 1 << len(self.warp)

    @property
    def parts(self) -> tuple[Bases, Bases, Bases]:
        return self.reg, self.lane, self.warp

    @property
    def bases(self) -> Bases:
        """All bases: of registers, then lanes, then warps."""
        return self.reg + self.lane + self.warp

    @cached_property
    def packed(self) -> tuple[int, ...]:
        return tuple(pack(self.shape, b) for b in self.bases)

    def apply(self, reg: int, lane: int, warp: int) -> Coordinate:
        """The coordinate of the element in register `reg` of thread (`lane`, `warp`)."""
        number = reg | lane << len(self.reg) | warp << len(self.reg) + len(self.lane)
        return unpack(self.shape, combine(self.packed, number))

    @property
    def is_surjective(self) -> bool:
        """Whether every element is held by someone."""
        return 1 << Span(self.packed).rank == prod(self.shape)

    @property
    def is_injective(self) -> bool:
        """Whether no element is held twice."""
        return Span(self.packed).rank == len(self.packed)

    @property
    def is_bijective(self) -> bool:
        return self.is_surjective and self.is_injective

    def redundant(self) -> Redundant:
        """The bits that only replicate, so that a store leaves them out; registers are kept in favour of threads."""
        span, shape = Span(), self.shape
        bits = [[bit for bit, basis in enumerate(part) if not span.add(pack(shape, basis))] for part in self.parts]
        return Redundant(*map(tuple, bits))

    def compact(self) -> tuple[Linear, tuple[int, ...]]:
        """This layout without registers that repeat others, and which registers are left."""
        gone = set(self.redundant().reg)
        left = [b for b in range(len(self.reg)) if b not in gone]
        layout = Linear(self.shape, tuple(self.reg[b] for b in left), self.lane, self.warp)
        return layout, combinations(1 << b for b in left)

    def drop(self, dims: Collection[int]) -> Linear:
        """The layout of the tile without `dims`: of what a reduction leaves, or of what is broadcast along them.

        Registers that would only repeat others are given up; lanes and warps stay and replicate.
        """
        return self.without(dims).compact()[0]

    def without(self, dims: Collection[int]) -> Linear:
        """The layout with the coordinates along `dims` left out, and all bases kept."""
        left = [d for d in range(len(self.shape)) if d not in dims]
        reg, lane, warp = (tuple(tuple(b[d] for d in left) for b in part) for part in self.parts)
        return Linear(tuple(self.shape[d] for d in left), reg, lane, warp)

    def part(self, dim: int, size: int) -> Linear | None:
        """The layout of an aligned part with `size` elements along `dim`, if every thread holds its share of each part
        in registers of its own; else None."""
        kept: list[Coordinate] = []
        for b in self.reg:
            if b[dim] < size:
                kept.append(b)
            elif b[dim] % size or any(c for d, c in enumerate(b) if d != dim):
                return None
        if any(b[dim] >= size for b in (*self.lane, *self.warp)):
            return None
        shape = tuple(size if d == dim else n for d, n in enumerate(self.shape))
        return Linear(shape, tuple(kept), self.lane, self.warp)

    def registers_of(self, part: Linear, start: Sequence[int]) -> tuple[int, ...]:
        """For each register of `part`, a layout that `part` has made, the register that holds its element when the part
        starts at `start`."""
        span = Span(self.packed[: len(self.reg)])
        images = span.solve_all(pack(self.shape, b) for b in (*part.reg, tuple(start)))
        if images is None:
            raise ValueError(f"{part} at {tuple(start)} is not held by the same threads as {self}")
        *bits, first = images
        return combinations(bits, first)

    def reduction(self, dims: Collection[int]) -> Reduction | None:
        """How to reduce over `dims`; None if some base mixes reduced and kept dimensions or repeats another."""
        # For each base, whether it moves along reduced dimensions (True), along others (False), or along both.
        touched = [[{d in dims for d, c in enumerate(b) if c} for b in part] for part in self.parts]
        used = [p for p in self.packed if p]
        if any(len(kinds) > 1 for part in touched for kinds in part) or Span(used).rank != len(used):
            return None
        reg, lane, warp = (tuple(bit for bit, kinds in enumerate(part) if kinds == {True}) for part in touched)
        return Reduction(reg, tuple(1 << bit for bit in lane), warp)

    def picks(self, source: Linear) -> tuple[int, ...] | None:
        """For each register of this layout, the register of `source` that holds the same element in the same thread;
        None if some thread needs an element of another."""
        if self.shape != source.shape or (self.lane, self.warp) != (source.lane, source.warp):
            return None
        images = Span(source.packed[: len(source.reg)]).solve_all(self.packed[: len(self.reg)])
        return None if images is None else combinations(images)


@dataclass(frozen=True)
class Shared:
    """A tile in shared memory: bit i of the element offset owns the coordinate `offset[i]`; a bijection."""

    shape: tuple[int, ...]
    offset: Bases

    @cached_property
    def _span(self) -> Span:
        return Span(pack(self.shape, b) for b in self.offset)

    @property
    def size(self) -> int:
        return 1 << len(self.offset)

    @property
    def is_bijective(self) -> bool:
        return self._span.rank == len(self.offset) and prod(self.shape) == self.size

    def place(self, coordinate: Sequence[int]) -> int:
        """The element offset at which `coordinate` is kept; linear in the coordinate over GF(2)."""
        found = self._span.solve(pack(self.shape, coordinate))
        if found is None:
            raise ValueError(f"{tuple(coordinate)} has no place in {self}")
        return found

    def images(self, bases: Iterable[Coordinate]) -> list[int]:
        return [self.place(b) for b in bases]


def ordered(shape: Sequence[int], order: Sequence[int], swizzle: Sequence[tuple[int, int]] = ()) -> Shared:
    """A shared layout with the dimensions `order` from fastest to slowest: row-major is (1, 0) for a matrix.

    Every pair (from, to) of `swizzle`, offsets with one bit set, adds `to` by exclusive or to the place of what lies at
    `from`; `from` is above `to`.
    """
    bases = [basis for d in order for basis in dimension_bits(shape, d)]
    for source, target in swizzle:
        bases[log2(source)] = tuple(map(int.__xor__, bases[log2(source)], bases[log2(target)]))
    return Shared(tuple(shape), tuple(bases))


@cache
def wavefronts(lanes: tuple[int, ...], vec: int, element_bytes: int) -> int:
    """How many times 128 bytes of shared memory are moved for one access of a warp, in which lane bit i adds `lanes[i]`
    elements to the offset (by exclusive or) and each lane moves `vec` elements."""
    width, total = vec * element_bytes, 0
    together = LANES * 4 // max(width, 4)
    for first in range(0, LANES, together):
        starts = [combine(lanes, lane) * element_bytes for lane in range(first, first + together)]
        words = {word for start in starts for word in range(start // 4, (start + width + 3) // 4)}
        total += max(Counter(word % 32 for word in words).values())
    return total


def register_width(images: Sequence[int], others: Iterable[int], limit: int) -> int:
    """The widest access, up to `limit` elements, whose registers are consecutive: register bit i adds `images[i]` to
    the offset, `others` is what else may be added."""
    vec, bit = 1, 0
    rest = list(others)
    while vec < limit and bit < len(images) and images[bit] == vec:
        if any(i % (2 * vec) for i in (*rest, *images[bit + 1 :])):
            break
        vec, bit = 2 * vec, bit + 1
    return vec


def unit(rank: int, dim: int, value: int) -> Coordinate:
    """The coordinate that is `value` along `dim` and 0 along all others."""
    return tuple(value if d == dim else 0 for d in range(rank))


def dimension_bits(shape: Sequence[int], dim: int) -> list[Coordinate]:
    """The coordinates of the bits along `dim`, low bits first."""
    return [unit(len(shape), dim, 1 << bit) for bit in range((shape[dim] - 1).bit_length())]


def padded(bits: Sequence[Coordinate], count: int, rank: int) -> Bases:
    """The first `count` of `bits`, and zero bases, which replicate, once these are exhausted."""
    return (*bits[:count], *[(0,) * rank] * (count - len(bits)))


def blocked(
    shape: Sequence[int],
    order: Sequence[int],
    vec: int,
    warps: int,
    warp_order: Sequence[int] | None = None,
    lanes: int = LANES,
) -> Linear:
    """Threads side by side: `vec` elements a thread along `order[0]`, lanes along `order`, then warps.

    `order` lists the dimensions from the fastest to the slowest; `warp_order` overrides it for warps. A tile larger
    than the block repeats the pattern in further registers, a smaller one is replicated.
    """
    bits = [dimension_bits(shape, d) for d in range(len(shape))]
    vector = bits[order[0]][: log2(vec)]
    lane = [basis for d in order for basis in bits[d] if basis not in vector][: log2(lanes)]
    warp = [basis for d in warp_order or order for basis in bits[d] if basis not in (*vector, *lane)][: log2(warps)]
    reg = tuple(basis for d in order for basis in bits[d] if basis not in (*lane, *warp))
    rank = len(shape)
    return Linear(tuple(shape), reg, padded(lane, log2(lanes), rank), padded(warp, log2(warps), rank))


def patch(shape: Sequence[int], thread_rows: int, warps: int, row_in_warp: bool = False, lanes: int = LANES) -> Linear:
    """The accumulator of a contraction computed with scalar fused multiply-adds.

    Each thread owns `thread_rows` rows and as many columns as that leaves, in groups of up to four that are contiguous
    along each dimension, so that operands are read 16 bytes at a time. `row_in_warp` keeps a row within as few warps as
    possible (where rows are reduced later); otherwise a warp is about square. Which rows a thread owns does not depend
    on the number of columns, so contractions that share rows agree on them.
    """
    rows, columns = dimension_bits(shape, 0), dimension_bits(shape, 1)
    lane_bits, thread_bits = log2(lanes), log2(lanes * warps)
    row_bits = min(max(len(rows) - log2(thread_rows), 0), thread_bits)
    column_bits = thread_bits - row_bits
    low_rows, low_columns = min(2, len(rows) - row_bits), min(2, max(len(columns) - column_bits, 0))
    down, across = rows[low_rows : low_rows + row_bits], padded(columns[low_columns:], column_bits, 2)
    lane_rows = min(row_bits, lane_bits - min(column_bits, lane_bits if row_in_warp else 3))
    lane_columns = lane_bits - lane_rows
    lane, warp = (*across[:lane_columns], *down[:lane_rows]), (*across[lane_columns:], *down[lane_rows:])
    held_columns = columns[:low_columns] + columns[low_columns + column_bits :]
    reg = (*held_columns, *rows[:low_rows], *rows[low_rows + row_bits :])
    return Linear(tuple(shape), reg, lane, warp)


def is_disjoint(images: Sequence[int]) -> bool:
    """Whether no two images share a bit, so that exclusive or is addition."""
    return sum(images) == reduce(int.__or__, images, 0)


def operand_layout(acc: Linear, operand: int, depth: int) -> Linear:
    """Returns the elements of operand 0 ([m, k]) or 1 ([k, n]) at k = 0 that threads need for a contraction into
    `acc`."""

    def own(b: Coordinate) -> Coordinate:
        return (b[0], 0) if operand == 0 else (0, b[1])

    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    reg = tuple(own(b) for b in acc.reg if b[operand])
    return Linear(shape, reg, tuple(map(own, acc.lane)), tuple(map(own, acc.warp)))


IMPOSSIBLE = 1 << 40
"""More than any access costs."""


@dataclass(frozen=True)
class Reader:
    """An access to a shared tile by the threads of a layout, `weight` times as often as others. `elements` must be
    contiguous: with fewer the access is wrong."""

    layout: Linear
    bytes_each: int
    weight: int = 1
    elements: int = 1

    def cost(self, shared: Shared) -> tuple[int, bool]:
        """Returns the weighted cost of one warp for all its registers, mostly wavefronts, and true if no layout with
        accesses of this width could be cheaper."""
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
    """Returns the shared layout on which `readers` take the fewest wavefronts; the plainest of equals.

    Candidates are row-major order, and that with the first dimension contiguous, each with swizzles. `by_order` has
    further readers for either.
    """
    rank = len(shape)
    if rank == 1:
        return ordered(shape, (0,))
    orders = [(*reversed(range(rank)),), (0, *reversed(range(1, rank)))]
    more = by_order or [()] * len(orders)
    best = [_swizzled(tuple(shape), o, [*readers, *m]) for o, m in zip(orders, more, strict=True)]
    return min(best, key=lambda candidate: candidate.cost).layout


class _Candidate(NamedTuple):
    """A shared layout with the pairs of `ordered` that swizzle it. `free`: no swizzle could be cheaper."""

    cost: int
    free: bool
    layout: Shared
    swizzle: tuple[tuple[int, int], ...]


def _swizzled(shape: tuple[int, ...], order: Sequence[int], readers: Sequence[Reader]) -> _Candidate:
    """Returns the layout with the best swizzle on one order of dimensions, which is searched bit by bit."""

    def candidate(*swizzle: tuple[int, int]) -> _Candidate:
        layout = ordered(shape, order, swizzle)
        costs, free = zip(*(r.cost(layout) for r in readers), strict=True)
        return _Candidate(sum(costs), all(free), layout, swizzle)

    best = candidate()
    banks = log2(128 // min(r.bytes_each for r in readers))
    for bit in range(log2(shape[order[0]]), log2(prod(shape))):
        if not best.free:
            targets = reversed(range(min(bit, banks)))
            swizzled = [candidate(*best.swizzle, (1 << bit, 1 << target)) for target in targets]
            best = min([best, *swizzled], key=lambda candidate: candidate.cost)
    return best
