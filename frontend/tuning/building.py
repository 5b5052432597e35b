"""Builds candidates: lowers, prints, compiles and checks the nest of a candidate, without torch.

It runs in worker processes (`worker.py`) or in this process.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import process_time

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import ParseError, VerifyException

from ...backend.cpu.build import build_at
from ...backend.cpu.printer import print_cpp
from ...backend.cpu.runtime import CpuPlan
from ...backend.cuda.printer import print_cuda
from ...backend.cuda.runtime.nvrtc import Compiled, KernelUse, compile_cubin
from ...backend.host.build_cache import digest
from ...backend.host.launch_plan import LaunchPlan, make_plan
from ...dialects import kernel, make_context
from ...dialects.kernel import kernel_names
from ...dialects.loop import NestOp
from ...dialects.support.parsing import parse_module
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes, with_options
from ...passes.planning.model import Model, model_of
from ...passes.planning.nest_info import NestInfo
from ...target.attribute import target_of
from ...target.model import Target, occupancy
from .trial import Candidate


@dataclass(frozen=True)
class Source:
    """Input of a build.

    Attributes:
        text: program at the loop level, with its target.
        pipeline: passes after `plan-schedules`.
    """

    text: str
    pipeline: str


@dataclass(frozen=True)
class Built:
    """Candidate as machine code.

    Attributes:
        plan: launches and buffers of a call.
        binary: path of the shared object, or cubin.
        code: hash of the printed text.
        lowering: processor seconds of lowering and printing.
        compiling: processor seconds of the compiler.
        uses: registers and spills of each kernel of a GPU.
    """

    plan: CpuPlan | LaunchPlan
    binary: Path | bytes
    code: str
    lowering: float
    compiling: float
    uses: dict[str, KernelUse] = field(default_factory=dict[str, KernelUse])


class Builder:
    """Builds candidates of tasks."""

    def __init__(self, folder: Path) -> None:
        """Writes shared objects to `folder`."""
        self.folder = folder

    def build(self, source: Source, candidate: Candidate) -> Built:
        """Lowers, compiles and checks a candidate. Raises CompileError, with the reason, if it is refused."""
        start = _processor_time()
        module, text = lower(source, candidate)
        lowered = _processor_time()
        lowering = lowered - start
        code = digest(text)[:24]
        target = target_of(module)
        if target.core is not None:
            plan, (_, name) = CpuPlan.of(module), tempfile.mkstemp(".so", "candidate-", self.folder)
            build_at(Path(name), text, target.core.march)
            for scratch in self.folder.glob(f"{Path(name).stem}-part*"):
                scratch.unlink()
            return Built(plan, Path(name), code, lowering, _processor_time() - lowered)
        compiled = compile_cubin(text, target.arch, cached=False)
        spent = _processor_time() - lowered
        if why := gate(module, compiled, target):
            raise ScheduleError(why)
        return Built(make_plan(module), compiled.cubin, code, lowering, spent, compiled.kernels)


def _processor_time() -> float:
    """Returns the processor seconds of this process and of its ended children."""
    return process_time() + sum(os.times()[2:4])


def lower(source: Source, candidate: Candidate) -> tuple[ModuleOp, str]:
    """Returns a candidate at the kernel level, and its printed text. Raises CompileError."""
    program, passes, model = _read(source)
    schedule, target = parse_schedule(candidate.schedule), model.target
    model.check(schedule)
    module = program.clone()
    nest_of(module).attributes["schedule"] = schedule
    run_passes(make_context(), module, with_options(passes, candidate.options), verify=False)
    return module, print_cpp(module) if target.core is not None else print_cuda(module)


def nest_of(module: ModuleOp) -> NestOp:
    """Returns the nest of a program that has one."""
    return next(op for op in module.walk() if isinstance(op, NestOp))


@cache
def _read(source: Source) -> tuple[ModuleOp, tuple[ModulePass, ...], Model]:
    module = parse_module(make_context(), source.text, "task.mlir")
    model = model_of(NestInfo(nest_of(module)), target_of(module))
    return module, parse_passes(source.pipeline), model


def parse_schedule(text: str) -> ScheduleAttr:
    """Parses a schedule. Raises ScheduleError."""
    try:
        schedule = Parser(make_context(), text).parse_attribute()
    except (ParseError, VerifyException) as error:
        reason = error.msg if isinstance(error, ParseError) else str(error)
        raise ScheduleError(f"{text} is no schedule: {reason}") from None
    if not isinstance(schedule, ScheduleAttr):
        raise ScheduleError(f"{text} is no schedule")
    return schedule


def gate(module: ModuleOp, compiled: Compiled, target: Target) -> str:
    """Returns the reason to reject compiled kernels without measuring them, or "".

    Reasons are compiler warnings (C75xx), spilled registers, and fewer resident blocks per SM than the schedule
    assumes.

    Args:
        module: the kernels.
        compiled: their machine code.
        target: the GPU.
    """
    if compiled.warnings:
        return compiled.warnings[0]
    names = kernel_names(module)
    for f in (op for op in module.walk() if isinstance(op, kernel.FuncOp)):
        use = compiled.kernels[names[f.sym_name.data]]
        if use.spills or use.stack:
            return f"{use.spills} bytes of registers spilled, {use.stack} on the stack"
        shared = f.shared.data if f.shared is not None else 0
        blocks = int(occupancy(target, f.threads, use.registers, shared))
        if blocks < max(1, f.resident):
            return f"{blocks} resident blocks per SM instead of {max(1, f.resident)}"
    return ""
