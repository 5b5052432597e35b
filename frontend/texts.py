"""Texts of programs, and the HTML that notebooks show for objects of the API."""

from __future__ import annotations

from typing import Any

from ..plugins import plugins


def displayed(kind: str, value: Any) -> str | None:
    """Returns an object as HTML for notebooks, or None if no installed package declares how to show it.

    Args:
        kind: name of an entry point of the group `deplodock.displays`: `program`, `text` or `kernels`.
        value: the object.
    """
    load = plugins("deplodock.displays", (), "display").get(kind)
    return None if load is None else load()(value)


class Text(str):
    """Text of a program. Notebooks show it highlighted and folded, and IPython as it is printed.

    Attributes:
        title: name of the text, such as the level.
        language: `mlir`, `cpp`, or empty.
    """

    title: str
    language: str

    def __new__(cls, text: str, title: str = "", language: str = "") -> Text:
        """Returns the text.

        Args:
            text: the text.
            title: name of the text.
            language: `mlir`, `cpp`, or empty.
        """
        value = super().__new__(cls, text)
        value.title, value.language = title, language
        return value

    def __getnewargs__(self) -> tuple[str, str, str]:
        return str(self), self.title, self.language

    def _repr_html_(self) -> str | None:
        return displayed("text", self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
