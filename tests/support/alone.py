"""Runs programs of the CPU target as separate executables, under sanitizers or for another processor.

In an executable of its own a sanitizer sees generated code only, and an emulator such as qemu can run it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpu.build import FLAGS
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuKernel, CpuPlan
from deplodock.backend.dtypes import DTYPES
from deplodock.backend.host.build_cache import cached_file, digest
from deplodock.backend.host.launch_plan import Launch, LaunchPlan, make_plan
from deplodock.frontend.capture.arrays import to_numpy, to_torch

MAIN = Path(__file__).parent / "alone.cpp"

_SHARED_MEMORY = "static thread_local unsigned char memory["
"""Declaration of the scratch buffer of a thread in printed C++."""


class Failed(Exception):
    """A compiler or a program that ended with an error. The message is its stderr."""


@dataclass(frozen=True)
class Machine:
    """A way to build and start executables.

    Attributes:
        compiler: C++ compiler.
        flags: its flags, in addition to those of the CPU target.
        start: command that starts an executable, such as an emulator; empty to start it directly.
        threads: number of threads that share each launch.
    """

    compiler: str
    flags: tuple[str, ...]
    start: tuple[str, ...] = ()
    threads: int = 1

    def build(self, text: str) -> Path:
        """Returns the executable of a printed program. Raises Failed if it does not compile."""
        if self.threads == 1:
            # A sanitizer checks the bounds of global variables, but not of thread-local ones.
            text = text.replace(_SHARED_MEMORY, _SHARED_MEMORY.replace("thread_local ", ""))
        target_flags = [f for f in FLAGS if f not in ("-shared", "-fopenmp")]
        threads = ["-fopenmp", "-DTHREADS"] if self.threads > 1 else []
        main_object = self._compiled(MAIN.read_text(), ["-std=c++17", *self.flags, *threads])
        program_object = self._compiled(text, [*target_flags, *self.flags, *threads])
        name = digest(str(main_object), str(program_object))
        command = [self.compiler, *self.flags, str(main_object), str(program_object), "-lpthread", "-lm", "-o"]
        return cached_file("alone", name, lambda target: _build([*command, str(target)]))

    def _compiled(self, text: str, flags: Sequence[str]) -> Path:
        def make(target: Path) -> None:
            source = target.parent / "text.cpp"
            source.write_text(text)
            _run_command([self.compiler, *flags, "-c", str(source), "-o", str(target)])

        return cached_file("alone", digest(self.compiler, text, *flags) + ".o", make)

    def run(self, module: ModuleOp, args: Sequence[torch.Tensor], text: str | None = None) -> list[torch.Tensor]:
        """Builds and runs a program.

        Args:
            module: module at the kernel level.
            args: arguments of its main function.
            text: C++ to run instead of the printed module.

        Returns:
            The results of the main function.

        Raises:
            Failed: the program does not compile, or ends with an error.
        """
        argument_types = [(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args]
        plan = make_plan(module).check_arguments(argument_types)
        aliases = dict(plan.in_place)  # Result -> argument whose memory it reuses.
        contents = [to_numpy(a.contiguous()).tobytes() for a in args]
        contents += [b"" if i in aliases else bytes(b.bytes) for i, b in enumerate(plan.buffers) if i >= len(args)]
        kernels = CpuPlan.of(module).kernels
        launches = [n for step in plan.launches for n in self._numbers(step, kernels[step.kernel], aliases)]
        sizes = [len(c) for c in contents]
        message = [
            _length_and_numbers(sizes),
            *contents,
            _length_and_numbers(launches),
            _length_and_numbers([self.threads]),
        ]
        output = _run_command([*self.start, str(self.build(text or print_cpp(module)))], b"".join(message))
        offsets = np.cumsum([0, *sizes])
        return [_tensor(plan, i, output[offsets[aliases.get(i, i)] :]) for i in range(plan.inputs, plan.arguments)]

    def _numbers(self, launch: Launch, kernel: CpuKernel, in_place: dict[int, int]) -> list[int]:
        blocks = prod(launch.blocks)
        threads = 1 if kernel.serial or blocks == 1 else self.threads
        numbers = [kernel.number, blocks, threads, len(launch.buffers)]
        for number, begin in zip(launch.buffers, launch.begins(), strict=True):
            numbers += [in_place.get(number, number), begin]
        return [*numbers, len(launch.values), *launch.values]


def _length_and_numbers(numbers: Sequence[int]) -> bytes:
    return np.array([len(numbers), *numbers], dtype="<i8").tobytes()


def _tensor(plan: LaunchPlan, number: int, data: bytes) -> torch.Tensor:
    buffer = plan.buffers[number]
    array = np.frombuffer(data[: buffer.bytes], dtype=buffer.numpy_dtype).reshape(buffer.shape)
    return to_torch(array.copy()).to(getattr(torch, DTYPES[buffer.dtype].torch))


def _build(command: Sequence[str]) -> None:
    _run_command(command)


def _run_command(command: Sequence[str], stdin: bytes = b"") -> bytes:
    process = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if process.returncode:
        raise Failed(process.stderr.decode(errors="replace")[:4000])
    return process.stdout
