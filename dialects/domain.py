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


@irdl_attr_definition
class DomainAttr(ParametrizedAttribute):
    """`#payload.domain<affine_map<(d0, d1) -> (d0 - 1, d1)> in [0:5, 0:7]>`: 0 <= d0 - 1 < 5 and 0 <= d1 < 7.

    The map has the same dimensions and symbols as the access it guards; bounds are inclusive below, exclusive above.
    """

    name = "payload.domain"
    map: AffineMapAttr
    lower: ArrayAttr[IntAttr]
    upper: ArrayAttr[IntAttr]

    @staticmethod
    def get(map: AffineMap, bounds: Sequence[tuple[int, int]]) -> DomainAttr:
        """The domain in which result `i` of `map` lies in `range(*bounds[i])` for every `i`."""
        lower = ArrayAttr([IntAttr(lo) for lo, _ in bounds])
        return DomainAttr(AffineMapAttr(map), lower, ArrayAttr([IntAttr(hi) for _, hi in bounds]))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(lower, upper) of every constraint."""
        return tuple((lo.data, hi.data) for lo, hi in zip(self.lower, self.upper, strict=True))

    @property
    def affine(self) -> AffineMap:
        """The constrained expressions, one result each."""
        return self.map.data

    def verify(self) -> None:
        if not len(self.affine.results) == len(self.lower) == len(self.upper):
            raise VerifyException("a domain needs one [lower:upper] for each result of its map")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[AffineMapAttr | ArrayAttr[IntAttr]]:
        def bound() -> tuple[int, int]:
            lo = parser.parse_integer()
            parser.parse_punctuation(":")
            return lo, parser.parse_integer()

        with parser.in_angle_brackets():
            map = parser.parse_attribute()
            if not isinstance(map, AffineMapAttr):
                parser.raise_error("expected an affine map")
            parser.parse_keyword("in")
            bounds = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, bound)
        return list(DomainAttr.get(map.data, bounds).parameters)  # pyright: ignore[reportReturnType]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.map)
            printer.print_string(" in ")
            with printer.in_square_brackets():
                printer.print_list(self.bounds, lambda b: printer.print_string(f"{b[0]}:{b[1]}"))
