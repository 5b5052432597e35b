"""Operands of contractions that threads compute, and the time of kernels by the planning model.

A contraction whose operand is computed in its kernel computes it again in every block along the other operand, and no
asynchronous copy brings it. The planning model knows both of each schedule. It is asked of the kernels alone that have
such operands, because to rank the schedules of a nest takes about as long as the whole search.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.payload import CastOp, element_type, tensor_bytes
from ....dialects.tensor import IndexMapOp, ReduceOp, ReductionKind
from ....target.architectures import TARGETS
from ...pipelines import parse_passes
from ...planning.choose import rank
from ...planning.nest_info import NestInfo
from ...remarks import collect_remarks
from .cost import Kernel, reached
from .graph import Load
from .inline import in_memory
from .nest import make_nest

LOWERING = (
    "loop-separate-masks,loop-hoist-reduction-factors,cse,loop-use-fast-math,cse,loop-fuse-reductions,"
    "loop-collapse-dimensions,cse,dce"
)
"""Passes that a nest goes through by itself before it is planned."""


def planned_seconds(ctx: Context, kernel: Kernel) -> float:
    """Returns the seconds of `kernel` under its fastest schedule, with the constants that were fitted to its target;
    infinite if no schedule can be carried out."""
    nest = make_nest(kernel.graph, [kernel.root], kernel.variables, [element_type(kernel.output)], {})
    body = Region(Block([nest, func.ReturnOp(*nest.res)]))
    module = ModuleOp([func.FuncOp("main", ((), [kernel.output]), body)])
    with collect_remarks():  # they would speak of a program that may never be
        for later in parse_passes(LOWERING):
            later.apply(ctx, module)
    (lowered,) = (op for op in module.walk() if isinstance(op, loop.NestOp))
    prediction = rank(NestInfo(lowered), TARGETS.get(kernel.target.name, kernel.target))[0].prediction
    module.erase()
    return float("inf") if prediction is None else prediction.seconds


def computed_operands(function: func.FuncOp, number: Mapping[SSAValue, int], kept: Container[int]) -> list[int]:
    """Returns the values to keep in memory for contractions to load operands that their kernels compute.

    Args:
        function: Function that is planned.
        number: Number of every candidate of the search.
        kept: Numbers of the candidates that are in memory.

    Returns:
        Numbers in program order: of each computed operand that of the smallest value that it is a conversion or a view
        of.
    """
    values = set[int]()
    for op in function.body.block.ops:
        if isinstance(op, ReduceOp) and op.kind.data == ReductionKind.ADD:
            product = op.source.owner
            while isinstance(product, IndexMapOp):
                product = product.source.owner
            if isinstance(product, MulfOp):
                values |= {v for operand in product.operands for v in _smallest_form(operand, number, kept)}
    return sorted(values)


def _smallest_form(operand: SSAValue, number: Mapping[SSAValue, int], kept: Container[int]) -> list[int]:
    """Returns the number of the smallest candidate that a computed operand is made of by conversions and views, of
    equal ones the last; nothing if the operand is loaded."""
    forms = list[tuple[int, int]]()
    while not in_memory(operand) and (form := number.get(operand, -1)) not in kept:
        if form >= 0:
            forms.append((tensor_bytes(operand.type), form))
        op = operand.owner
        if not isinstance(op, IndexMapOp | CastOp):
            return [min(forms, key=lambda f: f[0])[1]] if forms else []
        operand = op.operands[0]
    return []


def contracts_flat(kernel: Kernel) -> bool:
    """Returns true if `kernel` has contractions, and none is computed from another: as in attention, threads have the
    results of the other one in registers, and need no copies."""
    contractions = {c.reduce for c in kernel.contractions}
    inside = (reached(reduce.body, lambda node: node.children) for reduce in contractions)
    return bool(contractions) and contractions.isdisjoint(node for nodes in inside for node in nodes)


def read_bytes(kernel: Kernel) -> int:
    """Returns the bytes of the tensors that `kernel` loads from."""
    return sum({node.source: node.tensor_bytes for node, _ in kernel.visited if isinstance(node, Load)}.values())
