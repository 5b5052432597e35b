"""Operands of contractions: analyses of their types and loads, and nests that copy them before the contraction.

- *widened*: an f32 value that was cast from a 16-bit type, so tensor cores can take the 16-bit value.
- *split*: an f32 value as the sum of three bf16 numbers (`payload.combine_bf16x3`), for exact products on tensor cores.
- *packed*: a copy of an operand in which the index of the columns is contiguous.
- *unfolded*: a copy with one element for each value of the indices, instead of overlapping windows (im2col).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float32Type, IndexType, bf16, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap, AffineSymExpr
from xdsl.rewriter import Rewriter

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence, access_indices, find_contraction
from ...dialects.payload import CastOp, CmpOp, CombineBf16x3Op, ConstantOp, Predicate, SelectOp, element_type
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent, extents_of
from ...dialects.support.calls import constant_arguments
from ...dialects.support.locations import copy_location
from ...dialects.tile.kernel import NARROW
from .nest_schedule import extents_of_nest, reductions

PARTS = 3
"""Number of bf16 parts of an f32: its significand has 24 bits, that of bf16 has 8."""


def widened_from(value: SSAValue) -> Attribute | None:
    """Returns the 16-bit type that an f32 value was widened from, or None.

    Looks through selections. Both sides must be widened, or one side is a constant that the 16-bit type represents.
    """
    op = value.owner
    if isinstance(op, CastOp):
        source = element_type(op.operand.type)
        return source if source in NARROW else None
    if not isinstance(op, SelectOp):
        return None
    for side, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        narrow = widened_from(side)
        if narrow is None:
            continue
        constant = isinstance(other.owner, ConstantOp) and is_exact(other.owner, narrow)
        return narrow if constant or widened_from(other) == narrow else None
    return None


def parts_of(value: SSAValue) -> list[SSAValue] | None:
    """Returns the bf16 parts whose sum an f32 value is, the largest first, or None if it is not such a sum."""
    op = value.owner
    if not isinstance(op, CombineBf16x3Op) or any(widened_from(part) != bf16 for part in op.operands):
        return None
    return [part.owner.operand for part in op.operands if isinstance(part.owner, CastOp)]


def split_in_parts(value: SSAValue, ops: list[Operation]) -> list[SSAValue]:
    """Splits an f32 value into three bf16 numbers whose sum is the value.

    The first part is the value, rounded to bf16. Each further part is the rounded remainder, which is set to zero if
    the previous part is an infinity or NaN.

    Args:
        value: the value.
        ops: list to which the new operations are appended.
    """
    parts: list[SSAValue] = []
    remainder = value
    for number in range(PARTS):
        part = CastOp(remainder, bf16)
        part.result.name_hint = f"{value.name_hint or 'part'}_{number}"
        ops.append(part)
        parts.append(part.result)
        if number == PARTS - 1:
            break
        wide = CastOp(part.result, element_type(value.type))
        difference = arith.SubfOp(remainder, wide.result)
        size = math.AbsFOp(wide.result)
        limit, zero = ConstantOp(float("inf"), value.type), ConstantOp(0.0, value.type)
        finite = CmpOp(Predicate.LT, size.results[0], limit.result)
        selected = SelectOp(finite.result, difference.result, zero.result)
        ops += [wide, difference, size, limit, zero, finite, selected]
        remainder = selected.result
    return parts


def is_exact(op: ConstantOp, narrow: Attribute) -> bool:
    """Returns true if the type `narrow` represents a constant exactly."""
    value = float(op.scalar)
    bits = struct.pack("<f", value)
    if narrow == bf16:
        return bits[:2] == b"\0\0"
    try:
        return struct.unpack("<e", struct.pack("<e", value)) == struct.unpack("<f", bits)
    except OverflowError:
        return False


PRESPLIT = "bf16x3_presplit"
"""Value of the decision `f32_matmul_precision`: separate kernels split f32 operands into bf16 parts, and store them."""


def wide_factors(nest: loop.NestOp) -> list[loop.LoadOp]:
    """Returns the f32 loads of `nest` that are operands of contractions and can be split."""
    dependence, loads = Dependence(), dict[loop.LoadOp, None]()
    for op in nest.body.block.walk():
        contraction = find_contraction(op, dependence) if isinstance(op, loop.ReduceOp) else None
        for factor in (contraction.lhs, contraction.rhs) if contraction is not None else ():
            load = factor.owner
            if isinstance(load, loop.LoadOp) and _may_be_split(load):
                loads[load] = None
    return list(loads)


def _may_be_split(load: loop.LoadOp) -> bool:
    """Returns true if a load is of f32, and zero outside of its domain."""
    filled = load.fill is None or (isinstance(c := load.fill.owner, payload.ConstantOp) and c.scalar == 0)
    return filled and isinstance(element_type(load.result.type), Float32Type)


def parts_nest(source: SSAValue) -> loop.NestOp:
    """Returns a nest that splits the tensor `source` into three bf16 tensors. It is not inserted."""
    extents = extents_of(source.type)
    block = Block(arg_types=[IndexType()] * len(extents))
    load = loop.LoadOp(source, AffineMap.identity(len(extents)), block.args)
    load.result.name_hint = source.name_hint
    ops: list[Operation] = []
    parts = split_in_parts(load.result, ops)
    block.add_ops([load, *ops, loop.YieldOp(*parts)])
    nest = loop.NestOp(extents, [p.type for p in parts], Region(block))
    for result, part in zip(nest.res, parts, strict=True):
        result.name_hint = part.name_hint
    return nest


def load_parts(load: loop.LoadOp, parts: Sequence[SSAValue]) -> None:
    """Replaces a load of f32 by loads of its bf16 `parts`, joined by `payload.combine_bf16x3`."""
    loads: list[Operation] = []
    wide: list[payload.CastOp] = []
    for number, part in enumerate(parts):
        fill = None if load.fill is None else payload.ConstantOp(0.0, element_type(part.type))
        new = loop.LoadOp(part, load.map.data, load.indices, load.symbols, load.domain, fill and fill.result)
        new.result.name_hint = f"{load.result.name_hint or 'part'}_{number}"
        loads += [new] if fill is None else [fill, new]
        wide.append(payload.CastOp(new.result, f32))
    ops = [*loads, *wide, payload.CombineBf16x3Op(*(w.result for w in wide))]
    copy_location(load, ops)
    Rewriter.replace_op(load, ops, ops[-1].results)


def loaded_factor(value: SSAValue) -> loop.LoadOp | None:
    """Returns the load of an operand, looking through casts, or None if the operand is computed."""
    op = value.owner
    while isinstance(op, CastOp):
        op = op.operand.owner
    return op if isinstance(op, loop.LoadOp) else None


def packable_loads(nest: loop.NestOp, index: SSAValue) -> list[loop.LoadOp] | str:
    """Returns the loads of operands along a free index that can be packed, or the reason why they cannot.

    Args:
        nest: the nest.
        index: the index that becomes the contiguous dimension of the copies.
    """
    dependence, loads = Dependence(), dict[loop.LoadOp, None]()
    for op in reductions(nest):
        contraction = find_contraction(op, dependence)
        if contraction is None or index not in contraction.only_lhs | contraction.only_rhs:
            continue
        load = loaded_factor(contraction.lhs if index in contraction.only_lhs else contraction.rhs)
        if load is None or index not in access_indices(load):
            return "an operand along this index is computed"
        inside = frozenset[SSAValue]((index, *op.body.block.args))
        fixed = all(inside.isdisjoint(dependence.of(s)) for s in load.symbols)
        constant_fill = load.fill is None or isinstance(load.fill.owner, ConstantOp)
        if not constant_fill or not fixed or gathered_extents(load) is None:
            return "an operand along this index is gathered"
        loads[load] = None
    return list(loads) or "no contraction has columns along this index"


def gathered_extents(load: loop.LoadOp) -> list[Extent] | None:
    """Returns, for each symbol of a load, the extent of the dimension of the source that it selects.

    Returns None if a symbol is not a coordinate by itself, or if a condition of the load combines it with an index.
    """
    extents = dict[AffineExpr, Extent]()
    for expr, extent in zip(load.map.data.results, extents_of(load.source.type), strict=True):
        if isinstance(expr, AffineSymExpr) and expr not in extents:
            extents[expr] = extent
        elif _has_symbols(expr):
            return None
    if any(_has_symbols(expr) and not isinstance(expr, AffineSymExpr) for expr, _ in _conditions(load)):
        return None
    symbols = [AffineExpr.symbol(i) for i in range(len(load.symbols))]
    return [extents[s] for s in symbols] if all(s in extents for s in symbols) else None


def _has_symbols(expr: AffineExpr) -> bool:
    return any(isinstance(e, AffineSymExpr) for e in expr.dfs())


def _conditions(load: loop.LoadOp) -> list[tuple[AffineExpr, tuple[int, Extent]]]:
    return [] if load.domain is None else list(zip(load.domain.affine.results, load.domain.limits, strict=True))


def symbol_conditions(load: loop.LoadOp, dims: int) -> DomainAttr | None:
    """Returns the conditions of a load on its symbols, as a domain of `dims` dimensions, or None if there are none."""
    conditions = [c for c in _conditions(load) if _has_symbols(c[0])]
    map = AffineMap(dims, len(load.symbols), tuple(expr for expr, _ in conditions))
    return DomainAttr.get(map, [limits for _, limits in conditions]) if conditions else None


def copying_nest(
    load: loop.LoadOp,
    at: Mapping[SSAValue, AffineExpr],
    sizes: Sequence[Extent],
    source: SSAValue | None = None,
    symbols: Sequence[AffineExpr] = (),
) -> loop.NestOp:
    """Returns a nest that copies the elements that a load reads. It is not inserted.

    Args:
        load: the load.
        at: index of the load -> expression of the indices of the new nest; missing ones are 0.
        sizes: extents of the new nest.
        source: tensor that is read in place of the source of the load, or None.
        symbols: expression of the indices of the new nest for each symbol of the load. Conditions on symbols are not
            checked by the copy, which has the elements of all their values (`gathered_extents`).
    """
    block = Block(arg_types=[IndexType()] * len(sizes))
    dims = [at.get(i, AffineExpr.constant(0)) for i in load.indices]

    def moved(map: AffineMap) -> AffineMap:
        return map.replace_dims_and_symbols(dims, symbols, len(sizes), 0)

    conditions = [c for c in _conditions(load) if not _has_symbols(c[0])]
    domain, fill = None, list[ConstantOp]()
    if conditions and load.fill is not None and isinstance(load.fill.owner, ConstantOp):
        inner = AffineMap(len(dims), len(load.symbols), tuple(expr for expr, _ in conditions))
        domain = DomainAttr.get(moved(inner), [limits for _, limits in conditions])
        fill = [load.fill.owner.clone()]
    values = [r for op in fill for r in op.results]
    new = loop.LoadOp(
        source or load.source, moved(load.map.data), block.args, (), domain, values[0] if values else None
    )
    block.add_ops([*fill, new, loop.YieldOp(new.result)])
    return loop.NestOp(sizes, [element_type(load.source.type)], Region(block))


def is_constant(value: SSAValue) -> bool:
    """Returns true if a tensor at the loop level is the same in every call.

    It is one of the `constants` of its function, or a result of nests that read only constants.
    """
    seen, todo = set[SSAValue](), [value]
    while todo:
        tensor = loop.unreshaped(todo.pop())
        if tensor in seen:
            continue
        seen.add(tensor)
        function = tensor.owner.parent_op()
        if isinstance(tensor.owner, loop.NestOp):
            todo += (op.source for op in tensor.owner.walk() if isinstance(op, loop.LoadOp))
        elif not isinstance(tensor.owner, Block) or not isinstance(function, FuncOp):
            return False
        elif tensor not in constant_arguments(function):
            return False
    return True


def constant_values(function: FuncOp) -> set[SSAValue]:
    """Returns the tensors of a function at the loop level for which `is_constant` is true."""
    result = {*constant_arguments(function)}
    for op in function.body.block.ops:
        if isinstance(op, loop.NestOp):
            constant = all(load.source in result for load in op.walk() if isinstance(load, loop.LoadOp))
        else:
            constant = isinstance(op, loop.ReshapeOp) and op.source in result
        result.update(op.results if constant else ())
    return result


def copies(nest: loop.NestOp, index: SSAValue) -> list[loop.NestOp]:
    """Returns the nests that pack the operands along `index`, for the cost model. They are not inserted.

    Constant operands are left out, because they are packed once and not in every call.
    """
    loads, extents = packable_loads(nest, index), extents_of_nest(nest)
    nests: list[loop.NestOp] = []
    for load in () if isinstance(loads, str) else loads:
        if is_constant(load.source):
            continue
        order = [*(i for i in extents if i in access_indices(load) and i is not index), index]
        gathered = gathered_extents(load) or []
        symbols = [AffineExpr.dimension(n) for n in range(len(gathered))]
        at = {i: AffineExpr.dimension(n) for n, i in enumerate(order, len(gathered))}
        source = Block(arg_types=[load.source.type]).args[0]
        nests.append(copying_nest(load, at, [*gathered, *(extents[i] for i in order)], source, symbols))
    return nests


UNFOLD = "unfold"
"""Attribute of a load that `loop-unfold-operands` replaces by a load of an unfolded copy."""


def unfoldable_loads(nest: loop.NestOp) -> list[loop.LoadOp]:
    """Returns the loads of operands that can be unfolded: a coordinate is a sum or a multiple of indices (a window).

    The reduction must be outermost, all sizes static, and the load no gather.
    """
    dependence, extents, loads = Dependence(), extents_of_nest(nest), dict[loop.LoadOp, None]()
    for op in reductions(nest):
        contraction = find_contraction(op, dependence) if op.parent is nest.body.block else None
        for operand in (contraction.lhs, contraction.rhs) if contraction is not None else ():
            load = loaded_factor(operand)
            if load is None or load.symbols or not (load.fill is None or isinstance(load.fill.owner, ConstantOp)):
                continue
            plain = all(isinstance(e, AffineDimExpr) for e in load.map.data.results if e.used_dims())
            if not plain and all(isinstance(extents[i], int) for i in load.indices):
                loads[load] = None
    return list(loads)


def unfolded_order(nest: loop.NestOp, load: loop.LoadOp) -> list[SSAValue]:
    """Returns the indices of the unfolded copy of an operand, the outermost first.

    Dimensions that `loop-collapse-dimensions` can merge must be adjacent. So the order is:

    - left operand: other free indices, rows, reduction indices;
    - right operand: other free indices, reduction indices, columns.

    The rows or columns are the last free indices of the operand that are adjacent in the nest. The operand with the
    last index of the nest is the right one.
    """
    indices = [i for i in extents_of_nest(nest) if i in load.indices]
    side = list[SSAValue]()
    for index in reversed(nest.body.block.args):
        if index in indices:
            side.insert(0, index)
        elif side:
            break
    free = [i for i in indices if i in nest.body.block.args and i not in side]
    summed = [i for i in indices if i not in nest.body.block.args]
    columns = side[-1:] == [*nest.body.block.args][-1:]
    return [*free, *summed, *side] if columns else [*free, *side, *summed]
