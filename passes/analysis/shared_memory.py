"""Which accesses to a block's shared memory can touch each other: buffers, their slots, and how loops rotate slots."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...dialects.kernel import FuncOp, LoadOp, MapaOp, SharedOp, StoreOp, SubviewOp
from ...dialects.kernel.copies import CopyAsyncOp, TmaStoreOp
from ...dialects.kernel.memory import memory_bytes, shape_of_memory, space_of
from ...dialects.kernel.mma import MatrixRows, StMatrixOp
from ...dialects.kernel.wgmma import WgmmaOp
from ...dialects.loop.dependence import is_in
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.locations import enclosing, refused
from ...errors import CompileError

Slot = SSAValue | int | None
"""Offset of an access in its buffer, in elements: a value, a constant, or unknown."""


@dataclass(frozen=True)
class Access:
    """A read or write of the bytes [start, end) of a block's shared memory; without offsets, buffers are disjoint.

    slot, size          in a circular buffer the slot and its elements
    cells               the elements of a slot that each thread has, the same for all slots, where they are known
    peer                true if the memory is that of another block
    warp_group_private  warps of a group that has a part of the buffer of its own
    """

    buffer: SSAValue
    start: int | None
    end: int
    writes: bool
    slot: Slot = None
    size: int = 0
    cells: Hashable = None
    peer: bool = False
    warp_group_private: int | None = None

    def conflicts(self, other: Access) -> bool:
        """Returns true if the order of two accesses by different threads of a block matters."""
        return self.peer == other.peer and (self.writes or other.writes) and self.touches(other)

    def conflicts_across(self, other: Access) -> bool:
        """Returns true if the order of two accesses by different blocks of a cluster matters, in any iterations."""
        return self.peer != other.peer and (self.writes or other.writes) and self.shares_memory(other)

    def touches(self, other: Access) -> bool:
        return self.shares_memory(other) and not (self.buffer is other.buffer and _are_apart(self, other))

    def shares_memory(self, other: Access) -> bool:
        """Returns true if the buffers of two accesses overlap, in any slots."""
        if self.buffer is other.buffer:
            return True
        if self.start is None or other.start is None:
            return False
        return self.start < other.end and other.start < self.end

    def renamed(self, slots: dict[tuple[SSAValue, Slot], SSAValue]) -> Access:
        """Returns the access with the name of its slot elsewhere."""
        new = slots.get((self.buffer, self.slot))
        return self if new is None else replace(self, slot=new)


def _are_apart(a: Access, b: Access) -> bool:
    """Returns true if two slots of one buffer are different, or each thread has the same part of all slots."""
    if a.cells is not None and a.cells == b.cells:
        return True
    if isinstance(a.slot, int) and isinstance(b.slot, int):
        return abs(a.slot - b.slot) >= max(a.size, b.size)
    if not isinstance(a.slot, BlockArgument) or not isinstance(b.slot, BlockArgument) or a.slot is b.slot:
        return False
    found = rotation_of(a.slot)
    return found is not None and b.slot in found and _distance(found) >= max(a.size, b.size)


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
    starts = [constant_index(i) for i in inits]
    known = sorted(s for s in starts if s is not None)
    if len(known) < len(starts):
        return 0
    return min((b - a for a, b in zip(known, known[1:], strict=False)), default=0)


def _yielded(loop: scf.ForOp) -> Sequence[SSAValue]:
    last = loop.body.block.last_op
    return last.operands if isinstance(last, scf.YieldOp) else ()


Renaming = dict[tuple[SSAValue, Slot], SSAValue]
"""(ring, slot) -> the name of the slot elsewhere."""


def renamings(loop: scf.ForOp) -> tuple[Renaming, Renaming, Renaming, Renaming]:
    """Returns the names of slots at the entry of a loop, in the next iteration, after the loop, and after a loop
    without iterations."""
    entry, again, leaving, skipped = (Renaming() for _ in range(4))
    rings: dict[SSAValue, dict[SSAValue, None]] = {}
    for op in loop.walk():
        if isinstance(op, SubviewOp) and isinstance(op.offset, BlockArgument):
            for slot in _slots_of(loop, rotation_of(op.offset) or ()):
                rings.setdefault(slot, {})[op.ring] = None
    carried = zip(loop.body.block.args[1:], loop.iter_args, _yielded(loop), loop.results, strict=True)
    for argument, init, value, result in carried:
        for ring in rings.get(argument, ()):
            entry[ring, slot_key(init)] = argument
            again[ring, value] = argument
            leaving[ring, value] = result
            skipped[ring, slot_key(init)] = result
    return entry, again, leaving, skipped


def _slots_of(loop: scf.ForOp, rotation: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Returns the carried values of `loop` that are a rotation, or the start of one in a loop inside of it."""
    slots = [v for v in rotation if isinstance(v, BlockArgument) and v.index]
    if not slots or len(slots) < len(rotation) or slots[0].owner is loop.body.block:
        return slots
    inner = slots[0].owner.parent_op()
    return _slots_of(loop, [inner.iter_args[v.index - 1] for v in slots]) if isinstance(inner, scf.ForOp) else ()


def slot_key(value: SSAValue) -> Slot:
    """Returns the number of a slot, if it is known, or the slot."""
    number = constant_index(value)
    return value if number is None else number


def accesses_of(op: Operation) -> list[Access]:
    """Returns the accesses of `op` to shared memory. Raises CompileError for memory of unknown origin."""
    if isinstance(op, WgmmaOp):
        return [_access(op, m) for m in (op.lhs, op.rhs) if isinstance(m.type, MemRefType)]
    if isinstance(op, TmaStoreOp):
        return [_access(op, op.shared)]
    memory = op.target if isinstance(op, CopyAsyncOp) else None
    if isinstance(op, LoadOp | StoreOp | MatrixRows):
        memory = op.memory
    space = None if memory is None else space_of(memory.type)
    return [_access(op, memory)] if memory is not None and space is not None and space.of_block else []


def _access(op: Operation, memory: SSAValue) -> Access:
    peer = isinstance(memory.owner, MapaOp)
    if isinstance(memory.owner, MapaOp):
        memory = memory.owner.shared
    slot, size, buffer = None, 0, memory.owner
    if isinstance(buffer, SubviewOp):
        slot, size = slot_key(buffer.offset), shape_of_memory(memory.type)[0]
        memory, buffer = buffer.ring, buffer.ring.owner
    if not isinstance(buffer, SharedOp):
        raise refused(op, "shared memory that is no kernel.shared", CompileError)
    start = None if buffer.offset is None else buffer.offset.data
    end = (start or 0) + memory_bytes(memory.type)
    writes = isinstance(op, StoreOp | CopyAsyncOp | StMatrixOp)
    apart = None if buffer.warp_group_private is None else buffer.warp_group_private.data
    return Access(memory, start, end, writes, slot, size, _cells(op), peer, apart)


def _cells(op: Operation) -> Hashable:
    """Returns the elements of a slot that each thread accesses; None if they are unknown or differ between slots.

    Slots are multiples of their size apart, so a thread has the same elements in all of them.
    """
    if not isinstance(op, LoadOp | StoreOp) or len(op.checks) or (isinstance(op, StoreOp) and op.predicate is not None):
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
