"""Kinds of FILE that the commands take, and the options that a command reads in each of its modes.

A mode is a variant of a command, named by an option (`compile --explain`) or by its kind of FILE (`a program of IR`). A
command refuses an option that it does not read in its mode. Plug-ins add kinds of FILE (`Source`) with their options,
and options of `compile` and `tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .. import __version__
from ..errors import CompileError
from ..plugins import plugins

if TYPE_CHECKING:
    from ..frontend.compilation import Compilation
    from ..frontend.tuning.search import Search
    from ..passes.records import RecordPlans
    from .reports import Loaded

PREPACK_WEIGHTS = click.option(
    "--prepack-weights/--no-prepack-weights",
    default=None,
    help="On cpu, compute what depends on weights alone once. Changes through .data, NumPy or DLPack are noticed by a"
    " sample of each weight.",
)

COMPILER = {"target", "record", "f32_matmul_precision", "checked", "schedule", "pipeline", "insert", "strategy"}
COMPILER |= {"prepack_weights"}
"""The options of `compile_captured`."""

FILE = {"file", "as_json", "debug"}
SEARCHING = set("budget trials policy device threads kept only explain".split())
WRITING = {"output", "write_record"}
_RUNNING = "executor bench profile predict plot trace kernel_text against".split()

_NOTED = COMPILER - {"target"} | {"dynamic", "fallback"}
"""Options that printed texts name in their first lines, if they are set."""

_PROGRAM = FILE | COMPILER | {"code", "fallback", "dynamic", "seed", "verbose", "print_values"}

Modes = Mapping[str, Set[str]]
"""Mode of a command -> the parameters that are read in it."""

MODES: dict[str, Modes] = {
    "compile": {
        "--print-pipeline": (_PROGRAM | WRITING | {"ir", "print_pipeline"}) - {"verbose"},
        "--explain": (_PROGRAM | WRITING | {"explain"}) - {"schedule"},
        "--explain fusion": _PROGRAM | WRITING | {"explain"},
        "--emit": _PROGRAM | WRITING | {"emit"},
        "a program": _PROGRAM | WRITING | {"ir", "helpers", "emit", "explain", "print_pipeline"},
    },
    "run": {"--bisect": _PROGRAM | {"executor", "bisect"}, "a program": _PROGRAM | set(_RUNNING)},
    "tune": {"a program": (_PROGRAM | SEARCHING) - {"record", "schedule", "print_values"}},
}


class Params(SimpleNamespace):
    """Values of the parameters of a command, by name."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of `compile_captured`, by name."""
        return {name: getattr(self, name, None) for name in COMPILER}


class Source:
    """Kind of FILE that commands take in place of Python, an entry of the group `deplodock.sources`.

    A method `compile`, `run` or `tune` carries out that command. It takes the context of click and the parameters
    (`Params`). A command without a method refuses the file. A class with a method `program`, which returns the program
    of a file (`evaluate.Program`), has no such methods: all commands treat the program as one of a Python file.

    Attributes:
        metavar: the kind in usage lines, such as `MODEL`.
        marker: the file by which a folder of this kind is known, or empty.
        about: for each command a paragraph of its help.
        options: for each command the options that it gets.
        modes: for each command the parameters that are read in each of its modes.
        refusals: for each command without a method an error text with `{file}`, which names the right command.
    """

    metavar: str
    marker = ""
    about: Mapping[str, str] = {}
    options: Mapping[str, Sequence[click.Option]] = {}
    modes: Mapping[str, Modes] = {}
    refusals: Mapping[str, str] = {}

    def matches(self, file: str) -> bool:
        """Returns true if the argument FILE, a path or a name, is of this kind."""
        raise NotImplementedError


@dataclass(frozen=True)
class Finished:
    """State of a command at its end, for extensions.

    Attributes:
        compilations: the compiled programs, usually one.
        loaded: the Python program that was compiled, or None for a program of another kind.
        outcome: results of `run` (`reports.outcome_of`), with the measured times; None for other commands.
        searches: results of `tune`.
        error: error that ended the command, or None.
    """

    compilations: Sequence[Compilation]
    loaded: Loaded | None = None
    outcome: Mapping[str, Any] | None = None
    searches: Sequence[Search] = ()
    error: CompileError | None = None


class Extension:
    """Options that a plug-in adds to commands, an entry of the group `deplodock.extensions`.

    Attributes:
        options: for each command the options that it gets.
        modes: for each command the modes that read the options.
    """

    options: Mapping[str, Sequence[click.Option]] = {}
    modes: Mapping[str, Set[str]] = {}

    def check(self, params: Params) -> None:
        """Called before a command that uses the extension does any work.

        Raises:
            UsageError: an option needs another one.
            CompileError: a file of the options cannot be read.
        """

    def finish(self, context: click.Context, params: Params, finished: Finished) -> None:
        """Called at the end of a command, also after an error of the compiler.

        Args:
            context: context of the command.
            params: its parameters.
            finished: the programs and results.
        """
        raise NotImplementedError


@cache
def extensions() -> tuple[Extension, ...]:
    """Returns the extensions of commands."""
    return tuple(load()() for load in plugins("deplodock.extensions", (), "extension").values())


def extensions_in_use(command: str, params: Params) -> list[Extension]:
    """Returns the extensions with an option that is set. `command`: name of the command."""
    names = {e: [str(o.name) for o in e.options.get(command, ())] for e in extensions()}
    return [e for e, options in names.items() if any(getattr(params, name, None) for name in options)]


@contextmanager
def extended(
    context: click.Context, params: Params, compilations: Sequence[Compilation], **facts: Any
) -> Generator[Any]:
    """Calls the extensions that a command uses, at the end of the `with` block.

    Args:
        context: context of the command.
        params: its parameters.
        compilations: the compiled programs.
        facts: further fields of `Finished`.

    Yields:
        the dict of all fields except `error`, which the block may change.
    """
    facts["compilations"] = compilations
    in_use = extensions_in_use(str(context.command.name), params)
    try:
        yield facts
    except CompileError as error:
        for extension in in_use:
            extension.finish(context, params, Finished(**facts, error=error))
        raise
    for extension in in_use:
        extension.finish(context, params, Finished(**facts))


@cache
def sources() -> tuple[Source, ...]:
    """Returns the kinds of FILE, including those of plug-ins."""
    return tuple(load()() for load in plugins("deplodock.sources", (), "kind of FILE").values())


def handler_of(command: str, file: str | None) -> Callable[[click.Context, Params], Any] | None:
    """Returns the method of a `Source` that carries out a command on a file, or None for Python.

    Raises:
        UsageError: if the command does not take the file.
    """
    if file is None or file.endswith(".py"):
        return None
    for source in sources():
        if source.matches(file):
            if hasattr(source, "program"):
                return None
            if (handler := getattr(source, command, None)) is None:
                raise click.UsageError(source.refusals[command].format(file=file))
            return handler
    if Path(file).is_dir():
        kinds = " or ".join(f"a {s.marker} ({s.metavar})" for s in sources() if s.marker)
        raise click.UsageError(f"{file} is a folder" + (f" without {kinds}" if kinds else ", not a FILE.py"))
    return None


def program_of(file: str) -> Any | None:
    """Returns the program of a file of a kind with a method `program` (`Source`), or None."""
    return next((s.program(file) for s in sources() if hasattr(s, "program") and s.matches(file)), None)  # pyright: ignore


@cache
def workers() -> dict[str, Any]:
    """Returns the worker pools of plug-ins for `tune`, by the names of their options."""
    return {name: load() for name, load in plugins("deplodock.workers", (), "workers").items()}


@cache
def plugin_options(command: str) -> tuple[click.Option, ...]:
    """Returns the options that plug-ins add to a command."""
    added = [option for part in (*sources(), *extensions()) for option in part.options.get(command, ())]
    if command == "compile" and (emitters := [*plugins("deplodock.emitters", (), "emitter")]):
        text = "In place of a level print what a plug-in makes of the program."
        added.append(click.Option(["--emit"], type=click.Choice(emitters), help=text))
    if command == "tune":
        added += [click.Option([f"--{name}"], metavar="ADDRESS", help=cls.help) for name, cls in workers().items()]
    return tuple(added)


def printing(values: Sequence[str]) -> str:
    """Returns the insertion of the pass that prints values of kernels (`--print`).

    One pass prints all values, because it changes the numbers of values without a name.

    Raises:
        UsageError: the values are of two levels.
    """
    levels = [value.partition(":")[0] if value.startswith(("tile:", "kernel:")) else "tile" for value in values]
    if len(set(levels)) > 1:
        raise click.UsageError("--print takes values of one level, but got values of the levels tile and kernel")
    where = {"tile": "before=convert-tile-to-kernel", "kernel": "after=host-update-in-place"}[levels[0]]
    names = ",".join(f'"{value.removeprefix(f"{levels[0]}:")}"' for value in values)
    return f"{levels[0]}-print-values{{values={names}}}:{where}"


class OptionalValue(click.Option):
    """Option that takes one of a few values. Without a value it has the first one.

    Args:
        declarations: names of the option.
        values: the values. Another word after the option is not its value.
        attributes: further attributes of `click.Option`.
    """

    def __init__(self, declarations: Sequence[str], *, values: Sequence[str] = (), **attributes: Any) -> None:
        self.values = values
        super().__init__(declarations, type=click.Choice(values), metavar=f"[{'|'.join(values)}]", **attributes)

    def completed(self, arguments: Sequence[str]) -> list[str]:
        """Returns command-line arguments in which the option always has a value: `--explain=schedules`."""
        words, pending = list[str](), list(arguments)
        while pending:
            word = pending.pop(0)
            if word in self.opts:
                word += f"={pending.pop(0) if pending and pending[0] in self.values else self.values[0]}"
            words.append(word)
        return words


class FileCommand(click.Command):
    """Command on a FILE, with the options of plug-ins. Its function takes the context and `Params`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for option in self.params:
            if isinstance(option, OptionalValue):
                args = option.completed(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        params = Params(**ctx.params)
        check_given(params)
        for extension in extensions_in_use(str(self.name), params):
            extension.check(params)
        if values := getattr(params, "print_values", ()):
            params.insert = (*params.insert, printing(values))
        handler = handler_of(str(self.name), params.file) or self.callback
        assert handler is not None
        return handler(ctx, params)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *declared, help_option = super().get_params(ctx)
        return [*declared, *plugin_options(str(self.name)), help_option]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        kinds = [s.metavar for s in sources() if hasattr(s, str(self.name))]
        return ["[OPTIONS]", f"[{'|'.join(['FILE.py', *kinds])}]"]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        for source in sources():
            if str(self.name) in source.about:
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(source.about[str(self.name)])


def modes_of(command: str) -> dict[str, Set[str]]:
    """Returns the modes of a command for all kinds of FILE, with the parameters that each mode reads."""
    modes = dict(MODES.get(command, {}))
    for source in sources():
        modes |= source.modes.get(command, {})
    always: Set[str] = workers().keys() if command == "tune" else set()
    added: dict[str, Set[str]] = {mode: set(always) for mode in modes}
    for extension in extensions():
        names = {str(option.name) for option in extension.options.get(command, ())}
        added |= {mode: added[mode] | names for mode in extension.modes.get(command, ()) if mode in modes}
    return {mode: names | added[mode] for mode, names in modes.items()}


def refuse_ignored(context: click.Context, mode: str) -> None:
    """Raises UsageError for an option that is set and that the command does not read in `mode`."""
    reads = modes_of(str(context.command.name))[mode]
    for parameter in context.command.get_params(context):
        is_given = context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
        if is_given and parameter.name not in reads:
            raise click.UsageError(f"{_shown(parameter)} has no effect with {mode}")


def given_options(context: click.Context) -> str:
    """Returns the options of the command line that affect the compilation, as text.

    A record file is named without its folder, so that printed texts are the same on every machine.
    """
    noted = _NOTED | {o.name for s in sources() for o in s.options.get(str(context.command.name), ())}
    parts: list[str] = []
    for parameter in context.command.get_params(context):
        value = context.params.get(str(parameter.name))
        if parameter.name in noted and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE:
            for v in value if isinstance(value, tuple) else (value,):
                text = Path(str(v)).name if parameter.name == "record" else str(v)
                off = v is False and parameter.secondary_opts
                parts.append(
                    off[-1] if off else _shown(parameter) if v is True else f"{_shown(parameter)} {quote(text)}"
                )
    return " ".join(parts)


def _shown(parameter: click.Parameter) -> str:
    return parameter.opts[-1] if parameter.param_type_name == "option" else str(parameter.name).upper()


def check_given(params: Params) -> None:
    """Raises UsageError for options that exclude each other."""
    for first, second, both in (
        ("-c", "FILE", params.code is not None and params.file is not None),
        ("--schedule", "--pipeline", None not in (params.options["schedule"], params.pipeline)),
        ("--against", "--pipeline", bool(getattr(params, "against", ())) and params.pipeline is not None),
        ("-vv", "--json", params.verbose > 1 and params.as_json),
        *(("--print", f"--{name}", _prints_and(params, name)) for name in ("pipeline", "bench", "profile", "trace")),
        ("--print", "--json", params.as_json and _prints_and(params, "executor")),
        ("--print", "--executor reference", getattr(params, "executor", "") == "reference" and _prints_and(params)),
    ):
        if both:
            raise click.UsageError(f"{first} and {second} exclude each other")
    if getattr(params, "plot", None) and not getattr(params, "bench", True):
        raise click.UsageError("--plot draws what --bench measures: give both")
    if getattr(params, "against", ()) and not (params.bench or params.profile):
        raise click.UsageError("--against is timed by --bench, or by --profile kernel by kernel: give one of them")
    if params.code is None and params.file is None:
        raise click.UsageError("give either -c EXPRESSION or a FILE.py")


def _prints_and(params: Params, name: str = "print_values") -> bool:
    """Returns true if the options `--print` and `name` are both set."""
    return bool(getattr(params, "print_values", ())) and bool(getattr(params, name, None))


def choose_target(params: Params, executor: str = "auto") -> None:
    """Replaces the target `auto` by the target of an edited kernel text, if it states one, or of this machine."""
    if params.target == "auto":
        from ..frontend import executors

        params.target = executors.target_for(executor)
        if (file := getattr(params, "kernel_text", None)) is not None:
            from .versions import target_of_text

            params.target = target_of_text(file) or params.target


def facts(context: click.Context, params: Params) -> dict[str, str]:
    """Returns the version, source and options that printed texts name, as text by name."""
    file = params.file or ""
    source = params.code or (Path(file).name if Path(file).exists() else file)
    return {"version": __version__, "source": source, "options": given_options(context)}


def recorder(path: str) -> RecordPlans:
    """Returns an observer that adds the plans of a program to a record file."""
    from ..passes.record_file import read_record
    from ..passes.records import Record, RecordPlans

    return RecordPlans(read_record(path) if Path(path).exists() else Record(path))
