"""Indices of nests and reductions that accesses use by their digits: each becomes two, so that accesses are linear."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Block, BlockArgument, SSAValue
from xdsl.ir.affine import AffineMap

from ...dialects import loop, payload
from ...dialects.shapes.affine import DIM, Form, Simplifier, add, dim, number_of, scale, symbol, write
from ...dialects.shapes.extents import Extent, extents_attr
from ..analysis.masks import Forms
from ..rewriting import replace
from .linear_forms import computed, is_linear, load_at

Position: TypeAlias = tuple[Block | None, tuple[Extent, ...], int]
"""An index that is split: the block its op lies in, the extents of that op, and which of them."""

Digits: TypeAlias = tuple[SSAValue, SSAValue, int]
"""The two indices that an index becomes, and what the first one counts."""


def split_dimensions(nest: loop.NestOp) -> None:
    """Split the indices of `nest` and of its reductions until no access has a quotient that this removes."""
    while _split_once(nest):
        pass


def _split_once(nest: loop.NestOp) -> bool:
    """Split every index of `nest` for which some access asks, once; whether there was any."""
    loops = [op for op in nest.walk() if isinstance(op, loop.NestOp | loop.ReduceOp)]
    loads = [op for op in nest.walk() if isinstance(op, loop.LoadOp)]
    extents: dict[SSAValue, Extent] = {a: n for op in loops for a, n in zip(op.body.block.args, op.sizes, strict=True)}
    positions: dict[SSAValue, Position] = {
        a: (op.parent, op.sizes, a.index) for op in loops for a in op.body.block.args
    }
    wanted: dict[Position, int] = {}
    scanned = loop.scanned_index(nest)
    for op in loads:
        for index, divisor in _quotients(op, extents):
            if index is scanned:
                continue
            wanted.setdefault(positions[index], divisor)
    if not wanted:
        return False
    digits: dict[SSAValue, Digits] = {}
    for op in loops:
        digits |= _split_loop(op, wanted, extents)
    for old, new in digits.items():
        for use in tuple(old.uses):
            if isinstance(use.operation, payload.CastOp):
                _recompute(use.operation, new)
    for op in loads:
        if any(i in digits for i in op.indices):
            _rewrite_load(op, digits, extents)
    for old in digits:
        assert isinstance(old, BlockArgument)
        old.block.erase_arg(old)
    _simplify_quotients(nest)
    return True


def _quotients(op: loop.LoadOp, extents: dict[SSAValue, Extent]) -> Iterator[tuple[SSAValue, int]]:
    """The indices of `op` under a floordiv or mod by a proper divisor of their extent, with that divisor."""
    simplifier = Simplifier([extents[i] for i in op.indices], [None] * len(op.symbols))
    for form in (f for m in _maps(op) for f in simplifier.read_map(m)):
        for inner, divisor in form.quotients():
            if len(inner.terms) != 1 or inner.constant:
                continue
            (atom, weight) = inner.terms[0]
            if atom[0] == DIM and weight == 1:
                index = op.indices[number_of(atom)]
                extent = extents[index]  # a symbol has no divisors
                if isinstance(extent, int) and 1 < divisor < extent and extent % divisor == 0:
                    yield index, divisor


def _maps(op: loop.LoadOp) -> list[AffineMap]:
    """The map of a load, and that of its domain if it has one."""
    return [op.map.data] if op.domain is None else [op.map.data, op.domain.affine]


def _from_digits(first: int, divisor: int) -> Form:
    """The index whose digits are dimension `first` and the next one."""
    return add(scale(dim(first), divisor), dim(first + 1))


def _split_loop(
    op: loop.NestOp | loop.ReduceOp, wanted: dict[Position, int], extents: dict[SSAValue, Extent]
) -> dict[SSAValue, Digits]:
    """Let the indices of `op` that are `wanted` become two, which stand behind them; `extents` gets those of the new
    ones. A nest keeps the shape of its results by a map from its new indices to the old ones."""
    block, sizes, old, found = op.body.block, list[Extent](), list[Form](), dict[SSAValue, Digits]()
    for i, (index, extent) in enumerate(zip(tuple(block.args), op.sizes, strict=True)):
        divisor = wanted.get((op.parent, op.sizes, i))
        if divisor is None or not isinstance(extent, int):
            old.append(dim(len(sizes)))
            sizes.append(extent)
            continue
        old.append(_from_digits(len(sizes), divisor))
        sizes += [extent // divisor, divisor]
        outer, inner = (block.insert_arg(IndexType(), index.index + n) for n in (1, 2))
        outer.name_hint, inner.name_hint = (f"{index.name_hint or 'd'}{end}" for end in "oi")
        extents.update({outer: extent // divisor, inner: divisor})
        found[index] = outer, inner, divisor
    if found and isinstance(op, loop.NestOp):
        before = op.result_map.data if op.result_map is not None else AffineMap.identity(len(op.sizes))
        results = tuple(write(Simplifier(sizes).read(e, old)) for e in before.results)
        op.properties["result_map"] = AffineMapAttr(AffineMap(len(sizes), 0, results))
    op.properties["extents"] = extents_attr(sizes)
    return found


def _recompute(op: payload.CastOp, digits: Digits) -> None:
    """Replace a cast of the old index by the same number computed from its digits."""
    outer, inner, divisor = digits
    high, low = payload.CastOp(outer, op.result.type), payload.CastOp(inner, op.result.type)
    weight = payload.ConstantOp(divisor, op.result.type)
    product = arith.MuliOp(high.result, weight.result)
    replace(op, high, low, weight, product, arith.AddiOp(product.result, low.result))


def _simplify_quotients(nest: loop.NestOp) -> None:
    """Compute quotients and remainders that are sums of indices as such: they no longer depend on the other digit."""
    forms = Forms()
    for op in [*nest.walk()]:
        if isinstance(op, arith.FloorDivSIOp | arith.RemSIOp) and (form := forms.of(op.result)) is not None:
            if is_linear(form):
                replace(op, *computed(form, forms.indices, op.result.type))


def _rewrite_load(op: loop.LoadOp, digits: dict[SSAValue, Digits], extents: dict[SSAValue, Extent]) -> None:
    """Let `op` use the new indices, and only those that it needs."""
    indices, dims = list[SSAValue](), list[Form]()
    for index in op.indices:
        if index in digits:
            outer, inner, divisor = digits[index]
            dims.append(_from_digits(len(indices), divisor))
            indices += [outer, inner]
        else:
            dims.append(dim(len(indices)))
            indices.append(index)
    symbols = [symbol(i) for i in range(len(op.symbols))]
    simplifier = Simplifier([extents[i] for i in indices], [None] * len(symbols))
    coordinates, *guarded = ([simplifier.read(e, dims, symbols) for e in m.results] for m in _maps(op))
    limits = op.domain.limits if op.domain is not None else []
    constraints = [(form, *limit) for form, limit in zip(guarded[0] if guarded else [], limits, strict=True)]
    replace(op, load_at(op, indices, coordinates, constraints))
