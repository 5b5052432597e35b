"""Tensor cores of a simulated kernel: matrices that a warp reads together, and their products."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from ...dialects import kernel
from ...dialects.kernel.mma import ROWS, word_elements
from ...dialects.layouts.linear import LANES, Linear
from ...dialects.layouts.mma import fragments
from ...dialects.payload import element_bytes, element_type, shape_of
from ..interpreter.domains import Array, ranked
from .machine import Access, Machine, load, store_shared
from .memory import SharedBuffer

_LANE = np.arange(LANES)


def load_matrices(machine: Machine, op: kernel.LdMatrixOp, buffer: SharedBuffer, origin: Array) -> Array:
    """The registers of every lane, from the rows that the lanes of its warp name."""
    count, active = op.count.data, machine.active
    access = _rows(machine, op, buffer, origin)
    nothing = machine.domain.constant(0, element_type(op.result.type))
    rows = load(machine, op, buffer, access, nothing)
    machine.active = active
    steps = 1 << len(op.steps)
    rows = rows.reshape(len(active), -1, 4, ROWS, steps, op.row)[
        :, :, :count
    ]  # block, warp, matrix, row, step, element
    row, element = _held(op)
    found = np.moveaxis(rows, 4, 2)[:, :, :, :, row, element]  # block, warp, step, matrix, lane, e
    found = found.transpose(0, 1, 4, 2, 3, 5)
    return found.reshape(*active.shape, -1)


def store_matrices(machine: Machine, op: kernel.StMatrixOp, buffer: SharedBuffer, origin: Array, value: Array) -> None:
    """The rows that the lanes of a warp name, from the registers of all its lanes."""
    count, active, steps = op.count.data, machine.active, 1 << len(op.steps)
    access = _rows(machine, op, buffer, origin)
    each = word_elements(op.value.type)
    held = np.broadcast_to(ranked(value, 3), (*active.shape, steps * count * each))
    held = held.reshape(len(active), -1, 32, steps, count, each).transpose(0, 1, 3, 4, 2, 5)
    rows = np.zeros((*held.shape[:3], 4, ROWS, op.row), held.dtype)  # block, warp, step, matrix, row, element
    row, element = _held(op)
    rows[:, :, :, :count, row, element] = held
    moved = rows.transpose(0, 1, 3, 4, 2, 5).reshape(*active.shape, steps * op.row)
    store_shared(machine, op, buffer, access, moved)
    machine.active = active


def _rows(machine: Machine, op: kernel.LdMatrixOp | kernel.StMatrixOp, buffer: SharedBuffer, origin: Array) -> Access:
    """Where the rows lie; from here on only lanes that name one are active."""
    active = machine.active
    machine.together(op, "moves matrices")
    machine.active = active & (np.arange(machine.threads) % 32 < ROWS * op.count.data)
    return machine.locate(op, buffer, (origin,))


def _held(op: kernel.LdMatrixOp | kernel.StMatrixOp) -> tuple[Array, Array]:
    """[lane, e] -> row and element of a matrix."""
    each = op.row // 4
    pair, group, e = each * (_LANE % 4)[:, None], (_LANE // 4)[:, None], np.arange(each)
    return (pair + e, group) if op.trans is not None else (group, pair + e)


def multiply(machine: Machine, op: kernel.MmaOp, lhs: Array, rhs: Array, acc: Array) -> Array:
    """The accumulators after the products of every warp."""
    machine.together(op, "multiplies")
    atom = op.atom
    one = fragments(atom.m, atom.n, atom.k, 8 * element_bytes(atom.element))
    rows, cols = op.rows.get_values(), op.cols.get_values()
    halves, down = [1, *(1 << bit for bit in rows[: atom.row_bits])], [1 << bit for bit in rows[atom.row_bits :]]
    left = matrices(_by_warp(machine, lhs, op.lhs), one.lhs)  # block, warp, i, m, k
    right = matrices(_by_warp(machine, rhs, op.rhs), one.rhs)  # block, warp, j, k, n
    narrow = element_type(op.lhs.type)
    left, right = (machine.domain.factor(x, narrow, atom.accumulator) for x in (left, right))
    left = left.reshape(-1, left.shape[2] * atom.m, atom.k)
    right = np.moveaxis(right, 2, 3).reshape(len(left), atom.k, -1)
    product = machine.domain.matmul(left, right).reshape(len(left), -1, atom.m, 1 << len(cols), atom.n)

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
    """[lane, register] -> row and column of one fragment."""
    held = [[layout.apply(r, lane, 0) for r in range(layout.registers)] for lane in range(LANES)]
    return tuple(np.moveaxis(np.array(held), 2, 0))


def matrices(registers: Array, layout: Linear) -> Array:
    """[block, warp, number, row, column] from the fragments that follow each other in the registers of lanes."""
    count = registers.shape[-1] // layout.registers
    found = np.zeros((*registers.shape[:2], count, *layout.shape), registers.dtype)
    row, column = _coordinates(layout)
    held = registers.reshape(*registers.shape[:3], count, layout.registers)
    found[:, :, :, row, column] = held.swapaxes(2, 3)
    return found


def _by_warp(machine: Machine, x: Array, value: SSAValue) -> Array:
    """Registers as [blocks, warps, lanes, registers]."""
    assert isinstance(value.type, VectorType)
    n = shape_of(value.type)[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    x = np.broadcast_to(ranked(x, 3), (*machine.active.shape, n))
    return x.reshape(len(machine.active), -1, LANES, n)
