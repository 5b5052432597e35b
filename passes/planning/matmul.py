"""Matmuls of a nest: contractions that a schedule can compute as `tile.dot`, and their operands.

A contraction `sum over k of a[m, k] * b[n, k]` is a matmul if a tile can have several rows m and several columns n.
Matmuls are *nested* if one is inside the reduction of another (attention).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from xdsl.dialects.builtin import Float32Type, bf16, f32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from ...dialects import loop, payload
from ...dialects.kernel.mma import least_depth
from ...dialects.loop.dependence import yielded
from ...dialects.loop.work import Counted
from ...dialects.payload import CastOp, CombineBf16x3Op, element_type, is_float
from ...target.model import NEAR, Target
from ..analysis.operands import loaded_factor, parts_of, widened_from
from .nest_info import NestInfo, Reduction, strides
from .points import Bools, Ints
from .tiles import Tiles

MIN_EXTENT = 2
"""Minimum number of rows and of columns of a matmul. With one row no element is used twice."""

FEW_ROWS = 8
"""A matmul with fewer rows or columns may be as fast as a plain reduction, because its tile is mostly padding. Tuned by
hand."""


@dataclass(frozen=True)
class Matmul:
    """A contraction with one index chosen as its rows and one as its columns.

    reduction  the reduction
    row        index of the rows, which only the left operand depends on
    column     index of the columns, which only the right operand depends on
    """

    reduction: Reduction
    row: SSAValue
    column: SSAValue

    @property
    def factors(self) -> tuple[SSAValue, SSAValue]:
        """Left and right operand."""
        contraction = self.reduction.contraction
        assert contraction is not None
        return contraction.lhs, contraction.rhs

    @property
    def of_bf16(self) -> bool:
        """True if both operands are loaded in bf16."""
        return narrow_type(self) == bf16 and None not in map(loaded_factor, self.factors)

    @property
    def multiplication(self) -> Operation:
        """The multiplication in the body of the reduction."""
        op = yielded(self.reduction.op.body.block)[0].owner
        assert isinstance(op, Operation)
        return op

    @property
    def indices(self) -> tuple[SSAValue, ...]:
        """Indices of the body, the reduction indices first."""
        return (*self.reduction.indices, *self.reduction.outer_indices)

    def sums(self, tiles: Tiles) -> Ints:
        """Returns the number of accumulators of a tile."""
        return tiles.tile[self.row] * tiles.tile[self.column]


@dataclass(frozen=True)
class Operations:
    """Operations of a nest under some schedules.

    info      the nest
    products  contractions that these schedules compute as matmuls
    """

    info: NestInfo
    products: tuple[Matmul, ...]

    @cached_property
    def nested(self) -> bool:
        """True if a matmul is inside another reduction."""
        return is_nested(self.products)

    @cached_property
    def others(self) -> list[Counted]:
        """Operations that are not part of a matmul."""
        inside: set[Operation] = set()
        for p in self.products:
            inside |= {p.reduction.op, p.multiplication}
            for joined in (f.owner for f in p.factors if isinstance(f.owner, CombineBf16x3Op)):
                inside |= {joined, *(o.owner for o in joined.operands if isinstance(o.owner, Operation))}
        return [c for c in self.info.operations if c.op not in inside]


def find_matmuls(info: NestInfo) -> list[Matmul]:
    """Returns the contractions of a nest that may be matmuls, outermost first.

    The longest index of each operand is its row or column. The left operand is the one whose index comes first in the
    nest, so that a tile has the order of the result in memory.
    """
    matmuls = list[Matmul]()
    for r in sorted(info.reductions, key=lambda r: not r.outermost):
        if r.contraction is not None:
            matmuls += _matmuls(info, r, *([longest_index(info, side)] for side in r.contraction.sides))
    return matmuls


def contiguous_alternatives(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """Returns matmuls of the same contractions with other rows or columns: indices that are contiguous in an operand.

    The longest index need not be contiguous, such as the batch of a convolution of small images. Used for the CPU,
    where a thread reads rows of a tile in place. Nested matmuls have no alternatives.
    """
    matmuls = list[Matmul]()
    for p in () if is_nested(products) else products:
        contraction = p.reduction.contraction
        assert contraction is not None
        choices = list[list[SSAValue]]()
        for side, operand in zip(contraction.sides, p.factors, strict=True):
            load, longest = loaded_factor(operand), longest_index(info, side)
            gaps = {} if load is None else strides(load)
            near = [i for i in side if 0 < gaps.get(i, 0) <= NEAR and i is not longest]
            choices.append([longest, *near[:1]])
        matmuls += _matmuls(info, p.reduction, *choices)[1:]
    return matmuls


def _matmuls(info: NestInfo, r: Reduction, lhs: Iterable[SSAValue], rhs: Iterable[SSAValue]) -> list[Matmul]:
    """Returns the matmuls of a contraction for all pairs of indices with at least `MIN_EXTENT` values.

    Args:
        info: the nest.
        r: the contraction.
        lhs: candidates for the index of the left operand.
        rhs: candidates for the index of the right operand.
    """
    matmuls, order = list[Matmul](), {index: i for i, index in enumerate(info.extents)}
    for row, column in product(lhs, rhs):
        if min(info.extents[row], info.extents[column]) < MIN_EXTENT:
            continue
        if order[row] <= order[column]:
            matmuls.append(Matmul(r, row, column))
        else:
            assert r.contraction is not None
            matmuls.append(Matmul(dataclasses.replace(r, contraction=r.contraction.turned), column, row))
    return matmuls


def by_products(products: list[Matmul], tiles: Tiles) -> Iterator[tuple[list[Matmul], Bools]]:
    """Groups schedules by the matmuls that they compute: yields matmuls with a mask of the schedules.

    A schedule computes a contraction as a matmul if its tile has several rows and columns, and one value of each other
    index of the result, because `tile.dot` has no batch dimension. Of several matmuls of one contraction the first is
    taken. All other contractions are computed as plain reductions.
    """
    several, taken = list[Bools](), dict[Operation, Bools]()
    for p in products:
        batch = tiles.elements(p.reduction.outer_indices - {p.row, p.column})
        here = (tiles.tile[p.row] > 1) & (tiles.tile[p.column] > 1) & (batch == 1)
        before = taken.get(p.reduction.op, np.zeros(tiles.rows, dtype=np.bool_))
        several.append(here & ~before)
        taken[p.reduction.op] = before | here
    columns = np.stack([*several, np.ones(tiles.rows, dtype=np.bool_)], axis=1)
    for kind in np.unique(columns, axis=0):
        yield [p for p, here in zip(products, kind[:-1], strict=True) if here], (columns == kind).all(axis=1)


def may_be_rows(info: NestInfo, products: list[Matmul]) -> bool:
    """Returns true if a plain reduction may be as fast as a matmul, because a matmul tile would be mostly padding."""
    return not is_nested(products) and any(
        min(info.extents[p.row], info.extents[p.column]) < FEW_ROWS for p in products
    )


def distinct(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """Returns `products` without duplicates: stages of a staged reduction may contain the same contraction."""
    computed = {counted.op for counted in info.operations} if products else ()
    return [p for p in products if p.reduction.op in computed]


def longest_index(info: NestInfo, indices: Iterable[SSAValue]) -> SSAValue:
    """Returns the index with the largest extent; of several, the last in the order of the nest."""
    order = {index: i for i, index in enumerate(info.extents)}
    return max(indices, key=lambda i: (info.extents[i], order[i]))


def longest_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """Returns the longest index that a matmul sums over."""
    return longest_index(info, p.reduction.indices)


def own_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """Returns the reduction index that gets a chunk on a CPU: the longest one without shared coordinates.

    In a convolution, an index of the window shares a coordinate (`%i + %r`) with rows or columns. Its bounds would
    depend on the row, so another index is preferred.
    """

    def shares(index: SSAValue) -> bool:
        for op in info.loads:
            for result in op.map.data.results:
                indices = {op.indices[d] for d in result.used_dims()}
                if index in indices and indices & {p.row, p.column}:
                    return True
        return False

    return longest_index(info, [i for i in p.reduction.indices if not shares(i)] or p.reduction.indices)


def is_nested(products: Iterable[Matmul]) -> bool:
    """Returns true if a matmul is inside another reduction."""
    return any(not p.reduction.outermost for p in products)


def main_matmul(info: NestInfo, products: list[Matmul]) -> Matmul:
    """Returns the matmul whose rows and columns are indices of the result, or the first one if there is none."""
    return next((p for p in products if p.row in info.free and p.column in info.free), products[0])


def may_be_narrow(product: Matmul, precision: str) -> bool:
    """Returns true if tensor cores may compute a matmul. `precision`: the option `f32_matmul_precision`."""
    if not is_float(product.multiplication.results[0].type):
        return False
    narrow = narrow_type(product, precision != "ieee")
    if precision != "bf16x3":
        return narrow is not None or precision == "tf32"
    return narrow == bf16 or narrow_type(product) is not None or computed_operands(product) == 2


def is_tf32(product: Matmul, precision: str) -> bool:
    """Returns true if tensor cores multiply a matmul in tf32. `precision`: the option `f32_matmul_precision`."""
    return precision == "tf32" and narrow_type(product) is None


def atom_depth(product: Matmul, precision: str) -> int:
    """Returns the minimum chunk of a matmul on tensor cores. `precision`: the option `f32_matmul_precision`."""
    if is_tf32(product, precision):
        return least_depth(f32)
    return least_depth(narrow_type(product, precision != "ieee") or bf16)


def is_contiguous_along_k(product: Matmul, load: loop.LoadOp) -> bool:
    """Returns true if a loaded operand is contiguous along a reduction index of the matmul."""
    last = load.map.data.results[-1]
    return isinstance(last, AffineDimExpr) and load.indices[last.position] in product.reduction.indices


def computed_operands(product: Matmul) -> int:
    """Returns the number of operands that are not widened from 16 bits: they are loaded or computed in f32."""
    return sum(widened_from(f) is None for f in product.factors)


def on_tensor_cores(info: NestInfo, atom: str, target: Target) -> bool:
    """Returns true if matmuls run at the rate of tensor cores, or of bf16 instructions on a CPU.

    Args:
        info: the nest.
        atom: decision `atom` of its schedule.
        target: the target.
    """
    return atom != "fma" or target.has("bf16") and any(product.of_bf16 for product in find_matmuls(info))


def narrow_type(product: Matmul, may_narrow: bool = False) -> Attribute | None:
    """Returns the 16-bit type that both operands were widened from (with `may_narrow`, one of them), or None."""
    types = {*map(widened_from, product.factors)}
    if may_narrow and len(types) == 2:
        types.discard(None)
    return types.pop() if len(types) == 1 else None


def uses_matmul_result(factor: SSAValue, products: Collection[Operation]) -> bool:
    """Returns true if an operand is computed from the result of another matmul, such as the weights of attention.

    Such an operand is in registers already, and tensor cores can read it there.

    Args:
        factor: the operand.
        products: reductions of the matmuls.
    """
    seen, todo = set[SSAValue](), [factor]
    while todo:
        value = todo.pop()
        op = value.owner
        if op in products:
            return True
        if value not in seen and not isinstance(op, Block | loop.LoadOp) and payload.is_payload(op):
            seen.add(value)
            todo.extend(op.operands)
    return False


def is_wide(load: loop.LoadOp) -> bool:
    """Returns true for a load of f32."""
    return isinstance(element_type(load.result.type), Float32Type)


def loads_of(factor: SSAValue, narrow: bool) -> list[loop.LoadOp]:
    """Returns the loads that an operand consists of: one load, the loads of its bf16 parts, or none if it is computed.

    Args:
        factor: the operand.
        narrow: whether the matmul takes 16-bit operands. Then the function looks through casts and parts.
    """
    op = factor.owner
    if narrow and (parts := parts_of(factor)) is not None:
        return [part.owner for part in parts if isinstance(part.owner, loop.LoadOp)]
    if narrow and isinstance(op, CastOp):
        op = op.operand.owner
    return [op] if isinstance(op, loop.LoadOp) else []


def operand_loads(products: Iterable[Matmul]) -> list[loop.LoadOp]:
    """Returns the loads of operands on tensor cores."""
    return list(dict.fromkeys(op for p in products for f in p.factors for op in loads_of(f, narrow=True)))
