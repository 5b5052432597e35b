"""Tensor cores of the simulator: matrices of a warp, TMA copies, `mma` and `wgmma`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from ...dialects import kernel
from ...dialects.kernel.copies import TensorMapType
from ...dialects.kernel.mma import ROWS, word_elements
from ...dialects.kernel.wgmma import WARPGROUP_ROWS as GROUP_ROWS, AsyncAccumulatorsType, slice_elements
from ...dialects.layouts.linear import LANES, Linear
from ...dialects.layouts.mma import fragments
from ...dialects.payload import element_bytes, element_type, shape_of
from ..interpreter.domains import Array, ranked
from .machine import Access, Machine, Scope, load, store_shared
from .memory import SharedBuffer

_LANE = np.arange(LANES)


def load_matrices(machine: Machine, op: kernel.LdMatrixOp, buffer: SharedBuffer, origin: Array) -> Array:
    """Executes `ldmatrix`: returns the registers of every lane, from rows at the addresses of the lanes.

    Args:
        machine: the blocks.
        op: the op.
        buffer: shared memory.
        origin: element number of the row of each lane.
    """
    count, active = op.count.data, machine.active
    access = _rows(machine, op, buffer, origin)
    nothing = machine.domain.constant(0, element_type(op.result.type))
    rows = load(machine, op, buffer, access, nothing)
    machine.active = active
    steps = 1 << len(op.steps)
    # Axes: block, warp, matrix, row, step, element.
    rows = rows.reshape(len(active), -1, 4, ROWS, steps, op.row)[:, :, :count]
    row, element = _held(op)
    # Axes: block, warp, step, matrix, lane, element of the lane.
    lanes = np.moveaxis(rows, 4, 2)[:, :, :, :, row, element]
    lanes = lanes.transpose(0, 1, 4, 2, 3, 5)
    return lanes.reshape(*active.shape, -1)


def store_matrices(machine: Machine, op: kernel.StMatrixOp, buffer: SharedBuffer, origin: Array, value: Array) -> None:
    """Executes `stmatrix`: stores the registers of a warp to rows at the addresses of its lanes.

    Args:
        machine: the blocks.
        op: the op.
        buffer: shared memory.
        origin: element number of the row of each lane.
        value: the registers.
    """
    count, active, steps = op.count.data, machine.active, 1 << len(op.steps)
    access = _rows(machine, op, buffer, origin)
    elements = word_elements(op.value.type)
    held = np.broadcast_to(ranked(value, 3), (*active.shape, steps * count * elements))
    held = held.reshape(len(active), -1, 32, steps, count, elements).transpose(0, 1, 3, 4, 2, 5)
    # Axes: block, warp, step, matrix, row, element.
    rows = np.zeros((*held.shape[:3], 4, ROWS, op.row), held.dtype)
    row, element = _held(op)
    rows[:, :, :, :count, row, element] = held
    moved = rows.transpose(0, 1, 3, 4, 2, 5).reshape(*active.shape, steps * op.row)
    store_shared(machine, op, buffer, access, moved)
    machine.active = active


def _rows(machine: Machine, op: kernel.LdMatrixOp | kernel.StMatrixOp, buffer: SharedBuffer, origin: Array) -> Access:
    """Returns the accesses of matrix rows. Deactivates the lanes without a row address."""
    active = machine.active
    machine.together(op, "moves matrices")
    machine.active = active & (np.arange(machine.threads) % 32 < ROWS * op.count.data)
    return machine.locate(op, buffer, (origin,))


def _held(op: kernel.LdMatrixOp | kernel.StMatrixOp) -> tuple[Array, Array]:
    """Returns row and column of a matrix for [lane, element]."""
    elements = op.row // 4
    pair, group, e = elements * (_LANE % 4)[:, None], (_LANE // 4)[:, None], np.arange(elements)
    return (pair + e, group) if op.trans is not None else (group, pair + e)


def mma(machine: Machine, op: kernel.MmaOp, lhs: Array, rhs: Array, acc: Array) -> Array:
    """Executes `mma`: returns the accumulators of every warp.

    Args:
        machine: the blocks.
        op: the op.
        lhs, rhs, acc: registers of the operands and accumulators.
    """
    machine.together(op, "multiplies")
    atom = op.atom
    one = fragments(atom.m, atom.n, atom.k, 8 * element_bytes(atom.element))
    rows, cols = op.rows.get_values(), op.cols.get_values()
    halves, down = [1, *(1 << bit for bit in rows[: atom.row_bits])], [1 << bit for bit in rows[atom.row_bits :]]
    a = matrices(_by_warp(machine, lhs, op.lhs), one.lhs)  # axes: block, warp, instruction row, m, k
    b = matrices(_by_warp(machine, rhs, op.rhs), one.rhs)  # axes: block, warp, instruction column, k, n
    narrow = element_type(op.lhs.type)
    a, b = (machine.domain.dot_operand(x, narrow, atom.accumulator) for x in (a, b))
    a = a.reshape(-1, a.shape[2] * atom.m, atom.k)
    b = np.moveaxis(b, 2, 3).reshape(len(a), atom.k, -1)
    product = machine.domain.matmul(a, b).reshape(len(a), -1, atom.m, 1 << len(cols), atom.n)

    c = _by_warp(machine, acc, op.acc)
    r = np.arange(c.shape[-1])
    across = [1 << bit for bit in cols]
    i, j, e = (sum(((r & step) > 0) << bit for bit, step in enumerate(steps)) for steps in (down, across, halves))
    row, column = _coordinates(one.acc)
    part = product[:, i, row[:, e], j, column[:, e]]
    machine.count_flops(len(r) * 2 * atom.k)
    total = machine.domain.binary("arith.addf", c, part.reshape(c.shape), atom.accumulator)
    return total.reshape(len(machine.active), machine.threads, -1)


def _coordinates(layout: Linear) -> tuple[Array, Array]:
    """Returns row and column of a fragment for [lane, register]."""
    held = [[layout.apply(r, lane, 0) for r in range(layout.registers)] for lane in range(LANES)]
    return tuple(np.moveaxis(np.array(held), 2, 0))


def matrices(registers: Array, layout: Linear) -> Array:
    """Returns the matrices of consecutive fragments as [block, warp, number, row, column]."""
    count = registers.shape[-1] // layout.registers
    result = np.zeros((*registers.shape[:2], count, *layout.shape), registers.dtype)
    row, column = _coordinates(layout)
    held = registers.reshape(*registers.shape[:3], count, layout.registers)
    result[:, :, :, row, column] = held.swapaxes(2, 3)
    return result


def _by_warp(machine: Machine, x: Array, value: SSAValue) -> Array:
    assert isinstance(value.type, VectorType)
    n = shape_of(value.type)[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    x = np.broadcast_to(ranked(x, 3), (*machine.active.shape, n))
    return x.reshape(len(machine.active), -1, LANES, n)


def swizzled(address: Array, swizzle: int) -> Array:
    """Returns swizzled byte addresses in shared memory (`dialects/kernel/copies.py`)."""
    mask = swizzle // 16 - 1 if swizzle else 0
    return address ^ (((address >> 7) & mask) << 4)


def tile_in_shared(t: TensorMapType, shared: SharedBuffer, place: int) -> Array:
    """Returns the elements of a shared buffer that a TMA tile covers, in the order of the tile.

    Args:
        t: descriptor type.
        shared: the buffer.
        place: first element of the tile.
    """
    at = (place + np.arange(math.prod(t.shape))) * shared.itemsize + shared.offset
    return (swizzled(at, t.swizzle.data) - shared.offset) // shared.itemsize


def tile_in_global(t: TensorMapType, shape: tuple[int, ...], first: list[int]) -> tuple[Array, Array]:
    """Returns the element number in the tensor, and whether it is in bounds, for each element of a TMA tile.

    Args:
        t: descriptor type.
        shape: extents of the tensor.
        first: coordinates of the first element.
    """
    elements, inside = np.zeros((), np.int64), np.ones((), np.bool_)
    for extent, count, begin in zip(shape, t.shape, first, strict=True):
        c = begin + np.arange(count)
        elements = elements[..., None] * extent + c
        inside = inside[..., None] & (c >= 0) & (c < extent)
    return elements.reshape(-1), inside.reshape(-1)


def _copies(
    m: Machine, op: kernel.TmaLoadOp | kernel.TmaStoreOp, values: Scope
) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yields the TMA copies of active threads. Reports and skips copies that exceed the shared buffer.

    A copy is the thread, the elements in shared memory, the elements in global memory, and whether these are in bounds.
    """
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


def tma_load(m: Machine, op: kernel.TmaLoadOp, values: Scope) -> None:
    """Executes TMA loads to this block, or multicast to several blocks. Their bytes count at mbarriers.

    Args:
        m: the blocks.
        op: the op.
        values: values of the operands.
    """
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


def tma_store(m: Machine, op: kernel.TmaStoreOp, values: Scope) -> None:
    """Executes TMA stores.

    Args:
        m: the blocks.
        op: the op.
        values: values of the operands.
    """
    memory, shared = values[op.map], values[op.shared]
    for thread, places, elements, inside in _copies(m, op, values):
        tile = shared.data[m.rows[0, thread], places[inside]]
        _, wrong = memory.store(m.domain, elements[inside], m.grid_threads[0, thread], tile)
        if wrong.any():
            m.complain("conflict", op, " writes what another thread writes differently", thread)


_WARPGROUP = np.arange(128)
_ROW = _WARPGROUP[:, None] // 32 * 16 + _WARPGROUP[:, None] % 32 // 4
"""[thread, 1] -> first row of the accumulator of a thread."""


def wgmma(m: Machine, op: kernel.WgmmaOp, values: Scope) -> Array:
    """Executes `wgmma`: returns the accumulators of the active warpgroups.

    Args:
        m: the blocks.
        op: the op.
        values: values of the operands.
    """
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    m.together(op, "multiplies", 128)
    registers, wide = op.acc.type.registers, element_type(op.acc.type.registers)
    (size,) = shape_of(registers)
    result = np.array(np.broadcast_to(ranked(values[op.acc], 3), (1, m.threads, size)))
    accumulate = op.scale_d_zero is None if op.use_acc is None else bool(m.uniform(values[op.use_acc]))
    r = np.arange(size)[None, :]
    rows, columns = _ROW + 8 * (r >> 1 & 1), r // 4 * 8 + 2 * (_WARPGROUP[:, None] % 4) + (r & 1)
    for first in sorted({thread // 128 * 128 for thread in m.running()}):
        a, b = (
            m.domain.dot_operand(x, op.element, wide)
            for x in (
                _lhs(m, op, values, first),
                _in_shared(m, op, values, first, op.rhs, op.rhs_offset, op.columns, op.rhs_transposed is not None),
            )
        )
        product = m.domain.matmul(a[None], b.T[None])[0][rows, columns]
        mine = slice(first, first + 128)
        result[0, mine] = m.domain.binary("arith.addf", result[0, mine], product, wide) if accumulate else product
        m.counts.flops += 2 * GROUP_ROWS * op.columns * op.depth
    return result


def _lhs(m: Machine, op: kernel.WgmmaOp, values: Scope, first: int) -> Array:
    """Returns A as [64, k], from shared memory or the registers of the warpgroup."""
    if op.lhs_offset is not None:
        return _in_shared(m, op, values, first, op.lhs, op.lhs_offset, GROUP_ROWS, op.lhs_transposed is not None)
    held = np.broadcast_to(ranked(values[op.lhs], 3), (1, m.threads, op.depth // 2))[:, first : first + 128]
    layout = fragments(GROUP_ROWS // 4, 8, slice_elements(op.element), 8 * element_bytes(op.element)).lhs
    blocks = matrices(held.reshape(1, 4, LANES, -1), layout)[0]  # axes: warp, slice of k, row, k
    return blocks.swapaxes(1, 2).reshape(GROUP_ROWS, op.depth)


def _in_shared(
    m: Machine,
    op: kernel.WgmmaOp,
    values: Scope,
    first: int,
    memory: SSAValue,
    offset: SSAValue,
    count: int,
    turned: bool,
) -> Array:
    """Returns an operand of `wgmma` in shared memory as [row of A or column of B, k].

    Args:
        m: the blocks.
        op: the op.
        values: values of the operands.
        memory, offset: operands with the buffer and the offset.
        first: first thread of the warpgroup.
        count: number of rows or columns.
        turned: whether k is the slow dimension in memory.
    """
    buffer, at = values[memory], m.element(values[memory], values[offset], first)
    line, k = np.arange(count)[:, None], np.arange(op.depth)[None, :]
    place = at + line * op.row + k
    if turned:
        panel = 0 if op.leading_offset is None else op.leading_offset.data
        place = at + line // op.row * panel + k * op.row + line % op.row
    where = (swizzled(place * buffer.itemsize + buffer.offset, op.swizzle.data) - buffer.offset) // buffer.itemsize
    outside = (where < 0) | (where >= buffer.data.shape[1])
    if outside.any():
        m.complain("out-of-bounds", op, ": an operand leaves its buffer", first)
    return buffer.data[m.rows[0, first]][np.where(outside, 0, where)]
