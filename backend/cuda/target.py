"""`dl-opt -t cuda{arch=sm_90a}`: print a module at the kernel level as CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from ...dialects.support.stamp import stamp_comment
from ...dialects.target import get_target
from .printer import print_cuda


@dataclass(frozen=True)
class CudaTarget(Target):
    """Prints the kernels of a module at the kernel level as CUDA C++ for `arch`."""

    name = "cuda"

    arch: str = "sm_90a"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        get_target(self.arch)  # the text is the same for all; an unknown one is refused
        output.write(stamp_comment(module) + print_cuda(module))
