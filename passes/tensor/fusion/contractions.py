"""Contractions of a kernel inside other reductions: legal where later passes make one staged reduction of them."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from ....dialects import loop
from ....dialects.payload import element_type
from ...pipelines import parse_passes
from ...remarks import collect_remarks
from .cost import Kernel, reached
from .graph import Reduce
from .nest import make_nest

MERGING = "loop-hoist-reduction-factors,loop-fuse-reductions"
"""The part of the pipeline that decides which reductions run together."""


def contracts_once(ctx: Context, kernel: Kernel) -> bool:
    """Returns true if no contraction of `kernel` is computed several times: the reductions around each run in a chain,
    which the passes that come later make one staged reduction of."""
    merging = False
    for c in (c for c in kernel.contractions if c.open):
        around = {r for r, opened in kernel.reductions if r.bound & c.open and c.open == opened | r.bound}
        bound = {r.variables for r in around}
        outside = {opened for r, opened in kernel.reductions if r in around}
        group = {r for r, opened in kernel.reductions if r.variables in bound and opened in outside}
        if len(group) > 1 and any(_needs(r, group) for r in group):
            merging = True
        elif any(c.reduce in group for c in kernel.contractions):
            return False
    return not merging or _mergeable(ctx, kernel)


def _needs(reduce: Reduce, group: set[Reduce]) -> bool:
    """Whether `reduce` is computed from another reduction of the group: only then do they run in a chain."""
    return any(node in group for node in reached(reduce.body, lambda node: node.children))


def _mergeable(ctx: Context, kernel: Kernel) -> bool:
    """Whether the passes that come later make one staged reduction of those around each nested contraction: they run on
    a module of its own, which holds nothing but the nest that the kernel would be."""
    nest = make_nest(kernel.graph, [kernel.root], kernel.variables, [element_type(kernel.output)], {})
    module = ModuleOp([nest])
    with collect_remarks():  # they would speak of a program that may never be
        for later in parse_passes(MERGING):
            later.apply(ctx, module)
    merged = _each_nested_reduction_once(nest.body.block)
    module.erase()
    return merged


def _each_nested_reduction_once(block: Block) -> bool:
    """Whether at most one op of every body holds contractions: otherwise they are computed several times."""
    holders = 0
    for op in block.ops:
        staged = isinstance(op, loop.StagedReduceOp)
        bodies = [stage.body.block for stage in op.stage_ops] if staged else [region.block for region in op.regions]
        holders += any(isinstance(o, loop.ReduceOp | loop.StagedReduceOp) for body in bodies for o in body.ops)
        if not all(map(_each_nested_reduction_once, bodies)):
            return False
    return holders <= 1
