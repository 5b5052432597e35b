"""Schedules for a target whose blocks are single threads: the cores of a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr

from ...dialects.loop import LoadOp
from ...dialects.loop.dependence import access_indices
from ...dialects.payload import CastOp, is_payload, tensor_bytes
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.nest_schedule import splittable
from ..analysis.packed_operands import loaded_factor, packable_loads
from .matmul import Matmul, find_matmuls, lies_along_k, longest_index
from .nest_info import NestInfo, TileExtents, contiguous_index, pow2_at_least

REGISTERS = 64
"""Elements of a tile that a core keeps in vector registers."""

ROW = 512
"""Elements of a tile that a core keeps in its nearest cache while a reduction walks past it."""

DEPTH = 256
"""Elements of a sum of products that are multiplied at once: as many as leave room in a cache for both operands."""

LANES = 16
"""Elements of the widest vectors of f32."""

PADDED = 1.125
"""So many times its length a row may be padded to, if tiles have several rows."""

WIDE = 8192
"""Columns that are summed at a time: memory is read row by row, and the sums stay in the nearest cache."""

PART = 1 << 18
"""Bytes that a part of a divided reduction reads at least."""

LONGEST = 1 << 14
"""Elements of a row at most that a core keeps in its caches while several loops walk along it."""

ROWS, COLUMNS, LEAST = 256, 64, 32
"""Rows and columns of a tile of products, and how few of them are enough for a block."""

FEW, NARROW = 64, 16
"""Rows up to which it takes longer to turn columns around, where these lie along the sum, than to multiply them; and
how many columns are turned at a time then."""

WHOLE = 256
"""Rows or columns of a tile of products at most whose other operand is computed."""

PANEL = 32
"""Columns of a tile of products whose factor is copied before."""

FEWEST = 4
"""Times at least that blocks would put the same part of a factor into order, for it to be copied before."""

COSTS = 3, 8, 48
"""How many multiplications of vectors take as long as putting one into order: of neighbours in memory, of neighbours
along the sum, and of elements that have none."""

SHARE = 16
"""Of the time of products at most one part in so many may be the time in which blocks put their factors into order."""

TASKS = 4
"""Blocks for each core, so that they end at about the same time."""

SHARED = 64
"""Rows of a tile at most, where these have something in common to compute: a norm before a product, say."""

TASK = 4096
"""Elements of a tile that is computed element by element: enough work for a block."""


def core_schedule(info: NestInfo, cores: int, divide: bool = True) -> ScheduleAttr:
    """The schedule of a nest on a machine with so many cores; without `divide` no sum is divided among them."""
    products = [p for p in find_matmuls(info) if info.extents[p.row] > 1 and info.extents[p.column] > 1]
    sizes = TileExtents(info)
    if products:
        packed = _packed(info, products) if divide else None
        if packed is not None:
            extent = info.extents[packed]
            sizes.set(packed, min(PANEL, extent & -extent) if extent % LANES == 0 else PANEL)
        _product(sizes, products, cores)
        plan = sizes.plan(1, pack=() if packed is None else (info.free.index(packed),))
    else:
        serial = tuple(_rows(info, sizes, cores))
        plan = sizes.plan(1, serial=serial, split_k=_parts(info, sizes, cores) if divide and not serial else 1)
    return ScheduleAttr(replace(plan, lanes=1, warps=1))


def _sides(info: NestInfo) -> list[SSAValue]:
    """The free indices along which a result, or what is about as large, is contiguous."""
    large = max(tensor_bytes(r.type) for r in info.nest.res) // 4
    last = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
    return [i for i in info.free if i is last or info.contiguous.get(i, 0) > large]


def _fastest(info: NestInfo) -> list[SSAValue]:
    """The free indices, those along which most bytes are contiguous first, then the last."""
    last = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
    weights = {i: info.contiguous.get(i, 0) + (1 if i is last else 0) for i in info.free}
    return sorted(info.free, key=lambda i: (-weights[i], -info.free.index(i)))


def _rows(info: NestInfo, sizes: TileExtents, cores: int) -> Iterator[int]:
    """Tiles of a nest without products; gives the positions of indices that a block walks along."""
    free = _fastest(info)
    if not info.reductions:
        sides = _sides(info)
        turned = len(sides) > 1
        for i in sides if turned else ():  # a transpose: as much of each side
            sizes.set(i, 1 if _is_short(info.extents[i]) else REGISTERS)
            if sizes.tile[i] < info.extents[i] < LANES:
                yield info.free.index(i)
        if (
            free and len(sides) == 1 and _is_ragged(info.extents[free[0]])
        ):  # loops end with a row, tiles of several do not
            sizes.pad(free[0], pow2_at_least(info.extents[free[0]]))
        else:
            left = [i for i in free if i not in sizes.decided and not (turned and _is_short(info.extents[i]))]
            sizes.fill(left, max(1, TASK // sizes.elements(sizes.decided)))
        return
    across = [i for i in free if i not in info.reduced]
    along = [i for i in free if i in info.reduced]
    most = max((tensor_bytes(op.source.type) for op in info.loads), default=0)
    largest = [op for op in info.loads if tensor_bytes(op.source.type) == most]
    if not any(contiguous_index(op) in info.reduction_indices for op in largest):
        _columns(info, sizes, along, across)
    else:
        for indices in (across, *(op.body.block.args for group in info.groups for op in group)):
            sizes.fill(reversed(indices) if indices is not across else across, _row(info, indices))
        if along and _have_in_common(info, along[-1]):
            sizes.set(along[-1], max(1, min(SHARED, sizes.blocks() // (TASKS * cores))))
    for i in across:
        if sizes.tile[i] < info.extents[i] or info.may_be_longer([i]):
            yield info.free.index(i)


def _have_in_common(info: NestInfo, index: SSAValue) -> bool:
    """Whether something along a reduction is computed that is the same for all values of a free index."""
    inside = frozenset(info.reduction_indices)
    computed = (op for op in info.nest.body.walk() if is_payload(op) and op.results and not isinstance(op, CastOp))
    found = (info.dependence.of(op.results[0]) for op in computed)
    return any(indices & inside and index not in indices for indices in found)


def _is_short(extent: int) -> bool:
    """Whether tiles along an index would be in large part padding, and it has no vectors: they take one value each."""
    return extent < LANES and extent != pow2_at_least(extent)


def _is_ragged(extent: int) -> bool:
    """Whether a tile along a row has some vectors, and would be much longer than the row."""
    return LANES <= extent and PADDED * extent < pow2_at_least(extent) <= TASK


def _columns(info: NestInfo, sizes: TileExtents, along: list[SSAValue], across: list[SSAValue]) -> None:
    """Tiles of sums down columns: many of these, and one element of each at a time."""
    budget = ROW if across or any(len(group) > 1 for group in info.groups) else WIDE
    for index in along:
        even = budget if pow2_at_least(info.extents[index]) <= budget else info.extents[index] & -info.extents[index]
        budget = sizes.set(index, even if ROW <= even < budget else budget)
    sizes.fill(across, REGISTERS)
    sizes.chunk_reductions(sizes.elements(along))


def _parts(info: NestInfo, sizes: TileExtents, cores: int) -> int:
    """In how many parts a reduction is computed, where there are fewer blocks than cores."""
    first = next((r for r in info.reductions if r.outermost and r.indices), None)
    if first is None or not 0 < sizes.blocks() < cores or isinstance(splittable(info.nest), str):
        return 1
    if not all(isinstance(info.sizes[i], int) for i in first.indices):
        return 1
    read = sum({op.source: tensor_bytes(op.source.type) for op in info.loads}.values())
    most = min(-(-TASKS * cores // sizes.blocks()), read // PART)
    longest = max(first.indices, key=lambda i: (-(-info.extents[i] // sizes.tile[i]), info.extents[i]))
    return max((n for n in range(1, most + 1) if info.extents[longest] % n == 0), default=1)


def _row(info: NestInfo, indices: Sequence[SSAValue]) -> int:
    """Elements of a tile along a row: all, so that what several loops need is computed once, or some of a long one."""
    known = all(isinstance(info.sizes[i], int) for i in indices)
    whole = prod(pow2_at_least(info.extents[i]) for i in indices)
    return whole if known and whole <= LONGEST else TASK


def _product(sizes: TileExtents, products: list[Matmul], cores: int) -> None:
    """Tiles of products: a block has all of its rows and columns at once. Where an operand is computed, there is one
    tile of all rows or columns that it is multiplied with, so that it is computed once."""
    for p in products:
        lhs, rhs = (isinstance(f.owner, LoadOp) for f in p.factors)
        columns = NARROW if sizes.info.extents[p.row] <= FEW and _turned(p) else COLUMNS
        for index, loaded, extent in ((p.row, rhs, ROWS), (p.column, lhs, columns)):
            if index not in sizes.decided:
                sizes.set(index, extent if loaded else WHOLE)
        along = p.reduction.indices.index(_along(sizes.info, p))
        for op in next(g for g in sizes.info.groups if p.reduction.op in g):
            for n, index in enumerate(op.body.block.args):
                if index not in sizes.decided:
                    sizes.set(index, DEPTH if n == along else 1)
    sizes.chunk_reductions(1 << 13)
    sides = [i for p in products for i in (p.row, p.column) if i in sizes.info.free]
    while (
        sides and sizes.blocks() < TASKS * cores and sizes.tile[side := max(sides, key=lambda i: sizes.tile[i])] > LEAST
    ):
        sizes.set(side, sizes.tile[side] // 2)


def _packed(info: NestInfo, products: list[Matmul]) -> SSAValue | None:
    """The free index along which factors of products are copied before: where all blocks along other indices need the
    same, and putting it into order takes them long."""
    for p in products:
        for index, other, factor in zip((p.row, p.column), (p.column, p.row), p.factors, strict=True):
            load = loaded_factor(factor)
            if load is None or index not in info.free or info.extents[index] < LANES or not p.reduction.outermost:
                continue
            own = access_indices(load)
            blocks = prod(info.extents[i] for i in info.free if i not in own and i is not other)
            contiguous, along = contiguous_index(load), _along(info, p)
            cost = COSTS[0 if contiguous is index else 1 if contiguous is along else 2]
            if (
                blocks >= FEWEST
                and SHARE * cost > info.extents[other]
                and not isinstance(packable_loads(info.nest, index), str)
            ):
                return index
    return None


def _along(info: NestInfo, p: Matmul) -> SSAValue:
    """The index that a product sums over at once: the longest, of a convolution one that does not count the same
    coordinate as rows or columns do, as then ends of the one depend on the other."""

    def shares(index: SSAValue) -> bool:
        for op in info.loads:
            for result in op.map.data.results:
                own = {op.indices[e.position] for e in result.dfs() if isinstance(e, AffineDimExpr)}
                if index in own and own & {p.row, p.column}:
                    return True
        return False

    return longest_index(info, [i for i in p.reduction.indices if not shares(i)] or p.reduction.indices)


def _turned(p: Matmul) -> bool:
    """Whether the right operand of a product lies along the sum, as a weight does."""
    load = p.factors[1].owner
    return isinstance(load, LoadOp) and lies_along_k(p, load)
