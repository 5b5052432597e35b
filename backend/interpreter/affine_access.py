"""Reading an array through an affine map, a domain and a fill value; used by the loads of every level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects.shapes.affine import linear_form, number_of, range_of
from ...dialects.shapes.domain import DomainAttr
from ...errors import ExecutionError
from .domains import Array


@dataclass(frozen=True)
class Axis:
    """An index that runs through `range(start, start + size)` along one axis, counted from the last axis (0)."""

    position: int
    start: int
    size: int

    def values(self) -> Array:
        """The index at every point, of size 1 along all axes but its own."""
        return np.arange(self.start, self.start + self.size).reshape((-1,) + (1,) * self.position)


def evaluate(expr: AffineExpr, dims: Sequence[Array], symbols: Sequence[Array]) -> Array:
    """The value of an affine expression at arrays of indices; `floordiv` and `mod` round toward minus infinity."""
    return np.asarray(expr.eval(cast(Any, dims), cast(Any, symbols)))


def _strided(source: Array, map: AffineMap, axes: Sequence[Axis], domain: DomainAttr | None) -> Array | None:
    """The access as a view of `source`, if it is linear and wholly inside the source and the domain."""
    if any(axis.size == 0 for axis in axes):
        return None
    ranges = [(axis.start, axis.start + axis.size) for axis in axes]
    guards = zip(domain.affine.results, domain.bounds, strict=True) if domain else ()
    for expr, (lower, upper) in (*zip(map.results, ((0, n) for n in source.shape), strict=True), *guards):
        found = range_of(expr, ranges)
        if found is None or found[0] < lower or found[1] > upper:
            return None
    rank = max((axis.position + 1 for axis in axes), default=0)
    shape, strides, offset = [1] * rank, [0] * rank, list[int]()
    for expr, stride in zip(map.results, source.strides, strict=True):
        form = linear_form(expr, ranges)
        if form is None:
            return None
        steps = [(c, axes[number_of(atom)]) for atom, c in form.terms]
        offset.append(form.constant + sum(c * axis.start for c, axis in steps))
        for c, axis in steps:
            shape[rank - 1 - axis.position] = axis.size
            strides[rank - 1 - axis.position] += c * stride
    return as_strided(source[tuple(slice(o, None) for o in offset)], shape, strides, writeable=False)


def inside(domain: DomainAttr | None, dims: Sequence[Array], symbols: Sequence[Array]) -> Array:
    """Where the domain holds, as a bool array."""
    mask = np.asarray(True)
    if domain is not None:
        for expr, (lo, hi) in zip(domain.affine.results, domain.bounds, strict=True):
            value = evaluate(expr, dims, symbols)
            mask = mask & (lo <= value) & (value < hi)
    return np.asarray(mask)


def within(map: AffineMap, shape: Sequence[int], dims: Sequence[Array], symbols: Sequence[Array]) -> Array:
    """Where all coordinates of an access are inside of `shape`, as a bool array."""
    mask = np.asarray(True)
    for expr, extent in zip(map.results, shape, strict=True):
        c = evaluate(expr, dims, symbols)
        mask = mask & (c >= 0) & (c < extent)
    return np.asarray(mask)


def coordinates(
    map: AffineMap, shape: Sequence[int], dims: Sequence[Array], symbols: Sequence[Array], mask: Array
) -> tuple[Array, ...]:
    """The coordinates of an access, 0 where `mask` is False. Raises ExecutionError for one outside `shape`."""
    found: list[Array] = []
    for d, (expr, extent) in enumerate(zip(map.results, shape, strict=True)):
        c = evaluate(expr, dims, symbols)
        wrong = ((c < 0) | (c >= extent)) & mask
        if np.any(wrong):
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            value = int(np.broadcast_to(c, wrong.shape)[at])
            raise ExecutionError(f"coordinate {d} is {value}, outside 0..{extent - 1}, at index {at}")
        found.append(np.where(mask, c, 0))
    return tuple(found)


def read(
    source: Array,
    map: AffineMap,
    axes: Sequence[Axis],
    symbols: Sequence[Array] = (),
    domain: DomainAttr | None = None,
    fill: Array | None = None,
) -> Array:
    """source[map(axes)[symbols]] inside the domain, else `fill`; `source` has its full shape.

    The result broadcasts to the space of the axes. Raises ExecutionError for a coordinate outside the source.
    """
    if not symbols:
        view = _strided(source, map, axes, domain)
        if view is not None:
            return view
    if any(axis.size == 0 for axis in axes):
        # no index at which a coordinate could be wrong
        return np.zeros(np.broadcast_shapes(*(axis.values().shape for axis in axes)), source.dtype)
    dims = [axis.values() for axis in axes]
    mask = inside(domain, dims, symbols)
    return fetch(source, map, dims, symbols, mask, np.zeros((), source.dtype) if fill is None else fill)


def fetch(
    source: Array, map: AffineMap, dims: Sequence[Array], symbols: Sequence[Array], mask: Array, fill: Array
) -> Array:
    """source[map(dims)[symbols]] where `mask` holds, else `fill`. Raises ExecutionError for a coordinate outside."""
    places = coordinates(map, source.shape, dims, symbols, mask)
    if 0 in source.shape:
        return np.broadcast_to(fill, np.broadcast_shapes(mask.shape, np.shape(fill), *(p.shape for p in places)))
    values = source[places] if places else source
    return values if mask.all() else np.where(mask, values, fill)
