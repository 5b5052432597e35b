"""`loop-remove-guards`: uses a maximum without a guard against -infinity if one chunk is the whole range."""

from __future__ import annotations

from ...dialects import loop, payload
from ..analysis.masks import is_repaired
from ..analysis.nest_schedule import reduction_indices, schedule_of
from ..pass_manager import NestPass
from ..rewriting import replace


class RemoveGuardsPass(NestPass):
    """Replaces `maximum == -inf ? 0 : maximum` by the maximum in staged reductions that are computed in one chunk.

    ```mlir
    %s, %l = loop.staged_reduce -> f32, f32 stages {          // chunk = [64, 64]
      %m = loop.reduce max (%k) in [64] -> f32 { ... }
      %empty = payload.cmp eq %m, %lowest : f32
      %frame = payload.select %empty, %zero, %m : f32
      %n = loop.reduce add (%k) in [64] -> f32 { ... arith.subf %x, %frame ... }
    ```
    becomes
    ```mlir
      %n = loop.reduce add (%k) in [64] -> f32 { ... arith.subf %x, %m ... }
    ```

    **Rationale**: `loop-fuse-reductions` inserts the guard for chunks in which all elements are masked. Without the
    guard, a later stage and the operations after the reduction compute the same values, such as the exponentials of
    softmax, and `cse` merges them.

    **Pipeline position**: after `plan-schedules`, which decides the chunks. Before `loop-split-k`, because a part of a
    range is not the whole range.
    """

    name = "loop-remove-guards"
    inside = loop.StagedReduceOp

    def on(self, op: loop.NestOp) -> None:
        schedule = schedule_of(op).data
        if schedule.split_k > 1 or schedule.cluster > 1:
            return
        chunked = {
            index
            for (index, extent), chunk in zip(reduction_indices(op), schedule.chunk, strict=True)
            if not isinstance(extent, int) or chunk < extent
        }
        for staged in [s for s in op.body.walk() if isinstance(s, loop.StagedReduceOp)]:
            if not any(chunked & {*stage.body.block.args} for stage in staged.stage_ops):
                _remove(staged)


def _remove(staged: loop.StagedReduceOp) -> None:
    for stage in staged.stage_ops:
        for op in [use.operation for use in stage.result.uses]:
            guards = isinstance(op, payload.SelectOp) and op.rhs is stage.result and is_repaired(op.result)
            if guards and op.parent is staged.stages.block:
                replace(op, results=[stage.result])
