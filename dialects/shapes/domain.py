"""Domains of accesses: the index values at which a load or store accesses memory.

A domain is a conjunction of `lo <= expression < hi` over the indices of an access. `tensor.index_map`, `loop.load`,
`tile.load` and `tile.store` carry one. Outside of the domain a load returns its fill value and a store does nothing.
Padding, slices of padded views, causal masks and partial tiles are domains. For example, a row of 5 elements padded by
one on the left is read at `d0 - 1`:

```
#payload.domain<affine_map<(d0) -> (d0 - 1)> in [0:5]>
```
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
    """Domain of an access: `#payload.domain<affine_map<(d0, d1) -> (d0 - 1, d1)> in [0:5, 0:7]>`.

    Operations print the example as `where 0 <= d0 - 1 < 5 and 0 <= d1 < 7`.

    map: expressions of the dimensions and symbols of the access.
    lower: lower bound of each expression, inclusive.
    upper: upper bound of each expression, exclusive: a number, or a size known at run time (`in [0:#s0]`).

    Constraints: one lower and one upper bound for each expression.
    """

    name = "payload.domain"
    FORMAT = (AFFINE_MAP, " in ", Parameter(parse_bounds, lambda printer, ends: print_bounds(printer, *ends), count=2))
    map: AffineMapAttr
    lower: ArrayAttr[IntAttr]
    upper: ArrayAttr[IntAttr | SymbolAttr]

    @staticmethod
    def get(map: AffineMap, bounds: Sequence[tuple[int, Extent]]) -> DomainAttr:
        """Returns the domain in which result `i` of `map` is in `range(*bounds[i])` for every `i`."""
        lower = ArrayAttr([IntAttr(lo) for lo, _ in bounds])
        return DomainAttr(AffineMapAttr(map), lower, extents_attr(hi for _, hi in bounds))

    @property
    def limits(self) -> tuple[tuple[int, Extent], ...]:
        """Returns (lower, upper) of every constraint; the upper bound may be a symbol."""
        return bounds_in(self.lower, self.upper)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Returns (lower, upper) of every constraint as numbers. Raises ExtentError for a symbolic bound."""
        return tuple((lo.data, hi) for lo, hi in zip(self.lower, static(extents_in(self.upper)), strict=True))

    @property
    def affine(self) -> AffineMap:
        return self.map.data

    def verify(self) -> None:
        if not len(self.affine.results) == len(self.lower) == len(self.upper):
            raise VerifyException(
                f"expected {len(self.affine.results)} bounds [lower:upper], one for each result of the domain's map,"
                f" but got {len(self.lower)} and {len(self.upper)}"
            )


def verify_access(op: Any, dims: int, symbols: int, results: int, target: str) -> None:
    """Checks the map, the domain and the fill value of an access.

    Args:
        op: the access, with a `map` and perhaps a `domain` and a `fill`.
        dims: number of dimensions that the map and the domain must have.
        symbols: number of symbols that the map and the domain must have.
        results: number of results that the map must have.
        target: name of the accessed value, for messages.

    Raises:
        VerifyException: one of these does not match, or only one of domain and fill value is present.
    """
    map, domain = op.map.data, getattr(op, "domain", None)
    if map.num_dims != dims:
        raise VerifyException(f"expected a map of {dims} dimensions, one for each index, but got {map.num_dims}")
    if map.num_symbols != symbols:
        raise VerifyException(
            f"expected a map of {symbols} symbols, one for each symbol operand, but got {map.num_symbols}"
        )
    if len(map.results) != results:
        raise VerifyException(f"expected {results} coordinates for {target}, but got {len(map.results)}")
    verify_linear(map)
    if hasattr(op, "fill") and (domain is None) != (op.fill is None):
        raise VerifyException(
            "expected both a domain and a fill value, or neither, but got only"
            f" {'a fill value' if domain is None else 'a domain'}"
        )
    if domain is not None:
        verify_linear(domain.affine)
        if (domain.affine.num_dims, domain.affine.num_symbols) != (dims, symbols):
            raise VerifyException(
                f"expected a domain of {dims} dimensions and {symbols} symbols, like the map, but got"
                f" {domain.affine.num_dims} and {domain.affine.num_symbols}"
            )


@lru_cache(4096)
def verify_linear(map: AffineMap) -> None:
    """Checks that `map` multiplies no two indices and divides by positive numbers only. Raises VerifyException."""
    try:
        Simplifier().read_map(map)
    except ValueError as error:
        raise VerifyException(str(error)) from None
