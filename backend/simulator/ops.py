"""The kernel dialect, executed: all threads of some blocks at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.dialects import func, scf
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Region, SSAValue

from ...dialects import kernel
from ...dialects.layouts.linear import LANES, combine
from ...dialects.payload import AssertOp, element_type, shape_of
from ...dialects.tensor import ReductionKind
from ...errors import ExecutionError
from ..interpreter.domains import Array, TypedDomain, reduce_value
from ..interpreter.payload import stop
from . import cp_async
from .control import Steps, Values, choose, finished, loop
from .machine import Access, Machine, ranked
from .memory_access import combine_global, load_global, load_shared, store_global, store_shared
from .mma import load_matrices, multiply, store_matrices
from .shadow_memory import GlobalBuffer, SharedBuffer


def registers(x: Array, value: SSAValue) -> Array:
    """`x` as [blocks, threads, registers] with all its registers."""
    x = ranked(x, 3)
    return np.broadcast_to(x, (*x.shape[:2], shape_of(value.type)[0]))


def bit_numbers(bits: list[int], size: int) -> Array:
    """For every register number below `size`, the number that its given bits form, the first being bit 0."""
    numbers = np.arange(size)
    return sum((((numbers >> b) & 1) << i for i, b in enumerate(bits)), np.zeros(size, np.int64))


def _at_once(interpreter: Interpreter) -> Callable[[Region, Values], Steps]:
    """Runs regions that never give way."""

    def run(region: Region, args: Values) -> Steps:
        return interpreter.run_ssacfg_region(region, args, "region")
        yield  # a generator that ends at once

    return run


@register_impls
class KernelFunctions(InterpreterFunctions):
    """One thread's program for all threads; `machine` is the launch in progress."""

    machine: Machine
    copies: cp_async.Copies

    def __init__(self, domain: TypedDomain) -> None:
        self.domain = domain

    def stop(self, op: AssertOp, value: Array, wrong: Array) -> None:
        """Raise ExecutionError for an assertion that fails in a thread that runs."""
        rank = len(shape_of(op.result.type))
        wrong = ranked(wrong, 2 + rank) & self.machine.active.reshape(*self.machine.active.shape, *(1,) * rank)
        if wrong.any():
            stop(op, ranked(value, 2 + rank), wrong)

    @impl(kernel.IdOp)
    def id_(self, interpreter: Interpreter, op: kernel.IdOp, args: PythonValues) -> PythonValues:
        thread = np.arange(self.machine.threads, dtype=np.int64)[None, :]
        match op.kind.data:
            case kernel.Id.BLOCK:
                first = self.machine.numbers[:, None]
                return (first if self.machine.cluster == 1 else first + thread // self.machine.block_threads,)
            case kernel.Id.RANK:
                return (thread // self.machine.block_threads,)
            case kernel.Id.THREAD:
                return (thread % self.machine.block_threads,)
            case kernel.Id.LANE:
                return (thread % 32,)
            case kernel.Id.WARP:
                return (thread % self.machine.block_threads // 32,)

    @impl(kernel.SharedOp)
    def shared(self, interpreter: Interpreter, op: kernel.SharedOp, args: PythonValues) -> PythonValues:
        return (self.machine.shared[op],)

    @impl(kernel.BarrierOp)
    def barrier(self, interpreter: Interpreter, op: kernel.BarrierOp, args: PythonValues) -> PythonValues:
        machine = self.machine
        active = machine.active.reshape(-1, machine.block_threads)
        arrive, all_arrive = np.asarray(active.any(axis=1)), np.asarray(active.all(axis=1))
        missing = (~active & (arrive & ~all_arrive)[:, None]).reshape(machine.active.shape)
        machine.find("divergent", op, missing, "{who} does not reach a barrier that others wait at")
        if machine.shadowed:
            machine.epoch += arrive.astype(np.int32)
        if machine.first_runs() and arrive[0]:
            machine.counts.barriers += 1
        return ()

    @impl(kernel.LoadOp)
    def load(self, interpreter: Interpreter, op: kernel.LoadOp, args: PythonValues) -> PythonValues:
        fill = self.domain.constant(0, element_type(op.result.type))
        places = {id(o): v for o, v in zip(op.operands, args, strict=True)}
        if op.fill is not None:
            fill = ranked(places[id(op.fill)], 2)[:, :, None]
        buffer = places[id(op.memory)]
        access = self._access(op, buffer, places)
        if isinstance(buffer, SharedBuffer):
            if buffer.ranks is not None:
                self.machine.reads_peers(op, buffer.ranks)
            return (load_shared(self.machine, op, buffer, access, fill),)
        return (load_global(self.machine, op, buffer, access, fill),)

    @impl(kernel.StoreOp)
    def store(self, interpreter: Interpreter, op: kernel.StoreOp, args: PythonValues) -> PythonValues:
        places = {id(o): v for o, v in zip(op.operands, args, strict=True)}
        buffer, outer = places[id(op.memory)], self.machine.active
        if op.predicate is not None:
            self.machine.active = outer & ranked(places[id(op.predicate)], 2)
        access = self._access(op, buffer, places)
        value = registers(places[id(op.value)], op.value)
        if isinstance(buffer, SharedBuffer):
            store_shared(self.machine, op, buffer, access, value)
        else:
            store_global(self.machine, op, buffer, access, value)
        self.machine.active = outer
        return ()

    @impl(kernel.AtomicRmwOp)
    def atomic_rmw(self, interpreter: Interpreter, op: kernel.AtomicRmwOp, args: PythonValues) -> PythonValues:
        places = {id(o): v for o, v in zip(op.operands, args, strict=True)}
        outer = self.machine.active
        if op.predicate is not None:
            self.machine.active = outer & ranked(places[id(op.predicate)], 2)
        buffer = places[id(op.memory)]
        access = self._access(op, buffer, places)
        combine_global(self.machine, op, buffer, access, registers(places[id(op.value)], op.value))
        self.machine.active = outer
        return ()

    def _access(
        self,
        op: kernel.LoadOp | kernel.StoreOp | kernel.AtomicRmwOp | kernel.CopyAsyncOp,
        buffer: GlobalBuffer | SharedBuffer,
        places: dict[int, Array],
    ) -> Access:
        shape = buffer.shape if isinstance(buffer, GlobalBuffer) else (buffer.data.shape[1],)
        coordinates = tuple(places[id(c)] for c in op.coordinates)
        return self.machine.locate(op, shape, coordinates, tuple(places[id(c)] for c in op.checks))

    @impl(kernel.SubviewOp)
    def slot(self, interpreter: Interpreter, op: kernel.SubviewOp, args: PythonValues) -> PythonValues:
        return (cp_async.slot(self.machine, args[0], op, args[1]),)

    @impl(kernel.CopyAsyncOp)
    def copy_async(self, interpreter: Interpreter, op: kernel.CopyAsyncOp, args: PythonValues) -> PythonValues:
        values = {id(o): v for o, v in zip(op.operands, args, strict=True)}
        machine, outer = self.machine, self.machine.active
        if op.predicate is not None:
            machine.active = outer & ranked(values[id(op.predicate)], 2)
        source, target = values[id(op.memory)], values[id(op.target)]
        access = self._access(op, source, values)
        happens = np.broadcast_to(machine.active[:, :, None], access.mask.shape)
        place = cp_async.places(machine, op, values[id(op.place)])
        cp_async.start_copy(machine, self.copies, op, source, target, access, place, happens)
        machine.active = outer
        return ()

    @impl(kernel.AsyncCommitOp)
    def async_commit(self, interpreter: Interpreter, op: kernel.AsyncCommitOp, args: PythonValues) -> PythonValues:
        cp_async.commit(self.machine, self.copies, op)
        return ()

    @impl(kernel.AsyncWaitOp)
    def async_wait(self, interpreter: Interpreter, op: kernel.AsyncWaitOp, args: PythonValues) -> PythonValues:
        cp_async.wait(self.machine, self.copies, op)
        return ()

    @impl(kernel.ShuffleXorOp)
    def shuffle_xor(self, interpreter: Interpreter, op: kernel.ShuffleXorOp, args: PythonValues) -> PythonValues:
        x = ranked(args[0], 2 + len(shape_of(op.source.type)))
        partner = np.arange(self.machine.threads) ^ op.mask.data
        active = self.machine.active
        alone = active & ~active[:, partner]
        self.machine.find("divergent", op, alone, "{who} shuffles with a lane that is not there")
        return (x if x.shape[1] == 1 else x[:, partner],)

    @impl(kernel.ShuffleOp)
    def shuffle(self, interpreter: Interpreter, op: kernel.ShuffleOp, args: PythonValues) -> PythonValues:
        machine = self.machine
        x, threads = registers(args[0], op.source), np.arange(machine.threads)
        lane = threads % LANES if op.lane is None else ranked(args[1], 2)
        x = np.broadcast_to(x, (*machine.active.shape, x.shape[2]))
        flips = np.array([combine(op.lane_xors, r) for r in range(x.shape[2])])
        machine.find("divergent", op, machine.active & (lane >= LANES), "{who} shuffles with a lane of another warp")
        partner = (threads - threads % LANES)[:, None] + ((lane % LANES)[..., None] ^ flips)
        partner = np.broadcast_to(partner, x.shape)
        found = np.take_along_axis(x, partner, axis=1)
        there = np.take_along_axis(machine.active[..., None], partner, axis=1).all(axis=2)
        machine.find("divergent", op, machine.active & ~there, "{who} shuffles with a lane that is not there")
        return (found,)

    @impl(kernel.PermuteRegistersOp)
    def renumber(self, interpreter: Interpreter, op: kernel.PermuteRegistersOp, args: PythonValues) -> PythonValues:
        x, lane = registers(args[0], op.source), ranked(args[1], 2)
        x = np.broadcast_to(x, (*self.machine.active.shape, x.shape[2]))
        moved = np.zeros_like(lane)
        for bit, move in enumerate(op.reg_xors):
            moved = moved ^ (lane >> bit & 1) * move
        numbers = np.arange(x.shape[2]) ^ moved[..., None]
        return (np.take_along_axis(x, np.broadcast_to(numbers, x.shape), axis=2),)

    @impl(kernel.ReduceRegistersOp)
    def fold(self, interpreter: Interpreter, op: kernel.ReduceRegistersOp, args: PythonValues) -> PythonValues:
        x = registers(args[0], op.source)
        count = shape_of(op.source.type)[0].bit_length() - 1
        x = x.reshape(*x.shape[:2], *(2,) * count)
        axes = tuple(2 + count - 1 - int(b) for b in op.bits.get_values())
        x = reduce_value(self.domain, op.kind.data, x, axes, element_type(op.source.type))
        self._flops(
            shape_of(op.source.type)[0] - shape_of(op.result.type)[0],
            op.kind.data in (ReductionKind.ADD, ReductionKind.MUL),
        )
        return (x.reshape(*x.shape[:2], -1),)

    def _flops(self, registers: int, counts: bool = True) -> None:
        if counts:
            self.machine.counts.flops += registers * int(np.count_nonzero(self.machine.active))

    @impl(kernel.ShuffleRegistersOp)
    def pick(self, interpreter: Interpreter, op: kernel.ShuffleRegistersOp, args: PythonValues) -> PythonValues:
        return (registers(args[0], op.source)[:, :, [int(r) for r in op.registers.get_values()]],)

    @impl(kernel.SplatOp)
    def splat(self, interpreter: Interpreter, op: kernel.SplatOp, args: PythonValues) -> PythonValues:
        return (ranked(args[0], 2)[:, :, None],)

    @impl(kernel.ExtractOp)
    def extract(self, interpreter: Interpreter, op: kernel.ExtractOp, args: PythonValues) -> PythonValues:
        return (registers(args[0], op.source)[:, :, op.register.data],)

    @impl(kernel.IndicesOp)
    def indices(self, interpreter: Interpreter, op: kernel.IndicesOp, args: PythonValues) -> PythonValues:
        steps = [int(s) for s in op.steps.get_values()]
        offsets = np.zeros(1, np.int64)
        for step in steps:
            offsets = np.concatenate([offsets, offsets + step])
        return (ranked(args[0], 2)[:, :, None] + offsets,)

    @impl(kernel.OuterFmaOp)
    def outer_fma(self, interpreter: Interpreter, op: kernel.OuterFmaOp, args: PythonValues) -> PythonValues:
        size, element = shape_of(op.acc.type)[0], element_type(op.acc.type)
        lhs = registers(args[0], op.lhs)[:, :, bit_numbers([int(b) for b in op.rows.get_values()], size)]
        rhs = registers(args[1], op.rhs)[:, :, bit_numbers([int(b) for b in op.cols.get_values()], size)]
        product = self.domain.binary("arith.mulf", lhs, rhs, element)
        self._flops(2 * size)
        return (self.domain.binary("arith.addf", registers(args[2], op.acc), product, element),)

    @impl(kernel.LdMatrixOp)
    def ldmatrix(self, interpreter: Interpreter, op: kernel.LdMatrixOp, args: PythonValues) -> PythonValues:
        return (load_matrices(self.machine, op, args[0], args[1]),)

    @impl(kernel.StMatrixOp)
    def stmatrix(self, interpreter: Interpreter, op: kernel.StMatrixOp, args: PythonValues) -> PythonValues:
        values = dict(zip(op.operands, args, strict=True))
        store_matrices(self.machine, op, values[op.memory], values[op.origin], values[op.value])
        return ()

    @impl(kernel.MmaOp)
    def mma(self, interpreter: Interpreter, op: kernel.MmaOp, args: PythonValues) -> PythonValues:
        return (multiply(self.machine, op, *args),)

    @impl(scf.IfOp)
    def if_(self, interpreter: Interpreter, op: scf.IfOp, args: PythonValues) -> PythonValues:
        return finished(choose(self.machine, op, args, _at_once(interpreter)))

    @impl(scf.ForOp)
    def for_(self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues) -> PythonValues:
        if isinstance(op.parent_op(), func.FuncOp):
            return self._host_loop(interpreter, op, args)
        return finished(loop(self.machine, op, args, _at_once(interpreter)))

    def _host_loop(self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues) -> PythonValues:
        """A loop of `@main`, which no thread runs."""
        state = tuple(args[3:])
        for i in range(*(int(np.asarray(a).reshape(-1)[0]) for a in args[:3])):
            state = interpreter.run_ssacfg_region(op.body, (np.asarray(i), *state), "for")
        return state

    @impl_terminator(scf.YieldOp)
    def yield_(
        self, interpreter: Interpreter, op: scf.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()


class FlopCounter(Interpreter.Listener):
    """Counts the float payload of the threads that are active."""

    def __init__(self, functions: KernelFunctions, names: frozenset[str]) -> None:
        self.functions = functions
        self.names = names

    def did_interpret_op(self, op: object, results: PythonValues) -> None:
        if getattr(op, "name", None) not in self.names:
            return
        machine = self.functions.machine
        size = shape_of(op.results[0].type)  # pyright: ignore
        machine.counts.flops += (size[0] if size else 1) * int(np.count_nonzero(machine.active))


def check_kernel(op: object) -> kernel.FuncOp:
    """`op` as a kernel; raises ExecutionError if it is something else."""
    if not isinstance(op, kernel.FuncOp):
        raise ExecutionError(f"launches {op}, which is no kernel")
    return op
