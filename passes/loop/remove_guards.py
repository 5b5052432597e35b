"""A maximum is taken as it is where its whole range is one chunk: `loop-remove-guards`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects import loop, payload
from ..analysis.masks import is_repaired
from ..analysis.nest_schedule import reduction_indices, schedule_of
from ..rewriting import replace


@dataclass(frozen=True)
class RemoveGuardsPass(ModulePass):
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

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            schedule = schedule_of(nest).data
            if schedule.split_k > 1 or schedule.cluster > 1:
                continue
            chunked = {
                index
                for (index, extent), chunk in zip(reduction_indices(nest), schedule.chunk, strict=True)
                if not isinstance(extent, int) or chunk < extent
            }
            for staged in [s for s in nest.body.walk() if isinstance(s, loop.StagedReduceOp)]:
                if not any(chunked & {*stage.body.block.args} for stage in staged.stage_ops):
                    _remove(staged)


def _remove(staged: loop.StagedReduceOp) -> None:
    for stage in staged.stage_ops:
        for op in [use.operation for use in stage.result.uses]:
            guards = isinstance(op, payload.SelectOp) and op.rhs is stage.result and is_repaired(op.result)
            if guards and op.parent is staged.stages.block:
                replace(op, results=[stage.result])
