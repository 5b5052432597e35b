"""Builds kernels for the emulator, which runs printed CUDA on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan


def emulated_kernels(modules: Mapping[str, ModuleOp]) -> dict[str, EmulatedProgram]:
    """Builds kernel-level modules for the emulator with one run of the C++ compiler. Returns the programs by name."""
    texts = {name: print_cuda(module) for name, module in modules.items()}
    built = dict(zip(texts, compile_many(list(texts.values())), strict=True))
    return {name: EmulatedProgram(texts[name], make_plan(module), built[name]) for name, module in modules.items()}
