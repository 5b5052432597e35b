"""Affine accesses of arrays, for the loads and stores of every level.

An access has a map from indices to coordinates, such as `(i, k) -> (i, k + 1)`, and a domain, which is a list of
conditions on the indices. A load outside of the domain returns the fill value. A map may also have symbols: index
values that were loaded, as in a gather.

`dims` is an array of values for each index, and `symbols` is one for each symbol. Together they broadcast to the shape
of the result.
"""

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
    """Loop index as an array axis: it takes the values `range(start, start + size)` along the axis `position`.

    Positions are counted from the last axis (0) to the first, so that axes can be added before the existing ones.
    """

    position: int
    start: int
    size: int

    def values(self) -> Array:
        """Returns the values of the index, as an array of size 1 along the other axes."""
        return np.arange(self.start, self.start + self.size).reshape((-1,) + (1,) * self.position)


def evaluate(expr: AffineExpr, dims: Sequence[Array], symbols: Sequence[Array]) -> Array:
    """Returns the values of an affine expression; `floordiv` and `mod` round toward minus infinity.

    Args:
        expr: affine expression of indices and symbols.
        dims: values of each index.
        symbols: values of each symbol.
    """
    return np.asarray(expr.eval(cast(Any, dims), cast(Any, symbols)))


def _strided(source: Array, map: AffineMap, axes: Sequence[Axis], domain: DomainAttr | None) -> Array | None:
    """Returns a load as a strided view of `source`, or None if it is not linear or leaves the source or the domain."""
    if any(axis.size == 0 for axis in axes):
        return None
    ranges = [(axis.start, axis.start + axis.size) for axis in axes]
    guards = zip(domain.affine.results, domain.bounds, strict=True) if domain else ()
    for expr, (lower, upper) in (*zip(map.results, ((0, n) for n in source.shape), strict=True), *guards):
        interval = range_of(expr, ranges)
        if interval is None or interval[0] < lower or interval[1] > upper:
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
    """Returns a mask of the index values inside of a domain.

    Args:
        domain: conditions on the indices, or None for an access without any.
        dims: values of each index.
        symbols: values of each symbol.
    """
    mask = np.asarray(True)
    if domain is not None:
        for expr, (lo, hi) in zip(domain.affine.results, domain.bounds, strict=True):
            value = evaluate(expr, dims, symbols)
            mask = mask & (lo <= value) & (value < hi)
    return np.asarray(mask)


def within(map: AffineMap, shape: Sequence[int], dims: Sequence[Array], symbols: Sequence[Array]) -> Array:
    """Returns a mask of the index values whose coordinates are inside of `shape`.

    Args:
        map: map from indices to coordinates.
        shape: shape of the accessed array.
        dims: values of each index.
        symbols: values of each symbol.
    """
    mask = np.asarray(True)
    for expr, extent in zip(map.results, shape, strict=True):
        c = evaluate(expr, dims, symbols)
        mask = mask & (c >= 0) & (c < extent)
    return np.asarray(mask)


def coordinates(
    map: AffineMap,
    shape: Sequence[int],
    dims: Sequence[Array],
    symbols: Sequence[Array],
    mask: Array,
    names: Sequence[str] = (),
) -> tuple[Array, ...]:
    """Returns an array of coordinates for each dimension of the accessed array.

    Args:
        map: map from indices to coordinates.
        shape: shape of the accessed array.
        dims: values of each index.
        symbols: values of each symbol.
        mask: where the access happens. Elsewhere the coordinates are 0.
        names: names of the indices for the message; by default `d0`, `d1` and so on.

    Raises:
        ExecutionError: if a coordinate is outside of `shape`.
    """
    result: list[Array] = []
    for d, (expr, extent) in enumerate(zip(map.results, shape, strict=True)):
        c = evaluate(expr, dims, symbols)
        wrong = ((c < 0) | (c >= extent)) & mask
        if np.any(wrong):
            wrong, c, *indices = np.broadcast_arrays(wrong, c, *dims)
            first = np.unravel_index(np.argmax(wrong), wrong.shape)
            at = ", ".join(f"{names[n] if names else f'd{n}'} = {i[first]}" for n, i in enumerate(indices))
            raise ExecutionError(
                f"coordinate {d} is {int(c[first])}, outside 0..{extent - 1}{', at ' if at else ''}{at}"
            )
        result.append(np.where(mask, c, 0))
    return tuple(result)


def read(
    source: Array,
    map: AffineMap,
    axes: Sequence[Axis],
    symbols: Sequence[Array] = (),
    domain: DomainAttr | None = None,
    fill: Array | None = None,
    names: Sequence[str] = (),
) -> Array:
    """Loads the elements of an array for all values of the indices `axes`, as a view if possible.

    Args:
        source: array in its full shape.
        map: map from indices to coordinates.
        axes: indices of the map.
        symbols: values of each symbol.
        domain: conditions on the indices, or None.
        fill: value outside of the domain; None for 0.
        names: names of the indices for messages, as of `coordinates`.

    Returns:
        An array that broadcasts to the shape of the axes.

    Raises:
        ExecutionError: if a coordinate inside of the domain is outside of the source.
    """
    if not symbols:
        view = _strided(source, map, axes, domain)
        if view is not None:
            return view
    if any(axis.size == 0 for axis in axes):
        # Without iterations no coordinate can be outside, even if the source is empty.
        return np.zeros(np.broadcast_shapes(*(axis.values().shape for axis in axes)), source.dtype)
    dims = [axis.values() for axis in axes]
    mask = inside(domain, dims, symbols)
    return fetch(source, map, dims, symbols, mask, np.zeros((), source.dtype) if fill is None else fill, names)


def fetch(
    source: Array,
    map: AffineMap,
    dims: Sequence[Array],
    symbols: Sequence[Array],
    mask: Array,
    fill: Array,
    names: Sequence[str] = (),
) -> Array:
    """Loads the elements of an array where `mask` holds, and `fill` elsewhere.

    Args:
        source: array in its full shape.
        map: map from indices to coordinates.
        dims: values of each index.
        symbols: values of each symbol.
        mask: where the load happens.
        fill: value elsewhere.
        names: names of the indices for messages, as of `coordinates`.

    Raises:
        ExecutionError: if a coordinate is outside of the source where `mask` holds.
    """
    positions = coordinates(map, source.shape, dims, symbols, mask, names)
    if 0 in source.shape:
        return np.broadcast_to(fill, np.broadcast_shapes(mask.shape, np.shape(fill), *(p.shape for p in positions)))
    values = source[positions] if positions else source
    return values if mask.all() else np.where(mask, values, fill)
