"""Programs of the CPU target as executables: with sanitizers, which see no other code, or for another processor."""

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

_SHARED = "static thread_local unsigned char memory["
"""How the buffer of a core is declared."""


class Failed(Exception):
    """A program ended with an error; the message is what it said."""


@dataclass(frozen=True)
class Machine:
    """How programs are built and started: the compiler, what it is told besides the flags of the target, what starts an
    executable, and how many threads share every launch."""

    compiler: str
    flags: tuple[str, ...]
    start: tuple[str, ...] = ()
    threads: int = 1

    def build(self, text: str) -> Path:
        """The executable of a printed program. Raises Failed where it does not compile."""
        if self.threads == 1:  # a sanitizer knows the end of a global variable, of a thread's own it does not
            text = text.replace(_SHARED, _SHARED.replace("thread_local ", ""))
        usual = [f for f in FLAGS if f not in ("-shared", "-fopenmp")]
        threads = ["-fopenmp", "-DTHREADS"] if self.threads > 1 else []
        main = self._compiled(MAIN.read_text(), ["-std=c++17", *self.flags, *threads])
        program = self._compiled(text, [*usual, *self.flags, *threads])
        name = digest(str(main), str(program))
        how = [self.compiler, *self.flags, str(main), str(program), "-lpthread", "-lm", "-o"]
        return cached_file("alone", name, lambda target: _build([*how, str(target)]))

    def _compiled(self, text: str, flags: Sequence[str]) -> Path:
        def make(target: Path) -> None:
            source = target.parent / "text.cpp"
            source.write_text(text)
            _call([self.compiler, *flags, "-c", str(source), "-o", str(target)])

        return cached_file("alone", digest(self.compiler, text, *flags) + ".o", make)

    def run(self, module: ModuleOp, args: Sequence[torch.Tensor], text: str | None = None) -> list[torch.Tensor]:
        """The results of a module at the kernel level, or of its `text`, if that is given. Raises Failed."""
        given = [(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args]
        plan = make_plan(module).check_arguments(given)
        places = dict(plan.in_place)  # a result whose memory is that of an argument
        contents = [to_numpy(a.contiguous()).tobytes() for a in args]
        contents += [b"" if i in places else bytes(b.bytes) for i, b in enumerate(plan.buffers) if i >= len(args)]
        kernels = CpuPlan.of(module).kernels
        launches = [n for step in plan.launches for n in self._numbers(step, kernels[step.kernel], places)]
        sizes = [len(c) for c in contents]
        sent = [_numbered(sizes), *contents, _numbered(launches), _numbered([self.threads])]
        written = _call([*self.start, str(self.build(text or print_cpp(module)))], b"".join(sent))
        begins = np.cumsum([0, *sizes])
        return [_tensor(plan, i, written[begins[places.get(i, i)] :]) for i in range(plan.inputs, plan.arguments)]

    def _numbers(self, launch: Launch, kernel: CpuKernel, places: dict[int, int]) -> list[int]:
        blocks = prod(launch.blocks)
        threads = 1 if kernel.serial or blocks == 1 else self.threads
        numbers = [kernel.number, blocks, threads, len(launch.buffers)]
        for number, begin in zip(launch.buffers, launch.begins(), strict=True):
            numbers += [places.get(number, number), begin]
        return [*numbers, len(launch.values), *launch.values]


def _numbered(numbers: Sequence[int]) -> bytes:
    return np.array([len(numbers), *numbers], dtype="<i8").tobytes()


def _tensor(plan: LaunchPlan, number: int, written: bytes) -> torch.Tensor:
    buffer = plan.buffers[number]
    array = np.frombuffer(written[: buffer.bytes], dtype=buffer.numpy_dtype).reshape(buffer.shape)
    return to_torch(array.copy()).to(getattr(torch, DTYPES[buffer.dtype].torch))


def _build(command: Sequence[str]) -> None:
    _call(command)


def _call(command: Sequence[str], sent: bytes = b"") -> bytes:
    done = subprocess.run(command, input=sent, capture_output=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.decode(errors="replace")[:4000])
    return done.stdout
