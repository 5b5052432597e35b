"""Slots of circular buffers in shared memory: which are disjoint, and how loops rotate them."""

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
"""Offset of a slot in its buffer, in elements: a value, a constant, or unknown."""


@dataclass(frozen=True)
class RingSlot:
    """Slot of a circular buffer that an operation accesses.

    offset, size  in elements
    cells         the elements of the slot that each thread has, the same for all slots, where they are known
    """

    offset: Offset
    size: int
    cells: Hashable

    @staticmethod
    def of(op: Operation, slot: SubviewOp) -> RingSlot:
        """Returns the `slot` of a buffer, as `op` accesses it."""
        rotates = isinstance(slot.offset, BlockArgument)
        cells = None if rotates or not isinstance(op, LoadOp | StoreOp) else _cells(op)
        return RingSlot(slot_key(slot.offset), shape_of_memory(slot.result.type)[0], cells)

    def is_disjoint(self, other: RingSlot) -> bool:
        """Returns true if two slots of one buffer are different, or each thread has the same part of all slots."""
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
    """Returns the carried values of a loop that rotate with `slot`, or None if they change otherwise."""
    loop = slot.owner.parent_op()
    if not isinstance(loop, scf.ForOp) or slot.index == 0:
        return None
    yielded = _yielded(loop)
    found = [slot]
    while len(found) <= len(yielded):
        before = yielded[found[-1].index - 1]
        if before is slot:
            return tuple(found)
        if not isinstance(before, BlockArgument) or before.owner is not slot.owner or before.index == 0:
            return None
        found.append(before)
    return None


def _distance(rotation: Sequence[BlockArgument]) -> int:
    """Returns the least distance between the first slots of a rotation; 0 if they are not known."""
    loop = rotation[0].owner.parent_op()
    assert isinstance(loop, scf.ForOp)
    inits = [loop.iter_args[a.index - 1] for a in rotation]
    starts = [constant_index(i) for i in inits]
    known = sorted(s for s in starts if s is not None)
    if len(known) < len(starts):
        return _distance_before(loop, rotation, inits)
    return min((b - a for a, b in pairwise(known)), default=0)


def _distance_before(loop: scf.ForOp, rotation: Sequence[BlockArgument], inits: Sequence[SSAValue]) -> int:
    """Returns the `_distance` of slots that another loop rotates, too: the one around `loop`, or an earlier one."""
    outer = loop.parent_op()
    passed = [i for i in inits if isinstance(i, BlockArgument) and i.owner is loop.parent and i.index]
    if isinstance(outer, scf.ForOp) and len({*passed}) == len(inits):
        # The loop around this one passes on the slots, and gets them back in some order.
        back = {_yielded(outer)[a.index - 1] for a in passed}
        return _distance(passed) if back == {loop.results[a.index - 1] for a in rotation} else 0
    results = [i for i in inits if isinstance(i, OpResult)]
    earlier = inits[0].owner
    if isinstance(earlier, scf.ForOp) and all(r.op is earlier for r in results) and len(results) == len(inits):
        before = [earlier.body.block.args[1 + r.index] for r in results]  # slots that an earlier loop rotated
        whole = rotation_of(before[0])
        return _distance(whole) if whole is not None and set(before) == set(whole) else 0
    return 0


def _yielded(loop: scf.ForOp) -> Sequence[SSAValue]:
    last = loop.body.block.last_op
    return last.operands if isinstance(last, scf.YieldOp) else ()


Renaming = dict[tuple[SSAValue, Offset], SSAValue]
"""(ring, slot) -> the name of the slot elsewhere."""


class LoopRenamings(NamedTuple):
    """Names of slots at the entry of a loop, in the next iteration, after the loop, and after a loop without
    iterations."""

    entry: Renaming = {}
    again: Renaming = {}
    leaving: Renaming = {}
    skipped: Renaming = {}


def renamings(loop: scf.ForOp) -> LoopRenamings:
    """Returns the names that `loop` gives to slots."""
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
            names.again[ring, value] = argument
            names.leaving[ring, value] = result
            names.skipped[ring, slot_key(init)] = result
    return names


def _slots_of(loop: scf.ForOp, rotation: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Returns the carried values of `loop` that are a rotation, or the start of one in a loop inside of it."""
    slots = [v for v in rotation if isinstance(v, BlockArgument) and v.index]
    if not slots or len(slots) < len(rotation) or slots[0].owner is loop.body.block:
        return slots
    inner = slots[0].owner.parent_op()
    return _slots_of(loop, [inner.iter_args[v.index - 1] for v in slots]) if isinstance(inner, scf.ForOp) else ()


def slot_key(value: SSAValue) -> Offset:
    """Returns the number of a slot, if it is known, or the slot."""
    number = constant_index(value)
    return value if number is None else number


def _cells(op: LoadOp | StoreOp) -> Hashable:
    """Returns the elements of a slot that each thread accesses; None if they are unknown or differ between slots.

    Slots are multiples of their size apart, so a thread has the same elements in all of them.
    """
    if len(op.checks) or (isinstance(op, StoreOp) and op.predicate is not None):
        return None
    slot = op.memory.owner
    if not isinstance(slot, SubviewOp) or not _divides(shape_of_memory(op.memory.type)[0], slot.offset):
        return None
    func = enclosing(op, FuncOp)
    if func is None or not all(is_in(v, func.body.block) for v in (*op.coordinates, slot.ring)):
        return None
    places = tuple(op.coordinates), op.regs, op.vec, op.xor
    return (*places, op.memory.type)


def _divides(size: int, offset: SSAValue) -> bool:
    number = constant_index(offset)
    if number is not None:
        return number % size == 0
    op = offset.owner
    return isinstance(op, arith.MuliOp) and any(_divides(size, v) for v in op.operands)
