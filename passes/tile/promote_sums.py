"""`tile-promote-sums`: computes a dot as partial sums over a few chunks, added to the accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, IndexType
from xdsl.ir import Block, Operation, SSAValue, Use

from ...dialects import payload, tile
from ...dialects.payload import constant_of, element_type
from ...dialects.shapes.ranges import constant_index, trip_count
from ...dialects.support.locations import copy_location
from ..analysis.layout_preferences import is_tile
from ..pass_manager import TilePass
from ..rewriting import insert_after, insert_before, rebuilt, replace, set_fields
from .loops import carried_uses


class PromoteSumsPass(TilePass):
    """Accumulates a few chunks of a dot from zero, and then adds the partial sum to the accumulators.

    ```mlir
    %s = scf.for %k = %c0 to %c64 step %c1 iter_args(%a = %zero) {
      ...
      %n = tile.dot %x, %y, %a
      scf.yield %n
    }
    ```
    becomes, with `promotion_interval = 8`,
    ```mlir
    %s = scf.for %first = %c0 to %c64 step %c8 iter_args(%sum = %zero) {
      %end = arith.addi %first, %c8
      %p = scf.for %k = %first to %end step %c1 iter_args(%a = %zero_1) {
        ...
        %n = tile.dot %x, %y, %a
        scf.yield %n
      }
      %t = arith.addf %sum, %p
      scf.yield %t
    }
    ```

    With `promotion_interval = N`, the loop over chunks is divided into two. The inner loop sums at most N chunks from
    zero, and the outer loop carries the accumulators. In a loop nest over several reduction indices, the pass divides
    the innermost loop whose iterations have at most N chunks each. Sums of at most N chunks are not changed. With N = 1
    no loop is divided: each chain of dots starts at zero, and its initial value is added after it.

    If the schedule has `promotion_memory = shared`, the accumulators are kept in shared memory during the inner loop.

    **Rationale**: an accumulator over all of k is rounded once per k at the magnitude of the result, and tensor cores
    truncate instead. Partial sums are smaller, so their rounding errors are smaller too.

    **Pipeline position**: after the passes that pipeline loads: loops carry the outstanding tiles, so nothing is
    drained between partial sums. Before `tile-pipeline-dots`, which handles partial sums like all accumulators.
    """

    name = "tile-promote-sums"
    inside = tile.DotOp
    decision = ("promotion_interval",)

    def on(self, op: tile.KernelOp) -> None:
        interval = op.schedule.promotion_interval
        if interval == 1:
            for dot in [o for o in op.body.walk() if isinstance(o, tile.DotOp)]:
                _promote_chain(dot)
            return
        loops = [o for o in op.body.walk() if isinstance(o, scf.ForOp) and _sums(o)]
        for loop in [o for o in loops if o.parent_op() not in loops]:
            self.decline(loop, _promote_loop(loop, interval, op.schedule.promotion_memory))


def _promote_chain(first: tile.DotOp) -> None:
    """Lets the chain of dots from `first` start at zero, and adds its initial value after the last dot. Each dot of a
    chain adds to the result of the previous one."""
    start, last = first.acc, first
    continues = isinstance(start.owner, tile.DotOp) and start.owner.parent is first.parent and start.has_one_use()
    if continues or constant_of(start) == 0 or not _is_of_floats(start):
        return
    while isinstance(user := last.result.get_user_of_unique_use(), tile.DotOp) and user.parent is first.parent:
        last = user
    zero = payload.ConstantOp(0.0, start.type)
    insert_before(first, zero)
    set_fields(first, acc=zero.result)
    total = arith.AddfOp(start, last.result)
    insert_after(last, total)
    last.result.replace_uses_with_if(total.result, lambda use: use.operation is not total)
    total.result.name_hint = last.result.name_hint


def _is_of_floats(value: SSAValue) -> bool:
    return is_tile(value) and isinstance(element_type(value.type), AnyFloat)


def _sums(loop: scf.ForOp) -> list[int]:
    """Returns the positions of loop-carried float tiles that are used only as accumulators of dots."""
    floats = [i for i, value in enumerate(loop.iter_args) if _is_of_floats(value)]
    return [i for i in floats if (uses := carried_uses(loop, i)) and all(map(_adds, uses))]


def _adds(use: Use) -> bool:
    dot = use.operation
    return isinstance(dot, tile.DotOp) and dot.operands[use.index] is dot.acc


def _promote_loop(loop: scf.ForOp, interval: int, memory: str) -> str | None:
    """Divides `loop`, or a loop nested in it, into partial sums of at most `interval` chunks.

    `memory` is the `promotion_memory` of the schedule. Returns the reason if the loop cannot be divided, else None.
    """
    inner = [o for o in loop.body.block.ops if isinstance(o, scf.ForOp) and _sums(o)]
    chunks = 1
    for nested in inner:
        trips = _chunks(nested)
        if trips is None or trips > interval:
            return _promote_loop(nested, interval, memory)
        chunks = max(chunks, trips)
    step, trips = constant_index(loop.step), trip_count(loop)
    if step is None:
        return "its loop has a step that is computed"
    length = max(1, interval // chunks)
    if trips is None or trips > length:
        _divide(loop, length, step, _sums(loop), memory)
    return None


def _chunks(loop: scf.ForOp) -> int | None:
    """Returns the number of chunks that a loop nest sums, or None if it is not constant."""
    counts = [trip_count(loop), *(_chunks(o) for o in loop.body.block.ops if isinstance(o, scf.ForOp) and _sums(o))]
    constant = [count for count in counts if count is not None]
    return prod(constant) if len(constant) == len(counts) else None


def _divide(loop: scf.ForOp, length: int, step: int, sums: Sequence[int], memory: str) -> None:
    """Divides `loop` into inner loops of at most `length` iterations, after which the loop-carried values at the
    positions `sums` are added to the accumulators. `step` is the constant step of `loop`."""
    trips, starts = trip_count(loop), list[SSAValue](loop.iter_args)
    stride = arith.ConstantOp.from_int_and_width(length * step, IndexType())
    zeros = {i: payload.ConstantOp(0.0, starts[i].type) for i in sums if constant_of(starts[i]) != 0}
    buffers = [_AccumulatorBuffer(starts[i]) for i in sums] if memory == "shared" else []
    others = [i for i in range(len(starts)) if i not in sums]
    carried = others if buffers else [*range(len(starts))]
    body = Block(arg_types=[IndexType(), *(starts[i].type for i in carried)])
    values = dict(zip(carried, body.args[1:], strict=True))
    first = body.args[0]
    first.name_hint = "first"
    for i, value in values.items():
        value.name_hint = loop.body.block.args[1 + i].name_hint
    end = arith.AddiOp(first, stride.result)
    ends = [end] if trips is not None and trips % length == 0 else [end, arith.MinSIOp(end.result, loop.ub)]
    ends[-1].result.name_hint = "end"
    inits = [values[i] if i in others else zeros[i].result if i in zeros else v for i, v in enumerate(starts)]
    inner = rebuilt(loop, inits, first, ends[-1].result)
    ops: list[Operation] = [*ends, inner]
    yielded = {i: inner.results[i] for i in others}
    for n, i in enumerate(sums):
        old = buffers[n].load() if buffers else []
        total = arith.AddfOp(old[-1].results[0] if buffers else values[i], inner.results[i])
        total.result.name_hint = loop.results[i].name_hint
        ops += [*old, total, *(buffers[n].store(total.result) if buffers else [])]
        yielded[i] = total.result
    ops.append(scf.YieldOp(*(yielded[i] for i in carried)))
    body.add_ops(ops)
    copy_location(loop, ops)
    outer = scf.ForOp(loop.lb, loop.ub, stride.result, [starts[i] for i in carried], body)
    results = dict(zip(carried, outer.results, strict=True))
    before, after = list[Operation](), list[Operation]()
    for p, i in zip(buffers, sums, strict=False):
        before += [p.row, *p.store(starts[i])]
        after += p.load()
        results[i] = after[-1].results[0]
    replace(loop, stride, *zeros.values(), *before, outer, *after, results=[results[i] for i in range(len(starts))])


class _AccumulatorBuffer:
    """Shared memory for one accumulator tile: a row buffer (`tile.row_buffer`) with one slot.

    Args:
        sums: an accumulator, for its type.
    """

    def __init__(self, sums: SSAValue) -> None:
        self.type = sums.type
        self.row = tile.RowBufferOp(tile.RowBufferType.get(1, sums.type))
        self.row.result.name_hint = "sums"

    def load(self) -> list[Operation]:
        index = arith.ConstantOp.from_int_and_width(0, IndexType())
        return [index, tile.RowBufferLoadOp(self.row.result, index.result, self.type)]

    def store(self, sums: SSAValue) -> list[Operation]:
        index = arith.ConstantOp.from_int_and_width(0, IndexType())
        return [index, tile.RowBufferStoreOp(sums, self.row.result, index.result)]
