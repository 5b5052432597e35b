"""Extents of dimensions: numbers, or symbols, which are named sizes with a range, known at run time.

A tensor or memref type with symbolic extents has `?` in its shape. Its encoding (for a memref: its layout) lists all
extents. Loop extents and the bounds of domains may be symbols too. Equal symbols are equal sizes. Index expressions
contain no symbols directly; `payload.extent` yields the value of a symbol.

```
#s0 = #payload.symbol<s0[1:1001]>
%x : tensor<?x2048xf32, #payload.extents<#s0, 2048>>
loop.nest (%i, %j) in [#s0, 2048] -> ...
```

`extents_of` returns numbers and symbols. `shape_of` is for code that supports static sizes only, and raises an error
that names the symbol.

A *count* is the number of tiles that cover an extent: a number, or a symbol divided by the tile size and rounded up. A
grid is a list of counts, `[#s0 / 64, 32]`, which become numbers at the launch.
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
    """Error for an extent that is unknown, or that is symbolic where only numbers are supported.

    In a verifier it counts as a verification error of the operation.
    """


@irdl_attr_definition
class SymbolAttr(FormattedAttr):
    """Size known at run time: `#payload.symbol<s0[1:1001]>` with 1 <= s0 < 1001, which every call checks.

    A derived size that is no extent may be negative.

    symbol: name of the size.
    lower: smallest value.
    upper: largest value + 1.

    Constraints: the name has lower case letters, digits and underscores; the range is not empty.
    """

    name = "payload.symbol"
    FORMAT = (NAME, "[", INT, ":", INT, "]")
    symbol: StringAttr
    lower: IntAttr
    upper: IntAttr

    @staticmethod
    def get(symbol: str, minimum: int, maximum: int) -> SymbolAttr:
        """Returns a size.

        Args:
            symbol: its name.
            minimum: smallest value.
            maximum: largest value, inclusive.
        """
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
            raise VerifyException(
                f"expected a size name of lower case letters, digits and underscores, but got {self.hint!r}"
            )
        if not self.minimum <= self.maximum:
            raise VerifyException(
                f"expected a nonempty range of the size {self.hint}, but got [{self.lower.data}:{self.upper.data}]"
            )

    def __str__(self) -> str:
        return self.hint

    def _unknown(self, other: object = None) -> NoReturn:
        """Raises ExtentError with the name of the symbol: arithmetic and comparisons need numbers."""
        raise ExtentError(f"the size {self} is known only at run time, which is not supported here")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = _unknown
    __neg__ = __index__ = __int__ = __float__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown


Extent: TypeAlias = int | SymbolAttr
"""A number, or the symbol of a size known at run time."""

EXTENT = Parameter(lambda parser: parse_extent(parser), lambda printer, e: print_extent(printer, e))


@irdl_attr_definition
class ExtentsAttr(MemRefLayoutAttr, FormattedAttr):
    """Extents of a tensor or memref type of symbolic sizes. The type has `?` in its shape, and this as its encoding.

    ```
    #s0 = #payload.symbol<s0[1:1001]>
    #payload.extents<#s0, 2048>
    ```

    As the layout of a memref it means contiguous row-major order.

    extents: all extents in order, numbers and symbols.

    Constraints: at least one extent is a symbol; no extent may be negative.
    """

    name = "payload.extents"
    FORMAT = (listed(EXTENT),)
    extents: ArrayAttr[IntAttr | SymbolAttr]

    @staticmethod
    def get(extents: Iterable[Extent]) -> ExtentsAttr:
        return ExtentsAttr(extents_attr(extents))

    def verify(self) -> None:
        if all(isinstance(e, IntAttr) for e in self.extents):
            raise VerifyException(
                f"expected a symbol among the extents, but got {extents_text(extents_in(self.extents))}; write static"
                " extents in the shape"
            )
        for e in extents_in(self.extents):
            if least(e) < 0:
                raise VerifyException(f"expected extents that are not negative, but got {e} with minimum {least(e)}")

    def get_affine_map(self) -> AffineMap:
        raise NotImplementedError("the strides of symbolic extents are no affine map")


S = TypeVar("S", bound="SymbolAttr | CountAttr")


def extents_attr(extents: Iterable[int | S]) -> ArrayAttr[IntAttr | S]:
    return ArrayAttr([IntAttr(e) if isinstance(e, int) else e for e in extents])


def extents_in(attr: ArrayAttr[IntAttr | S]) -> tuple[int | S, ...]:
    return tuple(e if isinstance(e, SymbolAttr | CountAttr) else e.data for e in attr)


def parse_extent(parser: AttrParser) -> IntAttr | SymbolAttr:
    """Parses `64` or `#s0`."""
    symbol = parser.parse_optional_attribute() if (number := parser.parse_optional_integer()) is None else None
    if number is not None:
        return IntAttr(number)
    if not isinstance(symbol, SymbolAttr):
        parser.raise_error(f"expected a number or a #payload.symbol, but got {symbol or 'another token'}")
    return symbol


def print_extent(printer: Printer, e: IntAttr | SymbolAttr | CountAttr) -> None:
    """Prints `64`, `#s0` or `#s0 / 16`."""
    if isinstance(e, IntAttr):
        printer.print_string(str(e.data))
    else:
        printer.print_attribute(e.symbol if isinstance(e, CountAttr) else e)
        printer.print_string(f" / {e.tile.data}" if isinstance(e, CountAttr) and e.tile.data != 1 else "")


def parse_bounds(parser: AttrParser) -> tuple[ArrayAttr[IntAttr], ArrayAttr[IntAttr | SymbolAttr]]:
    """Parses half-open intervals, `[0:100, 2:#s0]`, into their lower and their upper bounds."""

    def bound() -> tuple[IntAttr, IntAttr | SymbolAttr]:
        lower = IntAttr(parser.parse_integer())
        parser.parse_punctuation(":")
        return lower, parse_extent(parser)

    bounds = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, bound)
    return ArrayAttr([lower for lower, _ in bounds]), ArrayAttr([upper for _, upper in bounds])


def print_bounds(printer: Printer, lower: ArrayAttr[IntAttr], upper: ArrayAttr[IntAttr | SymbolAttr]) -> None:
    """Prints intervals in the syntax of `parse_bounds`.

    Args:
        printer: the printer.
        lower: lower bounds.
        upper: upper bounds.
    """

    def bound(pair: tuple[IntAttr, IntAttr | SymbolAttr]) -> None:
        printer.print_string(f"{pair[0].data}:")
        print_extent(printer, pair[1])

    with printer.in_square_brackets():
        printer.print_list(list(zip(lower, upper, strict=True)), bound)


COUNT = Parameter(lambda parser: parse_count(parser), EXTENT.write)


def bounds_in(lower: ArrayAttr[IntAttr], upper: ArrayAttr[IntAttr | SymbolAttr]) -> tuple[tuple[int, Extent], ...]:
    return tuple((lo.data, hi) for lo, hi in zip(lower, extents_in(upper), strict=True))


def extents_of(t: Attribute) -> tuple[Extent, ...]:
    """Returns the extents of a tensor, vector or memref type, symbols included, or `()` for a scalar.

    Raises:
        ExtentError: a dimension is `?` but the type names no symbol for it.
    """
    if not isinstance(t, TensorType | VectorType | MemRefType):
        return ()
    shape = tuple(int(n) for n in t.get_shape())
    if DYNAMIC_INDEX not in shape:
        return shape
    extents = named_extents(t)  # pyright: ignore[reportUnknownArgumentType]
    if extents is None:
        raise ExtentError(
            f"expected a symbol for each ? of a type, but got {t}; list all extents in #payload.extents<...>"
        )
    if shape != tuple(_shape(extents)):
        raise ExtentError(f"expected extents that match the shape of {t}, but got {extents_text(extents)}")
    return extents


def named_extents(t: Attribute) -> tuple[Extent, ...] | None:
    """Returns the extents in the encoding (or memref layout) of a type with symbols, or None if it has no symbols."""
    names = t.encoding if isinstance(t, TensorType) else t.layout if isinstance(t, MemRefType) else None
    return extents_in(names.extents) if isinstance(names, ExtentsAttr) else None


def static(extents: Iterable[Extent]) -> tuple[int, ...]:
    """Returns the extents as numbers. Raises ExtentError with the name of a symbol."""
    return tuple(map(int, extents))


def fixed(e: Extent) -> int:
    """Returns an extent as a number. Raises ExtentError with the name of a symbol."""
    return static((e,))[0]


def least(e: Extent) -> int:
    """Returns the smallest value of an extent."""
    return e if isinstance(e, int) else e.minimum


def most(e: Extent) -> int:
    """Returns the largest value of an extent."""
    return e if isinstance(e, int) else e.maximum


PLANNED = 512
"""Size that the cost model assumes for a symbol, if its range allows it. Chosen by hand."""


def typical(e: Extent) -> int:
    """Returns the number that the cost model uses for an extent. Correctness never depends on it."""
    return e if isinstance(e, int) else min(max(e.minimum, PLANNED), e.maximum)


def extents_text(extents: Iterable[Extent]) -> str:
    """Returns extents as text for messages, such as `[s0, 64]`."""
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
    """Number of tiles that cover a symbolic extent: the symbol divided by the extent of a tile, rounded up.

    ```
    #s0 = #payload.symbol<s0[1:1001]>
    #payload.count<#s0 / 64>
    ```

    symbol: the extent.
    tile: extent of a tile, at least 1.
    """

    name = "payload.count"
    symbol: SymbolAttr
    tile: IntAttr

    def verify(self) -> None:
        if self.tile.data < 1:
            raise VerifyException(f"expected tiles of at least one element, but got {self.tile.data}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            count = parse_count(parser)
        if not isinstance(count, CountAttr):
            parser.raise_error(f"expected a #payload.symbol divided by a number, but got {count}")
        return [count.symbol, count.tile]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            print_extent(printer, self)

    def __str__(self) -> str:
        return f"ceil({self.symbol} / {self.tile.data})" if self.tile.data != 1 else str(self.symbol)


Count: TypeAlias = int | CountAttr
"""Number of tiles: a number, or the rounded-up quotient of a symbol and a tile size."""


def count_of(extent: Extent, tile: int) -> Count:
    """Returns the number of tiles of `tile` elements that cover `extent`; a number if all values of a symbol agree."""
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
