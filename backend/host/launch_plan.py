"""Launch plan: the host program as plain data, with the buffers and the steps of a program in order.

A step is a kernel launch, a function that PyTorch computes, or the reading of a size from memory. In the last case
`segments.py` divides the plan at these steps.

`@main` at the kernel level takes inputs and then results as memrefs. The emulator, the runtimes, standalone programs
and statistics use the plan instead of the IR. Scratch buffers are in one allocation, the arena. Buffers whose lifetimes
do not overlap may share memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import kernel
from ...dialects.host import BindSizeOp, bound_sizes
from ...dialects.kernel import is_written, kernel_names, symbols_in, tensor_maps
from ...dialects.payload import ConstantOp, same_elements
from ...dialects.shapes.binding import Sizes, bind_sizes
from ...dialects.shapes.extents import Count, Extent, ExtentError, SymbolAttr, extents_of, static
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.calls import CONSTANT, IN_PLACE, Pairs, eager_results, is_eager, pairs_of
from ...dialects.support.locations import location_text, refused
from ...errors import CompileError, ExecutionError
from ..cpp.writer import index_type
from ..dtypes import DTYPES, dtype_of
from .arena import Lifetime, place

MAX_BLOCKS = 2**31 - 1
"""Largest first extent of a grid, in blocks (CUDA programming guide)."""


@dataclass(frozen=True)
class Buffer:
    """Buffer in global memory.

    Attributes:
        name: name in messages.
        shape: extents, which may be dynamic.
        dtype: element type in the IR, such as `f32` or `i1`, which takes one byte.
        first, last: numbers of the first and last step that use it, or -1 if no step uses it.
        offset: start of a scratch buffer in the arena, in bytes.
        written: whether a step writes it.
        constant: whether its contents are the same in every call.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: str
    first: int = -1
    last: int = -1
    offset: int = 0
    written: bool = False
    constant: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype].numpy

    @property
    def element(self) -> Attribute:
        return DTYPES[self.dtype].element

    @property
    def elements(self) -> int:
        """Number of elements. Raises ExtentError for dynamic extents (`LaunchPlan.at`)."""
        return math.prod(static(self.shape))

    @property
    def bytes(self) -> int:
        return self.elements * self.numpy_dtype.itemsize


@dataclass(frozen=True)
class TensorMap:
    """Descriptor of TMA tiles: a `kernel.tensor_map`.

    Attributes:
        argument: number of the kernel argument that is the tensor.
        shape: extents of the tensor.
        dtype: element type.
        box: extents of a TMA tile.
        swizzle: bytes of a swizzled row, or 0.
    """

    argument: int
    shape: tuple[Extent, ...]
    dtype: str
    box: tuple[int, ...]
    swizzle: int

    @property
    def item(self) -> int:
        return DTYPES[self.dtype].bytes


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel.

    Attributes:
        kernel: name of the kernel in the text.
        grid, threads: up to three extents of the grid and of a block.
        shared: dynamic shared memory of a block in bytes.
        buffers: buffer arguments, as positions in the buffers of the plan.
        parts: (argument, begin, bytes) for arguments that are a part of their buffer; empty for dynamic sizes.
        maps: TMA descriptors, the arguments after `buffers`.
        sizes: integers, the arguments after `maps`.
        size_bytes: bytes of an integer of `sizes`.
        constant: whether its results are the same in every call.
    """

    kernel: str
    grid: tuple[Count, ...]
    threads: tuple[int, ...]
    shared: int
    buffers: tuple[int, ...]
    parts: tuple[tuple[int, int, int], ...] = ()
    maps: tuple[TensorMap, ...] = ()
    sizes: tuple[Extent, ...] = ()
    size_bytes: int = 4
    constant: bool = False

    def begins(self) -> tuple[int, ...]:
        """Returns the start of each argument in its buffer, in bytes."""
        starts = {argument: begin for argument, begin, _ in self.parts}
        return tuple(starts.get(i, 0) for i in range(len(self.buffers)))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents of the grid in blocks. Raises ExtentError for dynamic extents."""
        return static(n if isinstance(n, int) else n.symbol for n in self.grid)

    @property
    def values(self) -> tuple[int, ...]:
        """Integer arguments of the kernel. Raises ExtentError for dynamic sizes."""
        return static(self.sizes)


@dataclass(frozen=True)
class EagerStep:
    """Step that PyTorch computes.

    Attributes:
        function: name of the function.
        inputs, outputs: buffers that it reads and writes, as positions in the buffers of the plan.
    """

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class BindStep:
    """Step that reads a size from memory, and binds a symbol to it.

    Attributes:
        symbol: the symbol.
        buffer: buffer with the size, as a position in the buffers of the plan.
        location: place in the user's source that reads the size, or None.
    """

    symbol: SymbolAttr
    buffer: int
    location: str | None


Step: TypeAlias = Launch | EagerStep | BindStep
"""Step of a program."""


@dataclass(frozen=True)
class LaunchPlan:
    """Steps and buffers of a program.

    Attributes:
        buffers: inputs, results, then scratch buffers.
        steps: steps, in order. Only a plan with dynamic sizes has steps that read a size.
        arguments: number of inputs and results.
        inputs: number of inputs.
        arena_bytes: size of the arena; 0 for dynamic sizes.
        in_place: pairs (result, argument) for results that are written to the memory of an argument.
        constant_bytes: size of the constant buffers, at the end of the arena.
        program: host program of a plan with dynamic sizes, else None.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arguments: int
    inputs: int
    arena_bytes: int = 0
    in_place: Pairs = ()
    constant_bytes: int = 0
    program: HostProgram | None = field(default=None, compare=False)

    @property
    def reads_sizes(self) -> bool:
        """True if sizes depend on data, so that `Segments` must run the program."""
        return self.program is not None and bool(self.program.reads)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(s for s in self.steps if isinstance(s, Launch))

    @property
    def eager(self) -> tuple[EagerStep, ...]:
        return tuple(s for s in self.steps if isinstance(s, EagerStep))

    @property
    def constant_launches(self) -> tuple[Launch, ...]:
        """Launches whose results are the same in every call, because they only depend on constants."""
        return tuple(s for s in self.launches if s.constant)

    @property
    def call_steps(self) -> tuple[Launch | EagerStep, ...]:
        """Steps of a call after the first one: all except constant launches, whose results are reused.

        Steps that read a size are missing: no plan that an executor runs has one.
        """
        return tuple(s for s in self.steps if isinstance(s, EagerStep) or isinstance(s, Launch) and not s.constant)

    def at(self, shapes: Sequence[Sequence[int]]) -> LaunchPlan:
        """Returns the plan for inputs of these shapes, with static sizes and without empty launches.

        If sizes depend on data, only the shapes of the inputs become static.

        Raises:
            ShapeError: for shapes that the program does not take.
            ExecutionError: for a grid that is too large.
        """
        if self.program is None:
            return self
        sizes = bind_sizes(self.program.main, shapes, [b.name for b in self.buffers])
        if not self.program.reads:
            return replace(self.program.plan(sizes), inputs=self.inputs)
        inputs = (replace(b, shape=sizes.numbers(b.shape)) for b in self.input_buffers)
        return replace(self, buffers=(*inputs, *self.buffers[self.inputs :]))

    @property
    def input_buffers(self) -> tuple[Buffer, ...]:
        return self.buffers[: self.inputs]

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        return self.buffers[self.inputs : self.arguments]

    @property
    def call_bytes(self) -> int:
        """Bytes of the arena except its constant buffers: the scratch memory of one call."""
        return self.arena_bytes - self.constant_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call allocates: scratch memory and results. Raises ExtentError for dynamic sizes."""
        if self.program is not None:
            raise ExtentError("the memory of a call depends on dynamic sizes; use LaunchPlan.at")
        places = dict(self.in_place)
        results = enumerate(self.output_buffers, self.inputs)
        return self.call_bytes + sum(b.bytes for i, b in results if i not in places)

    def with_inputs(self, count: int) -> LaunchPlan:
        """Returns the plan in which the first `count` arguments are inputs, and the others results.

        Raises ExecutionError if a kernel writes an input.
        """
        if count > self.arguments:
            raise ExecutionError(f"expected {self.inputs} arguments, but got {count}")
        results, changed = dict(self.in_place), {argument for _, argument in self.in_place}
        for i, buffer in enumerate(self.buffers[:count]):
            if i in results or buffer.written and i not in changed:
                reason = f"{buffer.name} is a result of the program"
                raise ExecutionError(f"expected {self.inputs} arguments, but got {count}: {reason}")
        others = [(i, self.buffers[i]) for i in range(count, self.arguments)]
        missing = [b.name for i, b in others if i in changed or 0 not in b.shape and not b.written and i not in results]
        if missing:
            raise ExecutionError(f"expected {self.inputs} arguments, but got {count}: {missing[0]} is missing")
        return replace(self, inputs=count)

    def check_arguments(self, inputs: Sequence[tuple[tuple[int, ...], str]]) -> LaunchPlan:
        """Returns the plan for inputs of these shapes and types.

        Args:
            inputs: shapes, and types as NumPy and PyTorch name them.

        Raises:
            ExecutionError: if the program takes other inputs.
        """
        plan = self.with_inputs(len(inputs)).at([shape for shape, _ in inputs])
        for buffer, (shape, dtype) in zip(plan.input_buffers, inputs, strict=True):
            if shape != buffer.shape or dtype != buffer.numpy_dtype.name:
                reason = f"is {dtype}{list(shape)}, not {buffer.dtype}{list(buffer.shape)}"
                raise ExecutionError(reason, argument=buffer.name)
        return plan

    def check_tensors(self, tensors: Sequence[Any]) -> LaunchPlan:
        return self.check_arguments([(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors])


def make_plan(module: ModuleOp) -> LaunchPlan:
    """Returns the plan of `@main` of a module at the kernel level.

    Results are the last arguments: arguments that a kernel writes, and empty ones after the last argument that no
    kernel writes. Loops are unrolled: the plan has all of their launches.

    Raises:
        CompileError: if there is no `@main`, or if it has operations other than allocations, launches, slices, loops
            and calls of functions that PyTorch computes.
    """
    program = HostProgram(module)
    is_static = all(isinstance(n, int) for t in program.main.function_type.inputs for n in extents_of(t))
    return program.plan(Sizes() if is_static and not program.reads else None)


@dataclass(frozen=True)
class _Kernel:
    """Kernel, with the data that all of its launches share.

    Attributes:
        func: the kernel.
        written: numbers of the arguments that it writes.
        launch: launch without grid and buffers.
    """

    func: kernel.FuncOp
    written: frozenset[int]
    launch: Launch

    @staticmethod
    def of(func: kernel.FuncOp, name: str) -> _Kernel:
        written = frozenset(i for i, a in enumerate(func.body.block.args) if is_written(a))
        shared = func.shared.data if func.shared is not None else 0
        maps, size_bytes = tuple(_tensor_map(m, func) for m in tensor_maps(func)), 4 if index_type(func) == "int" else 8
        launch = Launch(name, (), (func.threads,), shared, (), (), maps, symbols_in(func), size_bytes)
        return _Kernel(func, written, launch)


class HostProgram:
    """Functions of a module at the kernel level.

    Attributes:
        functions: functions by name.
        main: the function `@main`.
        reads: operations of `@main` that read a size.
        kernels: kernels by name.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.functions = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}
        if "main" not in self.functions:
            raise CompileError("the module has no @main")
        self.main = self.functions["main"]
        if any(not isinstance(t, MemRefType) for t in self.main.function_type.inputs):
            raise CompileError("expected memrefs as parameters of @main; lower the module to the kernel level")
        self.reads = bound_sizes(self.main)
        names, kernels = kernel_names(module), [op for op in module.ops if isinstance(op, kernel.FuncOp)]
        self.kernels = {op.sym_name.data: _Kernel.of(op, names[op.sym_name.data]) for op in kernels}
        self._written = {k.launch.kernel: k.written for k in self.kernels.values()}

    def written(self, step: Step) -> tuple[int, ...]:
        """Returns the buffers that a step writes."""
        if isinstance(step, Launch):
            return tuple(step.buffers[i] for i in self._written[step.kernel])
        return step.outputs if isinstance(step, EagerStep) else ()

    def plan(self, sizes: Sizes | None) -> LaunchPlan:
        """Returns the plan for the values of symbolic sizes, or the plan with dynamic sizes if `sizes` is None."""
        host = HostInterpreter(self, sizes)
        buffers, arguments = host.run_main(), len(self.main.body.block.args)
        inputs, in_place = arguments, pairs_of(self.main, IN_PLACE)
        results, changed = dict(in_place), {argument for _, argument in in_place}
        while inputs and inputs - 1 not in changed:
            last = buffers[inputs - 1]
            if not last.written and not (0 in last.shape and last.first < 0) and inputs - 1 not in results:
                break
            inputs -= 1
        call_bytes, constant = (0, 0) if sizes is None else place_scratch(buffers, arguments)
        program = self if sizes is None else None
        return LaunchPlan(
            tuple(buffers), tuple(host.steps), arguments, inputs, call_bytes + constant, in_place, constant, program
        )


@dataclass(frozen=True)
class _Part:
    """Part of a buffer: `bytes` from the byte `begin` on, or all of it if `bytes` is None."""

    buffer: int
    begin: int = 0
    bytes: int | None = None


class HostInterpreter:
    """Interpreter of `@main` that records allocations and launches, and runs no kernels.

    Args:
        program: the program.
        sizes: values of symbolic sizes, or None for a plan with dynamic sizes.
        segment: number of the segment whose steps are recorded; None records all steps. A segment ends where the
            program reads a size.

    Attributes:
        buffers: buffers so far.
        steps: recorded steps.
    """

    def __init__(self, program: HostProgram, sizes: Sizes | None, segment: int | None = None) -> None:
        self.kernels, self.functions, self.sizes = program.kernels, program.functions, sizes
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self._main, self._segment, self._current = program.main, segment, 0
        self._names: dict[str, int] = {}
        self._parts: dict[SSAValue, _Part] = {}
        self._numbers: dict[SSAValue, int] = {}

    def _name(self, hint: str | None) -> str:
        base = re.sub(r"[^a-z0-9_]", "_", (hint or "buffer").lower()).lstrip("_0123456789") or "buffer"
        count = self._names[base] = self._names.get(base, -1) + 1
        return self._name(f"{base}_{count}") if count else base

    def new_buffer(self, value: SSAValue) -> None:
        extents = extents_of(value.type)
        shape = tuple(extents) if self.sizes is None else self.sizes.resolved(extents)
        self._parts[value] = _Part(len(self.buffers))
        self.buffers.append(Buffer(self._name(value.name_hint), shape, dtype_of(value.type).name))

    def run_main(self) -> list[Buffer]:
        """Interprets `@main` up to the end of the segment, and returns the buffers."""
        for argument in self._main.body.block.args:
            self.new_buffer(argument)
        for op in self._main.body.block.ops:
            if isinstance(op, BindSizeOp):
                if self._current == self._segment:
                    break
                self._read(op)
            else:
                self.run((op,))
        return self.buffers

    def _read(self, op: BindSizeOp) -> None:
        self._current += 1
        if self._segment is None:
            (buffer,) = self._use([op.value], ())
            self.steps.append(BindStep(op.symbol, buffer, location_text(op)))

    @property
    def _is_skipping(self) -> bool:
        """True in segments before the one whose steps are recorded."""
        return self._segment is not None and self._current < self._segment

    def run(self, ops: Iterable[Operation]) -> None:
        """Interprets host operations, and records their effects in the plan."""
        for op in ops:
            if isinstance(op, kernel.AllocOp):
                self.new_buffer(op.result)
            elif isinstance(op, kernel.LaunchOp):
                self._launch(op)
            elif isinstance(op, CallOp) and op.callee.string_value() in self.functions:
                self._call(op, self.functions[op.callee.string_value()])
            elif isinstance(op, kernel.SliceOp):
                self._slice(op)
            elif isinstance(op, scf.ForOp) and not op.iter_args:
                for i in range(*(self._number(v) for v in (op.lb, op.ub, op.step))):
                    self._numbers[op.body.block.args[0]] = i
                    self.run(op.body.block.ops)
            elif not isinstance(op, ReturnOp | scf.YieldOp | ConstantOp):
                raise refused(op, "expected an allocation or a launch in the host program", CompileError)

    def _number(self, value: SSAValue) -> int:
        number = self._numbers.get(value, constant_index(value))
        if number is None:
            raise CompileError("the host computes no numbers", argument=value.name_hint)
        return number

    def _slice(self, op: kernel.SliceOp) -> None:
        row, source = op.row(self._number(op.index)), self._parts[op.source]
        if not 0 <= row < op.rows:
            raise refused(op, f"row {row} of {op.source.type}", CompileError)
        if self.sizes is not None:
            item = dtype_of(op.result.type).bytes
            size = item * math.prod(self.sizes.shape(op.result.type))
            begin = source.begin + item * row * math.prod(self.sizes.numbers(op.row_extents))
            source = _Part(source.buffer, begin, None if size == self.buffers[source.buffer].bytes else size)
        self._parts[op.result] = source

    def _launch(self, op: kernel.LaunchOp) -> None:
        name = op.kernel.root_reference.data
        if name not in self.kernels:
            raise CompileError(f"launches @{name}, which does not exist", location=location_text(op))
        callee = self.kernels[name]
        taken = callee.func.body.block.args
        if len(taken) != len(op.buffers) or any(
            not same_elements(b.type, a.type) for b, a in zip(op.buffers, taken, strict=True)
        ):
            raise CompileError(
                f"expected buffers of the types of the parameters of @{name}", location=location_text(op)
            )
        if self._is_skipping:
            return
        constant = CONSTANT in op.attributes
        buffers = self._use(op.buffers, callee.written, constant)
        launch = replace(callee.launch, grid=callee.func.grid_shape, buffers=buffers, constant=constant)
        if self.sizes is not None:
            blocks = math.prod(map(self.sizes.count, launch.grid))
            if blocks > MAX_BLOCKS:
                reason = f"expected at most {MAX_BLOCKS} blocks, but got {blocks}"
                raise ExecutionError(reason, operator=launch.kernel)
            if not blocks:
                return
            parts = [self._parts[value] for value in op.buffers]
            smaller = tuple((i, p.begin, p.bytes) for i, p in enumerate(parts) if p.bytes is not None)
            maps = tuple(replace(m, shape=self.sizes.numbers(m.shape)) for m in launch.maps)
            numbers = self.sizes.numbers(launch.sizes)
            launch = replace(launch, grid=(blocks,), parts=smaller, maps=maps, sizes=numbers)
        self.steps.append(launch)

    def _call(self, op: CallOp, function: FuncOp) -> None:
        if not is_eager(function):
            parts = [self._parts[value] for value in op.operands]
            self._parts |= zip(function.body.block.args, parts, strict=True)
            functions, self.functions = self.functions, {n: f for n, f in self.functions.items() if f is not function}
            self.run(function.body.block.ops)
            self.functions = functions
            return
        if any(self._parts[v].bytes is not None for v in op.operands):
            raise refused(op, "PyTorch computes no step of a recurrence", CompileError)
        if self._is_skipping:
            return
        split = len(op.operands) - eager_results(function)
        where = self._use(op.operands, range(split, len(op.operands)))
        self.steps.append(EagerStep(function.sym_name.data, where[:split], where[split:]))

    def _use(self, values: Sequence[SSAValue], written: Iterable[int], constant: bool = False) -> tuple[int, ...]:
        """Returns the buffers of values that the next step uses, and updates their lifetimes.

        Args:
            values: memrefs.
            written: positions of the values that the step writes.
            constant: whether it writes the same contents in every call.
        """
        now, where, written = len(self.steps), tuple(self._parts[v].buffer for v in values), {*written}
        for i, number in enumerate(where):
            old, is_written = self.buffers[number], i in written
            self.buffers[number] = replace(
                old,
                first=now if old.first < 0 else old.first,
                last=now,
                written=old.written or is_written,
                constant=old.constant or constant and is_written,
            )
        return where


def _tensor_map(op: kernel.TensorMapOp, func: kernel.FuncOp) -> TensorMap:
    t = op.result.type
    assert isinstance(t, kernel.TensorMapType)
    argument = next(i for i, a in enumerate(func.body.block.args) if a is op.memory)
    return TensorMap(argument, extents_of(op.memory.type), dtype_of(t.element).name, t.shape, t.swizzle.data)


def place_scratch(buffers: list[Buffer], arguments: int) -> tuple[int, int]:
    """Assigns offsets in the arena to scratch buffers. Returns the bytes of call buffers and of constant buffers."""
    used = [i for i in range(arguments, len(buffers)) if buffers[i].first >= 0]
    of_call, constant = ([i for i in used if buffers[i].constant is is_constant] for is_constant in (False, True))
    offsets, size = place([Lifetime(buffers[i].first, buffers[i].last, buffers[i].bytes) for i in of_call])
    constant_offsets, more = place([Lifetime(0, 0, buffers[i].bytes) for i in constant])
    for i, offset in zip((*of_call, *constant), (*offsets, *(size + o for o in constant_offsets)), strict=True):
        buffers[i] = replace(buffers[i], offset=offset)
    return size, more
