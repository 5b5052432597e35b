"""The matmuls of a nest: contractions with rows and columns that a tile can have several of; and which of them may be
on tensor cores, by the types of their operands and what the schedule permits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from xdsl.dialects.builtin import bf16
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from ...dialects import loop
from ...dialects.loop.dependence import yielded
from ...dialects.payload import is_float
from ...target.model import NEAR, Target
from ..analysis.operand_types import widened_from
from ..analysis.packed_operands import loaded_factor
from .nest_info import NestInfo, Reduction, strides
from .points import Bools, Ints
from .tiles import Tiles

SMALLEST = 2
"""Rows and columns of a product: with one, every number is used once, and there is nothing that a tile could share."""

FEW = 8
"""With fewer rows or columns than these most of a tile may be padding: each row by itself may be as fast."""


@dataclass(frozen=True)
class Matmul:
    """A contraction with the index of its rows, of its columns, and its own that are long enough to be tiled."""

    reduction: Reduction
    row: SSAValue
    column: SSAValue

    @property
    def factors(self) -> tuple[SSAValue, SSAValue]:
        """What is multiplied."""
        found = self.reduction.contraction
        assert found is not None
        return found.lhs, found.rhs

    @property
    def of_bf16(self) -> bool:
        """Whether both factors are loaded in bf16."""
        return narrow_type(self) == bf16 and None not in map(loaded_factor, self.factors)

    @property
    def multiplication(self) -> Operation:
        """The product that is summed."""
        found = yielded(self.reduction.op.body.block)[0].owner
        assert isinstance(found, Operation)
        return found


def find_matmuls(info: NestInfo) -> list[Matmul]:
    """The contractions of a nest that may be matrix products, outermost first; of the rows of each, and of its left
    factor, is the index that comes first in the nest, as it is where the result is stored."""
    found = list[Matmul]()
    for r in sorted(info.reductions, key=lambda r: not r.outermost):
        if r.contraction is not None:
            found += _matmuls(info, r, *([longest_index(info, side)] for side in r.contraction.sides))
    return found


def contiguous_alternatives(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """Returns matmuls of the same contractions whose rows or columns are contiguous in an operand.

    The longest index may be another one, as the batch of small images is. On a CPU one thread reads the rows of a tile
    in memory. Nested products have no alternatives.
    """
    found = list[Matmul]()
    for p in () if is_nested(products) else products:
        contraction = p.reduction.contraction
        assert contraction is not None
        choices = list[list[SSAValue]]()
        for side, operand in zip(contraction.sides, p.factors, strict=True):
            load, longest = loaded_factor(operand), longest_index(info, side)
            gaps = {} if load is None else strides(load)
            near = [i for i in side if 0 < gaps.get(i, 0) <= NEAR and i is not longest]
            choices.append([longest, *near[:1]])
        found += _matmuls(info, p.reduction, *choices)[1:]
    return found


def _matmuls(info: NestInfo, r: Reduction, lhs: Iterable[SSAValue], rhs: Iterable[SSAValue]) -> list[Matmul]:
    """Returns the matmuls of a contraction for all pairs of indices of its operands that are long enough."""
    found, order = list[Matmul](), {index: i for i, index in enumerate(info.extents)}
    for row, column in product(lhs, rhs):
        if min(info.extents[row], info.extents[column]) < SMALLEST:
            continue
        if order[row] <= order[column]:
            found.append(Matmul(r, row, column))
        else:
            assert r.contraction is not None
            found.append(Matmul(dataclasses.replace(r, contraction=r.contraction.turned), column, row))
    return found


def by_products(products: list[Matmul], tiles: Tiles) -> Iterator[tuple[list[Matmul], Bools]]:
    """Those of `products` that are matrix products to a block, with the schedules of which they are: those that have
    several rows and columns in its tiles and one of each other index but those that are summed, of several of one
    reduction the first. The others are sums of rows: a `tile.dot` has no batch."""
    several, taken = list[Bools](), dict[Operation, Bools]()
    for p in products:
        here = (tiles.tile[p.row] > 1) & (tiles.tile[p.column] > 1) & (_batch(p, tiles) == 1)
        before = taken.get(p.reduction.op, np.zeros(tiles.rows, dtype=np.bool_))
        several.append(here & ~before)
        taken[p.reduction.op] = before | here
    columns = np.stack([*several, np.ones(tiles.rows, dtype=np.bool_)], axis=1)
    for kind in np.unique(columns, axis=0):
        yield [p for p, here in zip(products, kind[:-1], strict=True) if here], (columns == kind).all(axis=1)


def _batch(p: Matmul, tiles: Tiles) -> Ints:
    """Matrices of a product in a tile."""
    return tiles.elements(p.reduction.around - {p.row, p.column}).astype(np.int64)


def may_be_rows(info: NestInfo, products: list[Matmul]) -> bool:
    """Whether rows by themselves may be as fast as products: where a tile would mostly be padding."""
    return not is_nested(products) and any(min(info.extents[p.row], info.extents[p.column]) < FEW for p in products)


def distinct(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """`products` without those that the stages of a staged reduction repeat: they are computed once."""
    computed = {counted.op for counted in info.operations} if products else ()
    return [p for p in products if p.reduction.op in computed]


def longest_index(info: NestInfo, indices: Iterable[SSAValue]) -> SSAValue:
    """The index with the largest range, the last of those in the order of the nest."""
    order = {index: i for i, index in enumerate(info.extents)}
    return max(indices, key=lambda i: (info.extents[i], order[i]))


def longest_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """The longest index that a product sums over."""
    return longest_index(info, p.reduction.indices)


def own_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """The index that a core sums over at once: the longest, of a convolution one that does not count the same
    coordinate as rows or columns do, as then ends of the one depend on the other."""

    def shares(index: SSAValue) -> bool:
        for op in info.loads:
            for result in op.map.data.results:
                own = {op.indices[e.position] for e in result.dfs() if isinstance(e, AffineDimExpr)}
                if index in own and own & {p.row, p.column}:
                    return True
        return False

    return longest_index(info, [i for i in p.reduction.indices if not shares(i)] or p.reduction.indices)


def is_nested(products: list[Matmul]) -> bool:
    """Whether a product is inside another reduction."""
    return any(not p.reduction.outermost for p in products)


def main_matmul(info: NestInfo, products: list[Matmul]) -> Matmul:
    """The product that the result's tiles are those of."""
    return next((p for p in products if p.row in info.free and p.column in info.free), products[0])


def may_be_narrow(product: Matmul, precision: str) -> bool:
    """Whether a product may be on tensor cores under the permission `f32_matmul_precision`."""
    if not is_float(product.multiplication.results[0].type):
        return False
    found = narrow_type(product, precision != "ieee")
    if precision != "bf16x3":
        return found is not None or precision == "tf32"
    return found == bf16 or narrow_type(product) is not None or computed_operands(product) == 2


def is_tf32(product: Matmul, precision: str) -> bool:
    """Whether a product that is on tensor cores under the permission `f32_matmul_precision` multiplies f32 there."""
    return precision == "tf32" and narrow_type(product) is None


def lies_along_k(product: Matmul, load: loop.LoadOp) -> bool:
    """Whether what is contiguous in memory, of a factor that is loaded, is an index that is summed over."""
    last = load.map.data.results[-1]
    return isinstance(last, AffineDimExpr) and load.indices[last.position] in product.reduction.indices


def computed_operands(product: Matmul) -> int:
    """How many factors of a product were computed in f32, or loaded as such."""
    return sum(widened_from(f) is None for f in product.factors)


def on_tensor_cores(info: NestInfo, atom: str, target: Target) -> bool:
    """Whether a nest multiplies on tensor cores with this atom, or on the cores of a CPU in bf16, for which these may
    have instructions of their own."""
    return atom != "fma" or target.core is not None and any(product.of_bf16 for product in find_matmuls(info))


def narrow_type(product: Matmul, may_narrow: bool = False) -> Attribute | None:
    """The type that both factors of a product were widened from, or with `may_narrow` one of them, if it is one for
    tensor cores."""
    types = {*map(widened_from, product.factors)}
    if may_narrow and len(types) == 2:
        types.discard(None)
    return types.pop() if len(types) == 1 else None
