"""What every access by an index map has in common, at every level: the map, a domain, a fill value."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineExpr, AffineMap
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
    verify_linear(map.data)
    if domain is None:
        if fill is not None:
            raise VerifyException("a fill value without a domain")
        return
    verify_linear(domain.affine)
    if (domain.affine.num_dims, domain.affine.num_symbols) != (dims, symbols):
        raise VerifyException("the domain has other dimensions or symbols than the map")


def verify_linear(map: AffineMap) -> None:
    """Check that `map` divides only by positive numbers and multiplies no two indices, which its syntax allows.
    Raises `VerifyException`."""
    for result in map.results:
        _verify_expression(result)


def _verify_expression(expr: AffineExpr) -> None:
    if not isinstance(expr, AffineBinaryOpExpr):
        return
    _verify_expression(expr.lhs)
    _verify_expression(expr.rhs)
    if expr.kind is AffineBinaryOpKind.Mul:
        if not _is_number(expr.lhs) and not _is_number(expr.rhs):
            raise VerifyException(f"{expr} is a product of two indices")
    elif expr.kind is not AffineBinaryOpKind.Add:
        if not isinstance(expr.rhs, AffineConstantExpr) or expr.rhs.value <= 0:
            raise VerifyException(f"{expr} divides by something else than a positive number")


def _is_number(expr: AffineExpr) -> bool:
    """Whether `expr` contains no index."""
    if isinstance(expr, AffineBinaryOpExpr):
        return _is_number(expr.lhs) and _is_number(expr.rhs)
    return isinstance(expr, AffineConstantExpr)
