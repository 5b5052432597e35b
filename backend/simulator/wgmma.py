"""wgmma in a simulated block: started in order, computed when they are waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.mma import word_elements
from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.kernel.wgmma import ROWS, SLICE_BYTES, AsyncAccumulatorsType
from ...dialects.payload import element_type, shape_of
from ..interpreter.domains import Array, ranked
from .async_units import AsyncUnits, PendingWgmma, Scope
from .tma import swizzled

_LANES = np.arange(128)


def warpgroups(m: AsyncUnits, op: Operation) -> list[int]:
    """The active warpgroups; each has to be there as a whole."""
    active = m.active[0]
    found: list[int] = []
    for g in sorted({w // WARPGROUP for w in m.warps()}):
        threads = slice(128 * g, 128 * g + 128)
        if len(active[threads]) < 128 or not active[threads].all():
            m.complain("divergent", op, "not all threads of a warpgroup are there", WARPGROUP * g)
        else:
            found.append(g)
    return found


def start_wgmma(m: AsyncUnits, op: kernel.WgmmaOp, values: Scope) -> PendingWgmma:
    """Queue a wgmma; its operands are in use from here on."""
    operands = {v: values[v] for v in op.operands}
    accumulate = op.scale_d_zero is None if op.use_acc is None else bool(m.uniform(values[op.use_acc]))
    groups = {g: m.closed_wgmmas.get(g, 0) for g in warpgroups(m, op)}
    wgmma = PendingWgmma(op, operands, values[op.acc], accumulate, groups)
    m.wgmmas.append(wgmma)
    return wgmma


def _operand(m: AsyncUnits, wgmma: PendingWgmma, g: int, memory: SSAValue, offset: SSAValue, lhs: bool) -> Array:
    """[line, k] -> element of shared memory, for the rows of A or the columns of B of a warpgroup. An operand starts
    where its swizzle does; along k it may start at another slice of the first row."""
    op, buffer, at = wgmma.op, wgmma.values[memory], int(m.everywhere(wgmma.values[offset])[0, 128 * g])
    width, row, start = op.swizzle.data, op.row, buffer.offset + at * buffer.itemsize
    count, transposed = (ROWS, op.lhs_transposed) if lhs else (op.columns, op.rhs_transposed)
    inside = start % (8 * width)
    if inside and (transposed is not None or inside >= width or inside % SLICE_BYTES):
        text = f"an operand starts {inside} bytes behind a multiple of {8 * width}"
        m.complain("misaligned", op, text, WARPGROUP * g)
    line, k = np.arange(count)[:, None], np.arange(op.depth)[None, :]
    place = at + line * row + k
    if transposed is not None:
        panel = 0 if op.leading_offset is None else op.leading_offset.data
        place = at + line // row * panel + k * row + line % row
    where = (swizzled(place * buffer.itemsize + buffer.offset, width) - buffer.offset) // buffer.itemsize
    outside = (where < 0) | (where >= buffer.data.shape[1])
    if outside.any():
        m.complain("out-of-bounds", op, f"an operand from element {at} on leaves its buffer", WARPGROUP * g)
    return buffer.data[m.rank_of(WARPGROUP * g)][np.where(outside, 0, where)]


def wait_for_wgmmas(m: AsyncUnits, op: kernel.WgmmaWaitOp, acc: PendingWgmma | Array) -> Any:
    """The accumulators once all groups but the newest are done: registers, or still accumulators. Those of a wgmma that
    nobody waits for, as it was not committed, are NaN."""
    groups = warpgroups(m, op)
    for wgmma in [p for p in m.wgmmas if any(g in p.groups for g in groups)]:
        if all(n < m.closed_wgmmas.get(g, 0) - op.pending.data for g, n in wgmma.groups.items()):
            _compute(m, wgmma)
            m.wgmmas.remove(wgmma)
    if isinstance(op.result.type, AsyncAccumulatorsType) or not isinstance(acc, PendingWgmma):
        return acc
    size, nan = shape_of(op.result.type)[0], m.domain.constant(float("nan"), element_type(op.result.type))
    return np.full((*m.active.shape, size), nan) if acc.result is None else acc.result


def _compute(m: AsyncUnits, wgmma: PendingWgmma) -> None:
    """Every active warpgroup's wgmma, from what lies in shared memory now."""
    op = wgmma.op
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    registers, wide = op.acc.type.registers, element_type(op.acc.type.registers)
    (size,) = shape_of(registers)
    start = wgmma.start.result if isinstance(wgmma.start, PendingWgmma) else wgmma.start
    if start is None:
        start = np.asarray(m.domain.constant(float("nan"), wide))
    start = np.broadcast_to(ranked(start, 3), (1, m.threads, size))
    result = np.array(start)
    r, t = np.arange(size)[None, :], _LANES[:, None]
    rows = t // 32 * 16 + t % 32 // 4 + 8 * (r >> 1 & 1)
    columns = r // 4 * 8 + 2 * (t % 4) + (r & 1)
    for g in wgmma.groups:
        left, right = _operands(m, wgmma, g)
        found = m.domain.matmul(left[None], right.T[None])[0][rows, columns]
        mine = slice(128 * g, 128 * g + 128)
        if wgmma.accumulate:
            found = m.domain.binary("arith.addf", start[0, mine], found, wide)
        result[0, mine] = found
        m.counts.flops += 2 * ROWS * op.columns * op.depth
    wgmma.result = result


def _operands(m: AsyncUnits, wgmma: PendingWgmma, g: int) -> tuple[Array, Array]:
    """A as [64, k] and B as [columns, k], widened."""
    op = wgmma.op
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    narrow, wide = op.element, element_type(op.acc.type.registers)
    if op.lhs_offset is not None:
        left = _operand(m, wgmma, g, op.lhs, op.lhs_offset, True)
    else:
        held = np.broadcast_to(ranked(wgmma.values[op.lhs], 3), (1, m.threads, op.depth // 2))
        e, t = np.arange(op.depth // 2)[None, :], _LANES[:, None]
        word = word_elements(narrow)
        inside, part = e % word, e // word  # of a register of four bytes: row, half of a slice, slice
        left = np.zeros((ROWS, op.depth), held.dtype)
        rows = t // 32 * 16 + t % 32 // 4 + 8 * (part & 1)
        columns = 8 * word * (part >> 2) + word * (t % 4) + inside + 4 * word * (part >> 1 & 1)
        left[rows, columns] = held[0, 128 * g : 128 * g + 128]
    right = _operand(m, wgmma, g, op.rhs, op.rhs_offset, False)
    return m.domain.factor(left, narrow, wide), m.domain.factor(right, narrow, wide)
