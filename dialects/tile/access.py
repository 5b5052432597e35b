"""Accesses of tiles to buffers: what all of them have in common, and which of them are TMA boxes."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineDimExpr, AffineExpr, AffineMap
from xdsl.utils.exceptions import VerifyException

from ..layouts.attributes import SharedAttr
from ..payload import element_type, shape_of, with_element
from ..shapes.domain import DomainAttr, verify_access
from ..shapes.extents import extents_of

_LINEAR = (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)


def is_in_shared(t: Attribute) -> bool:
    """Whether a tile type says that the tile is in shared memory, or on its way there."""
    return isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr)


def verify_places(
    op: Any, memory: SSAValue, tile: SSAValue, domain: DomainAttr | None = None, fill: SSAValue | None = None
) -> None:
    """Check what moves `tile` from or to map(t)[symbols] in the buffer `memory`. Raises VerifyException."""
    shape, symbols = shape_of(tile.type), tuple[SSAValue, ...](op.symbols)
    verify_access(op.map, len(shape), len(symbols), len(extents_of(memory.type)), domain, fill, "a buffer")
    for s in symbols:
        if s.type != IndexType() and (not shape or s.type != with_element(tile.type, IndexType())):
            raise VerifyException(f"a symbol is an index or a tile of index of the tile's shape, not {s.type}")
    if element_type(tile.type) != element_type(memory.type):
        raise VerifyException("buffer and tile have one element type")


def verify_box(map: AffineMap) -> None:
    """Check that a tile whose elements are at the places `map` is a TMA box. Raises VerifyException."""
    if box_dimensions(map) is None:
        raise VerifyException("a dimension of a box runs along one dimension of the buffer, in steps of one")


def box_dimensions(map: AffineMap) -> tuple[int, ...] | None:
    """For each dimension of a tile the dimension of the buffer that it runs along; None if the tile is no box."""
    found: dict[int, int] = {}
    for number, result in enumerate(map.results):
        dims = [e.position for e in result.dfs() if isinstance(e, AffineDimExpr)]
        if not dims:
            continue
        (position, *others) = dims
        if others or position in found or not _steps_by_one(map, result):
            return None
        found[position] = number
    return tuple(found[d] for d in range(map.num_dims)) if len(found) == map.num_dims else None


def _steps_by_one(map: AffineMap, result: AffineExpr) -> bool:
    """Whether the one dimension in `result` is added as it is: nothing around it divides, and its factor is one."""
    if any(isinstance(e, AffineBinaryOpExpr) and e.kind not in _LINEAR and _has_dims(e) for e in result.dfs()):
        return False
    symbols = [AffineExpr.constant(0)] * map.num_symbols
    first, second = (
        AffineMap(0, 0, (result.replace_dims_and_symbols([AffineExpr.constant(v)] * map.num_dims, symbols),)).eval(
            [], []
        )
        for v in (0, 1)
    )
    return second[0] - first[0] == 1


def _has_dims(expr: AffineExpr) -> bool:
    return any(isinstance(e, AffineDimExpr) for e in expr.dfs())
