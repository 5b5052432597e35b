"""Machine code of a program: resources and instructions of each kernel, with the numbers of the planning model.

CUDA is compiled by NVRTC and disassembled by nvdisasm, C++ by the C++ compiler and objdump. Neither needs a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backend.cpu import build, disassembly as asm
from ..backend.cuda.resources import Resources, compiled_resources
from ..backend.cuda.runtime import disassembly as sass
from ..backend.cuda.runtime.nvrtc import compile_cubin, compile_ptx, nvrtc_version
from ..backend.disassembly import Code
from ..backend.host.compiler import compiler
from ..dialects import LEVELS
from ..dialects.kernel import FuncOp, kernel_names
from ..dialects.support.printing import quantity
from ..errors import CompileError, DeplodockError, ExecutionError
from ..progress import steps
from ..target.attribute import on_cores, stamp_comment
from .compilation import Compilation
from .kernels import Kernel, kernels_of

MOST_KERNELS = 16
"""Largest number of kernels that `-v` and `--profile` compile: those that are expected to take longest."""


@dataclass(frozen=True)
class KernelMachineCode:
    """Machine code of a kernel.

    Attributes:
        name: Name in the printed text.
        code: Instructions, or None if there is no disassembler.
        resources: Registers, memory and occupancy; None on a CPU.
        expected: The same by the planning model; None on a CPU, and for programs that start below the loop level.
    """

    name: str
    code: Code | None
    resources: Resources | None = None
    expected: Resources | None = None

    def facts(self) -> dict[str, Any]:
        """Returns the numbers as JSON data."""
        facts: dict[str, Any] = {}
        if self.resources is not None:
            facts["resources"] = self.resources.as_dict()
            facts["expected"] = None if self.expected is None else self.expected.as_dict()
        if self.code is not None and self.code.counted:
            loop = self.code.hot_loop
            facts |= {"code": self.code.facts(), "hot_loop": None if loop is None else loop.facts()}
        return facts

    def described(self) -> list[str]:
        """Returns the numbers as lines of text, with predictions of the planning model in parentheses."""
        lines = [] if self.resources is None else [_described(self.resources, self.expected)]
        if self.code is not None and not self.code.counted:
            lines.append("instructions are counted for x86-64 only")
        elif self.code is not None:
            loop = self.code.hot_loop
            lines.append(f"no loop: {self.code.described()}" if loop is None else f"hot loop: {loop.described()}")
        return lines

    def hot_lines(self) -> list[str]:
        """Returns the instructions of the hot loop as lines of text."""
        return [] if self.code is None else self.code.listing({}, hot=True).splitlines()


def _described(r: Resources, e: Resources | None) -> str:
    def predicted(name: str) -> str:
        return "" if e is None else f" ({getattr(e, name)} predicted)"

    registers = f"{quantity(r.registers, 'register')}{predicted('registers')}"
    spilled = f"{r.spilled} B spilled" + (f", {r.stack} B of stack" if r.stack else "")
    shared = f"{r.shared} B shared{predicted('shared')}"
    blocks = f"{quantity(r.blocks_per_sm, 'block')} on an SM{predicted('blocks_per_sm')}"
    return f"{registers}, {spilled}, {shared}, {blocks}: {r.occupancy:.0%} of its threads, limited by {r.limit}"


@dataclass(frozen=True)
class MachineCode:
    """Machine code of a program.

    Attributes:
        compiler: Name and version of the compiler.
        seconds: Time of compiler and disassembler; short if the code was cached.
        kernels: Machine code by kernel, in the order of the text.
        notes: Reasons for missing numbers, each with advice.
    """

    compiler: str
    seconds: float
    kernels: dict[str, KernelMachineCode]
    notes: tuple[str, ...] = ()

    def described(self) -> list[str]:
        """Returns the compiler and the notes as lines of text."""
        compiled = [f"machine code: {self.compiler}, {self.seconds:.2f} s"] if self.kernels else []
        return [*compiled, *(f"machine code: {note}" for note in self.notes)]

    def facts(self) -> dict[str, Any]:
        """Returns the numbers as JSON data."""
        kernels = {name: k.facts() for name, k in self.kernels.items()}
        return {"compiler": self.compiler, "seconds": self.seconds, "kernels": kernels, "notes": [*self.notes]}


def machine_code(
    compilation: Compilation, kernels: Sequence[Kernel] | None = None, *, lines: bool = False, most: int | None = None
) -> MachineCode:
    """Compiles and disassembles the kernels of a program.

    Args:
        compilation: The program.
        kernels: Its kernels, with the numbers of the planning model; None for programs that start below the loop level.
        lines: Whether instructions have lines of the printed text.
        most: Largest number of kernels to compile: the longest ones. A program for a CPU with more is not compiled.

    Raises:
        ExecutionError: if the compiler is missing.
        CompileError: if it refuses the text.
    """
    functions = _functions(compilation)
    expected = {k.name: k.expected for k in kernels or ()}
    only = set(functions)
    if most is not None and len(only) > most:
        longest = sorted(kernels or (), key=lambda k: -k.predicted * k.launches)
        only = {k.name for k in longest[:most]} or set(list(functions)[:most])
    on_cpu, start = on_cores(compilation.target), time.perf_counter()
    omitted = len(functions) - len(only)
    more = f"--ir {'asm' if on_cpu else 'sass'} compiles all"
    notes: list[str] = []
    if on_cpu:
        core = compilation.resolved.core
        assert core is not None
        if omitted and not build.is_built(compilation.cpp, core.march):
            return MachineCode("", 0.0, {}, (f"{quantity(len(functions), 'kernel')} not compiled; {more}",))
        library = build.build(compilation.cpp, core.march, lines)
        codes = asm.disassemble(library, build.kernel_lines(compilation.cpp))
        compiled = {name: KernelMachineCode(name, code) for name, code in codes.items()}
        name = Path(compiler()).name
    else:
        name = f"NVRTC {nvrtc_version()}"
        with steps("compiling CUDA"):
            binary = compile_cubin(compilation.cuda, compilation.resolved.arch, lines=lines, only=only)
        codes: dict[str, Code] = {}
        try:
            codes = sass.disassemble(binary.cubin, compilation.cuda if lines else None)
        except ExecutionError as error:
            notes.append(str(error))
        compiled = {
            kernel: KernelMachineCode(
                kernel,
                codes.get(kernel),
                compiled_resources(compilation.resolved, f.threads, f.shared.data if f.shared else 0, use),
                expected.get(kernel),
            )
            for kernel, f in functions.items()
            if (use := binary.kernels.get(kernel)) is not None
        }
        if omitted:
            notes.append(f"{quantity(omitted, 'shorter kernel')} not compiled; {more}")
    return MachineCode(name, time.perf_counter() - start, compiled, tuple(notes))


def longest_kernels(compilation: Compilation, kernels: Sequence[Kernel]) -> MachineCode:
    """Returns the machine code of the kernels that are expected to take longest, at most `MOST_KERNELS`.

    Args:
        compilation: The program.
        kernels: Its kernels.

    Returns:
        without kernels, and with the reason as a note, if they cannot be compiled.
    """
    try:
        return machine_code(compilation, kernels, most=MOST_KERNELS)
    except DeplodockError as error:
        return MachineCode("", 0.0, {}, (str(error),))


def _functions(compilation: Compilation) -> dict[str, FuncOp]:
    """Returns the kernels of a program by their names in the printed text."""
    module = compilation.at("kernel")
    names = kernel_names(module)
    return {names[f.sym_name.data]: f for f in module.walk() if isinstance(f, FuncOp)}


def machine_text(compilation: Compilation, level: str) -> str:
    """Returns the machine code of a program as text, with the lines of the printed text before their instructions.

    Args:
        compilation: The program.
        level: `ptx` or `sass` for a GPU, `asm` for a CPU.

    Raises:
        CompileError: if the target has another machine code.
        ExecutionError: if the compiler or the disassembler is missing.
    """
    on_cpu = on_cores(compilation.target)
    if on_cpu != (level == "asm"):
        right = "asm" if on_cpu else "sass or ptx"
        raise CompileError(f"expected the level {right} for {compilation.target}, but got {level}", argument="--ir")
    stamp = stamp_comment(compilation.at("kernel"))
    if level == "ptx":
        texts = compile_ptx(compilation.cuda, compilation.resolved.arch)
        return stamp + "".join(f"\n// {name}\n{text}" for name, text in texts.items())
    above = LEVELS.index(compilation.level) <= LEVELS.index("loop")
    program = machine_code(compilation, kernels_of(compilation) if above else None, lines=True)
    parts = [stamp + f"// compiled by {program.compiler}; > marks the hot loop\n"]
    texts = dict(enumerate((compilation.cpp if on_cpu else compilation.cuda).splitlines(), 1))
    for name, kernel in program.kernels.items():
        if kernel.code is None:
            raise ExecutionError(program.notes[0])
        facts = "".join(f"// {name}: {line}\n" for line in kernel.described())
        parts.append(facts + kernel.code.listing(texts, first=stamp.count("\n")))
    return "\n".join(parts)
