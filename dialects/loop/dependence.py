"""Which loop indices a value inside a nest depends on, and which reductions are contractions by that."""

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
    """The values that the body `block` ends with."""
    end = block.last_op
    assert end is not None
    return tuple(end.operands)


def is_in(value: SSAValue, block: Block) -> bool:
    """Whether `value` is an argument of `block`, or a result of one of its ops: in a body, whether it may change from
    one iteration to the next."""
    return value.owner is block or (isinstance(value.owner, Operation) and value.owner.parent is block)


def access_indices(op: loop.LoadOp) -> tuple[SSAValue, ...]:
    bounded = op.domain.affine.used_dims() if op.domain is not None else set[int]()
    return tuple(op.indices[d] for d in sorted(op.map.data.used_dims() | bounded))


def contiguous_index(op: loop.LoadOp) -> SSAValue | None:
    """The index whose next value reads the next element in memory, if there is one."""
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
    """Answers, with a memory, on which index arguments of the enclosing nest and reductions a value depends.

    The indices of a reduction are bound by it: its result does not depend on them.
    """

    def __init__(self) -> None:
        self.of: Callable[[SSAValue], Indices] = cache(self._of)
        """Returns the index arguments that a value depends on; none for a value from outside the nest."""
        self.of_staged: Callable[[loop.StagedReduceOp], list[Indices]] = cache(self._of_staged)
        """Returns the same of each result of a staged reduction that is carried over chunks: the indices of its own
        stage, and of the frames that its rescaling uses."""

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
        found = [self.of_reduce(stage) for stage in op.stage_ops]
        uses = [_rescaling_arguments(op, i) for i in range(len(found))]
        while True:
            wider = [old.union(*(found[a % len(found)] for a in used)) for old, used in zip(found, uses, strict=True)]
            if wider == found:
                return found
            found = wider


def transport_slice(op: loop.StagedReduceOp, result: int) -> list[Operation]:
    """The operations of the rescaling that move result `result`, in order."""
    needed: set[SSAValue] = {yielded(op.rescale.block)[result]}
    ops: list[Operation] = []
    for inner in reversed(list(op.rescale.block.ops)[:-1]):
        if any(r in needed for r in inner.results):
            needed.update(inner.operands)
            ops.append(inner)
    return ops[::-1]


def _rescaling_arguments(op: loop.StagedReduceOp, result: int) -> list[int]:
    used = {yielded(op.rescale.block)[result]}
    for inner in transport_slice(op, result):
        used.update(inner.operands)
    return [i for i, a in enumerate(op.rescale.block.args) if a in used]


@dataclass(frozen=True)
class Contraction:
    """`sum over k of a[m, k] * b[n, k]`: the product, its factors, and the indices that only one of them depends on."""

    product: arith.MulfOp | arith.MuliOp
    lhs: SSAValue
    rhs: SSAValue
    only_lhs: Indices
    only_rhs: Indices
    shared: Indices

    @property
    def sides(self) -> tuple[Indices, Indices]:
        return self.only_lhs, self.only_rhs

    @property
    def turned(self) -> Contraction:
        return Contraction(self.product, self.rhs, self.lhs, self.only_rhs, self.only_lhs, self.shared)


def find_contraction(op: loop.ReduceOp, dependence: Dependence) -> Contraction | None:
    """The contraction that `op` is, if it is one: both factors depend on a reduction index, and each on an index that
    the other one does not depend on."""
    if op.kind.data != ReductionKind.ADD:
        return None
    product = yielded(op.body.block)[0].owner
    if not isinstance(product, arith.MulfOp | arith.MuliOp) or product.parent_block() is not op.body.block:
        return None
    own = frozenset(op.body.block.args)
    a, b = dependence.of(product.lhs), dependence.of(product.rhs)
    if not (a & own and b & own and (a - own) - b and (b - own) - a):
        return None
    return Contraction(product, product.lhs, product.rhs, (a - own) - b, (b - own) - a, (a & b) - own)
