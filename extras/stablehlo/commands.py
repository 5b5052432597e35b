"""`deplodock compile | run | tune PROGRAM.stablehlo`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CompileError
from ...progress import steps
from ...tools.ir_commands import IR_OPTIONS, IrSource
from ...tools.modes import COMPILER, FILE, SEARCHING, Params, refuse_ignored

if TYPE_CHECKING:
    import click
    from xdsl.dialects.builtin import ModuleOp

    from ...frontend.compilation import Compilation
    from ...frontend.executors import Executor
    from .files import StableHlo
    from .importer import Imported

MODE = "a program of StableHLO"


class StableHloSource(IrSource):
    """A StableHLO program: MLIR as text or bytecode, or an artifact of `jax.export`."""

    metavar = "PROGRAM.stablehlo"
    mode = MODE
    about = {
        "run": "A PROGRAM.stablehlo, which is MLIR or an artifact of jax.export, is compared with JAX.",
        "compile": "A PROGRAM.stablehlo is MLIR as text or bytecode, or an artifact of jax.export.",
    }
    modes = {
        "compile": {MODE: FILE | {"target", "pipeline", "ir", "helpers", "output", *IR_OPTIONS}},
        "run": {MODE: FILE | {"target", "pipeline", "seed", "executor", *IR_OPTIONS}},
        "tune": {MODE: (FILE | COMPILER | SEARCHING | {"seed", "verbose"}) - {"record", "schedule", "prepack_weights"}},
    }
    refusals = {}

    def matches(self, file: str) -> bool:
        return Path(file).suffix in (".stablehlo", ".jax")

    def read(self, file: str) -> ModuleOp:
        """Returns the program in a file at the tensor level."""
        return _opened(file)[1].module

    def outcome(self, compilation: Compilation, executor: Executor, params: Params) -> dict[str, Any]:
        """Runs a program on random arguments and compares its results with JAX, or with the reference.

        Args:
            compilation: the program.
            executor: its executor.
            params: parameters of the command.
        """
        from ...backend.check_each import input_types, make_inputs
        from ...dialects.shapes.binding import sample_sizes
        from ...dialects.support.calls import main_function
        from ...frontend.capture.arrays import to_torch
        from ...frontend.executors import make_executor
        from ...tools.reports import compared, execution_facts
        from .peer import jax_results

        program, imported = _opened(str(params.file))
        types, sizes = input_types(compilation.module), sample_sizes(main_function(compilation.module))
        try:
            inputs = make_inputs(types[: len(imported.inputs)], params.seed, sizes)
        except MemoryError as error:
            raise CompileError(f"cannot make random arguments: {error}", location=str(params.file)) from None
        arguments = [to_torch(a) for a in (*inputs, *imported.tables)]
        actual = executor.run(arguments)
        right, judge = jax_results(program, imported, arguments[: len(inputs)]), "JAX"
        if right is None:
            right, judge = make_executor("reference", compilation).run(arguments), "the reference"
        return {
            **execution_facts(compilation, executor),
            "compared_with": judge,
            **compared(compilation, executor, arguments, actual, right, range(len(actual))),
        }

    def tune(self, context: click.Context, params: Params) -> None:
        """Searches for faster schedules of the kernels."""
        from ...frontend.modules import compilation_of
        from ...tools.tune import tune

        refuse_ignored(context, MODE)
        with steps("importing"):
            module = self.read(str(params.file))

        def compiled(options: dict[str, Any]) -> list[Compilation]:
            machine, pipeline = options["machine"], options.get("pipeline")
            names = {name: options[name] for name in IR_OPTIONS if options.get(name) is not None}
            return [compilation_of(module, machine, pipeline_given=pipeline, **names)]

        tune(context, params, compiled)


@cache
def _opened(file: str) -> tuple[StableHlo, Imported]:
    """Returns the program in a file, and its import."""
    from .files import read_file
    from .importer import Options, imported

    program = read_file(file)
    try:
        return program, imported(program.module, Options(file=file))
    except CompileError as error:
        error.location = error.location or file
        raise
