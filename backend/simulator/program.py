"""The body of a kernel, executed: warps may go different ways, and take turns where they wait.

Loops, conditions and partitions are generators: a program gives way with the condition under which it can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import scf
from xdsl.interpreter import Interpreter
from xdsl.ir import Operation, Region, SSAValue

from ...dialects import kernel
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.payload import shape_of
from ..interpreter.domains import BINARY, UNARY, Array, ranked
from ..interpreter.running import Position
from ..interpreter.tile import trips
from .machine import Machine
from .ops import OPERATIONS

Values: TypeAlias = tuple[Any, ...]
Ready: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[Ready, None, Values]
"""A program that gives way with the condition under which it can go on, and ends with values."""

_FLOPS = (frozenset(UNARY) | frozenset(BINARY)) - {"arith.negf", "math.absf", "math.copysign"}


class KernelProgram:
    """Runs some blocks of a kernel, or the blocks of one cluster; `interpreter` executes the payload."""

    def __init__(self, interpreter: Interpreter, position: Position, units: Machine) -> None:
        self.interpreter = interpreter
        self.position = position
        self.units = units

    def run(self, body: Region, args: Sequence[object]) -> None:
        """The whole kernel; a deadlock is a finding, and the end."""
        units, everybody = self.units, self.units.active
        block = np.arange(units.threads)[None, :] // units.block_threads
        programs = [(everybody & (block == r), self._block(body, args, r)) for r in range(units.cluster)]
        for _ in self._turns(programs):
            units.deadlock()
            return

    def _block(self, body: Region, args: Sequence[object], rank: int) -> Steps:
        yield from self._region(body, args, {})
        self.units.meet(ended=rank)
        return ()

    def _turns(self, programs: list[tuple[Array, Steps]]) -> Steps:
        """Run programs, each with its threads, until all have ended; gives way when none of them can go on."""
        waiting: list[tuple[Array, Steps, Ready]] = [(active, steps, lambda: True) for active, steps in programs]
        while waiting:
            turn = next((i for i, (_, _, ready) in enumerate(waiting) if ready()), None)
            if turn is None:
                yield lambda: any(ready() for _, _, ready in waiting)
                continue
            self.units.active, steps, _ = waiting.pop(turn)
            try:
                ready = next(steps)
            except StopIteration:
                continue
            waiting.append((self.units.active, steps, ready))
        return ()

    def _region(self, region: Region, args: Sequence[object], scope: dict[SSAValue, Any]) -> Steps:
        """The values that a region yields; those in `scope` are there already, and its own are added."""
        scope.update(zip(region.block.args, args, strict=True))
        for op in region.block.ops:
            if isinstance(op, scf.YieldOp):
                return tuple(scope[v] for v in op.operands)
            self.position.stack = [op]
            control = CONTROL.get(type(op))
            results = self._execute(op, scope) if control is None else (yield from control(self, op, scope))
            scope.update(zip(op.results, results, strict=True))
        return ()

    def _execute(self, op: Operation, scope: dict[SSAValue, Any]) -> Values:
        run = OPERATIONS.get(type(op))
        if run is not None:
            found = run(self.units, op, scope)
            return () if found is None else found if isinstance(found, tuple) else (found,)
        results = self.interpreter.run_op(op, tuple(scope[v] for v in op.operands))
        if op.name in _FLOPS:
            size = shape_of(op.results[0].type)
            self.units.count_flops(size[0] if size else 1)
        return results

    def _for(self, op: scf.ForOp, scope: dict[SSAValue, Any]) -> Steps:
        """The values that a loop carries to its end; threads may run different numbers of iterations."""
        units, outer = self.units, self.units.active
        lower, upper, step = (ranked(scope[v], 2) for v in (op.lb, op.ub, op.step))
        state = tuple(scope[v] for v in op.iter_args)
        most, count = trips(lower, upper, step)
        for i in range(most):
            running = i < count
            units.active = outer & running
            if not units.active.any():
                continue
            new = yield from self._region(op.body, (lower + i * step, *state), scope)
            if np.broadcast_to(running, outer.shape)[outer].all():
                state = new
            else:
                state = tuple(where(running, a, b, r) for a, b, r in zip(new, state, op.results, strict=True))
        units.active = outer
        return state

    def _if(self, op: scf.IfOp, scope: dict[SSAValue, Any]) -> Steps:
        """The results of a conditional; each side runs for the threads that take it."""
        units, outer, condition = self.units, self.units.active, ranked(scope[op.cond], 2)
        results: list[Values] = []
        for region, chosen in ((op.true_region, condition), (op.false_region, ~condition)):
            units.active = outer & chosen
            empty = not region.blocks or not units.active.any()
            results.append(() if empty else (yield from self._region(region, (), scope)))
        units.active = outer
        yes, no = results
        if not yes or not no:
            return yes or no
        return tuple(where(condition, a, b, r) for a, b, r in zip(yes, no, op.results, strict=True))

    def _until(self, ready: Ready, op: Operation, text: str) -> Steps:
        """Give way until `ready`; a deadlock says that `op` waits `text`."""
        units, active = self.units, self.units.active
        if not ready():
            thread = units.running()[0]
            units.waits[thread] = op, text
            yield ready
            units.active = active
            del units.waits[thread]
        return ()

    def _wait(self, op: kernel.MbarWaitOp, scope: dict[SSAValue, Any]) -> Steps:
        """A wait for the phase of an mbarrier."""
        wanted, index = self.units.uniform(scope[op.parity]), self.units.uniform(scope[op.index])
        found = set(self.units.barriers(op, scope[op.barriers], scope[op.index]))
        text = f"for parity {wanted} of mbarrier {index}"
        return self._until(lambda: all(b.phase % 2 != wanted for b in found), op, text)

    def _cluster_barrier(self, op: kernel.ClusterBarrierOp, scope: dict[SSAValue, Any]) -> Steps:
        """The block waits for the others of its cluster."""
        units, before = self.units, self.units.cluster_phase
        units.barrier_of_block(op)
        units.meet(int(units.rows[0, units.running()[0]]))
        return self._until(lambda: units.cluster_phase > before, op, "for the other blocks of its cluster")

    def _partitions(self, op: kernel.WarpSpecializeOp, scope: dict[SSAValue, Any]) -> Steps:
        units, outer = self.units, self.units.active
        warp = np.arange(units.threads)[None, :] % units.block_threads // 32
        programs: list[tuple[Array, Steps]] = []
        for number, (count, program) in enumerate(zip(op.partition_warps, op.programs, strict=True)):
            first = op.first_warp(number)
            mine = ranked(outer & (warp >= first) & (warp < first + count), 2)
            programs.append((mine, self._region(program, (warp - first,), dict(scope))))
        yield from self._turns(programs)
        units.active = outer
        return ()


CONTROL: dict[type[Operation], Callable[[KernelProgram, Any, dict[SSAValue, Any]], Steps]] = {
    scf.ForOp: KernelProgram._for,
    scf.IfOp: KernelProgram._if,
    kernel.MbarWaitOp: KernelProgram._wait,
    kernel.ClusterBarrierOp: KernelProgram._cluster_barrier,
    kernel.WarpSpecializeOp: KernelProgram._partitions,
}
"""What holds other operations, or waits."""


def where(condition: Array, a: Array, b: Array, result: SSAValue) -> Array:
    """One of two values in each thread."""
    t = result.type.registers if isinstance(result.type, AsyncAccumulatorsType) else result.type
    rank = len(shape_of(t))
    mask = condition.reshape(*condition.shape, *(1,) * rank)
    return np.where(mask, ranked(a, 2 + rank), ranked(b, 2 + rank))
