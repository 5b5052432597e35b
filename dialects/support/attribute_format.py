"""Declarative text formats of attributes and types.

`FORMAT = (INT, " of ", TYPE)` is the format of an attribute with two parameters and the text `<4 of f32>`.
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
    """Parser and printer of `count` consecutive parameters of an attribute.

    read: parses them; returns a tuple if there are several.
    write: prints them; receives a list if there are several.
    """

    read: Callable[[AttrParser], Attribute | tuple[Attribute, ...]]
    write: Callable[[Printer, Any], object]
    count: int = 1


INT = Parameter(lambda parser: IntAttr(parser.parse_integer()), lambda printer, n: printer.print_string(str(n.data)))
NAME = Parameter(
    lambda parser: StringAttr(parser.parse_identifier()), lambda printer, name: printer.print_string(name.data)
)
TYPE = Parameter(lambda parser: parser.parse_type(), lambda printer, t: printer.print_attribute(t))


def attribute(kind: type[Attribute], description: str) -> Parameter:
    """Returns the parameter for an attribute of class `kind`; error messages use `description`."""

    def read(parser: AttrParser) -> Attribute:
        value = parser.parse_attribute()
        if not isinstance(value, kind):
            parser.raise_error(f"expected {description}")
        return value

    return Parameter(read, lambda printer, value: printer.print_attribute(value))


def listed(element: Parameter, delimiter: AttrParser.Delimiter = AttrParser.Delimiter.NONE) -> Parameter:
    """Returns the parameter for a list whose elements have the format `element`."""

    def read(parser: AttrParser) -> Attribute:
        elements: list[Any] = parser.parse_comma_separated_list(delimiter, lambda: element.read(parser))
        return ArrayAttr(elements)

    def write(printer: Printer, values: ArrayAttr[Attribute]) -> None:
        with printer.delimited(*delimiter.value or ("", "")):
            printer.print_list(values, lambda value: element.write(printer, value))

    return Parameter(read, write)


class FormattedAttr(ParametrizedAttribute):
    """Base class of attributes and types whose text, between angle brackets, is specified by `FORMAT`."""

    FORMAT: ClassVar[tuple[str | Parameter, ...]]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        parameters: list[Attribute] = []
        with parser.in_angle_brackets():
            for part in cls.FORMAT:
                if isinstance(part, Parameter):
                    read = part.read(parser)
                    parameters += read if isinstance(read, tuple) else (read,)
                    continue
                for word in part.split():
                    (parser.parse_keyword if word.isidentifier() else parser.parse_punctuation)(word)  # pyright: ignore
        return parameters

    def print_parameters(self, printer: Printer) -> None:
        remaining = list(self.parameters)
        with printer.in_angle_brackets():
            for part in self.FORMAT:
                if isinstance(part, str):
                    printer.print_string(part)
                else:
                    part.write(printer, remaining[0] if part.count == 1 else remaining[: part.count])
                    del remaining[: part.count]
