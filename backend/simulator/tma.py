"""TMA copies of a simulated block: where they lie, what they touch, and when they are there."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...dialects import kernel
from ...dialects.kernel.tma import TensorMapType
from ..interpreter.domains import Array
from .async_units import AsyncUnits, Scope, TmaCopy
from .buffers import SharedBuffer


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


def start_copies(m: AsyncUnits, op: kernel.TmaLoadOp | kernel.TmaStoreOp, values: Scope) -> Iterator[TmaCopy]:
    """A TMA copy for every active thread; what is misplaced is reported and left out."""
    t, memory, shared = op.map_type, values[op.map], values[op.shared]
    table, position = m.counts.loaded if isinstance(op, kernel.TmaLoadOp) else m.counts.stored, m.position_of(memory)
    for thread in np.flatnonzero(m.active[0]):
        *at, place = (int(m.everywhere(values[v])[0, thread]) for v in (*op.coordinates, op.place))
        warp = int(thread) // 32
        if (shared.offset + place * shared.itemsize) % t.alignment:
            m.complain("misaligned", op, f"a TMA copy at element {place} of shared memory", warp)
        places = tile_in_shared(t, shared, place)
        if ((places < 0) | (places >= shared.data.shape[1])).any():
            m.complain("out-of-bounds", op, f"a TMA copy from element {place} on leaves its buffer", warp)
            continue
        elements, inside = tile_in_global(t, memory.shape, at)
        table[position] = table.get(position, 0) + int(np.count_nonzero(inside)) * memory.itemsize
        yield TmaCopy(op, shared, memory, places, elements, inside, int(thread))


def start_loads(m: AsyncUnits, op: kernel.TmaLoadOp, values: Scope) -> None:
    """Start copies on their way into shared memory."""
    for copy in start_copies(m, op, values):
        warp = copy.thread // 32
        index = int(m.everywhere(values[op.index])[0, copy.thread])
        if copy.memory.missing(copy.elements[copy.inside]).any():
            m.complain("uninitialised", op, "a TMA copy of global memory that was never written", warp)
        for rank in op.ranks or (m.rank_of(warp),):
            copy.targets[rank] = m.barrier(op, values[op.barriers], index, warp, rank)
            copy.shared.data[rank, copy.places] = m.domain.constant(float("nan"), copy.shared.element)
            copy.shared.written[rank, copy.places] = False
        m.loads.append(copy)


def start_stores(m: AsyncUnits, op: kernel.TmaStoreOp, values: Scope) -> None:
    """Start copies on their way out of shared memory."""
    for copy in start_copies(m, op, values):
        m.stores.setdefault(copy.thread, []).append(copy)


def commit_stores(m: AsyncUnits, op: kernel.BulkCommitOp, values: Scope) -> None:
    """Close the groups of the active threads."""
    for thread in np.flatnonzero(m.active[0]):
        m.store_groups.setdefault(int(thread), []).append(m.stores.pop(int(thread), []))


def wait_for_stores(m: AsyncUnits, op: kernel.BulkWaitOp, values: Scope) -> None:
    """The active threads wait for all their groups but the newest: these are in global memory then."""
    for thread in np.flatnonzero(m.active[0]):
        groups = m.store_groups.get(int(thread), [])
        while len(groups) > op.pending.data:
            for copy in groups.pop(0):
                rank, elements = m.rank_of(copy.thread // 32), copy.elements[copy.inside]
                found = copy.shared.data[rank, copy.places[copy.inside]]
                _, wrong = copy.memory.store(m.domain, elements, m.grid_threads[0, copy.thread], found)
                if wrong.any():
                    m.complain("conflict", copy.op, "writes what another thread writes differently", copy.thread // 32)
