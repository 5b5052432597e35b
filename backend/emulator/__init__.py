"""Emulator: runs the printed CUDA text on the CPU, compiled by the host compiler, and checks every memory access.

Every CUDA thread is a fiber; a seed decides their order. The emulator finds errors of the printer. It reports, with the
line of the CUDA text: races, reads of unwritten memory, accesses out of bounds or misaligned, and barriers and shuffles
that some threads do not reach.

A race is detected by the happens-before relation of two accesses, not by the order in which they ran. So few seeds are
enough.
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
from ..host.launch_plan import BindStep, Buffer, EagerStep, Launch, LaunchPlan
from ..host.segments import Segments
from ..interpreter.running import Eager, call_eager
from .build import build_library, build_standalone, kernel_bounds, runtime_library, source_name

ACCESS_LIMIT = 4_000_000_000
"""Number of memory accesses after which a launch is stopped: about a minute."""

_FLOAT_ATOMICS = re.compile(r"void atomic_(add|mul)\((float|double)\*")
"""Regular expression of helpers for atomics whose rounding depends on the order of threads."""

ROUNDING = 2.0**-6
"""Tolerance of results that depend on the order of threads, relative to the largest value.

It is two to four units in the last place of bf16.
"""

_LOCK = threading.Lock()
"""Lock of the C++ runtime, which emulates one device, so that one launch runs at a time."""


@dataclass(frozen=True)
class Report:
    """Error that the emulator found in a kernel.

    Attributes:
        kind: kind of the error.
            Memory: race, uninitialised, out-of-bounds, misaligned, unwritten.
            Threads: divergent barrier, divergent shuffle, shuffle, divergent (only some threads of a warpgroup act),
            deadlock, schedule (a result depends on the seed).
            Asynchronous operations: fence (stores or registers may not be visible), protocol (wrong counts or
            lifetimes).
            Others: arithmetic, trap, assertion (`payload.assert`), too long, internal (an error of the emulator).
        text: description.
        kernel: name of the kernel.
        block, thread: indices of the block and thread.
        line: line of the CUDA text, or 0.
        file: file of the line, if a `#line` directive of the text names one.
        source: text of the line.
        other_block, other_thread, other_line: second access of a race.
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
    file: str = ""

    def __str__(self) -> str:
        where = f" in {self.kernel}" if self.kernel else ""
        if self.line:
            where += f", {f'{self.file}:' if self.file else 'line '}{self.line}: `{self.source}`"
        who = f" [block {self.block} thread {self.thread}"
        if self.kind == "race":
            who += f", against block {self.other_block} thread {self.other_thread} at line {self.other_line}"
        return f"{self.kind}{where}: {self.text}{who}]"


def run_cuda_on_cpu(
    source: str, plan: LaunchPlan, args: Sequence[np.ndarray], seeds: Sequence[int] = (0, 1), eager: Eager | None = None
) -> tuple[list[np.ndarray], list[Report]]:
    """Compiles a printed program for the host and runs it.

    Args:
        source: the CUDA text.
        plan: its launch plan.
        args: arguments.
        seeds: seeds of the order of threads.
        eager: functions that PyTorch computes, by name.

    Returns:
        The results and reports of `EmulatedProgram.run`.
    """
    return EmulatedProgram(source, plan, eager=eager).run(args, seeds)


def run_standalone_on_cpu(source: str) -> subprocess.CompletedProcess[str]:
    """Builds and runs a standalone program (`emit_standalone`) on the host. Returns its exit code and output."""
    return subprocess.run([str(build_standalone(source))], capture_output=True, text=True, check=False)


def compile_many(sources: Sequence[str]) -> list[EmulatedModule]:
    """Compiles several printed programs as one shared object, which takes little longer than one program."""
    with steps("compiling the CUDA for this machine", len(sources), "programs"):
        library = _Library(build_library(sources))
    return [EmulatedModule(source, library, number) for number, source in enumerate(sources)]


@dataclass(frozen=True)
class EmulatedModule:
    """Printed program that is compiled for the host.

    Attributes:
        source: the CUDA text.
        library: shared object.
        number: number of the program in the shared object.
    """

    source: str
    library: _Library
    number: int


class _StoppedError(Exception):
    """End of a run after an error that is in the reports, because a size that the program reads may be wrong."""


class EmulatedProgram:
    """Printed CUDA program, compiled for the host, with its launch plan."""

    def __init__(
        self, source: str, plan: LaunchPlan, module: EmulatedModule | None = None, eager: Eager | None = None
    ) -> None:
        """Compiles the program unless it is compiled.

        Args:
            source: the CUDA text.
            plan: its launch plan.
            module: result of `compile_many` for this text, or None.
            eager: functions that PyTorch computes, by name.
        """
        self.eager = eager or {}
        self.plan = plan
        self.module = module or compile_many([source])[0]
        self.reassociates = _FLOAT_ATOMICS.search(source) is not None
        missing = [x.kernel for x in plan.launches if x.kernel not in kernel_bounds(source)]
        if missing:
            raise ExecutionError(f"expected a CUDA text with the kernel {missing[0]} of the plan, but it has none")

    def run(self, args: Sequence[np.ndarray], seeds: Sequence[int] = (0, 1)) -> tuple[list[np.ndarray], list[Report]]:
        """Runs the program with several orders of threads.

        A result that depends on the seed is reported. With atomic additions or products of floats, it is reported if
        the difference exceeds their rounding.

        Args:
            args: arguments.
            seeds: 0 for ascending, 1 for descending, others for random orders.

        Returns:
            The results with the first seed, and all reports without repetitions.

        Raises:
            ExecutionError: if the arguments do not fit the plan.
        """
        plan = self.plan.check_arguments([(a.shape, a.dtype.name) for a in args])
        segments = Segments(plan, lambda segment, sizes: segment, self._run_segment) if plan.reads_sizes else None
        results: list[np.ndarray] = []
        reports: dict[tuple[Any, ...], Report] = {}
        with steps("emulator", len(plan.steps) * len(seeds), "launches") as step:
            for seed in seeds:
                if segments is None:
                    outputs, new = self._run_plan(plan, args, seed, step)
                else:
                    outputs, new = self._run_segments(segments, args, seed, step)
                for r in new:
                    reports.setdefault((r.kind, r.kernel, r.line, r.text if not r.line else ""), r)
                if not results:
                    results = outputs
                elif not reports:
                    for b, x, y in zip(plan.output_buffers, results, outputs, strict=True):
                        if x.tobytes() != y.tobytes() and not (self.reassociates and _are_near(x, y)):
                            reason = f"{b.name} depends on the order of the threads"
                            reports["schedule", b.name] = Report("schedule", reason)
        return results, list(reports.values())

    def _run_segments(
        self, segments: Segments[LaunchPlan], args: Sequence[np.ndarray], seed: int, step: Step
    ) -> tuple[list[np.ndarray], list[Report]]:
        reports: list[Report] = []
        try:
            return segments.run(args, seed, step, reports), reports
        except _StoppedError:
            return [], reports

    def _run_segment(
        self, plan: LaunchPlan, args: Sequence[np.ndarray], seed: int, step: Step, reports: list[Report]
    ) -> list[np.ndarray]:
        """Runs a segment, and returns its results. Raises _StoppedError after an error, which `reports` gets."""
        outputs, new = self._run_plan(plan, args, seed, step)
        reports += new
        if new:
            raise _StoppedError
        return outputs

    def _run_plan(
        self, plan: LaunchPlan, args: Sequence[np.ndarray], seed: int, step: Step
    ) -> tuple[list[np.ndarray], list[Report]]:
        """Runs a plan of static sizes with one order of threads."""
        library = self.module.library
        with _LOCK:
            library.reset()
            ids = [library.new_buffer(b, args[i] if i < plan.inputs else None) for i, b in enumerate(plan.buffers)]
            for result, argument in plan.in_place:
                ids[result] = ids[argument]
            reports: list[Report] = []
            completed = True
            for number, launch in enumerate(plan.steps):
                assert not isinstance(launch, BindStep)
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
    """Loads the runtime, which the code of all programs calls. It is loaded once, because it never unmaps memory."""
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
    """Shared object with the kernels of some programs. It is unloaded with this object."""

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
        """Runs one kernel. Returns false if it was stopped.

        Args:
            module: the program.
            launch: the launch.
            buffers: buffers of the plan.
            ids: number of each buffer in the C++ runtime.
            seed: order of threads.
        """
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
        """Runs a step that PyTorch computes. New buffers with its results replace those in `ids`.

        Args:
            step: the step.
            eager: functions by name.
            buffers: buffers of the plan.
            ids: number of each buffer in the C++ runtime.
        """
        arrays = [self.read(ids[i], buffers[i]) for i in step.inputs]
        types = [(buffers[i].numpy_dtype, static(buffers[i].shape)) for i in step.outputs]
        for i, result in zip(step.outputs, call_eager(step.function, eager, arrays, types), strict=True):
            ids[i] = self.new_buffer(buffers[i], result)

    def unwritten(self, plan: LaunchPlan, ids: Sequence[int]) -> list[Report]:
        reports: list[Report] = []
        computed = {i for step in plan.eager for i in step.outputs} | {result for result, _ in plan.in_place}
        for i in [i for i in range(plan.inputs, plan.arguments) if i not in computed]:
            first = ctypes.c_uint64()
            if count := self.c.emu_buffer_unwritten(ids[i], ctypes.byref(first)):
                text = f"{count} elements of {plan.buffers[i].name}, from element {first.value} on, are never written"
                reports.append(Report("unwritten", text))
        return reports

    def take_reports(self, module: EmulatedModule, kernel: str) -> list[Report]:
        """Returns the errors that the C++ runtime recorded in a launch of `kernel`, and clears them."""
        raw_reports: list[tuple[str, str, list[int]]] = []
        for i in range(self.c.emu_report_count()):
            kind, text = (f(i).decode() for f in (self.c.emu_report_kind, self.c.emu_report_text))
            n = (ctypes.c_uint64 * 6)()
            self.c.emu_report_numbers(i, n)
            raw_reports.append((kind, text, [*n]))
        self.c.emu_forget_reports()
        source = _numbered_lines(module.source)
        lines = _lines(self.path, source_name(module.number), {o for *_, n in raw_reports for o in n[4:6] if o}, source)
        reports: list[Report] = []
        for kind, text, n in raw_reports:
            (file, line), (_, other) = (lines.get(o, ("", 0)) for o in n[4:6])
            shown = source.get((file, line), "").strip()
            reports.append(Report(kind, text, kernel, n[0], n[1], line, shown, n[2], n[3], other, file))
        return reports


def _are_near(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns true if float results are equal up to `ROUNDING`."""
    if x.dtype.kind in "iub":
        return False
    a, b = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(a)
    largest = np.max(np.abs(a), where=finite, initial=0.0)
    return bool(np.allclose(a, b, rtol=0, atol=ROUNDING * largest, equal_nan=True))


def _numbered_lines(text: str) -> dict[tuple[str, int], str]:
    """Returns the lines of a text by file and number. The file is "" before the first `#line` directive."""
    lines, file, number = dict[tuple[str, int], str](), "", 1
    for line in text.splitlines():
        if directive := re.fullmatch(r'#line (\d+) "(.*)"', line):
            number, file = int(directive[1]), directive[2]
        else:
            lines[file, number] = line
            number += 1
    return lines


def _lines(
    path: Path, source: str, offsets: Collection[int], text: Collection[tuple[str, int]]
) -> dict[int, tuple[str, int]]:
    """Returns the file and line for instructions at `offsets` of a shared object.

    Args:
        path: the shared object.
        source: name of the text, which has the file "".
        offsets: offsets of instructions.
        text: file and number of each line of the text.
    """
    command = ["addr2line", "-a", "-i", "-e", str(path), *map(hex, offsets)]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout if offsets else ""
    except OSError:
        return {}
    names = {file or source: file for file, _ in text}
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    lines_by_offset: dict[int, tuple[str, int]] = {}
    for address, frames in re.findall(r"^(0x[0-9a-f]+)\n((?:(?!0x).*\n)*)", printed, re.MULTILINE):
        lines = re.findall(rf"(?:^|/)({either}):(\d+)", frames, re.MULTILINE)
        lines_by_offset[int(address, 16)] = (names[lines[-1][0]], int(lines[-1][1])) if lines else ("", 0)
    return lines_by_offset


__all__ = ["EmulatedModule", "EmulatedProgram", "Report", "compile_many", "run_cuda_on_cpu", "run_standalone_on_cpu"]
