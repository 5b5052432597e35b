"""Which tiles of a kernel have one layout, because the payload and loops tie them together; and what layout they would
like: by the memory they are loaded from or stored to, or by their contractions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from math import gcd, prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.utils.disjoint_set import DisjointSet

from ...dialects import payload, tile
from ...dialects.kernel.mma import WORD_BYTES
from ...dialects.layouts.linear import LANE_BITS, LANES, Coordinate, Linear, blocked, dimension_bits, log2, unit
from ...dialects.layouts.mma import accumulator, warpgroup_accumulator
from ...dialects.payload import shape_of
from ...dialects.shapes.affine import DIM, DIV, MOD, SYM, Atom, Form, Simplifier, dividend, number_of
from ...dialects.shapes.extents import Extent, extents_of, typical
from ...dialects.shapes.ranges import divisor_of, range_of_value
from ...dialects.support.locations import refused
from ...dialects.tile.row_cache import RowBufferLoadOp, RowBufferOp, RowBufferStoreOp
from ...dialects.tile.schedule import Schedule
from ...target.model import SECTOR
from .memory_access import WIDEST, element_bytes, memory_type
from .tile_layouts import atom_of, route

Access = tile.LoadOp | tile.StoreOp | tile.AtomicRmwOp


def is_tile(value: SSAValue) -> bool:
    """Returns true if `value` has dimensions, and so a layout."""
    return isinstance(value.type, TensorType)


@dataclass(frozen=True)
class Link:
    """`op` reduces the tile `high` along `dims` to `low`, repeats `low` along them as `high`, or scans `high` along
    them from `low`."""

    op: tile.ReduceOp | tile.BroadcastOp | tile.ScanOp
    low: SSAValue
    high: SSAValue
    dims: tuple[int, ...]


@dataclass
class TileClass:
    """Tiles that have the same layout, in the order in which they appear."""

    members: list[SSAValue] = field(default_factory=list[SSAValue])
    accesses: list[Access] = field(default_factory=list[Access])
    dots: list[tile.DotOp] = field(default_factory=list[tile.DotOp])
    reduced: set[int] = field(default_factory=set[int])
    scanned: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.members[0].type)


class Classes:
    """The classes of all tiles of a kernel and the links between them."""

    def __init__(self, kernel: tile.KernelOp) -> None:
        ops = list(kernel.body.walk())
        groups = [[v for v in group if is_tile(v)] for op in ops for group in tied(op)]
        members = dict.fromkeys(v for tiles in groups for v in tiles)
        self._sets = DisjointSet([*members])
        for tiles in groups:
            for v in tiles[1:]:
                self._sets.union_left(tiles[0], v)
        self._classes: dict[SSAValue, TileClass] = {}
        for value in members:
            self._classes.setdefault(self._sets.find(value), TileClass()).members.append(value)
        self.links: list[Link] = []
        for op in ops:
            self._describe(op)

    def _describe(self, op: Operation) -> None:
        """Notes what `op` means for the class of its tile."""
        if isinstance(op, Access) and is_tile(accessed_tile(op)):
            self.of(accessed_tile(op)).accesses.append(op)
        elif isinstance(op, tile.DotOp):
            self.of(op.acc).dots.append(op)
        elif isinstance(op, tile.BroadcastOp) and is_tile(op.source):
            self.links.append(Link(op, op.source, op.result, op.along.get_values()))
        elif isinstance(op, tile.ScanOp | tile.ReduceOp):
            self._describe_reduction(op)

    def _describe_reduction(self, op: tile.ScanOp | tile.ReduceOp) -> None:
        dims = (op.dim.data,) if isinstance(op, tile.ScanOp) else op.dims.get_values()
        low = op.init if isinstance(op, tile.ScanOp) else op.result
        if is_tile(low):
            self.links.append(Link(op, low, op.source, dims))
        if isinstance(op, tile.ScanOp):
            self.of(op.source).scanned = op.dim.data
        else:
            self.of(op.source).reduced.update(dims)

    def __iter__(self) -> Iterator[TileClass]:
        return iter(self._classes.values())

    def of(self, value: SSAValue) -> TileClass:
        return self._classes[self._sets.find(value)]

    def replace(self, old: SSAValue, new: SSAValue) -> None:
        """Let `new`, which has its layout already, stand for `old`, which is about to go away."""
        members = self.of(old).members
        members[members.index(old)] = new


@singledispatch
def tied(op: Operation) -> Iterable[Sequence[SSAValue]]:
    """Returns groups of values of `op` whose tiles have one layout; every tile that `op` yields is in a group."""
    values = (*op.operands, *op.results)
    return [values] if payload.is_payload(op) else [[v] for v in values]


@tied.register
def _(op: scf.ForOp) -> Iterable[Sequence[SSAValue]]:
    last = op.body.block.last_op
    assert isinstance(last, scf.YieldOp)
    return zip(op.iter_args, op.body.block.args[1:], last.operands, op.results, strict=True)


@tied.register
def _(op: tile.DotOp) -> Iterable[Sequence[SSAValue]]:
    return [(op.acc, op.result)]


@tied.register
def _(op: tile.ScanOp) -> Iterable[Sequence[SSAValue]]:
    return [(op.source, op.result), (op.init, op.carry)]


@tied.register(tile.LoadOp)
@tied.register(tile.StoreOp)
@tied.register(tile.AtomicRmwOp)
def _(op: Access) -> Iterable[Sequence[SSAValue]]:
    return [(accessed_tile(op), *op.symbols)]


@tied.register
def _(op: RowBufferOp) -> Iterable[Sequence[SSAValue]]:
    """A tile is read from shared memory as it was written."""
    users = [u.operation for u in op.result.uses if isinstance(u.operation, RowBufferStoreOp | RowBufferLoadOp)]
    return [[u.value if isinstance(u, RowBufferStoreOp) else u.result for u in users]]


SECTOR_ELEMENTS = 8
"""Fewer neighbours in memory than these are not worth gathering: global memory moves 32 bytes at a time."""


SHORTEST = 8
"""Bytes: accesses of a thread that are shorter are worth a way through shared memory where 16 are possible."""


@dataclass(frozen=True)
class Preference:
    """Layout that an access prefers.

    order       dimensions of the tile by their distance in memory; of equal ones (columns and window of a convolution)
                the longest first
    vec         elements along the first that are one aligned access; 1 where they are not contiguous
    bytes       of the tile
    contiguous  whether neighbours along the first dimension are neighbours in memory
    """

    order: tuple[int, ...]
    vec: int
    bytes: int
    contiguous: bool


def accessed_tile(op: Access) -> SSAValue:
    return op.result if isinstance(op, tile.LoadOp) else op.value


def preference(op: Access) -> Preference:
    memory = memory_type(op.source if isinstance(op, tile.LoadOp) else op.target)
    shape, extents = shape_of(accessed_tile(op).type), extents_of(memory)
    simplifier = Simplifier(shape, [None if isinstance(s.type, TensorType) else range_of_value(s) for s in op.symbols])
    forms = simplifier.read_map(op.map.data)
    distance = [0] * len(shape)
    pitch = 1
    for form, extent in zip(reversed(forms), reversed(extents), strict=True):
        for atom, factor in _indices(form):
            distance[atom[1]] += max(1, abs(factor)) * pitch
        pitch *= max(typical(extent), 1)
    order = sorted(range(len(shape)), key=lambda d: (distance[d] == 0, distance[d], -shape[d], -d))
    size = element_bytes(memory)
    vec = 1
    contiguous = bool(order) and distance[order[0]] == 1 and any(a == (DIM, order[0]) for a, _ in forms[-1].terms)
    if contiguous and not isinstance(op, tile.AtomicRmwOp):
        limit = min(WIDEST // size, shape[order[0]])
        aligned = gcd(_alignment(forms[-1], order[0], op.symbols, extents), limit)
        vec = aligned & -aligned
    return Preference(tuple(order), vec, prod(shape) * size, contiguous)


def _indices(form: Form) -> Iterator[tuple[Atom, int]]:
    """Yields the dimensions of a form with the least distance between consecutive values, within a period of a
    remainder.
    """
    for atom, factor in form.terms:
        if atom[0] == DIM:
            yield atom, factor
        elif atom[0] in (MOD, DIV):
            yield from ((a, factor * f // (atom[3] if atom[0] == DIV else 1)) for a, f in _indices(dividend(atom)))


def _alignment(form: Form, d: int, symbols: Sequence[SSAValue], extents: Sequence[Extent]) -> int:
    """Returns a divisor of the offsets at which elements along dimension `d` begin: of the length of rows, if there are
    several, and of all terms of `form`, their coordinate, except for that of `d`."""
    divisor = form.constant
    if len(extents) > 1 or not isinstance(extents[-1], int):
        divisor = gcd(divisor, extents[-1] if isinstance(extents[-1], int) else 1)
    for atom, factor in form.terms:
        if atom != (DIM, d):
            divisor = gcd(divisor, factor * (divisor_of(symbols[number_of(atom)]) if atom[0] == SYM else 1))
    return divisor


def memory_layout(
    shape: Sequence[int], wishes: Sequence[Preference], reduced: set[int], warps: int, lanes: int = LANES
) -> Linear:
    """Returns threads along the dimension that is contiguous for the most bytes, 16 aligned bytes each.

    Warps go along dimensions that are not reduced, so that fewer partial results meet in shared memory. A single thread
    has vectors of any alignment; of two dimensions with as many bytes it prefers the one that is not reduced, whose
    sums are vectors, and has reduced ones next, so that a row is one piece.
    """
    order, vec, alone = tuple(reversed(range(len(shape)))), 4, lanes * warps == 1
    if alone:
        wishes = [wish for wish in wishes if wish.contiguous] or wishes
    if wishes:
        weights = Counter[int]()
        for wish in wishes:
            weights[wish.order[0]] += wish.bytes * (4 if wish.vec > 1 and not alone else 1)
        fast = max(weights, key=lambda d: (weights[d], alone and d not in reduced))
        best = max((w for w in wishes if w.order[0] == fast), key=lambda w: (w.vec, w.bytes))
        order, vec = best.order, best.vec
    if alone:
        order = sorted(order, key=lambda d: (d != order[0], d not in reduced))
    vec = min(vec, shape[order[0]], max(prod(shape) // (lanes * warps), 1))
    return blocked(shape, order, vec, warps, sorted(order, key=lambda d: d in reduced), lanes)


def scan_layout(c: TileClass, dim: int, wishes: Sequence[Preference], warps: int) -> Linear:
    """Returns the layout of a tile that threads scan along a dimension.

    Where the scanned dimension is contiguous in memory, its neighbours are in the registers of a thread, then in lanes,
    then in warps. Where another dimension is, lanes and warps lie along that one, and each thread scans registers."""
    shape = c.shape
    rank, threads = len(shape), LANE_BITS + log2(warps)
    bits = {d: dimension_bits(shape, d) for d in range(rank)}
    along = bits.pop(dim)
    rest = [b for d in sorted(bits, key=lambda d: _nearness(d, wishes)) for b in bits[d]]
    wide = log2(max((w.vec for w in wishes if w.order[0] == dim), default=1))
    by_rows = all(w.order[0] == dim for w in wishes)
    shared = min(max(len(along) - wide, 0), threads) if by_rows else 0
    held, along = along[: len(along) - shared], along[len(along) - shared :]
    vector = 0 if by_rows else min(log2(min((w.vec for w in wishes), default=1)), max(len(rest) - threads, 0))
    fill = [*along, *rest[vector:], *[(0,) * rank] * threads]
    reg = (*rest[:vector], *held, *rest[vector + max(threads - len(along), 0) :])
    return Linear(tuple(shape), reg, tuple(fill[:LANE_BITS]), tuple(fill[LANE_BITS:threads]))


def _nearness(dim: int, wishes: Sequence[Preference]) -> tuple[int, int]:
    """Orders dimensions: those that accesses have nearest in memory first, then the last."""
    return min((w.order.index(dim) for w in wishes), default=0), -dim


def turned_factor(c: TileClass, wishes: Sequence[Preference], warps: int) -> Linear | None:
    """Returns the layout of an operand of wgmma that is contiguous across k in memory and has to be along k in shared
    memory, as f32 is; None for other tiles."""
    dots = [(u.operation, u.index) for v in c.members for u in v.uses if isinstance(u.operation, tile.DotOp)]
    along = {1 - i for dot, i in dots if dot.atom is not None and dot.atom.data == "wgmma" and i < 2}
    size = element_bytes(c.members[0].type)
    if not along or size < WORD_BYTES or not wishes or any(w.order[0] in along or not w.contiguous for w in wishes):
        return None
    return by_sectors(c.shape, wishes[0].order, warps, size)


def by_sectors(shape: Sequence[int], order: Sequence[int], warps: int, bytes_each: int) -> Linear:
    """Returns threads that copy single elements: the lanes of a sector along the dimension that is contiguous in global
    memory, the others along the next one, which is contiguous in shared memory."""
    fast, *others = (dimension_bits(shape, d) for d in order)
    rest = [basis for other in others for basis in other]
    sector = min(log2(max(SECTOR // bytes_each, 1)), len(fast))
    left = [*fast[:sector], *rest[: LANE_BITS - sector], *fast[sector:], *rest[LANE_BITS - sector :]]
    nothing = (0,) * len(shape)
    lane = [left.pop(0) if left else nothing for _ in range(LANE_BITS)]
    warp = [left.pop() if left else nothing for _ in range(log2(warps))]
    return Linear(tuple(shape), tuple(left), tuple(lane), tuple(warp))


def coalesced(op: Access, layout: Linear) -> Linear | None:
    """Returns a better layout for an access whose memory is contiguous along another dimension than the lanes, if that
    is worth a conversion."""
    wish = preference(op)
    alone = layout.lanes * layout.warps == 1  # has neighbours in memory in its own registers
    own = {*layout.lane, *layout.reg[: log2(SECTOR_ELEMENTS if alone else wish.vec)]}
    sector = dimension_bits(layout.shape, wish.order[0])[: log2(SECTOR_ELEMENTS)]
    if not wish.contiguous or len(sector) < log2(SECTOR_ELEMENTS) or {*sector} <= own or _is_gather(op):
        return None
    return memory_layout(layout.shape, [wish], set(), layout.warps, layout.lanes)


def _is_gather(op: Access) -> bool:
    return any(isinstance(s.type, TensorType) for s in op.symbols)


def widened(op: Access, layout: Linear, as_boxes: bool = False) -> Linear | None:
    """Returns a layout that moves 16 bytes at once for an access of an accumulator, if less than 8 bytes move now and
    at least twice as many can. Warps keep their elements where they can exchange them, unless they leave as TMA
    tiles."""
    wish, shape = preference(op), layout.shape
    if not wish.contiguous or _is_gather(op):
        return None
    size = element_bytes(accessed_tile(op).type)
    own = 1
    while own < layout.registers and layout.reg[log2(own)] == unit(len(shape), wish.order[0], own):
        own *= 2
    if own * size >= SHORTEST or wish.vec < 2 * own:
        return None
    beside = None if as_boxes else within_warps(layout, wish.order[0], wish.vec)
    if beside is not None and route(layout, beside, size) == "shuffles":
        return beside
    return memory_layout(shape, [wish], set(), layout.warps, layout.lanes)


def within_warps(layout: Linear, fast: int, vec: int) -> Linear | None:
    """Returns the layout with the same elements in each warp and `vec` neighbours along `fast` in each thread: lanes
    that held these get the next ones. None if a warp has nothing else in a row, or bases mix dimensions."""
    own = [*layout.reg, *layout.lane]
    bits = dimension_bits(layout.shape, fast)
    first, further = bits[: log2(vec)], [b for b in bits[log2(vec) :] if b in own]
    if len(set(own)) < len(own) or not further or not all(u in own for u in first):
        return None
    spare = [u for u in further if u not in layout.lane]
    lane: list[Coordinate] = []
    for basis in layout.lane:
        if basis not in first:
            lane.append(basis)
        elif spare:
            lane.append(spare.pop(0))
        else:
            return None
    reg = (*first, *(b for b in layout.reg if b not in first and b not in lane))
    return Linear(layout.shape, reg, tuple(lane), layout.warp)


def thread_rows(classes: Iterable[TileClass], schedule: Schedule, threads: int) -> int:
    """Returns the rows of an accumulator that one thread owns in all contractions of a kernel: as the schedule says, or
    such that the registers of the largest accumulator are about square."""
    if schedule.thread:
        return schedule.thread[0]
    largest = max((m * n for m, n in (c.shape for c in classes if c.dots)), default=1)
    return 1 << log2(max(largest // threads, 1)) // 2


def tensor_core_layout(c: TileClass, classes: Classes, warps: int, row_in_warp: bool, as_boxes: bool) -> Linear:
    """Returns the layout of the accumulator of contractions that their atom has.

    `wgmma` has one layout; `mma` leaves open which columns a thread has. Right operands that are contiguous along k can
    be read in any order of columns, so a thread gets as many neighbours as its stores move at once; but not where they
    are TMA tiles, which are swizzled for eight rows in their order.
    """
    if any(dot.atom is not None and dot.atom.data == "wgmma" for dot in c.dots):
        found = warpgroup_accumulator(c.shape, warps)
        if isinstance(found, str):
            raise refused(c.dots[0], found)
        return found
    right = [preference(a) for dot in c.dots for a in classes.of(dot.rhs).accesses]
    vec = 2
    if not as_boxes and right and all(wish.order[0] == 0 for wish in right):
        own = [preference(a) for a in c.accesses]
        vec = max((wish.vec for wish in own if wish.order[0] == 1), default=2)
    return accumulator(c.shape, warps, rows_first=row_in_warp, vec=vec, atom=atom_of(c.dots[0]))
