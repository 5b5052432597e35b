"""dl-opt: reads IR, runs passes, and prints IR, CUDA or C++."""

from __future__ import annotations

import argparse
import gc
import runpy
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Literal, NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException
from xdsl.utils.target import Target
from xdsl.xdsl_opt_main import xDSLOptMain

from .. import __version__
from ..dialects import get_all_dialects
from ..dialects.support.parsing import parse_module
from ..dialects.support.printing import WIDTH, print_module
from ..errors import CompileError, DeplodockError, PluginError, one_line, raised_at
from ..frontend import RARE_COLLECTIONS
from ..passes.pass_manager import (
    InvalidIRError,
    Observer,
    PrintChanges,
    Remark,
    collect_remarks,
    run_passes,
    verify_module,
)
from ..passes.pipelines import defined_passes, get_all_passes, parse_passes, pipeline_text
from ..plugins import declarations, declared_parts
from ..target.attribute import get_target, stamp_comment
from . import terminal
from .pass_help import help_pass, list_passes
from .terminal import render_error

if TYPE_CHECKING:
    from ..backend.check_each import Checker
import os
import tempfile

SPLIT_MARKER = "// -----"

_REPRODUCER = "// dl-opt --run-reproducer, passes: "
"""Start of the first line of a reproducer. It is no `RUN:` line, because a test runner would collect it."""

_SWITCHES = {
    "--split-input-file": "treat each part between `// -----` lines as a file of its own",
    "--verify-diagnostics": "print errors to stdout and exit with 0, for tests of errors",
    "--print-only-changed": "after each pass that changed something print a diff, then a count; "
    "the result is printed only with -o",
    "--print-pipeline": "print the pipeline with all names expanded, as one argument for -p, and stop",
    "--list-passes": "print the names of all passes and pipelines and stop",
    "--run-reproducer": "the input is a reproducer: run the passes that it names",
    "--check-each": "execute the program after each pass that changed it, and name the first that changed the answer",
    "--remarks": "print why passes declined, as comments in front of the result",
    "--time-passes": "print the seconds each pass took to stderr",
    "--no-verify": "do not run the verifiers",
    "--allow-unregistered-dialect": "accept ops of unknown dialects in generic form",
    "--no-implicit-module": "the input must be one builtin.module",
    "--print-op-generic": "print ops in the generic form",
    "--print-debuginfo": "print the location of each op",
    "--wrap": "names for long types, and lines of at most 120 columns, as where the output is a terminal",
    "--debug": "print a traceback for an error",
}


def load_passes(file: str) -> list[type[ModulePass]]:
    """Executes a Python file and returns the passes that it defines and does not declare (`plugins.declare`).

    Args:
        file: path of the file.

    Raises:
        PluginError: the file cannot be executed, defines and declares nothing, or a pass has the name of a registered
            one.
    """
    before = declared_parts()
    try:
        names = runpy.run_path(file, run_name=f"deplodock.loaded.{Path(file).stem}")
    except OSError as error:
        raise PluginError(f"{file}: {error.strerror}") from None
    except DeplodockError:
        raise
    except Exception as error:
        raise PluginError(f"{file} cannot be loaded: {one_line(error)}") from error
    return defined_passes(names, file, [part for part in declared_parts() if not any(part is b for b in before)])


class UsageError(CompileError):
    """Error in the arguments of the command line."""


@dataclass(frozen=True)
class MLIRTarget(Target):
    """IR text with aliases for long attributes. The base class passes the first four options."""

    name = "mlir"
    print_generic_format: bool = False
    print_properties_as_attributes: bool = False
    print_debuginfo: bool = False
    syntax_highlight: bool = False
    width: ClassVar[int | None] = None

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        generic = self.print_generic_format
        output.write(print_module(module, debuginfo=self.print_debuginfo, generic=generic, width=self.width))


class _WrappedTarget(MLIRTarget):
    """IR text as `deplodock compile --ir` prints it: aliases for long types, and lines of at most 120 columns."""

    width = WIDTH


@dataclass(frozen=True)
class CudaTarget(Target):
    """The kernels of a module at the kernel level as CUDA C++ for `arch`."""

    name = "cuda"

    arch: str = "sm_90a"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from ..backend.cuda.printer import print_cuda

        get_target(self.arch)  # Raises for an unknown name. The text does not depend on the target.
        output.write(stamp_comment(module) + print_cuda(module))


@dataclass(frozen=True)
class CppTarget(Target):
    """The kernels of a module at the kernel level as C++. Their blocks must have one thread."""

    name = "cpp"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from ..backend.cpu.printer import print_cpp

        output.write(stamp_comment(module) + print_cpp(module))


class _TimePasses(Observer):
    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.start = time.perf_counter()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        print(f"{time.perf_counter() - self.start:9.4f} s  {module_pass.name}", file=sys.stderr)

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        print(f"{'skipped':>11}  {module_pass.name}: {why}", file=sys.stderr)


class _CheckEach(Observer):
    """Executes the program before the first pass and after every pass, and prints a summary at the end."""

    def __init__(self, seed: int, domain: Literal["exact", "float"]) -> None:
        self.seed = seed
        self.domain: Literal["exact", "float"] = domain
        self.checker: Checker | None = None
        self.passes = 0

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if self.checker is None:
            from ..backend.check_each import Checker

            self.checker = Checker(module, self.seed, domain=self.domain)

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        self.passes += 1

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.passes += 1
        if self.checker is not None:
            self.checker.after(module_pass.name, module)

    def finish(self, module: ModuleOp) -> None:
        if self.checker is not None:
            terminal.tell(f"dl-opt: check-each: {self.passes} passes, {self.checker.summary()}")


class _PrintIR(Observer):
    """Prints the module before and after some passes, as MLIR's driver does."""

    def __init__(self, before: Sequence[str], after: Sequence[str], debuginfo: bool) -> None:
        self.names = {"Before": before, "After": after}
        self.debuginfo = debuginfo

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._print("Before", module_pass.name, module)

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._print("After", module_pass.name, module)

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        self._print("Before", module_pass.name, module)
        self._print("After", module_pass.name, module)

    def _print(self, when: str, name: str, module: ModuleOp) -> None:
        if name in self.names[when]:
            sys.stderr.write(f"// -----// IR Dump {when} {name} //----- //\n")
            terminal.write(print_module(module, debuginfo=self.debuginfo), "mlir", sys.stderr)


class Recorder(Observer):
    """Records the IR before the running pass, and the remaining passes.

    If the pass fails, `write` writes them as a reproducer: a file with which `dl-opt` repeats the failure.
    """

    def __init__(self, passes: Sequence[ModulePass]) -> None:
        self._remaining = list(passes)
        self._module: ModuleOp | None = None

    @property
    def current(self) -> str:
        """Name of the running pass, or "" between passes."""
        return self._remaining[0].name if self._module is not None else ""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._module = module.clone()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._module = None
        del self._remaining[0]

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        del self._remaining[0]

    def write(self, path: Path | None = None) -> Path:
        """Writes the reproducer, with the passes in its first line.

        Args:
            path: the file, or None for a new temporary file.

        Returns:
            The path of the file.

        Raises:
            OSError: if the file cannot be written.
        """
        assert self._module is not None
        text = print_module(self._module, debuginfo=True, generic=True)
        if path is None:
            handle, name = tempfile.mkstemp(".mlir", f"deplodock-{self.current}-")
            os.close(handle)
            path = Path(name)
        path.write_text(f"{_REPRODUCER}{pipeline_text(self._remaining)}\n{text}", encoding="utf-8")
        return path


def passes_of(text: str, name: str) -> str:
    """Returns the pipeline of the reproducer `text`. Raises CompileError, with the file `name`, for other texts."""
    first = text.partition("\n")[0]
    if not first.startswith(_REPRODUCER):
        raise CompileError(
            f"is no reproducer: its first line does not begin with {_REPRODUCER.strip()!r}", location=name
        )
    return first.removeprefix(_REPRODUCER).strip()


class DlOptMain(xDSLOptMain):
    """xDSL's driver with our dialects, passes and targets, errors of one line, and checks between passes."""

    passes: tuple[ModulePass, ...] = ()

    def register_all_dialects(self) -> None:
        registered = [*self.ctx.registered_dialect_names]
        for name, factory in get_all_dialects().items():
            if name not in registered:
                self.ctx.register_dialect(name, factory)

    def register_all_frontends(self) -> None:
        """Registers nothing: `run` parses IR text itself, because it keeps the locations."""

    def register_all_passes(self) -> None:
        for name, factory in get_all_passes().items():
            self.register_pass(name, factory)

    def register_all_targets(self) -> None:
        self.available_targets = {
            "mlir": lambda: _WrappedTarget if self.wraps else MLIRTarget,
            "cuda": lambda: CudaTarget,
            "cpp": lambda: CppTarget,
        }

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "dl-opt"
        arg_parser.error = _usage_error
        arg_parser.add_argument("input_file", nargs="?", help="the file to read; stdin if left out")
        arg_parser.add_argument(
            "-p", "--passes", default="", help="passes and named pipelines, `a,b{option=value}`; see --list-passes"
        )
        arg_parser.add_argument(
            "--load",
            metavar="FILE",
            action="append",
            default=[],
            help="a Python file that defines passes for -p, or declares parts of the compiler; may be given several"
            " times",
        )
        arg_parser.add_argument("-t", "--target", default="mlir", help="what to print: mlir, cuda{arch=sm_90a}")
        arg_parser.add_argument("-o", "--output-file", help="where to print it; stdout if left out")
        arg_parser.add_argument("--seed", type=int, default=0, help="seed of the inputs for --check-each")
        arg_parser.add_argument(
            "--check-domain",
            choices=("exact", "float"),
            default="exact",
            help="float: --check-each compares floats only, for passes that use laws of functions such as log",
        )
        arg_parser.add_argument(
            "--reproducer",
            metavar="FILE",
            help="what to write when a pass fails for a reason of its own; a new temporary file if left out",
        )
        arg_parser.add_argument("--help-pass", metavar="NAME", help="print what a pass does and its options, and stop")
        arg_parser.add_argument(
            "--help-op",
            metavar="NAME",
            help="print the reference of an operation, an attribute or a type (tile.dot), or of a dialect, and stop",
        )
        for when in ("before", "after"):
            arg_parser.add_argument(
                f"--print-ir-{when}",
                metavar="PASS",
                action="append",
                default=[],
                help=f"print the IR {when} each run of this pass to stderr; may be given several times",
            )
        for switch, text in _SWITCHES.items():
            arg_parser.add_argument(switch, action="store_true", help=text)
        text = f"dl-opt of deplodock {__version__}, xdsl {version('xdsl')}"
        arg_parser.add_argument("--version", action="version", version=text)
        # The base class reads these. Its --disable-verify would patch a class for the whole process.
        arg_parser.set_defaults(disable_verify=False, syntax_highlight=False, print_no_properties=False)

    @property
    def wraps(self) -> bool:
        """Returns true if the IR is wrapped at 120 columns: with `--wrap`, or on a terminal."""
        return self.args.wrap or not terminal.is_kept(self.args.output_file)

    def setup_pipeline(self) -> None:
        if self.args.run_reproducer and self.args.passes:
            raise UsageError("-p and --run-reproducer exclude each other: a reproducer names its passes")
        self.loaded = [cls for file in self.args.load for cls in load_passes(file)]
        if self.args.load:
            self.register_all_dialects()  # The files may declare dialects.
        self.passes = parse_passes(self.args.passes, loaded=self.loaded)

    def run(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Runs the command. Returns the exit code."""
        if self.args.list_passes or self.args.help_pass is not None:
            width, available = terminal.width_of(sys.stdout), self.available_passes
            name = self.args.help_pass
            sys.stdout.write(list_passes(available, width) if name is None else help_pass(name, available, width))
            return 0
        if self.args.help_op is not None:
            from .reference.help_text import help_op

            sys.stdout.write(help_op(self.args.help_op, terminal.width_of(sys.stdout)))
            return 0
        if self.args.print_pipeline:
            print(pipeline_text(self.passes))
            return 0
        name, text = self.read_input()
        if not text.strip():
            raise CompileError(f"{name} is empty: it holds no IR")
        if self.args.run_reproducer:
            self.passes = parse_passes(passes_of(text, name), loaded=self.loaded)
        running = [p.name for p in self.passes]
        for dumped in (*self.args.print_ir_before, *self.args.print_ir_after):
            if dumped not in running:
                raise UsageError(f"{dumped!r} is none of the passes that run: {', '.join(running) or 'none'}")
        chunks = split_chunks(text) if self.args.split_input_file else [(text, 0)]
        outputs: list[str] = []
        failed = False
        for chunk, offset in chunks:
            try:
                outputs.append(self.process(chunk, name, offset))
            except CompileError as error:
                if self.args.debug:
                    traceback.print_exc()
                failed = True
                message = render_error(error, {name: text}, name)
                if self.args.verify_diagnostics:
                    outputs.append(message + "\n")
                else:
                    terminal.tell(message)
        kind = "error" if self.args.verify_diagnostics else self.args.target.partition("{")[0]
        terminal.write_out(f"{SPLIT_MARKER}\n".join(outputs), kind, self.args.output_file)
        return 1 if failed and not self.args.verify_diagnostics else 0

    def process(self, text: str, name: str, offset: int) -> str:
        """Parses, transforms and prints one chunk: the input, or with `--split-input-file` a part between `// -----`.

        Args:
            text: the chunk.
            name: the file.
            offset: number of lines of the file before the chunk.

        Raises:
            CompileError: if the chunk is invalid or a pass fails.
        """
        module = parse_module(self.ctx, text, name, line_offset=offset, implicit=not self.args.no_implicit_module)
        if not self.args.no_verify:
            verify_module(module)
        # Locations in the input are kept in the output for the next command of a pipe.
        keeps_locations = ' loc("' in text and not terminal.is_terminal(sys.stdout)
        listening: AbstractContextManager[list[Remark]] = collect_remarks() if self.args.remarks else nullcontext([])
        with listening as remarks:
            self.transform(module, name)
            text = "".join(f"// {remark}\n" for remark in remarks)
            if self.args.print_only_changed and self.args.output_file is None:
                return text
            self.args.print_debuginfo |= keeps_locations
            try:
                return text + self.output_resulting_program(module)
            except (DiagnosticException, ValueError) as error:
                raise CompileError(one_line(error)) from error

    def transform(self, module: ModuleOp, name: str) -> None:
        """Runs the passes. An internal error becomes one line that names a reproducer file."""
        recorder = Recorder(self.passes)
        observers: list[Observer] = [recorder]
        if self.args.print_only_changed:
            observers.append(PrintChanges(terminal.Colored("diff", sys.stdout).write))
        if self.args.check_each:
            observers.append(_CheckEach(self.args.seed, self.args.check_domain))
        if self.args.print_ir_before or self.args.print_ir_after:
            observers.append(_PrintIR(self.args.print_ir_before, self.args.print_ir_after, self.args.print_debuginfo))
        if self.args.time_passes:
            observers.append(_TimePasses())
        try:
            with terminal.progress():
                run_passes(self.ctx, module, self.passes, observers, verify=not self.args.no_verify)
        except InvalidIRError as error:
            # The input was verified, so the pass made the IR invalid.
            reason = f"pass {recorder.current!r} left invalid IR: {error.message}"
            raise self.internal_error(reason, recorder, error.location) from error
        except (CompileError, BrokenPipeError):
            raise
        except Exception as error:
            reason = f"internal error in pass {recorder.current!r}: {one_line(error)} at {raised_at(error)}"
            raise self.internal_error(reason, recorder) from error

    def internal_error(self, reason: str, recorder: Recorder, location: str | None = None) -> CompileError:
        """Writes the reproducer of a failed pass, and returns the error that names it.

        Args:
            reason: the failure, as one line.
            recorder: the passes that remain.
            location: the place in the IR, if known.
        """
        try:
            path = recorder.write(Path(self.args.reproducer) if self.args.reproducer else None)
        except (OSError, AssertionError) as failure:
            return CompileError(f"{reason} (no reproducer: {one_line(failure)})", location=location)
        return CompileError(f"{reason} (reproducer: {path})", location=location)

    def read_input(self) -> tuple[str, str]:
        """Returns the name and the text of the input. Raises CompileError if it cannot be read."""
        file: str | None = self.args.input_file
        try:
            data = sys.stdin.buffer.read() if file in (None, "-") else Path(file).read_bytes()
            return ("<stdin>" if file in (None, "-") else file), data.decode("utf-8")
        except OSError as error:
            raise CompileError(f"{file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CompileError(f"{file}: not UTF-8 text") from None


def split_chunks(text: str) -> list[tuple[str, int]]:
    """Splits a text into chunks at lines `// -----`. Returns each chunk with the number of lines before it."""
    chunks: list[tuple[str, int]] = []
    offset = 0
    for part in text.split(SPLIT_MARKER):
        chunks.append((part, offset))
        offset += part.count("\n")
    return chunks


def _usage_error(message: str) -> NoReturn:
    raise UsageError(message)


def _run(argv: Sequence[str] | None, stderr: IO[str]) -> int:
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        with declarations():
            code = DlOptMain("Read IR, run passes, print IR or CUDA.", argv).run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except (CompileError, ArgSpecParseError) as error:
        if debug:
            traceback.print_exc(file=stderr)
        lines = str(error).strip().splitlines()
        terminal.tell(f"dl-opt: error: {lines[-1].strip() if lines else type(error).__name__}")
        return 1
    except Exception as error:  # A bug of dl-opt.
        if debug:
            traceback.print_exc(file=stderr)
        where = f" at {raised_at(error)} (--debug shows the way there)"
        terminal.tell(f"dl-opt: internal error: {one_line(error)}{where}")
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the `dl-opt` command on `argv`, which excludes the program name. Returns the exit code."""
    if argv is None:  # This process runs one command.
        gc.freeze()
        gc.set_threshold(*RARE_COLLECTIONS)
    try:
        return _run(argv, sys.stderr)
    except BrokenPipeError:  # For example `dl-opt ... | head`.
        terminal.leave_quietly()
        return 0
    except KeyboardInterrupt:
        print("dl-opt: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
