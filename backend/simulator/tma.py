"""TMA copies of a simulated block: where they lie, and what they touch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...dialects import kernel
from ...dialects.kernel.tma import TensorMapType
from ..interpreter.domains import Array
from .buffers import SharedBuffer
from .machine import Machine, Scope


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


def _copies(
    m: Machine, op: kernel.TmaLoadOp | kernel.TmaStoreOp, values: Scope
) -> Iterator[tuple[int, Array, Array, Array]]:
    """For every active thread: its number, the elements of the shared buffer, those of the buffer in global memory,
    and which of these there are. What leaves shared memory is reported and left out."""
    memory, shared = values[op.map], values[op.shared]
    table = m.counts.loaded if isinstance(op, kernel.TmaLoadOp) else m.counts.stored
    for thread in m.running():
        at = [int(m.everywhere(values[v])[0, thread]) for v in op.coordinates]
        places = tile_in_shared(op.map_type, shared, m.element(shared, values[op.place], thread))
        if ((places < 0) | (places >= shared.data.shape[1])).any():
            m.complain("out-of-bounds", op, ": a TMA copy leaves its buffer", thread)
            continue
        elements, inside = tile_in_global(op.map_type, memory.shape, at)
        table[memory.position] = table.get(memory.position, 0) + int(np.count_nonzero(inside)) * memory.itemsize
        yield thread, places, elements, inside


def load(m: Machine, op: kernel.TmaLoadOp, values: Scope) -> None:
    """Copies into shared memory, of this block or those that they are multicast to; their bytes count at mbarriers."""
    memory, shared = values[op.map], values[op.shared]
    for thread, places, elements, inside in _copies(m, op, values):
        if memory.missing(elements[inside]).any():
            m.complain("uninitialised", op, ": a TMA copy of global memory that was never written", thread)
        zero = m.domain.constant(0, shared.element)
        value = np.where(inside, memory.data[np.where(inside, elements, 0)], zero)
        for rank in op.ranks or (m.rows[0, thread],):
            shared.data[rank, places], shared.written[rank, places] = value, True
    for rank in op.ranks or (None,):
        ranks = None if rank is None else np.asarray(rank)
        for barrier in m.barriers(op, values[op.barriers], values[op.index], ranks):
            barrier.arrive(-math.prod(op.map_type.shape) * shared.itemsize, 0)


def store(m: Machine, op: kernel.TmaStoreOp, values: Scope) -> None:
    """Copies out of shared memory."""
    memory, shared = values[op.map], values[op.shared]
    for thread, places, elements, inside in _copies(m, op, values):
        found = shared.data[m.rows[0, thread], places[inside]]
        _, wrong = memory.store(m.domain, elements[inside], m.grid_threads[0, thread], found)
        if wrong.any():
            m.complain("conflict", op, " writes what another thread writes differently", thread)
