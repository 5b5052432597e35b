"""Indices that all accesses of a nest or of its reductions use as one become one."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from xdsl.dialects.builtin import AffineMapAttr, IndexType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from ...dialects import loop, tensor
from ...dialects.payload import ConstantOp, element_type
from ...dialects.shapes.affine import Form, Simplifier, dim, symbol, write
from ...dialects.shapes.extents import Extent, extents_attr, extents_of, fixed, tensor_of
from ..rewriting import insert_after, insert_before, replace, retype
from .linear_forms import load_at

Loop: TypeAlias = loop.NestOp | loop.ReduceOp


def collapse_dimensions(nest: loop.NestOp, powers_of_two: bool = False) -> None:
    """Collapses adjacent indices of a nest, and of its reductions, as long as all accesses use two of them as one.

    Args:
        nest: The nest.
        powers_of_two: Whether the second index may have an extent that is a power of two.
    """
    if any(isinstance(use.operation, tensor.ScatterOp) for result in nest.res for use in result.uses):
        return  # its kernel has no results of the nest's shape
    while any(_collapse(nest, loops, at) for loops, at in _pairs(nest, powers_of_two)):
        pass


class _Access(NamedTuple):
    """Where something is loaded from or stored to, with the two indices as one: the forms of the coordinates and of
    what a domain bounds, and the first of the two coordinates that are one now."""

    coordinates: list[Form]
    bounded: list[Form]
    collapsed: int | None


def _pairs(nest: loop.NestOp, powers_of_two: bool) -> Iterator[tuple[list[Loop], int]]:
    """Yields loops with the position of an index that is worth to be collapsed with the next one.

    The loops are `nest`, or its reductions of equal extents in one body, which may be stages of one loop.
    """
    groups: dict[tuple[object, tuple[Extent, ...]], list[Loop]] = {}
    for op in nest.walk():
        if isinstance(op, loop.NestOp | loop.ReduceOp):
            groups.setdefault((op.parent, op.sizes), []).append(op)
    for loops in groups.values():
        for at, (outer, inner) in enumerate(pairwise(loops[0].sizes)):
            if isinstance(outer, int) and isinstance(inner, int) and outer != 1 and inner != 1:
                if powers_of_two or inner & (inner - 1):
                    yield loops, at


def _collapse(nest: loop.NestOp, loops: Sequence[Loop], at: int) -> bool:
    """Collapses the indices number `at` and `at + 1` of `loops` in `nest`. Returns true if that is possible."""
    outer, inner = loops[0].sizes[at : at + 2]
    assert isinstance(outer, int)
    assert isinstance(inner, int)
    pairs = [op.body.block.args[at : at + 2] for op in loops]
    loads: dict[loop.LoadOp, tuple[Sequence[SSAValue], _Access]] = {}
    for pair in pairs:
        for op in dict.fromkeys(use.operation for index in pair for use in index.uses):
            access = _access_of(op, pair, inner)
            if access is None or not isinstance(op, loop.LoadOp):
                return False
            loads[op] = pair, access
    stored = _stored(nest, at, inner) if nest in loops else None
    if nest in loops and stored is None:
        return False
    for op, (first, second) in zip(loops, pairs, strict=True):
        op.body.block.insert_arg(IndexType(), at).name_hint = f"{first.name_hint or 'd'}{second.name_hint or ''}"
        op.properties["extents"] = extents_attr([*op.sizes[:at], outer * inner, *op.sizes[at + 2 :]])
    for op, (pair, access) in loads.items():
        _rewrite(nest, op, access, _indices(op, pair, pair[0].owner.args[at]))  # pyright: ignore
    for op, pair in zip(loops, pairs, strict=True):
        for index in pair:
            op.body.block.erase_arg(index)
    if stored is not None:
        _store(nest, stored)
    return True


def _indices(op: loop.LoadOp, pair: Sequence[SSAValue], one: SSAValue) -> list[SSAValue]:
    """The indices of a load with `one` in place of the `pair`."""
    return list(dict.fromkeys(one if i in pair else i for i in op.indices))


def _access_of(op: Operation, pair: Sequence[SSAValue], extent: int) -> _Access | None:
    """The access of a load with the `pair` of indices, of which the second counts to `extent`, as one."""
    if not isinstance(op, loop.LoadOp) or any(s in pair for s in op.symbols):
        return None
    if isinstance(op.source.owner, ConstantOp):
        return None  # what is the same everywhere is not loaded
    indices = _indices(op, pair, pair[0])
    one = dim(indices.index(pair[0]))
    known = {i: dim(n) for n, i in enumerate(indices)} | dict(zip(pair, _digits(one, extent), strict=True))
    bounded = op.domain.affine if op.domain is not None else None
    dims = [known[i] for i in op.indices]
    return _access(op.map.data, bounded, extents_of(op.source.type), dims, one, extent)


def _stored(nest: loop.NestOp, at: int, extent: int) -> _Access | None:
    """Where the results of a nest are stored whose index number `at` is that one and the next."""
    count = len(nest.sizes)
    map = nest.result_map.data if nest.result_map is not None else AffineMap.identity(count)
    dims = [dim(i) for i in range(count - 1)]
    dims[at : at + 1] = _digits(dim(at), extent)
    return _access(map, None, extents_of(nest.res[0].type), dims, dim(at), extent)


def _digits(index: Form, extent: int) -> tuple[Form, Form]:
    """The two indices that are one as `index`, of which the second counts to `extent`."""
    simplifier = Simplifier()
    return simplifier.floordiv(index, extent), simplifier.mod(index, extent)


def _access(
    map: AffineMap, bounded: AffineMap | None, shape: Sequence[Extent], dims: Sequence[Form], one: Form, extent: int
) -> _Access | None:
    """The access `map` to a tensor of `shape` where its dimensions are `dims`, two of which are the digits of `one`;
    None where they are not used as one."""
    simplifier, symbols = Simplifier(), [symbol(i) for i in range(map.num_symbols)]
    found = [simplifier.read(e, dims, symbols) for e in map.results]
    limited = [simplifier.read(e, dims, symbols) for e in bounded.results] if bounded is not None else []
    digits = _digits(one, extent)
    collapsed = next((c for c in range(len(shape) - 1) if tuple(found[c : c + 2]) == digits), None)
    if collapsed is not None and isinstance(shape[collapsed], int) and shape[collapsed + 1] == extent:
        found[collapsed : collapsed + 2] = [one]
    (atom, _), *_ = one.terms
    if any(atom in inner.atoms() for form in (*found, *limited) for inner, _ in form.quotients()):
        return None
    return _Access(found, limited, collapsed)


def _collapsed(t: Attribute, at: int) -> TensorType[Attribute]:
    """The tensor type `t` with dimension `at` and the next one as one."""
    shape = extents_of(t)
    return tensor_of(element_type(t), [*shape[:at], fixed(shape[at]) * fixed(shape[at + 1]), *shape[at + 2 :]])


def _rewrite(nest: loop.NestOp, op: loop.LoadOp, access: _Access, indices: Sequence[SSAValue]) -> None:
    """Let `op` read at `access`, of these indices, what it reads in the shape for that."""
    limits = op.domain.limits if op.domain is not None else []
    constraints = [(form, *limit) for form, limit in zip(access.bounded, limits, strict=True)]
    new = load_at(op, indices, access.coordinates, constraints)
    if access.collapsed is not None:
        source, t = op.source, _collapsed(op.source.type, access.collapsed)
        if isinstance(made := source.owner, loop.ReshapeOp) and not made.expands:
            source = made.source
        reshaped = loop.ReshapeOp(source, t)
        reshaped.result.name_hint = source.name_hint
        insert_before(nest, reshaped)
        new.operands[0] = reshaped.result
    replace(op, new)


def _store(nest: loop.NestOp, access: _Access) -> None:
    """Let `nest` store at `access`; behind it, its results have the shape that they had."""
    if nest.result_map is not None:
        map = AffineMap(len(nest.sizes), 0, tuple(write(form) for form in access.coordinates))
        nest.result_map = None if map == AffineMap.identity(len(nest.sizes)) else AffineMapAttr(map)
    if access.collapsed is None:
        return
    for result in nest.res:
        if not any(isinstance(use.operation, loop.ReshapeOp) and use.operation.expands for use in result.uses):
            whole = loop.ReshapeOp(result, result.type)
            whole.result.name_hint = result.name_hint
            insert_after(nest, whole)
            result.replace_uses_with_if(whole.result, lambda use: use.operation is not whole)
        retype(result, _collapsed(result.type, access.collapsed))
