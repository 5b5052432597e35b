"""Loads and stores of a simulated kernel, with everything that can be wrong about them."""

from __future__ import annotations

import numpy as np

from ...dialects import kernel
from ..interpreter.domains import Array
from ..interpreter.scatter import scatter_into
from .buffers import GlobalBuffer, SharedBuffer
from .machine import Access, Machine


def load_global(
    machine: Machine, op: kernel.LoadOp | kernel.CopyAsyncOp, buffer: GlobalBuffer, access: Access, fill: Array
) -> Array:
    """Registers from global memory."""
    machine.aligned(op, access, buffer.itemsize)
    machine.measure_global(op, access, buffer)
    if buffer.data.size == 0:
        return np.broadcast_to(fill, access.mask.shape)
    nothing = access.mask & buffer.missing(access.place)
    machine.find("uninitialised", op, nothing, "{who} reads global memory that was never written")
    return np.where(access.mask, buffer.data[access.place], fill)


def store_global(machine: Machine, op: kernel.StoreOp, buffer: GlobalBuffer, access: Access, value: Array) -> None:
    """Registers to global memory; two threads that write one element have to write the same."""
    machine.aligned(op, access, buffer.itemsize)
    machine.measure_global(op, access, buffer)
    if not access.mask.any():
        return
    block, thread, place = access.selected()
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    other, wrong = buffer.store(machine.domain, place, machine.grid_threads[block, thread], value)
    machine.counts.duplicates += int(np.count_nonzero(other & ~wrong))
    machine.find("conflict", op, access.spread(wrong), "{who} writes an element that another writes differently")


def combine_global(
    machine: Machine, op: kernel.AtomicRmwOp, buffer: GlobalBuffer, access: Access, value: Array
) -> None:
    """Registers combined into global memory, which holds something already."""
    machine.measure_global(op, access, buffer)
    if not access.mask.any():
        return
    place = access.selected()[2]
    nothing = access.spread(buffer.missing(place))
    machine.find("uninitialised", op, nothing, "{who} combines into global memory that was never written")
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    scatter_into(machine.domain, op.kind.data, buffer.data, place, value, buffer.element)


def load_shared(
    machine: Machine, op: kernel.LoadOp | kernel.LdMatrixOp, buffer: SharedBuffer, access: Access, fill: Array
) -> Array:
    """Registers from shared memory."""
    machine.aligned(op, access, buffer.itemsize, buffer.offset)
    machine.measure_shared(op, access, buffer)
    at = buffer.rows(machine.rows)[:, :, None], access.place
    nothing = access.mask & ~buffer.written[at]
    machine.find("uninitialised", op, nothing, "{who} reads shared memory that was never written")
    return np.where(access.mask, buffer.data[at], fill)


def store_shared(
    machine: Machine,
    op: kernel.StoreOp | kernel.StMatrixOp | kernel.CopyAsyncOp,
    buffer: SharedBuffer,
    access: Access,
    value: Array,
) -> None:
    """Registers to shared memory; two threads that write one element at once have to write the same."""
    machine.aligned(op, access, buffer.itemsize, buffer.offset)
    machine.measure_shared(op, access, buffer)
    block, thread, place = access.selected()
    at = machine.rows[block, thread], place
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    buffer.data[at], buffer.written[at] = value, True
    wrong = access.spread(~machine.domain.same(buffer.data[at], value))
    machine.find("conflict", op, wrong, "{who} writes an element that another writes differently")
