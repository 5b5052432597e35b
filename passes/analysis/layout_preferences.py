"""Classes of tiles that must have the same layout, and the layouts that their accesses and dots prefer.

The payload and loops tie tiles together: operands and result of an addition have one layout. Such tiles form a
`TileClass`. A class is then laid out by the memory that it is loaded from or stored to, or by its dots.
"""

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
    """Relation between two tiles of different rank, through a reduction, broadcast or scan.

    op    the operation
    low   tile without the dimensions: result of a reduction, source of a broadcast, initial value of a scan
    high  tile with the dimensions
    dims  the dimensions of `high`
    """

    op: tile.ReduceOp | tile.BroadcastOp | tile.ScanOp
    low: SSAValue
    high: SSAValue
    dims: tuple[int, ...]


@dataclass
class TileClass:
    """Tiles that must have the same layout.

    members   the tiles, in the order of the IR
    accesses  loads and stores of the tiles
    dots      dots whose accumulator is a member
    reduced   dimensions that some reduction reduces
    scanned   dimension that a scan runs along, or None
    """

    members: list[SSAValue] = field(default_factory=list[SSAValue])
    accesses: list[Access] = field(default_factory=list[Access])
    dots: list[tile.DotOp] = field(default_factory=list[tile.DotOp])
    reduced: set[int] = field(default_factory=set[int])
    scanned: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.members[0].type)


class Classes:
    """Classes of all tiles of a kernel. `links`: relations between tiles of different classes."""

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
        """Records accesses, dots and links of an operation."""
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
        """Returns the class of a tile."""
        return self._classes[self._sets.find(value)]

    def replace(self, old: SSAValue, new: SSAValue) -> None:
        """Replaces the member `old` of a class by `new`, which has its layout already."""
        members = self.of(old).members
        members[members.index(old)] = new


@singledispatch
def tied(op: Operation) -> Iterable[Sequence[SSAValue]]:
    """Returns groups of operands and results of an operation; the tiles of a group have the same layout."""
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


@tied.register
def _(op: tile.PrintOp) -> Iterable[Sequence[SSAValue]]:
    return [[*op.operands]]


@tied.register(tile.LoadOp)
@tied.register(tile.StoreOp)
@tied.register(tile.AtomicRmwOp)
def _(op: Access) -> Iterable[Sequence[SSAValue]]:
    return [(accessed_tile(op), *op.symbols)]


@tied.register
def _(op: RowBufferOp) -> Iterable[Sequence[SSAValue]]:
    """Ties all stores to a row buffer and all loads from it: each thread reads back the elements that it wrote."""
    users = [u.operation for u in op.result.uses if isinstance(u.operation, RowBufferStoreOp | RowBufferLoadOp)]
    return [[u.value if isinstance(u, RowBufferStoreOp) else u.result for u in users]]


SECTOR_ELEMENTS = 8
"""Minimum number of contiguous elements for which a better layout is worth a conversion: a 32-byte sector of f32."""


MIN_ACCESS_BYTES = 8
"""Vector accesses with fewer bytes are worth a conversion of the layout if it at least doubles them. Tuned by hand."""


@dataclass(frozen=True)
class Preference:
    """Layout that an access prefers.

    order       dimensions of the tile, sorted by stride in memory; of equal strides (columns and window of a
                convolution) the longest dimension first
    vec         elements of an aligned vector access along the first dimension; 1 if it is not contiguous
    bytes       bytes of the tile
    contiguous  true if the first dimension has stride 1
    """

    order: tuple[int, ...]
    vec: int
    bytes: int
    contiguous: bool


def accessed_tile(op: Access) -> SSAValue:
    """Returns the tile that is loaded or stored."""
    return op.result if isinstance(op, tile.LoadOp) else op.value


def preference(op: Access) -> Preference:
    """Returns the layout that a load or store prefers."""
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
    """Yields (dim, step): by how much the form grows from one value of the dim to the next.

    `%i * 4 + %j` yields (`%i`, 4) and (`%j`, 1). Inside `mod` and `floordiv` the dims of the dividend count: the step
    of `%i` in `(%i * 4) floordiv 2` is 2.
    """
    for atom, factor in form.terms:
        if atom[0] == DIM:
            yield atom, factor
        elif atom[0] in (MOD, DIV):
            yield from ((a, factor * f // (atom[3] if atom[0] == DIV else 1)) for a, f in _indices(dividend(atom)))


def _alignment(form: Form, d: int, symbols: Sequence[SSAValue], extents: Sequence[Extent]) -> int:
    """Returns a divisor of the offsets at which runs of elements along dimension `d` start.

    Args:
        form: last coordinate of the access.
        d: the contiguous dimension of the tile.
        symbols: symbols of the access.
        extents: extents of the memory; rows start at multiples of the last one.
    """
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
    """Returns a layout with lanes along the dimension that is contiguous in memory for most bytes.

    Each lane has vectors of up to 16 aligned bytes. Warps are along dimensions that are not reduced, so that fewer
    partial results are exchanged in shared memory. On a CPU (one thread), vectors need no alignment. If two dimensions
    are contiguous for equally many bytes, the CPU takes the one that is not reduced: its accumulators are vectors.
    Reduced dimensions come second there.

    Args:
        shape: shape of the tile.
        wishes: preferences of its accesses.
        reduced: dimensions that are reduced.
        warps: warps of a block.
        lanes: lanes of a warp.
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
    """Returns the layout of a tile that is scanned along a dimension.

    If the scanned dimension is contiguous in memory, it is distributed over registers, then lanes, then warps.
    Otherwise lanes and warps are along the contiguous dimension, and each thread scans its registers.

    Args:
        c: the tile.
        dim: the scanned dimension.
        wishes: preferences of its accesses.
        warps: warps of a block.
    """
    shape = c.shape
    rank, threads = len(shape), LANE_BITS + log2(warps)
    bits = {d: dimension_bits(shape, d) for d in range(rank)}
    along = bits.pop(dim)
    other_bits = [b for d in sorted(bits, key=lambda d: _nearness(d, wishes)) for b in bits[d]]
    wide = log2(max((w.vec for w in wishes if w.order[0] == dim), default=1))
    by_rows = all(w.order[0] == dim for w in wishes)
    shared = min(max(len(along) - wide, 0), threads) if by_rows else 0
    held, along = along[: len(along) - shared], along[len(along) - shared :]
    vector = 0 if by_rows else min(log2(min((w.vec for w in wishes), default=1)), max(len(other_bits) - threads, 0))
    fill = [*along, *other_bits[vector:], *[(0,) * rank] * threads]
    reg = (*other_bits[:vector], *held, *other_bits[vector + max(threads - len(along), 0) :])
    return Linear(tuple(shape), reg, tuple(fill[:LANE_BITS]), tuple(fill[LANE_BITS:threads]))


def _nearness(dim: int, wishes: Sequence[Preference]) -> tuple[int, int]:
    """Returns a sort key of a dimension: small strides first, then the last dimension."""
    return min((w.order.index(dim) for w in wishes), default=0), -dim


def transposed_operand_layout(c: TileClass, wishes: Sequence[Preference], warps: int) -> Linear | None:
    """Returns the layout of a wgmma operand that must be transposed on its way to shared memory, or None.

    wgmma reads 4-byte elements only along k. An operand that is contiguous along the other dimension in global memory
    is therefore transposed.

    Args:
        c: the tile.
        wishes: preferences of its accesses.
        warps: warps of a block.
    """
    dots = [(u.operation, u.index) for v in c.members for u in v.uses if isinstance(u.operation, tile.DotOp)]
    along = {1 - i for dot, i in dots if dot.atom is not None and dot.atom.data == "wgmma" and i < 2}
    size = element_bytes(c.members[0].type)
    if not along or size < WORD_BYTES or not wishes or any(w.order[0] in along or not w.contiguous for w in wishes):
        return None
    return by_sectors(c.shape, wishes[0].order, warps, size)


def by_sectors(shape: Sequence[int], order: Sequence[int], warps: int, bytes_each: int) -> Linear:
    """Returns a layout by which threads copy single elements of a transposed tile.

    Lanes fill a 32-byte sector along the dimension that is contiguous in global memory. The other lanes are along the
    next dimension, which is contiguous in shared memory.

    Args:
        shape: shape of the tile.
        order: dimensions by stride in global memory.
        warps: warps of a block.
        bytes_each: bytes of an element.
    """
    fast, *others = (dimension_bits(shape, d) for d in order)
    slow = [basis for other in others for basis in other]
    sector = min(log2(max(SECTOR // bytes_each, 1)), len(fast))
    bases = [*fast[:sector], *slow[: LANE_BITS - sector], *fast[sector:], *slow[LANE_BITS - sector :]]
    zero = (0,) * len(shape)
    lane = [bases.pop(0) if bases else zero for _ in range(LANE_BITS)]
    warp = [bases.pop() if bases else zero for _ in range(log2(warps))]
    return Linear(tuple(shape), tuple(bases), tuple(lane), tuple(warp))


def coalesced(op: Access, layout: Linear) -> Linear | None:
    """Returns a better layout for an access with discontiguous lanes if it is worth a conversion, or None."""
    wish = preference(op)
    # A single thread (CPU) accesses a whole sector if its registers hold all elements of the sector.
    alone = layout.lanes * layout.warps == 1
    thread_bases = {*layout.lane, *layout.reg[: log2(SECTOR_ELEMENTS if alone else wish.vec)]}
    sector = dimension_bits(layout.shape, wish.order[0])[: log2(SECTOR_ELEMENTS)]
    if not wish.contiguous or len(sector) < log2(SECTOR_ELEMENTS) or {*sector} <= thread_bases or _is_gather(op):
        return None
    return memory_layout(layout.shape, [wish], set(), layout.warps, layout.lanes)


def _is_gather(op: Access) -> bool:
    return any(isinstance(s.type, TensorType) for s in op.symbols)


def widened(op: Access, layout: Linear, as_boxes: bool = False) -> Linear | None:
    """Returns a layout with 16-byte vectors for the access of an accumulator, or None if it is not worth a conversion.

    It is worth it if a vector has less than 8 bytes now, and can have at least twice as many.

    Args:
        op: the access.
        layout: its present layout.
        as_boxes: whether TMA stores the tile. Otherwise a layout is preferred that keeps all elements in their warps.
    """
    wish, shape = preference(op), layout.shape
    if not wish.contiguous or _is_gather(op):
        return None
    size = element_bytes(accessed_tile(op).type)
    present_vec = 1
    while present_vec < layout.registers and layout.reg[log2(present_vec)] == unit(
        len(shape), wish.order[0], present_vec
    ):
        present_vec *= 2
    if present_vec * size >= MIN_ACCESS_BYTES or wish.vec < 2 * present_vec:
        return None
    in_warps = None if as_boxes else within_warps(layout, wish.order[0], wish.vec)
    if in_warps is not None and route(layout, in_warps, size) == "shuffles":
        return in_warps
    return memory_layout(shape, [wish], set(), layout.warps, layout.lanes)


def within_warps(layout: Linear, fast: int, vec: int) -> Linear | None:
    """Returns a layout that moves elements only inside warps, so that each thread has `vec` adjacent ones, or None.

    Lanes that had some of these elements get later elements of the same row in exchange. There is no such layout if a
    warp has no later elements of the row, or if a basis of the layout has several dimensions.

    Args:
        layout: present layout.
        fast: dimension that is contiguous in memory.
        vec: elements of a vector along `fast`.
    """
    warp_bases = [*layout.reg, *layout.lane]
    bits = dimension_bits(layout.shape, fast)
    first, further = bits[: log2(vec)], [b for b in bits[log2(vec) :] if b in warp_bases]
    if len(set(warp_bases)) < len(warp_bases) or not further or not all(u in warp_bases for u in first):
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
    """Returns the rows of the register tile of a thread: as in the schedule, or such that the tile is about square.

    Args:
        classes: classes of the tiles of a kernel.
        schedule: its schedule.
        threads: threads of a block.
    """
    if schedule.thread:
        return schedule.thread[0]
    largest = max((m * n for m, n in (c.shape for c in classes if c.dots)), default=1)
    return 1 << log2(max(largest // threads, 1)) // 2


def tensor_core_layout(c: TileClass, classes: Classes, warps: int, row_in_warp: bool, as_boxes: bool) -> Linear:
    """Returns the accumulator layout of dots on tensor cores.

    wgmma has one layout. For `mma` the order of columns is free if the right operands are contiguous along k. Then a
    thread gets as many adjacent columns as its stores can move at once. TMA tiles have a fixed order.

    Args:
        c: class of the accumulator.
        classes: classes of all tiles.
        warps: warps of a block.
        row_in_warp: whether a warp has whole rows.
        as_boxes: whether TMA loads the operands.

    Raises:
        ScheduleError: if the warps of the block cannot have such an accumulator.
    """
    if any(dot.atom is not None and dot.atom.data == "wgmma" for dot in c.dots):
        layout = warpgroup_accumulator(c.shape, warps)
        if isinstance(layout, str):
            raise refused(c.dots[0], layout)
        return layout
    right = [preference(a) for dot in c.dots for a in classes.of(dot.rhs).accesses]
    vec = 2
    if not as_boxes and right and all(wish.order[0] == 0 for wish in right):
        preferences = [preference(a) for a in c.accesses]
        vec = max((wish.vec for wish in preferences if wish.order[0] == 1), default=2)
    return accumulator(c.shape, warps, rows_first=row_in_warp, vec=vec, atom=atom_of(c.dots[0]))
