"""Tensor cores of a simulated kernel: matrices that a warp reads together, and their products."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from ...dialects import kernel
from ...dialects.kernel.mma import ROWS, mma_atom, word_elements
from ...dialects.payload import element_type, shape_of
from ..interpreter.domains import Array, ranked
from .machine import Access, Machine, load, store_shared
from .memory import SharedBuffer

_LANE = np.arange(32)


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
    blocks, lanes = machine.active.shape[0], _LANE[:, None]
    warps = machine.threads // 32
    machine.together(op, "multiplies")
    pair, group = 2 * (lanes % 4), lanes // 4
    word, atom = word_elements(op.lhs.type), mma_atom(op.lhs.type)
    assert atom is not None
    inside, depth, k0 = word.bit_length() - 1, atom.k, word * (lanes % 4)  # bits of a register that number k

    a, r = _by_warp(machine, lhs, op.lhs)
    e, r = r & word - 1, r >> inside
    rows, k = group + (r & 1) * 8 + (r >> 2) * 16, k0 + e + (r >> 1 & 1) * depth // 2
    left = np.zeros((*a.shape[:2], a.shape[3] * 4 // word, depth), a.dtype)
    left[:, :, rows, k] = a

    b, r = _by_warp(machine, rhs, op.rhs)
    e, r = r & word - 1, r >> inside
    k, columns = k0 + e + (r & 1) * depth // 2, group + (r >> 1) * 8
    right = np.zeros((*b.shape[:2], depth, b.shape[3] * 4 // word), b.dtype)
    right[:, :, k, columns] = b

    wide, narrow = element_type(op.acc.type), element_type(op.lhs.type)
    left, right = (machine.domain.factor(x, narrow, wide).reshape(blocks * warps, *x.shape[2:]) for x in (left, right))
    product = machine.domain.matmul(left, right)

    c, r = _by_warp(machine, acc, op.acc)
    high, *blocks_down = op.rows.get_values()
    down = group + (r >> high & 1) * 8 + sum((r >> bit & 1) * (16 << i) for i, bit in enumerate(blocks_down))
    across = pair + (r & 1) + sum((r >> bit & 1) * (8 << i) for i, bit in enumerate(op.cols.get_values()))
    part = product[:, down, across].reshape(c.shape)
    machine.count_flops(len(r) * 2 * depth)
    total = machine.domain.binary("arith.addf", c, part, wide)
    return total.reshape(blocks, machine.threads, -1)


def _by_warp(machine: Machine, x: Array, value: SSAValue) -> tuple[Array, Array]:
    """Registers as [blocks, warps, lanes, registers], and the numbers of the registers."""
    assert isinstance(value.type, VectorType)
    n = shape_of(value.type)[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    x = np.broadcast_to(ranked(x, 3), (*machine.active.shape, n))
    return x.reshape(len(machine.active), -1, 32, n), np.arange(n)
