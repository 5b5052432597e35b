"""Contractions of kernels: those that are computed several times, and the operands that threads compute.

A contraction whose operand is computed in its kernel computes it again in every block along the other operand, and no
asynchronous copy brings it. The planning model knows both of each schedule. It is asked of the kernels alone that have
such operands, because to rank the schedules of a nest takes about as long as the whole search.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.payload import CastOp, tensor_bytes
from ....dialects.tensor import IndexMapOp, ReduceOp, ReductionKind
from ....target.model import Target
from ...pass_manager import collect_remarks, lacking, words_of
from ...pipelines import parse_passes
from ...planning.choose import rank
from ...planning.nest_info import NestInfo
from .cost import Contraction, Kernel, reached
from .graph import Load, Reduce, make_nest
from .inline import in_memory

MERGING = "loop-hoist-reduction-factors,loop-fuse-reductions"
"""Passes that decide which reductions run together."""

LOWERING = (
    "loop-separate-masks,loop-hoist-reduction-factors,loop-use-fast-math,cse,loop-fuse-reductions,"
    "loop-collapse-dimensions,cse,dce"
)
"""Passes that a nest goes through by itself before it is planned."""


@contextmanager
def lowered(ctx: Context, kernel: Kernel, passes: str) -> Generator[loop.NestOp]:
    """Yields the nest of `kernel` after some passes, in a module of its own."""
    nest = make_nest(kernel.graph, [kernel.root], kernel.variables)
    body = Region(Block([nest, func.ReturnOp(*nest.res)]))
    module = ModuleOp([func.FuncOp("main", ((), [kernel.output]), body)])
    words = words_of(module)
    with collect_remarks():  # of a program that may never be
        for later in parse_passes(passes):
            if not lacking(getattr(later, "needs", {}), words):
                later.apply(ctx, module)
    yield next(op for op in module.walk() if isinstance(op, loop.NestOp))
    module.erase()


def contracts_once(ctx: Context, kernel: Kernel, nested: Sequence[Contraction]) -> bool:
    """Returns true if no contraction of `kernel` is computed several times: the reductions around each of the `nested`
    ones run in a chain, of which later passes make one staged reduction."""
    merging = False
    for c in nested:
        around = {r for r, opened in kernel.reductions if r.bound & c.open and c.open == opened | r.bound}
        bound = {r.variables for r in around}
        outside = {opened for r, opened in kernel.reductions if r in around}
        group = {r for r, opened in kernel.reductions if r.variables in bound and opened in outside}
        if len(group) > 1 and any(_needs(r, group) for r in group):
            merging = True
        elif any(c.reduce in group for c in kernel.contractions):
            return False
    if not merging:
        return True
    with lowered(ctx, kernel, MERGING) as nest:
        return _each_nested_reduction_once(nest.body.block)


def _needs(reduce: Reduce, group: set[Reduce]) -> bool:
    """Returns true if `reduce` is computed from another reduction of the group: only then do they run in a chain."""
    return any(node in group for node in reached(reduce.body, lambda node: node.children))


def _each_nested_reduction_once(block: Block) -> bool:
    """Returns true if at most one op of every body holds reductions: otherwise they are computed several times."""
    holders = 0
    for op in block.ops:
        staged = isinstance(op, loop.StagedReduceOp)
        bodies = [stage.body.block for stage in op.stage_ops] if staged else [region.block for region in op.regions]
        holders += any(isinstance(o, loop.ReduceOp | loop.StagedReduceOp) for body in bodies for o in body.ops)
        if not all(map(_each_nested_reduction_once, bodies)):
            return False
    return holders <= 1


def planned_seconds(ctx: Context, kernel: Kernel, target: Target, precision: str) -> float:
    """Returns the predicted seconds of `kernel` under its fastest schedule; infinite if none can be carried out.

    Args:
        ctx: context of the passes.
        kernel: kernel of a fusion plan.
        target: target of the module.
        precision: permission of `f32_matmul_precision`.
    """
    with lowered(ctx, kernel, LOWERING) as nest:
        prediction = rank(NestInfo(nest), target, precision)[0].prediction
        return inf if prediction is None else prediction.seconds


def computed_operands(function: func.FuncOp, number: Mapping[SSAValue, int], kept: Container[int]) -> dict[int, bool]:
    """Returns the values to keep in memory for contractions to load operands that their kernels compute.

    Args:
        function: Function that is planned.
        number: Number of every candidate of the search.
        kept: Numbers of the candidates that are in memory.

    Returns:
        Numbers in program order: for each computed operand that of the smallest value that it is a conversion or a view
        of. False for operands of squares alone, whose sums are no contractions.
    """
    values = dict[int, bool]()
    for op in function.body.block.ops:
        if isinstance(op, ReduceOp) and op.kind.data == ReductionKind.ADD:
            product = op.source.owner
            while isinstance(product, IndexMapOp):
                product = product.source.owner
            if isinstance(product, MulfOp):
                for v in (v for operand in product.operands for v in _smallest_form(operand, number, kept)):
                    values[v] = values.get(v, False) or product.lhs is not product.rhs
    return dict(sorted(values.items()))


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
