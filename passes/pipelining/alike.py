"""What the blocks of a cluster have in common: which indices have the same value in all of them.

Neighbours along the last index of the grid differ in their rank. An index value is followed through arithmetic in two
forms: the same in all blocks of a cluster, as a multiple of some number; or N * x + rank for clusters of N, with x the
same in all. Of a loop's counter that is meant for one iteration.
That is enough for what grids and loops over tiles are renamed to: dividing the second form by a multiple
of N leaves nothing of the rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineExpr,
    AffineSymExpr,
)

from ...dialects import payload, tile
from ...dialects.kernel_ranges import constant_index


@dataclass(frozen=True)
class Common:
    """A value that is the same in all blocks of a cluster, and a multiple of `factor`; 0 is one of 0."""

    factor: int = 1


@dataclass(frozen=True)
class Ranked:
    """A value that is N * x + rank in clusters of N, with x the same in all blocks."""


Form = Common | Ranked | None
"""How a value differs among the blocks of a cluster; None: in some other way."""


@dataclass
class Alike:
    """The forms of the index values of `kernel`, for clusters of `size` blocks along its last index."""

    kernel: tile.KernelOp
    size: int

    def of(self, value: SSAValue) -> Form:
        """The form of an index value."""
        number = constant_index(value)
        if number is not None:
            return Common(number)
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        operands = [self.of(v) if _is_index(v.type) else None for v in op.operands]
        if isinstance(op, tile.AffineOp) and _is_index(op.result.type):
            return self._affine(op.map.data.results[0], operands)
        pure = payload.is_payload(op) and all(isinstance(f, Common) for f in operands)
        return Common() if pure and _is_index(value.type) else None

    def same(self, value: SSAValue) -> bool:
        """Whether `value` is the same in all blocks of a cluster."""
        return isinstance(self.of(value), Common)

    def same_trips(self, loop: scf.ForOp) -> bool:
        """Whether all blocks of a cluster go through a loop equally often."""
        return all(self.same(v) for v in (loop.lb, loop.ub, loop.step)) or self._strides(loop)

    def _strides(self, loop: scf.ForOp) -> bool:
        """Whether a loop starts at N * x + rank and walks in multiples of N up to one: it then ends alike."""
        up_to, step = self.of(loop.ub), self.of(loop.step)
        return isinstance(self.of(loop.lb), Ranked) and all(
            isinstance(f, Common) and f.factor % self.size == 0 for f in (up_to, step)
        )

    def _argument(self, value: BlockArgument) -> Form:
        parent = value.owner.parent_op()
        if parent is self.kernel and _is_index(value.type):
            grid = dict(zip(self.kernel.blocks, self.kernel.grid_shape, strict=True))
            last = [b for b, n in grid.items() if n != 1][-1:]
            return Ranked() if value in last else Common()
        if not isinstance(parent, scf.ForOp) or value.index:
            return None
        if self._strides(parent):
            return Ranked()
        lower, step = self.of(parent.lb), self.of(parent.step)
        if not isinstance(lower, Common) or not isinstance(step, Common):
            return None
        return Common(math.gcd(lower.factor, step.factor))

    def _affine(self, expr: AffineExpr, symbols: list[Form]) -> Form:
        if isinstance(expr, AffineConstantExpr):
            return Common(expr.value)
        if isinstance(expr, AffineSymExpr):
            return symbols[expr.position]
        if not isinstance(expr, AffineBinaryOpExpr):
            return None
        lhs, rhs = self._affine(expr.lhs, symbols), self._affine(expr.rhs, symbols)
        number = expr.rhs.value if isinstance(expr.rhs, AffineConstantExpr) else 0
        if isinstance(lhs, Common) and isinstance(rhs, Common):
            return _common(expr.kind, lhs.factor, rhs.factor, number)
        if not isinstance(lhs, Ranked):
            lhs, rhs = rhs, lhs
            number = 0
        if not isinstance(lhs, Ranked) or not isinstance(rhs, Common):
            return None
        match expr.kind:
            case AffineBinaryOpKind.Add if rhs.factor % self.size == 0:
                return Ranked()
            case AffineBinaryOpKind.FloorDiv if number > 0 and number % self.size == 0:
                return Common()
            case AffineBinaryOpKind.Mod if number > 0 and number % self.size == 0:
                return Ranked()
            case _:
                return None


def _common(kind: AffineBinaryOpKind, a: int, b: int, number: int) -> Common:
    """The form of an operation on two values that are the same in all blocks; the second is `number` if that is not
    0."""
    match kind:
        case AffineBinaryOpKind.Add:
            return Common(math.gcd(a, b))
        case AffineBinaryOpKind.Mul:
            return Common(a * b)
        case AffineBinaryOpKind.Mod:
            return Common(math.gcd(a, b))
        case AffineBinaryOpKind.FloorDiv if number > 0 and a % number == 0:
            return Common(a // number)
        case _:
            return Common()


def _is_index(t: Attribute) -> bool:
    return isinstance(t, IndexType)
