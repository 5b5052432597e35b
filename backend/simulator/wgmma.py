"""Products of warpgroups in a simulated block."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from ...dialects import kernel
from ...dialects.kernel.mma import word_elements
from ...dialects.kernel.wgmma import ROWS, AsyncAccumulatorsType
from ...dialects.payload import element_type, shape_of
from ..interpreter.domains import Array, ranked
from .machine import Machine, Scope
from .tma import swizzled

_WARPGROUP = np.arange(128)
_ROW = _WARPGROUP[:, None] // 32 * 16 + _WARPGROUP[:, None] % 32 // 4
"""[thread, 1] -> the first row of which a thread holds elements."""


def multiply(m: Machine, op: kernel.WgmmaOp, values: Scope) -> Array:
    """The accumulators after the products of the active warpgroups."""
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    m.together(op, "multiplies", 128)
    registers, wide = op.acc.type.registers, element_type(op.acc.type.registers)
    (size,) = shape_of(registers)
    result = np.array(np.broadcast_to(ranked(values[op.acc], 3), (1, m.threads, size)))
    accumulate = op.scale_d_zero is None if op.use_acc is None else bool(m.uniform(values[op.use_acc]))
    r = np.arange(size)[None, :]
    rows, columns = _ROW + 8 * (r >> 1 & 1), r // 4 * 8 + 2 * (_WARPGROUP[:, None] % 4) + (r & 1)
    for first in sorted({thread // 128 * 128 for thread in m.running()}):
        left, right = (
            m.domain.factor(x, op.element, wide) for x in (_lhs(m, op, values, first), _rhs(m, op, values, first))
        )
        found = m.domain.matmul(left[None], right.T[None])[0][rows, columns]
        mine = slice(first, first + 128)
        result[0, mine] = m.domain.binary("arith.addf", result[0, mine], found, wide) if accumulate else found
        m.counts.flops += 2 * ROWS * op.columns * op.depth
    return result


def _rhs(m: Machine, op: kernel.WgmmaOp, values: Scope, first: int) -> Array:
    """B as [columns, k]."""
    return _in_shared(m, op, values, first, op.rhs, op.rhs_offset, op.columns, op.rhs_transposed is not None)


def _lhs(m: Machine, op: kernel.WgmmaOp, values: Scope, first: int) -> Array:
    """A as [64, k], from shared memory or the registers of the warpgroup's threads."""
    if op.lhs_offset is not None:
        return _in_shared(m, op, values, first, op.lhs, op.lhs_offset, ROWS, op.lhs_transposed is not None)
    held = np.broadcast_to(ranked(values[op.lhs], 3), (1, m.threads, op.depth // 2))
    e, word = np.arange(op.depth // 2)[None, :], word_elements(op.element)
    inside, part = e % word, e // word  # of a register of four bytes: row, half of a slice, slice
    left = np.zeros((ROWS, op.depth), held.dtype)
    columns = 8 * word * (part >> 2) + word * (_WARPGROUP[:, None] % 4) + inside + 4 * word * (part >> 1 & 1)
    left[_ROW + 8 * (part & 1), columns] = held[0, first : first + 128]
    return left


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
    """[line, k] of the `count` rows of A or columns of B of the warpgroup from thread `first` on, which lie across k
    where they are `turned`."""
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
