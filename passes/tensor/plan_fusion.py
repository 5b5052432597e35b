"""`tensor-plan-fusion`: chooses the tensors that are materialised, and so the kernels of the program."""

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
from .fusion.candidates import candidates, greedy, materialized, required_values
from .fusion.inline import deep_recursion
from .fusion.search import Search, plan_within, scratch_bytes


@dataclass(frozen=True)
class PlanFusionPass(ModulePass):
    """Marks the tensors to materialise with `fuse.root`. All others are computed inside the kernels that use them.

    ```mlir
    %s = arith.addf %x, %b : tensor<16x64xf32>
    ```
    becomes, if the plan materialises `%s`,
    ```mlir
    %s = arith.addf %x, %b {fuse.root} : tensor<16x64xf32>
    ```

    A plan is legal if no contraction is computed inside another one. The exception is a chain of reductions over one
    index that `loop-fuse-reductions` can merge, such as softmax between two matmuls.

    **Rationale**: fusion is one global decision, written as an attribute that can be read, edited and removed. No later
    pass decides it again.

    **Pipeline position**: on tensors, where the whole program is visible and a changed plan costs nothing.
    `convert-tensor-to-loop` follows.

    **Options**:

    - `strategy`:
      - `model` searches from the plan that materialises everything. It takes the legal step that saves the most time by
        the cost model of fusion (bytes, operations including repeated ones, launches). Then it materialises computed
        operands of contractions where the planning model predicts less time. A target without rates uses `simple`.
      - `simple` decides in one walk, by rules without a model (`fusion/candidates.py`).
      - `none` fuses only views, constants, and values that are never candidates.
      - `all` fuses everything else into its users: it materialises only `required_values` (`fusion/candidates.py`),
        such as the results of the function.
      - `keep` leaves the marks as they are.
    - `record`: file of plans (`records.py`). A function that has a plan in it, for `target` or for all targets, gets
      that plan. A remark reports a plan that does not fit.
    - `target`: target of the kernels. Its field `fusion` may name another target, whose rates the cost model uses then:
      so all GPUs in `target/architectures.py` get the same plan.
    - `roots`: values of `@main` to materialise, instead of a strategy: printed names (`%3`) or positions of operations.
      A remark reports roots that exceed the memory limit.
    - `limit_memory`: false ignores the `memory_limit` of the program in the strategy `model`.
    - `f32_matmul_precision`: option of `plan-schedules`, for the predictions of the planning model.
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
                    chosen = self._decided(function, record, target) if self.roots or record else None
                    if chosen is not None:
                        mark(function, {result for o in chosen for result in o.results})
                    elif self.strategy != "keep":
                        mark(function, {*self._plan(ctx, function, target)})

    def _decided(self, function: func.FuncOp, record: Record | None, target: Target) -> Sequence[Operation] | None:
        """Returns the operations to materialise by `roots` or by the record, or None if neither has a plan for
        `function`."""
        if self.roots and function.sym_name.data == "main":
            return self._named_roots(function)
        try:
            return record and record.fusion_for(function, target.arch)
        except RecordError as error:
            emit_remark(function, self.name, f"{error.reason}, and the planner's plan is taken")
            return None

    def _named_roots(self, function: func.FuncOp) -> Sequence[Operation]:
        """Returns the operations of the option `roots`. Emits a remark if their results exceed the memory limit."""
        roots = operations_at(function, self.roots)
        limit, returned = limit_of(function, MEMORY_LIMIT), {*(function.body.block.last_op or function).operands}
        names = {value: name for name, value in value_names(function).items()}
        sizes = {names[v]: tensor_bytes(v.type) for op in roots for v in op.results if v not in returned}
        if limit is not None and sum(sizes.values()) > limit:
            shown = ", ".join(f"{name} ({size} bytes)" for name, size in sizes.items())
            emit_remark(function, self.name, f"roots keep {shown} in memory; memory_limit is {limit} bytes")
        return roots

    def _plan(self, ctx: Context, function: func.FuncOp, target: Target) -> Iterable[SSAValue]:
        """Returns the values that the strategy materialises."""
        mark(function, set())
        if self.strategy == "all":
            return materialized(function)
        values, fixed = candidates(function), required_values(function)
        if self.strategy == "none" or fixed.issuperset(values):
            return values
        if self.strategy == "simple" or not target.rates.known:
            return greedy(function, values, fixed)
        search = Search(ctx, function, values, fixed, target, self.f32_matmul_precision)
        plan, limit = search.run(), limit_of(function, MEMORY_LIMIT) if self.limit_memory else None
        if limit is not None and scratch_bytes(function, plan) > limit - result_bytes(function):
            return plan_within(search, plan, limit)
        return plan


def mark(function: func.FuncOp, roots: set[SSAValue]) -> None:
    """Sets `fuse.root` on the operations that define `roots`, and removes it from all others."""
    for op in function.body.block.ops:
        if any(result in roots for result in op.results):
            op.attributes[ROOT] = UnitAttr()
        else:
            op.attributes.pop(ROOT, None)
