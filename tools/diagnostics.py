"""Errors as a user sees them: `file:line:col: error: message`, the line of source, and a caret."""

from __future__ import annotations

from pathlib import Path

from ..errors import CompileError

_LONGEST_LINE = 400
"""Characters of a source line that are shown."""


def render_error(error: CompileError, sources: dict[str, str], default_file: str) -> str:
    """`error` and what hangs on it, as text without a newline at the end.

    `sources` maps the files that were read to their text; a file that an op says it came from is looked up on disk.
    `default_file` stands in for the place of an error that has none.
    """
    others: tuple[CompileError, ...] = getattr(error, "others", ())
    return "\n".join(_render_one(e, sources, default_file) for e in (error, *others))


def _render_one(error: CompileError, sources: dict[str, str], default_file: str) -> str:
    place = error.location or default_file
    text = f"{place}: error: {error.message}"
    file, line, column = _split_place(place)
    source = _source_line(file, line, sources)
    if source is None or not source.strip():
        return text
    text += f"\n{source[:_LONGEST_LINE]}"
    if 0 < column <= min(len(source) + 1, _LONGEST_LINE):
        # Tabs stay tabs, so that the caret stands under its character.
        text += "\n" + "".join(c if c == "\t" else " " for c in source[: column - 1]) + "^"
    return text


def _split_place(place: str) -> tuple[str, int, int]:
    parts = place.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return parts[0], int(parts[1]), int(parts[2])
    parts = place.rsplit(":", 1)
    if len(parts) == 2 and parts[1].isdigit():
        return parts[0], int(parts[1]), 0
    return place, 0, 0


def _source_line(file: str, line: int, sources: dict[str, str]) -> str | None:
    if line < 1:
        return None
    text = sources.get(file)
    if text is None and file.endswith(".py"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    lines = text.split("\n") if text is not None else []
    return lines[line - 1].rstrip("\r") if line <= len(lines) else None
