"""Loads of operands of contractions that may be copied before, so that their indices follow one another in memory."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr

from ...dialects import loop
from ...dialects.loop.dependence import Dependence, find_contraction
from ...dialects.payload import ConstantOp
from .nest_schedule import reductions
from .packed_operands import extents_of_nest, loaded_factor

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
