"""Sums of products without the products: recognised at every level, run as matrix multiplications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Attribute

from ...dialects.tensor import ReductionKind
from .domains import Array, TypedDomain, ranked


@dataclass(frozen=True)
class Product:
    """The elementwise product of some values, not computed yet, because only sums of it are asked for."""

    factors: tuple[Array, ...]
    element: Attribute

    def compute(self, domain: TypedDomain) -> Array:
        """The product itself."""
        result = self.factors[0]
        for factor in self.factors[1:]:
            result = domain.binary("arith.mulf", result, factor, self.element)
        return result


def compact(x: Array) -> Array:
    """`x` with size 1 along the axes in which it repeats itself."""
    x = np.asarray(x)
    if 0 in x.shape or 0 not in x.strides:
        return x
    return x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]


def _merge(domain: TypedDomain, product: Product, rank: int) -> tuple[Array, Array | None]:
    """Multiply factors together until at most two are left, the ones that grow least first."""
    factors = [ranked(compact(f), rank) for f in product.factors]
    while len(factors) > 2:
        pairs = [(i, j) for i in range(len(factors)) for j in range(i)]

        def growth(pair: tuple[int, int]) -> float:
            a, b = factors[pair[0]], factors[pair[1]]
            return math.prod(np.broadcast_shapes(a.shape, b.shape)) - max(a.size, b.size)

        i, j = min(pairs, key=growth)
        merged = domain.binary("arith.mulf", factors[j], factors[i], product.element)
        factors = [f for n, f in enumerate(factors) if n not in (i, j)] + [merged]
    return factors[0], factors[1] if len(factors) == 2 else None


def sum_of_product(domain: TypedDomain, product: Product, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """The sum over `axes` of a product that broadcasts to `shape`; the axes disappear."""
    rank, element = len(shape), product.element
    a, b = _merge(domain, product, rank)
    if b is None:
        full = tuple(n if d in axes else a.shape[d] for d, n in enumerate(shape))
        return domain.reduce(ReductionKind.ADD, np.broadcast_to(a, full), tuple(axes), element)
    in_a = [a.shape[d] != 1 for d in range(rank)]
    in_b = [b.shape[d] != 1 for d in range(rank)]
    summed = [d for d in axes if in_a[d] and in_b[d]]
    times = math.prod(shape[d] for d in axes if not in_a[d] and not in_b[d])
    a = _presum(domain, a, [d for d in axes if in_a[d] and not in_b[d]], element)
    b = _presum(domain, b, [d for d in axes if in_b[d] and not in_a[d]], element)
    kept = [d for d in range(rank) if d not in axes]
    if not summed:
        result = domain.binary("arith.mulf", a, b, element)
        result = result.reshape([result.shape[d] for d in kept])
    else:
        result = _matmul(domain, a, b, kept, summed, element)
    if times == 1:
        return result
    return domain.binary("arith.mulf", result, domain.constant(float(times), element), element)


def _presum(domain: TypedDomain, x: Array, axes: list[int], element: Attribute) -> Array:
    if not axes:
        return x
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    return domain.reduce(ReductionKind.ADD, x, tuple(axes), element).reshape(shape)


def _matmul(domain: TypedDomain, a: Array, b: Array, kept: list[int], summed: list[int], element: Attribute) -> Array:
    """Sum over `summed` of a * b, which both depend on those axes; axes of size 1 stay of size 1."""
    batch = [d for d in kept if a.shape[d] != 1 and b.shape[d] != 1]
    rows = [d for d in kept if a.shape[d] != 1 and b.shape[d] == 1]
    columns = [d for d in kept if a.shape[d] == 1 and b.shape[d] != 1]
    single = [d for d in kept if a.shape[d] == 1 and b.shape[d] == 1]

    def size(x: Array, dims: list[int]) -> int:
        return math.prod(x.shape[d] for d in dims)

    done = [d for d in range(a.ndim) if d not in kept and d not in summed]
    left = a.transpose(batch + rows + summed + columns + single + done)
    left = left.reshape(size(a, batch), size(a, rows), size(a, summed))
    right = b.transpose(batch + summed + columns + rows + single + done)
    right = right.reshape(size(b, batch), size(b, summed), size(b, columns))
    order = batch + rows + columns + single
    shape = [b.shape[d] if d in columns else a.shape[d] for d in order]
    result = domain.matmul(left, right).reshape(shape)
    return result.transpose([order.index(d) for d in kept])
