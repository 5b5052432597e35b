"""Kernels whose warps go different ways: each partition is a program of its own, and they take turns where they
wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects import scf
from xdsl.interpreter import Interpreter
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.scoped_dict import ScopedDict

from ...dialects import kernel
from ...dialects.kernel.warp_specialize import launch_registers
from ..interpreter.domains import Array
from .async_units import AsyncUnits
from .control import Ready, Steps, Values, choose, loop
from .machine import Machine, ranked

Scope = ScopedDict[SSAValue, object]


class WarpPrograms:
    """Runs one block of a kernel with asynchronous operations, or the blocks of one cluster."""

    def __init__(self, interpreter: Interpreter, machine: Machine, state: AsyncUnits) -> None:
        self.interpreter = interpreter
        self.machine = machine
        self.state = state

    def run(self, body: Region, args: Sequence[object]) -> None:
        """The whole kernel. What is on its way arrives when nobody can go on; a deadlock is a finding, and the end."""
        machine, everybody = self.machine, self.machine.active
        block = np.arange(machine.threads)[None, :] // machine.block_threads
        programs = [(everybody & (block == r), self._block_program(body, args, r)) for r in range(machine.cluster)]
        steps = self._turns(programs)
        for ready in steps:
            while not ready():
                if not self.state.deliver():
                    self.state.deadlock()
                    return

    def _block_program(self, body: Region, args: Sequence[object], rank: int) -> Steps:
        yield from self._region(body, tuple(args), Scope())
        self.state.end(rank)
        return ()

    def _turns(self, programs: list[tuple[Array, Steps]]) -> Steps:
        """Run programs, each with its threads, until all have ended; gives way when none of them can go on."""
        waiting: list[tuple[Array, Steps, Ready]] = [(active, steps, lambda: True) for active, steps in programs]
        while waiting:
            turn = next((i for i, (_, _, ready) in enumerate(waiting) if ready()), None)
            if turn is None:
                yield lambda: any(ready() for _, _, ready in waiting)
                continue
            self.machine.active, steps, _ = waiting.pop(turn)
            try:
                ready = next(steps)
            except StopIteration:
                continue
            waiting.append((self.machine.active, steps, ready))
        return ()

    def _region(self, region: Region, args: Values, scope: Scope) -> Steps:
        inner = Scope(parent=scope)
        block = region.block
        for argument, value in zip(block.args, args, strict=True):
            inner[argument] = value
        return (yield from self._block(block, inner))

    def _block(self, block: Block, scope: Scope) -> Steps:
        machine = self.machine
        for op in block.ops:
            args = tuple(scope[v] for v in op.operands)
            if isinstance(op, scf.YieldOp):
                return args
            results: Values = ()
            if isinstance(op, scf.ForOp):
                results = yield from loop(machine, op, args, lambda r, a: self._region(r, a, scope))
            elif isinstance(op, scf.IfOp):
                results = yield from choose(machine, op, args, lambda r, a: self._region(r, a, scope))
            elif isinstance(op, kernel.WarpSpecializeOp):
                yield from self._roles(op, scope)
            elif isinstance(op, kernel.ClusterBarrierOp):
                yield from self._meet(op)
            else:
                if isinstance(op, kernel.MbarWaitOp):
                    ready = self.state.ready(op, args)
                    if not ready():
                        active = machine.active
                        yield ready
                        machine.active = active
                results = self.interpreter.run_op(op, args)
            for result, value in zip(op.results, results, strict=True):
                scope[result] = value
        return ()

    def _roles(self, op: kernel.WarpSpecializeOp, scope: Scope) -> Steps:
        machine, outer = self.machine, self.machine.active
        warp = np.arange(machine.threads)[None, :] % machine.block_threads // 32
        programs: list[tuple[Array, Steps]] = []
        for number, (count, program) in enumerate(zip(op.partition_warps, op.programs, strict=True)):
            first = op.first_warp(number)
            mine = ranked(outer & (warp >= first) & (warp < first + count), 2)
            programs.append((mine, self._role(op, number, self._region(program, (warp - first,), scope))))
        yield from self._turns(programs)
        machine.active = outer
        return ()

    def _role(self, op: kernel.WarpSpecializeOp, number: int, program: Steps) -> Steps:
        """A partition's program, once its warps have the registers that it says: it waits for what others give up."""
        machine, state, active = self.machine, self.state, self.machine.active
        if op.partition_registers:
            wanted, launched = op.partition_registers[number], launch_registers(machine.block_threads, op.blocks_per_sm)
            more = 32 * op.partition_warps[number] * (wanted - launched)
            warp = int(np.flatnonzero(active[0])[0]) // 32
            free, rank = state.free_registers, state.cluster.rank_of(warp)
            if more > free[rank]:
                state.waits[warp] = (op, f"for {wanted} registers a thread ({launched} at the launch)")
                yield lambda: more <= free[rank]
                machine.active = active
                del state.waits[warp]
            free[rank] -= more
        return (yield from program)

    def _meet(self, op: kernel.ClusterBarrierOp) -> Steps:
        """The block waits for the others of its cluster."""
        machine, cluster, active = self.machine, self.state.cluster, self.machine.active
        warp = int(np.flatnonzero(active[0])[0]) // 32
        rank = cluster.rank_of(warp)
        block = np.arange(machine.threads)[None, :] // machine.block_threads == rank
        machine.find("divergent", op, block & ~active, "{who} does not reach a barrier that others wait at")
        if machine.first_runs():
            machine.counts.barriers += 1
        before = cluster.phase
        cluster.arrive(rank)
        if cluster.phase == before:
            self.state.waits[warp] = (op, "for the other blocks of its cluster")
            yield lambda: cluster.phase > before
            machine.active = active
        self.state.waits.pop(warp, None)
        return ()
