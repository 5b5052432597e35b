"""Conversions of layouts without shared memory: by moves between a thread's registers, and by shuffles in a warp."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects import kernel
from ....dialects.layouts.conversion import Exchange
from ....dialects.layouts.linear import combine
from ....dialects.payload import shape_of
from .emitter import Emitter


def exchange(out: Emitter, value: SSAValue, found: Exchange, hint: str | None) -> SSAValue:
    """The registers of a tile, exchanged within warps."""
    value = _renumbered(out, value, found.before, hint)
    sent = [combine(found.registers, r) for r in range(1 << len(found.registers))]
    if sent != list(range(shape_of(value.type)[0])):
        value = out.emit(kernel.ShuffleRegistersOp(value, sent))
    if found.shuffles:
        spare = [0] * out.warp_bits
        lane = None if found.stays else out.value(out.thread_bits([*found.lanes, *spare])[0])
        value = out.emit(kernel.ShuffleOp(value, lane, found.flips), hint)
    return _renumbered(out, value, found.after, hint)


def _renumbered(out: Emitter, value: SSAValue, moves: Sequence[int], hint: str | None) -> SSAValue:
    return out.emit(kernel.PermuteRegistersOp(value, out.id("lane"), moves), hint) if any(moves) else value
