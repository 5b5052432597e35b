"""Extension of IPython: `%%deplodock`, and the completion of the names of levels.

`%%deplodock compile --ir loop` runs a command on the program in the cell, which is Python whose last statement is an
expression, or IR. The names of the notebook are in scope. The magic takes the options of the command.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from typing import Any, get_args

import click

from ....dialects.support.printing import WIDTH
from ....errors import CompileError, presented
from ....frontend.inspection import LANGUAGES, LevelName
from ....frontend.texts import Text
from .cells import cell_as_file, number_of_cell

COMMANDS = ("compile", "run", "tune")
"""Commands of `%%deplodock`; the first is the default."""

_LEVEL = re.compile(r"""(?:\.ir\(\s*["']|^%%deplodock\b.*--ir[ =])(\w*)$""")
"""Text before the cursor where the name of a level is completed."""


def extend(shell: Any) -> None:
    """Adds the magic and the completion to a shell of IPython."""
    shell.register_magic_function(partial(run_cell, shell), "cell", "deplodock")
    if (completer := getattr(shell, "Completer", None)) is not None:
        completer.custom_matchers.append(_level_matcher())


class _Screen(StringIO):
    """Stream that commands treat as a terminal: texts are for people, without locations."""

    def isatty(self) -> bool:
        return True


@contextmanager
def _settings(**variables: str) -> Iterator[None]:
    """Sets environment variables inside the `with` block. The kernel of a notebook forces the colours of a terminal."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            os.environ |= {} if value is None else {name: value}


def run_cell(shell: Any, line: str, cell: str) -> Text | None:
    """Runs a command on the program in a cell.

    Args:
        shell: the shell of IPython.
        line: the command and its options.
        cell: the program.

    Returns:
        the text that `compile` prints, which the notebook shows; None for other commands, whose output is printed.

    Raises:
        CompileError: the program or an option is refused. The error names the cell and the line.
    """
    command, options = _words(line)
    out, label = _Screen(), f"Cell In[{number_of_cell(shell)}]"
    with cell_as_file(cell, shell) as file:
        with redirect_stdout(out), _settings(NO_COLOR="1", COLUMNS=str(WIDTH)):
            _run([command, *options, file], file, label)
        text = out.getvalue().replace(file, label)
    if command == "compile":
        return Text(text, *_kind(options))
    print(text, end="")
    return None


def _words(line: str) -> tuple[str, list[str]]:
    """Returns the command and the options of the line of a magic."""
    words = shlex.split(line)
    if not words or words[0].startswith("-"):
        return COMMANDS[0], words
    if words[0] not in COMMANDS:
        raise CompileError(f"expected one of {', '.join(COMMANDS)} after %%deplodock, but got {words[0]!r}")
    return words[0], words[1:]


def _run(arguments: list[str], file: str, cell: str) -> None:
    """Runs a command. Its errors name the cell in place of the file."""
    from ....tools.cli import cli

    try:
        cli.main(arguments, prog_name="%%deplodock", standalone_mode=False, obj=arguments)
    except SystemExit:
        pass  # A result is wrong, and the printed comparison names it.
    except click.ClickException as error:
        raise presented(CompileError(error.format_message())) from None
    except CompileError as error:
        for fault in (error, *error.others):
            fault.location = fault.location and fault.location.replace(file, cell)
        error.keeps_frames = "--debug" in arguments
        raise presented(error) from error.__cause__


def _kind(options: Sequence[str]) -> tuple[str, str]:
    """Returns the title and the language of the text that `compile` prints."""
    words = [part for word in options for part in word.split("=", 1)]
    if other := next((word for word in ("--explain", "--json", "--print-pipeline") if word in words), None):
        return other.removeprefix("--"), ""
    level = words[words.index("--ir") + 1] if "--ir" in words[:-1] else "cuda"
    return level, LANGUAGES.get(level, "mlir")


def _level_matcher() -> Any:
    """Returns a matcher of IPython's completer for the names of levels."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()
    def deplodock_levels(context: Any) -> Any:
        match = _LEVEL.search(context.text_until_cursor)
        names = [] if match is None else [name for name in get_args(LevelName) if name.startswith(match[1])]
        completions = [SimpleCompletion(name, type="level") for name in names]
        return {"completions": completions, "suppress": bool(names), "matched_fragment": match[1] if match else ""}

    return deplodock_levels
