"""Views of views as single views, with simplified maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from ..dialects import payload, tensor
from ..dialects.domain import DomainAttr
from ..dialects.extents import Extent, extents_of, least, most
from .index_simplify import Form, Simplifier, constant, dim, write
from .rewriting import rewrite_module

Constraint: TypeAlias = tuple[Form, int, Extent]


class SimplifyIndexMap(RewritePattern):
    """One view, composed with the view that it reads, if that is possible; or no view at all."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tensor.IndexMapOp, rewriter: PatternRewriter, /) -> None:
        shape = extents_of(op.result.type)
        simplifier = Simplifier([most(n) for n in shape])
        dims = [dim(i) if n != 1 else constant(0) for i, n in enumerate(shape)]
        coordinates = [simplifier.read(e, dims) for e in op.map.data.results]
        constraints = _constraints(op, dims, simplifier, shape)
        source, fill = op.source, op.fill
        inner = source.owner
        if isinstance(inner, tensor.IndexMapOp) and (not constraints or inner.fill is None or _same(fill, inner.fill)):
            further = _constraints(inner, coordinates, simplifier, shape)
            constraints += [c for c in further if c not in constraints]
            coordinates = [simplifier.read(e, coordinates) for e in inner.map.data.results]
            source, fill = inner.source, inner.fill if further else fill
        if any(simplifier.outside(e, lo, most(hi)) for e, lo, hi in constraints) and fill is not None:
            return _splat(op, fill, rewriter)
        if not constraints and isinstance(source.owner, payload.ConstantOp):
            return rewriter.replace(op, payload.ConstantOp(source.owner.value, op.result.type))
        identity = [c == d for c, d in zip(coordinates, dims, strict=False)]
        if not constraints and extents_of(source.type) == shape and all(identity):
            return rewriter.replace(op, (), (source,))
        _replace_if_other(op, source, coordinates, constraints, fill, rewriter)


def _replace_if_other(
    op: tensor.IndexMapOp,
    source: SSAValue,
    coordinates: Sequence[Form],
    constraints: Sequence[Constraint],
    fill: SSAValue | None,
    rewriter: PatternRewriter,
) -> None:
    shape = extents_of(op.result.type)
    rank = len(shape)
    map = AffineMap(rank, 0, tuple(write(c) for c in coordinates))
    domain = None
    if constraints:
        constrained = AffineMap(rank, 0, tuple(write(c) for c, _, _ in constraints))
        domain = DomainAttr.get(constrained, [(lo, hi) for _, lo, hi in constraints])
    if (source, map, domain) == (op.source, op.map.data, op.domain):
        return
    new = tensor.IndexMapOp(source, map, shape, domain, fill if constraints else None)
    new.attributes.update(op.attributes)
    rewriter.replace(op, new)


def _splat(op: tensor.IndexMapOp, fill: SSAValue, rewriter: PatternRewriter) -> None:
    """Nothing of the source is seen."""
    if isinstance(fill.owner, payload.ConstantOp):
        rewriter.replace(op, payload.ConstantOp(fill.owner.value, op.result.type))


def _constraints(
    op: tensor.IndexMapOp, dims: Sequence[Form], simplifier: Simplifier, shape: Sequence[Extent]
) -> list[Constraint]:
    """What the domain of `op` asks at `dims`, forms of the indices below `shape`, without what always holds."""
    if op.domain is None:
        return []
    pairs = zip(op.domain.affine.results, op.domain.limits, strict=True)
    found = [(simplifier.read(e, dims), *limits) for e, limits in pairs]
    return [c for c in found if not simplifier.within(c[0], c[1], least(c[2])) and not _is_index_below(c, shape)]


def _is_index_below(constraint: Constraint, shape: Sequence[Extent]) -> bool:
    """Whether a constraint asks only that an index of symbolic extent be below that very symbol."""
    form, lo, hi = constraint
    return lo <= 0 and any(form == dim(i) and hi == n for i, n in enumerate(shape) if not isinstance(n, int))


def _same(a: SSAValue | None, b: SSAValue | None) -> bool:
    """Whether two fill values are the same scalar."""
    if a is b:
        return True
    if a is None or b is None:
        return False
    x, y = a.owner, b.owner
    return isinstance(x, payload.ConstantOp) and isinstance(y, payload.ConstantOp) and x.value == y.value


@dataclass(frozen=True)
class SimplifyIndexMapsPass(ModulePass):
    """Make one view of each chain of views.

    What: an `index_map` of an `index_map` is composed with it, where at most one of them has a domain or both have the
    same fill; maps are simplified for the ranges of their indices; constraints that always hold are dropped; a view of
    a constant is a constant, and a view that changes nothing is its source.
    Why: PyTorch programs are full of chains (a split into heads is a reshape and a transpose), most of which cancel.
    Why here: right after decomposition, so that everything after it sees each access once.

    ```mlir
    %1 = tensor.index_map %0[affine_map<(d0, d1) -> (d0 * 8 + d1)>] : tensor<32xf32> -> tensor<4x8xf32>
    %2 = tensor.index_map %1[affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)>] : tensor<4x8xf32> -> tensor<32xf32>
    ```
    becomes `%0` wherever `%2` is used.
    """

    name = "simplify-index-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [SimplifyIndexMap()])
