"""Sorting, topk and random permutations, by the methods of `dialects/tensor/sorting.py`."""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.shapes.extents import extents_of, least
from ....dialects.tensor.builder import Builder, normal_dim
from ....dialects.tensor.sorting import order, sorted_along
from ....errors import ShapeError
from .random import integers
from .registry import decomposes


@decomposes("sort", "sort.stable")
def sort(b: Builder, self: SSAValue, dim: int, descending: bool, stable: bool | None = None) -> list[SSAValue]:
    return sorted_along(b, self, normal_dim(dim, len(extents_of(self.type))), descending)


@decomposes("randperm")
def randperm(b: Builder, n: int, dtype: Attribute | None, generator: SSAValue | None) -> SSAValue:
    return order(b, integers(b, generator, 0, 2**63 - 1), 0, False) if n else b.constant(0, [0], i64)


@decomposes("topk")
def topk(b: Builder, self: SSAValue, k: int, dim: int, largest: bool, sorted: bool) -> list[SSAValue]:
    dim = normal_dim(dim, len(extents_of(self.type)))
    extent = extents_of(self.type)[dim] if extents_of(self.type) else 1
    if not 0 <= k <= least(extent):
        raise ShapeError(f"expected at most {extent} elements, but got k = {k}", argument="k")
    if not extents_of(self.type) and k == 0:
        raise b.unsupported("k", "topk of 0 elements of a scalar tensor is not supported")
    return sorted_along(b, self, dim, largest, k)
