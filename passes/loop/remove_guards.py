"""A maximum is taken as it is where its whole range is one chunk: `loop-remove-guards`."""

from __future__ import annotations

from ...dialects import loop, payload
from ..analysis.masks import is_repaired
from ..analysis.nest_schedule import reduction_indices, schedule_of
from ..pass_manager import NestPass
from ..rewriting import replace


class RemoveGuardsPass(NestPass):
    """Remove the guard of a maximum or minimum in staged reductions that are computed at once.

    What: where the schedule's chunks hold the whole range of a `loop.staged_reduce`, later stages use its maximum
    instead of `maximum == -inf ? 0 : maximum`.
    Why: `loop-fuse-reductions` puts the guard there for chunks in which everything is masked. Without it a later stage
    computes what is behind the reduction as well, the exponentials of softmax, and cse leaves one of the two.
    Why here: the schedule says what a chunk is. Before `loop-split-k`, as a part of a range is not all of it.

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
