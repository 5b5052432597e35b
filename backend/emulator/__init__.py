"""The emulator: the printed CUDA text itself, compiled by the host compiler, run and watched.

One fiber for each CUDA thread under a seeded order, and every access to memory seen before it happens. It finds what no
interpreter of the IR can: mistakes of the printer, and, with the line of the CUDA text, races, reads of memory that
nobody wrote, accesses out of bounds or misaligned, barriers and shuffles that not every thread reaches.

Whether two accesses race is decided by what orders them, not by what happened to run first; so few seeds are enough.
"""

from __future__ import annotations

import _ctypes
import ctypes
import re
import subprocess
import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...dialects.shapes.extents import static
from ...errors import ExecutionError
from ...progress import Step, steps
from ..cuda.runtime.driver import aligned, describe
from ..host.launch_plan import Buffer, EagerStep, Launch, LaunchPlan
from ..interpreter.running import Eager, call_eager
from .build import build_library, build_standalone, kernel_bounds, runtime_library, source_name

ACCESS_LIMIT = 4_000_000_000
"""Memory accesses after which a launch is given up, about a minute's worth."""

_FLOAT_ATOMICS = re.compile(r"void atomic_(add|mul)\((float|double)\*")
"""The helpers of whose results the rounding depends on the order of the threads."""

ROUNDING = 2.0**-6
"""How far results may lie apart, as a part of the largest: a step or two of a bf16."""

_LOCK = threading.Lock()
"""One run at a time: a runtime has one device."""


@dataclass(frozen=True)
class Report:
    """Something that a kernel must not do.

    `kind`: race, uninitialised, out-of-bounds, misaligned, divergent barrier, divergent shuffle, shuffle, deadlock,
    arithmetic, trap, assertion (of the program: `payload.assert`), too long, unwritten, schedule, fence (stores or
    registers that something asynchronous may not see yet), divergent (threads of a warpgroup that do not act together),
    protocol (asynchronous operations that count wrongly, or outlive their block) or internal (of the emulator, not of
    the kernel). `line` is the line of the CUDA text, 0 where there is none; `other_line` that of the access that it
    races with.
    """

    kind: str
    text: str
    kernel: str = ""
    block: int = 0
    thread: int = 0
    line: int = 0
    source: str = ""
    other_block: int = 0
    other_thread: int = 0
    other_line: int = 0

    def __str__(self) -> str:
        where = f" in {self.kernel}" if self.kernel else ""
        if self.line:
            where += f", line {self.line}: `{self.source}`"
        who = f" [block {self.block} thread {self.thread}"
        if self.kind == "race":
            who += f", against block {self.other_block} thread {self.other_thread} at line {self.other_line}"
        return f"{self.kind}{where}: {self.text}{who}]"


def run_cuda_on_cpu(
    source: str, plan: LaunchPlan, args: Sequence[np.ndarray], seeds: Sequence[int] = (0, 1), eager: Eager | None = None
) -> tuple[list[np.ndarray], list[Report]]:
    """Compile a printed program for the host and run it, as `EmulatedProgram` does."""
    return EmulatedProgram(source, plan, eager=eager).run(args, seeds)


def run_standalone_on_cpu(source: str) -> subprocess.CompletedProcess[str]:
    """Build a standalone program (`emit_standalone`) with the host compiler and run it: its exit code and output."""
    return subprocess.run([str(build_standalone(source))], capture_output=True, text=True, check=False)


def compile_many(sources: Sequence[str]) -> list[EmulatedModule]:
    """Compile several printed programs in one go, which costs little more than one of them."""
    with steps("compiling the CUDA for this machine", len(sources), "programs"):
        library = _Library(build_library(sources))
    return [EmulatedModule(source, library, number) for number, source in enumerate(sources)]


@dataclass(frozen=True)
class EmulatedModule:
    """A printed program, compiled for the host: part of a shared object."""

    source: str
    library: _Library
    number: int


class EmulatedProgram:
    """A printed program with its plan, ready to run on the host."""

    def __init__(
        self, source: str, plan: LaunchPlan, module: EmulatedModule | None = None, eager: Eager | None = None
    ) -> None:
        """`module` is what `compile_many` gave for this source; without it the source is compiled alone. `eager`
        computes the functions that are left to PyTorch."""
        self.eager = eager or {}
        self.plan = plan
        self.module = module or compile_many([source])[0]
        self.reassociates = _FLOAT_ATOMICS.search(source) is not None
        missing = [x.kernel for x in plan.launches if x.kernel not in kernel_bounds(source)]
        if missing:
            raise ExecutionError(f"the CUDA text has no kernel {missing[0]}")

    def run(self, args: Sequence[np.ndarray], seeds: Sequence[int] = (0, 1)) -> tuple[list[np.ndarray], list[Report]]:
        """The results under the first seed, and every report, without repetitions.

        The seed orders the threads: 0 ascending, 1 descending, any other at random. A result that depends on the seed
        is itself a report; where atomic operations add or multiply floats, if it does by more than their rounding.
        Raises ExecutionError if the arguments do not fit the plan.
        """
        plan = self.plan.check_arguments([(a.shape, a.dtype.name) for a in args])
        found: list[np.ndarray] = []
        reports: dict[tuple[Any, ...], Report] = {}
        with steps("emulator", len(plan.steps) * len(seeds), "launches") as step:
            for seed in seeds:
                outputs, new = self._run_once(plan, args, seed, step)
                for r in new:
                    reports.setdefault((r.kind, r.kernel, r.line, r.text if not r.line else ""), r)
                if not found:
                    found = outputs
                elif not reports:
                    for b, x, y in zip(plan.output_buffers, found, outputs, strict=True):
                        if x.tobytes() != y.tobytes() and not (self.reassociates and _are_near(x, y)):
                            what = f"{b.name} depends on the order of the threads"
                            reports["schedule", b.name] = Report("schedule", what)
        return found, list(reports.values())

    def _run_once(
        self, plan: LaunchPlan, args: Sequence[np.ndarray], seed: int, step: Step
    ) -> tuple[list[np.ndarray], list[Report]]:
        library = self.module.library
        with _LOCK:
            library.reset()
            ids = [library.new_buffer(b, args[i] if i < plan.inputs else None) for i, b in enumerate(plan.buffers)]
            for result, argument in plan.in_place:
                ids[result] = ids[argument]
            reports: list[Report] = []
            completed = True
            for number, launch in enumerate(plan.steps):
                step(1 if number else 0, launch.function if isinstance(launch, EagerStep) else launch.kernel)
                if isinstance(launch, EagerStep):
                    library.call(launch, self.eager, plan.buffers, ids)
                    continue
                completed = library.launch(self.module, launch, plan.buffers, ids, seed)
                reports += library.take_reports(self.module, launch.kernel)
                if not completed:
                    break
            step(1 if plan.steps else 0)
            outputs = [library.read(i, b) for i, b in zip(ids, plan.buffers, strict=True)]
            if completed and not reports:
                reports += library.unwritten(plan, ids)
            library.reset()
        return outputs[plan.inputs : plan.arguments], reports


@cache
def _runtime() -> ctypes.CDLL:
    """The runtime, which the device code of every program calls: there is one, and it keeps what it maps."""
    c, u64 = ctypes.CDLL(str(runtime_library()), ctypes.RTLD_GLOBAL), ctypes.c_uint64
    c.emu_buffer_new.argtypes = [u64, ctypes.c_uint, ctypes.c_int]
    c.emu_buffer_data.restype = ctypes.c_void_p
    c.emu_buffer_unwritten.restype = u64
    c.emu_report_kind.restype = c.emu_report_text.restype = ctypes.c_char_p
    pointers = [ctypes.c_void_p] * 3
    head = [*pointers, u64, *pointers[:2], ctypes.c_int]
    tail = [ctypes.c_int, u64, u64, ctypes.c_uint, ctypes.c_uint]
    c.emu_launch.argtypes = [*head, *pointers, ctypes.c_int, pointers[0], *tail]
    return c


class _Library:
    """The kernels of some programs: a shared object, loaded as long as this lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = _runtime()
        self.device = ctypes.CDLL(str(path))
        weakref.finalize(self, _ctypes.dlclose, self.device._handle).atexit = False

    def reset(self) -> None:
        self.c.emu_reset()

    def new_buffer(self, buffer: Buffer, content: np.ndarray | None) -> int:
        number = self.c.emu_buffer_new(buffer.bytes, buffer.numpy_dtype.itemsize, content is not None)
        if number < 0:
            raise ExecutionError(f"no memory for {buffer.bytes} bytes", argument=buffer.name)
        if content is not None:
            data = np.ascontiguousarray(content)
            ctypes.memmove(self.c.emu_buffer_data(number), data.ctypes.data, buffer.bytes)
        return number

    def read(self, number: int, buffer: Buffer) -> np.ndarray:
        data = ctypes.string_at(self.c.emu_buffer_data(number), buffer.bytes)
        return np.frombuffer(data, buffer.numpy_dtype).reshape(static(buffer.shape)).copy()

    def launch(
        self, module: EmulatedModule, launch: Launch, buffers: Sequence[Buffer], ids: Sequence[int], seed: int
    ) -> bool:
        """Run one kernel; False if it had to be stopped."""
        count = len(launch.buffers)
        grid, threads = ((ctypes.c_uint * 3)(*(*sizes, 1, 1)[:3]) for sizes in (launch.blocks, launch.threads))
        numbers = (ctypes.c_int * count)(*(ids[i] for i in launch.buffers))
        names = (ctypes.c_char_p * count)(*(buffers[i].name.encode() for i in launch.buffers))
        call = getattr(self.device, f"emu_{module.number}_{launch.kernel}")
        sizes = [buffers[i].bytes for i in launch.buffers]
        for argument, _, size in launch.parts:
            sizes[argument] = size
        first, size_of = ((ctypes.c_uint64 * count)(*n) for n in (launch.begins(), sizes))
        starts = [self.c.emu_buffer_data(ids[i]) + b for i, b in zip(launch.buffers, launch.begins(), strict=True)]
        maps = aligned(128 * len(launch.maps)).view(np.uint64).reshape(-1, 16)
        maps[:] = [describe(m, starts[m.argument]) for m in launch.maps] or 0
        number = ctypes.c_int if launch.size_bytes == 4 else ctypes.c_longlong
        numbers_taken = [number(v) for v in launch.values]
        values = (ctypes.c_void_p * len(numbers_taken))(*(ctypes.addressof(v) for v in numbers_taken))
        bounds = kernel_bounds(module.source)[launch.kernel]
        stopped = self.c.emu_launch(
            *(call, grid, threads, launch.shared, numbers, names, count, first, size_of),
            *(maps.ctypes.data, len(maps), values, len(numbers_taken), seed, ACCESS_LIMIT),
            *(bounds.cluster, bounds.registers),
        )
        return not stopped

    def call(self, step: EagerStep, eager: Eager, buffers: Sequence[Buffer], ids: list[int]) -> None:
        """Let PyTorch compute a step: its results are new buffers with contents, in place of those that wait for it."""
        given = [self.read(ids[i], buffers[i]) for i in step.inputs]
        wanted = [(buffers[i].numpy_dtype, static(buffers[i].shape)) for i in step.outputs]
        for i, result in zip(step.outputs, call_eager(step.function, eager, given, wanted), strict=True):
            ids[i] = self.new_buffer(buffers[i], result)

    def unwritten(self, plan: LaunchPlan, ids: Sequence[int]) -> list[Report]:
        reports: list[Report] = []
        given = {i for step in plan.eager for i in step.outputs} | {result for result, _ in plan.in_place}
        for i in [i for i in range(plan.inputs, plan.arguments) if i not in given]:
            first = ctypes.c_uint64()
            if count := self.c.emu_buffer_unwritten(ids[i], ctypes.byref(first)):
                text = f"{count} elements of {plan.buffers[i].name}, from element {first.value} on, are never written"
                reports.append(Report("unwritten", text))
        return reports

    def take_reports(self, module: EmulatedModule, kernel: str) -> list[Report]:
        """The reports so far, which are forgotten."""
        found: list[tuple[str, str, list[int]]] = []
        for i in range(self.c.emu_report_count()):
            kind, text = (f(i).decode() for f in (self.c.emu_report_kind, self.c.emu_report_text))
            n = (ctypes.c_uint64 * 6)()
            self.c.emu_report_numbers(i, n)
            found.append((kind, text, [*n]))
        self.c.emu_forget_reports()
        lines = _lines(self.path, source_name(module.number), {o for *_, n in found for o in n[4:6] if o})
        source = dict(enumerate(module.source.splitlines(), 1))
        reports: list[Report] = []
        for kind, text, n in found:
            line, other = (lines.get(o, 0) for o in n[4:6])
            reports.append(
                Report(kind, text, kernel, n[0], n[1], line, source.get(line, "").strip(), n[2], n[3], other)
            )
        return reports


def _are_near(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether float results may be the same but for rounding."""
    if x.dtype.kind in "iub":
        return False
    a, b = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(a)
    largest = np.max(np.abs(a), where=finite, initial=0.0)
    return bool(np.allclose(a, b, rtol=0, atol=ROUNDING * largest, equal_nan=True))


def _lines(path: Path, source: str, offsets: Collection[int]) -> dict[int, int]:
    """The lines of the text `source` that the instructions at `offsets` of a shared object come from."""
    command = ["addr2line", "-a", "-i", "-e", str(path), *map(hex, offsets)]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout if offsets else ""
    except OSError:
        return {}
    found: dict[int, int] = {}
    for address, frames in re.findall(r"^(0x[0-9a-f]+)\n((?:(?!0x).*\n)*)", printed, re.MULTILINE):
        lines = re.findall(rf"{re.escape(source)}:(\d+)", frames)
        found[int(address, 16)] = int(lines[-1]) if lines else 0
    return found


__all__ = ["EmulatedModule", "EmulatedProgram", "Report", "compile_many", "run_cuda_on_cpu", "run_standalone_on_cpu"]
