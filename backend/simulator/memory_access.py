"""Loads and stores of a simulated kernel, with everything that can be wrong about them."""

from __future__ import annotations

import numpy as np

from ...dialects import kernel
from ..interpreter.domains import Array
from ..interpreter.scatter import scatter_into
from .cluster import rows
from .machine import Access, Machine
from .report import Kind
from .shadow_memory import MANY, NOBODY, GlobalBuffer, SharedBuffer, cells_of


def load_global(
    machine: Machine, op: kernel.LoadOp | kernel.CopyAsyncOp, buffer: GlobalBuffer, access: Access, fill: Array
) -> Array:
    """Registers from global memory."""
    machine.aligned(op, access, buffer.itemsize)
    machine.measure_global(op, access, buffer)
    if buffer.data.size == 0:
        return np.broadcast_to(fill, access.mask.shape)
    if buffer.written is not None:
        nothing = access.mask & ~buffer.written[access.place]
        machine.find("uninitialised", op, nothing, "{who} reads global memory that was never written")
    if buffer.writer is not None:
        writer = buffer.writer[access.place]
        race = access.mask & (writer != NOBODY) & (writer != machine.grid_threads[:, :, None])
        machine.find("race", op, race, "{who} reads what another thread writes in the same launch")
    return np.where(access.mask, buffer.data[access.place], fill)


def store_global(machine: Machine, op: kernel.StoreOp, buffer: GlobalBuffer, access: Access, value: Array) -> None:
    """Registers to global memory; two threads that write one element have to write the same."""
    machine.aligned(op, access, buffer.itemsize)
    machine.measure_global(op, access, buffer)
    if not access.mask.any():
        return
    block, thread, place = access.selected()
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    number = machine.grid_threads[block, thread]
    writer = buffer.writers()
    combined = writer[place] == MANY
    machine.find("race", op, _spread(access, combined), "{who} writes what atomic operations combine into")
    other = (writer[place] != NOBODY) & (writer[place] != number) & ~combined
    wrong = other & ~machine.domain.same(buffer.data[place], value)
    buffer.data[place] = value
    writer[place] = number
    if buffer.written is not None:
        buffer.written[place] = True
    other |= writer[place] != number
    wrong |= ~machine.domain.same(buffer.data[place], value)
    machine.counts.duplicates += int(np.count_nonzero(other & ~wrong))
    machine.find("conflict", op, _spread(access, wrong), "{who} writes an element that another writes differently")


def combine_global(
    machine: Machine, op: kernel.AtomicRmwOp, buffer: GlobalBuffer, access: Access, value: Array
) -> None:
    """Registers combined into global memory, which holds something already and nobody stores to in the same launch."""
    machine.measure_global(op, access, buffer)
    if not access.mask.any():
        return
    place = access.selected()[2]
    if buffer.written is not None:
        nothing = _spread(access, ~buffer.written[place])
        machine.find("uninitialised", op, nothing, "{who} combines into global memory that was never written")
    writer = buffer.writers()
    stored = _spread(access, (writer[place] != NOBODY) & (writer[place] != MANY))
    machine.find("race", op, stored, "{who} combines into what a thread stores in the same launch")
    writer[place] = MANY
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    scatter_into(machine.domain, op.kind.data, buffer.data, place, value, buffer.element)


def _spread(access: Access, flags: Array) -> Array:
    """Flags of the accesses that happen, at their [block, thread, register]."""
    where = np.zeros(access.mask.shape, np.bool_)
    where[access.mask] = flags
    return where


def _elements(flags: Array, buffer: SharedBuffer) -> Array:
    """Where any cell of an element is flagged."""
    return np.asarray(flags.reshape(-1, buffer.cells).any(axis=1))


def load_shared(
    machine: Machine, op: kernel.LoadOp | kernel.LdMatrixOp, buffer: SharedBuffer, access: Access, fill: Array
) -> Array:
    """Registers from shared memory."""
    machine.aligned(op, access, buffer.itemsize, buffer.offset)
    machine.measure_shared(op, access, buffer)
    if machine.shadowed:
        _check_reads(machine, op, buffer, access)
    return np.where(access.mask, buffer.data[rows(buffer.ranks, machine.rows)[:, :, None], access.place], fill)


def _check_reads(machine: Machine, op: kernel.LoadOp | kernel.LdMatrixOp, buffer: SharedBuffer, access: Access) -> None:
    block, thread, place = access.selected()
    at, threads = cells_of(buffer, rows(buffer.ranks, machine.rows)[block, thread], thread, place)
    found = machine.shadow.read(at, threads, machine.epoch[at[0]], buffer.number)
    mistakes: tuple[tuple[Kind, Array, str], ...] = (
        ("uninitialised", found.uninitialised, "{who} reads shared memory that was never written"),
        ("overlap", found.foreign, "{who} reads shared memory that was last written through another buffer"),
        ("race", found.race & ~found.flying, "{who} reads what another thread writes, with no barrier in between"),
        ("in flight", found.flying, "{who} reads what an asynchronous copy may still be writing"),
    )
    for kind, flags, text in mistakes:
        if flags.any():
            machine.find(kind, op, _spread(access, _elements(flags, buffer)), text)


def store_shared(
    machine: Machine, op: kernel.StoreOp | kernel.StMatrixOp, buffer: SharedBuffer, access: Access, value: Array
) -> None:
    """Registers to shared memory."""
    machine.aligned(op, access, buffer.itemsize, buffer.offset)
    machine.measure_shared(op, access, buffer)
    block, thread, place = access.selected()
    block = machine.rows[block, thread]
    value = np.broadcast_to(value, access.mask.shape)[access.mask]
    if not machine.shadowed:
        buffer.data[block, place] = value
        return
    at, threads = cells_of(buffer, block, thread, place)
    owned = machine.shadow.owner[at].reshape(-1, buffer.cells) == buffer.number
    unchanged = owned.all(axis=1) & machine.domain.same(buffer.data[block, place], value)
    race = machine.shadow.write(at, threads, machine.epoch[at[0]], buffer.number, np.repeat(unchanged, buffer.cells))
    race |= machine.shadow.flying[at]
    buffer.data[block, place] = value
    differs = ~machine.domain.same(buffer.data[block, place], value)
    race = _elements(race, buffer)
    text = "{who} writes where another thread reads or writes, with no barrier in between"
    machine.find("race", op, _spread(access, race | differs), text)
