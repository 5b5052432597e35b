"""The texts of `dl-opt --list-passes` and `--help-pass`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches

from xdsl.passes import ModulePass

from ..errors import CompileError
from ..passes import GROUPS, group_of
from ..passes.pipelines import get_all_pipelines, pass_options
from .terminal import fitted, table

Passes = dict[str, Callable[[], type[ModulePass]]]

_UNDOCUMENTED = {
    "apply-pdl": "Applies the rewrite patterns that a PDL file, or the module itself, describes.",
    "reconcile-unrealized-casts": "Removes pairs of unrealized casts that undo each other.",
}
"""Name of an xDSL pass without a docstring -> description."""


def description(cls: type[ModulePass]) -> str:
    """Returns the docstring of a pass. The signature that a dataclass has instead of a docstring is ignored."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    generated = text.startswith(f"{cls.__name__}(")
    return _UNDOCUMENTED.get(cls.name, "no description") if generated or not text else text


def list_passes(passes: Passes, width: int | None) -> str:
    """Returns the passes by level with the first sentence of their descriptions, and the pipelines with their text."""
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for name, factory in passes.items():
        cls = factory()
        options = ", ".join(o.name for o in pass_options(cls))
        groups[group_of(name)].append((name, _summary(description(cls)) + (f" Options: {options}." if options else "")))
    groups["pipelines"] = [(name, text.replace(",", ", ")) for name, text in get_all_pipelines().items()]
    return "\n".join(f"{group}:\n{table(rows, width)}" for group, rows in groups.items() if rows)


def help_pass(name: str, passes: Passes, width: int | None) -> str:
    """Returns the description of a pass with its options, or the text of a pipeline.

    Args:
        name: name of the pass or pipeline.
        passes: all passes.
        width: columns of the terminal, or None.

    Raises:
        CompileError: if the name is unknown.
    """
    pipelines = get_all_pipelines()
    if name in pipelines:
        return fitted(f"{name} = {pipelines[name].replace(',', ', ')}\n", width)
    if name not in passes:
        close = get_close_matches(name, [*passes, *pipelines], 1)
        raise CompileError(f"unknown pass {name!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    cls = passes[name]()
    rows = [(o.name, f"{o.type}; {o.default}") for o in pass_options(cls)]
    options = f"Options, as in {name}{{{rows[0][0]}=...}}:\n\n{table(rows, width)}" if rows else "It has no options.\n"
    return f"{name}\n\n{fitted(reflowed(description(cls)), width, 0)}\n\n{options}"


def reflowed(text: str) -> str:
    """Joins the lines of each paragraph and list item of a text into one line, except in blocks of code."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        begins = not line or line.startswith(("```", "|", "- ", "What", "Why"))
        ended = not lines or not lines[-1] or lines[-1].startswith("```") or lines[-1].endswith((".", ":"))
        code ^= line.startswith("```")
        if not code and not begins and not ended:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _summary(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence, end, _ = paragraph.partition(". ")
    return sentence + "." if end else paragraph
