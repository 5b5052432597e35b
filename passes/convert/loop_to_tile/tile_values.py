"""Tiles as the lowering sees them: which loop index each dimension of a tile runs over, and what its padding holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap, AffineSymExpr

from ....dialects import payload
from ....dialects.shapes.affine import Range, is_within, range_of, simplify_map
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Count, Extent, count_of, most_tiles
from ...analysis.masks import scattered

SAMPLES = 64
"""Values of an expression that are looked at to see how it is on average."""


@dataclass(frozen=True, eq=False)
class Dim:
    """One loop index at the tile level: `index = position in the tile + tile * counter`.

    Where `ranks` blocks of a cluster take its tiles in turn, `counter * ranks + rank` is the number of the tile.

    extent   how many values the index takes
    tile     extent of a tile along it; 1 makes the index a scalar, and no tile has such a dimension
    counter  the number of the tile: a block index or a loop counter; None where there is only one tile
    order    the place of the dimension in every tile that has it
    depth    how many loops lie around the counter
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
        """How many tiles cover the range, of which a block counts its own."""
        found = count_of(self.extent, self.tile)
        return -(-found // self.ranks) if isinstance(found, int) else found

    @property
    def has_tail(self) -> bool:
        """Whether the last tile reaches past the range, or may do so."""
        return self.tile > 1 and (not isinstance(self.extent, int) or self.extent % (self.tile * self.ranks) != 0)


@dataclass(frozen=True)
class Tile:
    """A loop value at the tile level: a tile over `dims` (a scalar for none).

    depth    how many loops it was computed in
    padding  dimension -> the value wherever that index is past its range, where it is known
    constant the value everywhere, where it is one
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
        """The value where the index of `dim` is past its range; None if it is not known."""
        return self.constant.value.data if self.constant is not None else self.padding.get(dim)


def shape(dims: Iterable[Dim]) -> tuple[int, ...]:
    return tuple(d.tile for d in dims)


def union(*groups: Iterable[Dim]) -> tuple[Dim, ...]:
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
"""How the padding of operands becomes that of the result, for the operations where it matters."""


def padding_of(op: Operation, operands: Sequence[Tile], dims: Sequence[Dim]) -> dict[Dim, float]:
    """What the result of the payload operation `op` over `dims` holds past the end of a range, where that is known."""
    fold, only_zero = _FOLDS.get(op.name), False
    if isinstance(op, payload.CastOp):  # floats stay what they are, and 0 is the same in all types
        fold, only_zero = sum, not (payload.is_float(op.operand.type) and payload.is_float(op.result.type))
    known: dict[Dim, float] = {}
    if fold is not None:
        for d in dims:
            values = [v for o in operands if (v := o.beyond(d)) is not None and not math.isnan(v)]
            if d.has_tail and len(values) == len(operands) and not (only_zero and any(values)):
                known[d] = fold(values)
    return known


class Coordinates:
    """Rewrites affine expressions over loop indices into expressions over the dimensions of one tile.

    Whatever of an index is the same for the whole tile becomes a symbol.
    """

    def __init__(self, dims: Sequence[Dim]) -> None:
        self.dims = tuple(dims)
        self.symbols: list[SSAValue] = []
        self.depth = 0
        self._ranges: list[Range] = []

    def symbol(self, value: SSAValue, bound: Range, depth: int) -> AffineExpr:
        """The symbol that stands for `value`, which lies in range(bound)."""
        self.depth = max(self.depth, depth)
        for i, known in enumerate(self.symbols):
            if known is value:
                return AffineExpr.symbol(i)
        self.symbols.append(value)
        self._ranges.append(bound)
        return AffineExpr.symbol(len(self.symbols) - 1)

    def index(self, dim: Dim) -> AffineExpr:
        """The loop index of `dim`."""
        expr: AffineExpr | None = AffineExpr.dimension(self.dims.index(dim)) if dim.tile > 1 else None
        if dim.counter is not None:
            bound = dim.extent if dim.tile == 1 else most_tiles(dim.count)
            first = self.symbol(dim.counter, bound, dim.depth) * (dim.tile * dim.ranks)
            expr = first if expr is None else expr + first
        if dim.rank is not None:
            first = self.symbol(dim.rank, dim.ranks, 0) * dim.tile
            expr = first if expr is None else expr + first
        return expr if expr is not None else AffineExpr.constant(0)

    def map(self, results: Sequence[AffineExpr]) -> AffineMap:
        full = AffineMap(len(self.dims), len(self.symbols), tuple(results))
        return simplify_map(full, shape(self.dims), self._ranges)

    def range_of(self, expr: AffineExpr) -> tuple[int, int]:
        """The least and the greatest value of an expression made of expressions from here, all of bounded symbols."""
        found = range_of(expr, shape(self.dims), self._ranges)
        assert found is not None
        return found[0], found[1] - 1

    def samples(self, expr: AffineExpr) -> list[int]:
        """Values of an expression in nothing but symbols: all if it has only one of known range, some of them if
        those are many; none if it has several."""
        found = sorted({e.position for e in expr.dfs() if isinstance(e, AffineSymExpr)})
        values = range(1)
        if found:
            bound = self._ranges[found[0]]
            if len(found) > 1 or not isinstance(bound, int | tuple):
                return []
            values = range(bound) if isinstance(bound, int) else range(*bound)
        chosen = scattered(values.start, values.stop, SAMPLES)
        return [expr.eval([], [v if i in found else 0 for i in range(len(self.symbols))]) for v in chosen]

    def access(
        self, results: Sequence[AffineExpr], constraints: Sequence[tuple[AffineExpr, int, Extent]] = ()
    ) -> tuple[AffineMap, DomainAttr | None, list[SSAValue]]:
        """The map to `results` and the domain in which every `lo <= expression < hi` of `constraints` holds, without
        those that always do (None if all do), both simplified; and the symbols that are left in them."""
        kept: list[tuple[AffineExpr, int, Extent]] = []
        for expr, lo, hi in constraints:
            simple = self.map((expr,)).results[0]
            if not is_within(simple, lo, hi, shape(self.dims), self._ranges):
                kept.append((simple, lo, hi))
        guarded = AffineMap(len(self.dims), len(self.symbols), tuple(e for e, _, _ in kept))
        maps = [self.map(results), guarded]
        found = sorted({e.position for m in maps for r in m.results for e in r.dfs() if isinstance(e, AffineSymExpr)})
        dims = [AffineExpr.dimension(i) for i in range(len(self.dims))]
        renamed = [AffineExpr.symbol(found.index(i) if i in found else 0) for i in range(len(self.symbols))]
        access, affine = (m.replace_dims_and_symbols(dims, renamed, len(dims), len(found)) for m in maps)
        domain = DomainAttr.get(affine, [(lo, hi) for _, lo, hi in kept]) if kept else None
        return access, domain, [self.symbols[i] for i in found]
