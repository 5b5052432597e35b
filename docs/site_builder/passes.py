"""Pages of the passes, one for each, from the registry and the docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xdsl.passes import ModulePass

from deplodock.passes import GROUPS, group_of
from deplodock.passes.pipelines import get_all_passes, get_all_pipelines, parse_passes, pass_options
from deplodock.tools.pass_help import description

_ABOUT = {
    "general": "Passes that run at every level.",
    "planning": "Passes that decide with the cost model; other passes carry the decisions out.",
    "convert": "Passes from one level to the next.",
    "host": "Passes on the host program, the list of launches.",
    "xDSL": "Passes of xDSL that are registered too.",
    "plugins": "Passes of installed packages.",
}

INDEX = """# Passes

A page for each pass of the registry, with the IR before and after it. `dl-opt --list-passes` prints the list, and
`dl-opt --help-pass NAME` the text of a page. [The architecture](../../architecture.md#passes) has the passes in the
order in which they run.

{groups}

## Pipelines

| pipeline | passes |
|---|---|
{pipelines}

```{{toctree}}
:hidden:

{entries}
```
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its path."""
    classes = {name: load() for name, load in get_all_passes().items()}
    texts = {f"passes/{name}.md": page(cls) for name, cls in classes.items()}
    groups = [_group(group, {n: c for n, c in classes.items() if group_of(n) == group}) for group in GROUPS]
    pipelines = [f"| `{name}` | {_linked(text)} |" for name, text in get_all_pipelines().items()]
    index = INDEX.format(
        groups="\n\n".join(filter(None, groups)), pipelines="\n".join(pipelines), entries="\n".join(sorted(classes))
    )
    return {"passes/index.md": index, **texts}


def page(cls: type[ModulePass]) -> str:
    """Returns the page of a pass: its docstring, its options, and the pipelines with it."""
    parts = [f"# `{cls.name}`", *_paragraphs(description(cls))]
    options = pass_options(cls)
    if options:
        rows = "\n".join(f"| `{o.name}` | {_cell(str(o.type))} | {_cell(str(o.default))} |" for o in options)
        parts += [
            f"## Options\n\nAs in `{cls.name}{{{options[0].name}=...}}`:",
            f"| option | type | |\n|---|---|---|\n{rows}",
        ]
    parts.append("## Place")
    named = [name for name in get_all_pipelines() if cls.name in {p.name for p in parse_passes(name)}]
    rows = [("level", group_of(cls.name)), ("pipelines", ", ".join(f"`{name}`" for name in named) or "none")]
    if cls.__module__.startswith("deplodock."):
        rows.append(("source", f"`{cls.__module__.removeprefix('deplodock.').replace('.', '/')}.py`"))
    parts.append("\n".join(f"- {title}: {text}" for title, text in rows))
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Yields a docstring as Markdown. Its part before the rationale, which shows the IR, has the first heading."""
    summary, _, body = _with_languages(text).partition("\n\n")
    yield summary
    if "```" in body:
        yield f"## Before and after\n\n{body}"
    elif body:
        yield body


def _with_languages(text: str) -> str:
    """Returns a docstring whose blocks without a language are `mlir`."""
    inside = False
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
            line = "```mlir" if inside and line == "```" else line
        lines.append(line)
    return "\n".join(lines)


def _group(group: str, classes: dict[str, type[ModulePass]]) -> str:
    if not classes:
        return ""
    rows = "\n".join(f"| [`{name}`]({name}.md) | {_summary(description(cls))} |" for name, cls in classes.items())
    about = _ABOUT.get(group, f"Passes on the {group} level.")
    return f"## {group}\n\n{about}\n\n| pass | effect |\n|---|---|\n{rows}"


def _summary(text: str) -> str:
    sentence = " ".join(text.split("\n\n")[0].split()).partition(". ")[0]
    return sentence.rstrip(".:")


def _linked(text: str) -> str:
    """Returns the text of a pipeline with a code span for each pass."""
    names = re.split(r",(?![^{]*\})", text)
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
