"""Emits the program of a block, each operation at the shallowest loop that its operands allow, and bounds of loops."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, LocationAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import loop, payload, tensor, tile
from ....dialects.loop.dependence import Dependence, access_indices, yielded
from ....dialects.payload import element_type
from ....dialects.shapes.affine import DIM, Form, number_of
from ....dialects.shapes.extents import Count, Extent, extents_of, fewest_tiles, most, most_tiles
from ....dialects.support.locations import location_of
from ....dialects.tensor import ReductionKind, combine, identity
from ....errors import UnsupportedError
from ...analysis.integer_forms import Forms
from ...analysis.masks import half_spaces
from ...analysis.nest_schedule import reductions
from .tile_values import Coordinates, Dim, Tile, padding_of, shape, union


class Emitter:
    """The state of lowering one nest: what every loop value has become, and the loops that are being filled.

    `scopes[d]` is the block inside `d` loops that receives operations. Operations are pure (but stores), so a value
    goes into the outermost scope that has its operands, whatever loop its user is in: that is how everything that does
    not change is computed once.
    """

    def __init__(self, nest: loop.NestOp, body: Block, buffers: dict[SSAValue, SSAValue], alone: bool) -> None:
        self.nest, self.scopes, self.buffers = nest, [body], buffers
        self.tiles: dict[SSAValue, Tile] = {}
        self.dims: dict[SSAValue, Dim] = {}
        self.location: LocationAttr | None = location_of(nest)
        self.alone = alone
        """Whether a block is one thread, which has whole tiles."""
        self.carries: dict[loop.ScanOp, Tile] = {}
        """Scan -> its result at the end of the tile before, which becomes that at the end of the current tile."""
        self._numbers: dict[int, SSAValue] = {}
        self._counts: dict[Count, SSAValue] = {}

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def insert(self, op: Operation, depth: int, hint: str | None = None) -> Operation:
        """Append `op` to the scope at `depth`."""
        if self.location is not None:
            op.location = self.location
        if hint is not None:
            for r in op.results:
                r.name_hint = hint
        self.scopes[depth].add_op(op)
        return op

    @contextmanager
    def at(self, depth: int) -> Generator[None]:
        """Inside, loops are opened at `depth`, whatever loops are open now."""
        saved = self.scopes
        self.scopes = saved[: depth + 1]
        yield
        self.scopes = saved

    def number(self, value: int) -> SSAValue:
        if value not in self._numbers:
            op = self.insert(arith.ConstantOp.from_int_and_width(value, IndexType()), 0, f"c{value}")
            self._numbers[value] = op.results[0]
        return self._numbers[value]

    def count(self, count: Count) -> SSAValue:
        """How many tiles there are, as an `index` at the top of the kernel."""
        if isinstance(count, int):
            return self.number(count)
        if count not in self._counts:
            size = self.insert(payload.ExtentOp(count.symbol, IndexType()), 0, count.symbol.hint).results[0]
            if (tile_size := count.tile.data) > 1:
                above = self.insert(arith.AddiOp(size, self.number(tile_size - 1)), 0).results[0]
                size = self.insert(arith.DivUIOp(above, self.number(tile_size)), 0, "count").results[0]
            self._counts[count] = size
        return self._counts[count]

    def loops(
        self,
        counts: Sequence[Count | tuple[SSAValue, SSAValue]],
        carried: Sequence[SSAValue],
        body: Callable[[list[SSAValue], list[SSAValue]], list[SSAValue]],
        hints: Sequence[str | None] = (),
    ) -> list[SSAValue]:
        """Nested loops over range(count), or range(start, stop), for each of `counts`, carrying values.

        `body` gets the counters and the carried values, emits into the innermost scope and returns the new values.
        """
        if not counts:
            return body([], list(carried))
        block = Block(arg_types=[IndexType(), *(c.type for c in carried)])
        block.args[0].name_hint = hints[0] if hints else None
        for arg, value in zip(block.args[1:], carried, strict=True):
            arg.name_hint = value.name_hint
        self.scopes.append(block)
        results = self.loops(
            counts[1:], block.args[1:], lambda inner, values: body([block.args[0], *inner], values), hints[1:]
        )
        self.insert(scf.YieldOp(*results), self.depth)
        self.scopes.pop()
        first = counts[0]
        start, stop = first if isinstance(first, tuple) else (self.number(0), self.count(first))
        op = scf.ForOp(start, stop, self.number(1), carried, block)
        self.insert(op, self.depth)
        for r, value in zip(op.res, results, strict=True):
            r.name_hint = value.name_hint
        return list(op.res)

    def constant(self, value: float, element: Attribute, dims: Sequence[Dim], depth: int) -> Tile:
        op = payload.ConstantOp(value, tile.tile_type(element, shape(dims)))
        self.insert(op, depth)
        return Tile(op.result, tuple(dims), depth, {}, op.value)

    def extent(self, extent: Extent, dims: Sequence[Dim], depth: int) -> Tile:
        if isinstance(extent, int):
            return self.constant(extent, IndexType(), dims, depth)
        value = self.insert(payload.ExtentOp(extent, tile.tile_type(IndexType(), shape(dims))), depth).results[0]
        return Tile(value, tuple(dims), depth)

    def spread(self, t: Tile, dims: Sequence[Dim], depth: int) -> SSAValue:
        """`t` repeated along the dimensions of `dims` that it lacks, at `depth`."""
        if tuple(dims) == t.dims:
            return t.value
        result = tile.tile_type(element_type(t.value.type), shape(dims))
        if t.constant is not None:
            return self.insert(payload.ConstantOp(t.constant, result), depth).results[0]
        along = [i for i, d in enumerate(dims) if d not in t.dims]
        return self.insert(tile.BroadcastOp(t.value, along, result), depth, t.value.name_hint).results[0]

    def payload(self, op: Operation, operands: Sequence[Tile]) -> Tile:
        """The payload operation `op` on tiles."""
        dims = union(*(o.dims for o in operands))
        depth = max((o.depth for o in operands), default=0)
        container = tile.tile_type(element_type(op.results[0].type), shape(dims))
        new = payload.retyped(op, [self.spread(o, dims, depth) for o in operands], container)
        self.insert(new, depth)
        constant = new.value if isinstance(new, payload.ConstantOp) else None
        padding = padding_of(op, operands, dims) if any(d.has_tail for d in dims) else {}
        return Tile(new.results[0], dims, depth, padding, constant)

    def combine(self, kind: ReductionKind, a: Tile, b: Tile) -> Tile:
        dims, depth = union(a.dims, b.dims), max(a.depth, b.depth)
        op = combine(kind, self.spread(a, dims, depth), self.spread(b, dims, depth))
        self.insert(op, depth, a.value.name_hint)
        return Tile(op.results[0], dims, depth, padding_of(op, (a, b), dims))

    def tile_of(self, value: SSAValue) -> Tile:
        found = self.tiles.get(value)
        if found is None:
            found = self.tiles[value] = self._first_use(value)
        return found

    def _first_use(self, value: SSAValue) -> Tile:
        if value in self.dims:
            return self.index_tile(self.dims[value])
        op = value.owner
        if isinstance(op, payload.ConstantOp):  # defined in front of the nest
            return self.payload(op, ())
        operator = op.name if isinstance(op, Operation) else "block argument"
        raise UnsupportedError("a nest uses a scalar computed outside of it", operator=operator)

    def index_tile(self, dim: Dim) -> Tile:
        """The values of a loop index, as data."""
        if dim.tile == 1 and dim.counter is not None:
            return Tile(dim.counter, (), dim.depth)
        dims = (dim,) if dim.tile > 1 else ()
        at = Coordinates(dims)
        expr = at.index(dim)
        op = tile.AffineOp(at.map((expr,)), at.symbols, tile.tile_type(IndexType(), shape(dims)))
        self.insert(op, at.depth, dim.hint)
        return Tile(op.result, dims, at.depth)

    def within(self, dim: Dim, value: Tile, beyond: float) -> Tile:
        """`value`, and `beyond` where the index of `dim` is past its range."""
        index = self.index_tile(dim)
        end = self.extent(dim.extent, index.dims, index.depth)
        inside = self.insert(payload.CmpOp("lt", index.value, end.value), index.depth).results[0]
        dims, depth = union(value.dims, index.dims), max(value.depth, index.depth)
        where = self.spread(Tile(inside, index.dims, index.depth), dims, depth)
        other = self.constant(beyond, element_type(value.value.type), dims, depth)
        new = payload.SelectOp(where, self.spread(value, dims, depth), other.value)
        self.insert(new, depth, value.value.name_hint)
        known = {d: v for d in dims if (v := value.beyond(d)) == beyond and v is not None}
        return Tile(new.result, dims, depth, {**known, dim: beyond})

    def load(self, op: loop.LoadOp) -> Tile:
        """An access of the nest, for a whole tile."""
        own = [self.dims[v] for v in access_indices(op)]
        symbols = [self.tile_of(s) for s in op.symbols]
        dims = union((d for d in own if d.tile > 1), *(s.dims for s in symbols))
        source = op.source.owner
        if isinstance(source, payload.ConstantOp) and op.domain is None:
            return self.constant(source.scalar, element_type(source.result.type), (), 0)
        at = Coordinates(dims)
        used = set(access_indices(op))
        index = [at.index(self.dims[v]) if v in used else AffineExpr.constant(0) for v in op.indices]
        depth = max((s.depth for s in symbols), default=0)
        values = [at.symbol(self.spread(s, dims, depth) if s.dims else s.value, None, s.depth) for s in symbols]

        def rewrite(e: AffineExpr) -> AffineExpr:
            return e.replace_dims_and_symbols(index, values)

        constraints: list[tuple[AffineExpr, int, Extent]] = []
        if op.domain is not None:
            pairs = zip(op.domain.affine.results, op.domain.limits, strict=True)
            constraints = [(rewrite(e), lo, hi) for e, (lo, hi) in pairs]
        constraints += [(at.index(d), 0, d.extent) for d in dims if d.has_tail and d in own]
        access, domain, used_symbols = at.access([rewrite(e) for e in op.map.data.results], constraints)
        fill = self._fill(op) if domain is not None else None
        result = tile.tile_type(element_type(op.source.type), shape(dims))
        outside = fill.value if fill is not None else None
        new = tile.LoadOp(self.buffers[op.source], access, used_symbols, domain, outside, result)
        self.insert(new, max(at.depth, depth), op.result.name_hint)
        padding = {d: v for d in own if fill is not None and d.has_tail and (v := fill.beyond(d)) is not None}
        return Tile(new.result, dims, max(at.depth, depth), padding)

    def _fill(self, op: loop.LoadOp) -> Tile:
        """What a load gives outside of its domain: its own fill value, else what suits the reductions."""
        if op.fill is None:
            return self.constant(self._fills.get(op.source, 0), element_type(op.source.type), (), 0)
        fill = self.tile_of(op.fill)
        if fill.dims:
            raise UnsupportedError("the fill value of a load varies within a tile", operator=op.name)
        return fill

    @cached_property
    def _fills(self) -> dict[SSAValue, float]:
        """Source -> what its padding should hold: the identity of a reduction that takes the loaded value as it is.

        With one such value for all loads of a tensor they stay equal, and are done once.
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
        """Write a result of the nest: `access` takes the free indices `dims` to coordinates of the buffer. Of the
        blocks that `only_first` numbers, the first one does."""
        kept = [d for d in dims if d.tile > 1]
        at = Coordinates(kept)
        index = [at.index(d) for d in dims]
        results = [e.replace_dims_and_symbols(index, []) for e in access.results]
        limits: list[tuple[AffineExpr, int, Extent]] = [(at.index(d), 0, d.extent) for d in kept if d.has_tail]
        if only_first is not None:
            limits.append((at.index(only_first), 0, 1))
        source = self.spread(value, kept, self.depth)
        access, domain, symbols = at.access(results, limits)
        self.insert(tile.StoreOp(source, buffer, access, symbols, domain), self.depth)

    def scatter(self, op: tensor.ScatterOp, buffer: SSAValue, dims: Sequence[Dim], own: AffineMap) -> None:
        """Combine a result of the nest into `buffer` as `op` does, whose values and indices the nest yields; `own`
        takes the free indices `dims` to their coordinates. What lies outside of the buffer goes nowhere."""
        yields: dict[SSAValue, SSAValue] = dict(zip(self.nest.res, yielded(self.nest.body.block), strict=True))
        tiles = [self.tile_of(yields[v]) for v in (op.values, *op.indices)]
        kept = [d for d in dims if d.tile > 1]
        at = Coordinates(kept)
        element = [e.replace_dims_and_symbols([at.index(d) for d in dims], []) for e in own.results]
        values = [self.spread(t, kept, self.depth) for t in tiles]
        places = [self.insert(payload.CastOp(v, IndexType()), self.depth).results[0] for v in values[1:]]
        symbols = [at.symbol(p, None, self.depth) for p in places]
        results = [e.replace_dims_and_symbols(element, symbols) for e in op.map.data.results]
        limits: list[tuple[AffineExpr, int, Extent]] = [(at.index(d), 0, d.extent) for d in kept if d.has_tail]
        limits += [(e, 0, n) for e, n in zip(results, extents_of(op.result.type), strict=True)]
        access, domain, used = at.access(results, limits)
        self.insert(tile.AtomicRmwOp(op.kind.data, values[0], buffer, access, used, domain), self.depth)

    def scalar_op(self, op: Operation) -> None:
        """Lower one operation of a body that holds no region: a load or payload."""
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
        """A scan that starts with the carry of the tile before: along a dimension of the tile, or from one iteration of
        the block's loop to the next."""
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
        """The operands of `op`, which compares on a tile that one thread has; indices as they are: a vector holds half
        as many of i64. Where threads share a tile, indices kept as i64 are not computed again."""
        casts = [v.owner for v in op.operands if isinstance(v.owner, payload.CastOp)]
        indices = [c.operand for c in casts if c.operand.type == IndexType()]
        return indices if len(indices) == len(op.operands) else op.operands


Bounds: TypeAlias = tuple[SSAValue, SSAValue]
"""The chunks of one index that a block visits: those in range(start, stop), which may be empty."""


WORTHWHILE = 16
"""One chunk in so many has to be left out, on average, for bounds that are computed: loops with numbers as bounds can
be unrolled, as over the window of a convolution, of which only the border of the image is masked."""


class ChunkBounds:
    """Emits the bounds of the loops over chunks of one nest's reductions."""

    def __init__(self, emitter: Emitter, dependence: Dependence) -> None:
        self.emitter = emitter
        self.dependence = dependence
        self.forms = Forms()

    def of(
        self, stages: Sequence[loop.ReduceOp], looped: Sequence[int], counts: Sequence[Count], chunks: Sequence[int]
    ) -> list[Bounds]:
        """Bounds for the indices `looped` of `stages`, which run together: an index has `counts[i]` chunks of
        `chunks[i]` values."""
        e = self.emitter
        found = half_spaces(stages, self.forms, self.dependence)
        result: list[Bounds] = []
        for i in looped:
            index = stages[0].body.block.args[i]
            number = self.forms.of(index)
            count = counts[i]
            start, stop = e.number(0), e.count(count)
            for space in found:
                terms = dict(space.terms)
                coefficient = terms.pop(number.terms[0][0], 0) if number is not None else 0
                if coefficient:
                    rest = Form(tuple(terms.items()), space.constant)
                    at, highest = self._highest(rest)
                    value = self._limit(at, highest, coefficient, chunks[i], count)
                    if value is None:
                        continue
                    if coefficient > 0:
                        start = value if start is e.number(0) else self._merged(arith.MaxSIOp, start, value)
                    else:
                        stop = value if stop is e.count(count) else self._merged(arith.MinSIOp, stop, value)
            result.append((start, stop))
        return result

    def _highest(self, form: Form) -> tuple[Coordinates, AffineExpr]:
        """The greatest value that `form` takes within the tiles whose counters are known, and anywhere along others."""
        at, total = Coordinates(()), AffineExpr.constant(form.constant)
        dims: Mapping[SSAValue, Dim] = self.emitter.dims
        for atom, factor in form.terms:
            dim = dims.get(self.forms.indices[number_of(atom)]) if atom[0] == DIM else None
            if dim is None or dim.rank is not None or dim.depth > self.emitter.depth:
                bounds = self.forms.simplifier.interval(Form(((atom, factor),), 0))
                assert bounds is not None
                total = total + bounds[1]
                continue
            last = min(dim.tile, most(dim.extent)) - 1
            total = total + max(0, factor * last)
            if dim.counter is not None:
                total = total + at.symbol(dim.counter, most_tiles(dim.count), dim.depth) * (factor * dim.tile)
        return at, total

    def _limit(
        self, at: Coordinates, highest: AffineExpr, coefficient: int, chunk: int, count: Count
    ) -> SSAValue | None:
        """Where chunks begin, or end, in which `coefficient * index + highest` is somewhere at least 0; None where that
        excludes no chunk, or hardly any."""
        e, step = self.emitter, abs(coefficient) * chunk
        if coefficient < 0:
            expr = highest // step + 1
        else:
            expr = ((highest + coefficient * (chunk - 1)) // step) * -1
        (expr,) = at.map((expr,)).results
        lo, hi = at.range_of(expr)
        most_chunks = most_tiles(count)
        if (coefficient < 0 and lo >= most_chunks) or (coefficient > 0 and hi <= 0):
            return None
        samples = at.samples(expr)
        outside = [max(0, min(most_chunks, n if coefficient > 0 else most_chunks - n)) for n in samples]
        if outside and WORTHWHILE * sum(outside) < most_chunks * len(outside):
            return None
        access, _, symbols = at.access((expr,))
        value = e.insert(tile.AffineOp(access, symbols, IndexType()), at.depth).results[0]
        if coefficient < 0 and hi > fewest_tiles(count):
            return self._merged(arith.MinSIOp, value, e.count(count))
        if coefficient > 0 and lo < 0:
            return self._merged(arith.MaxSIOp, value, e.number(0))
        return value

    def _merged(self, kind: type[arith.MinSIOp] | type[arith.MaxSIOp], a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emitter.insert(kind(a, b), self.emitter.depth).results[0]
