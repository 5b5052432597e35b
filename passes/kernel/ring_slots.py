"""Slots of circular buffers in shared memory: decides which slots are disjoint, also across loop iterations.

A circular buffer is one `kernel.shared`, and a slot is a `kernel.subview` of it at an offset. A loop carries the
offsets and yields them in another order (a rotation):

```mlir
scf.for ... iter_args(%a = %c0, %b = %c4096) {
  %read = kernel.subview %ring[%a] ...
  %write = kernel.subview %ring[%b] ...
  scf.yield %b, %a
}
```
`%a` and `%b` are disjoint in every iteration, because their initial offsets are at least a slot apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from xdsl.dialects import arith, scf
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...dialects.kernel import FuncOp, LoadOp, StoreOp, SubviewOp
from ...dialects.kernel.memory import shape_of_memory
from ...dialects.loop.dependence import is_in
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.locations import enclosing

Offset = SSAValue | int | None
"""Offset of a slot in its buffer, in elements: an SSA value, a constant, or None if it is unknown."""


@dataclass(frozen=True)
class RingSlot:
    """Slot of a circular buffer that an operation accesses.

    offset  offset of the slot in the buffer, in elements
    size    size of the slot in elements
    cells   key of the access pattern: which elements of a slot each thread accesses. If two accesses have equal keys,
            each element is accessed by the same thread in both. None if the pattern is unknown or differs between slots
    """

    offset: Offset
    size: int
    cells: Hashable

    @staticmethod
    def of(op: Operation, slot: SubviewOp) -> RingSlot:
        """Returns the description of the subview `slot` that `op` accesses."""
        rotates = isinstance(slot.offset, BlockArgument)
        cells = None if rotates or not isinstance(op, LoadOp | StoreOp) else _cells(op)
        return RingSlot(slot_key(slot.offset), shape_of_memory(slot.result.type)[0], cells)

    def is_disjoint(self, other: RingSlot) -> bool:
        """Returns true if accesses of two slots of one buffer need no barrier: the slots do not overlap, or each thread
        accesses only its own elements, the same in both."""
        a, b, size = self.offset, other.offset, max(self.size, other.size)
        if self.cells is not None and self.cells == other.cells:
            return True
        if isinstance(a, int) and isinstance(b, int):
            return abs(a - b) >= size
        if not isinstance(a, BlockArgument) or not isinstance(b, BlockArgument) or a is b:
            return False
        rotation = rotation_of(a)
        return rotation is not None and b in rotation and _distance(rotation) >= size


def rotation_of(slot: BlockArgument) -> tuple[BlockArgument, ...] | None:
    """Returns the loop-carried offsets that `slot` takes in turn, starting with `slot`, or None if the loop yields
    anything else for one of them."""
    loop = slot.owner.parent_op()
    if not isinstance(loop, scf.ForOp) or slot.index == 0:
        return None
    yielded = _yielded(loop)
    rotation = [slot]
    while len(rotation) <= len(yielded):
        before = yielded[rotation[-1].index - 1]
        if before is slot:
            return tuple(rotation)
        if not isinstance(before, BlockArgument) or before.owner is not slot.owner or before.index == 0:
            return None
        rotation.append(before)
    return None


def _distance(rotation: Sequence[BlockArgument]) -> int:
    """Returns the least distance between the initial offsets of a rotation, in elements; 0 if it is unknown."""
    loop = rotation[0].owner.parent_op()
    assert isinstance(loop, scf.ForOp)
    inits = [loop.iter_args[a.index - 1] for a in rotation]
    starts = [constant_index(i) for i in inits]
    constants = sorted(s for s in starts if s is not None)
    if len(constants) < len(starts):
        return _distance_before(loop, rotation, inits)
    return min((b - a for a, b in pairwise(constants)), default=0)


def _distance_before(loop: scf.ForOp, rotation: Sequence[BlockArgument], inits: Sequence[SSAValue]) -> int:
    """Returns the `_distance` of offsets that enter `loop` from another rotation: the carried values of the enclosing
    loop, or the results of an earlier loop. Returns 0 if they do not form a whole rotation."""
    outer = loop.parent_op()
    passed = [i for i in inits if isinstance(i, BlockArgument) and i.owner is loop.parent and i.index]
    if isinstance(outer, scf.ForOp) and len({*passed}) == len(inits):
        # The enclosing loop must yield the same offsets, in any order.
        back = {_yielded(outer)[a.index - 1] for a in passed}
        return _distance(passed) if back == {loop.results[a.index - 1] for a in rotation} else 0
    results = [i for i in inits if isinstance(i, OpResult)]
    earlier = inits[0].owner
    if isinstance(earlier, scf.ForOp) and all(r.op is earlier for r in results) and len(results) == len(inits):
        carried = [earlier.body.block.args[1 + r.index] for r in results]
        whole = rotation_of(carried[0])
        return _distance(whole) if whole is not None and set(carried) == set(whole) else 0
    return 0


def _yielded(loop: scf.ForOp) -> Sequence[SSAValue]:
    last = loop.body.block.last_op
    return last.operands if isinstance(last, scf.YieldOp) else ()


Renaming = dict[tuple[SSAValue, Offset], SSAValue]
"""(circular buffer, offset of a slot) -> the SSA value for the same offset on the other side of a loop boundary."""


class LoopRenamings(NamedTuple):
    """Renamings of slot offsets at the boundaries of a loop.

    entry      initial value -> block argument
    back_edge  yielded value -> block argument, from one iteration to the next
    leaving    yielded value -> loop result
    skipped    initial value -> loop result, if the loop runs no iteration
    """

    entry: Renaming = {}
    back_edge: Renaming = {}
    leaving: Renaming = {}
    skipped: Renaming = {}


def renamings(loop: scf.ForOp) -> LoopRenamings:
    """Returns the renamings of the slot offsets that `loop` carries."""
    names = LoopRenamings({}, {}, {}, {})
    rings: dict[SSAValue, dict[SSAValue, None]] = {}
    for op in loop.walk():
        if isinstance(op, SubviewOp) and isinstance(op.offset, BlockArgument):
            for slot in _slots_of(loop, rotation_of(op.offset) or ()):
                rings.setdefault(slot, {})[op.ring] = None
    carried = zip(loop.body.block.args[1:], loop.iter_args, _yielded(loop), loop.results, strict=True)
    for argument, init, value, result in carried:
        for ring in rings.get(argument, ()):
            names.entry[ring, slot_key(init)] = argument
            names.back_edge[ring, value] = argument
            names.leaving[ring, value] = result
            names.skipped[ring, slot_key(init)] = result
    return names


def _slots_of(loop: scf.ForOp, rotation: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Returns the carried values of `loop` that belong to a rotation; empty if there are none.

    If a nested loop carries the rotation, these are its initial values.

    Args:
        loop: the loop.
        rotation: offsets that `loop`, or a loop nested in it, carries.
    """
    slots = [v for v in rotation if isinstance(v, BlockArgument) and v.index]
    if not slots or len(slots) < len(rotation) or slots[0].owner is loop.body.block:
        return slots
    inner = slots[0].owner.parent_op()
    return _slots_of(loop, [inner.iter_args[v.index - 1] for v in slots]) if isinstance(inner, scf.ForOp) else ()


def slot_key(value: SSAValue) -> Offset:
    """Returns the constant offset of a slot, or `value` if it is not a constant."""
    number = constant_index(value)
    return value if number is None else number


def _cells(op: LoadOp | StoreOp) -> Hashable:
    """Returns a key of the elements of a slot that each thread accesses, or None if they may differ between slots.

    The offset of the slot must be a multiple of its size, and the coordinates must be computed outside of loops.
    """
    if len(op.checks) or (isinstance(op, StoreOp) and op.predicate is not None):
        return None
    slot = op.memory.owner
    if not isinstance(slot, SubviewOp) or not _divides(shape_of_memory(op.memory.type)[0], slot.offset):
        return None
    func = enclosing(op, FuncOp)
    if func is None or not all(is_in(v, func.body.block) for v in (*op.coordinates, slot.ring)):
        return None
    return tuple(op.coordinates), op.regs, op.vec, op.xor, op.memory.type


def _divides(size: int, offset: SSAValue) -> bool:
    number = constant_index(offset)
    if number is not None:
        return number % size == 0
    op = offset.owner
    return isinstance(op, arith.MuliOp) and any(_divides(size, v) for v in op.operands)
