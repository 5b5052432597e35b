"""The text of `dl-opt --help-op`."""

from __future__ import annotations

from xdsl.ir import Operation

from ..pass_help import reflowed
from ..terminal import fitted, table
from .definitions import Description, describe, dialect_of, file_of, find, parts_of
from .uses import uses_of


def help_op(name: str, width: int | None) -> str:
    """Returns the description of an operation, attribute or type, or the contents of a dialect.

    Args:
        name: name such as `tile.dot` or `tile.layout`; `#tile.ring` and `!tile.ring` exclude operations. Or a dialect.
        width: columns of the terminal, or None.

    Raises:
        CompileError: if the name is unknown.
    """
    if dialect_of(name) is not None:
        return _dialect_text(name, width)
    return "\n".join(_text(describe(cls), width) for cls in find(name))


def _dialect_text(name: str, width: int | None) -> str:
    """Returns the docstring of a dialect and the summaries of its operations and attributes, by the file of them."""
    parts = parts_of(name)
    texts = [f"{fitted(reflowed(parts[0].text), width, 0)}\n"] if parts and parts[0].text else []
    for part in parts:
        if part.members:
            rows = [(d.name, d.summary) for d in map(describe, part.members)]
            texts.append(f"{part.file}:\n{table(rows, width)}")
    return "\n".join(texts)


def _text(d: Description, width: int | None) -> str:
    parts = [d.name, fitted(d.summary, width, 0)]
    if d.example:
        parts.append("\n".join(f"    {line}".rstrip() for line in d.example.splitlines()))
    if d.body:
        parts.append(fitted(reflowed(d.body), width, 0))
    if d.syntax is not None:
        parts.append(fitted(f"Syntax: {d.syntax}", width))
    for group, members in d.members.items():
        rows = [(m.name, f"{m.note}; {m.text}" if m.text else m.note) for m in members]
        parts.append(f"{group.capitalize()}:\n{table(rows, width)}".rstrip())
    parts += [fitted(f"Traits: {'; '.join(d.traits)}.", width)] if d.traits else []
    if issubclass(d.cls, Operation) and d.cls.__module__.startswith("deplodock."):
        uses = uses_of(d.cls)
        lines = (("Created by", uses.created), ("Matched by", uses.matched))
        parts += [fitted(f"{title}: {', '.join(names)}.", width) for title, names in lines if names]
    parts.append(f"Defined in {file_of(d.cls)}.")
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"
