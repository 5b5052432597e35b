"""Which reductions are contractions: sums of products whose factors do not share all their free indices."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.tensor import ReductionKind
from .dependence import Dependence, Indices, yielded


@dataclass(frozen=True)
class Contraction:
    """`sum over k of a[m, k] * b[n, k]`: the factors, and the indices that only one of them depends on."""

    lhs: SSAValue
    rhs: SSAValue
    only_lhs: Indices
    only_rhs: Indices
    shared: Indices


def find_contraction(op: loop.ReduceOp, dependence: Dependence) -> Contraction | None:
    """The contraction that `op` is, if it is one: both factors depend on a reduction index, and each on an index that
    the other one does not depend on."""
    if op.kind.data != ReductionKind.ADD:
        return None
    product = yielded(op.body.block)[0].owner
    if not isinstance(product, arith.MulfOp) or product.parent_block() is not op.body.block:
        return None
    own = frozenset(op.body.block.args)
    a, b = dependence.of(product.lhs), dependence.of(product.rhs)
    if not (a & own and b & own and (a - own) - b and (b - own) - a):
        return None
    return Contraction(product.lhs, product.rhs, (a - own) - b, (b - own) - a, (a & b) - own)
