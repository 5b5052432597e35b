"""Rewrites the indices of a nest and its reductions: splits one into two digits, or collapses two into one.

An index d of extent 12 is *split* by 4 into two *digits*, an outer one of extent 3 and an inner one of extent 4,
d = outer * 4 + inner. *Collapsing* is the reverse. A *result map* keeps the old shape of a nest's results: from the new
indices (o, i) it computes the element [o * 4 + i] that an iteration stores.

A `Form` is an affine expression (`dialects/shapes/affine.py`). Its dimension n stands for the n-th index of an access.
A *loop* is a `loop.nest` or a `loop.reduce`.
"""

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
"""The condition `lo <= form < hi`, as (form, lo, hi)."""


def is_linear(form: Form) -> bool:
    """Returns true if `form` is a sum of multiples of indices and a constant, without divisions or symbols."""
    return all(atom[0] == DIM for atom, _ in form.terms)


def emit_form(form: Form, indices: Sequence[SSAValue], type: Attribute) -> list[Operation]:
    """Returns operations that compute a linear form; the last one has the result.

    Args:
        form: Form without divisions and symbols.
        indices: Values of its dimensions, of type index.
        type: Integer type of the result.
    """
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


def load_with(
    op: loop.LoadOp, indices: Sequence[SSAValue], coordinates: Sequence[Form], constraints: Sequence[Constraint]
) -> loop.LoadOp:
    """Returns a load like `op` at other coordinates and with another domain.

    Args:
        op: Load whose source, symbols, fill value and attributes are used.
        indices: Values of the dimensions of the forms. The new load gets those that occur.
        coordinates: One form for each dimension of the source.
        constraints: Domain of the load; always true if empty.
    """
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
    """Coordinates of a load or store, and the forms that its domain bounds (without the bounds)."""

    coordinates: list[Form]
    bounded: list[Form]


def _substituted(
    map: AffineMap, domain: DomainAttr | None, dims: Sequence[Form], extents: Sequence[Extent | None] = ()
) -> Access:
    """Returns the coordinates and bounded forms of an access after its dimensions are replaced by `dims`.

    `extents` are the extents of the indices in `dims`; they allow simplifications.
    """
    symbols = [symbol(i) for i in range(map.num_symbols)]
    simplifier = Simplifier(extents, [None] * len(symbols)) if extents else Simplifier()
    maps = [map] if domain is None else [map, domain.affine]
    coordinates, *bounded = ([simplifier.read(e, dims, symbols) for e in m.results] for m in maps)
    return Access(coordinates, *(bounded or [[]]))


def _constraints(op: loop.LoadOp, bounded: Sequence[Form]) -> list[Constraint]:
    """Returns the constraints of a load: `bounded`, the forms of its domain, with their limits."""
    limits = op.domain.limits if op.domain is not None else []
    return [(form, *limit) for form, limit in zip(bounded, limits, strict=True)]


# Splitting

Position: TypeAlias = tuple[Block | None, tuple[Extent, ...], int]
"""Key of an index that is split: (block that contains its loop, extents of the loop, position of the index). Loops with
equal keys are split in the same way."""

Digits: TypeAlias = tuple[SSAValue, SSAValue, int]
"""(Outer index, inner index, extent of the inner index) that replace an index."""


def split_dimensions(nest: loop.NestOp) -> None:
    """Splits indices of `nest` and its reductions until no more division in an access can be removed."""
    while _split_once(nest):
        pass


def _split_once(nest: loop.NestOp) -> bool:
    """Splits each index that an access divides, by one divisor. Returns true if any index was split."""
    loops = [op for op in nest.walk() if isinstance(op, loop.NestOp | loop.ReduceOp)]
    loads = [op for op in nest.walk() if isinstance(op, loop.LoadOp)]
    extents: dict[SSAValue, Extent] = {a: n for op in loops for a, n in zip(op.body.block.args, op.sizes, strict=True)}
    positions = {a: (op.parent, op.sizes, a.index) for op in loops for a in op.body.block.args}
    divisors: dict[Position, int] = {}
    scanned = loop.scanned_index(nest)
    for index, divisor in (q for op in loads for q in _quotients(op, extents)):
        if index is not scanned:
            divisors.setdefault(positions[index], divisor)  # pyright: ignore[reportArgumentType]
    if not divisors:
        return False
    digits: dict[SSAValue, Digits] = {}
    for op in loops:
        digits |= _split_loop(op, divisors, extents)
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
    """Yields (index, divisor) for each division of an index in a load by a proper divisor of the index's extent."""
    dims = [dim(i) for i in range(len(op.indices))]
    access = _substituted(op.map.data, op.domain, dims, [extents[i] for i in op.indices])
    for inner, divisor in (q for form in chain(*access) for q in form.quotients()):
        if len(inner.terms) == 1 and not inner.constant and inner.terms[0][1] == 1 and inner.terms[0][0][0] == DIM:
            index = op.indices[number_of(inner.terms[0][0])]
            extent = extents[index]
            if isinstance(extent, int) and 1 < divisor < extent and extent % divisor == 0:
                yield index, divisor


def _from_digits(first: int, divisor: int) -> Form:
    """Returns an index as a form of its digits, which are the dimensions `first` and `first + 1`."""
    return add(scale(dim(first), divisor), dim(first + 1))


def _split_loop(op: Loop, divisors: Mapping[Position, int], extents: dict[SSAValue, Extent]) -> dict[SSAValue, Digits]:
    """Inserts two digits after each index of `op` that has an entry in `divisors`, and adds their extents to `extents`.

    A nest gets a result map. Returns the digits of each split index. The index itself is not erased yet.
    """
    block, sizes, old, digits = op.body.block, list[Extent](), list[Form](), dict[SSAValue, Digits]()
    for i, (index, extent) in enumerate(zip(tuple(block.args), op.sizes, strict=True)):
        divisor = divisors.get((op.parent, op.sizes, i))
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
        results = tuple(map(write, _substituted(before, None, old, sizes).coordinates))
        op.properties["result_map"] = AffineMapAttr(AffineMap(len(sizes), 0, results))
    op.properties["extents"] = extents_attr(sizes)
    return digits


def _recompute(op: payload.CastOp, digits: Digits) -> None:
    """Replaces the cast of a split index to an integer by the same number, computed from the digits."""
    outer, inner, divisor = digits
    high, low = payload.CastOp(outer, op.result.type), payload.CastOp(inner, op.result.type)
    weight = payload.ConstantOp(divisor, op.result.type)
    product = arith.MuliOp(high.result, weight.result)
    replace(op, high, low, weight, product, arith.AddiOp(product.result, low.result))


def _simplify_quotients(nest: loop.NestOp) -> None:
    """Replaces quotients and remainders of split indices by the digits, so that they depend on one digit alone."""
    forms = Forms()
    for op in [*nest.walk()]:
        if isinstance(op, arith.FloorDivSIOp | arith.RemSIOp) and (form := forms.of(op.result)) is not None:
            if is_linear(form):
                replace(op, *emit_form(form, forms.indices, op.result.type))


def _load_digits(op: loop.LoadOp, digits: Mapping[SSAValue, Digits], extents: Mapping[SSAValue, Extent]) -> None:
    """Replaces a load of split indices by one that uses the digits that it needs."""
    indices, dims = list[SSAValue](), list[Form]()
    for index in op.indices:
        if index in digits:
            outer, inner, divisor = digits[index]
            dims.append(_from_digits(len(indices), divisor))
            indices += [outer, inner]
        else:
            dims.append(dim(len(indices)))
            indices.append(index)
    access = _substituted(op.map.data, op.domain, dims, [extents[i] for i in indices])
    replace(op, load_with(op, indices, access.coordinates, _constraints(op, access.bounded)))


# Collapsing


def collapse_dimensions(nest: loop.NestOp, powers_of_two: bool = False) -> None:
    """Collapses adjacent indices of a nest, and of its reductions, as long as all accesses use two of them as one.

    Args:
        nest: Nest to rewrite.
        powers_of_two: True to also collapse with a second index whose extent is a power of two.
    """
    if any(isinstance(use.operation, tensor.ScatterOp) for result in nest.res for use in result.uses):
        # The kernel of this nest stores the result of the scatter, so its own results cannot be reshaped.
        return
    while any(_collapse(nest, loops, at) for loops, at in _pairs(nest, powers_of_two)):
        pass


def _pairs(nest: loop.NestOp, powers_of_two: bool) -> Iterator[tuple[list[Loop], int]]:
    """Yields (loops, position of an index) where collapsing the index with the next one may be useful.

    The loops are either `nest`, or reductions of equal extents in one body: they may be stages of one staged reduction,
    so they must stay equal.
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
    """An access after two indices were collapsed. `dimension`: dimension of the tensor that was merged with the next
    one, or None if the shape of the tensor did not change."""

    access: Access
    dimension: int | None


def _collapse(nest: loop.NestOp, loops: Sequence[Loop], at: int) -> bool:
    """Collapses the indices `at` and `at + 1` of `loops`. Returns false, and changes nothing, if an access prevents
    it."""
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
    """Returns the indices of a load, with the collapsed index `one` instead of the two in `pair`."""
    return list(dict.fromkeys(one if i in pair else i for i in op.indices))


def _collapsed_load(op: Operation, pair: Sequence[SSAValue], extent: int) -> Collapsed | None:
    """Returns the access of a load after the indices in `pair` are collapsed, or None if it does not use them as one.

    `extent` is the extent of the second index."""
    if not isinstance(op, loop.LoadOp) or any(s in pair for s in op.symbols):
        return None
    if isinstance(op.source.owner, ConstantOp):
        return None  # Constants are printed into the kernel, and cannot be reshaped.
    indices = _indices(op, pair, pair[0])
    one = dim(indices.index(pair[0]))
    forms = {i: dim(n) for n, i in enumerate(indices)} | dict(zip(pair, _digits(one, extent), strict=True))
    access = _substituted(op.map.data, op.domain, [forms[i] for i in op.indices])
    return _without_digits(access, extents_of(op.source.type), one, extent)


def _collapsed_store(nest: loop.NestOp, at: int, extent: int) -> Collapsed | None:
    """Returns the access by which a nest stores its results after index `at` and the next one are collapsed, or
    None."""
    count = len(nest.sizes)
    map = nest.result_map.data if nest.result_map is not None else AffineMap.identity(count)
    dims = [dim(i) for i in range(count - 1)]
    dims[at : at + 1] = _digits(dim(at), extent)
    return _without_digits(_substituted(map, None, dims), extents_of(nest.res[0].type), dim(at), extent)


def _digits(index: Form, extent: int) -> tuple[Form, Form]:
    """Returns the outer and the inner digit of a collapsed index; `extent` is the extent of the inner one."""
    simplifier = Simplifier()
    return simplifier.floordiv(index, extent), simplifier.mod(index, extent)


def _without_digits(access: Access, shape: Sequence[Extent], one: Form, extent: int) -> Collapsed | None:
    """Returns an access in terms of the collapsed index `one`, or None if the access uses a digit of it alone.

    Args:
        access: Access whose forms contain the digits of `one`, as quotient and remainder.
        shape: Shape of the tensor.
        one: Collapsed index.
        extent: Extent of its inner digit.
    """
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
    """Returns the tensor type `t` after the dimensions `at` and `at + 1` are merged."""
    shape = extents_of(t)
    return tensor_of(element_type(t), [*shape[:at], fixed(shape[at]) * fixed(shape[at + 1]), *shape[at + 2 :]])


def _load(nest: loop.NestOp, op: loop.LoadOp, collapsed: Collapsed, indices: Sequence[SSAValue]) -> None:
    """Replaces a load by one at a collapsed access, and reshapes its source before the nest if needed."""
    access, dimension = collapsed
    new = load_with(op, indices, access.coordinates, _constraints(op, access.bounded))
    if dimension is not None:
        source, t = op.source, _collapsed(op.source.type, dimension)
        if isinstance(previous := source.owner, loop.ReshapeOp) and not previous.expands:
            source = previous.source
        reshaped = loop.ReshapeOp(source, t)
        reshaped.result.name_hint = source.name_hint
        insert_before(nest, reshaped)
        new.operands[0] = reshaped.result
    replace(op, new)


def _store(nest: loop.NestOp, collapsed: Collapsed) -> None:
    """Stores the results of `nest` at a collapsed access. If that changes their shapes, they are reshaped after the
    nest."""
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
