"""A SIMT simulator of the kernel level: all threads of a block as one array axis, with a shadow of every memory.

It runs a program in any scalar domain and reports, with the op that did it: races between barriers, reads of memory
that was never written, accesses out of bounds or misaligned, barriers that not all threads reach, elements that two
threads write differently, results that nobody writes. It counts bank conflicts, sectors, bytes and operations.

Races and reads of shared memory that was never written are reported where all threads of a block go the same way. In
kernels with TMA, wgmma, warp specialization or clusters the order of accesses is checked by the emulator alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import Attribute

from ...dialects.kernel import LaunchOp
from ...dialects.shapes.binding import bind_sizes
from ...dialects.support.aliasing import IN_PLACE, pairs_of
from ...errors import ExecutionError
from ...progress import steps
from ..interpreter.domains import BINARY, UNARY, Array, TypedDomain
from ..interpreter.eager import Eager
from ..interpreter.payload import PayloadFunctions
from ..interpreter.running import Position, check_arguments, main_function, make_domain
from .launch import HostFunctions
from .ops import FlopCounter, KernelFunctions
from .report import Finding, KernelCounts, Report
from .shadow_memory import GlobalBuffer
from .sm90 import HopperFunctions

__all__ = ["Finding", "KernelCounts", "Report", "SimulationResult", "simulate"]

_FLOPS = (frozenset(UNARY) | frozenset(BINARY)) - {"arith.negf", "math.absf", "math.copysign"}


class SimulationResult(NamedTuple):
    """The results of `@main`, in the representation of the scalar domain, and what was found on the way."""

    outputs: list[Array]
    report: Report


def simulate(
    module: ModuleOp,
    args: Sequence[Array],
    *,
    max_blocks: int | None = None,
    domain: str | TypedDomain = "typed",
    shadows: bool = True,
    eager: Eager | None = None,
) -> SimulationResult:
    """Run `@main` of a program at the kernel level: its first arguments are `args`, the rest its results.

    With `max_blocks` only that many blocks of each launch run, and results may stay unwritten; without `shadows` shared
    memory is not watched for races and reads of what was never written, which is faster. `eager` computes the functions
    that are left to PyTorch. A mistake of the program
    is a finding in the report (`report.raise_errors()` makes it an error), not an exception; a program that cannot be
    run at all, or arguments that do not fit, raise ExecutionError.
    """
    scalars = make_domain(domain) if isinstance(domain, str) else domain
    main = main_function(module)
    types = [_memref(t) for t in main.function_type.inputs]
    if len(args) > len(types):
        raise ExecutionError(f"@main takes {len(types)} buffers, not {len(args)} and results")
    sizes = bind_sizes(main, [np.shape(a) for a in args])
    inputs = check_arguments(types[: len(args)], args, sizes)
    buffers = [
        GlobalBuffer(scalars.encode(a, t.element_type).reshape(-1).copy(), a.shape, t.element_type, None)
        for a, t in zip(inputs, types, strict=False)
    ]
    results = [GlobalBuffer.empty(scalars, sizes.shape(t), t.element_type) for t in types[len(args) :]]
    for result, argument in pairs_of(main, IN_PLACE):
        if not argument < len(args) <= result:
            raise ExecutionError(f"argument {argument} of @main is to hold result {result}, but is none that is given")
        results[result - len(args)] = buffers[argument]
    report, position, threads = Report(), Position(), KernelFunctions(scalars)
    interpreter = Interpreter(module, listeners=(position, FlopCounter(threads, _FLOPS)))
    interpreter.register_implementations(FuncFunctions())
    interpreter.register_implementations(PayloadFunctions(scalars, sizes, threads.stop))
    interpreter.register_implementations(threads)
    hopper = HopperFunctions(threads)
    interpreter.register_implementations(hopper)
    host = HostFunctions(scalars, threads, report, sizes, eager or {})
    host.hopper = hopper
    host.max_blocks, host.shadowed = max_blocks, shadows
    interpreter.register_implementations(host, override=True)
    launches = [op for op in main.walk() if isinstance(op, LaunchOp)]
    known = len(launches) if all(op.parent_op() is main for op in launches) else None
    with position.located(), steps("simulator", known, "launches") as host.step:
        interpreter.call_op(main, (*buffers, *results))
    for i, result in enumerate(results):
        if max_blocks is None and result.written is not None and not result.written.all():
            missing = int(np.count_nonzero(~result.written))
            at = np.unravel_index(int(np.argmin(result.written)), result.shape)
            where = [int(c) for c in at]
            report.add("unwritten", main, f"{missing} elements of result {i} are never written, the first is {where}")
    return SimulationResult([r.data.reshape(r.shape) for r in results], report)


def _memref(t: Attribute) -> MemRefType[Attribute]:
    if not isinstance(t, MemRefType):
        raise ExecutionError(f"@main takes {t}: not at the kernel level, where it takes memrefs")
    return t
