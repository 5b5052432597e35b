"""Loads of a nest that may be copied before, packed or unfolded, so that tiles find their elements row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from ...dialects import loop
from ...dialects.loop.dependence import Dependence, access_indices, find_contraction
from ...dialects.payload import CastOp, ConstantOp, element_type
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent
from ...dialects.support.calls import constant_arguments
from .nest_schedule import extents_of_nest, reductions


def loaded_factor(value: SSAValue) -> loop.LoadOp | None:
    """The load that a factor of a product is, or is a cast of."""
    op = value.owner
    while isinstance(op, CastOp):
        op = op.operand.owner
    return op if isinstance(op, loop.LoadOp) else None


def packable_loads(nest: loop.NestOp, index: SSAValue) -> list[loop.LoadOp] | str:
    """The loads that are factors of products along the free `index`, alone or in what they are cast to; or why they
    cannot be copied before."""
    dependence, found = Dependence(), dict[loop.LoadOp, None]()
    for op in reductions(nest):
        contraction = find_contraction(op, dependence)
        if contraction is None or index not in contraction.only_lhs | contraction.only_rhs:
            continue
        load = loaded_factor(contraction.lhs if index in contraction.only_lhs else contraction.rhs)
        if load is None or index not in access_indices(load):
            return "a factor along this index is computed"
        if load.symbols or not (load.fill is None or isinstance(load.fill.owner, ConstantOp)):
            return "a factor along this index is gathered"
        found[load] = None
    return list(found) or "no product has columns along this index"


def copying_nest(
    load: loop.LoadOp, at: Mapping[SSAValue, AffineExpr], sizes: Sequence[Extent], source: SSAValue | None = None
) -> loop.NestOp:
    """The nest over `sizes` of what `load` loads, from `source` if that is given, where its indices are `at`."""
    block = Block(arg_types=[IndexType()] * len(sizes))
    dims = [at.get(i, AffineExpr.constant(0)) for i in load.indices]

    def moved(map: AffineMap) -> AffineMap:
        return map.replace_dims_and_symbols(dims, [], len(sizes), 0)

    fill = [load.fill.owner.clone()] if load.fill is not None and isinstance(load.fill.owner, ConstantOp) else []
    domain = load.domain and DomainAttr.get(moved(load.domain.affine), load.domain.limits)
    values = [r for op in fill for r in op.results]
    new = loop.LoadOp(
        source or load.source, moved(load.map.data), block.args, (), domain, values[0] if values else None
    )
    block.add_ops([*fill, new, loop.YieldOp(new.result)])
    return loop.NestOp(sizes, [element_type(load.source.type)], Region(block))


def is_constant(value: SSAValue) -> bool:
    """Whether a tensor at the loop level is the same in every call of a program: one of the `constants` of its
    function, or what nests make of these alone."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        found = loop.unreshaped(todo.pop())
        if found in seen:
            continue
        seen.add(found)
        function = found.owner.parent_op()
        if isinstance(found.owner, loop.NestOp):
            todo += (op.source for op in found.owner.walk() if isinstance(op, loop.LoadOp))
        elif not isinstance(found.owner, Block) or not isinstance(function, FuncOp):
            return False
        elif found not in constant_arguments(function):
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
    """Builds, without inserting them, the nests that pack the operands loaded along `index`, for the cost model.
    Constant operands are packed once and not per call."""
    loads, extents = packable_loads(nest, index), extents_of_nest(nest)
    nests: list[loop.NestOp] = []
    for load in () if isinstance(loads, str) else loads:
        if is_constant(load.source):
            continue
        order = [*(i for i in extents if i in access_indices(load) and i is not index), index]
        at = {i: AffineExpr.dimension(n) for n, i in enumerate(order)}
        source = Block(arg_types=[load.source.type]).args[0]
        nests.append(copying_nest(load, at, [extents[i] for i in order], source))
    return nests


UNFOLD = "unfold"
"""Attribute of a load whose values are copied before its nest, one for each value of its indices."""


def unfoldable_loads(nest: loop.NestOp) -> list[loop.LoadOp]:
    """Returns the operands of contractions at coordinates that are sums or multiples of indices, such as windows.

    Only operands of reductions that no other reduction surrounds, at fixed sizes, and not gathered.
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
    """Returns the indices of the copy of an operand, the outermost first.

    Those of the reduction follow one another, and so do the last adjacent indices of the nest on which the operand
    depends. The nest has the columns of a contraction last: columns are the last dimension of their operand, and the
    reduction is that of the operand of the rows.
    """
    own = [i for i in extents_of_nest(nest) if i in load.indices]
    side = list[SSAValue]()
    for index in reversed(nest.body.block.args):
        if index in own:
            side.insert(0, index)
        elif side:
            break
    free = [i for i in own if i in nest.body.block.args and i not in side]
    summed = [i for i in own if i not in nest.body.block.args]
    columns = side[-1:] == [*nest.body.block.args][-1:]
    return [*free, *summed, *side] if columns else [*free, *side, *summed]
