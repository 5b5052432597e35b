"""Deciding which tensors are kept in memory, and thereby which kernels there will be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from .fusion.cost import Kernel
from .fusion.plan import Search, candidates, mark, materialized
from .fusion.pull import deep_recursion


@dataclass(frozen=True)
class PlanFusionPass(ModulePass):
    """Mark the values to keep in memory with `fuse.root`; everything else is computed inside the kernels that use it.

    What: the plan is the set of kept values, written as an attribute, so it can be read, edited and taken back. The
    strategies: `best` searches from the unfused program, always taking the step that saves most by the cost model
    (bytes moved, operations including repeated ones, launches), among the legal ones; `none` keeps every value but
    views and constants; `all` keeps only results; `keep` leaves the marks as they are.
    Legal is a step after which no contraction is computed inside another one, except along a chain of reductions over
    one index that `merge-reductions` can merge (as softmax between two matrix products).
    Why here: on tensors, where the whole program is visible and undoing is free; `lower-tensor-to-loop` follows.

    ```mlir
    %s = arith.addf %x, %b : tensor<16x64xf32>
    ```
    becomes, where `%s` is to be kept,
    ```mlir
    %s = arith.addf %x, %b {fuse.root} : tensor<16x64xf32>
    ```
    """

    name = "plan-fusion"

    strategy: Literal["best", "none", "all", "keep"] = "best"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    self._plan(function)

    def _plan(self, function: func.FuncOp) -> None:
        if self.strategy == "keep":
            return
        mark(function, set())
        if self.strategy == "none":
            mark(function, set(candidates(function)))
        elif self.strategy == "best":
            mark(function, Search(function, _mergeable).run())
        else:
            mark(function, set(materialized(function)))


def _mergeable(kernel: Kernel) -> bool:
    return True
