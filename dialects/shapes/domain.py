"""Where an access is defined: a conjunction of `lo <= expression < hi` over the indices of an affine map.

`tensor.index_map`, `loop.load`, `tile.load` and `tile.store` carry a domain; outside it a load gives its fill value and
a store does nothing. Padding, slices of a padded view, causal structure and the tails of tiles are all domains.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IntAttr
from xdsl.ir import ParametrizedAttribute
from xdsl.ir.affine import AffineMap
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from .extents import Extent, SymbolAttr, extents_attr, extents_in, parse_extent, print_extents, static


@irdl_attr_definition
class DomainAttr(ParametrizedAttribute):
    """`#payload.domain<affine_map<(d0, d1) -> (d0 - 1, d1)> in [0:5, 0:7]>`: 0 <= d0 - 1 < 5 and 0 <= d1 < 7.

    The map has the same dimensions and symbols as the access it guards; bounds are inclusive below, exclusive above.
    An upper bound may be a size known at run time: `in [0:#s0]`.
    """

    name = "payload.domain"
    map: AffineMapAttr
    lower: ArrayAttr[IntAttr]
    upper: ArrayAttr[IntAttr | SymbolAttr]

    @staticmethod
    def get(map: AffineMap, bounds: Sequence[tuple[int, Extent]]) -> DomainAttr:
        """The domain in which result `i` of `map` lies in `range(*bounds[i])` for every `i`."""
        lower = ArrayAttr([IntAttr(lo) for lo, _ in bounds])
        return DomainAttr(AffineMapAttr(map), lower, extents_attr(hi for _, hi in bounds))

    @property
    def limits(self) -> tuple[tuple[int, Extent], ...]:
        """(lower, upper) of every constraint."""
        return tuple((lo.data, hi) for lo, hi in zip(self.lower, extents_in(self.upper), strict=True))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(lower, upper) of every constraint as numbers. Raises ExtentError for one known only at run time."""
        return tuple((lo.data, hi) for lo, hi in zip(self.lower, static(extents_in(self.upper)), strict=True))

    @property
    def affine(self) -> AffineMap:
        """The constrained expressions, one result each."""
        return self.map.data

    def verify(self) -> None:
        if not len(self.affine.results) == len(self.lower) == len(self.upper):
            raise VerifyException("a domain needs one [lower:upper] for each result of its map")

    @classmethod
    def parse_parameters(
        cls, parser: AttrParser
    ) -> list[AffineMapAttr | ArrayAttr[IntAttr] | ArrayAttr[IntAttr | SymbolAttr]]:
        def bound() -> tuple[IntAttr, IntAttr | SymbolAttr]:
            lo = IntAttr(parser.parse_integer())
            parser.parse_punctuation(":")
            return lo, parse_extent(parser)

        with parser.in_angle_brackets():
            map = parser.parse_attribute()
            if not isinstance(map, AffineMapAttr):
                parser.raise_error("expected an affine map")
            parser.parse_keyword("in")
            bounds = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, bound)
        return [map, ArrayAttr([lo for lo, _ in bounds]), ArrayAttr([hi for _, hi in bounds])]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.map)
            printer.print_string(" in ")
            with printer.in_square_brackets():
                printer.print_list(list(zip(self.lower, self.upper, strict=True)), lambda b: _print_bound(printer, *b))


def _print_bound(printer: Printer, lower: IntAttr, upper: IntAttr | SymbolAttr) -> None:
    printer.print_string(f"{lower.data}:")
    print_extents(printer, ArrayAttr([upper]))
