"""`tile-delay-dots`: computes the second of two dependent dots of a loop one iteration late.

In attention, the *early* dot multiplies queries and keys. Threads compute the softmax of its result, and the *late* dot
multiplies that with the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from ...dialects import tile
from ...dialects.shapes.ranges import Ranges, constant_index, trip_count
from ..pass_manager import TilePass
from ..rewriting import erase, insert_before, rebuilt, replace, set_fields


class DelayDotsPass(TilePass):
    """Delays dots whose left operand threads compute from another dot by one iteration.

    ```mlir
    %o = scf.for %k = %c0 to %n step %c1 iter_args(%a = %zero) {
      %x = tile.consumer_wait %keys
      %s = tile.dot %q, %x, %zero atom "wgmma"
      %p = ... %s ...
      %y = tile.consumer_wait %values
      %b = tile.dot %p, %y, %a atom "wgmma"
      tile.consumer_release %values
      scf.yield %b
    }
    ```
    becomes
    ```mlir
    %p0 = ... the first iteration
    %a1, %p1 = scf.for %k = %c1 to %n step %c1 iter_args(%a = %zero, %late = %p0) {
      %x = tile.consumer_wait %keys
      %s = tile.dot %q, %x, %zero atom "wgmma"
      %y = tile.consumer_wait %values
      %b = tile.dot %late, %y, %a atom "wgmma"
      tile.consumer_release %values
      %p = ... %s ...
      scf.yield %b, %p
    }
    %y1 = tile.consumer_wait %values
    %o = tile.dot %p1, %y1, %a1 atom "wgmma"
    tile.consumer_release %values
    ```

    The loop carries the left operand of the late dot. An iteration computes its early dot, and the late dot of the
    previous iteration. The first early dot is peeled before the loop, and the last late dot after it. Loops that may
    run no iteration are not changed.

    **Rationale**: `tile-pipeline-dots` makes both dots asynchronous. The tensor cores then compute the late dot while
    the threads compute softmax. Without the delay, tensor cores and threads wait for each other.

    **Pipeline position**: after `tile-warp-specialize`, as the tiles of a circular buffer are consumed in the same
    order as before; before `tile-split-masked-loops`, which divides the remaining loop.
    """

    name = "tile-delay-dots"
    inside = tile.WarpSpecializeOp

    def on(self, op: tile.KernelOp) -> None:
        for loop in [o for o in op.body.walk() if isinstance(o, scf.ForOp)]:
            late, trips, ranges = _late_dots(loop), trip_count(loop), Ranges()
            if not late or trips == 1:
                continue
            early = _last_early_dot(loop)
            if early is None:
                continue
            if not ranges.of(loop.lb)[1] < ranges.of(loop.ub)[0]:
                self.decline(loop, "it may have no iteration")
            elif any(d.is_used_before(early, loop) for d in late):
                self.decline(loop, "the sums of a late contraction are used before the early one")
            else:
                _delay(loop, early, late)


@dataclass(frozen=True)
class _Late:
    """Late dot of a loop.

    position  index of the loop-carried value that is its accumulator
    take      wait for the right operand, a tile of a circular buffer
    dot       the dot
    release   release of the slot of the right operand
    """

    position: int
    take: tile.ConsumerWaitOp
    dot: tile.DotOp
    release: tile.ConsumerReleaseOp

    @property
    def ops(self) -> tuple[Operation, ...]:
        return (self.take, self.dot, self.release)

    def is_used_before(self, early: tile.DotOp, loop: scf.ForOp) -> bool:
        """Returns true if an operation before `early` uses the loop-carried accumulator."""
        block = loop.body.block
        users = (block.find_ancestor_op_in_block(u.operation) for u in block.args[1 + self.position].uses)
        return any(u is not None and u.is_before_in_block(early) for u in users)


def _late_dots(loop: scf.ForOp) -> list[_Late]:
    """Returns the late dots of `loop`: the left operand is computed in the iteration, the right one comes from a
    circular buffer, and the loop carries the accumulator."""
    block, late = loop.body.block, list[_Late]()
    assert block.last_op is not None
    for i, value in enumerate(block.last_op.operands):
        dot = value.owner
        if not isinstance(dot, tile.DotOp) or not dot.is_wgmma or dot.parent is not block or not value.has_one_use():
            continue
        take, lhs = dot.rhs.owner, dot.lhs.owner
        if not isinstance(take, tile.ConsumerWaitOp) or take.parent is not block or len(take.res) > 1:
            continue
        computed = isinstance(lhs, Operation) and lhs.parent is block and not isinstance(lhs, tile.ConsumerWaitOp)
        accesses = [u.operation for u in take.ring.uses if u.operation.parent is block]
        releases = [o for o in accesses if isinstance(o, tile.ConsumerReleaseOp)]
        if computed and take.res[0].has_one_use() and len(releases) == 1 and len(accesses) == 2:
            if not isinstance(dot.acc.owner, tile.DotOp):
                late.append(_Late(i, take, dot, releases[0]))
    return late


def _last_early_dot(loop: scf.ForOp) -> tile.DotOp | None:
    """Returns the last early dot of `loop`, or None. Its operands come from circular buffers or from outside the
    loop."""
    block, early = loop.body.block, None
    for op in block.ops:
        if isinstance(op, tile.DotOp) and op.is_wgmma:
            inside = [v for v in (op.lhs, op.rhs) if isinstance(v.owner, Operation) and v.owner.parent is block]
            if all(isinstance(v.owner, tile.ConsumerWaitOp) for v in inside):
                early = op
    return early


def _delay(loop: scf.ForOp, early: tile.DotOp, late: Sequence[_Late]) -> None:
    """Moves the dots `late` to the next iteration of `loop`, directly after the dot `early`."""
    block, last = loop.body.block, loop.body.block.last_op
    assert isinstance(last, scf.YieldOp)
    yielded = list(last.operands)
    for d in late:
        yielded[d.position] = d.dot.acc
    yielded += [d.dot.lhs for d in late]
    inits = _first_iteration(loop, {op for d in late for op in d.ops} | {last}, yielded)
    insert_before(last, scf.YieldOp(*yielded))
    erase(last)
    position: Operation = early
    while isinstance(position.next_op, tile.ConsumerReleaseOp):
        position = position.next_op
    for d in late:
        sums, carried = block.args[1 + d.position], block.insert_arg(d.dot.lhs.type, len(block.args))
        carried.name_hint = d.dot.lhs.name_hint
        for op in d.ops:
            op.detach()
            block.insert_op_after(op, position)
            position = op
        sums.replace_all_uses_with(d.dot.result)
        set_fields(d.dot, lhs=carried, acc=sums)
    lower, step = constant_index(loop.lb), constant_index(loop.step)
    second: Operation = arith.AddiOp(loop.lb, loop.step)
    if lower is not None and step is not None:
        second = arith.ConstantOp.from_int_and_width(lower + step, IndexType())
    others = rebuilt(loop, inits, second.results[0])
    results, count = list[SSAValue](others.results[: len(loop.results)]), len(loop.results)
    drained = list[Operation]()
    for d, carried in zip(late, others.results[count:], strict=True):
        carried.name_hint = d.dot.lhs.name_hint
        values: dict[SSAValue, SSAValue] = {d.dot.lhs: carried, d.dot.acc: results[d.position]}
        drained += [op.clone(values) for op in d.ops]
        results[d.position] = values[d.dot.result]
    replace(loop, second, others, *drained, results=results)


def _first_iteration(loop: scf.ForOp, delayed: set[Operation], yielded: Sequence[SSAValue]) -> list[SSAValue]:
    """Clones the first iteration of `loop` before it, without the operations `delayed`. Returns its values for
    `yielded`."""
    values: dict[SSAValue, SSAValue] = dict(zip(loop.body.block.args, (loop.lb, *loop.iter_args), strict=True))
    for op in loop.body.block.ops:
        if op not in delayed:
            insert_before(loop, op.clone(values), source=op)
    return [values.get(v, v) for v in yielded]
