"""The matmuls of a nest: contractions with rows and columns that a tile can have several of, their operands, and which
of them may be on tensor cores."""

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
"""Rows and columns of a matmul, at least: with one, no number is used twice, and tiles could share nothing."""

FEW_ROWS = 8
"""Rows or columns below which a tile may be mostly padding, so that rows by themselves may be as fast."""


@dataclass(frozen=True)
class Matmul:
    """A contraction with the longest indices of its rows and columns, or others that are contiguous in memory."""

    reduction: Reduction
    row: SSAValue
    column: SSAValue

    @property
    def factors(self) -> tuple[SSAValue, SSAValue]:
        contraction = self.reduction.contraction
        assert contraction is not None
        return contraction.lhs, contraction.rhs

    @property
    def of_bf16(self) -> bool:
        """True if both operands are loaded in bf16."""
        return narrow_type(self) == bf16 and None not in map(loaded_factor, self.factors)

    @property
    def multiplication(self) -> Operation:
        op = yielded(self.reduction.op.body.block)[0].owner
        assert isinstance(op, Operation)
        return op

    @property
    def indices(self) -> tuple[SSAValue, ...]:
        """All indices, those of the sum first."""
        return (*self.reduction.indices, *self.reduction.around)

    def sums(self, tiles: Tiles) -> Ints:
        """Returns the accumulators of a tile."""
        return tiles.tile[self.row] * tiles.tile[self.column]


@dataclass(frozen=True)
class Operations:
    """Operations of a nest: `products`, those that are matmuls under some schedules, and the `others`."""

    info: NestInfo
    products: tuple[Matmul, ...]

    @cached_property
    def nested(self) -> bool:
        return is_nested(self.products)

    @cached_property
    def others(self) -> list[Counted]:
        """The operations that are part of no matmul."""
        inside: set[Operation] = set()
        for p in self.products:
            inside |= {p.reduction.op, p.multiplication}
            for joined in (f.owner for f in p.factors if isinstance(f.owner, CombineBf16x3Op)):
                inside |= {joined, *(o.owner for o in joined.operands if isinstance(o.owner, Operation))}
        return [c for c in self.info.operations if c.op not in inside]


def find_matmuls(info: NestInfo) -> list[Matmul]:
    """Returns the contractions of a nest that may be matmuls, outermost first.

    The rows and the left operand have the index that comes first in the nest, as in the result in memory."""
    matmuls = list[Matmul]()
    for r in sorted(info.reductions, key=lambda r: not r.outermost):
        if r.contraction is not None:
            matmuls += _matmuls(info, r, *([longest_index(info, side)] for side in r.contraction.sides))
    return matmuls


def contiguous_alternatives(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """Returns matmuls of the same contractions whose rows or columns are contiguous in an operand.

    The longest index may be another one, as the batch of small images is. On a CPU one thread reads the rows of a tile
    in memory. Nested products have no alternatives.
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
    """Returns the matmuls of a contraction for all pairs of indices of its operands that are long enough."""
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
    """Yields the matmuls that schedules have in common, with a mask of the schedules.

    A contraction is a matmul of a schedule if its tile has several rows and columns, and one value of each other index
    of the result: a `tile.dot` has no batch. Of several matmuls of one contraction the first is taken. Other
    contractions are sums of rows.
    """
    several, taken = list[Bools](), dict[Operation, Bools]()
    for p in products:
        batch = tiles.elements(p.reduction.around - {p.row, p.column})
        here = (tiles.tile[p.row] > 1) & (tiles.tile[p.column] > 1) & (batch == 1)
        before = taken.get(p.reduction.op, np.zeros(tiles.rows, dtype=np.bool_))
        several.append(here & ~before)
        taken[p.reduction.op] = before | here
    columns = np.stack([*several, np.ones(tiles.rows, dtype=np.bool_)], axis=1)
    for kind in np.unique(columns, axis=0):
        yield [p for p, here in zip(products, kind[:-1], strict=True) if here], (columns == kind).all(axis=1)


def may_be_rows(info: NestInfo, products: list[Matmul]) -> bool:
    """Returns true if rows by themselves may be as fast as matmuls, whose tiles would mostly be padding."""
    return not is_nested(products) and any(
        min(info.extents[p.row], info.extents[p.column]) < FEW_ROWS for p in products
    )


def distinct(info: NestInfo, products: list[Matmul]) -> list[Matmul]:
    """Returns `products` without those that the stages of a staged reduction repeat: they are computed once."""
    computed = {counted.op for counted in info.operations} if products else ()
    return [p for p in products if p.reduction.op in computed]


def longest_index(info: NestInfo, indices: Iterable[SSAValue]) -> SSAValue:
    """Returns the index with the largest range, of equals the last in the order of the nest."""
    order = {index: i for i, index in enumerate(info.extents)}
    return max(indices, key=lambda i: (info.extents[i], order[i]))


def longest_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """Returns the longest index that a matmul sums over."""
    return longest_index(info, p.reduction.indices)


def own_sum_index(info: NestInfo, p: Matmul) -> SSAValue:
    """Returns the index that a core sums over at once: the longest, but in a convolution one that shares no coordinate
    with rows or columns, because then the bounds of one index depend on the other."""

    def shares(index: SSAValue) -> bool:
        for op in info.loads:
            for result in op.map.data.results:
                indices = {op.indices[d] for d in result.used_dims()}
                if index in indices and indices & {p.row, p.column}:
                    return True
        return False

    return longest_index(info, [i for i in p.reduction.indices if not shares(i)] or p.reduction.indices)


def is_nested(products: Iterable[Matmul]) -> bool:
    return any(not p.reduction.outermost for p in products)


def main_matmul(info: NestInfo, products: list[Matmul]) -> Matmul:
    """Returns the matmul whose tiles are those of the result."""
    return next((p for p in products if p.row in info.free and p.column in info.free), products[0])


def may_be_narrow(product: Matmul, precision: str) -> bool:
    """Returns true if a matmul may be on tensor cores under the permission `f32_matmul_precision`."""
    if not is_float(product.multiplication.results[0].type):
        return False
    narrow = narrow_type(product, precision != "ieee")
    if precision != "bf16x3":
        return narrow is not None or precision == "tf32"
    return narrow == bf16 or narrow_type(product) is not None or computed_operands(product) == 2


def is_tf32(product: Matmul, precision: str) -> bool:
    """Returns true if a matmul on tensor cores multiplies f32 under the permission `f32_matmul_precision`."""
    return precision == "tf32" and narrow_type(product) is None


def atom_depth(product: Matmul, precision: str) -> int:
    """Returns the least depth of a tile on tensor cores under the permission `f32_matmul_precision`."""
    if is_tf32(product, precision):
        return least_depth(f32)
    return least_depth(narrow_type(product, precision != "ieee") or bf16)


def lies_along_k(product: Matmul, load: loop.LoadOp) -> bool:
    """Returns true if a loaded operand is contiguous along an index that the matmul sums over."""
    last = load.map.data.results[-1]
    return isinstance(last, AffineDimExpr) and load.indices[last.position] in product.reduction.indices


def computed_operands(product: Matmul) -> int:
    """Returns how many operands of a matmul were computed in f32, or loaded as f32."""
    return sum(widened_from(f) is None for f in product.factors)


def on_tensor_cores(info: NestInfo, atom: str, target: Target) -> bool:
    """Returns true if matmuls of a nest with this atom have the peak rate of tensor cores, or that of bf16 on a CPU."""
    return atom != "fma" or target.has("bf16") and any(product.of_bf16 for product in find_matmuls(info))


def narrow_type(product: Matmul, may_narrow: bool = False) -> Attribute | None:
    """Returns the type for tensor cores that both operands were widened from, with `may_narrow` one of them, or
    None."""
    types = {*map(widened_from, product.factors)}
    if may_narrow and len(types) == 2:
        types.discard(None)
    return types.pop() if len(types) == 1 else None


def is_kept(factor: SSAValue, products: Collection[Operation]) -> bool:
    """Returns true if an operand is computed from the sums of another matmul (weights of attention): tensor cores take
    it from the registers of the threads."""
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
    return isinstance(element_type(load.result.type), Float32Type)


def loads_of(factor: SSAValue, narrow: bool) -> list[loop.LoadOp]:
    """Returns the load that an operand is, or the loads of its parts; empty if the operand is computed. In a matmul of
    `narrow` operands the load may be widened."""
    op = factor.owner
    if narrow and (parts := parts_of(factor)) is not None:
        return [part.owner for part in parts if isinstance(part.owner, loop.LoadOp)]
    if narrow and isinstance(op, CastOp):
        op = op.operand.owner
    return [op] if isinstance(op, loop.LoadOp) else []


def operand_loads(products: Iterable[Matmul]) -> list[loop.LoadOp]:
    """Returns the loads of operands on tensor cores."""
    return list(dict.fromkeys(op for p in products for f in p.factors for op in loads_of(f, narrow=True)))
