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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

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


class ExtentError(UnsupportedError, VerifyException):
    """An extent that is unknown, or known only at run time where that is not supported. Inside a verifier it is an
    error of the verified operation."""


@irdl_attr_definition
class SymbolAttr(ParametrizedAttribute):
    """`#payload.symbol<s0[1:1001]>`: the size `s0`, of which 1 <= s0 < 1001 is promised and checked at every call."""

    name = "payload.symbol"
    symbol: StringAttr
    lower: IntAttr
    upper: IntAttr

    @staticmethod
    def get(symbol: str, minimum: int, maximum: int) -> SymbolAttr:
        """The size `symbol` between `minimum` and `maximum`, both included."""
        return SymbolAttr(StringAttr(symbol), IntAttr(minimum), IntAttr(maximum + 1))

    @property
    def hint(self) -> str:
        """Its name."""
        return self.symbol.data

    @property
    def minimum(self) -> int:
        """The smallest value it can have."""
        return self.lower.data

    @property
    def maximum(self) -> int:
        """The largest value it can have."""
        return self.upper.data - 1

    def verify(self) -> None:
        if not self.hint.isidentifier() or not self.hint.islower():
            raise VerifyException(f"{self.hint!r} is no name for a size: lower case letters, digits, underscores")
        if not 0 <= self.minimum <= self.maximum:
            raise VerifyException(f"the size {self.hint} lies in no range: [{self.lower.data}:{self.upper.data}]")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            name = parser.parse_identifier()
            with parser.in_square_brackets():
                lower = parser.parse_integer()
                parser.parse_punctuation(":")
                upper = parser.parse_integer()
        return [StringAttr(name), IntAttr(lower), IntAttr(upper)]

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.hint}[{self.lower.data}:{self.upper.data}]>")

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


@irdl_attr_definition
class ExtentsAttr(MemRefLayoutAttr, ParametrizedAttribute):
    """`#payload.extents<#s0, 2048>`: the extents of a type that has symbolic ones, all of them in order.

    As a memref's layout it means: elements in row-major order, without gaps."""

    name = "payload.extents"
    extents: ArrayAttr[IntAttr | SymbolAttr]

    @staticmethod
    def get(extents: Iterable[Extent]) -> ExtentsAttr:
        """The attribute of these extents."""
        return ExtentsAttr(extents_attr(extents))

    def verify(self) -> None:
        if all(isinstance(e, IntAttr) for e in self.extents):
            raise VerifyException("extents without a symbol belong into the shape alone")

    def get_affine_map(self) -> AffineMap:
        raise NotImplementedError("the strides of symbolic extents are no affine map")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            found = parser.parse_comma_separated_list(parser.Delimiter.NONE, lambda: parse_extent(parser))
        return [ArrayAttr(found)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            print_extents(printer, self.extents)


def extents_attr(extents: Iterable[Extent]) -> ArrayAttr[IntAttr | SymbolAttr]:
    """Extents as an attribute."""
    return ArrayAttr([IntAttr(e) if isinstance(e, int) else e for e in extents])


def extents_in(attr: ArrayAttr[IntAttr | SymbolAttr]) -> tuple[Extent, ...]:
    """The extents that an attribute holds."""
    return tuple(e.data if isinstance(e, IntAttr) else e for e in attr)


def parse_extent(parser: AttrParser) -> IntAttr | SymbolAttr:
    """`64` or `#s0`"""
    symbol = parser.parse_optional_attribute() if (number := parser.parse_optional_integer()) is None else None
    if number is not None:
        return IntAttr(number)
    if not isinstance(symbol, SymbolAttr):
        parser.raise_error("expected a number or a #payload.symbol")
    return symbol


def print_extents(printer: Printer, extents: ArrayAttr[IntAttr | SymbolAttr]) -> None:
    """`#s0, 64`"""

    def one(e: IntAttr | SymbolAttr) -> None:
        if isinstance(e, IntAttr):
            printer.print_string(str(e.data))
        else:
            printer.print_attribute(e)

    printer.print_list(extents, one)


def extents_of(t: Attribute) -> tuple[Extent, ...]:
    """The extents of a tensor, vector or memref type, symbols included; `()` for a scalar.

    Raises ExtentError for a dimension of unknown size: one that is `?` and no symbol."""
    if not isinstance(t, TensorType | VectorType | MemRefType):
        return ()
    shape = tuple(int(n) for n in t.get_shape())
    if DYNAMIC_INDEX not in shape:
        return shape
    names = t.encoding if isinstance(t, TensorType) else t.layout if isinstance(t, MemRefType) else None
    if not isinstance(names, ExtentsAttr):
        raise ExtentError(f"a dimension of {t} has no size: name it in #payload.extents<...>")
    extents = extents_in(names.extents)
    if shape != tuple(e if isinstance(e, int) else DYNAMIC_INDEX for e in extents):
        raise ExtentError(f"the extents of {t} are not those of its shape")
    return extents


def static(extents: Iterable[Extent]) -> tuple[int, ...]:
    """The extents as numbers, for a place that can't take symbols. Raises ExtentError that names a symbol."""
    known: list[int] = []
    for e in extents:
        if not isinstance(e, int):
            raise ExtentError(f"the size {e} is known only at run time, which is not supported here")
        known.append(e)
    return tuple(known)


def fixed(e: Extent) -> int:
    """An extent as a number, for a place that can't take a symbol. Raises ExtentError that names it."""
    return static((e,))[0]


def least(e: Extent) -> int:
    """The smallest value of an extent."""
    return e if isinstance(e, int) else e.minimum


def most(e: Extent) -> int:
    """The largest value of an extent."""
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
    """The tensor type with these extents."""
    return TensorType(element, _shape(extents), _names(extents))


def memref_of(element: Attribute, extents: Sequence[Extent], space: Attribute | None = None) -> MemRefType[Any]:
    """The memref type with these extents."""
    return MemRefType(element, _shape(extents), _names(extents), space or NoneAttr())


def _shape(extents: Sequence[Extent]) -> list[int]:
    return [e if isinstance(e, int) else DYNAMIC_INDEX for e in extents]


def _names(extents: Sequence[Extent]) -> ExtentsAttr | NoneAttr:
    return NoneAttr() if all(isinstance(e, int) for e in extents) else ExtentsAttr.get(extents)
