"""wgmma in a simulated block: started in order, computed when they are waited for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects import kernel
from ...dialects.kernel.mma import word_elements
from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.kernel.wgmma import ROWS, SLICE_BYTES, AsyncAccumulatorsType
from ...dialects.payload import element_type, shape_of
from ..interpreter.domains import Array
from .async_units import AsyncUnits, PendingWgmma
from .machine import ranked
from .shadow_memory import SharedBuffer
from .tma import swizzled

_LANES = np.arange(128)


def warpgroups(state: AsyncUnits, op: object) -> list[int]:
    """The active warpgroups; each has to be there as a whole."""
    active = state.machine.active[0]
    found: list[int] = []
    for g in sorted({w // WARPGROUP for w in state.warps()}):
        threads = slice(128 * g, 128 * g + 128)
        if len(active[threads]) < 128 or not active[threads].all():
            state.complain("divergent", op, "not all threads of a warpgroup are there", WARPGROUP * g)  # pyright: ignore
        else:
            found.append(g)
    return found


def start_wgmma(state: AsyncUnits, op: kernel.WgmmaOp, args: tuple[Any, ...]) -> PendingWgmma:
    """Queue a wgmma; its operands are in use from here on."""
    values = dict(zip(op.operands, args, strict=True))
    accumulate = op.scale_d_zero is None
    if op.use_acc is not None:
        accumulate = bool(state.uniform(values[op.use_acc]))
    wgmma = PendingWgmma(op, args, values[op.acc], accumulate, state.machine.active)
    pending = isinstance(wgmma.start, PendingWgmma) and wgmma.start.result is None
    for g in warpgroups(state, op):
        if g not in state.fenced and (not pending or op.lhs_offset is None):
            state.complain(
                "fence", op, "registers may have been written since the last kernel.wgmma_fence", WARPGROUP * g
            )
        wgmma.groups[g] = state.closed.get(g, 0)
    state.wgmmas.append(wgmma)
    return wgmma


def _check_start(state: AsyncUnits, op: kernel.WgmmaOp, address: int, transposed: bool) -> None:
    """An operand starts where its swizzle does; along k it may start at another slice of the first row."""
    width = op.swizzle.data
    inside = address % (8 * width)
    if inside and (transposed or inside >= width or inside % SLICE_BYTES):
        state.complain("misaligned", op, f"an operand starts {inside} bytes behind a multiple of {8 * width}")


def operand_elements(
    state: AsyncUnits, op: kernel.WgmmaOp, buffer: SharedBuffer, at: int, first: int, count: int, transposed: bool
) -> Array:
    """[line, k] -> element of the buffer, for `count` rows of A or columns of B from number `first` on."""
    width, row = op.swizzle.data, op.row
    line, k = (first + np.arange(count))[:, None], np.arange(op.depth)[None, :]
    place = at + line * row + k
    if transposed:
        panel = 0 if op.leading_offset is None else op.leading_offset.data
        place = at + line // row * panel + k * row + line % row
    where = (swizzled(place * buffer.itemsize + buffer.offset, width) - buffer.offset) // buffer.itemsize
    outside = (where < 0) | (where >= buffer.data.shape[1])
    if outside.any():
        state.complain("out-of-bounds", op, f"an operand from element {at} on leaves its buffer")
    return np.where(outside, 0, where)


def wait_for_wgmmas(state: AsyncUnits, op: kernel.WgmmaWaitOp, acc: PendingWgmma | Array) -> Any:
    """The accumulators once all groups but the newest are done: registers, or still accumulators."""
    groups = warpgroups(state, op)
    for wgmma in [p for p in state.wgmmas if any(g in p.groups for g in groups)]:
        if all(n < state.closed.get(g, 0) - op.pending.data for g, n in wgmma.groups.items()):
            _compute(state, wgmma)
            state.wgmmas.remove(wgmma)
    state.fenced -= set(groups)
    if isinstance(op.result.type, AsyncAccumulatorsType):
        return acc
    if not isinstance(acc, PendingWgmma):
        return acc
    if acc.result is None:
        state.complain("protocol", op, "the wgmma was not committed, so nobody waits for it")
        size = shape_of(op.result.type)[0]
        return np.full((*state.machine.active.shape, size), state.machine.domain.constant(float("nan"), _f32(op)))
    return acc.result


def _f32(op: kernel.WgmmaWaitOp) -> Any:
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    return element_type(op.acc.type.registers)


def _compute(state: AsyncUnits, wgmma: PendingWgmma) -> None:
    """Every active warpgroup's wgmma, from what lies in shared memory now."""
    machine, op = state.machine, wgmma.op
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    registers, wide = op.acc.type.registers, element_type(op.acc.type.registers)
    (size,) = shape_of(registers)
    start = wgmma.start.result if isinstance(wgmma.start, PendingWgmma) else wgmma.start
    if start is None:
        start = np.asarray(machine.domain.constant(float("nan"), wide))
    start = np.broadcast_to(ranked(start, 3), (1, machine.threads, size))
    result = np.array(start)
    r, t = np.arange(size)[None, :], _LANES[:, None]
    rows = t // 32 * 16 + t % 32 // 4 + 8 * (r >> 1 & 1)
    columns = r // 4 * 8 + 2 * (t % 4) + (r & 1)
    for g in wgmma.groups:
        left, right = _operands(state, wgmma, g)
        found = machine.domain.matmul(left[None], right.T[None])[0][rows, columns]
        mine = slice(128 * g, 128 * g + 128)
        if wgmma.accumulate:
            found = machine.domain.binary("arith.addf", start[0, mine], found, wide)
        result[0, mine] = found
        machine.counts.flops += 2 * ROWS * op.columns * op.depth
    wgmma.result = result


def _operands(state: AsyncUnits, wgmma: PendingWgmma, g: int) -> tuple[Array, Array]:
    """A as [64, k] and B as [columns, k], widened."""
    machine, op = state.machine, wgmma.op
    assert isinstance(op.acc.type, AsyncAccumulatorsType)
    narrow, wide = op.element, element_type(op.acc.type.registers)
    values = dict(zip(op.operands, wgmma.args, strict=True))

    def read(memory: Any, place: Any, count: int, transposed: bool) -> Array:
        buffer: SharedBuffer = values[memory]
        at = int(np.broadcast_to(ranked(values[place], 2), machine.active.shape)[0, 128 * g])
        _check_start(state, op, buffer.offset + at * buffer.itemsize, transposed)
        return buffer.data[state.cluster.rank_of(WARPGROUP * g)][
            operand_elements(state, op, buffer, at, 0, count, transposed)
        ]

    if op.lhs_offset is None:
        held = np.broadcast_to(ranked(values[op.lhs], 3), (1, machine.threads, op.depth // 2))
        e, t = np.arange(op.depth // 2)[None, :], _LANES[:, None]
        word = word_elements(narrow)
        inside, part = e % word, e // word  # of a register of four bytes: row, half of a slice, slice
        left = np.zeros((ROWS, op.depth), held.dtype)
        rows = t // 32 * 16 + t % 32 // 4 + 8 * (part & 1)
        left[rows, 8 * word * (part >> 2) + word * (t % 4) + inside + 4 * word * (part >> 1 & 1)] = held[
            0, 128 * g : 128 * g + 128
        ]
    else:
        left = read(op.lhs, op.lhs_offset, ROWS, op.lhs_transposed is not None)
    right = read(op.rhs, op.rhs_offset, op.columns, op.rhs_transposed is not None)
    a, b = (np.asarray(machine.domain.factor(x, narrow, wide)) for x in (left, right))
    return a, b
