"""The host side of the kernel level, executed: allocations, launches, and the blocks of a launch in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType, i64
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import Attribute, BlockArgument, Operation

from ...dialects import kernel, payload
from ...dialects.kernel.tma import SWIZZLED_ALIGNMENT
from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.payload import shape_of
from ...dialects.shapes.binding import Sizes
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.calls import eager_results, is_eager
from ...errors import ExecutionError
from ...progress import Step, steps
from ..interpreter.domains import TypedDomain, numpy_dtype
from ..interpreter.eager import Eager, call_eager
from .async_units import AsyncUnits
from .cp_async import Copies
from .machine import Machine
from .ops import KernelFunctions, check_kernel
from .report import KernelCounts, Report
from .shadow_memory import GlobalBuffer, Shadow, SharedBuffer, poison
from .sm90 import HopperFunctions
from .warp_specialize import WarpPrograms

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


@register_impls
class HostFunctions(InterpreterFunctions):
    """`@main`: buffers and launches, one after another, and calls of what PyTorch computes."""

    hopper: HopperFunctions

    def __init__(
        self, domain: TypedDomain, threads: KernelFunctions, report: Report, sizes: Sizes, eager: Eager
    ) -> None:
        self.eager = eager
        self.domain = domain
        self.threads = threads
        self.report = report
        self.sizes = sizes
        self.max_blocks: int | None = None
        self.step: Step | None = None
        self.shadowed = True

    @impl(kernel.AllocOp)
    def alloc(self, interpreter: Interpreter, op: kernel.AllocOp, args: PythonValues) -> PythonValues:
        t = op.result.type
        assert isinstance(t, MemRefType)
        return (GlobalBuffer.empty(self.domain, self.sizes.shape(t), t.element_type),)  # pyright: ignore

    @impl(func.CallOp)
    def call(self, interpreter: Interpreter, op: func.CallOp, args: PythonValues) -> PythonValues:
        callee = interpreter.get_op_for_symbol(op.callee)
        if not isinstance(callee, func.FuncOp) or not is_eager(callee):
            return interpreter.call_op(op.callee, args)
        buffers: list[GlobalBuffer] = list(args)
        split = len(buffers) - eager_results(callee)
        inputs = [b.data.reshape(b.shape) for b in buffers[:split]]
        types = callee.function_type.inputs.data[split:]
        for buffer, result in zip(buffers[split:], call_eager(callee, self.eager, inputs, types), strict=True):
            buffer.data[...] = self.domain.encode(result, buffer.element).reshape(-1)
            if buffer.written is not None:
                buffer.written[...] = True
        return ()

    @impl(kernel.SliceOp)
    def slice(self, interpreter: Interpreter, op: kernel.SliceOp, args: PythonValues) -> PythonValues:
        buffer: GlobalBuffer = args[0]
        row = op.row(int(np.asarray(args[1]).reshape(-1)[0]))
        if not 0 <= row < op.rows:
            raise ExecutionError(f"row {row} of {op.source.type}")
        t = op.result.type
        assert isinstance(t, MemRefType)
        begin = row * math.prod(self.sizes.numbers(op.row_extents))
        return (buffer.view(begin, self.sizes.shape(t)),)

    @impl(kernel.LaunchOp)
    def launch(self, interpreter: Interpreter, op: kernel.LaunchOp, args: PythonValues) -> PythonValues:
        callee = check_kernel(interpreter.get_op_for_symbol(op.kernel))
        if [a.type for a in callee.body.block.args] != [b.type for b in op.buffers]:
            raise ExecutionError(f"@{callee.sym_name.data} takes other buffers")
        buffers: list[GlobalBuffer] = list(args)
        for buffer in buffers:
            buffer.writer = None
        counts = KernelCounts(callee.sym_name.data)
        self.report.launches.append(counts)
        blocks = math.prod(self.sizes.count(c) for c in callee.factors)
        size = callee.cluster_size
        if size > 1 and callee.warps.data % WARPGROUP and any(isinstance(o, kernel.WgmmaOp) for o in callee.walk()):
            raise ExecutionError("wgmma in a cluster of blocks that are no whole warpgroups")
        blocks = blocks if self.max_blocks is None else min(blocks, -(-self.max_blocks // size) * size)
        counts.blocks = blocks
        with steps(f"simulating {counts.kernel}", blocks, "blocks") as step:
            for first, last in batches(callee, blocks):
                self._run_blocks(interpreter, callee, buffers, counts, first, last)
                step(last - first)
        if self.step is not None:
            self.step()
        return ()

    def _run_blocks(
        self,
        interpreter: Interpreter,
        callee: kernel.FuncOp,
        buffers: list[GlobalBuffer],
        counts: KernelCounts,
        first: int,
        last: int,
    ) -> None:
        """Run a range of blocks at once."""
        size = callee.cluster_size
        machine = Machine(
            self.domain,
            self.report,
            counts,
            np.arange(first, last, dtype=np.int64)[::size],
            callee.threads * size,
            first == 0,
            self.shadowed and not is_asynchronous(callee),
            {id(b): i for i, b in enumerate(buffers)},
            self.sizes,
            size,
        )
        place_shared(machine, callee)
        outer = getattr(self.threads, "machine", None)
        self.threads.machine, self.threads.copies = machine, Copies(last - first)
        if is_asynchronous(callee):
            state = self.hopper.state = AsyncUnits(machine)
            machine.reads_peers = state.reads_peers
            WarpPrograms(interpreter, machine, state).run(callee.body, buffers)
        else:
            interpreter.run_ssacfg_region(callee.body, tuple(buffers), callee.sym_name.data)
        if outer is not None:
            self.threads.machine = outer


def batches(function: kernel.FuncOp, blocks: int) -> Iterator[tuple[int, int]]:
    """The first blocks of a kernel in ranges that run at once. Where the blocks from some number on do something else
    than those before, a range ends, so that all blocks of a range go the same way."""
    cuts = sorted(
        {0, blocks, *(n for op in function.body.ops if (n := _decided_by_block(op)) is not None and n < blocks)}
    )
    if function.cluster_size > 1:
        cuts = [0, blocks]
    alone = is_asynchronous(function) or slots_differ(function)
    step = function.cluster_size if alone else batch_size(function)
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
    """Whether something goes on beside the threads of a block, or warps or blocks go different ways: see
    async_units.py."""
    return function.cluster_size > 1 or any(isinstance(op, ASYNCHRONOUS) for op in function.walk())


def slots_differ(function: kernel.FuncOp) -> bool:
    """Whether blocks may use different slots of a ring at the same time: where a loop goes on with the slots of an
    earlier one, which need not have run as often in each of them."""
    for op in function.walk():
        slot = op.offset if isinstance(op, kernel.SubviewOp) else None
        if isinstance(slot, BlockArgument) and isinstance(around := slot.owner.parent_op(), scf.ForOp) and slot.index:
            if isinstance(around.iter_args[slot.index - 1].owner, scf.ForOp):
                return True
    return False


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
    cell = min((_itemsize(op) for op in ops), default=1)
    cell = math.gcd(cell, *(op.offset.data for op in ops if op.offset is not None)) or 1
    blocks, alignment = len(machine.numbers) * machine.cluster, SWIZZLED_ALIGNMENT if is_asynchronous(function) else 16
    for number, op in enumerate(ops):
        if op.offset is not None:
            offset = op.offset.data
        else:
            offset = end = -(-end // alignment) * alignment
            end += _bytes(op)
        t = op.result.type
        assert isinstance(t, MemRefType)
        element, size = _stored(op), t.get_shape()[0]
        data = np.full((blocks, size), poison(machine.domain, element), machine.domain.dtype(element))
        machine.shared[op] = SharedBuffer(data, element, number, offset // cell, _itemsize(op) // cell, offset)
    if machine.shadowed:
        machine.shadow = Shadow(blocks, -(-end // cell))


def _stored(op: kernel.SharedOp) -> Attribute:
    """What lies in a shared buffer; an mbarrier is a word that nobody reads."""
    element: Attribute = op.result.type.element_type  # pyright: ignore
    return i64 if isinstance(element, kernel.MbarrierType) else element


def _itemsize(op: kernel.SharedOp) -> int:
    return numpy_dtype(_stored(op)).itemsize


def _bytes(op: kernel.SharedOp) -> int:
    return op.result.type.get_shape()[0] * _itemsize(op)  # pyright: ignore
