"""Deciding which tensors are kept in memory, and thereby which kernels there will be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from ...dialects import loop
from ...dialects.payload import element_type
from ..pipelines import parse_passes
from ..records import read_record
from ..remarks import collect_remarks
from .fusion.cost import Kernel
from .fusion.inline import deep_recursion
from .fusion.nest import make_nest
from .fusion.search import Search, candidates, mark, materialized

MERGING = "loop-hoist-reduction-factors,loop-fuse-reductions"
"""The part of the pipeline that decides which reductions run together."""


@dataclass(frozen=True)
class PlanFusionPass(ModulePass):
    """Mark the values to keep in memory with `fuse.root`; everything else is computed inside the kernels that use it.

    What: the plan is the set of kept values, written as an attribute, so it can be read, edited and taken back. The
    strategies: `best` searches from the unfused program, always taking the step that saves most by the cost model
    (bytes moved, operations including repeated ones, launches), among the legal ones; `none` keeps every value but
    views and constants; `all` keeps only results; `keep` leaves the marks as they are. A function that is in the file
    `record` (`records.py`) gets the marks that are noted there. Legal is a step after which no contraction is computed
    inside another one, except along a chain of reductions over one index, each of which needs others, that
    `loop-fuse-reductions` can merge (as softmax between two matrix products).
    Why here: on tensors, where the whole program is visible and undoing is free; `convert-tensor-to-loop` follows.

    ```mlir
    %s = arith.addf %x, %b : tensor<16x64xf32>
    ```
    becomes, where `%s` is to be kept,
    ```mlir
    %s = arith.addf %x, %b {fuse.root} : tensor<16x64xf32>
    ```
    """

    name = "tensor-plan-fusion"

    strategy: Literal["best", "none", "all", "keep"] = "best"
    record: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        record = None if self.record is None else read_record(self.record)
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    kept = None if record is None else record.fusion_for(function)
                    if kept is None:
                        self._plan(ctx, function)
                    else:
                        mark(function, {result for o in kept for result in o.results})

    def _plan(self, ctx: Context, function: func.FuncOp) -> None:
        if self.strategy == "keep":
            return
        mark(function, set())
        if self.strategy == "none":
            mark(function, set(candidates(function)))
        elif self.strategy == "best":
            mark(function, Search(function, partial(_mergeable, ctx)).run())
        else:
            mark(function, set(materialized(function)))


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
        if isinstance(op, loop.StagedReduceOp):
            bodies = [stage.body.block for stage in op.stage_ops]
        else:
            bodies = [region.block for region in op.regions]
        nested = [o for body in bodies for o in body.ops if isinstance(o, loop.ReduceOp | loop.StagedReduceOp)]
        holders += bool(nested)
        if not all(_each_nested_reduction_once(body) for body in bodies):
            return False
    return holders <= 1
