"""Parsing of IR text.

`parse_module` records the file, line and column of each op, and reports errors as one line with a location.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from xdsl.context import Context
from xdsl.dialects.builtin import LocationAttr, ModuleOp, UnknownLoc
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, UnregisteredConstructException, VerifyException
from xdsl.utils.lexer import Input, Span

from ...errors import CompileError
from .locations import file_location, read_location

_UNDEFINED = re.compile(r"values used but not defined: \[(%[^,\]]+)")


_LOCATION = re.compile(r"^(#loc\d*) = (?=loc\()", re.MULTILINE)

_CONSTRUCTION = (VerifyException, ValueError, OverflowError, NotImplementedError)
"""Exceptions that the constructors and verifiers of attributes and ops raise."""


class MalformedIRError(CompileError):
    """Error for text that is not IR, or that uses unknown dialects or operations."""


class LocatingParser(Parser):
    """Parser that records for every op its position in the text, in addition to its `loc(...)`."""

    def __init__(self, ctx: Context, text: str, name: str, line_offset: int = 0) -> None:
        super().__init__(ctx, text, name)
        self._file = name
        self._line_offset = line_offset
        self._line_starts = [0, *(i + 1 for i, char in enumerate(text) if char == "\n")]
        self._explicit_location_end = -1
        self._operation_start = self._current_token.span
        self._locations = self._read_locations(text)

    def _read_locations(self, text: str) -> dict[str, Attribute]:
        """Parses the definitions of location aliases, which follow the ops that use them."""
        locations: dict[str, Attribute] = {}
        for definition in _LOCATION.finditer(text):
            self._resume_from(definition.end())
            if (location := super().parse_optional_location()) is not None:
                locations[definition[1]] = self.attribute_aliases[definition[1]] = location
        if locations:
            self._resume_from(0)
        return locations

    def _parse_alias_def(self) -> None:
        if self._current_token.text not in self._locations:
            return super()._parse_alias_def()
        self._consume_token()
        self.parse_punctuation("=")
        self.parse_optional_location()

    def parse_optional_location(self) -> LocationAttr | None:
        location = super().parse_optional_location()
        if location is not None:
            self._explicit_location_end = self._current_token.span.start
        return location

    def _get_op_by_name(self, name: str) -> type[Operation]:
        try:
            return super()._get_op_by_name(name)
        except ParseError:
            # xDSL reports the position after the name.
            raise ParseError(self._operation_start, f"unknown operation {name!r}") from None

    def parse_operation(self) -> Operation:
        start = self._operation_start = self._current_token.span
        try:
            op = super().parse_operation()
        except _CONSTRUCTION as error:
            # These errors have no position.
            raise ParseError(start, one_line(str(error))) from error
        line = bisect_right(self._line_starts, start.start)
        column = start.start - self._line_starts[line - 1] + 1
        place = file_location(self._file, line + self._line_offset, column)
        if self._current_token.span.start != self._explicit_location_end:
            op.location = place
        elif not isinstance(op.location, UnknownLoc):
            op.location = read_location(op.location, place)
        return op


def parse_module(ctx: Context, text: str, name: str, *, line_offset: int = 0, implicit: bool = True) -> ModuleOp:
    """Returns the module of an IR text. Nothing is executed.

    Args:
        ctx: context with the dialects.
        text: contents of the file.
        name: name of the file, for locations.
        line_offset: number to add to line numbers, if the text was cut out of a larger file.
        implicit: whether the surrounding `builtin.module` may be omitted.

    Raises:
        MalformedIRError: the text is not legal IR.
    """
    try:
        return LocatingParser(ctx, text, name, line_offset).parse_module(implicit)
    except ParseError as error:
        span, reason = error.span, error.msg
        # xDSL reports undefined values at the end of the region, not at their use.
        if (undefined := _UNDEFINED.match(reason)) is not None:
            start, end, reason = _undefined_use(text, undefined[1], line_offset)
            span = Span(start, end, Input(text, name)) if end else span
        elif reason.startswith("Expected '"):
            start = _before_line_break(text, span.start)
            span = Span(start, start + 1, Input(text, name))
        place = span.get_location()
        # xDSL 0.74 prints the placeholder {first_char} as it is.
        raise MalformedIRError(
            one_line(reason.replace("{first_char}", "%, @, # or !")) or "syntax error",
            location=f"{name}:{place.line + line_offset}:{place.col}",
        ) from None
    except (UnregisteredConstructException, *_CONSTRUCTION) as error:
        raise MalformedIRError(one_line(str(error)), location=f"{name}:{line_offset + 1}") from None
    except RecursionError:
        raise MalformedIRError("regions are nested too deeply", location=f"{name}:{line_offset + 1}") from None


def _before_line_break(text: str, start: int) -> int:
    """Returns the end of the previous line with text, if the unexpected token at `start` is the first of its line.

    The text that the parser expects is then missing at that end.
    """
    before = _without_comments(text)[:start]
    stripped = before.rstrip()
    return len(stripped) if stripped and "\n" in before[len(stripped) :] else start


def _undefined_use(text: str, value: str, line_offset: int) -> tuple[int, int, str]:
    """Finds the first use of a value outside of the regions that define it.

    Args:
        text: the text of the module.
        value: name of the value, with `%`.
        line_offset: number to add to line numbers.

    Returns:
        start and end of the use in the text, and a sentence about the mistake. Both positions are 0 without a use.
    """
    plain = _without_comments(text)
    regions: list[int] = []
    definitions: list[tuple[int, list[int]]] = []
    token = re.compile(rf"[{{}}]|{re.escape(value)}(?![\w$.-])")
    for match in token.finditer(plain):
        if match[0] == "{":
            regions.append(match.start())
        elif match[0] == "}":
            regions = regions[:-1]
        elif _is_definition(plain, match.end()):
            definitions.append((match.start(), regions.copy()))
        elif not any(outer == regions[: len(outer)] for _, outer in definitions):
            reason = f"the value {value} is used, but not defined"
            if definitions:
                start, (*_, region) = definitions[-1]
                header = plain[plain.rfind("\n", 0, region) + 1 : region]
                name = next(iter(re.findall(r"(?<!%)\b[a-z]+\.\w+", header)), "an operation")
                line = plain.count("\n", 0, start) + 1 + line_offset
                reason = (
                    f"{value} is defined in line {line}, inside of the region of {name}, and cannot be used outside of "
                    "it; the last operation of a region yields values to the outside"
                )
            return match.start(), match.end(), reason
    return 0, 0, f"the value {value} is used, but not defined"


def _is_definition(text: str, end: int) -> bool:
    """Returns true if the name that ends at `end` is a result of an operation: `%a = ...` or `%a, %b = ...`."""
    return re.match(r"(:\d+)?(\s*,\s*%[\w$.-]+(:\d+)?)*\s*=(?!=)", text[end:]) is not None


def _without_comments(text: str) -> str:
    """Returns a text of the same length in which comments and the contents of strings are blank."""
    return re.sub(r'//[^\n]*|"[^"\n]*"', lambda part: " " * len(part[0]), text)


def one_line(text: str) -> str:
    """Returns the first line of a message, joined with the second if the first ends in a colon, as in xDSL's constraint
    errors."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
