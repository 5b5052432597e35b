"""Kernels whose warps go different ways: each role is a program of its own, and they take turns where they wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects import scf
from xdsl.interpreter import Interpreter
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.scoped_dict import ScopedDict

from ...dialects import kernel
from ..interpreter.domains import Array
from .asynchronous import Asynchronous
from .control import Ready, Steps, Values, choose, loop
from .machine import Machine, ranked

Scope = ScopedDict[SSAValue, object]


class Stuck(Exception):
    """Nobody can go on."""


class Processes:
    """Runs one block of a kernel with asynchronous operations."""

    def __init__(self, interpreter: Interpreter, machine: Machine, state: Asynchronous) -> None:
        self.interpreter = interpreter
        self.machine = machine
        self.state = state

    def run(self, body: Region, args: Sequence[object]) -> None:
        """The whole kernel. A deadlock is a finding, and ends the block."""
        try:
            self.turns([(self.machine.active, self._region(body, tuple(args), Scope()))])
        except Stuck:
            return
        self.state.end()

    def turns(self, programs: list[tuple[Array, Steps]]) -> None:
        """Run programs, each with its threads, until all have ended. Raises Stuck if they cannot."""
        waiting: list[tuple[Array, Steps, Ready]] = [(active, steps, lambda: True) for active, steps in programs]
        while waiting:
            turn = next((i for i, (_, _, ready) in enumerate(waiting) if ready()), None)
            if turn is None:
                if not self.state.deliver():
                    self.state.deadlock()
                    raise Stuck
                continue
            self.machine.active, steps, _ = waiting.pop(turn)
            try:
                ready = next(steps)
            except StopIteration:
                continue
            waiting.append((self.machine.active, steps, ready))

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
            elif isinstance(op, kernel.RolesOp):
                yield from self._roles(op, scope)
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

    def _roles(self, op: kernel.RolesOp, scope: Scope) -> Steps:
        machine, outer = self.machine, self.machine.active
        warp = np.arange(machine.threads)[None, :] // 32
        programs: list[tuple[Array, Steps]] = []
        for number, (count, program) in enumerate(zip(op.role_warps, op.programs, strict=True)):
            first = op.first_warp(number)
            mine = ranked(outer & (warp >= first) & (warp < first + count), 2)
            programs.append((mine, self._region(program, (warp - first,), scope)))
        self.turns(programs)
        machine.active = outer
        return ()
        yield  # a generator, like everything that runs a program
