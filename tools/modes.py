"""Kinds of FILE that the commands take, and the options that a command reads in each of its modes.

An option that would be ignored is refused, naming option and mode. Plug-ins add kinds of FILE (`Source`), each with
options of its own, and further options of `compile` and `tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .. import __version__
from ..plugins import plugins

if TYPE_CHECKING:
    from ..passes.records import RecordPlans

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
SEARCHING = set("budget trials policy device threads kept only explain report".split())
WRITING = {"output", "write_record"}

_NOTED = COMPILER - {"target"} | {"dynamic", "fallback"}
"""The options of all commands that are noted in what is printed, where they were given."""

_PROGRAM = FILE | COMPILER | {"code", "fallback", "dynamic", "seed", "verbose"}

Modes = Mapping[str, Set[str]]
"""Mode of a command -> the parameters that are read in it."""

MODES: dict[str, Modes] = {
    "compile": {
        "--print-pipeline": (_PROGRAM | WRITING | {"ir", "print_pipeline"}) - {"verbose"},
        "--explain": (_PROGRAM | WRITING | {"explain"}) - {"schedule"},
        "--emit": _PROGRAM | WRITING | {"emit"},
        "a program": _PROGRAM | WRITING | {"ir", "helpers", "emit", "explain", "print_pipeline"},
    },
    "run": {"a program": _PROGRAM | {"executor", "bench", "profile", "predict", "plot", "trace"}},
    "tune": {"a program": (_PROGRAM | SEARCHING) - {"record", "schedule"}},
}


class Given(SimpleNamespace):
    """The parameters of a command by their names, as they were given."""

    @property
    def options(self) -> dict[str, Any]:
        """Those that say how to compile."""
        return {name: getattr(self, name, None) for name in COMPILER}


class Source:
    """Kind of FILE that commands take in place of Python, an entry of the group `deplodock.sources`.

    A method `compile`, `run` or `tune` carries out that command. It takes the context of click and the parameters
    (`Given`). A command without a method refuses the file.

    Attributes:
        metavar: the kind in usage lines, such as `MODEL`.
        marker: the file by which a folder of this kind is known, or empty.
        about: for each command a paragraph of its help.
        options: for each command the options that it gets.
        modes: for each command the parameters that are read in each of its modes.
        refusals: for each command without a method the text that refuses `{file}` and says what takes it.
    """

    metavar: str
    marker = ""
    about: Mapping[str, str] = {}
    options: Mapping[str, Sequence[click.Option]] = {}
    modes: Mapping[str, Modes] = {}
    refusals: Mapping[str, str] = {}

    def matches(self, file: str) -> bool:
        """Returns whether a file, or the name of something that is no file, is of this kind."""
        raise NotImplementedError


@cache
def sources() -> tuple[Source, ...]:
    """Returns the kinds of FILE, those of plug-ins too."""
    return tuple(load()() for load in plugins("deplodock.sources", (), "kind of FILE").values())


def handler_of(command: str, file: str | None) -> Callable[[click.Context, Given], Any] | None:
    """Returns what carries out a command on a file, or None for Python. Raises UsageError for a file that the command
    does not take."""
    if file is None or file.endswith(".py"):
        return None
    for source in sources():
        if source.matches(file):
            if (handler := getattr(source, command, None)) is None:
                raise click.UsageError(source.refusals[command].format(file=file))
            return handler
    if Path(file).is_dir():
        kinds = " or ".join(f"a {s.marker} ({s.metavar})" for s in sources() if s.marker)
        raise click.UsageError(f"{file} is a folder" + (f" without {kinds}" if kinds else ", not a FILE.py"))
    return None


@cache
def workers() -> dict[str, Any]:
    """Returns the classes of workers that plug-ins bring for `tune`, by the names of their options."""
    return {name: load() for name, load in plugins("deplodock.workers", (), "workers").items()}


@cache
def plugin_options(command: str) -> tuple[click.Option, ...]:
    """Returns the options that plug-ins add to a command."""
    found = [option for source in sources() for option in source.options.get(command, ())]
    if command == "compile" and (emitters := [*plugins("deplodock.emitters", (), "emitter")]):
        text = "In place of a level print what a plug-in makes of the program."
        found.append(click.Option(["--emit"], type=click.Choice(emitters), help=text))
    if command == "tune":
        found += [click.Option([f"--{name}"], metavar="ADDRESS", help=cls.help) for name, cls in workers().items()]
    return tuple(found)


class FileCommand(click.Command):
    """Command on a FILE, with the options of plug-ins. Its function takes the context and the parameters (`Given`)."""

    def invoke(self, ctx: click.Context) -> Any:
        given = Given(**ctx.params)
        check_given(given)
        handler = handler_of(str(self.name), given.file) or self.callback
        assert handler is not None
        return handler(ctx, given)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *plugin_options(str(self.name)), help_option]

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
    """Returns the modes of a command, those of all kinds of FILE, with the parameters that are read in each."""
    modes = dict(MODES.get(command, {}))
    for source in sources():
        modes |= source.modes.get(command, {})
    always: Set[str] = workers().keys() if command == "tune" else set()
    return {mode: names | always for mode, names in modes.items()}


def refuse_ignored(context: click.Context, mode: str) -> None:
    """Raise UsageError for an option that was given and that this command does not read in `mode`."""
    reads = modes_of(str(context.command.name))[mode]
    for parameter in context.command.get_params(context):
        given = context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
        if given and parameter.name not in reads:
            raise click.UsageError(f"{_shown(parameter)} has no effect with {mode}")


def given_options(context: click.Context) -> str:
    """The options that were given and say what is compiled and how, as they may be typed, without folders."""
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


def check_given(given: Given) -> None:
    """Raises UsageError for options that exclude each other."""
    for first, second, both in (
        ("-c", "FILE", given.code is not None and given.file is not None),
        ("--schedule", "--pipeline", None not in (given.options["schedule"], given.pipeline)),
        ("-vv", "--json", given.verbose > 1 and given.as_json),
    ):
        if both:
            raise click.UsageError(f"{first} and {second} exclude each other")
    if getattr(given, "plot", None) and not getattr(given, "bench", True):
        raise click.UsageError("--plot draws what --bench measures: give both")
    if given.code is None and given.file is None:
        raise click.UsageError("give either -c EXPRESSION or a FILE.py")


def choose_target(given: Given, executor: str = "auto") -> None:
    """Replaces the target `auto` by the one that it stands for on this machine."""
    if given.target == "auto":
        from ..frontend import executors

        given.target = executors.target_for(executor)


def facts(context: click.Context, given: Given) -> dict[str, str]:
    """Returns what is noted in printed texts: version, source and options."""
    file = given.file or ""
    source = given.code or (Path(file).name if Path(file).exists() else file)
    return {"version": __version__, "source": source, "options": given_options(context)}


def recorder(path: str) -> RecordPlans:
    """Returns the observer that notes the plans of a program in a file, among those that are there."""
    from ..passes.record_file import read_record
    from ..passes.records import Record, RecordPlans

    return RecordPlans(read_record(path) if Path(path).exists() else Record(path))
