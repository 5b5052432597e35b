"""Puts the sections of the page together with its style and script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...tools.terminal import write_file
from .against import recorded
from .html import Html, as_json, element, joined
from .parts import patterns
from .program import ReportedProgram
from .sections import Section, sections_of

_ASSETS = Path(__file__).parent / "assets"


def write_page(program: ReportedProgram, path: str) -> None:
    """Writes the page about a program. Raises CompileError if the file cannot be written."""
    write_file(path, page(program), "--report")


def page(program: ReportedProgram) -> str:
    """Returns the page about a program as HTML."""
    return assembled(program.title, program.subtitle, sections_of(program), recorded(program))


def assembled(title: str, subtitle: str, sections: Sequence[Section], run: Any = None) -> str:
    """Returns a page of sections.

    Args:
        title: title of the page.
        subtitle: a line below the title.
        sections: the sections.
        run: record of the run as data, with which other pages compare theirs, or None.
    """
    names = "report.css", "drawings.css", "report.js"
    *styles, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in names)
    links = [
        element("a", s.title, href=f"#{s.name}", data_section=s.name, title=f"key {number}" if number < 10 else None)
        for number, s in enumerate(sections, 1)
    ]
    header = element(
        "header",
        element("h1", title),
        element("p", subtitle),
        element("nav", *links, aria_label="sections"),
    )
    bodies = [element("section", element("h2", s.title), s.html, id=s.name, tabindex=-1) for s in sections]
    data = {"version": __version__, "run": run, "sections": {s.name: s.data for s in sections if s.data is not None}}
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{title} · deplodock"),
            element("style", Html("".join(styles))),
        ]
    )
    footer = element(
        "footer",
        f"deplodock {__version__}. Keys: 1-9 sections, j k passes, Esc releases a pinned line.",
    )
    body = element(
        "body",
        patterns(),
        header,
        element("main", *bodies),
        footer,
        element("script", as_json(data), type="application/json", id="data"),
        element("script", Html(script)),
    )
    return f"<!doctype html>\n{element('html', element('head', head), body, lang='en')}\n"
