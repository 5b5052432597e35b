"""The kernel dialect's operations for sm_90a, executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls

from ...dialects import kernel
from ...dialects.kernel.warp_specialize import partition_of
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.payload import element_type, shape_of
from . import tma, wgmma
from .async_units import AsyncUnits
from .machine import ranked
from .ops import KernelFunctions


@register_impls
class HopperFunctions(InterpreterFunctions):
    """Acts on the block that `threads` runs; `state` is what goes on beside it."""

    state: AsyncUnits

    def __init__(self, threads: KernelFunctions) -> None:
        self.threads = threads

    @impl(kernel.MbarInitOp)
    def init(self, _: Interpreter, op: kernel.MbarInitOp, args: PythonValues) -> PythonValues:
        self.state.set_up(op, args[0], args[1])
        return ()

    @impl(kernel.FenceMbarInitOp)
    def fence_init(self, _: Interpreter, op: kernel.FenceMbarInitOp, args: PythonValues) -> PythonValues:
        self.state.fence_barriers()
        return ()

    @impl(kernel.MbarExpectOp)
    def expect(self, _: Interpreter, op: kernel.MbarExpectOp, args: PythonValues) -> PythonValues:
        self.state.arrive(op, args[0], args[1], op.bytes.data)
        return ()

    @impl(kernel.MbarArriveOp)
    def arrive(self, _: Interpreter, op: kernel.MbarArriveOp, args: PythonValues) -> PythonValues:
        values = dict(zip(op.operands, args, strict=True))
        ranks = None if op.rank is None else values[op.rank]
        self.state.arrive(op, values[op.barriers], values[op.index], 0, ranks)  # pyright: ignore[reportArgumentType]
        return ()

    @impl(kernel.MapaOp)
    def peer(self, _: Interpreter, op: kernel.MapaOp, args: PythonValues) -> PythonValues:
        state, ranks = self.state, ranked(args[1], 2)
        for warp, rank, _threads in state.uses(ranks):
            if not 0 <= rank < state.cluster.size:
                state.complain("out-of-bounds", op, f"block {rank} of a cluster of {state.cluster.size}", warp)
        return (replace(args[0], ranks=np.clip(ranks, 0, state.cluster.size - 1)),)

    @impl(kernel.MbarWaitOp)
    def wait(self, _: Interpreter, op: kernel.MbarWaitOp, args: PythonValues) -> PythonValues:
        self.state.pass_wait(op, args)
        return ()

    @impl(kernel.AdvanceOp)
    def advance(self, _: Interpreter, op: kernel.AdvanceOp, args: PythonValues) -> PythonValues:
        slot = np.asarray(args[0]) + 1
        slot = np.where(slot == op.slots.data, 0, slot)
        return slot, np.asarray(args[1]) ^ (slot == 0)

    @impl(kernel.GroupBarrierOp)
    def group_barrier(self, _: Interpreter, op: kernel.GroupBarrierOp, args: PythonValues) -> PythonValues:
        found, count, machine = partition_of(op), op.warps.data, self.state.machine
        first = found[0].first_warp(found[1]) if found is not None else 0
        there, each = machine.active.reshape(-1, 32), machine.block_threads // 32
        for start in sorted({w - (w % each - first) % count for w in self.state.warps()}):
            warps = range(start, min(start + count, start // each * each + each))
            missing = [w for w in warps if not there[w].all()]
            if missing:
                self.state.complain("divergent", op, "does not reach a barrier that others wait at", missing[0])
        return ()

    @impl(kernel.FenceAsyncOp)
    def fence_async(self, _: Interpreter, op: kernel.FenceAsyncOp, args: PythonValues) -> PythonValues:
        return ()

    @impl(kernel.TensorMapOp)
    def tensor_map(self, _: Interpreter, op: kernel.TensorMapOp, args: PythonValues) -> PythonValues:
        return (args[0],)

    @impl(kernel.TmaLoadOp)
    def tma_load(self, _: Interpreter, op: kernel.TmaLoadOp, args: PythonValues) -> PythonValues:
        values = dict(zip(op.operands, args, strict=True))
        tma.start_loads(self.state, op, values, values[op.map])  # pyright: ignore[reportArgumentType]
        return ()

    @impl(kernel.TmaStoreOp)
    def tma_store(self, _: Interpreter, op: kernel.TmaStoreOp, args: PythonValues) -> PythonValues:
        values = dict(zip(op.operands, args, strict=True))
        tma.tma_store(self.state, op, values, values[op.map])  # pyright: ignore[reportArgumentType]
        return ()

    @impl(kernel.BulkCommitOp)
    def bulk_commit(self, _: Interpreter, op: kernel.BulkCommitOp, args: PythonValues) -> PythonValues:
        tma.commit_stores(self.state)
        return ()

    @impl(kernel.BulkWaitOp)
    def bulk_wait(self, _: Interpreter, op: kernel.BulkWaitOp, args: PythonValues) -> PythonValues:
        tma.wait_for_stores(self.state, op)
        return ()

    @impl(kernel.UndefAccumulatorsOp)
    def wgmma_start(self, _: Interpreter, op: kernel.UndefAccumulatorsOp, args: PythonValues) -> PythonValues:
        assert isinstance(op.result.type, AsyncAccumulatorsType)
        t = op.result.type.registers
        shape = (1, self.state.machine.threads, shape_of(t)[0])
        return (np.full(shape, self.threads.domain.constant(float("nan"), element_type(t))),)

    @impl(kernel.RegistersToAccumulatorsOp)
    def wgmma_resume(self, _: Interpreter, op: kernel.RegistersToAccumulatorsOp, args: PythonValues) -> PythonValues:
        self.state.fenced -= set(wgmma.warpgroups(self.state, op))
        return (ranked(args[0], 3),)

    @impl(kernel.WgmmaFenceOp)
    def wgmma_fence(self, _: Interpreter, op: kernel.WgmmaFenceOp, args: PythonValues) -> PythonValues:
        self.state.fenced |= set(wgmma.warpgroups(self.state, op))
        return ()

    @impl(kernel.WgmmaOp)
    def wgmma(self, _: Interpreter, op: kernel.WgmmaOp, args: PythonValues) -> PythonValues:
        return (wgmma.start_wgmma(self.state, op, args),)

    @impl(kernel.WgmmaCommitOp)
    def wgmma_commit(self, _: Interpreter, op: kernel.WgmmaCommitOp, args: PythonValues) -> PythonValues:
        for g in wgmma.warpgroups(self.state, op):
            self.state.closed[g] = self.state.closed.get(g, 0) + 1
        return ()

    @impl(kernel.WgmmaWaitOp)
    def wgmma_wait(self, _: Interpreter, op: kernel.WgmmaWaitOp, args: PythonValues) -> PythonValues:
        return (wgmma.wait_for_wgmmas(self.state, op, args[0]),)
