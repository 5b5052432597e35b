"""Declarative formats of attributes and types, as operations have them: words, and how parameters are read and written.

`FORMAT = (INT, " of ", TYPE)` is the text `<4 of f32>` of an attribute with two parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.parser import AttrParser
from xdsl.printer import Printer


@dataclass(frozen=True)
class Parameter:
    """How `count` neighbouring parameters of an attribute are read and written; several as a sequence."""

    read: Callable[[AttrParser], Attribute | tuple[Attribute, ...]]
    write: Callable[[Printer, Any], object]
    count: int = 1


INT = Parameter(lambda parser: IntAttr(parser.parse_integer()), lambda printer, n: printer.print_string(str(n.data)))
NAME = Parameter(
    lambda parser: StringAttr(parser.parse_identifier()), lambda printer, name: printer.print_string(name.data)
)
TYPE = Parameter(lambda parser: parser.parse_type(), lambda printer, t: printer.print_attribute(t))


def attribute(kind: type[Attribute], what: str) -> Parameter:
    """An attribute of the class `kind`, which messages call `what`."""

    def read(parser: AttrParser) -> Attribute:
        found = parser.parse_attribute()
        if not isinstance(found, kind):
            parser.raise_error(f"expected {what}")
        return found

    return Parameter(read, lambda printer, found: printer.print_attribute(found))


def listed(element: Parameter, delimiter: AttrParser.Delimiter = AttrParser.Delimiter.NONE) -> Parameter:
    """A list of what `element` reads and writes."""

    def read(parser: AttrParser) -> Attribute:
        found: list[Any] = parser.parse_comma_separated_list(delimiter, lambda: element.read(parser))
        return ArrayAttr(found)

    def write(printer: Printer, values: ArrayAttr[Attribute]) -> None:
        with printer.delimited(*delimiter.value or ("", "")):
            printer.print_list(values, lambda value: element.write(printer, value))

    return Parameter(read, write)


class FormattedAttr(ParametrizedAttribute):
    """An attribute or a type whose text, between angle brackets, is its `FORMAT`."""

    FORMAT: ClassVar[tuple[str | Parameter, ...]]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        found: list[Attribute] = []
        with parser.in_angle_brackets():
            for part in cls.FORMAT:
                if isinstance(part, Parameter):
                    read = part.read(parser)
                    found += read if isinstance(read, tuple) else (read,)
                    continue
                for word in part.split():
                    (parser.parse_keyword if word.isidentifier() else parser.parse_punctuation)(word)  # pyright: ignore
        return found

    def print_parameters(self, printer: Printer) -> None:
        left = list(self.parameters)
        with printer.in_angle_brackets():
            for part in self.FORMAT:
                if isinstance(part, str):
                    printer.print_string(part)
                else:
                    part.write(printer, left[0] if part.count == 1 else left[: part.count])
                    del left[: part.count]
