"""Loops and conditions of a simulated kernel, as generators: a program can stop and go on later."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Region, SSAValue

from ...dialects.payload import shape_of
from ...errors import ExecutionError
from ..interpreter.domains import Array
from ..interpreter.tile import trips
from .machine import Machine, ranked

Values: TypeAlias = tuple[Any, ...]
Ready: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[Ready, None, Values]
"""A program that gives way with the condition under which it can go on, and ends with values."""

_T = TypeVar("_T")


def finished(steps: Generator[Any, None, _T]) -> _T:
    """The result of a program that never gives way."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("a program gave way where nothing else can run")


def loop(machine: Machine, op: scf.ForOp, args: Values, run: Callable[[Region, Values], Steps]) -> Steps:
    """The values that a loop carries to its end; threads may run different numbers of iterations."""
    lower, upper, step = (ranked(a, 2) for a in args[:3])
    state, outer = tuple(args[3:]), machine.active
    most, count = trips(lower, upper, step)
    for i in range(most):
        running = i < count
        machine.active = outer & running
        if not machine.active.any():
            continue
        new = yield from run(op.body, (lower + i * step, *state))
        if np.broadcast_to(running, outer.shape)[outer].all():
            state = new
        else:
            state = tuple(where(running, a, b, r) for a, b, r in zip(new, state, op.results, strict=True))
    machine.active = outer
    return state


def choose(machine: Machine, op: scf.IfOp, args: Values, run: Callable[[Region, Values], Steps]) -> Steps:
    """The results of a conditional; each side runs for the threads that take it."""
    outer, condition = machine.active, ranked(args[0], 2)
    results: list[Values] = []
    for region, chosen in ((op.true_region, condition), (op.false_region, ~condition)):
        machine.active = outer & chosen
        empty = not region.blocks or not machine.active.any()
        results.append(() if empty else (yield from run(region, ())))
    machine.active = outer
    yes, no = results
    if not yes or not no:
        return yes or no
    return tuple(where(condition, a, b, r) for a, b, r in zip(yes, no, op.results, strict=True))


def where(condition: Array, a: Array, b: Array, result: SSAValue) -> Array:
    """One of two values in each thread. Raises ExecutionError for accumulators in flight, which have no threads."""
    if np.asarray(a).dtype == np.object_ or np.asarray(b).dtype == np.object_:
        raise ExecutionError("accumulators in flight that only a part of the threads has")
    rank = len(shape_of(result.type))
    mask = condition.reshape(*condition.shape, *(1,) * rank)
    return np.where(mask, ranked(a, 2 + rank), ranked(b, 2 + rank))
