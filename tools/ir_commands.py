"""The commands on programs in IR files: `compile PROGRAM.mlir`, `run PROGRAM.mlir`.

A program enters the pipeline at the highest level at which all its operations are legal. `run` calls the compiled
program with random arguments. The expected results are computed from the file, in float64, by an interpreter: the
simulator for a program at the kernel level, the reference for others. The reference does not run ATen operators, so a
torch-level program is first lowered to the tensor level.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..progress import steps
from . import terminal
from .modes import FILE, Params, Source, extended, refuse_ignored

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from ..backend.interpreter.domains import Array
    from ..frontend.compilation import Compilation
    from ..frontend.executors import Executor


IR_OPTIONS = ("record", "f32_matmul_precision", "schedule", "insert", "strategy", "checked")
"""Options of the commands on IR that are options of `Compilation` by the same name."""


class IrSource(Source):
    """A program that is written as IR."""

    metavar = "PROGRAM.mlir"
    mode = "a program of IR"
    about = {"run": "A PROGRAM.mlir, which is IR at any level, is compared with an interpreter of that level."}
    modes = {
        "compile": {
            "a program of IR": FILE | {"target", "pipeline", "ir", "helpers", "output", "print_values", *IR_OPTIONS}
        },
        "run": {
            "a program of IR": FILE
            | {"target", "pipeline", "seed", "executor", "kernel_text", "print_values", *IR_OPTIONS}
        },
    }
    refusals = {"tune": "expected a FILE.py, but got IR; `deplodock run {file}` runs it"}

    def matches(self, file: str) -> bool:
        return Path(file).suffix == ".mlir"

    def read(self, file: str) -> ModuleOp:
        """Returns the module in a file."""
        from ..frontend.modules import read_program

        return read_program(Path(file))

    def outcome(self, compilation: Compilation, executor: Executor, params: Params) -> dict[str, Any]:
        """Runs a program and compares its results. Returns data for `reports.outcome_text`.

        Args:
            compilation: the program.
            executor: its executor.
            params: parameters of the command.
        """
        return interpreted_outcome(compilation, executor, params.seed)

    def compile(self, context: click.Context, params: Params) -> None:
        """Prints one level of the program."""
        refuse_ignored(context, self.mode)
        with terminal.progress(), steps("compiling"):
            compilation = self._compilation(context, params, "auto")
            with extended(context, params, [compilation]):
                text, kind = _printed(compilation, params)
        terminal.write_out(text, kind, params.output)

    def run(self, context: click.Context, params: Params) -> None:
        """Runs the program and compares its results.

        Raises:
            SystemExit: with the code 1 if a result is wrong.
        """
        from . import reports

        refuse_ignored(context, self.mode)
        with terminal.progress(), steps("running"):
            compilation = self._compilation(context, params, params.executor)
            with extended(context, params, [compilation]) as results:
                if params.kernel_text is None:
                    outcome = self.outcome(compilation, _executor(params.executor, compilation), params)
                else:
                    outcome = self._edited_outcome(compilation, params)
                results["outcome"] = outcome
        reports.print_outcomes({"": outcome}, params.as_json)

    def _edited_outcome(self, compilation: Compilation, params: Params) -> dict[str, Any]:
        """Runs a program with the kernels of a file (`--kernel-text`) and compares its results."""
        from . import versions

        text = versions.read_kernel_text(compilation, str(params.kernel_text))
        name = versions.executor_of_text(compilation.target, params.executor)

        def run(program: Compilation) -> dict[str, Any]:
            return self.outcome(program, _executor(name, program), params)

        outcome = run(compilation.with_text(text.text))
        versions.judge_edited(text, compilation, outcome, lambda program: run(program)["ok"])
        return outcome

    def _compilation(self, context: click.Context, params: Params, executor: str) -> Compilation:
        """Returns the compilation of the file, for the target of the options or else of its text."""
        from ..frontend.executors import AUTO
        from ..frontend.modules import compilation_of, program_target

        program = self.read(str(params.file))
        default = context.get_parameter_source("target") == ParameterSource.DEFAULT
        target = params.target if not default else program_target(program, AUTO, executor)
        options = {name: getattr(params, name) for name in IR_OPTIONS}
        return compilation_of(program, target, pipeline_given=params.pipeline, **options)


def _printed(compilation: Compilation, params: Params) -> tuple[str, str]:
    """Returns the text that `compile` prints, and its kind for the colours of `terminal.write`."""
    from . import reports

    if params.as_json:
        level = {"target": compilation.target, "level": params.ir, "text": compilation.text(params.ir, True)}
        return json.dumps(level, indent=1) + "\n", ""
    return reports.level_text(compilation, params.ir, params.output, params.helpers)


def _executor(name: str, compilation: Compilation) -> Executor:
    """Returns the executor `name`. `auto` excludes the reference, whose results are the expected ones."""
    from ..frontend.executors import check_executor, compiler_missing, make_executor
    from ..target.attribute import on_cores

    if name == "auto" and not on_cores(compilation.target) and check_executor(name) is not None:
        name = "simulator" if compiler_missing() else "emulator"
    return make_executor(name, compilation)


def interpreted_outcome(compilation: Compilation, executor: Executor, seed: int) -> dict[str, Any]:
    """Runs a program and compares its results with the interpreter's. Returns data for `reports.outcome_text`.

    Args:
        compilation: the program.
        executor: its executor.
        seed: seed of the arguments.
    """
    from ..backend.check_each import input_types, interpret, make_inputs, operand_roundoff, reduction_length
    from ..dialects.shapes.binding import sample_sizes
    from ..dialects.support.calls import main_function
    from ..frontend.capture.arrays import to_numpy, to_torch
    from .reports import execution_facts

    executed = compilation.at(executor.level)
    written = compilation.at("tensor" if compilation.level == "torch" else compilation.level)
    sizes = sample_sizes(main_function(written))
    inputs = make_inputs(input_types(written), seed, sizes)
    first, real = (interpret(written, inputs, domain) for domain in ("typed", "real"))
    actual = [to_numpy(t) for t in executor.run([to_torch(a) for a in inputs])]
    length, operand_error = reduction_length(written, sizes), operand_roundoff(executed)
    results = [_result(*values, length, operand_error) for values in zip(actual, first, real, strict=True)]
    judge = "simulator" if compilation.level == "kernel" else "reference"
    return {
        **execution_facts(compilation, executor),
        "compared_with": f"the {judge} at the {compilation.level} level, in float64",
        "results": results,
        "ok": all(r["ok"] for r in results),
    }


def _result(actual: Array, first: Array, real: Array, length: int, operand_error: float) -> dict[str, Any]:
    """Compares a result with the expected one.

    Args:
        actual: result of the executor.
        first: result of the program as it is written, in its own types.
        real: result of the program as it is written, computed in float64.
        length: terms of the longest reduction.
        operand_error: relative rounding error of the operands of matmuls (`check_each.operand_roundoff`).
    """
    import numpy as np

    from ..backend.check_each import tolerance, within

    row = {"type": f"{first.dtype}{list(first.shape)}", "error": None, "tolerance": 0.0, "ok": False, "reason": ""}
    if actual.dtype != first.dtype or actual.shape != first.shape:
        return {**row, "reason": f"is {actual.dtype}{list(actual.shape)}"}
    if real.dtype != np.float64:
        wrong = int((actual != first).sum())
        reason = f"{wrong} elements differ" if wrong else ""
        return {**row, "error": wrong / max(first.size, 1), "ok": not wrong, "reason": reason}
    ok = bool(np.all(within(actual, first, real, length, operand_error)))
    finite = np.isfinite(real) & np.isfinite(actual.astype(np.float64))
    scale = float(np.max(np.abs(real), where=finite, initial=0.0)) or 1.0
    error = float(np.max(np.abs(actual - real), where=finite, initial=0.0))
    allowed = tolerance(first.astype(np.float64), real, first.dtype, length, operand_error)
    return {**row, "error": error / scale, "tolerance": allowed / scale, "ok": ok}
