"""Deciding which tensors are kept in memory, and thereby which kernels there will be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..records import read_record
from .fusion.inline import deep_recursion
from .fusion.search import Search, candidates, mark, materialized


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
                    if kept is not None:
                        mark(function, {result for o in kept for result in o.results})
                    elif self.strategy != "keep":
                        self._plan(ctx, function)

    def _plan(self, ctx: Context, function: func.FuncOp) -> None:
        mark(function, set())
        if self.strategy == "best":
            mark(function, Search(ctx, function).run())
        else:
            mark(function, set(candidates(function) if self.strategy == "none" else materialized(function)))
