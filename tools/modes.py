"""Which options a command reads in which of its modes; one that would be ignored is refused, naming both."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource

IR_OPTIONS = ("record", "f32_matmul_precision", "schedule", "insert", "strategy", "checked")
"""Options of the commands on IR that are options of `Compilation` by the same name."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_COMPILER = {"target", "record", "f32_matmul_precision", "checked", "schedule", "pipeline", "insert", "strategy"}
_COMPILER |= {"prepack_weights"}
"""The options of `compile_captured`."""


class Given(SimpleNamespace):
    """The parameters of a command by their names, as they were given."""

    @property
    def options(self) -> dict[str, Any]:
        """Those that say how to compile."""
        return {name: getattr(self, name, None) for name in _COMPILER}


_NOTED = _COMPILER - {"target"} | {"dynamic", "fallback", "phase", "length", "context", "quantize"}
"""The options that are noted in what is printed, where they were given."""

_SOURCE = {"file", "as_json", "debug"}
_IR = {"target", "pipeline", *IR_OPTIONS}
_PROGRAM = _SOURCE | _COMPILER | {"code", "fallback", "dynamic", "seed", "verbose"}
_GENERATION = set("model prompt prompt_ids max_new_tokens greedy temperature top_p seed executor debug".split())
_SEARCH = set("budget trials policy device ray threads kept only explain plot report".split())
_WRITING = {"output", "write_record"}

MODES = {
    "compile": {
        "a MODEL": _SOURCE | _COMPILER | _WRITING | {"ir", "phase", "length", "context", "quantize"},
        "a MODEL and -o": _SOURCE | _COMPILER | _WRITING | {"phase", "length", "context", "quantize"},
        "--print-pipeline": (_PROGRAM | _WRITING | {"ir", "print_pipeline"}) - {"verbose"},
        "--explain": (_PROGRAM | _WRITING | {"explain"}) - {"schedule"},
        "--emit": _PROGRAM | _WRITING | {"emit"},
        "a program of IR": _SOURCE | _IR | {"ir", "helpers", "output"},
        "a program": _PROGRAM | _WRITING | {"ir", "helpers", "emit", "explain", "print_pipeline"},
    },
    "run": {
        "an ARTIFACT": _SOURCE | {"seed", "executor", "weights"},
        "a program of IR": _SOURCE | _IR | {"seed", "executor"},
        "a program": _PROGRAM | {"executor", "bench", "profile", "predict", "plot", "trace"},
    },
    "tune": {
        "a MODEL": (_SOURCE | _COMPILER | _SEARCH | {"seed", "verbose"}) - {"record", "schedule"},
        "a program": (_PROGRAM | _SEARCH) - {"record", "schedule"},
    },
    "generate": {
        "an ARTIFACT": _GENERATION | {"weights"},
        "a MODEL": _GENERATION | {"context", "length", "random_weights", "quantize", "target", "prepack_weights"},
    },
}  # fmt: skip
"""Command -> mode -> the parameters that are read in it."""


def refuse_ignored(context: click.Context, mode: str) -> None:
    """Raise UsageError for an option that was given and that this command does not read in `mode`."""
    reads = MODES[str(context.command.name)][mode]
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
        if given and parameter.name not in reads:
            raise click.UsageError(f"{_shown(parameter)} has no effect with {mode}")


def given_options(context: click.Context) -> str:
    """The options that were given and say what is compiled and how, as they may be typed, without folders."""
    parts: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in _NOTED and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE:
            values = value if isinstance(value, tuple) else (value,)
            for v in values:
                text = Path(str(v)).name if parameter.name == "record" else str(v)
                off = v is False and parameter.secondary_opts
                parts.append(
                    off[-1] if off else _shown(parameter) if v is True else f"{_shown(parameter)} {quote(text)}"
                )
    return " ".join(parts)


def _shown(parameter: click.Parameter) -> str:
    return parameter.opts[-1] if parameter.param_type_name == "option" else str(parameter.name).upper()


def is_ir(file: str | None) -> bool:
    """Returns whether the name of a file is that of a program of IR."""
    return file is not None and Path(file).suffix == ".mlir"


def is_artifact(path: str | None) -> bool:
    """Whether `path` is a folder that says it is an artifact."""
    return path is not None and (Path(path) / "manifest.json").is_file()


def is_model(name: str | None) -> bool:
    """Whether `name` means a model: a folder or file with a configuration, or a name on the hub."""
    if name is None or name.endswith(".py"):
        return False
    path = Path(name)
    if path.exists():
        return path.suffix == ".json" or (path / "config.json").is_file()
    return _HUB_NAME.fullmatch(name) is not None


def mode_of_file(command: str, file: str | None) -> str:
    """What FILE is to a command: a MODEL, an ARTIFACT or a program. Raises UsageError for what the command cannot use,
    saying what can."""
    if is_ir(file):
        if command == "tune":
            raise click.UsageError(f"expected a FILE.py or a MODEL, but got IR; `deplodock run {file}` runs it")
        return "a program of IR"
    if is_artifact(file):
        if command != "run":
            raise click.UsageError(f"{file} is compiled already; `deplodock run {file}` runs it")
        return "an ARTIFACT"
    if is_model(file):
        if command == "run":
            raise click.UsageError(
                f"{file} is a model: `deplodock generate {file}` continues a prompt;"
                f" `deplodock compile {file} -o FOLDER` writes an artifact, which `deplodock run FOLDER` runs"
            )
        return "a MODEL"
    if file is not None and Path(file).is_dir():
        raise click.UsageError(
            f"{file} is a folder with neither a manifest.json (an artifact) nor a config.json (a model)"
        )
    return "a program"
