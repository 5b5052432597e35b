"""Executes operations of the kernel dialect for all threads of some blocks.

Ops that contain other ops are in `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import shape_of_memory
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.layouts.linear import LANES, combine
from ...dialects.payload import element_type, is_vector, shape_of
from ...dialects.tensor import ReductionKind
from ..interpreter.domains import Array, combine_values, ranked, reduce_value
from ..interpreter.payload import print_elements
from .machine import Access, Barrier, Machine, Scope, combine_global, load, register_offsets, store_global, store_shared
from .memory import SharedBuffer
from .tensor_cores import load_matrices, mma, store_matrices, tma_load, tma_store, wgmma


def registers(x: Array, value: SSAValue) -> Array:
    x = ranked(x, 3)
    return np.broadcast_to(x, (*x.shape[:2], shape_of(value.type)[0]))


def bit_numbers(bits: Sequence[int], size: int) -> Array:
    """Extracts bits from every register number below `size`: bit bits[i] of the number becomes bit i of the result."""
    numbers = np.arange(size)
    return sum((((numbers >> b) & 1) << i for i, b in enumerate(bits)), np.zeros(size, np.int64))


def _identify(m: Machine, op: kernel.IdOp, v: Scope) -> Array:
    thread = np.arange(m.threads, dtype=np.int64)[None, :]
    first, rank, of_block = m.numbers[:, None], thread // m.block_threads, thread % m.block_threads
    match op.kind.data:
        case kernel.Id.BLOCK:
            return first if m.cluster == 1 else first + rank
        case kernel.Id.RANK:
            return rank
        case kernel.Id.THREAD:
            return of_block
        case kernel.Id.LANE:
            return thread % LANES
        case kernel.Id.WARP:
            return of_block // LANES


@contextmanager
def _where(m: Machine, predicate: SSAValue | None, v: Scope) -> Iterator[None]:
    outer = m.active
    if predicate is not None:
        m.active = outer & ranked(v[predicate], 2)
    yield
    m.active = outer


def _access(
    m: Machine, op: kernel.LoadOp | kernel.StoreOp | kernel.AtomicRmwOp | kernel.CopyAsyncOp, v: Scope
) -> Access:
    return m.locate(op, v[op.memory], [v[c] for c in op.coordinates], [v[c] for c in op.checks])


def _load(m: Machine, op: kernel.LoadOp, v: Scope) -> Array:
    zero = m.domain.constant(0, element_type(op.result.type))
    fill = zero if op.fill is None else ranked(v[op.fill], 2)[:, :, None]
    buffer = v[op.memory]
    return load(m, op, buffer, _access(m, op, v), fill)


def _store(m: Machine, op: kernel.StoreOp, v: Scope) -> None:
    buffer = v[op.memory]
    with _where(m, op.predicate, v):
        store: Any = store_shared if isinstance(buffer, SharedBuffer) else store_global
        store(m, op, buffer, _access(m, op, v), registers(v[op.value], op.value))


def _atomic_rmw(m: Machine, op: kernel.AtomicRmwOp, v: Scope) -> None:
    buffer = v[op.memory]
    with _where(m, op.predicate, v):
        combine_global(m, op, buffer, _access(m, op, v), registers(v[op.value], op.value))


def _print(m: Machine, op: kernel.PrintOp, v: Scope) -> None:
    def elements(value: SSAValue) -> Array:
        return registers(v[value], value) if is_vector(value.type) else ranked(v[value], 2)[:, :, None]

    with _where(m, op.predicate, v):
        mask = m.active[:, :, None] if op.mask is None else m.active[:, :, None] & elements(op.mask)
        value = elements(op.value)
        whole = np.broadcast_to(value, (*m.active.shape, value.shape[-1]))
        print_elements(op, whole, [elements(i) for i in op.indices], mask, m.domain)


def _copy_async(m: Machine, op: kernel.CopyAsyncOp, v: Scope) -> None:
    """Completes a copy at once, with zeros in masked elements."""
    target: SharedBuffer = v[op.target]
    with _where(m, op.predicate, v):
        access = _access(m, op, v)
        value = load(m, op, v[op.memory], access, m.domain.constant(0, target.element))
        place = m.register_places(ranked(v[op.place], 2), op.target_bases, op.target_xor is not None)
        happens = np.broadcast_to(m.active[:, :, None], access.mask.shape)
        store_shared(m, op, target, m.inside(op, target, happens, [place]), value)


def _shuffle_xor(m: Machine, op: kernel.ShuffleXorOp, v: Scope) -> Array:
    x = ranked(v[op.source], 2 + len(shape_of(op.source.type)))
    partner = np.arange(m.threads) ^ op.mask.data
    m.find("divergent", op, m.active & ~m.active[:, partner], "{who} shuffles with an inactive lane")
    return x if x.shape[1] == 1 else x[:, partner]


def _shuffle(m: Machine, op: kernel.ShuffleOp, v: Scope) -> Array:
    x, threads = registers(v[op.source], op.source), np.arange(m.threads)
    lane = threads % LANES if op.lane is None else ranked(v[op.lane], 2)
    x = np.broadcast_to(x, (*m.active.shape, x.shape[2]))
    flips = np.array([combine(op.lane_xor.get_values(), r) for r in range(x.shape[2])])
    m.find("divergent", op, m.active & (lane >= LANES), "{who} shuffles with a lane of another warp")
    partner = (threads - threads % LANES)[:, None] + ((lane % LANES)[..., None] ^ flips)
    partner = np.broadcast_to(partner, x.shape)
    is_active = np.take_along_axis(m.active[..., None], partner, axis=1).all(axis=2)
    m.find("divergent", op, m.active & ~is_active, "{who} shuffles with an inactive lane")
    return np.take_along_axis(x, partner, axis=1)


def _permute_registers(m: Machine, op: kernel.PermuteRegistersOp, v: Scope) -> Array:
    x, lane = registers(v[op.source], op.source), ranked(v[op.lane], 2)
    x = np.broadcast_to(x, (*m.active.shape, x.shape[2]))
    moved = np.zeros_like(lane)
    for bit, move in enumerate(op.reg_xor.get_values()):
        moved = moved ^ (lane >> bit & 1) * move
    numbers = np.arange(x.shape[2]) ^ moved[..., None]
    return np.take_along_axis(x, np.broadcast_to(numbers, x.shape), axis=2)


def _reduce_registers(m: Machine, op: kernel.ReduceRegistersOp, v: Scope) -> Array:
    x = registers(v[op.source], op.source)
    size, count = x.shape[2], x.shape[2].bit_length() - 1
    axes = tuple(2 + count - 1 - int(b) for b in op.bits.get_values())
    x = reduce_value(m.domain, op.kind.data, x.reshape(*x.shape[:2], *(2,) * count), axes, element_type(op.source.type))
    if op.kind.data in (ReductionKind.ADD, ReductionKind.MUL):
        m.count_flops(size - shape_of(op.result.type)[0])
    return x.reshape(*x.shape[:2], -1)


def _scan_registers(m: Machine, op: kernel.ScanRegistersOp, v: Scope) -> tuple[Array, Array]:
    x, carry = registers(v[op.source], op.source), np.array(registers(v[op.init], op.init))
    size, element = x.shape[2], element_type(op.source.type)
    unscanned = [b for b in range(size.bit_length() - 1) if b not in op.bits.get_values()]
    x, shape = np.array(x), np.broadcast_shapes(x.shape[:2], carry.shape[:2])
    x, carry = (np.array(np.broadcast_to(a, (*shape, a.shape[2]))) for a in (x, carry))
    for r, at in enumerate(bit_numbers(unscanned, size)):
        carry[:, :, at] = combine_values(m.domain, op.kind.data, carry[:, :, at], x[:, :, r], element)
        x[:, :, r] = carry[:, :, at]
    m.count_flops(size)
    return x, carry


def _outer_fma(m: Machine, op: kernel.OuterFmaOp, v: Scope) -> Array:
    size, element = shape_of(op.acc.type)[0], element_type(op.acc.type)
    lhs = registers(v[op.lhs], op.lhs)[:, :, bit_numbers(op.rows.get_values(), size)]
    rhs = registers(v[op.rhs], op.rhs)[:, :, bit_numbers(op.cols.get_values(), size)]
    m.count_flops(2 * size)
    return m.domain.binary(
        "arith.addf", registers(v[op.acc], op.acc), m.domain.binary("arith.mulf", lhs, rhs, element), element
    )


def _panel_fma(m: Machine, op: kernel.PanelFmaOp, v: Scope) -> Array:
    (rows, columns), depth, element = op.extents, op.depth.data, element_type(op.acc.type)
    lhs, rhs, acc = (registers(v[x], x) for x in (op.lhs, op.rhs, op.acc))
    i, j = np.divmod(np.arange(rows * columns), columns)
    m.count_flops(2 * rows * columns * depth)
    total = None
    for k in range(depth):
        part = m.domain.binary("arith.mulf", lhs[:, :, i * depth + k], rhs[:, :, k * columns + j], element)
        total = part if total is None else m.domain.binary("arith.addf", total, part, element)
    return m.domain.binary("arith.addf", acc, total, element)


def _subview(m: Machine, op: kernel.SubviewOp, v: Scope) -> SharedBuffer:
    return replace(v[op.ring], start=m.everywhere(v[op.offset]), size=shape_of_memory(op.result.type)[0])


def _mapa(m: Machine, op: kernel.MapaOp, v: Scope) -> SharedBuffer:
    ranks = m.everywhere(v[op.rank])
    outside = m.active & ((ranks < 0) | (ranks >= m.cluster))
    m.find("out-of-bounds", op, outside, f"{{who}} means a block outside of a cluster of {m.cluster}")
    return replace(v[op.shared], ranks=np.clip(ranks, 0, m.cluster - 1))


def _set_up(m: Machine, op: kernel.MbarInitOp, v: Scope) -> None:
    index = m.everywhere(v[op.index])
    for thread in m.running():
        v[op.barriers].data[m.rows[0, thread], index[0, thread]] = Barrier(op.arrivals.data, op.arrivals.data)


def _arrive(m: Machine, op: kernel.MbarExpectOp | kernel.MbarArriveOp, v: Scope) -> None:
    """Counts the arrivals of active threads. The emulator reports threads that should not arrive."""
    rank = op.rank if isinstance(op, kernel.MbarArriveOp) else None
    for barrier in m.barriers(op, v[op.barriers], v[op.index], None if rank is None else v[rank]):
        barrier.arrive(op.bytes.data if isinstance(op, kernel.MbarExpectOp) else 0)


def _advance(m: Machine, op: kernel.AdvanceOp, v: Scope) -> tuple[Array, Array]:
    slot = np.asarray(v[op.slot]) + 1
    slot = np.where(slot == op.slots.data, 0, slot)
    return slot, np.asarray(v[op.phase]) ^ (slot == 0)


def _accumulators(m: Machine, op: kernel.AccumulatorsOp, v: Scope) -> Array:
    if op.source is not None:
        return v[op.source]
    assert isinstance(op.result.type, AsyncAccumulatorsType)
    t = op.result.type.registers
    return np.full((1, m.threads, shape_of(t)[0]), m.domain.constant(float("nan"), element_type(t)))


def _nothing(m: Machine, op: Operation, v: Scope) -> None:
    """Skips ops that order or wait for asynchronous operations, which are completed when they are issued."""


OPERATIONS: dict[type[Operation], Callable[[Machine, Any, Scope], Any]] = {
    kernel.IdOp: _identify,
    kernel.SharedOp: lambda m, op, v: m.shared[op],
    kernel.BarrierOp: lambda m, op, v: m.barrier_of_block(op),
    kernel.LoadOp: _load,
    kernel.StoreOp: _store,
    kernel.AtomicRmwOp: _atomic_rmw,
    kernel.PrintOp: _print,
    kernel.SubviewOp: _subview,
    kernel.CopyAsyncOp: _copy_async,
    kernel.ShuffleXorOp: _shuffle_xor,
    kernel.ShuffleOp: _shuffle,
    kernel.PermuteRegistersOp: _permute_registers,
    kernel.ReduceRegistersOp: _reduce_registers,
    kernel.ScanRegistersOp: _scan_registers,
    kernel.ShuffleRegistersOp: lambda m, op, v: registers(v[op.source], op.source)[:, :, [*op.registers.get_values()]],
    kernel.SplatOp: lambda m, op, v: ranked(v[op.source], 2)[:, :, None],
    kernel.ExtractOp: lambda m, op, v: registers(v[op.source], op.source)[:, :, op.register.data],
    kernel.IndicesOp: lambda m, op, v: (
        ranked(v[op.origin], 2)[:, :, None] + register_offsets(tuple(op.steps.get_values()), False)
    ),
    kernel.OuterFmaOp: _outer_fma,
    kernel.PanelFmaOp: _panel_fma,
    kernel.LdMatrixOp: lambda m, op, v: load_matrices(m, op, v[op.memory], v[op.origin]),
    kernel.StMatrixOp: lambda m, op, v: store_matrices(m, op, v[op.memory], v[op.origin], v[op.value]),
    kernel.MmaOp: lambda m, op, v: mma(m, op, v[op.lhs], v[op.rhs], v[op.acc]),
    kernel.MbarInitOp: _set_up,
    kernel.MbarExpectOp: _arrive,
    kernel.MbarArriveOp: _arrive,
    kernel.MapaOp: _mapa,
    kernel.AdvanceOp: _advance,
    kernel.GroupBarrierOp: lambda m, op, v: m.together(op, "waits at a barrier"),
    kernel.TensorMapOp: lambda m, op, v: v[op.memory],
    kernel.TmaLoadOp: tma_load,
    kernel.TmaStoreOp: tma_store,
    kernel.AccumulatorsOp: _accumulators,
    kernel.WgmmaOp: wgmma,
    kernel.WgmmaWaitOp: lambda m, op, v: v[op.acc],
    **dict.fromkeys(
        (
            kernel.AsyncCommitOp,
            kernel.AsyncWaitOp,
            kernel.BulkCommitOp,
            kernel.BulkWaitOp,
            kernel.FenceMbarInitOp,
            kernel.FenceAsyncOp,
            kernel.WgmmaCommitOp,
            kernel.WgmmaFenceOp,
        ),
        _nothing,
    ),
}
"""Op -> function of the blocks, the op and the values of operands that returns the values of results."""
