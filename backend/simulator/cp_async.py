"""Asynchronous copies (cp.async) of a simulated kernel: nothing arrives before the thread that started it has waited
for it.

From its start on a copy may write at any time, so until then nobody may touch where it goes; what it brings becomes
visible to its own thread at the wait, as if written there, and to the others behind a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel.cp_async import slot_size
from ...dialects.payload import element_type
from ...errors import ExecutionError
from ..interpreter.domains import Array
from .machine import Access, Machine, ranked
from .memory_access import load_global
from .shadow_memory import GlobalBuffer, SharedBuffer, cells_of, poison


@dataclass
class Copy:
    """A copy on its way: every element's block, thread and place in `buffer`, what it brings, and the number that its
    group has in its block, -1 while that is open."""

    op: kernel.CopyAsyncOp
    buffer: SharedBuffer
    block: Array
    thread: Array
    place: Array
    value: Array
    group: Array

    def taken(self, which: Array) -> Copy:
        """The elements `which` of the copy, which lose them."""
        gone = Copy(self.op, self.buffer, *(a[which] for a in self._arrays()))
        self.block, self.thread, self.place, self.value, self.group = (a[~which] for a in self._arrays())
        return gone

    def _arrays(self) -> tuple[Array, ...]:
        return self.block, self.thread, self.place, self.value, self.group


@dataclass
class Copies:
    """The copies of one launch that have not arrived; and how many groups each block has closed, as blocks need not
    run the same iterations."""

    blocks: int
    flying: list[Copy] = field(default_factory=list[Copy])
    closed: Array = field(init=False)

    def __post_init__(self) -> None:
        self.closed = np.zeros(self.blocks, np.int64)


def slot(machine: Machine, buffer: SharedBuffer, op: kernel.SubviewOp, offset: Array) -> SharedBuffer:
    """The part of a buffer that `op` names. Raises ExecutionError if threads that run disagree about it."""
    where = np.unique(np.broadcast_to(ranked(offset, 2), machine.active.shape)[machine.active])
    size = slot_size(op.result.type)
    if len(where) != 1 or not 0 <= int(where[0]) <= buffer.data.shape[1] - size:
        raise ExecutionError(f"slot at {where.tolist()} of a ring of {buffer.data.shape[1]} elements", operator=op.name)
    first = int(where[0])
    return replace(
        buffer,
        data=buffer.data[:, first : first + size],
        start=buffer.start + first * buffer.cells,
        offset=buffer.offset + first * buffer.itemsize,
    )


def start_copy(
    machine: Machine,
    copies: Copies,
    op: kernel.CopyAsyncOp,
    source: GlobalBuffer,
    target: SharedBuffer,
    access: Access,
    place: Array,
    happens: Array,
) -> None:
    """Start the copy of `access` (where its checks hold, else of zeros) to the elements `place` of `target`."""
    zero = machine.domain.constant(0, element_type(target.element))
    value = np.broadcast_to(load_global(machine, op, source, access, zero), happens.shape)
    place = np.broadcast_to(place, happens.shape)
    outside = happens & ((place < 0) | (place >= target.data.shape[1]))
    machine.find("out-of-bounds", op, outside, "{who} copies to outside of the buffer")
    happens = happens & ~outside
    there = Access(np.where(happens, place, 0), happens)
    machine.aligned(op, there, target.itemsize, target.offset)
    machine.measure_shared(op, there, target)
    block, thread, at = there.selected()
    block = machine.rows[block, thread]
    if machine.shadowed:
        cells, threads = cells_of(target, block, thread, at)
        unchanged = np.zeros(threads.shape, np.bool_)
        race = machine.shadow.write(cells, threads, machine.epoch[cells[0]], target.number, unchanged)
        race |= machine.shadow.flying[cells]
        machine.shadow.flying[cells] = True
        if race.any():
            where = np.zeros(happens.shape, np.bool_)
            where[happens] = race.reshape(-1, target.cells).any(axis=1)
            text = "{who} starts a copy to where another thread reads or writes, with no barrier in between"
            machine.find("race", op, where, text)
    target.data[block, at] = poison(machine.domain, target.element)
    open_group = np.full(len(block), -1, np.int64)
    copies.flying.append(Copy(op, target, block, thread, at, value[happens], open_group))


def commit(machine: Machine, copies: Copies, op: Operation) -> None:
    """Close a group in every block that runs."""
    running = _running(machine, op)
    for copy in copies.flying:
        closing = (copy.group < 0) & running[copy.block]
        copy.group[closing] = copies.closed[copy.block[closing]]
    copies.closed[running] += 1


def wait(machine: Machine, copies: Copies, op: kernel.AsyncWaitOp) -> None:
    """Let all groups arrive but the newest ones, in every block that runs."""
    running = _running(machine, op)
    newest = copies.closed - op.pending.data
    for copy in copies.flying:
        arriving = (copy.group >= 0) & running[copy.block] & (copy.group < newest[copy.block])
        here = copy.taken(arriving)
        here.buffer.data[here.block, here.place] = here.value
        if machine.shadowed:
            cells, threads = cells_of(here.buffer, here.block, here.thread, here.place)
            unchanged = np.zeros(threads.shape, np.bool_)
            machine.shadow.write(cells, threads, machine.epoch[cells[0]], here.buffer.number, unchanged)
            machine.shadow.flying[cells] = False
    copies.flying = [c for c in copies.flying if len(c.block)]


def _running(machine: Machine, op: Operation) -> Array:
    """Which blocks run. Raises ExecutionError if only a part of one does."""
    active = machine.active.reshape(-1, machine.block_threads)
    running = np.asarray(active.all(axis=1))
    if (active.any(axis=1) != running).any():
        raise ExecutionError("groups of copies that not all threads close and await", operator=op.name)
    return running


def places(machine: Machine, op: kernel.CopyAsyncOp, origin: Array) -> Array:
    """Where the registers go in the target."""
    return machine.register_places(ranked(origin, 2), op.target_bases, op.target_xor is not None)
