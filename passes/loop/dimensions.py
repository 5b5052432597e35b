"""Indices of nests and reductions: splitting into digits, collapsing of two into one, and loads at affine forms."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr, IndexType, TensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from ...dialects import loop, payload, tensor
from ...dialects.payload import ConstantOp, element_type
from ...dialects.shapes.affine import DIM, Form, Simplifier, add, dim, number_of, renumbered, scale, symbol, write
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent, extents_attr, extents_of, fixed, tensor_of
from ..analysis.integer_forms import Forms
from ..rewriting import insert_after, insert_before, replace, retype

Loop: TypeAlias = loop.NestOp | loop.ReduceOp

Constraint: TypeAlias = tuple[Form, int, Extent]
"""`lo <= form < hi`."""


def is_linear(form: Form) -> bool:
    """Returns true if a form is a sum of multiples of indices."""
    return all(atom[0] == DIM for atom, _ in form.terms)


def computed(form: Form, indices: Sequence[SSAValue], type: Attribute) -> list[Operation]:
    """Returns operations of which the last computes a linear form of `indices` as an integer."""
    ops: list[Operation] = []
    for atom, factor in form.terms:
        before = ops[-1:]
        ops.append(payload.CastOp(indices[number_of(atom)], type))
        if factor != 1:
            weight = payload.ConstantOp(factor, type)
            ops += [weight, arith.MuliOp(ops[-1].results[0], weight.result)]
        ops += [arith.AddiOp(total.results[0], ops[-1].results[0]) for total in before]
    if form.constant or not ops:
        before, number = ops[-1:], payload.ConstantOp(form.constant, type)
        ops.append(number)
        ops += [arith.AddiOp(total.results[0], number.result) for total in before]
    return ops


def load_at(
    op: loop.LoadOp, indices: Sequence[SSAValue], coordinates: Sequence[Form], constraints: Sequence[Constraint]
) -> loop.LoadOp:
    """Returns the load of `op` at `coordinates`, where the constraints hold: forms of `indices`, of which the load gets
    those that occur, and of its symbols."""
    forms = [*coordinates, *(form for form, *_ in constraints)]
    used = sorted({number_of(a) for a in chain(*(f.atoms() for f in forms)) if a[0] == DIM})
    count = len(op.symbols)
    names = {d: i for i, d in enumerate(used)}, {i: i for i in range(count)}
    exprs = tuple(write(renumbered(f, *names)) for f in forms)
    split, domain = len(coordinates), None
    if constraints:
        domain = DomainAttr.get(AffineMap(len(used), count, exprs[split:]), [(lo, hi) for _, lo, hi in constraints])
    map, fill = AffineMap(len(used), count, exprs[:split]), op.fill if constraints else None
    load = loop.LoadOp(op.source, map, [indices[d] for d in used], op.symbols, domain, fill)
    load.attributes.update(op.attributes)
    return load


class Access(NamedTuple):
    """Coordinates of a load or store, and the forms that a domain bounds."""

    coordinates: list[Form]
    bounded: list[Form]


def _read(
    map: AffineMap, domain: DomainAttr | None, dims: Sequence[Form], extents: Sequence[Extent | None] = ()
) -> Access:
    """Returns an access of which the dimensions are `dims`, forms of indices with these extents."""
    symbols = [symbol(i) for i in range(map.num_symbols)]
    simplifier = Simplifier(extents, [None] * len(symbols)) if extents else Simplifier()
    maps = [map] if domain is None else [map, domain.affine]
    coordinates, *bounded = ([simplifier.read(e, dims, symbols) for e in m.results] for m in maps)
    return Access(coordinates, *(bounded or [[]]))


def _constraints(op: loop.LoadOp, bounded: Sequence[Form]) -> list[Constraint]:
    """Returns the constraints of the domain of a load, of which the forms are `bounded`."""
    limits = op.domain.limits if op.domain is not None else []
    return [(form, *limit) for form, limit in zip(bounded, limits, strict=True)]


# Splitting

Position: TypeAlias = tuple[Block | None, tuple[Extent, ...], int]
"""An index that is split: the block of its op, the extents of that op, and the position among these."""

Digits: TypeAlias = tuple[SSAValue, SSAValue, int]
"""The two indices that an index becomes, and the extent of the second one."""


def split_dimensions(nest: loop.NestOp) -> None:
    """Splits the indices of `nest` and of its reductions until no access has a quotient that this removes."""
    while _split_once(nest):
        pass


def _split_once(nest: loop.NestOp) -> bool:
    """Splits every index of `nest` for which some access asks, once. Returns true if there are any."""
    loops = [op for op in nest.walk() if isinstance(op, loop.NestOp | loop.ReduceOp)]
    loads = [op for op in nest.walk() if isinstance(op, loop.LoadOp)]
    extents: dict[SSAValue, Extent] = {a: n for op in loops for a, n in zip(op.body.block.args, op.sizes, strict=True)}
    positions = {a: (op.parent, op.sizes, a.index) for op in loops for a in op.body.block.args}
    wanted: dict[Position, int] = {}
    scanned = loop.scanned_index(nest)
    for index, divisor in (q for op in loads for q in _quotients(op, extents)):
        if index is not scanned:
            wanted.setdefault(positions[index], divisor)  # pyright: ignore[reportArgumentType]
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
            _load_digits(op, digits, extents)
    for old in digits:
        assert isinstance(old, BlockArgument)
        old.block.erase_arg(old)
    _simplify_quotients(nest)
    return True


def _quotients(op: loop.LoadOp, extents: Mapping[SSAValue, Extent]) -> Iterator[tuple[SSAValue, int]]:
    """Yields the indices of `op` in a quotient by a proper divisor of their extent, with that divisor."""
    dims = [dim(i) for i in range(len(op.indices))]
    access = _read(op.map.data, op.domain, dims, [extents[i] for i in op.indices])
    for inner, divisor in (q for form in chain(*access) for q in form.quotients()):
        if len(inner.terms) == 1 and not inner.constant and inner.terms[0][1] == 1 and inner.terms[0][0][0] == DIM:
            index = op.indices[number_of(inner.terms[0][0])]
            extent = extents[index]  # a symbol has no divisors
            if isinstance(extent, int) and 1 < divisor < extent and extent % divisor == 0:
                yield index, divisor


def _from_digits(first: int, divisor: int) -> Form:
    """Returns the index whose digits are dimension `first` and the next one."""
    return add(scale(dim(first), divisor), dim(first + 1))


def _split_loop(op: Loop, wanted: Mapping[Position, int], extents: dict[SSAValue, Extent]) -> dict[SSAValue, Digits]:
    """Inserts two indices after each index of `op` that is `wanted`, and notes their extents. A nest keeps the shape of
    its results by a map from its new indices to the old ones."""
    block, sizes, old, digits = op.body.block, list[Extent](), list[Form](), dict[SSAValue, Digits]()
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
        digits[index] = outer, inner, divisor
    if digits and isinstance(op, loop.NestOp):
        before = op.result_map.data if op.result_map is not None else AffineMap.identity(len(op.sizes))
        results = tuple(map(write, _read(before, None, old, sizes).coordinates))
        op.properties["result_map"] = AffineMapAttr(AffineMap(len(sizes), 0, results))
    op.properties["extents"] = extents_attr(sizes)
    return digits


def _recompute(op: payload.CastOp, digits: Digits) -> None:
    """Replaces a cast of the old index by the same number computed from its digits."""
    outer, inner, divisor = digits
    high, low = payload.CastOp(outer, op.result.type), payload.CastOp(inner, op.result.type)
    weight = payload.ConstantOp(divisor, op.result.type)
    product = arith.MuliOp(high.result, weight.result)
    replace(op, high, low, weight, product, arith.AddiOp(product.result, low.result))


def _simplify_quotients(nest: loop.NestOp) -> None:
    """Computes quotients and remainders that are sums of indices as such: they no longer depend on the other digit."""
    forms = Forms()
    for op in [*nest.walk()]:
        if isinstance(op, arith.FloorDivSIOp | arith.RemSIOp) and (form := forms.of(op.result)) is not None:
            if is_linear(form):
                replace(op, *computed(form, forms.indices, op.result.type))


def _load_digits(op: loop.LoadOp, digits: Mapping[SSAValue, Digits], extents: Mapping[SSAValue, Extent]) -> None:
    """Replaces a load by one that uses the new indices, as far as it needs them."""
    indices, dims = list[SSAValue](), list[Form]()
    for index in op.indices:
        if index in digits:
            outer, inner, divisor = digits[index]
            dims.append(_from_digits(len(indices), divisor))
            indices += [outer, inner]
        else:
            dims.append(dim(len(indices)))
            indices.append(index)
    access = _read(op.map.data, op.domain, dims, [extents[i] for i in indices])
    replace(op, load_at(op, indices, access.coordinates, _constraints(op, access.bounded)))


# Collapsing


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


class Collapsed(NamedTuple):
    """An access with two indices as one, and the first of the two coordinates that are one now, if there are any."""

    access: Access
    dimension: int | None


def _collapse(nest: loop.NestOp, loops: Sequence[Loop], at: int) -> bool:
    """Collapses the indices number `at` and `at + 1` of `loops` in `nest`. Returns true if that is possible."""
    outer, inner = loops[0].sizes[at : at + 2]
    assert isinstance(outer, int)
    assert isinstance(inner, int)
    pairs = [op.body.block.args[at : at + 2] for op in loops]
    loads: dict[loop.LoadOp, tuple[Sequence[SSAValue], Collapsed]] = {}
    for pair in pairs:
        for op in dict.fromkeys(use.operation for index in pair for use in index.uses):
            access = _collapsed_load(op, pair, inner)
            if access is None or not isinstance(op, loop.LoadOp):
                return False
            loads[op] = pair, access
    stored = _collapsed_store(nest, at, inner) if nest in loops else None
    if nest in loops and stored is None:
        return False
    for op, (first, second) in zip(loops, pairs, strict=True):
        op.body.block.insert_arg(IndexType(), at).name_hint = f"{first.name_hint or 'd'}{second.name_hint or ''}"
        op.properties["extents"] = extents_attr([*op.sizes[:at], outer * inner, *op.sizes[at + 2 :]])
    for op, (pair, access) in loads.items():
        _load(nest, op, access, _indices(op, pair, pair[0].owner.args[at]))  # pyright: ignore
    for op, pair in zip(loops, pairs, strict=True):
        for index in pair:
            op.body.block.erase_arg(index)
    if stored is not None:
        _store(nest, stored)
    return True


def _indices(op: loop.LoadOp, pair: Sequence[SSAValue], one: SSAValue) -> list[SSAValue]:
    """Returns the indices of a load with `one` in place of the `pair`."""
    return list(dict.fromkeys(one if i in pair else i for i in op.indices))


def _collapsed_load(op: Operation, pair: Sequence[SSAValue], extent: int) -> Collapsed | None:
    """Returns the access of a load with the `pair` of indices as one; `extent` is that of the second index."""
    if not isinstance(op, loop.LoadOp) or any(s in pair for s in op.symbols):
        return None
    if isinstance(op.source.owner, ConstantOp):
        return None  # a constant is not loaded
    indices = _indices(op, pair, pair[0])
    one = dim(indices.index(pair[0]))
    forms = {i: dim(n) for n, i in enumerate(indices)} | dict(zip(pair, _digits(one, extent), strict=True))
    access = _read(op.map.data, op.domain, [forms[i] for i in op.indices])
    return _access(access, extents_of(op.source.type), one, extent)


def _collapsed_store(nest: loop.NestOp, at: int, extent: int) -> Collapsed | None:
    """Returns the access of the results of a nest with index number `at` and the next one as one."""
    count = len(nest.sizes)
    map = nest.result_map.data if nest.result_map is not None else AffineMap.identity(count)
    dims = [dim(i) for i in range(count - 1)]
    dims[at : at + 1] = _digits(dim(at), extent)
    return _access(_read(map, None, dims), extents_of(nest.res[0].type), dim(at), extent)


def _digits(index: Form, extent: int) -> tuple[Form, Form]:
    """Returns the two indices that are one as `index`, of which the second counts to `extent`."""
    simplifier = Simplifier()
    return simplifier.floordiv(index, extent), simplifier.mod(index, extent)


def _access(access: Access, shape: Sequence[Extent], one: Form, extent: int) -> Collapsed | None:
    """Returns an access to a tensor of `shape` without the digits of `one`, or None where they are not used as one."""
    coordinates, digits = [*access.coordinates], _digits(one, extent)
    dimension = next((c for c in range(len(shape) - 1) if tuple(coordinates[c : c + 2]) == digits), None)
    if dimension is not None and isinstance(shape[dimension], int) and shape[dimension + 1] == extent:
        coordinates[dimension : dimension + 2] = [one]
    (atom, _), *_ = one.terms
    forms = (*coordinates, *access.bounded)
    if any(atom in inner.atoms() for form in forms for inner, _ in form.quotients()):
        return None
    return Collapsed(Access(coordinates, access.bounded), dimension)


def _collapsed(t: Attribute, at: int) -> TensorType[Attribute]:
    """Returns the tensor type `t` with dimension `at` and the next one as one."""
    shape = extents_of(t)
    return tensor_of(element_type(t), [*shape[:at], fixed(shape[at]) * fixed(shape[at + 1]), *shape[at + 2 :]])


def _load(nest: loop.NestOp, op: loop.LoadOp, collapsed: Collapsed, indices: Sequence[SSAValue]) -> None:
    """Replaces a load by one at a collapsed access, of the source in the shape for that."""
    access, dimension = collapsed
    new = load_at(op, indices, access.coordinates, _constraints(op, access.bounded))
    if dimension is not None:
        source, t = op.source, _collapsed(op.source.type, dimension)
        if isinstance(made := source.owner, loop.ReshapeOp) and not made.expands:
            source = made.source
        reshaped = loop.ReshapeOp(source, t)
        reshaped.result.name_hint = source.name_hint
        insert_before(nest, reshaped)
        new.operands[0] = reshaped.result
    replace(op, new)


def _store(nest: loop.NestOp, collapsed: Collapsed) -> None:
    """Lets `nest` store at a collapsed access. Its results are reshaped after it to the shape that they had."""
    access, dimension = collapsed
    if nest.result_map is not None:
        map = AffineMap(len(nest.sizes), 0, tuple(write(form) for form in access.coordinates))
        nest.result_map = None if map == AffineMap.identity(len(nest.sizes)) else AffineMapAttr(map)
    if dimension is None:
        return
    for result in nest.res:
        if not any(isinstance(use.operation, loop.ReshapeOp) and use.operation.expands for use in result.uses):
            whole = loop.ReshapeOp(result, result.type)
            whole.result.name_hint = result.name_hint
            insert_after(nest, whole)
            result.replace_uses_with_if(whole.result, lambda use: use.operation is not whole)
        retype(result, _collapsed(result.type, dimension))
