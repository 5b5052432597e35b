"""Runs a program on the CPU: compiled C++, called on the memory of torch's tensors.

All launches between two steps of PyTorch are one call of the C++, which reads them as an array of numbers that is made
once for each set of shapes. Pointers, scratch memory and the message of an assertion belong to the call, so several
threads may call a program at the same time.
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

from ...dialects.kernel import AtomicRmwOp, FuncOp, PanelFmaOp, kernel_names
from ...dialects.payload import AssertOp
from ...dialects.shapes.ranges import trip_count
from ...errors import ExecutionError
from ..cpp.ordering import registers
from ..dtypes import DTYPES
from ..host.calls import KEPT_PLANS, Key, building, compute_eagerly, extension, key_of, new_results
from ..host.launch_plan import EagerStep, Launch, LaunchPlan, make_plan
from ..host.timing import Span
from .build import build

SHARED_WORK = 1 << 19
"""Operations on elements of a launch that cores share: to wake a core costs some ten thousand vectors."""

UNKNOWN_TRIPS = 32
"""Iterations of a loop whose trip count is not constant, where work is estimated."""

LONG_WORK = 1 << 16
"""Operations on elements of a call during which other threads of Python may run."""

HUGE = 4 << 20
"""Bytes of a buffer that the system is advised to map in huge pages."""

_LIBC, _MADV_COLLAPSE = ctypes.CDLL(None), 25
"""The advice is of Linux from 6.1 on; `mmap` has no name for it."""

_MESSAGE = 200
"""Bytes for what an assertion says."""


class _Launches:
    """`count` launches as the numbers that `run` of the C++ reads. `shared`: cores share a launch; `work`: operations
    on single elements in all launches, about."""

    def __init__(self, numbers: Sequence[int] = (), count: int = 0, shared: bool = False, work: int = 0) -> None:
        self.numbers, self.count, self.shared, self.work = np.array(numbers, dtype=np.int64), count, shared, work
        self.first = self.numbers.ctypes.data
        self.end = self.first + self.numbers.nbytes


@dataclass(frozen=True)
class _Constants:
    """The results of constant launches, in `memory`, and the versions of the arguments that they read, by number."""

    memory: Any
    seen: Mapping[int, tuple[int, ...]]

    def places(self, plan: LaunchPlan) -> list[tuple[int, int]]:
        """Returns the place of each buffer: its memory and the offset there; -1 and the address for constants."""
        behind = 0 if self.memory is None else self.memory.data_ptr() - plan.call_bytes
        scratch = plan.buffers[plan.arguments :]
        own = [(-1, behind + b.offset) if b.constant else (plan.arguments, b.offset) for b in scratch]
        return [*((i, 0) for i in range(plan.arguments)), *own]


def _seen(args: Sequence[Any], numbers: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Returns, by number, the address of each argument, the number of changes in place that PyTorch has counted, and a
    sample of the contents where the extension module is loaded."""
    native = extension()
    plain = {n: (args[n].data_ptr(), 0 if args[n].is_inference() else args[n]._version) for n in numbers}
    return plain if native is None else {n: native.seen(args[n]) or seen for n, seen in plain.items()}


@dataclass(frozen=True)
class _Placed:
    """A program for arguments of certain shapes: launches, in numbers, and steps of PyTorch; without constant launches,
    whose results are in `constants`."""

    plan: LaunchPlan
    parts: Sequence[_Launches | EagerStep]
    constants: _Constants


@dataclass(frozen=True)
class CpuKernel:
    """A kernel of a program.

    number  position in the text
    work    about how many elements a block computes, loads and stores
    serial  whether its blocks run on one core, because they update the same elements
    """

    number: int
    work: int
    serial: bool

    def is_shared(self, blocks: int) -> bool:
        """Returns true if several cores share a launch of `blocks` blocks."""
        return not self.serial and blocks > 1 and blocks * self.work >= SHARED_WORK


@dataclass(frozen=True)
class CpuPlan:
    """What the runtime reads of a module at the kernel level to call its C++. Where all sizes are known, it may be sent
    to another process."""

    plan: LaunchPlan
    asserts: bool
    kernels: Mapping[str, CpuKernel]

    @staticmethod
    def of(module: ModuleOp) -> CpuPlan:
        names = kernel_names(module)
        functions = [op for op in module.body.ops if isinstance(op, FuncOp)]
        kernels = {
            names[f.sym_name.data]: CpuKernel(
                i, _work(f.body.block), any(isinstance(op, AtomicRmwOp) for op in f.walk())
            )
            for i, f in enumerate(functions)
        }
        return CpuPlan(make_plan(module), any(isinstance(op, AssertOp) for op in module.walk()), kernels)


class CpuProgram:
    """A compiled program; `run` takes and gives torch tensors on the host.

    `module` is at the kernel level, or what has to be known of it, and `text` its C++ or the shared object that was
    built of it. `eager` computes the functions that are left to PyTorch. At most so many `cores` work; without a number
    as many as PyTorch may use. Raises ExecutionError where there is no compiler.
    """

    def __init__(
        self,
        module: ModuleOp | CpuPlan,
        text: str | Path,
        eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] | None = None,
        cores: int | None = None,
    ) -> None:
        import torch

        self.torch, self.eager, self.cores = torch, eager or {}, cores or 1 << 16  # more than a machine has
        known = module if isinstance(module, CpuPlan) else CpuPlan.of(module)
        self.plan, self.asserts, self._kernels = known.plan, known.asserts, known.kernels
        self._launch = ctypes.CDLL(str(text if isinstance(text, Path) else build(text))).run
        building()  # which takes a core for some seconds the first time, and the program's compiler comes before
        self._launch.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = None
        self._placed: dict[Key, _Placed] = {}
        self._constants = _Constants(None, {})
        self._scratch: list[Any] = []

    def run(self, args: Sequence[Any], clock: list[tuple[float, float]] | None = None) -> list[Any]:
        """Returns the results for the tensors `args`; a `clock` gets the begin and end of each step. Raises
        ExecutionError if the arguments do not fit, or the program stops at an assertion."""
        torch, key = self.torch, key_of(args)
        placed = self._placed.get(key)
        if placed is None or placed.constants.seen != _seen(args, placed.constants.seen):
            placed = self._place(key, args)
        inputs = [_plain(a) for a in args]
        outputs = new_results(placed.plan, inputs, self._empty)
        scratch = self._scratch_of(placed.plan.call_bytes)
        memory = _pointers((*inputs, *outputs, scratch))
        message = ctypes.create_string_buffer(_MESSAGE) if self.asserts else None
        threads = torch.get_num_threads()  # which also makes it known to OpenMP, in a thread that has not asked before
        for part in placed.parts:
            if isinstance(part, EagerStep):
                start = perf_counter()
                compute_eagerly(part, self.eager, placed.plan, [*inputs, *outputs], scratch, torch)
                times = start, perf_counter()
            else:
                times = (ctypes.c_double * (part.count + 1))()
                self._launch(part.first, part.end, memory, threads, message, None if clock is None else times)
            if clock is not None:
                clock += pairwise(times)
        self._scratch.append(scratch)
        _check(message)
        return outputs

    def trace(self, args: Sequence[Any]) -> list[Span]:
        """Runs the program for `args` and returns when each step ran. Raises as `run`."""
        clock: list[tuple[float, float]] = []
        self.run(args, clock)
        steps = self._placed[key_of(args)].plan.call_steps
        names = [s.function if isinstance(s, EagerStep) else s.kernel for s in steps]
        return [Span(name, start, end - start) for name, (start, end) in zip(names, clock, strict=True)]

    def repeated_calls(self, *described: Any) -> Any:
        """Returns calls of this program that need no Python, `described` as in `calls.cpp`; None where there are
        none."""
        native = extension()
        if native is None:
            return None
        run = ctypes.cast(self._launch, ctypes.c_void_p).value
        return native.Calls(run, *described, _fail if self.asserts else None)

    def remember(
        self, calls: Any, inputs: Sequence[Any], results: Sequence[Any], updates: Sequence[tuple[int, int]]
    ) -> None:
        """Notes a call in `calls`: its arguments, and results with the strides that the caller sees. By `updates`,
        pairs (result, argument), arguments change in place; calls in which the program itself does not do that are not
        noted."""
        placed = self._placed[key_of(inputs)]
        plan, places = placed.plan, dict(placed.plan.in_place)
        known = tuple(places.get(i, example) for i, example in enumerate(results, plan.inputs))
        launches = placed.parts[0] if placed.parts else _Launches()
        in_place = all(places.get(plan.inputs + r) == a for r, a in updates)
        if len(placed.parts) <= 1 and isinstance(launches, _Launches) and in_place:
            how = (plan.call_bytes, launches.shared, launches.work >= LONG_WORK, tuple(placed.constants.seen))
            calls.remember(tuple(inputs), known, launches.first, launches.end, *how, (launches, placed.constants))

    def forget_constants(self) -> None:
        """Drops the results of constant launches: the next call computes them again."""
        self._constants = _Constants(None, {})
        self._placed.clear()

    def _scratch_of(self, size: int) -> Any:
        """Returns scratch memory: that of an earlier call if it is large enough and free."""
        try:
            left = self._scratch.pop()
        except IndexError:
            left = None
        return self._empty((size,), "ui8") if left is None or left.nbytes < size else left

    def _empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Returns a new tensor on the host, whatever the default device is."""
        made = self.torch.empty(shape, dtype=getattr(self.torch, DTYPES[dtype].torch), device="cpu")
        _advise_huge_pages(made)
        return made

    def _place(self, key: Key, args: Sequence[Any]) -> _Placed:
        """Returns the program for arguments like `args`. Raises ExecutionError for arguments that it does not take."""
        if len(self._placed) >= KEPT_PLANS:
            self._placed.clear()
        plan = self.plan.check_tensors(args)
        constants = self._constants_of(plan, args)
        places = constants.places(plan)
        parts: list[_Launches | EagerStep] = []
        for eager, steps in groupby(plan.call_steps, lambda s: isinstance(s, EagerStep)):
            parts += steps if eager else [self._launches(steps, places)]
        placed = self._placed[key] = _Placed(plan, parts, constants)
        return placed

    def _constants_of(self, plan: LaunchPlan, args: Sequence[Any]) -> _Constants:
        """Returns the results of the constant launches for the tensors `args`, computed unless they are there."""
        launches, old = plan.constant_launches, self._constants
        if launches and (old.memory is None or old.seen != _seen(args, old.seen)):
            read = sorted({b for x in launches for b in x.buffers if b < plan.arguments})
            made = _Constants(self._empty((plan.constant_bytes,), "ui8"), _seen(args, read))
            once = self._launches(launches, made.places(plan))
            tensors = [_plain(a) if n in read else None for n, a in enumerate(args)]
            message = ctypes.create_string_buffer(_MESSAGE)
            self._launch(once.first, once.end, _pointers(tensors), self.torch.get_num_threads(), message, None)
            _check(message)
            self._constants = made
        return self._constants

    def _launches(self, launches: Iterable[Launch], places: Sequence[tuple[int, int]]) -> _Launches:
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
    """Returns about how many elements a block computes, loads and stores."""
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
    """Returns a dense tensor with the elements of `tensor`. Raises ExecutionError for one that is not on the host."""
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    if not tensor.is_cpu:
        raise ExecutionError(f"a tensor is on {tensor.device}, the program runs on the host", operator="cpu")
    return tensor.detach().resolve_neg().contiguous()


def _advise_huge_pages(tensor: Any, advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)) -> None:
    """Advises the system to map a large tensor in huge pages: fresh memory is mapped several times faster."""
    if advice is not None and tensor.nbytes >= HUGE:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = tensor.data_ptr() + tensor.nbytes - first
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), advice)


def collapse_pages(tensor: Any) -> None:
    """Has the system put memory that is in use into huge pages, which takes a second per GB and makes reads some
    percent faster. Addresses and contents stay. Does nothing where the system knows no such advice."""
    _advise_huge_pages(tensor, _MADV_COLLAPSE if sys.platform == "linux" else None)
