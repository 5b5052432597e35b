"""`plan-unfolding`: chooses operands of contractions that are copied with unfolded windows (im2col)."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.passes import ModulePass

from ....dialects import loop
from ....dialects.loop.work import nest_work
from ....dialects.payload import tensor_bytes
from ....target.attribute import target_of
from ....target.model import Target
from ...analysis.host_memory import SCRATCH_LIMIT, HostMemory
from ...analysis.operands import UNFOLD, is_constant, unfoldable_loads
from ...pass_manager import collect_remarks, emit_remark
from ...pipelines import parse_passes
from ..choose import rank
from ..model import model_class
from ..nest_info import NestInfo

MIN_UNFOLDING_SPEEDUP = 1.1
"""Minimum predicted speedup for an unfolded copy, because it takes memory. Tuned by hand."""

UNFOLDING = "loop-unfold-operands,loop-collapse-dimensions"
"""Passes between this one and `plan-schedules`, which the prediction of an alternative applies."""


@dataclass(frozen=True)
class PlanUnfoldingPass(ModulePass):
    """Marks the operands of contractions that are worth a copy with one element for each value of their indices.

    ```mlir
    %a = loop.load %x[%k, %i + %r, %j] : ...
    ```
    becomes
    ```mlir
    %a = loop.load %x[%k, %i + %r, %j] {unfold} : ...
    ```

    **Rationale**: the sum of a convolution reads few pixels with large weights, or large images with few weights. With
    unfolded pixels (im2col) the weights are read in the order in which they are stored; otherwise they are packed or
    gathered. The cost model compares the schedules of both programs. A copy must fit in the memory that the program
    may take.

    **Pipeline position**: on final nests, before `loop-collapse-dimensions`, which works on the copy and on the nest.
    Only for the cores of a CPU: on a GPU blocks copy windows to shared memory.

    **Options**: `target`: as of `plan-schedules`. `strategy=simple` marks nothing.
    """

    name = "plan-unfolding"
    needs: ClassVar[Mapping[str, int]] = {"loop.reduce": 1}

    target: str | None = None
    strategy: Literal["model", "simple"] = "model"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op, self.target)
        if self.strategy == "simple" or not target.rates.known or not model_class(target).unfolds:
            return
        memory = HostMemory(op, target)
        for nest in [o for o in op.walk() if isinstance(o, loop.NestOp) and "schedule" not in o.attributes]:
            if loads := unfoldable_loads(nest):
                self._decide(ctx, nest, loads, target, memory.room(nest))

    def _decide(
        self, ctx: Context, nest: loop.NestOp, loads: Sequence[loop.LoadOp], target: Target, room: int | None
    ) -> None:
        """Marks loads if unfolding them is predicted to be fastest.

        Args:
            ctx: context of the passes.
            nest: the nest.
            loads: its loads that can be unfolded.
            target: the target.
            room: bytes that the copies may take, or None without a limit.
        """
        plain = _seconds(ctx, nest, (), target, room)
        alternatives = [(load,) for load in loads] + ([tuple(loads)] if len(loads) > 1 else [])
        limit = plain / MIN_UNFOLDING_SPEEDUP
        times = {chosen: _seconds(ctx, nest, chosen, target, room, limit) for chosen in alternatives}
        best = min(times, key=lambda chosen: times[chosen])
        if times[best] < limit:
            for load in best:
                load.attributes[UNFOLD] = UnitAttr()
        copied = f"{times[best] * 1e6:.1f} us" if times[best] < inf else "not worth it, or more memory than there is,"
        emit_remark(nest, self.name, f"{plain * 1e6:.1f} us predicted; {copied} with copies of windows")


def _seconds(
    ctx: Context,
    nest: loop.NestOp,
    chosen: Sequence[loop.LoadOp],
    target: Target,
    room: int | None,
    limit: float = inf,
) -> float:
    """Returns the predicted time of a nest with unfolded copies of some loads, in seconds.

    Args:
        ctx: context of the passes.
        nest: the nest.
        chosen: loads that are unfolded.
        target: the target.
        room: bytes that the copies may take, or None without a limit.
        limit: time that is worth computing. A longer time may be returned as infinity.

    Returns:
        The time of the copies and of the contraction; infinity if the copies do not fit in `room`, or if copies and
        multiply-adds alone take longer than `limit`.
    """
    copy = nest.clone()
    for old, new in zip(nest.walk(), copy.walk(), strict=True):
        if old in chosen:
            new.attributes[UNFOLD] = UnitAttr()
    module = ModuleOp([copy])
    # Remarks about an alternative that may not be taken would confuse.
    with collect_remarks():
        for later in parse_passes(UNFOLDING):
            later.apply(ctx, module)
    *copies, last = (op for op in module.ops if isinstance(op, loop.NestOp))
    if room is not None:
        room -= sum(tensor_bytes(r.type) for op in copies for r in op.res)
        last.attributes[SCRATCH_LIMIT] = IntegerAttr(max(0, room), i64)
    seconds = sum(rank(NestInfo(op), target)[0].cost for op in copies if not all(map(is_constant, op.res)))
    least = seconds + nest_work(nest).flops / target.rates.fma
    if room is not None and room < 0 or least >= limit:
        seconds = inf
    elif not all(map(is_constant, last.res)):
        seconds += rank(NestInfo(last), target)[0].cost
    module.erase()
    return seconds
