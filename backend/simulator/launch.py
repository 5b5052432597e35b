"""Launches of a simulated program: its kernels' blocks in batches, with their shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, i64
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute, Operation

from ...dialects import kernel, payload
from ...dialects.kernel.tma import SWIZZLED_ALIGNMENT
from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.binding import Sizes
from ...dialects.shapes.ranges import constant_index
from ...errors import ExecutionError
from ...progress import steps
from ..dtypes import numpy_dtype
from ..interpreter.domains import Array, TypedDomain, ranked
from ..interpreter.payload import PayloadFunctions, stop
from ..interpreter.running import Position
from .buffers import GlobalBuffer, SharedBuffer, poison
from .machine import Machine
from .program import KernelProgram
from .report import KernelCounts, Report

MAX_ELEMENTS = 1 << 22
"""Elements of the largest value; a grid of more blocks than fit is run in batches."""


ASYNCHRONOUS = (
    kernel.WarpSpecializeOp,
    kernel.MbarInitOp,
    kernel.TmaStoreOp,
    kernel.WgmmaOp,
    kernel.GroupBarrierOp,
    kernel.FenceAsyncOp,
)
"""What makes a kernel asynchronous; copies into shared memory need an mbarrier."""


class Launcher:
    """Runs launches, one after another; `position` says where."""

    def __init__(
        self, interpreter: Interpreter, position: Position, domain: TypedDomain, report: Report, sizes: Sizes
    ) -> None:
        self.interpreter = interpreter
        self.position = position
        self.domain = domain
        self.report = report
        self.sizes = sizes
        self.units: Machine | None = None
        interpreter.register_implementations(PayloadFunctions(domain, sizes, self._stop))

    def _stop(self, op: payload.AssertOp, value: Array, wrong: Array) -> None:
        """Raise ExecutionError for an assertion that fails in a thread that runs."""
        assert self.units is not None
        rank, active = len(shape_of(op.result.type)), self.units.active
        wrong = ranked(wrong, 2 + rank) & active.reshape(*active.shape, *(1,) * rank)
        if wrong.any():
            stop(op, ranked(value, 2 + rank), wrong)

    def launch(self, function: kernel.FuncOp, buffers: Sequence[GlobalBuffer], blocks: int) -> None:
        """Run so many blocks of a kernel."""
        for position, buffer in enumerate(buffers):
            buffer.writer, buffer.position = None, position
        counts = KernelCounts(function.sym_name.data, blocks)
        self.report.launches.append(counts)
        size = function.cluster_size
        if size > 1 and function.warps.data % WARPGROUP and any(isinstance(o, kernel.WgmmaOp) for o in function.walk()):
            raise ExecutionError("wgmma in a cluster of blocks that are no whole warpgroups")
        with steps(f"simulating {counts.kernel}", blocks, "blocks") as step:
            for first, last in batches(function, blocks):
                blocks_run = np.arange(first, last, dtype=np.int64)[::size]
                head = self.domain, self.report, counts, blocks_run, function.threads * size, first == 0
                self.units = Machine(*head, self.sizes, size)
                place_shared(self.units, function)
                KernelProgram(self.interpreter, self.position, self.units).run(function.body, buffers)
                step(last - first)


def batches(function: kernel.FuncOp, blocks: int) -> Iterator[tuple[int, int]]:
    """The first blocks of a kernel in ranges that run at once. Where the blocks from some number on do something else
    than those before, a range ends, so that all blocks of a range go the same way."""
    cuts = sorted(
        {0, blocks, *(n for op in function.body.ops if (n := _decided_by_block(op)) is not None and n < blocks)}
    )
    if function.cluster_size > 1:
        cuts = [0, blocks]
    step = function.cluster_size if is_asynchronous(function) else batch_size(function)
    for start, end in pairwise(cuts):
        for first in range(start, end, step):
            yield first, min(first + step, end)


def _decided_by_block(op: Operation) -> int | None:
    """The number of the first block that goes the other way at the conditional `op`, if that is what decides."""
    condition = op.cond.owner if isinstance(op, scf.IfOp) else None
    if not isinstance(condition, payload.CmpOp) or condition.predicate.data != "lt":
        return None
    block = condition.lhs.owner
    if not isinstance(block, kernel.IdOp) or block.kind.data != kernel.Id.BLOCK:
        return None
    return constant_index(condition.rhs)


def is_asynchronous(function: kernel.FuncOp) -> bool:
    """Whether something goes on beside the threads of a block, or warps or blocks go different ways: such
    blocks, or clusters, run alone."""
    return function.cluster_size > 1 or any(isinstance(op, ASYNCHRONOUS) for op in function.walk())


def batch_size(function: kernel.FuncOp) -> int:
    """How many blocks run at once without very large arrays."""
    widest = max((math.prod(shape_of(r.type)) for op in function.walk() for r in op.results), default=1)
    shared = sum(op.result.type.get_shape()[0] for op in function.walk() if isinstance(op, kernel.SharedOp))  # pyright: ignore
    return max(1, MAX_ELEMENTS // max(function.threads * widest, shared))


def place_shared(machine: Machine, function: kernel.FuncOp) -> None:
    """Lay out the shared buffers of a kernel: at their offsets, or one after another where none was chosen yet."""
    ops = [op for op in function.walk() if isinstance(op, kernel.SharedOp)]
    end = max((op.offset.data + _bytes(op) for op in ops if op.offset is not None), default=0)
    if function.shared is not None and end > function.shared.data:
        last = next(op for op in ops if op.offset is not None and op.offset.data + _bytes(op) == end)
        machine.report.add(
            "out-of-bounds", last, f"ends at byte {end} of {function.shared.data} bytes of shared memory"
        )
    blocks, alignment = len(machine.numbers) * machine.cluster, SWIZZLED_ALIGNMENT if is_asynchronous(function) else 16
    for op in ops:
        if op.offset is not None:
            offset = op.offset.data
        else:
            offset = end = -(-end // alignment) * alignment
            end += _bytes(op)
        t = op.result.type
        assert isinstance(t, MemRefType)
        element, size = _stored(op), t.get_shape()[0]
        data = np.full((blocks, size), poison(machine.domain, element), machine.domain.dtype(element))
        if isinstance(element_type(t), kernel.MbarrierType):
            data = np.full((blocks, size), None)
        machine.shared[op] = SharedBuffer(data, np.zeros(data.shape, np.bool_), element, offset, size)


def _stored(op: kernel.SharedOp) -> Attribute:
    """What lies in a shared buffer; an mbarrier is a word that nobody reads."""
    element = element_type(op.result.type)
    return i64 if isinstance(element, kernel.MbarrierType) else element


def _itemsize(op: kernel.SharedOp) -> int:
    return numpy_dtype(_stored(op)).itemsize


def _bytes(op: kernel.SharedOp) -> int:
    return op.result.type.get_shape()[0] * _itemsize(op)  # pyright: ignore
