"""Locations of MLIR as locations of xDSL.

The bindings of jaxlib can make locations but not read them, so the text of a location is parsed. JAX writes
`"jit(f)/mul"(callsite("f"("model.py":7:8 to :41) at "<module>"("model.py":12:4 to :54)))`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from xdsl.dialects.builtin import CallSiteLoc, LocationAttr, UnknownLoc

from ...dialects.support.locations import file_line_of, file_location, named_location

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(callsite|fused|unknown|at|to)\b|(\d+)|(<(?:[^<>"]|"[^"]*")*>)|(.))')

PACKAGE = str(Path(__file__).parent)
"""Folder of this package, whose calls are no lines of the user."""

MOST_DEPTH = 100
"""Depth of nested locations that are read; deeper ones are left out."""


@lru_cache(maxsize=4096)
def location_of_text(text: str, file: str = "") -> LocationAttr:
    """Returns the location that MLIR prints as `text`; an unknown one where it is of another form.

    `file`: name of the file of a module without other locations, which MLIR calls `-`.
    """
    try:
        return _Parser(text, file).parsed()
    except (IndexError, RecursionError):
        return UnknownLoc()


class _Parser:
    """Parser of one location. `tokens`: (kind, text) of each token; kind is a string, a word, a number or a sign."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        inner = text[4:-1] if text.startswith("loc(") and text.endswith(")") else text
        self.tokens = [(m.lastindex, m.group(m.lastindex)) for m in _TOKEN.finditer(inner) if m.lastindex]
        self.at, self.depth = 0, 0

    def parsed(self) -> LocationAttr:
        """Parses the location at the current token."""
        self.depth += 1
        kind, text = self._next()
        result: LocationAttr = UnknownLoc()
        if self.depth > MOST_DEPTH:
            raise RecursionError
        if kind == 1:
            result = self._named(text)
        elif text == "callsite":
            self._next()
            callee = self.parsed()
            self._next()
            caller = self.parsed()
            self._next()
            result = callee if file_line_of(caller) is None else CallSiteLoc(callee, caller)
            result = caller if file_line_of(callee) is None else result
        elif text == "fused":
            result = self._fused()
        self.depth -= 1
        return result

    def _named(self, name: str) -> LocationAttr:
        sign = self._peek()
        if sign == ":":
            numbers = self._position()
            file = self.file if name == "-" else name
            is_known = file and not file.startswith(PACKAGE)
            return file_location(file, *numbers) if is_known else UnknownLoc()
        if sign != "(":
            return named_location(name, UnknownLoc())
        self._next()
        inner = self.parsed()
        self._next()
        return named_location(name, inner)

    def _position(self) -> tuple[int, int]:
        """Parses `:7:8 to :41` and returns line and column."""
        numbers = list[int]()
        while self._peek() == ":" and len(numbers) < 2:
            self._next()
            numbers.append(int(self._next()[1]))
        if self._peek() == "to":
            self._next()
            while self._peek() == ":" or self._peek().isdigit():
                self._next()
        return numbers[0], numbers[1] if len(numbers) > 1 else 0

    def _fused(self) -> LocationAttr:
        """Parses `<metadata>[a, b]`, and returns the first location with a line."""
        if self._peek().startswith("<"):
            self._next()
        self._next()
        parts = [self.parsed()]
        while self._next()[1] == ",":
            parts.append(self.parsed())
        return next((p for p in parts if file_line_of(p) is not None), parts[0])

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _next(self) -> tuple[int, str]:
        kind, text = self.tokens[self.at]
        self.at += 1
        return kind or 0, text
