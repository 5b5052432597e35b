"""Dependence of values in a nest on loop indices, and recognition of contractions.

In the nest of `sum over k of a[i, k] * b[k, j]`, the load of `a` depends on {i, k} and the sum on {i, j}. The sum is a
contraction, because each operand depends on k and on an index that the other does not depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineDimExpr, AffineExpr

from .. import loop
from ..shapes.extents import extents_of
from ..tensor import ReductionKind

Indices = frozenset[SSAValue]
_NONE: Indices = frozenset()


def yielded(block: Block) -> tuple[SSAValue, ...]:
    """Returns the operands of the terminator of `block`."""
    end = block.last_op
    assert end is not None
    return tuple(end.operands)


def is_in(value: SSAValue, block: Block) -> bool:
    """Returns true if `value` is an argument of `block` or a result of an op directly in it, so it may change with each
    iteration."""
    return value.owner is block or (isinstance(value.owner, Operation) and value.owner.parent is block)


def access_indices(op: loop.LoadOp) -> tuple[SSAValue, ...]:
    """Returns the indices that the address or the domain of a load uses."""
    bounded = op.domain.affine.used_dims() if op.domain is not None else set[int]()
    return tuple(op.indices[d] for d in sorted(op.map.data.used_dims() | bounded))


def contiguous_index(op: loop.LoadOp) -> SSAValue | None:
    """Returns the index along which a load is contiguous in memory, or None if there is none."""
    shape = extents_of(op.source.type)
    last = len(shape) - 1
    while last >= 0 and shape[last] == 1:
        last -= 1
    if last < 0:
        return None
    for term in _terms(op.map.data.results[last]):
        if isinstance(term, AffineDimExpr):
            return op.indices[term.position]
    return None


def _terms(expr: AffineExpr) -> list[AffineExpr]:
    if isinstance(expr, AffineBinaryOpExpr) and expr.kind == AffineBinaryOpKind.Add:
        return _terms(expr.lhs) + _terms(expr.rhs)
    return [expr]


class Dependence:
    """Cached dependence of values on the indices of the enclosing nest and reductions.

    The result of a reduction does not depend on the reduction's own indices.
    """

    def __init__(self) -> None:
        self.of: Callable[[SSAValue], Indices] = cache(self._of)
        """Returns the index arguments that a value depends on; empty for a value from outside the nest."""
        self.of_staged: Callable[[loop.StagedReduceOp], list[Indices]] = cache(self._of_staged)
        """Returns, for each result of a staged reduction that is carried over chunks, the index arguments of its stage
        and of the reference values that its rescaling uses."""

    def _of(self, value: SSAValue) -> Indices:
        if isinstance(value, BlockArgument):
            parent = value.block.parent_op()
            bound = isinstance(parent, loop.NestOp | loop.ReduceOp) and value.type == IndexType()
            return frozenset((value,)) if bound else _NONE
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, loop.NestOp) or op.parent_op() is None:
            return _NONE
        if isinstance(op, loop.LoadOp):
            fill = (op.fill,) if op.fill is not None else ()
            return self._union(*access_indices(op), *op.symbols, *fill)
        if isinstance(op, loop.ReduceOp):
            return self.of_reduce(op)
        if isinstance(op, loop.StagedReduceOp):
            return self.of_staged(op)[op.results.index(value)]
        return self._union(*op.operands)

    def _union(self, *values: SSAValue) -> Indices:
        return _NONE.union(*(self.of(v) for v in values))

    def of_reduce(self, op: loop.ReduceOp) -> Indices:
        return self._union(*yielded(op.body.block)) - frozenset(op.body.block.args)

    def _of_staged(self, op: loop.StagedReduceOp) -> list[Indices]:
        dependences = [self.of_reduce(stage) for stage in op.stage_ops]
        uses = [_rescaling_arguments(op, i) for i in range(len(dependences))]
        while True:
            wider = [
                old.union(*(dependences[a % len(dependences)] for a in used))
                for old, used in zip(dependences, uses, strict=True)
            ]
            if wider == dependences:
                return dependences
            dependences = wider


def rescaling_slice(op: loop.StagedReduceOp, result: int) -> list[Operation]:
    """Returns the operations of the rescaling that compute its result number `result`, in order."""
    needed: set[SSAValue] = {yielded(op.rescale.block)[result]}
    ops: list[Operation] = []
    for inner in reversed(list(op.rescale.block.ops)[:-1]):
        if any(r in needed for r in inner.results):
            needed.update(inner.operands)
            ops.append(inner)
    return ops[::-1]


def _rescaling_arguments(op: loop.StagedReduceOp, result: int) -> list[int]:
    used = {yielded(op.rescale.block)[result]}
    for inner in rescaling_slice(op, result):
        used.update(inner.operands)
    return [i for i, a in enumerate(op.rescale.block.args) if a in used]


@dataclass(frozen=True)
class Contraction:
    """Matmul `sum over k of lhs[m, k] * rhs[n, k]` in a reduction.

    product: the multiplication.
    lhs, rhs: its operands.
    only_lhs, only_rhs: free indices that only this operand depends on (m and n).
    shared: free indices that both depend on (batch).
    """

    product: arith.MulfOp | arith.MuliOp
    lhs: SSAValue
    rhs: SSAValue
    only_lhs: Indices
    only_rhs: Indices
    shared: Indices

    @property
    def sides(self) -> tuple[Indices, Indices]:
        """Returns the indices that only the left and only the right operand depends on."""
        return self.only_lhs, self.only_rhs

    @property
    def turned(self) -> Contraction:
        """Returns the contraction with its operands swapped."""
        return Contraction(self.product, self.rhs, self.lhs, self.only_rhs, self.only_lhs, self.shared)


def find_contraction(op: loop.ReduceOp, dependence: Dependence) -> Contraction | None:
    """Returns the contraction that the reduction `op` computes, or None.

    It is one if both operands of a multiplication depend on a reduction index, and each on a free index that the other
    does not depend on.
    """
    if op.kind.data != ReductionKind.ADD:
        return None
    product = yielded(op.body.block)[0].owner
    if not isinstance(product, arith.MulfOp | arith.MuliOp) or product.parent_block() is not op.body.block:
        return None
    reduced = frozenset(op.body.block.args)
    a, b = dependence.of(product.lhs), dependence.of(product.rhs)
    if not (a & reduced and b & reduced and (a - reduced) - b and (b - reduced) - a):
        return None
    return Contraction(product, product.lhs, product.rhs, (a - reduced) - b, (b - reduced) - a, (a & b) - reduced)
