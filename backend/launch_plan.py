"""The host program as plain data: which buffers there are, where they lie, and which kernels run on them in order.

`@main` of the kernel level takes its inputs and then its results as memrefs; everything that runs a program outside the
IR (the emulator, the CUDA runtime, the standalone program, the statistics) works from the plan made of it here.
Scratch buffers whose lifetimes don't overlap share a slot of memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import IndexType, IntegerType, MemRefType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue

from ..dialects import kernel
from ..dialects.calls import eager_results, is_eager
from ..dialects.locations import location_text
from ..errors import CompileError, ExecutionError
from .cuda.printer import kernel_names

_DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "ui8": np.uint8,
    "i1": np.bool_,
    "index": np.int64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}


@dataclass(frozen=True)
class Buffer:
    """A buffer in global memory: `dtype` as the IR names it (`f32`, `bf16`, `i1` with one byte each).

    `first` and `last` are the steps that use it, -1 if none does. Scratch buffers have a `slot`; arguments of the
    program, whose memory the caller owns, have -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    first: int = -1
    last: int = -1
    slot: int = -1
    written: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements."""
        return np.dtype(_DTYPES[self.dtype])

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * self.numpy_dtype.itemsize


@dataclass(frozen=True)
class Launch:
    """`kernel`, by its name in the CUDA text, on a grid of `grid` blocks of `threads` threads.

    Each block has `shared` bytes of dynamic shared memory. `buffers` are the kernel's arguments, as positions in the
    plan's buffers; `grid` and `threads` may have up to three extents.
    """

    kernel: str
    grid: tuple[int, ...]
    threads: tuple[int, ...]
    shared: int
    buffers: tuple[int, ...]


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
    PyTorch does between launches."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    arguments: int
    inputs: int
    slots: tuple[int, ...] = ()
    eager: tuple[EagerStep, ...] = ()

    @property
    def steps(self) -> Iterator[Launch | EagerStep]:
        """All that is done, in order."""
        for number, launch in enumerate(self.launches):
            yield from (step for step in self.eager if step.launches == number)
            yield launch
        yield from (step for step in self.eager if step.launches == len(self.launches))

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
        """Memory for everything between inputs and results."""
        return sum(self.slots)

    def with_inputs(self, count: int) -> LaunchPlan:
        """The plan with the first `count` arguments as inputs, for a caller who knows. Raises ExecutionError if a
        kernel writes one of them."""
        if count > self.arguments:
            raise ExecutionError(f"{count} arguments for a program that takes {self.inputs}")
        for buffer in self.buffers[:count]:
            if buffer.written:
                raise ExecutionError(f"{count} arguments, but argument {buffer.name} is a result of the program")
        missing = [b.name for b in self.buffers[count : self.arguments] if b.elements and not b.written]
        if missing:
            raise ExecutionError(f"{count} arguments for a program that takes {self.inputs}: {missing[0]} is missing")
        return replace(self, inputs=count)

    def check_arguments(self, args: Sequence[np.ndarray]) -> LaunchPlan:
        """The plan for these inputs. Raises ExecutionError if their number, a shape or a type is not the program's."""
        plan = self.with_inputs(len(args))
        for buffer, arg in zip(plan.input_buffers, args, strict=True):
            if tuple(arg.shape) != buffer.shape or arg.dtype != buffer.numpy_dtype:
                given = f"{arg.dtype.name}{list(arg.shape)}"
                raise ExecutionError(f"is {given}, not {buffer.dtype}{list(buffer.shape)}", argument=buffer.name)
        return plan


def make_plan(module: ModuleOp) -> LaunchPlan:
    """The plan of `@main` of a module at the kernel level.

    Results are the last arguments: those that a kernel writes, and those of size zero behind the last that none writes.
    Raises CompileError if there is no such `@main`, or if it holds anything but allocations, launches and calls of what
    PyTorch computes.
    """
    main, kernels = _main_and_kernels(module)
    declared = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp) and is_eager(f)}
    if any(not isinstance(t, MemRefType) for t in main.function_type.inputs):
        raise CompileError("@main does not work on buffers: this is not the kernel level")
    number: dict[SSAValue, int] = {}
    buffers: list[Buffer] = []
    launches: list[Launch] = []
    eager: list[EagerStep] = []
    names = _Names()
    for arg in main.body.block.args:
        number[arg] = len(buffers)
        buffers.append(_buffer(arg, names))
    arguments = len(buffers)
    for op in main.body.block.ops:
        if isinstance(op, kernel.AllocOp):
            number[op.result] = len(buffers)
            buffers.append(_buffer(op.result, names))
        elif isinstance(op, kernel.LaunchOp):
            launches.append(_launch(op, kernels, number, buffers, len(launches) + len(eager)))
        elif isinstance(op, CallOp) and op.callee.string_value() in declared:
            function = declared[op.callee.string_value()]
            where = [number[v] for v in op.operands]
            split = len(where) - eager_results(function)
            _use(buffers, where, range(split, len(where)), len(launches) + len(eager))
            name = function.sym_name.data
            eager.append(EagerStep(name, len(launches), tuple(where[:split]), tuple(where[split:])))
        elif not isinstance(op, ReturnOp):
            raise CompileError("is no allocation and no launch", operator=op.name, location=location_text(op))
    inputs = arguments
    while inputs and (buffers[inputs - 1].written or _is_empty_and_unused(buffers[inputs - 1])):
        inputs -= 1
    _give_slots(buffers, arguments)
    sizes = _slot_sizes(buffers, arguments)
    return LaunchPlan(tuple(buffers), tuple(launches), arguments, inputs, sizes, tuple(eager))


def buffer_dtype(e: Attribute) -> str:
    """The name of an element type in a plan. Raises CompileError for one that has no storage."""
    if isinstance(e, IndexType):
        return "index"
    name = f"ui{e.width.data}" if isinstance(e, IntegerType) and str(e).startswith("ui") else str(e)
    if name not in _DTYPES:
        raise CompileError(f"no storage for elements of type {e}")
    return name


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
    shape = tuple(value.type.get_shape())
    if any(d < 0 for d in shape):
        raise CompileError("a buffer of unknown size", argument=value.name_hint)
    return Buffer(names.mint(value.name_hint), shape, buffer_dtype(value.type.element_type))


def _launch(
    op: kernel.LaunchOp,
    kernels: dict[str, tuple[str, kernel.FuncOp]],
    number: dict[SSAValue, int],
    buffers: list[Buffer],
    step: int,
) -> Launch:
    """The launch `op`, which is step `step`; notes what it uses in `buffers`."""
    name = op.kernel.root_reference.data
    if name not in kernels:
        raise CompileError(f"launches @{name}, which does not exist", location=location_text(op))
    cuda_name, func = kernels[name]
    if [v.type for v in op.buffers] != [a.type for a in func.body.block.args]:
        raise CompileError(f"launches @{name} on buffers of other types than it takes", location=location_text(op))
    written = {i for i, a in enumerate(func.body.block.args) if _is_written(a)}
    where = [number[v] for v in op.buffers]
    _use(buffers, where, written, step)
    shared = func.shared.data if func.shared is not None else 0
    return Launch(cuda_name, (func.grid.data,), (func.threads,), shared, tuple(where))


def _use(buffers: list[Buffer], where: Sequence[int], written: Container[int], step: int) -> None:
    """Note that `step` uses the buffers `where`, and writes those at the positions `written` in that."""
    for i, number in enumerate(where):
        old = buffers[number]
        first = step if old.first < 0 else old.first
        buffers[number] = replace(old, first=first, last=step, written=old.written or i in written)


def _is_written(memory: SSAValue) -> bool:
    return any(isinstance(use.operation, kernel.StoreOp) and use.operation.memory is memory for use in memory.uses)


def _is_empty_and_unused(buffer: Buffer) -> bool:
    return buffer.elements == 0 and buffer.first < 0


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


def _slot_sizes(buffers: list[Buffer], arguments: int) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for buffer in buffers[arguments:]:
        if buffer.slot >= 0:
            sizes[buffer.slot] = max(sizes.get(buffer.slot, 0), buffer.bytes)
    return tuple(sizes[s] for s in range(len(sizes)))
