"""The public function `deplodock.compile_module`, which compiles IR of any level to a function of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from ..backend.host.launch_plan import make_plan
from ..backend.interpreter.running import bind_arguments
from ..dialects import make_context
from ..dialects.support.calls import main_function
from ..dialects.support.parsing import MalformedIRError, parse_module
from ..errors import CompileError, DeplodockError, presented
from ..passes.verify_level import Level, border_violations, level_of
from ..target.attribute import TARGET, target_of
from ..target.model import Target
from .capture.arrays import to_numpy, to_torch
from .compilation import Compilation, one_at_a_time
from .executors import AUTO, Executor, level_for, make_executor, target_for
from .inspection import Inspected


class CompiledModule(Inspected):
    """A compiled program that was written as IR, called with the arguments of `@main`.

    Attributes:
        compilation: the program at its level and at those below.
        executor: the executor that runs it.
    """

    def __init__(self, compilation: Compilation, executor: Executor, level: str) -> None:
        """Stores a compilation and its executor.

        Args:
            compilation: the program.
            executor: its executor.
            level: level to which the program is lowered, where the arguments of a call are checked.
        """
        self.compilation, self.executor = compilation, executor
        self._module = compilation.at(level)
        self._plan = make_plan(self._module) if level == "kernel" else None

    def __call__(self, *args: torch.Tensor | np.ndarray) -> Any:
        """Runs the program.

        Args:
            args: tensors, or NumPy arrays, of the types of the arguments of `@main`.

        Returns:
            the result as a tensor, a tuple of tensors if there are several, or None if there is none.

        Raises:
            ExecutionError: for arguments of other types or shapes, and if the executor cannot run the program.
        """
        results = self.run(args)
        return tuple(results) if len(results) > 1 else next(iter(results), None)

    def run(self, args: Sequence[torch.Tensor | np.ndarray]) -> list[torch.Tensor]:
        """Runs the program, as a call does, and returns the list of its results."""
        try:
            return self.executor.run(self._checked(args))
        except DeplodockError as error:
            raise presented(error) from error.__cause__

    def _checked(self, args: Sequence[torch.Tensor | np.ndarray]) -> list[torch.Tensor]:
        tensors = [a if isinstance(a, torch.Tensor) else to_torch(np.asarray(a)) for a in args]
        if self._plan is not None:
            self._plan.check_tensors(tensors)
        else:
            bind_arguments(main_function(self._module), [to_numpy(t) for t in tensors])
        return tensors


def compile_module(
    module: str | PathLike[str] | ModuleOp,
    args: Sequence[torch.Tensor | np.ndarray] | None = None,
    *,
    target: str = AUTO,
    executor: str = "auto",
    level: Level | None = None,
    pipeline: str | None = None,
    **options: Any,
) -> CompiledModule:
    """Compiles a program that is written as IR.

    Args:
        module: the text of a program with a function `@main`, a file (`Path`) with such a text, or an xDSL module,
            which is not changed.
        args: example arguments, whose types and shapes are checked; by default each call checks its own.
        target: a GPU such as `sm_90a`, `cpu`, or `auto`, as for `compile`. `auto` is the target in the text, if there
            is one.
        executor: `auto`, `cuda`, `cpu`, `emulator`, `simulator` or `reference`, as for `compile`. The reference
            interprets programs that begin above the kernel level.
        level: `torch`, `tensor`, `loop`, `tile` or `kernel`; left out, the highest level at which all operations of
            the program are legal.
        pipeline: the passes to run in place of the default ones, as for `compile`, from the level of the program on.
        options: further options of `compile`: `schedule`, `insert`, `record`,
            `strategy`, `f32_matmul_precision`, `checked`.

    Returns:
        the program as a function of tensors.

    Raises:
        MalformedIRError: for a text that is no valid IR.
        BorderError: for operations that are not legal at the level.
        CompileError: for any other fault of the program or the options.
    """
    try:
        with one_at_a_time():
            program = read_program(module)
            chosen = program_target(program, target, executor)
            compilation = compilation_of(program, chosen, level, pipeline_given=pipeline, **options)
            lowered_to = level_for(executor, compilation)
            compilation.at(lowered_to)  # Errors of passes precede errors of the executor.
            compiled = CompiledModule(compilation, make_executor(executor, compilation), lowered_to)
            if args is not None:
                compiled._checked(args)
            return compiled
    except DeplodockError as error:
        raise presented(error) from error.__cause__


def program_target(program: ModuleOp, target: str = AUTO, executor: str = "auto") -> str | Target:
    """Returns the target of a program that is written as IR.

    Args:
        program: the module.
        target: name of a target. `auto` is the target in the module, else the target that `executor` runs here.
        executor: name of the executor.
    """
    if target != AUTO:
        return target
    return target_of(program) if TARGET in program.attributes else target_for(executor)


def compilation_of(program: ModuleOp, target: str | Target, level: Level | None = None, **options: Any) -> Compilation:
    """Returns the compilation of a program that is written as IR, before any pass.

    Args:
        program: module with a function `@main`.
        target: name of a target, whose numbers are those of this machine, or a target with its numbers.
        level: level of the program; left out, the highest level at which all operations are legal.
        options: arguments of `Compilation`.

    Raises:
        BorderError: for operations that are not legal at the level.
    """
    name, machine = (target, None) if isinstance(target, str) else (target.arch, target)
    compilation = Compilation(program, name, machine=machine, level=level or level_of(program), **options)
    if level is not None and (error := next(border_violations(program, level), None)) is not None:
        raise error
    return compilation


def read_text(path: str | PathLike[str]) -> str:
    """Returns the text of a file. Raises CompileError for a file that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
        raise CompileError(f"cannot read the file: {reason}", location=str(path)) from None


def read_program(module: str | PathLike[str] | ModuleOp) -> ModuleOp:
    """Parses and verifies a text or a file; copies and verifies a module.

    Raises:
        CompileError: for a file that cannot be read.
        MalformedIRError: for a text that is no valid IR.
    """
    if isinstance(module, ModuleOp):
        program = module.clone()
    else:
        name = "<text>" if isinstance(module, str) else str(module)
        text = module if isinstance(module, str) else read_text(module)
        program = parse_module(make_context(), text, name)
    try:
        program.verify()
    except VerifyException as error:
        raise MalformedIRError(str(error)) from None
    main_function(program)
    return program
