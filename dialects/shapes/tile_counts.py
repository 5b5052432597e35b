"""Counts: how many tiles cover an extent. A number, or a symbol divided by the tile and rounded up.

A grid is a list of them, `[#s0 / 64, 32]`: blocks along every dimension, known when the kernel is launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from .extents import Extent, SymbolAttr, parse_extent


@irdl_attr_definition
class CountAttr(ParametrizedAttribute):
    """`#payload.count<#s0 / 64>`: how many tiles of 64 cover s0 elements, the last one perhaps in part."""

    name = "payload.count"
    symbol: SymbolAttr
    tile: IntAttr

    def verify(self) -> None:
        if self.tile.data < 1:
            raise VerifyException(f"tiles of {self.tile.data} elements cover nothing")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            found = parse_count(parser)
        if not isinstance(found, CountAttr):
            parser.raise_error("expected a #payload.symbol divided by a number")
        return [found.symbol, found.tile]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            print_counts(printer, [self])

    def __str__(self) -> str:
        return f"ceil({self.symbol} / {self.tile.data})" if self.tile.data != 1 else str(self.symbol)


Count: TypeAlias = int | CountAttr
"""How many tiles there are: a number, or the quotient that says so."""


def count_of(extent: Extent, tile: int) -> Count:
    """How many tiles of `tile` elements cover `extent`; a number where every value of a symbol gives the same."""
    if isinstance(extent, int):
        return -(-extent // tile)
    fewest, largest = (-(-n // tile) for n in (extent.minimum, extent.maximum))
    return largest if fewest == largest else CountAttr(extent, IntAttr(tile))


def most_tiles(count: Count) -> int:
    """The largest value of a count."""
    return count if isinstance(count, int) else -(-count.symbol.maximum // count.tile.data)


def fewest_tiles(count: Count) -> int:
    """The smallest value of a count."""
    return count if isinstance(count, int) else -(-count.symbol.minimum // count.tile.data)


def counts_attr(counts: Iterable[Count]) -> ArrayAttr[IntAttr | CountAttr]:
    """Counts as an attribute."""
    return ArrayAttr([IntAttr(c) if isinstance(c, int) else c for c in counts])


def counts_in(attr: ArrayAttr[IntAttr | CountAttr]) -> tuple[Count, ...]:
    """The counts that an attribute holds."""
    return tuple(c.data if isinstance(c, IntAttr) else c for c in attr)


def parse_count(parser: AttrParser) -> Count:
    """`4`, `#s0` or `#s0 / 64`"""
    extent = parse_extent(parser)
    if isinstance(extent, IntAttr):
        return extent.data
    return CountAttr(extent, IntAttr(parser.parse_integer() if parser.parse_optional_punctuation("/") else 1))


def print_counts(printer: Printer, counts: Iterable[Count]) -> None:
    """`#s0 / 64, 4`"""

    def one(count: Count) -> None:
        if isinstance(count, int):
            printer.print_string(str(count))
        else:
            printer.print_attribute(count.symbol)
            if count.tile.data != 1:
                printer.print_string(f" / {count.tile.data}")

    printer.print_list(counts, one)
