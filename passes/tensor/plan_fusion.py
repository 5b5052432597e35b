"""`tensor-plan-fusion`: which tensors are kept in memory, and so which kernels there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects.payload import tensor_bytes
from ...dialects.support.printing import value_names
from ...dialects.tensor import ROOT
from ...target.attribute import target_of
from ...target.model import Target
from ..analysis.host_memory import MEMORY_LIMIT, limit_of, result_bytes
from ..pass_manager import emit_remark
from ..records import Record, RecordError, operations_at
from .fusion.candidates import candidates, greedy, kept_values, materialized
from .fusion.inline import deep_recursion
from .fusion.search import Search, between_bytes, within


@dataclass(frozen=True)
class PlanFusionPass(ModulePass):
    """Mark the values to keep in memory with `fuse.root`; everything else is computed inside the kernels that use it.

    What: the plan is the set of kept values, written as an attribute, so it can be read, edited and taken back. The
    strategies: `model` searches from the unfused program, always taking the step that saves most by the cost model
    (bytes moved, operations including repeated ones, launches), among the legal ones; then it keeps operands that
    contractions compute, where the planning model predicts less time for that; `simple` decides in one walk, by rules
    without a model (`fusion/candidates.py`); `none` keeps every value but views and constants; `all` keeps only what
    has to be (results, what the host works on, sums that are compared with themselves);
    `keep` leaves the marks as they are. `roots` are the values of the program, `@main`, that are kept, in place of
    a strategy: names as they are printed (`%3`), or positions of operations. A remark says if they take more than
    the `memory_limit`. The times are those of the card in `Target.fusion`, so that all cards of the table get the
    plan that is best on one. A target without rates takes `simple` in place of `model`. `f32_matmul_precision` is
    the permission of `plan-schedules`, by which the planning model predicts times. A function that is in the file
    `record` (`records.py`), for `target` or for all, gets the marks that are noted there, unless they do not fit,
    which a remark says. Legal is a step after which no contraction is computed inside another one, except along a
    chain of reductions over one index, each of which needs others, that `loop-fuse-reductions` can merge (as
    softmax between two matrix products).
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

    strategy: Literal["model", "simple", "none", "all", "keep"] = "model"
    record: str | None = None
    target: str | None = None
    roots: tuple[int | str, ...] = ()
    limit_memory: bool = True
    f32_matmul_precision: Literal["ieee", "input_dtype", "bf16x3", "bf16x3_presplit", "tf32"] = "ieee"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, record = target_of(op, self.target), None
        if self.record is not None:
            from ..record_file import read_record

            record = read_record(self.record, target.card)
        with deep_recursion():
            for function in op.body.block.ops:
                if isinstance(function, func.FuncOp) and not function.is_declaration:
                    kept = self._decided(function, record, target) if self.roots or record else None
                    if kept is not None:
                        mark(function, {result for o in kept for result in o.results})
                    elif self.strategy != "keep":
                        mark(function, {*self._plan(ctx, function, target)})

    def _decided(self, function: func.FuncOp, record: Record | None, target: Target) -> Sequence[Operation] | None:
        """Returns the operations whose results the options or the record keep, or None if neither says."""
        if self.roots and function.sym_name.data == "main":
            return self._named_roots(function)
        try:
            return record and record.fusion_for(function, target.arch)
        except RecordError as error:
            emit_remark(function, self.name, f"{error.reason}, and the planner's plan is taken")
            return None

    def _named_roots(self, function: func.FuncOp) -> Sequence[Operation]:
        """Returns the operations of `roots`, with a remark if they take more than the memory limit of the program."""
        roots = operations_at(function, self.roots)
        limit, returned = limit_of(function, MEMORY_LIMIT), {*(function.body.block.last_op or function).operands}
        names = {value: name for name, value in value_names(function).items()}
        sizes = {names[v]: tensor_bytes(v.type) for op in roots for v in op.results if v not in returned}
        if limit is not None and sum(sizes.values()) > limit:
            shown = ", ".join(f"{name} ({size} bytes)" for name, size in sizes.items())
            emit_remark(function, self.name, f"roots keep {shown} in memory; memory_limit is {limit} bytes")
        return roots

    def _plan(self, ctx: Context, function: func.FuncOp, target: Target) -> Iterable[SSAValue]:
        """Returns the values that the strategy keeps."""
        mark(function, set())
        if self.strategy == "all":
            return materialized(function)
        values, fixed = candidates(function), kept_values(function)
        if self.strategy == "none" or fixed.issuperset(values):
            return values
        if self.strategy == "simple" or not target.rates.known:
            return greedy(function, values, fixed)
        search = Search(ctx, function, values, fixed, target, self.f32_matmul_precision)
        kept, limit = search.run(), limit_of(function, MEMORY_LIMIT) if self.limit_memory else None
        if limit is not None and between_bytes(function, kept) > limit - result_bytes(function):
            return within(search, kept, limit)
        return kept


def mark(function: func.FuncOp, roots: set[SSAValue]) -> None:
    """Marks the ops that define `roots`, and no others."""
    for op in function.body.block.ops:
        if any(result in roots for result in op.results):
            op.attributes[ROOT] = UnitAttr()
        else:
            op.attributes.pop(ROOT, None)
