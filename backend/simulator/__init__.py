"""A SIMT simulator of the kernel level: all threads of a block as one array axis.

It runs a program in any scalar domain and reports, with the op that did it: reads of memory that was never written,
accesses out of bounds or misaligned, barriers that not all threads reach, elements that two threads write differently,
results that nobody writes. It counts bank conflicts, sectors, bytes and operations. What orders accesses, and so data
races, is the emulator's: threads run in step here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute
from xdsl.traits import SymbolTable

from ...dialects import kernel
from ...dialects.kernel import kernel_names
from ...dialects.shapes.binding import bind_sizes
from ...dialects.shapes.extents import static
from ...errors import ExecutionError
from ...progress import steps
from ..dtypes import numpy_dtype
from ..host.launch_plan import EagerStep, make_plan
from ..interpreter.domains import Array, TypedDomain
from ..interpreter.running import Eager, Position, call_eager, check_arguments, main_function, make_domain
from .memory import GlobalBuffer
from .program import Launcher
from .report import Finding, KernelCounts, Report

__all__ = ["Finding", "KernelCounts", "Report", "SimulationResult", "simulate"]


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
    eager: Eager | None = None,
) -> SimulationResult:
    """Run `@main` of a program at the kernel level: its first arguments are `args`, the rest its results.

    With `max_blocks` only that many blocks of each launch run, and results may stay unwritten. `eager` computes the
    functions that are left to PyTorch. A mistake of the program is a finding in the report (`report.raise_errors()`
    makes it an error), not an exception; a program that cannot be run at all, or arguments that do not fit, raise
    ExecutionError.
    """
    scalars = make_domain(domain) if isinstance(domain, str) else domain
    main = main_function(module)
    types = [_memref(t) for t in main.function_type.inputs]
    if len(args) > len(types):
        raise ExecutionError(f"@main takes {len(types)} buffers, not {len(args)} and results")
    sizes = bind_sizes(main, [np.shape(a) for a in args])
    inputs = check_arguments(types[: len(args)], args, sizes)
    plan = make_plan(module).at([a.shape for a in inputs])
    memory = [
        GlobalBuffer(scalars.encode(a, t.element_type).reshape(-1).copy(), a.shape, t.element_type, None)
        for a, t in zip(inputs, types, strict=False)
    ]
    memory += [GlobalBuffer.empty(scalars, static(b.shape), b.element) for b in plan.buffers[len(args) :]]
    for result, argument in plan.in_place:
        if not argument < len(args) <= result:
            raise ExecutionError(f"argument {argument} of @main is to hold result {result}, but is none that is given")
        memory[result] = memory[argument]
    report, position = Report(), Position()
    interpreter = Interpreter(module, listeners=(position,))
    launcher = Launcher(interpreter, position, scalars, report, sizes)
    symbols = {cuda: symbol for symbol, cuda in kernel_names(module).items()}
    with position.located(), steps("simulator", len(plan.launches), "launches") as step:
        for x in plan.steps:
            if isinstance(x, EagerStep):
                _run_eager(x, memory, scalars, eager or {})
                continue
            function = SymbolTable.lookup_symbol(module, symbols[x.kernel])
            assert isinstance(function, kernel.FuncOp)
            buffers = [memory[i] for i in x.buffers]
            begins = {i: begin for i, begin, _ in x.parts}
            for i, argument in enumerate(function.body.block.args):
                buffers[i] = buffers[i].view(begins.get(i, 0) // buffers[i].itemsize, sizes.shape(argument.type))
            blocks, cluster = math.prod(x.blocks), function.cluster_size
            blocks = blocks if max_blocks is None else min(blocks, -(-max_blocks // cluster) * cluster)
            launcher.launch(function, buffers, blocks)
            step()
    results = [memory[i] for i in range(len(args), len(types))]
    for i, result in enumerate(results):
        if max_blocks is None and result.written is not None and not result.written.all():
            missing = int(np.count_nonzero(~result.written))
            at = np.unravel_index(int(np.argmin(result.written)), result.shape)
            where = [int(c) for c in at]
            report.add("unwritten", main, f"{missing} elements of result {i} are never written, the first is {where}")
    return SimulationResult([r.data.reshape(r.shape) for r in results], report)


def _run_eager(step: EagerStep, memory: Sequence[GlobalBuffer], domain: TypedDomain, eager: Eager) -> None:
    """Let PyTorch compute a step."""
    outputs = [memory[i] for i in step.outputs]
    given = [memory[i].data.reshape(memory[i].shape) for i in step.inputs]
    results = call_eager(step.function, eager, given, [(numpy_dtype(b.element), b.shape) for b in outputs])
    for buffer, result in zip(outputs, results, strict=True):
        buffer.data[...] = domain.encode(result, buffer.element).reshape(-1)
        if buffer.written is not None:
            buffer.written[...] = True


def _memref(t: Attribute) -> MemRefType[Attribute]:
    if not isinstance(t, MemRefType):
        raise ExecutionError(f"@main takes {t}: not at the kernel level, where it takes memrefs")
    return t
