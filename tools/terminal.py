"""Output on a terminal: colours, wrapped lines, progress, and errors as `file:line:col: error: message` with a caret.

The variables `NO_COLOR` and `FORCE_COLOR` are obeyed. Rich is not imported if the output is a pipe.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, TextIO

from ..errors import CompileError
from ..progress import Step, listen

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0
"""Seconds after which the progress of a task is shown on a terminal."""

SILENCE = 10.0
"""Seconds after which a line names a running task if stderr is not a terminal."""

_STYLES = {
    "mlir": (
        (re.compile(r"//.*"), "bright_black"),
        (re.compile(r'"(?:[^"\\\n]|\\.)*"'), "green"),
        (re.compile(r"%[\w$.-]+(?:#\d+)?"), "cyan"),
        (re.compile(r"@[\w$.-]+"), "blue"),
        (re.compile(r"[#!][A-Za-z_][\w$.]*"), "magenta"),
        (re.compile(r"(?:(?<=^)|(?<=\s))[a-z_0-9]+\.[a-z_0-9.]+(?=[\s<({]|$)", re.M), "bold"),
        (re.compile(r"\b(?:tensor|memref|vector)(?=<)|\b(?:b?f|u?i)\d+\b|\bindex\b"), "yellow"),
    ),
    "cuda": (
        (re.compile(r"//[^\n]*|/\*.*?\*/", re.S), "bright_black"),
        (re.compile(r"^#.*", re.M), "magenta"),
        (re.compile(r'"(?:[^"\\\n]|\\.)*"'), "green"),
        (re.compile(r"\b__\w+__\b"), "bold magenta"),
        (re.compile(r"\b(?:if|else|for|while|return|const|extern|static|struct|using|template)\b"), "bold"),
        (re.compile(r"\b(?:void|float\d?|double|half\w*|__nv_\w+|bool|unsigned|int\w*|uint\w*|char|long)\b"), "yellow"),
    ),
    "diff": (
        (re.compile(r"^\+.*", re.M), "green"),
        (re.compile(r"^-.*", re.M), "red"),
        (re.compile(r"^@@.*", re.M), "cyan"),
        (re.compile(r"^(?:>>>|<<<) t:.*", re.M), "bold"),
    ),
    "outcome": (
        (re.compile(r"\bok$", re.M), "green"),
        (re.compile(r"\bWRONG\b.*", re.M), "bold red"),
        (re.compile(r"\bnot compared$|^nothing was compared:.*", re.M), "yellow"),
    ),
    "error": (
        (re.compile(r"\berror:"), "bold red"),
        (re.compile(r"\b(?:note|remark):"), "bold cyan"),
        (re.compile(r"^[ \t]*\^$", re.M), "bold green"),
    ),
}
"""Kind of text -> patterns with styles. The first pattern that matches at a position decides the style there."""


def has_colors(stream: TextIO) -> bool:
    """Returns true if `stream` is a terminal or `FORCE_COLOR` is set, unless `NO_COLOR` is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # The stream is closed.
        return False


def is_kept(output: str | None) -> bool:
    """Returns true if a text goes to a file or a pipe."""
    return output is not None or not is_terminal(sys.stdout)


def width_of(stream: TextIO) -> int | None:
    """Returns the columns of the terminal of `stream`, or `COLUMNS` if it is set; None if `stream` is no terminal."""
    if not is_terminal(stream):
        return None
    asked = os.environ.get("COLUMNS", "")
    try:
        return int(asked) if asked.isdigit() and int(asked) else os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # The stream of a test has no file descriptor.
        return 80


def tell(message: str) -> None:
    """Writes a message to stderr, in colours and wrapped. Quoted source lines and carets are not wrapped."""
    width = width_of(sys.stderr)
    text, quoted = "", False
    for line in message.splitlines():
        is_error = "error: " in line
        text += (line if quoted and not is_error else fitted(line, width)) + "\n"
        quoted |= is_error
    write(text, "error", sys.stderr)


def write(text: str, kind: str, stream: TextIO) -> None:
    """Writes a text, in colours if `stream` has colours.

    Args:
        text: the text.
        kind: key of `_STYLES`.
        stream: the stream.
    """
    if not has_colors(stream) or kind not in _STYLES:
        stream.write(text)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text(text, no_wrap=True, end="")
    taken = bytearray(len(text))
    for pattern, style in _STYLES[kind]:
        for match in pattern.finditer(text):
            start, end = match.span()
            if not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                shown.stylize(style, start, end)
    console = Console(file=stream, highlight=False, force_terminal=True, color_system="standard", width=1 << 20)
    console.print(shown, soft_wrap=True, end="")


def write_out(text: str, kind: str, path: str | None) -> None:
    """Writes the result of a command.

    Args:
        text: the result.
        kind: key of `_STYLES`.
        path: the file, or None for stdout.

    Raises:
        CompileError: if the file cannot be written.
    """
    if path is None:
        write(text, kind, sys.stdout)
    else:
        write_file(path, text)


def write_file(path: str | Path, text: str, option: str | None = None) -> None:
    """Writes a file.

    Args:
        path: the file.
        text: its contents.
        option: option of the command that names the file, for the error.

    Raises:
        CompileError: if the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror}", argument=option) from None


def leave_quietly() -> None:
    """Discards further output, after the reader of stdout has ended (`deplodock ... | head`)."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # The stream of a test has no file descriptor.
            pass


class Colored:
    """Stream that writes text of one kind to `stream`, in colours and wrapped."""

    def __init__(self, kind: str, stream: TextIO) -> None:
        self.kind, self.stream = kind, stream
        self._width = width_of(stream)

    def write(self, text: str) -> int:
        write(fitted(text, self._width, signs="+-"), self.kind, self.stream)
        return len(text)


def fitted(text: str, width: int | None, hanging: int = 4, signs: str = "") -> str:
    """Returns `text` with lines of at most `width` columns, broken between words.

    Args:
        width: Columns; None leaves lines as they are.
        hanging: Columns by which a continued line is indented more.
        signs: Characters that mark the lines of a diff. A continued line begins with the sign of its line. Without
            them, blocks of code (```) stay as they are.
    """
    if width is None:
        return text
    from ..dialects.support.printing import wrapped

    lines: list[str] = []
    code = False
    for line in text.splitlines():
        code ^= not signs and line.startswith("```")
        sign = line[:1] if line[:1] and line[:1] in signs else ""
        lines += [line] if code else wrapped(line, width, sign, hanging)
    return "".join(f"{line}\n" for line in lines) if text.endswith("\n") else "\n".join(lines)


def table(rows: list[tuple[str, str]], width: int | None) -> str:
    """Returns a table of two columns. The second column is wrapped between words."""
    first = max((len(name) for name, _ in rows), default=0)
    text = ""
    for name, value in rows:
        lines = [value]
        if width is not None:
            lines = textwrap.wrap(value, max(width - first - 2, 20), break_long_words=False, break_on_hyphens=False)
        text += "".join(
            f"{label:{first}}  {line}".rstrip() + "\n" for label, line in zip([name, *[""] * len(lines)], lines or [""])
        )
    return text


@contextmanager
def progress(quiet: bool = False) -> Generator[None]:
    """Shows the tasks inside the `with` block on stderr.

    On a terminal they are bars, shown after `PATIENCE`. Elsewhere a task that takes longer than `SILENCE` writes one
    line. With `quiet` nothing is shown.
    """
    stream = sys.stderr
    if quiet:
        yield
        return
    if not is_terminal(stream) or os.environ.get("TERM") == "dumb":
        with listen(_line):
            yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
    )
    console = Console(file=stream, width=width_of(stream), highlight=False, emoji=False)
    shown = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    delay = Timer(PATIENCE, shown.start)
    delay.daemon = True
    delay.start()
    try:
        with listen(partial(_task, shown)):
            yield
    finally:
        delay.cancel()
        delay.join()
        shown.stop()


@contextmanager
def _line(title: str, total: int | None, unit: str) -> Generator[Step]:
    """Listener that writes a line for a task that takes longer than `SILENCE`."""
    current = ""

    def step(count: int = 1, detail: str = "") -> None:
        nonlocal current
        current = detail

    delay = Timer(SILENCE, lambda: tell(f"deplodock: {title} {current}".rstrip() + f": {SILENCE:g} s so far"))
    delay.daemon = True
    delay.start()
    try:
        yield step
    finally:
        delay.cancel()


@contextmanager
def _task(shown: Progress, title: str, total: int | None, unit: str) -> Generator[Step]:
    """Listener that shows a bar for a task."""

    def done(count: int) -> str:
        return f"{count}/{total} {unit}" if total is not None else f"{count} {unit}" if count else ""

    task, all_done = shown.add_task(title, total=total, done=done(0)), 0

    def step(count: int = 1, detail: str = "") -> None:
        nonlocal all_done
        all_done += count
        shown.update(task, completed=all_done, description=f"{title} {detail}".rstrip(), done=done(all_done))

    try:
        yield step
    finally:
        shown.remove_task(task)


_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)
"""File, with optional line and column."""

_ORIGIN = re.compile(r'loc\("([^"]+)":(\d+)')
"""Location in the Python program, in a line of IR."""

_LONGEST_LINE = 400
"""Characters of a quoted source line."""


def render_error(error: CompileError, sources: dict[str, str], default_file: str) -> str:
    """Returns an error and its further errors as text, without a final newline.

    Args:
        error: the error.
        sources: texts by file name; other files are read from disk.
        default_file: location of an error without a location.
    """
    others: tuple[CompileError, ...] = getattr(error, "others", ())
    return "\n".join(_render_one(e, sources, default_file) for e in (error, *others))


def _render_one(error: CompileError, sources: dict[str, str], default_file: str) -> str:
    place = error.location or default_file
    text = f"{place}: error: {error.message}"
    position = _PLACE.fullmatch(place)
    file, line, column = position.groups("0") if position else (place, "0", "0")
    source, column = _source_line(file, int(line), sources), int(column)
    if source is None or not source.strip():
        return text
    text += f"\n{source[:_LONGEST_LINE]}"
    if 0 < column <= min(len(source) + 1, _LONGEST_LINE):
        # Tabs are copied, so that the caret is below its character.
        text += "\n" + "".join(c if c == "\t" else " " for c in source[: column - 1]) + "^"
    origin = None if file.endswith(".py") else _ORIGIN.search(source)
    return text if origin is None else f"{text}\nfrom {origin[1]}:{origin[2]}"


def _source_line(file: str, line: int, sources: dict[str, str]) -> str | None:
    if line < 1:
        return None
    text = sources.get(file)
    if text is None and file.endswith((".py", ".cu", ".cpp")):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    lines = text.split("\n") if text is not None else []
    return lines[line - 1].rstrip("\r") if line <= len(lines) else None
