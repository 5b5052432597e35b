"""Boxes of a simulated block: where they lie, what they touch, and when they are there."""

from __future__ import annotations

import math

import numpy as np

from ...dialects import kernel
from ...dialects.kernel_tma import TensorMapType
from ..interpreter.domains import Array
from .asynchronous import Asynchronous, Box
from .clusters import Arrival
from .machine import ranked
from .memory import GlobalBuffer, SharedBuffer


def swizzled(address: Array, swizzle: int) -> Array:
    """Byte addresses in shared memory with pieces of 16 bytes exchanged: see dialects/kernel_tma.py."""
    mask = swizzle // 16 - 1 if swizzle else 0
    return address ^ (((address >> 7) & mask) << 4)


def box_places(t: TensorMapType, shared: SharedBuffer, place: int) -> Array:
    """The elements of the shared buffer in which a box at element `place` lies, in the order of the box."""
    at = (place + np.arange(math.prod(t.shape))) * shared.itemsize + shared.offset
    return (swizzled(at, t.swizzle.data) - shared.offset) // shared.itemsize


def box_elements(t: TensorMapType, shape: tuple[int, ...], first: list[int]) -> tuple[Array, Array]:
    """(element of the buffer, whether there is one) of every element of a box whose first is at `first`."""
    elements, inside = np.zeros((), np.int64), np.ones((), np.bool_)
    for extent, count, begin in zip(shape, t.shape, first, strict=True):
        c = begin + np.arange(count)
        elements = elements[..., None] * extent + c
        inside = inside[..., None] & (c >= 0) & (c < extent)
    return elements.reshape(-1), inside.reshape(-1)


def start_box(
    state: Asynchronous,
    op: kernel.TmaLoadOp | kernel.TmaStoreOp,
    shared: SharedBuffer,
    memory: GlobalBuffer,
    values: dict[object, Array],
) -> list[Box]:
    """A box for every active thread, without an agent's work yet; what is misplaced is reported and left out."""
    machine, t = state.machine, op.map_type
    boxes: list[Box] = []
    for thread in np.flatnonzero(machine.active[0]):
        at = [int(np.broadcast_to(ranked(values[v], 2), machine.active.shape)[0, thread]) for v in op.coordinates]
        place = int(np.broadcast_to(ranked(values[op.place], 2), machine.active.shape)[0, thread])
        warp = int(thread) // 32
        if (shared.offset + place * shared.itemsize) % t.alignment:
            state.complain("misaligned", op, f"a box at element {place} of shared memory", warp)
        places = box_places(t, shared, place)
        if ((places < 0) | (places >= shared.data.shape[1])).any():
            state.complain("out-of-bounds", op, f"a box from element {place} on leaves its buffer", warp)
            continue
        elements, inside = box_elements(t, memory.shape, at)
        kind, key, index = ("stores", int(thread), 0)
        if isinstance(op, kernel.TmaLoadOp):
            barriers = values[op.barriers]
            index = int(np.broadcast_to(ranked(values[op.index], 2), machine.active.shape)[0, thread])
            kind, key = "loads", barriers.number  # pyright: ignore[reportAttributeAccessIssue]
            # Boxes for the same blocks are one agent: that all are there is known in each where its barrier says so.
            index = (index * state.cluster.size + state.cluster.rank_of(warp)) << 8 | sum(1 << r for r in op.ranks)
        agent = state.order.agent(kind, key, index)
        boxes.append(Box(op, shared, memory, places, elements, inside, agent, agent.start(), int(thread)))
    return boxes


def meet(state: Asynchronous, box: Box, write: bool, rank: int) -> None:
    """Report what a box meets in the shared memory of block `rank`."""
    cells = (box.shared.start + box.places[:, None] * box.shared.cells + np.arange(box.shared.cells)).reshape(-1)
    cells += rank * box.shared.pitch
    touch(state, box.op, cells, box.thread // 32, box, write)


def touch(state: Asynchronous, op: object, cells: Array, warp: int, box: Box, write: bool) -> None:
    """As `meet`, for cells."""
    if not state.machine.shadowed:
        return
    found = state.shadow.use(cells, warp, box.agent, box.work, box.shared.number, write)
    report_meeting(state, box.op, found, warp, "a box")


def report_meeting(state: Asynchronous, op: object, found: object, warp: int, what: str) -> None:
    """Findings of a meeting with what came before."""
    texts = (
        ("race", "unfinished", f"{what} meets what something asynchronous, not yet waited for, still uses"),
        ("race", "unordered", f"{what} overwrites what another warp may still read"),
        ("fence", "unfenced", f"{what} meets stores of threads that have not executed kernel.fence_async since"),
        ("uninitialised", "uninitialised", f"{what} reads shared memory that was never written"),
    )
    for kind, name, text in texts:
        if getattr(found, name).any():
            state.complain(kind, op, text, warp)  # pyright: ignore[reportArgumentType]


def load_box(state: Asynchronous, op: kernel.TmaLoadOp, values: dict[object, Array], memory: GlobalBuffer) -> None:
    """Start boxes on their way into shared memory."""
    machine = state.machine
    shared: SharedBuffer = values[op.shared]  # pyright: ignore[reportAssignmentType]
    barriers: SharedBuffer = values[op.barriers]  # pyright: ignore[reportAssignmentType]
    for box in start_box(state, op, shared, memory, values):
        warp = box.thread // 32
        index = int(np.broadcast_to(ranked(values[op.index], 2), machine.active.shape)[0, box.thread])
        _check_source(state, op, box)
        for rank in op.ranks or (state.cluster.rank_of(warp),):
            barrier = box.targets[rank] = state.barrier(op, barriers, index, warp, rank)
            if barrier is not None and not barrier.fenced:
                state.complain(
                    "fence", op, f"signals mbarrier {index}, which was set up without kernel.fence_mbar_init", warp
                )
            meet(state, box, True, rank)
            state.cluster.boxes.setdefault(rank, []).append(Arrival(op, box.agent, box.work))
            box.shared.data[rank, box.places] = machine.domain.constant(float("nan"), shared.element)
        state.loads.append(box)
        position = machine.buffers.get(id(memory), -1)
        moved = int(np.count_nonzero(box.inside)) * memory.itemsize
        machine.counts.loaded[position] = machine.counts.loaded.get(position, 0) + moved


def _check_source(state: Asynchronous, op: kernel.TmaLoadOp, box: Box) -> None:
    elements = box.elements[box.inside]
    if box.memory.written is not None and not box.memory.written[elements].all():
        state.complain("uninitialised", op, "a box of global memory that was never written", box.thread // 32)
    if box.memory.writer is not None and (box.memory.writer[elements] >= 0).any():
        state.complain("race", op, "a box of what is written in the same launch", box.thread // 32)


def store_box(state: Asynchronous, op: kernel.TmaStoreOp, values: dict[object, Array], memory: GlobalBuffer) -> None:
    """Start boxes on their way out of shared memory."""
    shared: SharedBuffer = values[op.shared]  # pyright: ignore[reportAssignmentType]
    for box in start_box(state, op, shared, memory, values):
        meet(state, box, False, state.cluster.rank_of(box.thread // 32))
        state.stores.setdefault(box.thread, []).append(box)
        position = state.machine.buffers.get(id(memory), -1)
        moved = int(np.count_nonzero(box.inside)) * memory.itemsize
        state.machine.counts.stored[position] = state.machine.counts.stored.get(position, 0) + moved


def commit_stores(state: Asynchronous) -> None:
    """Close the groups of the active threads."""
    for thread in np.flatnonzero(state.machine.active[0]):
        state.store_groups.setdefault(int(thread), []).append(state.stores.pop(int(thread), []))


def wait_for_stores(state: Asynchronous, op: kernel.BulkWaitOp) -> None:
    """The active threads wait for all their groups but the newest."""
    for thread in np.flatnonzero(state.machine.active[0]):
        groups = state.store_groups.get(int(thread), [])
        while len(groups) > op.pending.data:
            for box in groups.pop(0):
                _written(state, box)
                box.agent.finish(box.work)
                agents = state.order.known[int(thread) // 32].agents
                agents[box.agent.number] = max(int(agents[box.agent.number]), box.agent.ended)


def _written(state: Asynchronous, box: Box) -> None:
    """The elements of a stored box are in global memory."""
    machine, memory = state.machine, box.memory
    rank = state.cluster.rank_of(box.thread // 32)
    elements, values = box.elements[box.inside], box.shared.data[rank, box.places[box.inside]]
    if memory.writer is None:
        memory.writer = np.full(memory.data.size, -1, np.int64)
    number = int(machine.grid_threads[0, box.thread])
    other = (memory.writer[elements] >= 0) & (memory.writer[elements] != number)
    if (other & ~machine.domain.same(memory.data[elements], values)).any():
        state.complain("conflict", box.op, "writes what another thread writes differently", box.thread // 32)
    memory.data[elements] = values
    memory.writer[elements] = number
    if memory.written is not None:
        memory.written[elements] = True
