"""Tiles of a nest, and the emitter of a block's program.

A `Tile` names the loop index of each dimension (`Dim`) and the value of its padding. The `Emitter` puts an operation
into the outermost loop that has its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, LocationAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap, AffineSymExpr

from ....dialects import loop, payload, tensor, tile
from ....dialects.loop.dependence import access_indices, yielded
from ....dialects.payload import element_type
from ....dialects.shapes.affine import Range, is_within, simplify_map
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Count, CountAttr, Extent, count_of, extents_of, most_tiles
from ....dialects.support.locations import location_of
from ....dialects.tensor import ReductionKind, combine, identity
from ....errors import UnsupportedError
from ...analysis.nest_schedule import reductions


@dataclass(frozen=True, eq=False)
class Dim:
    """Loop index at the tile level: `index = position in the tile + tile * counter`.

    If `ranks` blocks of a cluster take its tiles in turn, the number of the tile is `counter * ranks + rank`.

    extent   number of values of the index
    tile     extent of a tile along it; 1 makes the index a scalar, and no tile has such a dimension
    counter  number of the tile: a block index or a loop counter; None if there is only one tile
    order    sort key of the dimensions of a tile
    depth    number of loops around the definition of the counter
    hint     name of the index
    rank     number of the block in the cluster, if the blocks share the index
    ranks    number of blocks that share the index
    """

    extent: Extent
    tile: int
    counter: SSAValue | None
    order: float
    depth: int
    hint: str | None = None
    rank: SSAValue | None = None
    ranks: int = 1

    @property
    def count(self) -> Count:
        """Number of tiles that one block computes along the index."""
        tiles = count_of(self.extent, self.tile)
        return -(-tiles // self.ranks) if isinstance(tiles, int) else tiles

    @property
    def has_tail(self) -> bool:
        """True if the last tile may extend past the end of the range."""
        return self.tile > 1 and (not isinstance(self.extent, int) or self.extent % (self.tile * self.ranks) != 0)


@dataclass(frozen=True)
class Tile:
    """Loop value at the tile level.

    value    the tile; a scalar if there are no dimensions
    dims     its dimensions
    depth    number of loops around its definition
    padding  dimension -> the value of elements past the end of its range, if it is known
    constant the value of all elements if they are one constant, else None
    """

    value: SSAValue
    dims: tuple[Dim, ...] = ()
    depth: int = 0
    padding: Mapping[Dim, float] = field(default_factory=dict[Dim, float])
    constant: FloatAttr | IntegerAttr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return shape(self.dims)

    def beyond(self, dim: Dim) -> float | None:
        """Returns the value of elements past the end of `dim`, or None if it is unknown."""
        return self.constant.value.data if self.constant is not None else self.padding.get(dim)


def shape(dims: Iterable[Dim]) -> tuple[int, ...]:
    return tuple(d.tile for d in dims)


def union(*groups: Iterable[Dim]) -> tuple[Dim, ...]:
    """Returns all dimensions of `groups`, each once, in the order of a tile."""
    return tuple(sorted({d for group in groups for d in group}, key=lambda d: d.order))


_FOLDS: dict[str, Callable[[list[float]], float]] = {
    "arith.addf": sum,
    "arith.subf": lambda v: v[0] - v[1],
    "arith.mulf": math.prod,
    "arith.negf": lambda v: -v[0],
    "arith.maximumf": max,
    "arith.minimumf": min,
    "arith.addi": sum,
    "arith.muli": math.prod,
}
"""Operation name -> function from the padding values of the operands to the padding value of the result."""


def padding_of(op: Operation, operands: Sequence[Tile], dims: Sequence[Dim]) -> dict[Dim, float]:
    """Returns the known padding values of the result of `op`: dimension -> value past the end of its range.

    Args:
        op: payload operation.
        operands: its operands.
        dims: dimensions of its result.
    """
    fold, only_zero = _FOLDS.get(op.name), False
    # A cast between floats preserves the padding value, and a cast of any type preserves 0.
    if isinstance(op, payload.CastOp):
        fold, only_zero = sum, not (payload.is_float(op.operand.type) and payload.is_float(op.result.type))
    padding: dict[Dim, float] = {}
    if fold is not None:
        for d in dims:
            values = [v for o in operands if (v := o.beyond(d)) is not None and not math.isnan(v)]
            if d.has_tail and len(values) == len(operands) and not (only_zero and any(values)):
                padding[d] = fold(values)
    return padding


Constraint: TypeAlias = tuple[AffineExpr, int, Extent]
"""An expression whose value must be in range(lo, hi)."""


class Coordinates:
    """Rewrites affine expressions over loop indices into expressions over the dimensions of one tile.

    Scalars that are equal for all elements of a tile, such as loop counters, become symbols.
    """

    def __init__(self, dims: Sequence[Dim]) -> None:
        self.dims = tuple(dims)
        self.ranges: dict[SSAValue, Range] = {}
        """Symbol -> the range of its values."""
        self.depth = 0

    def symbol(self, value: SSAValue, bound: Range, depth: int) -> AffineExpr:
        """Returns the symbol for a scalar.

        Args:
            value: the scalar.
            bound: range of its values: (lo, hi), a number n for range(n), or None if it is unknown.
            depth: number of loops around its definition.
        """
        self.depth = max(self.depth, depth)
        self.ranges.setdefault(value, bound)
        return AffineExpr.symbol([*self.ranges].index(value))

    def index(self, dim: Dim) -> AffineExpr:
        """Returns the expression of the loop index of `dim`."""
        expr = AffineExpr.dimension(self.dims.index(dim)) if dim.tile > 1 else AffineExpr.constant(0)
        if dim.counter is not None:
            bound = dim.extent if dim.tile == 1 else most_tiles(dim.count)
            expr += self.symbol(dim.counter, bound, dim.depth) * (dim.tile * dim.ranks)
        if dim.rank is not None:
            expr += self.symbol(dim.rank, dim.ranks, 0) * dim.tile
        return expr

    def tails(self) -> list[Constraint]:
        """Returns the bounds of the loop indices whose last tile may extend past the end of the range."""
        return [(self.index(d), 0, d.extent) for d in self.dims if d.has_tail]

    def map(self, results: Sequence[AffineExpr]) -> AffineMap:
        """Returns the simplified map to `results`."""
        full = AffineMap(len(self.dims), len(self.ranges), tuple(results))
        return simplify_map(full, shape(self.dims), [*self.ranges.values()])

    def access(
        self, results: Sequence[AffineExpr], constraints: Sequence[Constraint]
    ) -> tuple[AffineMap, DomainAttr | None, list[SSAValue]]:
        """Returns the simplified map and domain of an access.

        Args:
            results: coordinates in memory.
            constraints: conditions of the access.

        Returns:
            The map to `results`; the domain of the constraints that do not always hold, or None if all do; the
            symbols that occur in map and domain.
        """
        needed: list[Constraint] = []
        for expr, lo, hi in constraints:
            simple = self.map((expr,)).results[0]
            if not is_within(simple, lo, hi, shape(self.dims), [*self.ranges.values()]):
                needed.append((simple, lo, hi))
        exprs = [*self.map(results).results, *(expr for expr, _, _ in needed)]
        used = sorted({e.position for expr in exprs for e in expr.dfs() if isinstance(e, AffineSymExpr)})
        dims = [AffineExpr.dimension(i) for i in range(len(self.dims))]
        renamed = [AffineExpr.symbol(used.index(i) if i in used else 0) for i in range(len(self.ranges))]
        exprs = tuple(expr.replace_dims_and_symbols(dims, renamed) for expr in exprs)
        access, guard = (AffineMap(len(dims), len(used), e) for e in (exprs[: len(results)], exprs[len(results) :]))
        domain = DomainAttr.get(guard, [(lo, hi) for _, lo, hi in needed]) if needed else None
        return access, domain, [value for i, value in enumerate(self.ranges) if i in used]


Bounds: TypeAlias = tuple[SSAValue, SSAValue]
"""Start and stop of a loop with step 1. The range may be empty."""

Body: TypeAlias = Callable[[list[SSAValue], list[SSAValue]], list[SSAValue]]
"""Emits the body of loops: it takes counters and carried values, and returns the next carried values."""


class Emitter:
    """State of the lowering of one nest.

    Operations except stores are pure. So each is emitted in the outermost open loop that has its operands, and
    loop-invariant values are computed once.

    Attributes:
        nest: the nest.
        scopes: open blocks; `scopes[d]` is inside of `d` loops.
        buffers: tensor -> argument of the kernel.
        tiles: loop value -> its tile.
        dims: loop index -> its dimension.
        location: location of new operations.
        alone: true if a block is one thread, which holds whole tiles (on the CPU).
        carries: scan -> its carry, the result up to the current tile.
    """

    def __init__(self, nest: loop.NestOp, body: Block, buffers: dict[SSAValue, SSAValue], alone: bool) -> None:
        self.nest, self.scopes, self.buffers = nest, [body], buffers
        self.tiles: dict[SSAValue, Tile] = {}
        self.dims: dict[SSAValue, Dim] = {}
        self.location: LocationAttr | None = location_of(nest)
        self.alone = alone
        self.carries: dict[loop.ScanOp, Tile] = {}
        self._numbers: dict[Count, SSAValue] = {}

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def insert(self, op: Operation, depth: int, hint: str | None = None) -> Operation:
        """Appends an operation to an open block.

        Args:
            op: the operation.
            depth: number of loops around the block.
            hint: name of the results.

        Returns:
            `op`.
        """
        if self.location is not None:
            op.location = self.location
        if hint is not None:
            for r in op.results:
                r.name_hint = hint
        self.scopes[depth].add_op(op)
        return op

    @contextmanager
    def at(self, depth: int) -> Generator[None]:
        """Returns a context in which only the outermost `depth` of the open loops are open."""
        saved = self.scopes
        self.scopes = saved[: depth + 1]
        yield
        self.scopes = saved

    def number(self, n: Count) -> SSAValue:
        """Returns `n` as an `index` value at the start of the kernel: a constant, or a number of tiles computed at run
        time."""
        if n not in self._numbers:
            if isinstance(n, int):
                op = self.insert(arith.ConstantOp.from_int_and_width(n, IndexType()), 0, f"c{n}")
                self._numbers[n] = op.results[0]
            else:
                self._numbers[n] = self._quotient(n)
        return self._numbers[n]

    def _quotient(self, count: CountAttr) -> SSAValue:
        size = self.insert(payload.ExtentOp(count.symbol, IndexType()), 0, count.symbol.hint).results[0]
        if (tile_size := count.tile.data) > 1:
            above = self.insert(arith.AddiOp(size, self.number(tile_size - 1)), 0).results[0]
            size = self.insert(arith.DivUIOp(above, self.number(tile_size)), 0, "count").results[0]
        return size

    def range(self, count: Count) -> Bounds:
        return self.number(0), self.number(count)

    def loops(
        self, bounds: Sequence[Bounds], carried: Sequence[SSAValue], body: Body, hints: Sequence[str | None]
    ) -> list[SSAValue]:
        """Emits nested loops that carry values.

        Args:
            bounds: start and stop of each loop, from the outermost to the innermost.
            carried: initial values.
            body: takes the counters and the carried values, emits the innermost body and returns the next values.
            hints: name of each counter.

        Returns:
            The values after the last iteration.
        """
        if not bounds:
            return body([], list(carried))
        block = Block(arg_types=[IndexType(), *(c.type for c in carried)])
        for arg, hint in zip(block.args, [*hints[:1], *(value.name_hint for value in carried)], strict=True):
            arg.name_hint = hint
        counter, *values = block.args
        self.scopes.append(block)
        results = self.loops(bounds[1:], values, lambda inner, new: body([counter, *inner], new), hints[1:])
        self.insert(scf.YieldOp(*results), self.depth)
        self.scopes.pop()
        op = scf.ForOp(*bounds[0], self.number(1), carried, block)
        self.insert(op, self.depth)
        for r, value in zip(op.res, results, strict=True):
            r.name_hint = value.name_hint
        return list(op.res)

    def constant(self, value: float, element: Attribute, dims: Sequence[Dim], depth: int) -> Tile:
        """Emits a tile with equal elements.

        Args:
            value: the elements.
            element: element type.
            dims: dimensions.
            depth: number of loops around it.
        """
        op = payload.ConstantOp(value, tile.tile_type(element, shape(dims)))
        self.insert(op, depth)
        return Tile(op.result, tuple(dims), depth, {}, op.value)

    def extent(self, extent: Extent, dims: Sequence[Dim], depth: int) -> Tile:
        """Emits a tile of indices that are equal to `extent`.

        Args:
            extent: a number or a symbolic size.
            dims: dimensions.
            depth: number of loops around it.
        """
        if isinstance(extent, int):
            return self.constant(extent, IndexType(), dims, depth)
        value = self.insert(payload.ExtentOp(extent, tile.tile_type(IndexType(), shape(dims))), depth).results[0]
        return Tile(value, tuple(dims), depth)

    def spread(self, t: Tile, dims: Sequence[Dim], depth: int) -> SSAValue:
        """Returns a tile broadcast to more dimensions.

        Args:
            t: the tile.
            dims: dimensions of the result.
            depth: number of loops around it.
        """
        if tuple(dims) == t.dims:
            return t.value
        result = tile.tile_type(element_type(t.value.type), shape(dims))
        if t.constant is not None:
            return self.insert(payload.ConstantOp(t.constant, result), depth).results[0]
        along = [i for i, d in enumerate(dims) if d not in t.dims]
        return self.insert(tile.BroadcastOp(t.value, along, result), depth, t.value.name_hint).results[0]

    def payload(self, op: Operation, operands: Sequence[Tile]) -> Tile:
        """Emits the payload operation `op` on tiles, and returns its result."""
        dims = union(*(o.dims for o in operands))
        depth = max((o.depth for o in operands), default=0)
        container = tile.tile_type(element_type(op.results[0].type), shape(dims))
        new = payload.retyped(op, [self.spread(o, dims, depth) for o in operands], container)
        self.insert(new, depth)
        constant = new.value if isinstance(new, payload.ConstantOp) else None
        padding = padding_of(op, operands, dims) if any(d.has_tail for d in dims) else {}
        return Tile(new.results[0], dims, depth, padding, constant)

    def combine(self, kind: ReductionKind, a: Tile, b: Tile) -> Tile:
        """Emits the combination of partial results, element by element.

        Args:
            kind: kind of the reduction.
            a: first operand, from which the result gets its name.
            b: second operand.
        """
        dims, depth = union(a.dims, b.dims), max(a.depth, b.depth)
        op = combine(kind, self.spread(a, dims, depth), self.spread(b, dims, depth))
        self.insert(op, depth, a.value.name_hint)
        return Tile(op.results[0], dims, depth, padding_of(op, (a, b), dims))

    def tile_of(self, value: SSAValue) -> Tile:
        """Returns the tile of a loop value; emits it first if it is an index or a constant."""
        t = self.tiles.get(value)
        if t is None:
            t = self.tiles[value] = self._first_use(value)
        return t

    def _first_use(self, value: SSAValue) -> Tile:
        if value in self.dims:
            return self.index_tile(self.dims[value])
        op = value.owner
        if isinstance(op, payload.ConstantOp):
            return self.payload(op, ())
        operator = op.name if isinstance(op, Operation) else "block argument"
        raise UnsupportedError("a nest uses a scalar computed outside of it", operator=operator)

    def index_tile(self, dim: Dim) -> Tile:
        """Returns a tile of the values of a loop index, or a scalar if its tile extent is 1."""
        if dim.tile == 1 and dim.counter is not None:
            return Tile(dim.counter, (), dim.depth)
        dims = (dim,) if dim.tile > 1 else ()
        at = Coordinates(dims)
        expr = at.index(dim)
        op = tile.AffineOp(at.map((expr,)), [*at.ranges], tile.tile_type(IndexType(), shape(dims)))
        self.insert(op, at.depth, dim.hint)
        return Tile(op.result, dims, at.depth)

    def within(self, dim: Dim, value: Tile, beyond: float) -> Tile:
        """Returns a tile with the elements past the end of a dimension replaced.

        Args:
            dim: the dimension.
            value: the tile.
            beyond: replacement.
        """
        index = self.index_tile(dim)
        end = self.extent(dim.extent, index.dims, index.depth)
        inside = self.insert(payload.CmpOp("lt", index.value, end.value), index.depth).results[0]
        dims, depth = union(value.dims, index.dims), max(value.depth, index.depth)
        where = self.spread(Tile(inside, index.dims, index.depth), dims, depth)
        other = self.constant(beyond, element_type(value.value.type), dims, depth)
        new = payload.SelectOp(where, self.spread(value, dims, depth), other.value)
        self.insert(new, depth, value.value.name_hint)
        padding = {d: v for d in dims if (v := value.beyond(d)) == beyond and v is not None}
        return Tile(new.result, dims, depth, {**padding, dim: beyond})

    def load(self, op: loop.LoadOp) -> Tile:
        """Emits the load of a whole tile for a load of the nest."""
        if isinstance(op.source.owner, payload.ConstantOp) and op.domain is None:
            return self.constant(op.source.owner.scalar, element_type(op.source.type), (), 0)
        used, symbols = access_indices(op), [self.tile_of(s) for s in op.symbols]
        tile_dims = [self.dims[v] for v in used if self.dims[v].tile > 1]
        at = Coordinates(union(tile_dims, *(s.dims for s in symbols)))
        index = [at.index(self.dims[v]) if v in used else AffineExpr.constant(0) for v in op.indices]
        depth = max((s.depth for s in symbols), default=0)
        values = [at.symbol(self.spread(s, at.dims, depth) if s.dims else s.value, None, s.depth) for s in symbols]

        def rewrite(exprs: Iterable[AffineExpr]) -> list[AffineExpr]:
            return [e.replace_dims_and_symbols(index, values) for e in exprs]

        constraints = [(at.index(d), 0, d.extent) for d in at.dims if d.has_tail and d in tile_dims]
        if op.domain is not None:
            limits = zip(rewrite(op.domain.affine.results), op.domain.limits, strict=True)
            constraints = [*((e, lo, hi) for e, (lo, hi) in limits), *constraints]
        access, domain, used_symbols = at.access(rewrite(op.map.data.results), constraints)
        fill = self._fill(op) if domain is not None else None
        result = tile.tile_type(element_type(op.source.type), shape(at.dims))
        new = tile.LoadOp(self.buffers[op.source], access, used_symbols, domain, fill and fill.value, result)
        self.insert(new, max(at.depth, depth), op.result.name_hint)
        padding = {d: v for d in tile_dims if fill is not None and d.has_tail and (v := fill.beyond(d)) is not None}
        return Tile(new.result, at.dims, max(at.depth, depth), padding)

    def _fill(self, op: loop.LoadOp) -> Tile:
        """Returns the fill value of `op` outside its domain.

        If `op` has none, it is the identity of the reduction that reduces the loaded values, or 0.
        """
        if op.fill is None:
            return self.constant(self._fills.get(op.source, 0), element_type(op.source.type), (), 0)
        fill = self.tile_of(op.fill)
        if fill.dims:
            raise UnsupportedError("the fill value of a load varies within a tile", operator=op.name)
        return fill

    @cached_property
    def _fills(self) -> dict[SSAValue, float]:
        """Source -> fill value for its padding: the identity of the reduction that reduces the loaded value directly.

        All loads of a tensor get the same fill, so that CSE can merge them.
        """
        fills: dict[SSAValue, float] = {}
        for op in reductions(self.nest):
            value = yielded(op.body.block)[0]
            while isinstance(value.owner, payload.CastOp) and payload.is_float(value.owner.operand.type):
                value = value.owner.operand
            load = value.owner
            if isinstance(load, loop.LoadOp) and load.domain is None and op.kind.data != ReductionKind.ADD:
                fills.setdefault(load.source, identity(op.kind.data, op.result.type))
        return fills

    def store(
        self, value: Tile, buffer: SSAValue, dims: Sequence[Dim], access: AffineMap, only_first: Dim | None = None
    ) -> None:
        """Emits the store of a result of the nest.

        Args:
            value: the result.
            buffer: destination.
            dims: the free indices.
            access: map from the free indices to coordinates of the buffer.
            only_first: dimension over blocks with equal results; only the first of these blocks stores.
        """
        at = Coordinates([d for d in dims if d.tile > 1])
        index = [at.index(d) for d in dims]
        results = [e.replace_dims_and_symbols(index, []) for e in access.results]
        first: list[Constraint] = [] if only_first is None else [(at.index(only_first), 0, 1)]
        source = self.spread(value, at.dims, self.depth)
        access, domain, symbols = at.access(results, [*at.tails(), *first])
        self.insert(tile.StoreOp(source, buffer, access, symbols, domain), self.depth)

    def scatter(self, op: tensor.ScatterOp, buffer: SSAValue, dims: Sequence[Dim], element_map: AffineMap) -> None:
        """Emits the atomic updates of a scatter. Updates outside of the buffer have no effect.

        Args:
            op: the scatter, whose values and indices the nest yields.
            buffer: the tensor that is updated.
            dims: the free indices.
            element_map: map from the free indices to the coordinates of an element in the tensor of values.
        """
        yields: dict[SSAValue, SSAValue] = dict(zip(self.nest.res, yielded(self.nest.body.block), strict=True))
        tiles = [self.tile_of(yields[v]) for v in (op.values, *op.indices)]
        tile_dims = [d for d in dims if d.tile > 1]
        at = Coordinates(tile_dims)
        element = [e.replace_dims_and_symbols([at.index(d) for d in dims], []) for e in element_map.results]
        values = [self.spread(t, tile_dims, self.depth) for t in tiles]
        coordinates = [self.insert(payload.CastOp(v, IndexType()), self.depth).results[0] for v in values[1:]]
        symbols = [at.symbol(p, None, self.depth) for p in coordinates]
        results = [e.replace_dims_and_symbols(element, symbols) for e in op.map.data.results]
        limits = at.tails() + [(e, 0, n) for e, n in zip(results, extents_of(op.result.type), strict=True)]
        access, domain, used = at.access(results, limits)
        self.insert(tile.AtomicRmwOp(op.kind.data, values[0], buffer, access, used, domain), self.depth)

    def scalar_op(self, op: Operation) -> None:
        """Lowers an operation without regions: a load, a payload operation or a scan."""
        self.location = location_of(op)
        if isinstance(op, loop.LoadOp):
            self.tiles[op.result] = self.load(op)
        elif isinstance(op, payload.AssertOp):
            self.tiles[op.result] = self._assertion(op)
        elif payload.is_payload(op) and len(op.results) == 1:
            read = self._read(op) if self.alone and isinstance(op, payload.CmpOp) else op.operands
            self.tiles[op.results[0]] = self.payload(op, [self.tile_of(o) for o in read])
        elif isinstance(op, loop.ScanOp):
            self.tiles[op.result] = self.scan(op)
        else:
            raise UnsupportedError("not legal inside a nest", operator=op.name)

    def _assertion(self, op: payload.AssertOp) -> Tile:
        value, condition = (self.tile_of(o) for o in op.operands)
        for dim in union(value.dims, condition.dims):
            condition = self.within(dim, condition, True) if dim.has_tail else condition
        return self.payload(op, (value, condition))

    def scan(self, op: loop.ScanOp) -> Tile:
        """Emits a scan that starts with the carry of the preceding tile, and updates the carry.

        If the tile extent of the scanned index is 1, each iteration of the block's loop adds one element.
        """
        value, carry, along = self.tile_of(op.source), self.carries[op], self.dims[op.index]
        if along.tile == 1:
            new = self.combine(op.kind.data, carry, value)
            self.carries[op] = Tile(self.spread(new, carry.dims, new.depth), carry.dims, new.depth)
            return self.carries[op]
        dims = union(carry.dims, (along,))
        depth = max(value.depth, carry.depth)
        scan = tile.ScanOp(op.kind.data, self.spread(value, dims, depth), carry.value, dims.index(along))
        self.insert(scan, depth, op.result.name_hint)
        self.carries[op] = Tile(scan.carry, carry.dims, depth)
        return Tile(scan.result, dims, depth)

    def _read(self, op: payload.CmpOp) -> Sequence[SSAValue]:
        """Returns the operands of a comparison in a block of one thread; if both are indices cast to i64, the indices.

        A vector register holds half as many i64 as indices. In a block of several threads the casts are not removed,
        because values in i64 are reused there.
        """
        casts = [v.owner for v in op.operands if isinstance(v.owner, payload.CastOp)]
        indices = [c.operand for c in casts if c.operand.type == IndexType()]
        return indices if len(indices) == len(op.operands) else op.operands
