"""Algebra of linear layouts over GF(2), independent of the IR. `#tile.layout` and `#tile.shared` carry its objects.

A `Linear` maps the bits of (register, lane, warp) to the coordinates of a tile. A `Shared` maps the bits of an element
offset in shared memory to coordinates. Each bit has a *basis*, the coordinate that it contributes; the coordinate of a
number is the XOR of the bases of its set bits:

    bases of 3 register bits: [0, 1], [0, 2], [1, 0]        register 5 = binary 101 holds [0, 1] ^ [1, 0] = [1, 1]

The extents of a tile are powers of two, so a coordinate fits in one integer: its row-major position (`pack`). Questions
about layouts become linear algebra on small sets of integers: whether registers are contiguous in memory, which lanes
hold the same element, or how one layout is converted to another. The *image* of a bit is its basis as such an integer,
or as an element offset.

`choose_shared` searches a swizzle. It tries to XOR every slow bit of the offset onto one of the bits that select the
bank, and takes the combination with the fewest wavefronts (transactions of 128 bytes) over all accesses.
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
    """Returns the exponent of the power of two `n`. Raises ValueError for other numbers."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"expected a power of two, but got {n}")
    return n.bit_length() - 1


def pack(shape: Sequence[int], coordinate: Sequence[int]) -> int:
    """Returns the row-major position of `coordinate`. The position of the XOR of two coordinates is the XOR of their
    positions."""
    position = 0
    for extent, c in zip(shape, coordinate, strict=True):
        position = position * extent + c
    return position


def unpack(shape: Sequence[int], position: int) -> Coordinate:
    """Returns the coordinate of a row-major position, the inverse of `pack`."""
    coordinate: list[int] = []
    for extent in reversed(shape):
        coordinate.append(position % extent)
        position //= extent
    return tuple(reversed(coordinate))


def combine(images: Sequence[int], number: int) -> int:
    """Returns the XOR of the images of the set bits of `number`."""
    return reduce(int.__xor__, (image for bit, image in enumerate(images) if number >> bit & 1), 0)


def combinations(images: Iterable[int], first: int = 0) -> tuple[int, ...]:
    """Returns `first ^ combine(images, n)` for every `n` in `range(2 ** len(images))`, in order.

    Doubling the list avoids one call of `combine` for each result: a CPU tile has tens of thousands.
    """
    results = [first]
    for image in images:
        results += [f ^ image for f in results]
    return tuple(results)


class Span:
    """Linear span of vectors over GF(2). Solves for the combination of the added vectors that yields a vector."""

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
        """Adds a vector. Returns true if it is linearly independent of the vectors added before."""
        remainder, combination = self._reduce(vector)
        number, self.size = self.size, self.size + 1
        if remainder:
            self._reduced.append((remainder, combination | 1 << number))
            self._reduced.sort(reverse=True)
        return bool(remainder)

    @property
    def rank(self) -> int:
        """Returns the dimension of the span."""
        return len(self._reduced)

    def solve(self, vector: int) -> int | None:
        """Returns a set of added vectors whose XOR is `vector`, as a bit mask of their numbers, or None if there is
        none."""
        remainder, combination = self._reduce(vector)
        return None if remainder else combination

    def solve_all(self, vectors: Iterable[int]) -> list[int] | None:
        """Returns `solve` of each vector, or None if one of them is outside of the span."""
        masks = [self.solve(v) for v in vectors]
        solutions = [f for f in masks if f is not None]
        return solutions if len(solutions) == len(masks) else None


@dataclass(frozen=True)
class Reduction:
    """Steps that reduce a tile over some of its dimensions.

    registers: register bits that each thread reduces by itself.
    shuffles: XOR masks of lanes, one for each shuffle.
    warps: bits of the warp number whose partial results are combined through shared memory.
    """

    registers: tuple[int, ...]
    shuffles: tuple[int, ...]
    warps: tuple[int, ...]


@dataclass(frozen=True)
class Redundant:
    """Bits of the register, lane and warp number that only replicate: the numbers with these bits zero hold every
    element."""

    reg: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """Layout of a tile of `shape` in registers. `reg`, `lane` and `warp` have one basis for each bit of their number.

    A layout of 32 lanes and 4 warps has five `lane` bases and two `warp` bases.
    """

    shape: tuple[int, ...]
    reg: Bases
    lane: Bases
    warp: Bases

    @property
    def registers(self) -> int:
        """Returns the number of elements that each thread holds."""
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
        """Returns all bases: of registers, then lanes, then warps."""
        return self.reg + self.lane + self.warp

    @cached_property
    def packed(self) -> tuple[int, ...]:
        """Returns all bases as row-major positions."""
        return tuple(pack(self.shape, b) for b in self.bases)

    def apply(self, reg: int, lane: int, warp: int) -> Coordinate:
        """Returns the coordinate of an element.

        Args:
            reg: register of the thread.
            lane: lane of the thread.
            warp: warp of the thread.
        """
        number = reg | lane << len(self.reg) | warp << len(self.reg) + len(self.lane)
        return unpack(self.shape, combine(self.packed, number))

    @property
    def is_surjective(self) -> bool:
        """Returns true if every element is in some register of the block."""
        return 1 << Span(self.packed).rank == prod(self.shape)

    @property
    def is_injective(self) -> bool:
        """Returns true if no element is held twice."""
        return Span(self.packed).rank == len(self.packed)

    @property
    def is_bijective(self) -> bool:
        return self.is_surjective and self.is_injective

    def redundant(self) -> Redundant:
        """Returns the bits that only replicate elements; stores skip them.

        Of a register bit and a lane or warp bit with equal bases, the lane or warp bit is reported.
        """
        span, shape = Span(), self.shape
        bits = [[bit for bit, basis in enumerate(part) if not span.add(pack(shape, basis))] for part in self.parts]
        return Redundant(*map(tuple, bits))

    def compact(self) -> tuple[Linear, tuple[int, ...]]:
        """Returns this layout without registers that replicate others, and the numbers of the remaining registers."""
        removed = set(self.redundant().reg)
        remaining = [b for b in range(len(self.reg)) if b not in removed]
        layout = Linear(self.shape, tuple(self.reg[b] for b in remaining), self.lane, self.warp)
        return layout, combinations(1 << b for b in remaining)

    def drop(self, dims: Collection[int]) -> Linear:
        """Returns the layout of the tile after a reduction over `dims`, which is also the layout to broadcast along
        `dims`.

        Registers that would replicate others are removed. Lanes and warps keep their number and replicate.
        """
        return self.without(dims).compact()[0]

    def without(self, dims: Collection[int]) -> Linear:
        """Returns the layout with the coordinates along `dims` removed and all bases kept, zero ones too."""
        remaining = [d for d in range(len(self.shape)) if d not in dims]
        reg, lane, warp = (tuple(tuple(b[d] for d in remaining) for b in part) for part in self.parts)
        return Linear(tuple(self.shape[d] for d in remaining), reg, lane, warp)

    def part(self, dim: int, size: int) -> Linear | None:
        """Returns the layout of an aligned part of the tile with `size` elements along `dim`, or None.

        None means that the parts are in different threads, or that a register basis mixes the part number with another
        coordinate.
        """
        part_reg: list[Coordinate] = []
        for b in self.reg:
            if b[dim] < size:
                part_reg.append(b)
            elif b[dim] % size or any(c for d, c in enumerate(b) if d != dim):
                return None
        if any(b[dim] >= size for b in (*self.lane, *self.warp)):
            return None
        shape = tuple(size if d == dim else n for d, n in enumerate(self.shape))
        return Linear(shape, tuple(part_reg), self.lane, self.warp)

    def registers_of(self, part: Linear, start: Sequence[int]) -> tuple[int, ...]:
        """Returns, for each register of a part of the tile, the register of this layout that holds the same element.

        Args:
            part: layout of the part, a result of `Linear.part`.
            start: coordinate of the part's first element.

        Raises:
            ValueError: the part is not held by the same threads.
        """
        span = Span(self.packed[: len(self.reg)])
        images = span.solve_all(pack(self.shape, b) for b in (*part.reg, tuple(start)))
        if images is None:
            raise ValueError(f"expected a part of {self} in the same threads, but got {part} at {tuple(start)}")
        *bits, first = images
        return combinations(bits, first)

    def reduction(self, dims: Collection[int]) -> Reduction | None:
        """Returns the steps that reduce over `dims`, or None if a basis mixes reduced and other dimensions or bases are
        dependent."""
        # The set of each basis has True if it has a coordinate along reduced dimensions, False if along others.
        touched = [[{d in dims for d, c in enumerate(b) if c} for b in part] for part in self.parts]
        used = [p for p in self.packed if p]
        if any(len(kinds) > 1 for part in touched for kinds in part) or Span(used).rank != len(used):
            return None
        reg, lane, warp = (tuple(bit for bit, kinds in enumerate(part) if kinds == {True}) for part in touched)
        return Reduction(reg, tuple(1 << bit for bit in lane), warp)

    def picks(self, source: Linear) -> tuple[int, ...] | None:
        """Returns, for each register of this layout, the register of `source` with the same element in the same thread,
        or None."""
        if self.shape != source.shape or (self.lane, self.warp) != (source.lane, source.warp):
            return None
        images = Span(source.packed[: len(source.reg)]).solve_all(self.packed[: len(self.reg)])
        return None if images is None else combinations(images)


@dataclass(frozen=True)
class Shared:
    """Bijective layout of a tile in shared memory: `offset[i]` is the coordinate of bit `i` of the element offset."""

    shape: tuple[int, ...]
    offset: Bases

    @cached_property
    def _span(self) -> Span:
        return Span(pack(self.shape, b) for b in self.offset)

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return 1 << len(self.offset)

    @property
    def is_bijective(self) -> bool:
        return self._span.rank == len(self.offset) and prod(self.shape) == self.size

    def place(self, coordinate: Sequence[int]) -> int:
        """Returns the element offset of `coordinate`, which is linear in the coordinate over GF(2)."""
        offset = self._span.solve(pack(self.shape, coordinate))
        if offset is None:
            raise ValueError(f"expected a coordinate of {self}, but got {tuple(coordinate)}")
        return offset

    def images(self, bases: Iterable[Coordinate]) -> list[int]:
        """Returns the element offsets of `bases`."""
        return [self.place(b) for b in bases]


def ordered(shape: Sequence[int], order: Sequence[int], swizzle: Sequence[tuple[int, int]] = ()) -> Shared:
    """Returns a shared layout with the given order of dimensions.

    Args:
        shape: extents of the tile.
        order: dimensions from the fastest to the slowest; row-major is (1, 0) for a matrix.
        swizzle: pairs (from, to) of offset bits, each as its power of two, with `to` below `from`. An element whose
            offset without swizzle has bit `from` set is stored with bit `to` flipped.
    """
    bases = [basis for d in order for basis in dimension_bits(shape, d)]
    for source, target in swizzle:
        bases[log2(source)] = tuple(map(int.__xor__, bases[log2(source)], bases[log2(target)]))
    return Shared(tuple(shape), tuple(bases))


@cache
def wavefronts(lanes: tuple[int, ...], vec: int, element_bytes: int) -> int:
    """Returns the number of 128-byte transactions of one access of a warp to shared memory, bank conflicts included.

    Args:
        lanes: element offset that each lane bit contributes, by XOR.
        vec: elements that each lane accesses.
        element_bytes: bytes of an element.
    """
    width, total = vec * element_bytes, 0
    lanes_per_phase = LANES * 4 // max(width, 4)
    for first in range(0, LANES, lanes_per_phase):
        starts = [combine(lanes, lane) * element_bytes for lane in range(first, first + lanes_per_phase)]
        words = {word for start in starts for word in range(start // 4, (start + width + 3) // 4)}
        total += max(Counter(word % 32 for word in words).values())
    return total


def register_width(images: Sequence[int], others: Iterable[int], limit: int) -> int:
    """Returns the widest access of a thread whose registers are contiguous and aligned, in elements.

    Args:
        images: element offset that each register bit contributes, by XOR.
        others: element offsets that lanes and warps contribute; they must keep the alignment.
        limit: maximum width in elements.
    """
    vec, bit = 1, 0
    other_offsets = list(others)
    while vec < limit and bit < len(images) and images[bit] == vec:
        if any(i % (2 * vec) for i in (*other_offsets, *images[bit + 1 :])):
            break
        vec, bit = 2 * vec, bit + 1
    return vec


def unit(rank: int, dim: int, value: int) -> Coordinate:
    """Returns the coordinate that is `value` along `dim` and 0 along all others.

    Args:
        rank: number of dimensions.
        dim: the dimension.
        value: coordinate along it.
    """
    return tuple(value if d == dim else 0 for d in range(rank))


def dimension_bits(shape: Sequence[int], dim: int) -> list[Coordinate]:
    """Returns the coordinates 1, 2, 4, … along `dim`, one for each bit of its extent."""
    return [unit(len(shape), dim, 1 << bit) for bit in range((shape[dim] - 1).bit_length())]


def padded(bits: Sequence[Coordinate], count: int, rank: int) -> Bases:
    """Returns the first `count` of `bits`, followed by zero bases (which replicate) if there are fewer.

    Args:
        bits: bases.
        count: number of bases to return.
        rank: number of dimensions of a basis.
    """
    return (*bits[:count], *[(0,) * rank] * (count - len(bits)))


def blocked(
    shape: Sequence[int],
    order: Sequence[int],
    vec: int,
    warps: int,
    warp_order: Sequence[int] | None = None,
    lanes: int = LANES,
) -> Linear:
    """Returns a layout of contiguous threads: `vec` elements per thread along `order[0]`, then lanes, then warps.

    A tile larger than the block repeats the pattern in further registers, a smaller one is replicated.

    Args:
        shape: extents of the tile.
        order: dimensions from the fastest to the slowest.
        vec: elements of a thread along `order[0]`, a power of two.
        warps: warps of the block.
        warp_order: order of dimensions for warps, `order` by default.
        lanes: lanes of a warp.
    """
    bits = [dimension_bits(shape, d) for d in range(len(shape))]
    vector = bits[order[0]][: log2(vec)]
    lane = [basis for d in order for basis in bits[d] if basis not in vector][: log2(lanes)]
    warp = [basis for d in warp_order or order for basis in bits[d] if basis not in (*vector, *lane)][: log2(warps)]
    reg = tuple(basis for d in order for basis in bits[d] if basis not in (*lane, *warp))
    rank = len(shape)
    return Linear(tuple(shape), reg, padded(lane, log2(lanes), rank), padded(warp, log2(warps), rank))


def patch(shape: Sequence[int], thread_rows: int, warps: int, row_in_warp: bool = False, lanes: int = LANES) -> Linear:
    """Returns the accumulator layout of a contraction that is computed with scalar fused multiply-adds.

    A thread has groups of up to four contiguous rows and columns, so that operands are read 16 bytes at a time. The
    rows of a thread do not depend on the number of columns, so contractions that share rows agree on them.

    Args:
        shape: rows and columns of the tile.
        thread_rows: rows of a thread; its columns follow from the number of threads.
        warps: warps of the block.
        row_in_warp: whether a row is spread over as few warps as possible, for a later reduction of rows; otherwise a
            warp is about square.
        lanes: lanes of a warp.
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
    """Returns true if no two images share a bit, so that XOR equals addition."""
    return sum(images) == reduce(int.__or__, images, 0)


def operand_layout(acc: Linear, operand: int, depth: int) -> Linear:
    """Returns the layout of the first step (k = 0) of an operand for a contraction without tensor cores into `acc`.

    In each step a thread needs the operand elements of its accumulator's rows or columns, at one k.

    Args:
        acc: layout of the accumulator [m, n].
        operand: 0 for the left operand [m, k], 1 for the right operand [k, n].
        depth: extent of k.
    """

    def project(b: Coordinate) -> Coordinate:
        return (b[0], 0) if operand == 0 else (0, b[1])

    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    reg = tuple(project(b) for b in acc.reg if b[operand])
    return Linear(shape, reg, tuple(map(project, acc.lane)), tuple(map(project, acc.warp)))


IMPOSSIBLE = 1 << 40
"""Cost of an access that the layout does not permit, larger than any real cost."""


@dataclass(frozen=True)
class Reader:
    """Access to a shared tile by the threads of a layout.

    layout: registers that are read or written.
    bytes_each: bytes of an element.
    weight: number of executions, relative to other accesses.
    elements: minimum width in elements; a narrower access is illegal.
    """

    layout: Linear
    bytes_each: int
    weight: int = 1
    elements: int = 1

    def cost(self, shared: Shared) -> tuple[int, bool]:
        """Returns the weighted cost of the access of one warp, and true if no layout with this access width is cheaper.

        The cost is 4 for each wavefront plus 1 for each instruction.
        """
        vec = self.width(shared)
        if vec < self.elements:
            return IMPOSSIBLE, False
        fronts = self.wavefronts(shared)
        best = fronts <= self.least_wavefronts(shared)
        return (4 * fronts + 1) * (self.layout.registers // vec) * self.weight, best

    def width(self, shared: Shared) -> int:
        """Returns the elements that a thread accesses with one instruction."""
        others = shared.images((*self.layout.lane, *self.layout.warp))
        return register_width(shared.images(self.layout.reg), others, 16 // self.bytes_each)

    def wavefronts(self, shared: Shared) -> int:
        """Returns the wavefronts of one instruction of a warp, bank conflicts included."""
        return wavefronts(tuple(shared.images(self.layout.lane)), self.width(shared), self.bytes_each)

    def least_wavefronts(self, shared: Shared) -> int:
        """Returns the wavefronts of one instruction of this width without bank conflicts."""
        return max(self.width(shared) * self.bytes_each // 4, 1)


def choose_shared(
    shape: Sequence[int], readers: Sequence[Reader], *, by_order: Sequence[Sequence[Reader]] | None = None
) -> Shared:
    """Returns the shared layout with the lowest cost for all `readers`; the simplest among equals.

    Candidates are row-major order and the order with dimension 0 contiguous, each with swizzles.

    Args:
        shape: extents of the tile.
        readers: accesses to the tile.
        by_order: accesses that apply to one order only: a list for row-major order, then a list for the other.
    """
    rank = len(shape)
    if rank == 1:
        return ordered(shape, (0,))
    orders = [(*reversed(range(rank)),), (0, *reversed(range(1, rank)))]
    more = by_order or [()] * len(orders)
    best = [_swizzled(tuple(shape), o, [*readers, *m]) for o, m in zip(orders, more, strict=True)]
    return min(best, key=lambda candidate: candidate.cost).layout


class _Candidate(NamedTuple):
    """Shared layout with the `swizzle` pairs that `ordered` takes, and its cost. `free`: no swizzle can be cheaper."""

    cost: int
    free: bool
    layout: Shared
    swizzle: tuple[tuple[int, int], ...]


def _swizzled(shape: tuple[int, ...], order: Sequence[int], readers: Sequence[Reader]) -> _Candidate:
    """Returns the layout with the best swizzle for one order of dimensions. The search chooses the offset bits one by
    one."""

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
