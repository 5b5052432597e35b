"""Which loads of a nest its schedule may have copied before, for tiles to find them row by row, and these copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import loop
from ...dialects.loop.dependence import Dependence, access_indices, find_contraction
from ...dialects.payload import CastOp, ConstantOp, element_type
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import Extent
from ...dialects.support.calls import constant_arguments
from .nest_schedule import reduction_indices, reductions


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


def extents_of_nest(nest: loop.NestOp) -> dict[SSAValue, Extent]:
    """The extents of all indices of a nest and of its reductions."""
    return dict(zip(nest.body.block.args, nest.sizes, strict=True)) | dict(reduction_indices(nest))


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
    """The nests that copy in each call what is loaded along the free `index`, which is their last, from tensors that
    are nobody's: for who wants to know how long they take. Constants are copied once."""
    loads, extents = packable_loads(nest, index), extents_of_nest(nest)
    found: list[loop.NestOp] = []
    for load in () if isinstance(loads, str) else loads:
        if is_constant(load.source):
            continue
        order = [*(i for i in extents if i in access_indices(load) and i is not index), index]
        at = {i: AffineExpr.dimension(n) for n, i in enumerate(order)}
        source = Block(arg_types=[load.source.type]).args[0]
        found.append(copying_nest(load, at, [extents[i] for i in order], source))
    return found
