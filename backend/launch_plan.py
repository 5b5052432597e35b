"""The host program as plain data: which buffers there are, where they lie, and which kernels run on them in order.

`@main` of the kernel level takes its inputs and then its results as memrefs; everything that runs a program outside the
IR (the emulator, the CUDA runtime, the standalone program, the statistics) works from the plan made of it here.
Scratch buffers whose lifetimes don't overlap share a slot of memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from ..dialects import kernel
from ..dialects.kernel import symbols_in
from ..dialects.kernel.tma import is_written
from ..dialects.payload import ConstantOp
from ..dialects.shapes.binding import Sizes, bind_sizes
from ..dialects.shapes.extents import Extent, ExtentError, SymbolAttr, extents_of, static
from ..dialects.shapes.ranges import constant_index
from ..dialects.shapes.tile_counts import Count, most_tiles
from ..dialects.support.aliasing import IN_PLACE, Pairs, pairs_of
from ..dialects.support.calls import eager_results, is_eager
from ..dialects.support.locations import location_text, refused
from ..errors import CompileError, ExecutionError
from .cuda.printer import kernel_names, tensor_maps
from .cuda.writer import index_type
from .dtypes import DTYPES, dtype_of

MOST_BLOCKS = 2**31 - 1
"""Blocks of a grid along its first extent."""


@dataclass(frozen=True)
class Buffer:
    """A buffer in global memory: `dtype` as the IR names it (`f32`, `bf16`, `i1` with one byte each).

    An extent may be a size known only at a call. `first` and `last` are the steps that use it, -1 if none does.
    Scratch buffers have a `slot`; arguments of the program, whose memory the caller owns, have -1.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: str
    first: int = -1
    last: int = -1
    slot: int = -1
    written: bool = False

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


Bytes: TypeAlias = tuple[int, tuple[SymbolAttr, ...]]
"""A number of bytes: a number times sizes that are known at a call."""

OpenPart: TypeAlias = tuple[int, tuple[Bytes, ...], Bytes]
"""(number of an argument, where it begins: a sum, how long it is)"""


def _bytes(factor: int, extents: Sequence[Extent]) -> Bytes:
    """`factor` times all `extents`."""
    symbols = sorted((e for e in extents if isinstance(e, SymbolAttr)), key=str)
    return factor * math.prod(e for e in extents if isinstance(e, int)), tuple(symbols)


def _numbers(parts: Sequence[OpenPart], sizes: Sizes) -> tuple[tuple[int, int, int], ...]:
    def value(n: Bytes) -> int:
        return n[0] * math.prod(sizes.numbers(n[1]))

    return tuple((i, sum(map(value, begin)), value(size)) for i, begin, size in parts)


@dataclass(frozen=True)
class Launch:
    """`kernel`, by its name in the CUDA text, on a grid of `grid` blocks of `threads` threads.

    Each block has `shared` bytes of dynamic shared memory. `buffers` are the kernel's arguments, as positions in the
    plan's buffers; behind them come its tensor maps, and then `sizes`, integers of `size_bytes` each. `grid` and
    `threads` may have up to three extents. `parts` has, for arguments that are only a part of their buffer, by number
    of the argument, where it begins and how long it is, in bytes; `open_parts` has them while sizes are unknown.
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
    open_parts: tuple[OpenPart, ...] = ()

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
    """`function` is computed by PyTorch, after `launches` launches: it reads the buffers `inputs` and writes the
    buffers `outputs`, positions in the plan's buffers."""

    function: str
    launches: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """`buffers[:arguments]` are the arguments of the program, of which the first `inputs` are read, the others written;
    the rest is scratch. `slots` are the sizes in bytes of the allocations that scratch buffers share. `eager` is what
    PyTorch does between launches. `in_place` says for some results, by their numbers, in which argument's memory they
    are: that argument is read and written.

    `main` is there where sizes are known only at a call: `at` gives the plan for the shapes of one."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    arguments: int
    inputs: int
    slots: tuple[int, ...] = ()
    eager: tuple[EagerStep, ...] = ()
    in_place: Pairs = ()
    main: FuncOp | None = field(default=None, compare=False)

    @property
    def steps(self) -> Iterator[Launch | EagerStep]:
        """All that is done, in order."""
        for number, launch in enumerate(self.launches):
            yield from (step for step in self.eager if step.launches == number)
            yield launch
        yield from (step for step in self.eager if step.launches == len(self.launches))

    def at(self, shapes: Sequence[Sequence[int]]) -> LaunchPlan:
        """The plan for inputs of these shapes, in which everything is a number and no launch is without blocks.

        Raises ShapeError for a shape that the program is not for, ExecutionError for a grid that is too large."""
        if self.main is None:
            return self
        sizes = bind_sizes(self.main, shapes, [b.name for b in self.buffers])
        buffers = tuple(replace(b, shape=sizes.numbers(b.shape)) for b in self.buffers)
        launches: list[Launch] = []
        eager: list[EagerStep] = []
        for launch in self.steps:
            if isinstance(launch, EagerStep):
                eager.append(replace(launch, launches=len(launches)))
                continue
            blocks = math.prod(sizes.count(n) for n in launch.grid)
            if blocks > MOST_BLOCKS:
                raise ExecutionError(
                    f"a grid of {blocks} blocks; at most {MOST_BLOCKS} are possible", operator=launch.kernel
                )
            if blocks:
                maps = tuple(replace(m, shape=sizes.numbers(m.shape)) for m in launch.maps)
                numbers = {"sizes": sizes.numbers(launch.sizes), "open_parts": ()}
                parts = launch.parts or _numbers(launch.open_parts, sizes)
                launches.append(replace(launch, grid=(blocks,), parts=parts, maps=maps, **numbers))
        slots = _slot_sizes(buffers, self.arguments)
        done = {"buffers": buffers, "launches": tuple(launches), "slots": slots, "eager": tuple(eager)}
        return replace(self, **done, main=None)

    @property
    def input_buffers(self) -> tuple[Buffer, ...]:
        """What the caller passes."""
        return self.buffers[: self.inputs]

    @property
    def output_buffers(self) -> tuple[Buffer, ...]:
        """What the caller gets."""
        return self.buffers[self.inputs : self.arguments]

    @property
    def scratch_bytes(self) -> int:
        """Memory for everything between inputs and results. Raises ExtentError if that is known only at a call."""
        if self.main is not None:
            raise ExtentError("how much scratch memory there is, is known only at a call")
        return sum(self.slots)

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

    def check_arguments(self, args: Sequence[np.ndarray]) -> LaunchPlan:
        """The plan for these inputs. Raises ExecutionError if their number, a shape or a type is not the program's."""
        plan = self.with_inputs(len(args)).at([a.shape for a in args])
        for buffer, arg in zip(plan.input_buffers, args, strict=True):
            if tuple(arg.shape) != buffer.shape or arg.dtype != buffer.numpy_dtype:
                given = f"{arg.dtype.name}{list(arg.shape)}"
                raise ExecutionError(f"is {given}, not {buffer.dtype}{list(buffer.shape)}", argument=buffer.name)
        return plan


def make_plan(module: ModuleOp) -> LaunchPlan:
    """The plan of `@main` of a module at the kernel level.

    Results are the last arguments: those that a kernel writes, and those of size zero behind the last that none writes.
    Loops are run: the plan has every launch of them. Raises CompileError if there is no such `@main`, or if it holds
    anything but allocations, launches, slices, loops and calls of what PyTorch computes.
    """
    main, kernels = _main_and_kernels(module)
    functions = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}
    if any(not isinstance(t, MemRefType) for t in main.function_type.inputs):
        raise CompileError("@main does not work on buffers: this is not the kernel level")
    host = _Host(kernels, functions)
    for arg in main.body.block.args:
        host.new_buffer(arg)
    buffers, launches = host.buffers, host.launches
    arguments = len(buffers)
    host.run(main.body.block.ops)
    inputs = arguments
    in_place = pairs_of(main, IN_PLACE)
    results, changed = dict(in_place), {argument for _, argument in in_place}
    while inputs and inputs - 1 not in changed:
        last = buffers[inputs - 1]
        if not last.written and not _is_empty_and_unused(last) and inputs - 1 not in results:
            break
        inputs -= 1
    _give_slots(buffers, arguments)
    known = all(isinstance(n, int) for b in buffers for n in b.shape)
    slots = _slot_sizes(buffers, arguments) if known else ()
    steps = tuple(launches), arguments, inputs, slots, tuple(host.eager), in_place
    return LaunchPlan(tuple(buffers), *steps, None if known else main)


def buffer_dtype(e: Attribute) -> str:
    """The name of an element type in a plan. Raises ExecutionError for one that has no storage."""
    return dtype_of(e).name


class _Names:
    """Names for buffers, from the hints in the IR, made unique."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def mint(self, hint: str | None) -> str:
        base = re.sub(r"[^a-z0-9_]", "_", (hint or "buffer").lower()).lstrip("_0123456789") or "buffer"
        count = self.taken[base] = self.taken.get(base, -1) + 1
        return self.mint(f"{base}_{count}") if count else base


def _main_and_kernels(module: ModuleOp) -> tuple[FuncOp, dict[str, tuple[str, kernel.FuncOp]]]:
    """`@main`, and by symbol each kernel with its name in the CUDA text."""
    mains = [op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main"]
    if len(mains) != 1:
        raise CompileError("the module has no @main")
    names = kernel_names(module)
    funcs = {op.sym_name.data: op for op in module.ops if isinstance(op, kernel.FuncOp)}
    return mains[0], {symbol: (names[symbol], op) for symbol, op in funcs.items()}


def _buffer(value: SSAValue, names: _Names) -> Buffer:
    assert isinstance(value.type, MemRefType)
    shape = extents_of(value.type)  # pyright: ignore[reportUnknownArgumentType]
    return Buffer(names.mint(value.name_hint), shape, buffer_dtype(value.type.element_type))


@dataclass(frozen=True)
class _Part:
    """`bytes` of the buffer number `buffer`, from the byte on that is the sum `begin`; None for all of it."""

    buffer: int
    begin: tuple[Bytes, ...]
    bytes: Bytes | None


class _Host:
    """Runs `@main` without its kernels, noting what is allocated and launched; `functions` are those that it calls."""

    def __init__(self, kernels: dict[str, tuple[str, kernel.FuncOp]], functions: dict[str, FuncOp]) -> None:
        self.kernels = kernels
        self.functions = functions
        self.eager: list[EagerStep] = []
        self.buffers: list[Buffer] = []
        self.launches: list[Launch] = []
        self._names = _Names()
        self._parts: dict[SSAValue, _Part] = {}
        self._numbers: dict[SSAValue, int] = {}

    def new_buffer(self, value: SSAValue) -> None:
        """`value` is an argument or an allocation."""
        buffer = _buffer(value, self._names)
        self._parts[value] = _Part(len(self.buffers), (), None)
        self.buffers.append(buffer)

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
        assert isinstance(op.source.type, MemRefType)
        assert isinstance(op.result.type, MemRefType)
        row, source = op.row(self._number(op.index)), self._parts[op.source]
        if not 0 <= row < op.rows:
            raise refused(op, f"row {row} of {op.source.type}", CompileError)
        item = dtype_of(op.result.type.element_type).bytes
        result = extents_of(op.result.type)  # pyright: ignore[reportUnknownArgumentType]
        size, begin = _bytes(item, result), (*source.begin, _bytes(row * item, op.row_extents))
        whole = size == _bytes(item, self.buffers[source.buffer].shape)
        self._parts[op.result] = _Part(source.buffer, begin, None if whole else size)

    def _launch(self, op: kernel.LaunchOp) -> None:
        name = op.kernel.root_reference.data
        if name not in self.kernels:
            raise CompileError(f"launches @{name}, which does not exist", location=location_text(op))
        cuda_name, func = self.kernels[name]
        if [v.type for v in op.buffers] != [a.type for a in func.body.block.args]:
            raise CompileError(f"launches @{name} on buffers of other types than it takes", location=location_text(op))
        written = {i for i, a in enumerate(func.body.block.args) if is_written(a)}
        parts = [self._parts[value] for value in op.buffers]
        self._use(parts, written)
        smaller = tuple((i, p.begin, p.bytes) for i, p in enumerate(parts) if p.bytes is not None)
        known = () if any(e for _, begin, size in smaller for _, e in (*begin, size)) else _numbers(smaller, Sizes())
        shared = func.shared.data if func.shared is not None else 0
        where = tuple(p.buffer for p in parts)
        maps = tuple(_tensor_map(m, func) for m in tensor_maps(func))
        fixed = all(isinstance(n, int) for n in func.factors)
        grid = (math.prod(map(most_tiles, func.factors)),) if fixed else func.factors
        size_bytes = 4 if index_type(func) == "int" else 8
        sizes = {"sizes": symbols_in(func), "size_bytes": size_bytes}
        self.launches.append(Launch(cuda_name, grid, (func.threads,), shared, where, known, maps, **sizes))
        if smaller and not known:
            self.launches[-1] = replace(self.launches[-1], open_parts=smaller)

    def _call(self, op: CallOp, function: FuncOp) -> None:
        parts = [self._parts[value] for value in op.operands]
        if not is_eager(function):
            self._parts |= zip(function.body.block.args, parts, strict=True)
            known, self.functions = self.functions, {n: f for n, f in self.functions.items() if f is not function}
            self.run(function.body.block.ops)
            self.functions = known
            return
        if any(p.bytes is not None for p in parts):
            raise refused(op, "PyTorch computes no step of a recurrence", CompileError)
        where = tuple(p.buffer for p in parts)
        split = len(where) - eager_results(function)
        self._use(parts, range(split, len(where)))
        self.eager.append(EagerStep(function.sym_name.data, len(self.launches), where[:split], where[split:]))

    def _use(self, parts: Sequence[_Part], written: Container[int]) -> None:
        """Note that the next step uses these parts, and writes those at the positions `written`."""
        now = len(self.launches) + len(self.eager)
        for i, part in enumerate(parts):
            old = self.buffers[part.buffer]
            first = now if old.first < 0 else old.first
            self.buffers[part.buffer] = replace(old, first=first, last=now, written=old.written or i in written)


def _tensor_map(op: kernel.TensorMapOp, func: kernel.FuncOp) -> TensorMap:
    """A map of a kernel."""
    t, memory = op.result.type, op.memory.type
    assert isinstance(t, kernel.TensorMapType)
    assert isinstance(memory, MemRefType)
    argument = next(i for i, a in enumerate(func.body.block.args) if a is op.memory)
    return TensorMap(argument, extents_of(memory), buffer_dtype(t.element), t.shape, t.swizzle.data)


def _is_empty_and_unused(buffer: Buffer) -> bool:
    return 0 in buffer.shape and buffer.first < 0


def _give_slots(buffers: list[Buffer], arguments: int) -> None:
    """Give every scratch buffer the first slot that is free while it lives."""
    free_after: list[int] = []
    order = sorted(range(arguments, len(buffers)), key=lambda i: (buffers[i].first, i))
    for i in order:
        buffer = buffers[i]
        if buffer.first < 0:
            continue
        slot = next((s for s, last in enumerate(free_after) if last < buffer.first), len(free_after))
        free_after[slot : slot + 1] = [buffer.last]
        buffers[i] = replace(buffer, slot=slot)


def _slot_sizes(buffers: Sequence[Buffer], arguments: int) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for buffer in buffers[arguments:]:
        if buffer.slot >= 0:
            sizes[buffer.slot] = max(sizes.get(buffer.slot, 0), buffer.bytes)
    return tuple(sizes[s] for s in range(len(sizes)))
