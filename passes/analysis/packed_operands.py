"""Which loads of a nest its schedule may have copied before, for tiles to find them row by row."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.loop.dependence import Dependence, access_indices, find_contraction
from ...dialects.payload import CastOp, ConstantOp
from .nest_schedule import reductions


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


def fill_of(load: loop.LoadOp) -> list[Operation]:
    """A copy of the constant that a load gives outside of its domain, if it has one."""
    return [] if load.fill is None or not isinstance(load.fill.owner, ConstantOp) else [load.fill.owner.clone()]
