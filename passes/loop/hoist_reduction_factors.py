"""Moving factors that a sum does not run over out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from ...dialects import loop, payload
from ...dialects.loop.dependence import is_in
from ...dialects.payload import is_float
from ...dialects.tensor import ReductionKind
from ..dce import erase_unneeded
from ..rewriting import rewrite_region

Divisor = tuple[SSAValue, FastMathFlagsAttr]
"""What is divided by, and the flags of the division, which it keeps wherever it goes."""


@dataclass
class _Product:
    """A value as sign * numerators / denominators."""

    block: Block
    negative: bool = False
    over: list[SSAValue] = field(default_factory=list[SSAValue])
    under: list[Divisor] = field(default_factory=list[Divisor])

    def take_apart(self, value: SSAValue, division: FastMathFlagsAttr | None = None) -> None:
        """Multiply by `value`, factor by factor, or divide by it in a division with these flags."""
        op = value.owner
        if isinstance(op, Operation) and op.parent is self.block and is_float(value.type):
            if isinstance(op, arith.MulfOp) and op.lhs is not op.rhs:  # squares of squares have 2^n factors
                self.take_apart(op.lhs, division)
                self.take_apart(op.rhs, division)
                return
            if isinstance(op, arith.DivfOp):
                self.take_apart(op.lhs, division)
                self.take_apart(op.rhs, op.fastmath if division is None else None)
                return
            if isinstance(op, arith.NegfOp):
                self.negative = not self.negative
                self.take_apart(op.operand, division)
                return
        if division is None:
            self.over.append(value)
        else:
            self.under.append((value, division))


class HoistFactors(RewritePattern):
    """sum(x * f / g) = sum(x) * f / g, where f and g are known before the sum begins."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: loop.ReduceOp, rewriter: PatternRewriter, /) -> None:
        block = op.body.block
        if op.kind.data != ReductionKind.ADD or not is_float(op.result.type) or 0 in op.sizes:
            return  # a sum of nothing is 0, which a factor could turn into NaN
        (yielded,) = _end(block).operands
        product = _Product(block)
        product.take_apart(yielded)
        over = [v for v in product.over if is_in(v, block)]
        under = [(v, flags) for v, flags in product.under if is_in(v, block)]
        outer_over = [v for v in product.over if not is_in(v, block)]
        outer_under = [(v, flags) for v, flags in product.under if not is_in(v, block)]
        if not over or not (outer_over or outer_under or product.negative):
            return
        kept = list[Operation]()
        value = _multiplied(kept, over[0], over[1:])
        if under:
            divisor = _multiplied(kept, under[0][0], [v for v, _ in under[1:]])
            kept.append(division := arith.DivfOp(value, divisor, under[0][1] if len(under) == 1 else None))
            value = division.result
        rewriter.insert(kept, InsertPoint.before(_end(block)))
        _end(block).operands[0] = value
        erase_unneeded(op.body)
        moved = list[Operation]()
        total = _multiplied(moved, op.result, outer_over)
        for divisor, flags in outer_under:
            moved.append(division := arith.DivfOp(total, divisor, flags))
            total = division.result
        if product.negative:
            moved.append(arith.NegfOp(total))
        _replace(op, moved, rewriter)


class HoistSelect(RewritePattern):
    """sum(c ? x : 0) = c ? sum(x) : 0, where c is known before the sum begins."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: loop.ReduceOp, rewriter: PatternRewriter, /) -> None:
        block = op.body.block
        (yielded,) = _end(block).operands
        select = yielded.owner
        if op.kind.data != ReductionKind.ADD or not isinstance(select, payload.SelectOp) or select.parent is not block:
            return
        for value, zero in ((select.lhs, select.rhs), (select.rhs, select.lhs)):
            if _is_zero(zero) and is_in(value, block) and not is_in(zero, block) and not is_in(select.cond, block):
                _end(block).operands[0] = value
                erase_unneeded(op.body)
                sides = (op.result, zero) if value is select.lhs else (zero, op.result)
                _replace(op, [payload.SelectOp(select.cond, *sides)], rewriter)
                return


@dataclass(frozen=True)
class HoistReductionFactorsPass(ModulePass):
    """Move what does not change during a sum out of it: factors, divisors, signs, and selections against zero.

    What: `loop.reduce add` of a product keeps the factors that depend on its indices; the rest multiplies the result.
    Innermost reductions first, so factors move through several.
    Why: fewer operations; a sum of products of loads is a contraction, of anything else it is not; and a reduction
    whose body no longer mentions an earlier result need not wait for it (RMSNorm into a matrix product).
    Why here: before loop-fuse-reductions, which moves partial results only where it must.

    ```mlir
    %s = loop.reduce add (%k) in [64] -> f32 { ...  %q = arith.mulf %p, %r : f32  loop.yield %q : f32 }
    ```
    becomes, with `%r` defined outside,
    ```mlir
    %s = loop.reduce add (%k) in [64] -> f32 { ...  loop.yield %p : f32 }
    %t = arith.mulf %s, %r : f32
    ```
    """

    name = "loop-hoist-reduction-factors"
    needs: ClassVar[Mapping[str, int]] = {"loop.reduce": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        while rewrite_region(op.body, [HoistSelect(), HoistFactors()], regions_first=True):
            pass


def _end(block: Block) -> Operation:
    assert block.last_op is not None
    return block.last_op


def _is_zero(value: SSAValue) -> bool:
    return isinstance(value.owner, payload.ConstantOp) and value.owner.scalar == 0


def _multiplied(ops: list[Operation], first: SSAValue, factors: list[SSAValue]) -> SSAValue:
    """`first * factors[0] * ...`, appended to `ops`."""
    for factor in factors:
        ops.append(product := arith.MulfOp(first, factor))
        first = product.result
    return first


def _replace(op: loop.ReduceOp, ops: list[Operation], rewriter: PatternRewriter) -> None:
    """Put `ops`, which compute from the result of `op`, after it, and let all others use the last one."""
    rewriter.insert(ops, InsertPoint.after(op))
    op.result.replace_uses_with_if(ops[-1].results[0], lambda use: use.operation not in ops)
    rewriter.notify_op_modified(op)
