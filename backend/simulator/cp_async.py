"""Asynchronous copies (cp.async) of a simulated kernel: nothing arrives before the thread that started it has waited
for it. From its start on a copy may write at any time, so until then what it writes is as if never written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel.cp_async import slot_size
from ...errors import ExecutionError
from ..interpreter.domains import Array
from .buffers import SharedBuffer, poison
from .machine import Access, Machine

if TYPE_CHECKING:
    from .async_units import AsyncUnits


@dataclass
class Copy:
    """A copy on its way: every element's block and place in `buffer`, what it brings, and the number that its group has
    in its block, -1 while that is open."""

    buffer: SharedBuffer
    block: Array
    place: Array
    value: Array
    group: Array

    def arrive(self, which: Array) -> None:
        """Write the elements `which`, which are no longer on their way."""
        at = self.block[which], self.place[which]
        self.buffer.data[at], self.buffer.written[at] = self.value[which], True
        self.block, self.place, self.value, self.group = (
            a[~which] for a in (self.block, self.place, self.value, self.group)
        )


def slot(machine: Machine, buffer: SharedBuffer, op: kernel.SubviewOp, offset: Array) -> SharedBuffer:
    """The part of a buffer that `op` names. Raises ExecutionError if threads that run disagree about it."""
    where = np.unique(machine.everywhere(offset)[machine.active])
    size = slot_size(op.result.type)
    if len(where) != 1 or not 0 <= int(where[0]) <= buffer.data.shape[1] - size:
        raise ExecutionError(f"slot at {where.tolist()} of a ring of {buffer.data.shape[1]} elements", operator=op.name)
    first = int(where[0])
    part = slice(first, first + size)
    offset_in_bytes = buffer.offset + first * buffer.itemsize
    return replace(buffer, data=buffer.data[:, part], written=buffer.written[:, part], offset=offset_in_bytes)


def start_copy(
    machine: Machine, op: kernel.CopyAsyncOp, target: SharedBuffer, value: Array, place: Array, happens: Array
) -> Copy:
    """Start the copy of `value` to the elements `place` of `target` where it `happens`."""
    place = np.broadcast_to(place, happens.shape)
    outside = happens & ((place < 0) | (place >= target.data.shape[1]))
    machine.find("out-of-bounds", op, outside, "{who} copies to outside of the buffer")
    happens = happens & ~outside
    there = Access(np.where(happens, place, 0), happens)
    machine.aligned(op, there, target.itemsize, target.offset)
    machine.measure_shared(op, there, target)
    block, thread, at = there.selected()
    block = machine.rows[block, thread]
    target.data[block, at], target.written[block, at] = poison(machine.domain, target.element), False
    return Copy(target, block, at, np.broadcast_to(value, happens.shape)[happens], np.full(len(block), -1, np.int64))


def commit(units: AsyncUnits, op: Operation) -> None:
    """Close a group in every block that runs."""
    running = _running(units, op)
    for copy in units.copies:
        closing = (copy.group < 0) & running[copy.block]
        copy.group[closing] = units.closed_copies[copy.block[closing]]
    units.closed_copies[running] += 1


def wait(units: AsyncUnits, op: kernel.AsyncWaitOp) -> None:
    """Let all groups arrive but the newest ones, in every block that runs."""
    running = _running(units, op)
    newest = units.closed_copies - op.pending.data
    for copy in units.copies:
        copy.arrive((copy.group >= 0) & running[copy.block] & (copy.group < newest[copy.block]))
    units.copies = [c for c in units.copies if len(c.block)]


def _running(machine: Machine, op: Operation) -> Array:
    """Which blocks run. Raises ExecutionError if only a part of one does."""
    active = machine.active.reshape(-1, machine.block_threads)
    running = np.asarray(active.all(axis=1))
    if (active.any(axis=1) != running).any():
        raise ExecutionError("groups of copies that not all threads close and await", operator=op.name)
    return running
