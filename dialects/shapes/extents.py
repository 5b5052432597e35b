"""Extents: how large a dimension is. A number, or a symbol: a size with a name and a range, known at run time.

A tensor or memref type with symbolic dimensions has `?` there and says which symbols they are in its encoding (memref:
its layout); so does a loop in its extents and a domain in its bounds. Equal symbols are equal sizes. A symbol never
occurs in an index expression; its value is `payload.extent`.

```
#s0 = #payload.symbol<s0[1:1001]>
%x : tensor<?x2048xf32, #payload.extents<#s0, 2048>>
loop.nest (%i, %j) in [#s0, 2048] -> ...
```
`shape_of` is for places that know static sizes only: it refuses a symbol by name. Places that can take symbols ask
`extents_of`.

Counts say how many tiles cover an extent: a number, or a symbol divided by the tile and rounded up. A grid is a list of
them, `[#s0 / 64, 32]`: blocks along every dimension, known when the kernel is launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    IntAttr,
    MemRefLayoutAttr,
    MemRefType,
    NoneAttr,
    StringAttr,
    TensorType,
    VectorType,
)
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.ir.affine import AffineMap
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ...errors import UnsupportedError
from ..support.attribute_format import INT, NAME, FormattedAttr, Parameter, listed


class ExtentError(UnsupportedError, VerifyException):
    """An extent that is unknown, or known only at run time where that is not supported. Inside a verifier it is an
    error of the verified operation."""


@irdl_attr_definition
class SymbolAttr(FormattedAttr):
    """`#payload.symbol<s0[1:1001]>`: the size `s0`, of which 1 <= s0 < 1001 is promised and checked at every call.

    A number that is computed from sizes and is the extent of nothing may be negative."""

    name = "payload.symbol"
    FORMAT = (NAME, "[", INT, ":", INT, "]")
    symbol: StringAttr
    lower: IntAttr
    upper: IntAttr

    @staticmethod
    def get(symbol: str, minimum: int, maximum: int) -> SymbolAttr:
        """The size `symbol` between `minimum` and `maximum`, both included."""
        return SymbolAttr(StringAttr(symbol), IntAttr(minimum), IntAttr(maximum + 1))

    @property
    def hint(self) -> str:
        return self.symbol.data

    @property
    def minimum(self) -> int:
        return self.lower.data

    @property
    def maximum(self) -> int:
        return self.upper.data - 1

    def verify(self) -> None:
        if not self.hint.isidentifier() or not self.hint.islower():
            raise VerifyException(f"{self.hint!r} is no name for a size: lower case letters, digits, underscores")
        if not self.minimum <= self.maximum:
            raise VerifyException(f"the size {self.hint} lies in no range: [{self.lower.data}:{self.upper.data}]")

    def __str__(self) -> str:
        return self.hint

    def _unknown(self, other: object = None) -> NoReturn:
        """Code that computes with numbers refuses a symbol by name."""
        raise ExtentError(f"the size {self} is known only at run time, which is not supported here")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = _unknown
    __neg__ = __index__ = __int__ = __float__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown


Extent: TypeAlias = int | SymbolAttr
"""A number, or the symbol that stands for it."""

EXTENT = Parameter(lambda parser: parse_extent(parser), lambda printer, e: print_extent(printer, e))


@irdl_attr_definition
class ExtentsAttr(MemRefLayoutAttr, FormattedAttr):
    """`#payload.extents<#s0, 2048>`: the extents of a type that has symbolic ones, all of them in order.

    As a memref's layout it means: elements in row-major order, without gaps."""

    name = "payload.extents"
    FORMAT = (listed(EXTENT),)
    extents: ArrayAttr[IntAttr | SymbolAttr]

    @staticmethod
    def get(extents: Iterable[Extent]) -> ExtentsAttr:
        return ExtentsAttr(extents_attr(extents))

    def verify(self) -> None:
        if all(isinstance(e, IntAttr) for e in self.extents):
            raise VerifyException("extents without a symbol belong into the shape alone")
        for e in extents_in(self.extents):
            if least(e) < 0:
                raise VerifyException(f"the number {e}, which may be negative, is no extent")

    def get_affine_map(self) -> AffineMap:
        raise NotImplementedError("the strides of symbolic extents are no affine map")


S = TypeVar("S", bound="SymbolAttr | CountAttr")


def extents_attr(extents: Iterable[int | S]) -> ArrayAttr[IntAttr | S]:
    return ArrayAttr([IntAttr(e) if isinstance(e, int) else e for e in extents])


def extents_in(attr: ArrayAttr[IntAttr | S]) -> tuple[int | S, ...]:
    return tuple(e if isinstance(e, SymbolAttr | CountAttr) else e.data for e in attr)


def parse_extent(parser: AttrParser) -> IntAttr | SymbolAttr:
    """`64` or `#s0`"""
    symbol = parser.parse_optional_attribute() if (number := parser.parse_optional_integer()) is None else None
    if number is not None:
        return IntAttr(number)
    if not isinstance(symbol, SymbolAttr):
        parser.raise_error("expected a number or a #payload.symbol")
    return symbol


def print_extent(printer: Printer, e: IntAttr | SymbolAttr | CountAttr) -> None:
    """`64`, `#s0` or `#s0 / 16`"""
    if isinstance(e, IntAttr):
        printer.print_string(str(e.data))
    else:
        printer.print_attribute(e.symbol if isinstance(e, CountAttr) else e)
        printer.print_string(f" / {e.tile.data}" if isinstance(e, CountAttr) and e.tile.data != 1 else "")


def parse_bounds(parser: AttrParser) -> tuple[ArrayAttr[IntAttr], ArrayAttr[IntAttr | SymbolAttr]]:
    """`[0:100, 2:#s0]`: half-open intervals, as their lower and their upper ends."""

    def bound() -> tuple[IntAttr, IntAttr | SymbolAttr]:
        lower = IntAttr(parser.parse_integer())
        parser.parse_punctuation(":")
        return lower, parse_extent(parser)

    bounds = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, bound)
    return ArrayAttr([lower for lower, _ in bounds]), ArrayAttr([upper for _, upper in bounds])


def print_bounds(printer: Printer, lower: ArrayAttr[IntAttr], upper: ArrayAttr[IntAttr | SymbolAttr]) -> None:
    """What `parse_bounds` reads."""

    def bound(pair: tuple[IntAttr, IntAttr | SymbolAttr]) -> None:
        printer.print_string(f"{pair[0].data}:")
        print_extent(printer, pair[1])

    with printer.in_square_brackets():
        printer.print_list(list(zip(lower, upper, strict=True)), bound)


COUNT = Parameter(lambda parser: parse_count(parser), EXTENT.write)


def bounds_in(lower: ArrayAttr[IntAttr], upper: ArrayAttr[IntAttr | SymbolAttr]) -> tuple[tuple[int, Extent], ...]:
    return tuple((lo.data, hi) for lo, hi in zip(lower, extents_in(upper), strict=True))


def extents_of(t: Attribute) -> tuple[Extent, ...]:
    """The extents of a tensor, vector or memref type, symbols included; `()` for a scalar.

    Raises ExtentError for a dimension of unknown size: one that is `?` and no symbol."""
    if not isinstance(t, TensorType | VectorType | MemRefType):
        return ()
    shape = tuple(int(n) for n in t.get_shape())
    if DYNAMIC_INDEX not in shape:
        return shape
    extents = named_extents(t)  # pyright: ignore[reportUnknownArgumentType]
    if extents is None:
        raise ExtentError(f"a dimension of {t} has no size: name it in #payload.extents<...>")
    if shape != tuple(_shape(extents)):
        raise ExtentError(f"the extents of {t} are not those of its shape")
    return extents


def named_extents(t: Attribute) -> tuple[Extent, ...] | None:
    """Returns the extents that a type with symbolic ones lists, or None."""
    names = t.encoding if isinstance(t, TensorType) else t.layout if isinstance(t, MemRefType) else None
    return extents_in(names.extents) if isinstance(names, ExtentsAttr) else None


def static(extents: Iterable[Extent]) -> tuple[int, ...]:
    """The extents as numbers, for a place that can't take symbols. Raises ExtentError that names a symbol."""
    return tuple(map(int, extents))


def fixed(e: Extent) -> int:
    """An extent as a number, for a place that can't take a symbol. Raises ExtentError that names it."""
    return static((e,))[0]


def least(e: Extent) -> int:
    return e if isinstance(e, int) else e.minimum


def most(e: Extent) -> int:
    return e if isinstance(e, int) else e.maximum


PLANNED = 512
"""The size that plans assume of a symbol, if it can have it."""


def typical(e: Extent) -> int:
    """The number that plans and estimates take for an extent; nothing may depend on it being right."""
    return e if isinstance(e, int) else min(max(e.minimum, PLANNED), e.maximum)


def extents_text(extents: Iterable[Extent]) -> str:
    """`[s0, 64]`, for messages."""
    return f"[{', '.join(map(str, extents))}]"


def tensor_of(element: Attribute, extents: Sequence[Extent]) -> TensorType[Any]:
    return TensorType(element, _shape(extents), _names(extents))


def memref_of(element: Attribute, extents: Sequence[Extent], space: Attribute | None = None) -> MemRefType[Any]:
    return MemRefType(element, _shape(extents), _names(extents), space or NoneAttr())


def _shape(extents: Sequence[Extent]) -> list[int]:
    return [e if isinstance(e, int) else DYNAMIC_INDEX for e in extents]


def _names(extents: Sequence[Extent]) -> ExtentsAttr | NoneAttr:
    return NoneAttr() if all(isinstance(e, int) for e in extents) else ExtentsAttr.get(extents)


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
            print_extent(printer, self)

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
    return count if isinstance(count, int) else -(-count.symbol.maximum // count.tile.data)


def fewest_tiles(count: Count) -> int:
    return count if isinstance(count, int) else -(-count.symbol.minimum // count.tile.data)


def parse_count(parser: AttrParser) -> IntAttr | CountAttr:
    extent = parse_extent(parser)
    if isinstance(extent, IntAttr):
        return extent
    return CountAttr(extent, IntAttr(parser.parse_integer() if parser.parse_optional_punctuation("/") else 1))
