"""Where an access is defined: a conjunction of `lo <= expression < hi` over the indices of an affine map.

`tensor.index_map`, `loop.load`, `tile.load` and `tile.store` carry a domain; outside it a load gives its fill value and
a store does nothing. Padding, slices of a padded view, causal structure and the tails of tiles are all domains.
`verify_access` checks what every access by an index map has in common: the map, a domain, a fill value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, IntAttr
from xdsl.ir.affine import AffineMap
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

from ..support.attribute_format import FormattedAttr, Parameter, attribute
from .affine import Simplifier
from .extents import Extent, SymbolAttr, bounds_in, extents_attr, extents_in, parse_bounds, print_bounds, static

AFFINE_MAP = attribute(AffineMapAttr, "an affine map")


@irdl_attr_definition
class DomainAttr(FormattedAttr):
    """`#payload.domain<affine_map<(d0, d1) -> (d0 - 1, d1)> in [0:5, 0:7]>`: 0 <= d0 - 1 < 5 and 0 <= d1 < 7.

    The map has the same dimensions and symbols as the access it guards; bounds are inclusive below, exclusive above.
    An upper bound may be a size known at run time: `in [0:#s0]`.
    """

    name = "payload.domain"
    FORMAT = (AFFINE_MAP, " in ", Parameter(parse_bounds, lambda printer, ends: print_bounds(printer, *ends), count=2))
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
        return bounds_in(self.lower, self.upper)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(lower, upper) of every constraint as numbers. Raises ExtentError for one known only at run time."""
        return tuple((lo.data, hi) for lo, hi in zip(self.lower, static(extents_in(self.upper)), strict=True))

    @property
    def affine(self) -> AffineMap:
        return self.map.data

    def verify(self) -> None:
        if not len(self.affine.results) == len(self.lower) == len(self.upper):
            raise VerifyException("a domain needs one [lower:upper] for each result of its map")


def verify_access(op: Any, dims: int, symbols: int, results: int, what: str) -> None:
    """Check that the map of `op` takes `dims` dimensions and `symbols` symbols to `results` coordinates, that its
    domain, if it has one, takes the same, and that a fill value comes with that. `what` names the accessed value in
    messages. Raises `VerifyException`."""
    map, domain = op.map.data, getattr(op, "domain", None)
    if map.num_dims != dims:
        raise VerifyException(f"the map has {map.num_dims} dimensions for {dims} indices")
    if map.num_symbols != symbols:
        raise VerifyException(f"the map has {map.num_symbols} symbols for {symbols} symbol operands")
    if len(map.results) != results:
        raise VerifyException(f"expected {results} coordinates for {what}, but got {len(map.results)}")
    verify_linear(map)
    if hasattr(op, "fill") and (domain is None) != (op.fill is None):
        raise VerifyException("a domain and a fill value come together")
    if domain is not None:
        verify_linear(domain.affine)
        if (domain.affine.num_dims, domain.affine.num_symbols) != (dims, symbols):
            raise VerifyException("the domain has other dimensions or symbols than the map")


@lru_cache(4096)
def verify_linear(map: AffineMap) -> None:
    """Check that `map` divides only by positive numbers and multiplies no two indices, which its syntax allows.
    Raises `VerifyException`."""
    try:
        Simplifier().read_map(map)
    except ValueError as error:
        raise VerifyException(str(error)) from None
