"""TMA copies of a simulated block: where they lie, what they touch, and when they are there."""

from __future__ import annotations

import math

import numpy as np

from ...dialects import kernel
from ...dialects.kernel.tma import TensorMapType
from ..interpreter.domains import Array
from .async_units import AsyncUnits, TmaCopy
from .machine import ranked
from .shadow_memory import GlobalBuffer, SharedBuffer


def swizzled(address: Array, swizzle: int) -> Array:
    """Byte addresses in shared memory with pieces of 16 bytes exchanged: see dialects/kernel/tma.py."""
    mask = swizzle // 16 - 1 if swizzle else 0
    return address ^ (((address >> 7) & mask) << 4)


def tile_in_shared(t: TensorMapType, shared: SharedBuffer, place: int) -> Array:
    """The elements of the shared buffer in which a TMA copy at element `place` lies, in the order of the TMA copy."""
    at = (place + np.arange(math.prod(t.shape))) * shared.itemsize + shared.offset
    return (swizzled(at, t.swizzle.data) - shared.offset) // shared.itemsize


def tile_in_global(t: TensorMapType, shape: tuple[int, ...], first: list[int]) -> tuple[Array, Array]:
    """(element of the buffer, whether there is one) of every element of a TMA copy whose first is at `first`."""
    elements, inside = np.zeros((), np.int64), np.ones((), np.bool_)
    for extent, count, begin in zip(shape, t.shape, first, strict=True):
        c = begin + np.arange(count)
        elements = elements[..., None] * extent + c
        inside = inside[..., None] & (c >= 0) & (c < extent)
    return elements.reshape(-1), inside.reshape(-1)


def start_copies(
    state: AsyncUnits,
    op: kernel.TmaLoadOp | kernel.TmaStoreOp,
    shared: SharedBuffer,
    memory: GlobalBuffer,
    values: dict[object, Array],
) -> list[TmaCopy]:
    """A TMA copy for every active thread; what is misplaced is reported and left out."""
    machine, t = state.machine, op.map_type
    copies: list[TmaCopy] = []
    for thread in np.flatnonzero(machine.active[0]):
        at = [int(np.broadcast_to(ranked(values[v], 2), machine.active.shape)[0, thread]) for v in op.coordinates]
        place = int(np.broadcast_to(ranked(values[op.place], 2), machine.active.shape)[0, thread])
        warp = int(thread) // 32
        if (shared.offset + place * shared.itemsize) % t.alignment:
            state.complain("misaligned", op, f"a TMA copy at element {place} of shared memory", warp)
        places = tile_in_shared(t, shared, place)
        if ((places < 0) | (places >= shared.data.shape[1])).any():
            state.complain("out-of-bounds", op, f"a TMA copy from element {place} on leaves its buffer", warp)
            continue
        elements, inside = tile_in_global(t, memory.shape, at)
        copies.append(TmaCopy(op, shared, memory, places, elements, inside, int(thread)))
    return copies


def start_loads(state: AsyncUnits, op: kernel.TmaLoadOp, values: dict[object, Array], memory: GlobalBuffer) -> None:
    """Start copies on their way into shared memory."""
    machine = state.machine
    shared: SharedBuffer = values[op.shared]  # pyright: ignore[reportAssignmentType]
    barriers: SharedBuffer = values[op.barriers]  # pyright: ignore[reportAssignmentType]
    for copy in start_copies(state, op, shared, memory, values):
        warp = copy.thread // 32
        index = int(np.broadcast_to(ranked(values[op.index], 2), machine.active.shape)[0, copy.thread])
        _check_source(state, op, copy)
        for rank in op.ranks or (state.cluster.rank_of(warp),):
            barrier = copy.targets[rank] = state.barrier(op, barriers, index, warp, rank)
            if barrier is not None and not barrier.fenced:
                state.complain(
                    "fence", op, f"signals mbarrier {index}, which was set up without kernel.fence_mbar_init", warp
                )
            copy.shared.data[rank, copy.places] = machine.domain.constant(float("nan"), shared.element)
        state.loads.append(copy)
        position = machine.buffers.get(id(memory), -1)
        moved = int(np.count_nonzero(copy.inside)) * memory.itemsize
        machine.counts.loaded[position] = machine.counts.loaded.get(position, 0) + moved


def _check_source(state: AsyncUnits, op: kernel.TmaLoadOp, copy: TmaCopy) -> None:
    elements = copy.elements[copy.inside]
    if copy.memory.written is not None and not copy.memory.written[elements].all():
        state.complain("uninitialised", op, "a TMA copy of global memory that was never written", copy.thread // 32)
    if copy.memory.writer is not None and (copy.memory.writer[elements] >= 0).any():
        state.complain("race", op, "a TMA copy of what is written in the same launch", copy.thread // 32)


def tma_store(state: AsyncUnits, op: kernel.TmaStoreOp, values: dict[object, Array], memory: GlobalBuffer) -> None:
    """Start copies on their way out of shared memory."""
    shared: SharedBuffer = values[op.shared]  # pyright: ignore[reportAssignmentType]
    for copy in start_copies(state, op, shared, memory, values):
        state.stores.setdefault(copy.thread, []).append(copy)
        position = state.machine.buffers.get(id(memory), -1)
        moved = int(np.count_nonzero(copy.inside)) * memory.itemsize
        state.machine.counts.stored[position] = state.machine.counts.stored.get(position, 0) + moved


def commit_stores(state: AsyncUnits) -> None:
    """Close the groups of the active threads."""
    for thread in np.flatnonzero(state.machine.active[0]):
        state.store_groups.setdefault(int(thread), []).append(state.stores.pop(int(thread), []))


def wait_for_stores(state: AsyncUnits, op: kernel.BulkWaitOp) -> None:
    """The active threads wait for all their groups but the newest."""
    for thread in np.flatnonzero(state.machine.active[0]):
        groups = state.store_groups.get(int(thread), [])
        while len(groups) > op.pending.data:
            for copy in groups.pop(0):
                _written(state, copy)


def _written(state: AsyncUnits, copy: TmaCopy) -> None:
    """The elements of a stored copy are in global memory."""
    machine, memory = state.machine, copy.memory
    rank = state.cluster.rank_of(copy.thread // 32)
    elements, values = copy.elements[copy.inside], copy.shared.data[rank, copy.places[copy.inside]]
    if memory.writer is None:
        memory.writer = np.full(memory.data.size, -1, np.int64)
    number = int(machine.grid_threads[0, copy.thread])
    other = (memory.writer[elements] >= 0) & (memory.writer[elements] != number)
    if (other & ~machine.domain.same(memory.data[elements], values)).any():
        state.complain("conflict", copy.op, "writes what another thread writes differently", copy.thread // 32)
    memory.data[elements] = values
    memory.writer[elements] = number
    if memory.written is not None:
        memory.written[elements] = True
