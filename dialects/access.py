"""What every access by an index map has in common, at every level: the map, a domain, a fill value."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from .domain import DomainAttr


def verify_access(
    map: AffineMapAttr,
    dims: int,
    symbols: int,
    results: int,
    domain: DomainAttr | None,
    fill: SSAValue | None,
    what: str,
) -> None:
    """Check that `map` takes `dims` dimensions and `symbols` symbols to `results` coordinates, and that the domain
    takes the same. `what` names the accessed value in messages. Raises `VerifyException`."""
    if map.data.num_dims != dims:
        raise VerifyException(f"the map has {map.data.num_dims} dimensions for {dims} indices")
    if map.data.num_symbols != symbols:
        raise VerifyException(f"the map has {map.data.num_symbols} symbols for {symbols} symbol operands")
    if len(map.data.results) != results:
        raise VerifyException(f"the map has {len(map.data.results)} results for {what} of rank {results}")
    if domain is None:
        if fill is not None:
            raise VerifyException("a fill value without a domain")
        return
    if (domain.affine.num_dims, domain.affine.num_symbols) != (dims, symbols):
        raise VerifyException("the domain has other dimensions or symbols than the map")
