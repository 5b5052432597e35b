"""Splitting the indices of nests and reductions so that accesses become linear."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, IndexType, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass

from ...dialects import loop, payload
from ...dialects.shapes.affine import DIM, Form, Simplifier, add, dim, renumbered, scale, write
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent, extents_attr
from ..rewriting import replace

Position: TypeAlias = tuple[Block, tuple[Extent, ...], int]
"""An index that is split: the block its op lies in, the extents of that op, and which of them."""


@dataclass(frozen=True)
class SplitDimensionsPass(ModulePass):
    """Split an index that is used as `d floordiv c` and `d mod c` into two, where c divides its extent.

    What: the index of a nest or of a reduction becomes two, d = outer * c + inner, in every access; reductions of equal
    extents in one body are split alike. A nest keeps the shape of its result, through a result map. Repeated until no
    access has a quotient that this removes.
    Why: a linear access has strides; and a value that depends on `d floordiv c` alone no longer seems to depend on all
    of d, so the heads of an attention are seen as a batch and its products as contractions.
    Why here: first on nests, because everything after it looks at accesses.

    ```mlir
    %y = loop.nest (%i) in [512] -> tensor<512xf32> {
      %0 = loop.load %x[affine_map<(d0) -> (d0 floordiv 64, d0 mod 64)>](%i) : tensor<8x64xf32>
    ```
    becomes
    ```mlir
    %y = loop.nest (%io, %ii) in [8, 64] to affine_map<(d0, d1) -> (d0 * 64 + d1)> -> tensor<512xf32> {
      %0 = loop.load %x[affine_map<(d0, d1) -> (d0, d1)>](%io, %ii) : tensor<8x64xf32>
    ```
    """

    name = "loop-split-dimensions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in tuple(op.walk()):
            if isinstance(nest, loop.NestOp):
                while _split_once(nest):
                    pass


def _split_once(nest: loop.NestOp) -> bool:
    """Split every index of `nest` for which some access asks, once; whether there was any."""
    wanted: dict[Position, int] = {}
    for op in nest.walk():
        if isinstance(op, loop.LoadOp):
            for index, divisor in _quotients(op):
                wanted.setdefault(_position(index), divisor)
    if not wanted:
        return False
    new: dict[SSAValue, tuple[SSAValue, SSAValue, int]] = {}
    for op in tuple(nest.walk()):
        if isinstance(op, loop.NestOp | loop.ReduceOp) and op.parent is not None:
            for i in reversed(range(len(op.sizes))):
                if (divisor := wanted.get((op.parent, op.sizes, i))) is not None:
                    new[op.body.block.args[i]] = (*_new_arguments(op, i, divisor), divisor)
    shapes = {op: _split_extents(op, wanted) for op in nest.walk() if isinstance(op, loop.NestOp | loop.ReduceOp)}
    for op, (extents, result_map) in shapes.items():
        _set_extents(op, extents, result_map)
    for old, digits in new.items():
        for use in tuple(old.uses):
            if isinstance(use.operation, payload.CastOp):
                _recompute(use.operation, digits)
    for op in tuple(nest.walk()):
        if isinstance(op, loop.LoadOp) and any(i in new for i in op.indices):
            _rewrite_load(op, new)
    for old in new:
        assert isinstance(old, BlockArgument)
        old.block.erase_arg(old)
    return True


def _extent(index: SSAValue) -> Extent:
    assert isinstance(index, BlockArgument)
    op = index.block.parent_op()
    assert isinstance(op, loop.NestOp | loop.ReduceOp)
    return op.sizes[index.index]


def _position(index: SSAValue) -> Position:
    assert isinstance(index, BlockArgument)
    op = index.block.parent_op()
    assert isinstance(op, loop.NestOp | loop.ReduceOp)
    assert op.parent is not None
    return op.parent, op.sizes, index.index


def _forms(op: loop.LoadOp, dims: list[Form]) -> tuple[Simplifier, list[Form], list[Form]]:
    """The coordinates and the constrained expressions of `op`, simplified."""
    simplifier = Simplifier([_extent(i) for i in op.indices], [None] * len(op.symbols))
    return simplifier, *_read(op, simplifier, dims)


def _read(op: loop.LoadOp, simplifier: Simplifier, dims: list[Form]) -> tuple[list[Form], list[Form]]:
    symbols = [Form((((1, i), 1),), 0) for i in range(len(op.symbols))]
    coordinates = [simplifier.read(e, dims, symbols) for e in op.map.data.results]
    guarded = op.domain.affine.results if op.domain is not None else ()
    return coordinates, [simplifier.read(e, dims, symbols) for e in guarded]


def _quotients(op: loop.LoadOp) -> list[tuple[SSAValue, int]]:
    """The indices of `op` under a floordiv or mod by a proper divisor of their extent, with that divisor."""
    _, coordinates, guarded = _forms(op, [dim(i) for i in range(len(op.indices))])
    found = list[tuple[SSAValue, int]]()
    for form in (*coordinates, *guarded):
        for inner, divisor in form.quotients():
            if len(inner.terms) != 1 or inner.constant:
                continue
            (atom, weight) = inner.terms[0]
            if atom[0] == DIM and weight == 1:
                index: SSAValue = tuple(op.indices)[atom[1]]  # pyright: ignore
                extent = _extent(index)  # a symbol has no divisors
                if isinstance(extent, int) and 1 < divisor < extent and extent % divisor == 0:
                    found.append((index, divisor))
    return found


def _new_arguments(op: loop.NestOp | loop.ReduceOp, position: int, divisor: int) -> tuple[SSAValue, SSAValue]:
    """Two block arguments after the one at `position`, which stays until its uses are gone."""
    block = op.body.block
    hint = block.args[position].name_hint or "d"
    outer = block.insert_arg(IndexType(), position + 1)
    inner = block.insert_arg(IndexType(), position + 2)
    outer.name_hint, inner.name_hint = f"{hint}o", f"{hint}i"
    return outer, inner


def _split_extents(
    op: loop.NestOp | loop.ReduceOp, wanted: dict[Position, int]
) -> tuple[list[Extent], AffineMap | None]:
    """The new extents of `op`, and for a nest the map from its new indices to the old ones."""
    assert op.parent is not None
    extents, old = list[Extent](), list[Form]()
    for i, extent in enumerate(op.sizes):
        divisor = wanted.get((op.parent, op.sizes, i))
        if divisor is None or not isinstance(extent, int):
            old.append(dim(len(extents)))
            extents.append(extent)
        else:
            old.append(add(scale(dim(len(extents)), divisor), dim(len(extents) + 1)))
            extents += [extent // divisor, divisor]
    if len(extents) == len(op.sizes) or isinstance(op, loop.ReduceOp):
        return extents, None
    simplifier = Simplifier(extents)
    before = op.result_map.data if op.result_map is not None else AffineMap.identity(len(op.sizes))
    return extents, AffineMap(len(extents), 0, tuple(write(simplifier.read(e, old)) for e in before.results))


def _set_extents(op: loop.NestOp | loop.ReduceOp, extents: list[Extent], result_map: AffineMap | None) -> None:
    op.properties["extents"] = extents_attr(extents)
    if result_map is not None:
        op.properties["result_map"] = AffineMapAttr(result_map)


def _recompute(op: payload.CastOp, digits: tuple[SSAValue, SSAValue, int]) -> None:
    """Replace a cast of the old index by the same number computed from its digits."""
    outer, inner, divisor = digits
    high, low = payload.CastOp(outer, op.result.type), payload.CastOp(inner, op.result.type)
    weight = payload.ConstantOp(divisor, op.result.type)
    product = arith.MuliOp(high.result, weight.result)
    total = arith.AddiOp(product.result, low.result)
    ops: list[Operation] = [high, low, weight, product, total]
    replace(op, *ops)


def _rewrite_load(op: loop.LoadOp, new: dict[SSAValue, tuple[SSAValue, SSAValue, int]]) -> None:
    """Let `op` use the new indices, and only those that it needs."""
    indices, dims = list[SSAValue](), list[Form]()
    for index in op.indices:
        if index in new:
            outer, inner, divisor = new[index]
            dims.append(add(scale(dim(len(indices)), divisor), dim(len(indices) + 1)))
            indices += [outer, inner]
        else:
            dims.append(dim(len(indices)))
            indices.append(index)
    extents = [_new_extent(i, new) for i in indices]
    simplifier = Simplifier(extents, [None] * len(op.symbols))
    coordinates, guarded = _read(op, simplifier, dims)
    used = sorted({a[1] for f in (*coordinates, *guarded) for a in f.atoms() if a[0] == DIM})
    names = {d: i for i, d in enumerate(used)}
    symbols = {i: i for i in range(len(op.symbols))}

    def exprs(forms: list[Form]) -> tuple[AffineExpr, ...]:
        return tuple(write(renumbered(f, names, symbols)) for f in forms)

    shape = (len(used), len(op.symbols))
    domain = None
    if op.domain is not None:
        domain = DomainAttr.get(AffineMap(*shape, exprs(guarded)), op.domain.limits)
    load = loop.LoadOp(
        op.source,
        AffineMap(*shape, exprs(coordinates)),
        [indices[d] for d in used],
        tuple[SSAValue, ...](op.symbols),
        domain,
        op.fill,
    )
    load.attributes.update(op.attributes)
    replace(op, load)


def _new_extent(index: SSAValue, new: dict[SSAValue, tuple[SSAValue, SSAValue, int]]) -> Extent:
    """The extent of `index` while old and new arguments stand side by side."""
    assert isinstance(index, BlockArgument)
    op = index.block.parent_op()
    assert isinstance(op, loop.NestOp | loop.ReduceOp)
    return op.sizes[[a for a in index.block.args if a not in new].index(index)]
