"""The sections of the page, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .html import Html
from .program import ReportedProgram


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: identifier, for links: `#passes`.
        title: its name for people.
        html: the body.
        data: data for the page's script, as `DATA.sections[name]`; None for no data.
    """

    name: str
    title: str
    html: Html
    data: Any = None


MODULES = (
    "overview",
    "levels",
    "passes",
    "fusion",
    "candidates",
    "layouts",
    "machine",
    "times",
    "launches",
    "searches",
    "against",
)
"""Modules of this package with a function `section`, in the order of the sections. It returns None if the section does
not apply to a program."""


def sections_of(program: ReportedProgram) -> list[Section]:
    """Returns the sections of the page about a program."""
    functions: list[Callable[[ReportedProgram], Section | None]] = [
        import_module(f".{name}", __package__).section for name in MODULES
    ]
    return [section for function in functions if (section := function(program)) is not None]
