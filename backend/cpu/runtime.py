"""Executor `cpu`: runs a compiled program on torch tensors of the host.

A step of a program is a kernel launch, or a function that PyTorch computes. All launches between two functions of
PyTorch are executed by one call of the C++ function `run`, which reads them from an array of numbers. The array is made
once for a set of shapes. Pointers, scratch memory and assertion messages belong to one call, so that several threads
can call a program at the same time.

A constant launch depends on constants only. It runs at the first call, and again if an argument that it reads changes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from ...dialects.kernel import AtomicRmwOp, FuncOp, PanelFmaOp, PrintOp, kernel_names
from ...dialects.payload import AssertOp
from ...dialects.shapes.binding import Sizes
from ...dialects.shapes.ranges import trip_count
from ...errors import ExecutionError
from ..cpp.ordering import registers
from ..dtypes import DTYPES
from ..host.calls import KEPT_PLANS, Key, building, compute_eagerly, extension, key_of, new_results
from ..host.launch_plan import EagerStep, Launch, LaunchPlan, make_plan
from ..host.segments import Segments
from ..host.timing import Span
from .build import build

SHARED_WORK = 1 << 19
"""Smallest number of element operations of a launch that runs on several cores. Tuned by hand.

Waking a core takes as long as some ten thousand vector operations.
"""

UNKNOWN_TRIPS = 32
"""Trip count that the estimate of work assumes for loops whose trip count is not constant."""

LONG_WORK = 1 << 16
"""Smallest number of element operations of a call that releases the GIL. Tuned by hand."""

MIN_BYTES_OF_HUGE_PAGES = 4 << 20
"""Smallest buffer that is mapped in huge pages."""

_LIBC, _MADV_COLLAPSE = ctypes.CDLL(None), 25
"""C library, and the advice MADV_COLLAPSE of Linux 6.1, which `mmap` does not name."""

_MESSAGE_BYTES = 200
"""Size of the buffer for the message of a failed assertion."""


class _Launches:
    """Consecutive launches, encoded for the C++ function `run` (`host.hpp` describes the encoding).

    Args:
        numbers: the encoding.
        count: number of launches.
        shared: whether at least one of the launches runs on several cores.
        work: estimated element operations of all launches.
    """

    def __init__(self, numbers: Sequence[int] = (), count: int = 0, shared: bool = False, work: int = 0) -> None:
        self.numbers, self.count, self.shared, self.work = np.array(numbers, dtype=np.int64), count, shared, work
        self.first = self.numbers.ctypes.data
        self.end = self.first + self.numbers.nbytes


@dataclass(frozen=True)
class _Constants:
    """Results of the constant launches.

    Attributes:
        memory: tensor that contains the results, or None if there are none.
        seen: number of an argument that the launches read -> its state when they ran (`_seen`). The results are valid
            as long as the states are equal.
    """

    memory: Any
    seen: Mapping[int, tuple[int, ...]]

    def places(self, plan: LaunchPlan) -> list[tuple[int, int]]:
        """Returns the location of each buffer of a plan.

        It is the number of an argument or of the scratch memory, and an offset in bytes. Constants have -1 and their
        address.
        """
        base = 0 if self.memory is None else self.memory.data_ptr() - plan.call_bytes
        scratch = plan.buffers[plan.arguments :]
        scratch_places = [(-1, base + b.offset) if b.constant else (plan.arguments, b.offset) for b in scratch]
        return [*((i, 0) for i in range(plan.arguments)), *scratch_places]


def _seen(args: Sequence[Any], numbers: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Returns the states of the arguments with the given numbers. If an argument changes, its state changes.

    The state is the address and PyTorch's version counter. With the extension module it also contains a sample of the
    elements.
    """
    native = extension()
    plain = {n: (args[n].data_ptr(), 0 if args[n].is_inference() else args[n]._version) for n in numbers}
    return plain if native is None else {n: native.seen(args[n]) or seen for n, seen in plain.items()}


@dataclass(frozen=True)
class _Placed:
    """Program that is specialised for one set of shapes.

    Attributes:
        plan: launches and buffers.
        parts: encoded launches and functions of PyTorch, in order, without constant launches.
        constants: results of the constant launches.
    """

    plan: LaunchPlan
    parts: Sequence[_Launches | EagerStep]
    constants: _Constants


@dataclass(frozen=True)
class CpuKernel:
    """Properties of a kernel that the runtime needs.

    Attributes:
        number: index of the kernel in the text.
        work: estimated element operations of a block.
        serial: whether all blocks must run on one core, because they update the same elements with atomics, or print.
    """

    number: int
    work: int
    serial: bool

    def is_shared(self, blocks: int) -> bool:
        """Returns true if a launch of `blocks` blocks runs on several cores."""
        return not self.serial and blocks > 1 and blocks * self.work >= SHARED_WORK


@dataclass(frozen=True)
class CpuPlan:
    """Properties of a module at the kernel level that the runtime needs to call its C++.

    It can be pickled for another process if all sizes are static.

    Attributes:
        plan: launches and buffers.
        asserts: whether the module has assertions.
        kernels: kernels by their C++ names.
    """

    plan: LaunchPlan
    asserts: bool
    kernels: Mapping[str, CpuKernel]

    @staticmethod
    def of(module: ModuleOp) -> CpuPlan:
        """Returns the properties of a module at the kernel level."""
        names = kernel_names(module)
        functions = [op for op in module.body.ops if isinstance(op, FuncOp)]
        kernels = {
            names[f.sym_name.data]: CpuKernel(
                i, _work(f.body.block), any(isinstance(op, AtomicRmwOp | PrintOp) for op in f.walk())
            )
            for i, f in enumerate(functions)
        }
        return CpuPlan(make_plan(module), any(isinstance(op, AssertOp) for op in module.walk()), kernels)


class CpuProgram:
    """Compiled program on torch tensors of the host.

    Args:
        module: module at the kernel level, or its properties.
        text: C++ of the module, or the path of its shared object.
        eager: functions that PyTorch computes, by name.
        cores: largest number of cores; default: the threads of PyTorch.

    Raises:
        ExecutionError: if there is no compiler.
    """

    def __init__(
        self,
        module: ModuleOp | CpuPlan,
        text: str | Path,
        eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] | None = None,
        cores: int | None = None,
    ) -> None:
        import torch

        # The default is more cores than any host has.
        self.torch, self.eager, self.cores = torch, eager or {}, cores or 1 << 16
        described = module if isinstance(module, CpuPlan) else CpuPlan.of(module)
        self.plan, self.asserts, self._kernels = described.plan, described.asserts, described.kernels
        self._launch = ctypes.CDLL(str(text if isinstance(text, Path) else build(text))).run
        # Starts a thread that builds the extension module: after the program, because both take seconds.
        building()
        self._launch.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = None
        self._placed: dict[Key, _Placed] = {}
        self._segments: Segments[_Placed] | None = None
        if self.plan.reads_sizes:
            self._segments = Segments(self.plan, self._place_segment, self._execute, check=self.plan.check_tensors)
        self._constants = _Constants(None, {})
        self._scratch: list[Any] = []

    def run(self, args: Sequence[Any], clock: list[Span] | None = None) -> list[Any]:
        """Runs the program.

        Args:
            args: tensors.
            clock: list that gets the time span of each step.

        Raises:
            ExecutionError: if the arguments do not fit, or an assertion fails.
        """
        if self._segments is not None:
            return self._segments.run([_plain(a) for a in args], clock)
        key = key_of(args)
        placed = self._placed.get(key)
        if placed is None or placed.constants.seen != _seen(args, placed.constants.seen):
            placed = self._place(key, args)
        return self._execute(placed, [_plain(a) for a in args], clock)

    def _execute(self, placed: _Placed, inputs: Sequence[Any], clock: list[Span] | None) -> list[Any]:
        """Runs a placed program on dense tensors, and returns its results. Raises ExecutionError."""
        torch, clocked = self.torch, list[tuple[float, float]]()
        outputs = new_results(placed.plan, inputs, self._empty)
        scratch = self._scratch_of(placed.plan.call_bytes)
        memory = _pointers((*inputs, *outputs, scratch))
        message = ctypes.create_string_buffer(_MESSAGE_BYTES) if self.asserts else None
        # In a new thread, the first call of this function also sets the number of threads of OpenMP.
        threads = torch.get_num_threads()
        for part in placed.parts:
            if isinstance(part, EagerStep):
                start = perf_counter()
                compute_eagerly(part, self.eager, placed.plan, [*inputs, *outputs], scratch, torch)
                times = start, perf_counter()
            else:
                times = (ctypes.c_double * (part.count + 1))()
                self._launch(part.first, part.end, memory, threads, message, None if clock is None else times)
            if clock is not None:
                clocked += pairwise(times)
        self._scratch.append(scratch)
        _check(message)
        if clock is not None:
            names = (s.kernel if isinstance(s, Launch) else s.function for s in placed.plan.call_steps)
            clock += [Span(name, start, end - start) for name, (start, end) in zip(names, clocked, strict=True)]
        return outputs

    def trace(self, args: Sequence[Any]) -> list[Span]:
        """Runs the program for `args` and returns when each step ran. Raises as `run`."""
        clock: list[Span] = []
        self.run(args, clock)
        return clock

    def repeated_calls(self, *described: Any) -> Any:
        """Returns a cache of calls that run without Python (`calls.cpp`), or None without the extension module.

        Args:
            described: description of arguments and results (`frontend/repeated_calls.py`).
        """
        native = extension()
        if native is None or self._segments is not None:
            return None
        run = ctypes.cast(self._launch, ctypes.c_void_p).value
        return native.Calls(run, *described, _fail if self.asserts else None)

    def remember(
        self, calls: Any, inputs: Sequence[Any], results: Sequence[Any], updates: Sequence[tuple[int, int]]
    ) -> None:
        """Adds a call to a cache of `repeated_calls`, unless the caller would have to copy results into arguments.

        Args:
            calls: the cache.
            inputs: arguments.
            results: results with the strides that the caller sees.
            updates: pairs (result, argument) of results that are the new contents of arguments.
        """
        placed = self._placed[key_of(inputs)]
        plan, places = placed.plan, dict(placed.plan.in_place)
        examples = tuple(places.get(i, example) for i, example in enumerate(results, plan.inputs))
        launches = placed.parts[0] if placed.parts else _Launches()
        in_place = all(places.get(plan.inputs + r) == a for r, a in updates)
        if len(placed.parts) <= 1 and isinstance(launches, _Launches) and in_place:
            how = (plan.call_bytes, launches.shared, launches.work >= LONG_WORK, tuple(placed.constants.seen))
            calls.remember(tuple(inputs), examples, launches.first, launches.end, *how, (launches, placed.constants))

    def forget_constants(self) -> None:
        """Drops the results of constant launches. The next call computes them again."""
        self._constants = _Constants(None, {})
        self._placed.clear()

    def _scratch_of(self, size: int) -> Any:
        """Returns scratch memory of at least `size` bytes, reused from an earlier call if possible."""
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = None
        return self._empty((size,), "ui8") if scratch is None or scratch.nbytes < size else scratch

    def _empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Returns a new tensor on the host."""
        tensor = self.torch.empty(shape, dtype=getattr(self.torch, DTYPES[dtype].torch), device="cpu")
        _advise_huge_pages(tensor)
        return tensor

    def _place(self, key: Key, args: Sequence[Any]) -> _Placed:
        """Specialises the program for the shapes of `args`, and caches it under `key`.

        Raises:
            ExecutionError: for illegal arguments.
        """
        if len(self._placed) >= KEPT_PLANS:
            self._placed.clear()
        plan = self.plan.check_tensors(args)
        placed = self._placed[key] = self._place_plan(plan, self._constants_of(plan, args))
        return placed

    def _place_segment(self, plan: LaunchPlan, sizes: Sizes) -> _Placed:
        return self._place_plan(plan, _Constants(None, {}))

    def _place_plan(self, plan: LaunchPlan, constants: _Constants) -> _Placed:
        """Returns a plan of static sizes in the form in which it runs."""
        places, parts = constants.places(plan), list[_Launches | EagerStep]()
        for eager, steps in groupby(plan.call_steps, lambda s: isinstance(s, EagerStep)):
            parts += steps if eager else [self._launches(steps, places)]  # pyright: ignore
        return _Placed(plan, parts, constants)

    def _constants_of(self, plan: LaunchPlan, args: Sequence[Any]) -> _Constants:
        """Returns the results of the constant launches. Computes them if arguments have changed."""
        launches, old = plan.constant_launches, self._constants
        if launches and (old.memory is None or old.seen != _seen(args, old.seen)):
            read = sorted({b for x in launches for b in x.buffers if b < plan.arguments})
            constants = _Constants(self._empty((plan.constant_bytes,), "ui8"), _seen(args, read))
            program = self._launches(launches, constants.places(plan))
            tensors = [_plain(a) if n in read else None for n, a in enumerate(args)]
            message = ctypes.create_string_buffer(_MESSAGE_BYTES)
            self._launch(program.first, program.end, _pointers(tensors), self.torch.get_num_threads(), message, None)
            _check(message)
            self._constants = constants
        return self._constants

    def _launches(self, launches: Iterable[Launch], places: Sequence[tuple[int, int]]) -> _Launches:
        """Returns the encoding of launches. `places` are the locations of the buffers (`_Constants.places`)."""
        numbers, works, any_shared = list[int](), list[int](), False
        for launch in launches:
            kernel, blocks = self._kernels[launch.kernel], prod(launch.blocks)
            works.append(blocks * kernel.work)
            shared = kernel.is_shared(blocks)
            any_shared |= shared
            numbers += [kernel.number, blocks, self.cores if shared else 1, len(launch.buffers)]
            for number, begin in zip(launch.buffers, launch.begins(), strict=True):
                memory, offset = places[number]
                numbers += [memory, offset + begin]
            numbers += [len(launch.values), *launch.values]
        return _Launches(numbers, len(works), any_shared, sum(works))


def _pointers(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(t if t is None else t.data_ptr() for t in tensors))


def _fail(message: str) -> None:
    raise ExecutionError(message, operator="cpu")


def _check(message: Any) -> None:
    if message is not None and message.value:
        _fail(message.value.decode())


def _work(block: Block) -> int:
    """Returns an estimate of the element operations of a basic block, including those of nested loops."""
    work = 0
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            trips = trip_count(op)
            work += (UNKNOWN_TRIPS if trips is None else trips) * _work(op.body.block)
        elif isinstance(op, PanelFmaOp):
            work += prod(op.extents) * op.depth.data
        else:
            work += sum(map(_work, (b for r in op.regions for b in r.blocks)))
            work += max((registers(v) for v in (*op.results, *op.operands)), default=0)
    return work


def _plain(tensor: Any) -> Any:
    """Returns a dense copy of a tensor, or the tensor if it is dense. Raises ExecutionError for other devices."""
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    if not tensor.is_cpu:
        raise ExecutionError(f"expected tensors on the host, but got one on {tensor.device}", operator="cpu")
    return tensor.detach().resolve_neg().contiguous()


def _advise_huge_pages(tensor: Any, advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)) -> None:
    """Advises the system to map a large tensor in huge pages, which is several times faster for new memory."""
    if advice is not None and tensor.nbytes >= MIN_BYTES_OF_HUGE_PAGES:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = tensor.data_ptr() + tensor.nbytes - first
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), advice)


def collapse_pages(tensor: Any) -> None:
    """Moves the memory of a tensor to huge pages, if the system supports it. Addresses and contents do not change.

    It takes a second per GB, and makes reads some percent faster.
    """
    _advise_huge_pages(tensor, _MADV_COLLAPSE if sys.platform == "linux" else None)
