"""The host program as plain data: which buffers there are, where they lie, and which kernels run on them in order.

`@main` of the kernel level takes its inputs and then its results as memrefs; everything that runs a program outside the
IR (the emulator, the CUDA runtime, the standalone program, the statistics) works from the plan made of it here.
Scratch buffers lie in one allocation, the arena; those whose lifetimes don't overlap may share memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel import kernel_names, symbols_in, tensor_maps
from ...dialects.kernel.tma import is_written
from ...dialects.payload import ConstantOp, same_elements
from ...dialects.shapes.binding import Sizes, bind_sizes
from ...dialects.shapes.extents import Count, Extent, ExtentError, extents_of, static
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.calls import CONSTANT, IN_PLACE, Pairs, eager_results, is_eager, pairs_of
from ...dialects.support.locations import location_text, refused
from ...errors import CompileError, ExecutionError
from ..cpp.writer import index_type
from ..dtypes import DTYPES, dtype_of
from .arena import Lifetime, place

MOST_BLOCKS = 2**31 - 1
"""Blocks of a grid along its first extent."""


@dataclass(frozen=True)
class Buffer:
    """A buffer in global memory: `dtype` as the IR names it (`f32`, `bf16`, `i1` with one byte each).

    An extent may be a size known only at a call. `first` and `last` are the steps that use it, -1 if none does.
    A scratch buffer lies in the arena from `offset` on; arguments of the program are in memory that the caller owns.
    What is in a `constant` one is the same in every call.
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
        """The NumPy type of the elements."""
        return DTYPES[self.dtype].numpy

    @property
    def element(self) -> Attribute:
        """The type of the elements in the IR."""
        return DTYPES[self.dtype].element

    @property
    def elements(self) -> int:
        """How many elements it has. Raises ExtentError if that is known only at a call: see `LaunchPlan.at`."""
        return math.prod(static(self.shape))

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * self.numpy_dtype.itemsize


@dataclass(frozen=True)
class TensorMap:
    """A `kernel.tensor_map`: boxes of the extents `box` in the argument number `argument` of the kernel, which has the
    extents `shape` and elements of `dtype`."""

    argument: int
    shape: tuple[Extent, ...]
    dtype: str
    box: tuple[int, ...]
    swizzle: int

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].bytes


@dataclass(frozen=True)
class Launch:
    """`kernel`, by its name in the CUDA text, on a grid of `grid` blocks of `threads` threads.

    Each block has `shared` bytes of dynamic shared memory. `buffers` are the kernel's arguments, as positions in the
    plan's buffers; behind them come its tensor maps, and then `sizes`, integers of `size_bytes` each. `grid` and
    `threads` may have up to three extents. `parts` has, for arguments that are only a part of their buffer, by number
    of the argument, where it begins and how long it is, in bytes; none while sizes are unknown. One that is `constant`
    gives the same in every call.
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
        """Where in its buffer each argument begins, in bytes."""
        found = {argument: begin for argument, begin, _ in self.parts}
        return tuple(found.get(i, 0) for i in range(len(self.buffers)))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The grid in numbers. Raises ExtentError if that is known only at a call."""
        return static(n if isinstance(n, int) else n.symbol for n in self.grid)

    @property
    def values(self) -> tuple[int, ...]:
        """The sizes that the kernel takes. Raises ExtentError if they are known only at a call."""
        return static(self.sizes)


@dataclass(frozen=True)
class EagerStep:
    """`function` is computed by PyTorch: it reads the buffers `inputs` and writes the buffers `outputs`, positions in
    the plan's buffers."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """`buffers[:arguments]` are the arguments of the program, of which the first `inputs` are read, the others written;
    the rest is scratch. `steps` is all that is done, in order. `arena_bytes` is the size of the allocation that scratch
    buffers share, where sizes are known; the last `constant_bytes` of it are for constant ones. `in_place` says for
    some results, by their numbers, in which argument's memory they are: that argument is read and written.

    `program` is there where sizes are known only at a call: `at` gives the plan for the shapes of one."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Launch | EagerStep, ...]
    arguments: int
    inputs: int
    arena_bytes: int = 0
    in_place: Pairs = ()
    constant_bytes: int = 0
    program: _Program | None = field(default=None, compare=False)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that are launches."""
        return tuple(s for s in self.steps if isinstance(s, Launch))

    @property
    def constant_launches(self) -> tuple[Launch, ...]:
        """The launches that give the same in every call."""
        return tuple(s for s in self.launches if s.constant)

    @property
    def call_steps(self) -> tuple[Launch | EagerStep, ...]:
        """The steps of a call that finds what constant launches give."""
        return tuple(s for s in self.steps if isinstance(s, EagerStep) or not s.constant)

    @property
    def eager(self) -> tuple[EagerStep, ...]:
        """The steps that PyTorch computes."""
        return tuple(s for s in self.steps if isinstance(s, EagerStep))

    def at(self, shapes: Sequence[Sequence[int]]) -> LaunchPlan:
        """The plan for inputs of these shapes, in which everything is a number and no launch is without blocks.

        Raises ShapeError for a shape that the program is not for, ExecutionError for a grid that is too large."""
        if self.program is None:
            return self
        sizes = bind_sizes(self.program.main, shapes, [b.name for b in self.buffers])
        return replace(self.program.plan(sizes), inputs=self.inputs)

    @property
    def input_buffers(self) -> tuple[Buffer, ...]:
        """What the caller passes."""
        return self.buffers[: self.inputs]

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        """What the caller gets."""
        return self.buffers[self.inputs : self.arguments]

    @property
    def call_bytes(self) -> int:
        """Bytes of the arena that are not for constants."""
        return self.arena_bytes - self.constant_bytes

    @property
    def peak_bytes(self) -> int:
        """Memory that a call takes beside that of its arguments and constants: its results and the arena. Raises
        ExtentError if that is known only at a call."""
        if self.program is not None:
            raise ExtentError("how much memory a call takes, is known only at a call")
        places = dict(self.in_place)
        results = enumerate(self.output_buffers, self.inputs)
        return self.call_bytes + sum(b.bytes for i, b in results if i not in places)

    def with_inputs(self, count: int) -> LaunchPlan:
        """The plan with the first `count` arguments as inputs, for a caller who knows. Raises ExecutionError if a
        kernel writes one of them."""
        if count > self.arguments:
            raise ExecutionError(f"{count} arguments for a program that takes {self.inputs}")
        results, changed = dict(self.in_place), {argument for _, argument in self.in_place}
        for i, buffer in enumerate(self.buffers[:count]):
            if i in results or buffer.written and i not in changed:
                raise ExecutionError(f"{count} arguments, but argument {buffer.name} is a result of the program")
        rest = [(i, self.buffers[i]) for i in range(count, self.arguments)]
        missing = [b.name for i, b in rest if i in changed or 0 not in b.shape and not b.written and i not in results]
        if missing:
            raise ExecutionError(f"{count} arguments for a program that takes {self.inputs}: {missing[0]} is missing")
        return replace(self, inputs=count)

    def check_arguments(self, given: Sequence[tuple[tuple[int, ...], str]]) -> LaunchPlan:
        """The plan for inputs of these shapes and types, as NumPy and PyTorch call them. Raises ExecutionError if their
        number, a shape or a type is not the program's."""
        plan = self.with_inputs(len(given)).at([shape for shape, _ in given])
        for buffer, (shape, dtype) in zip(plan.input_buffers, given, strict=True):
            if shape != buffer.shape or dtype != buffer.numpy_dtype.name:
                reason = f"is {dtype}{list(shape)}, not {buffer.dtype}{list(buffer.shape)}"
                raise ExecutionError(reason, argument=buffer.name)
        return plan

    def check_tensors(self, given: Sequence[Any]) -> LaunchPlan:
        """The same for these tensors of PyTorch."""
        return self.check_arguments([(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in given])


def make_plan(module: ModuleOp) -> LaunchPlan:
    """The plan of `@main` of a module at the kernel level.

    Results are the last arguments: those that a kernel writes, and those of size zero behind the last that none writes.
    Loops are run: the plan has every launch of them. Raises CompileError if there is no such `@main`, or if it holds
    anything but allocations, launches, slices, loops and calls of what PyTorch computes.
    """
    program = _Program(module)
    known = all(isinstance(n, int) for t in program.main.function_type.inputs for n in extents_of(t))
    return program.plan(Sizes() if known else None)


class _Names:
    """Names for buffers, from the hints in the IR, made unique."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def mint(self, hint: str | None) -> str:
        base = re.sub(r"[^a-z0-9_]", "_", (hint or "buffer").lower()).lstrip("_0123456789") or "buffer"
        count = self.taken[base] = self.taken.get(base, -1) + 1
        return self.mint(f"{base}_{count}") if count else base


@dataclass(frozen=True)
class _Kernel:
    """A kernel with what does not change from launch to launch: `launch` says nothing of its grid and buffers."""

    func: kernel.FuncOp
    written: frozenset[int]
    launch: Launch

    @staticmethod
    def of(func: kernel.FuncOp, name: str) -> _Kernel:
        """The kernel that the CUDA text calls `name`."""
        arguments = func.body.block.args
        written = frozenset(i for i, a in enumerate(arguments) if is_written(a))
        shared = func.shared.data if func.shared is not None else 0
        maps = tuple(_tensor_map(m, func) for m in tensor_maps(func))
        size_bytes = 4 if index_type(func) == "int" else 8
        return _Kernel(
            func, written, Launch(name, (), (func.threads,), shared, (), (), maps, symbols_in(func), size_bytes)
        )


class _Program:
    """The functions of a module at the kernel level."""

    def __init__(self, module: ModuleOp) -> None:
        names, self.functions = kernel_names(module), {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}
        if "main" not in self.functions:
            raise CompileError("the module has no @main")
        self.main = self.functions["main"]
        if any(not isinstance(t, MemRefType) for t in self.main.function_type.inputs):
            raise CompileError("@main does not work on buffers: this is not the kernel level")
        self.kernels = {
            n: _Kernel.of(op, names[n])
            for op in module.ops
            if isinstance(op, kernel.FuncOp)
            for n in (op.sym_name.data,)
        }

    def plan(self, sizes: Sizes | None) -> LaunchPlan:
        """The plan where symbols have these values, or for nothing but what does not depend on them."""
        host = _Host(self, sizes)
        for arg in self.main.body.block.args:
            host.new_buffer(arg)
        buffers, arguments = host.buffers, len(host.buffers)
        host.run(self.main.body.block.ops)
        inputs, in_place = arguments, pairs_of(self.main, IN_PLACE)
        results, changed = dict(in_place), {argument for _, argument in in_place}
        while inputs and inputs - 1 not in changed:
            last = buffers[inputs - 1]
            unused = 0 in last.shape and last.first < 0
            if not last.written and not unused and inputs - 1 not in results:
                break
            inputs -= 1
        own, constant = (0, 0) if sizes is None else _place_scratch(buffers, arguments)
        program = self if sizes is None else None
        steps = tuple(host.steps)
        return LaunchPlan(tuple(buffers), steps, arguments, inputs, own + constant, in_place, constant, program)


@dataclass(frozen=True)
class _Part:
    """`bytes` of the buffer number `buffer`, from the byte `begin` on; None for all of it."""

    buffer: int
    begin: int = 0
    bytes: int | None = None


class _Host:
    """Runs `@main` without its kernels, noting what is allocated and launched."""

    def __init__(self, program: _Program, sizes: Sizes | None) -> None:
        self.kernels = program.kernels
        self.functions = program.functions
        self.sizes = sizes
        self.buffers: list[Buffer] = []
        self.steps: list[Launch | EagerStep] = []
        self._names = _Names()
        self._parts: dict[SSAValue, _Part] = {}
        self._numbers: dict[SSAValue, int] = {}

    def _known(self, extents: Sequence[Extent]) -> tuple[Extent, ...]:
        """Extents as numbers, where these are known."""
        return tuple(extents) if self.sizes is None else self.sizes.numbers(extents)

    def new_buffer(self, value: SSAValue) -> None:
        """`value` is an argument or an allocation."""
        shape = self._known(extents_of(value.type))
        self._parts[value] = _Part(len(self.buffers))
        self.buffers.append(Buffer(self._names.mint(value.name_hint), shape, dtype_of(value.type).name))

    def run(self, ops: Iterable[Operation]) -> None:
        """Execute these ops of the host."""
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
                raise refused(op, "is no allocation and no launch", CompileError)

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
        found = self.kernels[name]
        taken = found.func.body.block.args
        if len(taken) != len(op.buffers) or any(
            not same_elements(b.type, a.type) for b, a in zip(op.buffers, taken, strict=True)
        ):
            raise CompileError(f"launches @{name} on buffers of other types than it takes", location=location_text(op))
        constant = CONSTANT in op.attributes
        buffers = self._use(op.buffers, found.written, constant)
        launch = replace(found.launch, grid=found.func.factors, buffers=buffers, constant=constant)
        if self.sizes is not None:
            blocks = math.prod(map(self.sizes.count, launch.grid))
            if blocks > MOST_BLOCKS:
                reason = f"a grid of {blocks} blocks; at most {MOST_BLOCKS} are possible"
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
            known, self.functions = self.functions, {n: f for n, f in self.functions.items() if f is not function}
            self.run(function.body.block.ops)
            self.functions = known
            return
        if any(self._parts[v].bytes is not None for v in op.operands):
            raise refused(op, "PyTorch computes no step of a recurrence", CompileError)
        split = len(op.operands) - eager_results(function)
        where = self._use(op.operands, range(split, len(op.operands)))
        self.steps.append(EagerStep(function.sym_name.data, where[:split], where[split:]))

    def _use(self, values: Sequence[SSAValue], written: Container[int], constant: bool = False) -> tuple[int, ...]:
        """The buffers of these values; note that the next step uses them, and writes those at `written`, with what is
        `constant` or not."""
        now, where = len(self.steps), tuple(self._parts[v].buffer for v in values)
        for i, number in enumerate(where):
            old = self.buffers[number]
            first = now if old.first < 0 else old.first
            kept = old.constant or constant and i in written
            self.buffers[number] = replace(
                old, first=first, last=now, written=old.written or i in written, constant=kept
            )
        return where


def _tensor_map(op: kernel.TensorMapOp, func: kernel.FuncOp) -> TensorMap:
    """A map of a kernel."""
    t = op.result.type
    assert isinstance(t, kernel.TensorMapType)
    argument = next(i for i, a in enumerate(func.body.block.args) if a is op.memory)
    return TensorMap(argument, extents_of(op.memory.type), dtype_of(t.element).name, t.shape, t.swizzle.data)


def _place_scratch(buffers: list[Buffer], arguments: int) -> tuple[int, int]:
    """Give the scratch buffers that a step uses their places in the arena; bytes of the arena for those of a call, and
    behind them for constant ones, which stay what they are."""
    used = [i for i in range(arguments, len(buffers)) if buffers[i].first >= 0]
    own, constant = ([i for i in used if buffers[i].constant is kept] for kept in (False, True))
    offsets, size = place([Lifetime(buffers[i].first, buffers[i].last, buffers[i].bytes) for i in own])
    behind, more = place([Lifetime(0, 0, buffers[i].bytes) for i in constant])
    for i, offset in zip((*own, *constant), (*offsets, *(size + o for o in behind)), strict=True):
        buffers[i] = replace(buffers[i], offset=offset)
    return size, more
