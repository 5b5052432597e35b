"""Asynchronous copies of a simulated kernel: nothing arrives before the thread that started it has waited for it.

From its start on a copy may write at any time, so until then nobody may touch where it goes; what it brings becomes
visible to its own thread at the wait, as if written there, and to the others behind a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.kernel_async import slot_size
from ...dialects.payload import element_type
from ...errors import ExecutionError
from ..interpreter.domains import Array
from .accesses import load_global
from .machine import Access, Machine, ranked
from .memory import GlobalBuffer, SharedBuffer, cells_of, poison


@dataclass
class Copy:
    """A copy on its way: every element's block, thread and place in `buffer`, and what it brings."""

    op: kernel.CopyAsyncOp
    buffer: SharedBuffer
    block: Array
    thread: Array
    place: Array
    value: Array


@dataclass
class Copies:
    """The copies of one launch: those of the open group, and the groups that were closed, oldest first."""

    open: list[Copy] = field(default_factory=list[Copy])
    groups: list[list[Copy]] = field(default_factory=list[list[Copy]])


def slot(buffer: SharedBuffer, op: kernel.SlotOp, offset: Array) -> SharedBuffer:
    """The part of a buffer that `op` names. Raises ExecutionError if threads disagree about it."""
    where = np.unique(offset)
    size = slot_size(op.result.type)
    if len(where) != 1 or not 0 <= int(where[0]) <= buffer.data.shape[1] - size:
        raise ExecutionError(f"slot at {where.tolist()} of a ring of {buffer.data.shape[1]} elements", operator=op.name)
    first = int(where[0])
    return SharedBuffer(
        buffer.data[:, first : first + size],
        buffer.element,
        buffer.number,
        buffer.start + first * buffer.cells,
        buffer.cells,
        buffer.offset + first * buffer.itemsize,
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
    copies.open.append(Copy(op, target, block, thread, at, value[happens]))


def commit(machine: Machine, copies: Copies, op: Operation) -> None:
    """Close a group."""
    _together(machine, op)
    copies.groups.append(copies.open)
    copies.open = []


def wait(machine: Machine, copies: Copies, op: kernel.AsyncWaitOp) -> None:
    """Let all groups arrive but the newest ones."""
    _together(machine, op)
    arriving = max(0, len(copies.groups) - op.pending.data)
    for group in copies.groups[:arriving]:
        for copy in group:
            copy.buffer.data[copy.block, copy.place] = copy.value
            if machine.shadowed:
                cells, threads = cells_of(copy.buffer, copy.block, copy.thread, copy.place)
                unchanged = np.zeros(threads.shape, np.bool_)
                machine.shadow.write(cells, threads, machine.epoch[cells[0]], copy.buffer.number, unchanged)
                machine.shadow.flying[cells] = False
    del copies.groups[:arriving]


def _together(machine: Machine, op: Operation) -> None:
    if not machine.active.all():
        raise ExecutionError("groups of copies that not all threads close and await", operator=op.name)


def places(machine: Machine, op: kernel.CopyAsyncOp, origin: Array) -> Array:
    """Where the registers go in the target."""
    return machine.register_places(ranked(origin, 2), op.target_bases, op.target_xor is not None)
