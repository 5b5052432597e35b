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

from ...dialects import payload, tile
from ...dialects.shapes import affine
from ...dialects.shapes.affine import DIV, MOD, SYM, Simplifier, number_of, symbol
from ...dialects.shapes.ranges import constant_index


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
            symbols = [symbol(i) for i in range(len(operands))]
            return self._form(Simplifier().read(op.map.data.results[0], (), symbols), operands)
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

    def _form(self, form: affine.Form, symbols: list[Form]) -> Form:
        """How an affine expression of values that differ like `symbols` does."""
        ranked, factor = False, form.constant
        for atom, coefficient in form.terms:
            own = self._atom(atom, symbols)
            if isinstance(own, Common):
                factor = math.gcd(factor, coefficient * own.factor)
            elif own is None or ranked or coefficient != 1:
                return None
            else:
                ranked = True
        if not ranked:
            return Common(factor)
        return Ranked() if factor % self.size == 0 else None

    def _atom(self, atom: affine.Atom, symbols: list[Form]) -> Form:
        if atom[0] == SYM:
            return symbols[number_of(atom)]
        inner, divisor = self._form(affine.Form(atom[1], atom[2]), symbols), atom[3]
        if isinstance(inner, Ranked) and divisor % self.size == 0:
            return Common() if atom[0] == DIV else inner
        if not isinstance(inner, Common):
            return None
        if atom[0] == MOD:
            return Common(math.gcd(inner.factor, divisor))
        return Common(inner.factor // divisor if inner.factor % divisor == 0 else 1)


def _is_index(t: Attribute) -> bool:
    return isinstance(t, IndexType)
