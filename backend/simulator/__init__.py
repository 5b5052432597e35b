"""Executor `simulator`: runs programs at the kernel level on the CPU. The threads of a block are one axis of arrays.

It computes in any scalar domain (floats, or the exact domain). It reports errors with the responsible op:

- reads of unwritten memory, and results that are never written;
- accesses that are out of bounds or misaligned;
- barriers that some threads do not reach;
- different values that two threads write to one element.

It counts bank conflicts, sectors, bytes and operations. Its threads run in lockstep, so a data race changes no result.
`simulate(races=True)` finds races for shared memory in kernels that synchronise by `kernel.barrier` only (`races.py`);
the emulator finds all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp, i64
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.traits import SymbolTable

from ...dialects import kernel, payload
from ...dialects.kernel import kernel_names
from ...dialects.kernel.barriers import WARPGROUP, partition_of
from ...dialects.kernel.copies import SWIZZLED_ALIGNMENT
from ...dialects.kernel.memory import memory_bytes, shape_of_memory
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.binding import Sizes, bind_sizes
from ...dialects.shapes.extents import static
from ...dialects.support.calls import main_function
from ...errors import ExecutionError
from ...progress import steps
from ..dtypes import numpy_dtype
from ..host.launch_plan import EagerStep, Launch, LaunchPlan, make_plan
from ..host.segments import Segments
from ..interpreter.domains import BINARY, UNARY, Array, TypedDomain, ranked
from ..interpreter.payload import PayloadFunctions, stop
from ..interpreter.running import Eager, Position, call_eager, check_arguments, make_domain, register_plugins
from ..interpreter.tile import trips
from .machine import Machine
from .memory import GlobalBuffer, SharedBuffer, poison
from .ops import OPERATIONS
from .races import RaceDetector
from .report import Finding, KernelCounts, Report

Values: TypeAlias = tuple[Any, ...]
Ready: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[Ready, None, Values]
"""Coroutine that executes IR for some threads. It yields conditions under which it can continue, and returns values."""

_FLOPS = (frozenset(UNARY) | frozenset(BINARY)) - {"arith.negf", "math.absf", "math.copysign"}

MAX_ELEMENTS = 1 << 22
"""Largest number of elements of a value. Larger grids run in batches of blocks."""

ASYNCHRONOUS = (
    kernel.WarpSpecializeOp,
    kernel.MbarInitOp,
    kernel.TmaStoreOp,
    kernel.WgmmaOp,
    kernel.GroupBarrierOp,
    kernel.FenceAsyncOp,
)
"""Operations of asynchronous kernels. TMA loads need an mbarrier, so `MbarInitOp` detects them."""


@dataclass
class Launcher:
    """Executor of the launches of a program, one after the other.

    Attributes:
        position: op that is running.
        machine: state of the running blocks.
        races: whether races for shared memory are reported.
    """

    interpreter: Interpreter
    position: Position
    domain: TypedDomain
    report: Report
    sizes: Sizes
    races: bool = False
    machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        self.interpreter.register_implementations(PayloadFunctions(self.domain, self.sizes, self._stop))
        register_plugins(self.interpreter, self.domain, self.sizes)

    def _stop(self, op: payload.AssertOp, value: Array, wrong: Array) -> None:
        rank, active = len(shape_of(op.result.type)), self.machine.active
        wrong = ranked(wrong, 2 + rank) & active.reshape(*active.shape, *(1,) * rank)
        if wrong.any():
            stop(op, ranked(value, 2 + rank), wrong)

    def launch(self, function: kernel.FuncOp, buffers: Sequence[GlobalBuffer], blocks: int) -> None:
        """Runs the first `blocks` blocks of a kernel.

        Args:
            function: the kernel.
            buffers: its arguments.
            blocks: number of blocks.
        """
        for position, buffer in enumerate(buffers):
            buffer.writer, buffer.position = None, position
        counts = KernelCounts(function.sym_name.data, blocks)
        self.report.launches.append(counts)
        size = function.cluster_size
        if size > 1 and function.warps.data % WARPGROUP and any(isinstance(o, kernel.WgmmaOp) for o in function.walk()):
            raise ExecutionError(
                f"expected a multiple of {WARPGROUP} warps for wgmma in a cluster, but got {function.warps.data}; "
                "use blocks of whole warpgroups"
            )
        with steps(f"simulating {counts.kernel}", blocks, "blocks") as step:
            blocks_at_once = size if is_asynchronous(function) else batch_size(function)
            for first in range(0, blocks, blocks_at_once):
                last = min(first + blocks_at_once, blocks)
                blocks_run = np.arange(first, last, dtype=np.int64)[::size]
                head = self.domain, self.report, counts, blocks_run, function.threads * size, first == 0
                self.machine = Machine(*head, self.sizes, size)
                place_shared(self.machine, function)
                if self.races:
                    self.machine.races = detector_of(function, self.machine)
                self._run(function.body, buffers)
                step(last - first)

    def _run(self, body: Region, args: Sequence[object]) -> None:
        """Runs the body of a kernel. A deadlock is reported and ends the run."""
        machine, everybody = self.machine, self.machine.active
        block = np.arange(machine.threads)[None, :] // machine.block_threads
        programs = [(everybody & (block == r), self._block(body, args, r)) for r in range(machine.cluster)]
        for _ in self._turns(programs):
            machine.deadlock()
            return

    def _block(self, body: Region, args: Sequence[object], rank: int) -> Steps:
        yield from self._region(body, args, {})
        self.machine.meet(ended=rank)
        return ()

    def _turns(self, programs: list[tuple[Array, Steps]]) -> Steps:
        """Runs several coroutines alternately, until all have ended. Yields if none of them can continue."""
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

    def _region(self, region: Region, args: Sequence[object], scope: dict[SSAValue, Any]) -> Steps:
        """Runs a region. Returns the values that it yields.

        Args:
            region: the region.
            args: values of its arguments.
            scope: values that are defined so far. Values of the region are added.
        """
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
            result = run(self.machine, op, scope)
            return () if result is None else result if isinstance(result, tuple) else (result,)
        results = self.interpreter.run_op(op, tuple(scope[v] for v in op.operands))
        if op.name in _FLOPS:
            size = shape_of(op.results[0].type)
            self.machine.count_flops(size[0] if size else 1)
        return results

    def _for(self, op: scf.ForOp, scope: dict[SSAValue, Any]) -> Steps:
        """Runs a loop, whose trip count may differ between threads. Returns its carried values."""
        machine, outer = self.machine, self.machine.active
        lower, upper, step = (ranked(scope[v], 2) for v in (op.lb, op.ub, op.step))
        state = tuple(scope[v] for v in op.iter_args)
        most, count = trips(lower, upper, step)
        for i in range(most):
            running = i < count
            machine.active = outer & running
            if not machine.active.any():
                continue
            new = yield from self._region(op.body, (lower + i * step, *state), scope)
            if np.broadcast_to(running, outer.shape)[outer].all():
                state = new
            else:
                state = tuple(where(running, a, b, r) for a, b, r in zip(new, state, op.results, strict=True))
        machine.active = outer
        return state

    def _if(self, op: scf.IfOp, scope: dict[SSAValue, Any]) -> Steps:
        """Runs the branches of a conditional for the threads that take them. Returns its results."""
        machine, outer, condition = self.machine, self.machine.active, ranked(scope[op.cond], 2)
        results: list[Values] = []
        for region, chosen in ((op.true_region, condition), (op.false_region, ~condition)):
            machine.active = outer & chosen
            empty = not region.blocks or not machine.active.any()
            results.append(() if empty else (yield from self._region(region, (), scope)))
        machine.active = outer
        yes, no = results
        if not yes or not no:
            return yes or no
        return tuple(where(condition, a, b, r) for a, b, r in zip(yes, no, op.results, strict=True))

    def _until(self, ready: Ready, op: Operation, text: str) -> Steps:
        """Yields until `ready`.

        Args:
            ready: condition.
            op: op that waits, for the report of a deadlock.
            text: condition as text.
        """
        machine, active = self.machine, self.machine.active
        if not ready():
            thread = machine.running()[0]
            machine.waits[thread] = op, text
            yield ready
            machine.active = active
            del machine.waits[thread]
        return ()

    def _wait(self, op: kernel.MbarWaitOp, scope: dict[SSAValue, Any]) -> Steps:
        awaited, index = self.machine.uniform(scope[op.parity]), self.machine.uniform(scope[op.index])
        mbarriers = set(self.machine.barriers(op, scope[op.barriers], scope[op.index]))
        text = f"for parity {awaited} of mbarrier {index}"
        return self._until(lambda: all(b.phase % 2 != awaited for b in mbarriers), op, text)

    def _cluster_barrier(self, op: kernel.ClusterBarrierOp, scope: dict[SSAValue, Any]) -> Steps:
        """Executes `kernel.cluster_barrier`: a block, or a partition of its warps, waits for its cluster."""
        machine, before = self.machine, self.machine.cluster_phase
        if partition_of(op) is None:
            machine.barrier_of_block(op)
            machine.meet(machine.active[0].reshape(machine.cluster, -1).any(axis=1).repeat(machine.block_threads))
        else:
            machine.together(op, "is at a barrier of the cluster")
            machine.meet(machine.active[0])
        return self._until(lambda: machine.cluster_phase > before, op, "for the other blocks of its cluster")

    def _partitions(self, op: kernel.WarpSpecializeOp, scope: dict[SSAValue, Any]) -> Steps:
        machine, outer = self.machine, self.machine.active
        warp = np.arange(machine.threads)[None, :] % machine.block_threads // 32
        programs: list[tuple[Array, Steps]] = []
        for number, (count, program) in enumerate(zip(op.partition_warps, op.programs, strict=True)):
            first = op.first_warp(number)
            mine = ranked(outer & (warp >= first) & (warp < first + count), 2)
            programs.append((mine, self._region(program, (warp - first,), dict(scope))))
        yield from self._turns(programs)
        machine.active = outer
        return ()


CONTROL: dict[type[Operation], Callable[[Launcher, Any, dict[SSAValue, Any]], Steps]] = {
    scf.ForOp: Launcher._for,
    scf.IfOp: Launcher._if,
    kernel.MbarWaitOp: Launcher._wait,
    kernel.ClusterBarrierOp: Launcher._cluster_barrier,
    kernel.WarpSpecializeOp: Launcher._partitions,
}
"""Op that contains other ops, or waits -> coroutine that runs it."""


def is_asynchronous(function: kernel.FuncOp) -> bool:
    """Returns true for kernels whose blocks or clusters are simulated one at a time.

    They have asynchronous ops, clusters, or warps with different programs.
    """
    return function.cluster_size > 1 or any(isinstance(op, ASYNCHRONOUS) for op in function.walk())


def batch_size(function: kernel.FuncOp) -> int:
    """Returns the number of blocks that run in one batch, limited by `MAX_ELEMENTS`."""
    widest = max((math.prod(shape_of(r.type)) for op in function.walk() for r in op.results), default=1)
    shared = sum(op.result.type.get_shape()[0] for op in function.walk() if isinstance(op, kernel.SharedOp))  # pyright: ignore
    return max(1, MAX_ELEMENTS // max(function.threads * widest, shared))


def place_shared(machine: Machine, function: kernel.FuncOp) -> None:
    """Allocates the shared buffers of a kernel: at their offsets, or consecutively if they have none yet."""
    ops = [op for op in function.walk() if isinstance(op, kernel.SharedOp)]
    sizes = [memory_bytes(op.result.type) for op in ops]
    ends = [op.offset.data + size for op, size in zip(ops, sizes, strict=True) if op.offset is not None]
    end = max(ends, default=0)
    if function.shared is not None and end > function.shared.data:
        last = [op for op in ops if op.offset is not None][ends.index(end)]
        text = f"ends at byte {end} of {function.shared.data} bytes of shared memory"
        machine.report.add("out-of-bounds", last, text)
    blocks, alignment = len(machine.numbers) * machine.cluster, SWIZZLED_ALIGNMENT if is_asynchronous(function) else 16
    for op, size in zip(ops, sizes, strict=True):
        offset = -(-end // alignment) * alignment if op.offset is None else op.offset.data
        end = offset + size if op.offset is None else end
        element, shape = element_type(op.result.type), (blocks, *shape_of_memory(op.result.type))
        if isinstance(element, kernel.MbarrierType):
            data, element = np.full(shape, None), i64
        else:
            data = np.full(shape, poison(machine.domain, element), machine.domain.dtype(element))
        machine.shared[op] = SharedBuffer(data, np.zeros(shape, np.bool_), element, offset, shape[1])


def detector_of(function: kernel.FuncOp, machine: Machine) -> RaceDetector:
    """Returns a detector of races for the shared memory of a kernel.

    Args:
        function: the kernel.
        machine: its blocks, with their shared buffers.

    Raises:
        ExecutionError: the kernel has asynchronous operations or clusters, for which the emulator finds races.
    """
    if is_asynchronous(function) or any(isinstance(op, kernel.CopyAsyncOp) for op in function.walk()):
        raise ExecutionError("expected a kernel without asynchronous operations to look for races; use the emulator")
    sizes = (b.offset + b.size * b.itemsize for b in machine.shared.values())
    return RaceDetector(len(machine.numbers), max(sizes, default=0))


def where(condition: Array, a: Array, b: Array, result: SSAValue) -> Array:
    t = result.type.registers if isinstance(result.type, AsyncAccumulatorsType) else result.type
    rank = len(shape_of(t))
    mask = condition.reshape(*condition.shape, *(1,) * rank)
    return np.where(mask, ranked(a, 2 + rank), ranked(b, 2 + rank))


__all__ = ["Finding", "KernelCounts", "Report", "SimulationResult", "simulate"]


class SimulationResult(NamedTuple):
    """Results of `@main`, as values of the scalar domain (floats, or exact residues), and the report of errors."""

    outputs: list[Array]
    report: Report


def simulate(
    module: ModuleOp,
    args: Sequence[Array],
    *,
    max_blocks: int | None = None,
    domain: str | TypedDomain = "typed",
    eager: Eager | None = None,
    races: bool = False,
) -> SimulationResult:
    """Runs `@main` of a program at the kernel level.

    Errors of the program are findings in the report; `report.raise_errors()` raises them.

    Args:
        module: the program.
        args: first arguments of `@main`. The other arguments are its results.
        max_blocks: largest number of blocks of a launch that run. Results may then stay unwritten.
        domain: scalar domain, or its name.
        eager: functions that PyTorch computes, by name.
        races: whether races for shared memory are reported. The kernels must not have asynchronous operations.

    Raises:
        ExecutionError: if the program cannot be run, or the arguments do not fit.
    """
    scalars = make_domain(domain) if isinstance(domain, str) else domain
    main = main_function(module)
    types = [_memref(t) for t in main.function_type.inputs]
    if len(args) > len(types):
        raise ExecutionError(f"expected at most {len(types)} arguments, the parameters of @main, but got {len(args)}")
    sizes = bind_sizes(main, [np.shape(a) for a in args])
    inputs = check_arguments(types[: len(args)], args, sizes)
    simulation = _Simulation(module, scalars, max_blocks, eager or {}, races)
    plan = replace(make_plan(module).at([a.shape for a in inputs]), inputs=len(args))
    for result, argument in plan.in_place:
        if not argument < len(args) <= result:
            raise ExecutionError(
                f"argument {argument} of @main must hold result {result}, but is not one of the {len(args)} arguments"
            )
    memory = [
        GlobalBuffer(scalars.encode(a, t.element_type).reshape(-1).copy(), a.shape, t.element_type, None)
        for a, t in zip(inputs, types, strict=False)
    ]
    with simulation.position.located(), steps("simulator", len(plan.launches), "launches") as step:
        simulation.step = step
        if plan.reads_sizes:
            results = Segments(plan, _with_sizes, simulation.run, lambda b: int(b.data[0])).run(memory)
        else:
            results = simulation.run((plan, sizes), memory)
    report = simulation.report
    for i, result in enumerate(results):
        if max_blocks is None and result.written is not None and not result.written.all():
            missing = int(np.count_nonzero(~result.written))
            at = np.unravel_index(int(np.argmin(result.written)), result.shape)
            where = [int(c) for c in at]
            report.add("unwritten", main, f"{missing} elements of result {i} are never written, the first is {where}")
    return SimulationResult([r.data.reshape(r.shape) for r in results], report)


Placed: TypeAlias = tuple[LaunchPlan, Sizes]
"""Plan with static sizes, and the values of the symbols."""


def _with_sizes(plan: LaunchPlan, sizes: Sizes) -> Placed:
    return plan, sizes


class _Simulation:
    """Execution of the launch plans of a module.

    Attributes:
        report: errors and counts so far.
        position: op that is running.
        step: called after each launch, for progress reports.
    """

    def __init__(
        self, module: ModuleOp, domain: TypedDomain, max_blocks: int | None, eager: Eager, races: bool = False
    ) -> None:
        self._module, self._domain, self._max_blocks, self._eager = module, domain, max_blocks, eager
        self._races = races
        self._symbols = {cuda: symbol for symbol, cuda in kernel_names(module).items()}
        self.report, self.position = Report(), Position()
        self.step: Callable[[], object] = lambda: None

    def run(self, placed: Placed, inputs: Sequence[GlobalBuffer]) -> list[GlobalBuffer]:
        """Runs a plan of static sizes on buffers with its inputs, and returns the buffers of its results."""
        plan, sizes = placed
        memory = [*inputs]
        memory += [GlobalBuffer.empty(self._domain, static(b.shape), b.element) for b in plan.buffers[len(inputs) :]]
        for result, argument in plan.in_place:
            memory[result] = memory[argument]
        interpreter = Interpreter(self._module, listeners=(self.position,))
        launcher = Launcher(interpreter, self.position, self._domain, self.report, sizes, self._races)
        for x in plan.steps:
            if isinstance(x, EagerStep):
                _run_eager(x, memory, self._domain, self._eager)
                continue
            assert isinstance(x, Launch)
            function = SymbolTable.lookup_symbol(self._module, self._symbols[x.kernel])
            assert isinstance(function, kernel.FuncOp)
            buffers = [memory[i] for i in x.buffers]
            begins = {i: begin for i, begin, _ in x.parts}
            for i, argument in enumerate(function.body.block.args):
                buffers[i] = buffers[i].view(begins.get(i, 0) // buffers[i].itemsize, sizes.shape(argument.type))
            blocks, cluster = math.prod(x.blocks), function.cluster_size
            blocks = blocks if self._max_blocks is None else min(blocks, -(-self._max_blocks // cluster) * cluster)
            launcher.launch(function, buffers, blocks)
            self.step()
        return memory[plan.inputs : plan.arguments]


def _run_eager(step: EagerStep, memory: Sequence[GlobalBuffer], domain: TypedDomain, eager: Eager) -> None:
    """Runs a step that PyTorch computes.

    Args:
        step: the step.
        memory: all buffers.
        domain: scalar domain.
        eager: functions by name.
    """
    outputs = [memory[i] for i in step.outputs]
    inputs = [memory[i].data.reshape(memory[i].shape) for i in step.inputs]
    results = call_eager(step.function, eager, inputs, [(numpy_dtype(b.element), b.shape) for b in outputs])
    for buffer, result in zip(outputs, results, strict=True):
        buffer.data[...] = domain.encode(result, buffer.element).reshape(-1)
        if buffer.written is not None:
            buffer.written[...] = True


def _memref(t: Attribute) -> MemRefType[Attribute]:
    if not isinstance(t, MemRefType):
        raise ExecutionError(
            f"expected memrefs as parameters of @main, but got {t}; lower the module to the kernel level"
        )
    return t
