"""Chapter 7: text. The printers of deplodock write kernels as CUDA or C++, and its runtimes compile and call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from xdsl.dialects.builtin import ModuleOp

import deplodock
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cuda.printer import print_cuda

from . import c6_schedule
from .c1_capture import Program


def compile(
    function: Callable[..., object], inputs: tuple[torch.Tensor, ...], target: str = "cpu", executor: str = "auto"
) -> Program:
    """Compiles a PyTorch program to machine code.

    Args:
        function: a module, or a function of tensors.
        inputs: example inputs, whose shapes the program has.
        target: `cpu`, or a GPU such as `sm_90a`.
        executor: `auto`; or `emulator`, which executes CUDA without a GPU.
    """
    program = c6_schedule.compile(function, inputs, target)
    compiled = deplodock.compile_module(program.module, target=target, executor=executor)
    return replace(program, run=lambda module, arguments: compiled.run([a.detach() for a in arguments]))


def text(module: ModuleOp, target: str = "cpu") -> str:
    """Returns the kernels of a module as C++ or CUDA.

    Args:
        module: module at the kernel level for this target.
        target: `cpu`, or a GPU such as `sm_90a`.
    """
    return print_cpp(module) if target == "cpu" else print_cuda(module)
