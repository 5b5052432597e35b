"""`loop-hoist-reduction-factors`: moves loop-invariant factors out of sums."""

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

from ...dialects import loop, payload
from ...dialects.loop.dependence import is_in
from ...dialects.payload import is_float
from ...dialects.tensor import ReductionKind
from ..rewriting import erase_unneeded, insert_after, insert_before

Divisor = tuple[SSAValue, FastMathFlagsAttr]
"""A divisor and the fast-math flags of its division."""


@dataclass
class _Product:
    """A value in the form sign * product of numerators / product of denominators."""

    block: Block
    """Block whose operations are decomposed; other values are factors as a whole."""
    negative: bool = False
    numerators: list[SSAValue] = field(default_factory=list[SSAValue])
    denominators: list[Divisor] = field(default_factory=list[Divisor])

    def multiply(self, value: SSAValue, division: FastMathFlagsAttr | None = None) -> None:
        """Decomposes `value` into factors, and multiplies the product by them.

        If `division` is not None, the product is divided by the factors instead: it has the flags of that division."""
        op = value.owner if isinstance(value.owner, Operation) and value.owner.parent is self.block else None
        # Squares stay whole: n nested squares would have 2^n factors.
        if isinstance(op, arith.MulfOp) and op.lhs is not op.rhs:
            self.multiply(op.lhs, division)
            self.multiply(op.rhs, division)
        elif isinstance(op, arith.DivfOp):
            self.multiply(op.lhs, division)
            self.multiply(op.rhs, op.fastmath if division is None else None)
        elif isinstance(op, arith.NegfOp):
            self.negative = not self.negative
            self.multiply(op.operand, division)
        elif division is None:
            self.numerators.append(value)
        else:
            self.denominators.append((value, division))


def mentions_factor(op: loop.ReduceOp) -> bool:
    """Returns true if the body of `op` may have a factor to hoist: a negation, or a multiplication, division or select
    with a value from outside the body. A quick test before `hoist_select` and `hoist_factors`."""
    block = op.body.block
    uses = (o for o in block.ops if isinstance(o, arith.MulfOp | arith.DivfOp | arith.NegfOp | payload.SelectOp))
    return any(isinstance(o, arith.NegfOp) or not all(is_in(v, block) for v in o.operands) for o in uses)


def hoist_factors(op: loop.ReduceOp) -> bool:
    """Rewrites sum(x * f / g) to sum(x) * f / g, where f and g do not depend on the index of the sum.

    Returns true if the sum has changed."""
    block, end = op.body.block, _end(op)
    if op.kind.data != ReductionKind.ADD or not is_float(op.result.type) or 0 in op.sizes:
        return False  # An empty sum is 0, which a factor could turn into NaN.
    product = _Product(block)
    product.multiply(end.operands[0])
    over = [v for v in product.numerators if is_in(v, block)]
    under = [(v, flags) for v, flags in product.denominators if is_in(v, block)]
    outer_over = [v for v in product.numerators if not is_in(v, block)]
    outer_under = [(v, flags) for v, flags in product.denominators if not is_in(v, block)]
    if not over or not (outer_over or outer_under or product.negative):
        return False
    inner = list[Operation]()
    value = _multiplied(inner, over[0], over[1:])
    if under:
        divisor = _multiplied(inner, under[0][0], [v for v, _ in under[1:]])
        inner.append(division := arith.DivfOp(value, divisor, under[0][1] if len(under) == 1 else None))
        value = division.result
    insert_before(end, *inner, source=op)
    end.operands[0] = value
    outer = list[Operation]()
    total = _multiplied(outer, op.result, outer_over)
    for divisor, flags in outer_under:
        outer.append(division := arith.DivfOp(total, divisor, flags))
        total = division.result
    if product.negative:
        outer.append(arith.NegfOp(total))
    _continue(op, outer)
    return True


def hoist_select(op: loop.ReduceOp) -> bool:
    """Rewrites sum(c ? x : 0) to c ? sum(x) : 0, where c does not depend on the index of the sum.

    Returns true if the sum has changed."""
    block, end = op.body.block, _end(op)
    select = end.operands[0].owner
    if op.kind.data != ReductionKind.ADD or not isinstance(select, payload.SelectOp) or select.parent is not block:
        return False
    for value, zero in ((select.lhs, select.rhs), (select.rhs, select.lhs)):
        is_zero = isinstance(zero.owner, payload.ConstantOp) and zero.owner.scalar == 0
        if is_zero and is_in(value, block) and not is_in(zero, block) and not is_in(select.cond, block):
            end.operands[0] = value
            sides = (op.result, zero) if value is select.lhs else (zero, op.result)
            _continue(op, [payload.SelectOp(select.cond, *sides)])
            return True
    return False


@dataclass(frozen=True)
class HoistReductionFactorsPass(ModulePass):
    """Moves loop-invariant factors, divisors, signs, and selects between a value and zero, out of sums.

    ```mlir
    %s = loop.reduce add (%k) in [64] -> f32 { ...  %q = arith.mulf %p, %r : f32  loop.yield %q : f32 }
    ```
    becomes, with `%r` defined outside,
    ```mlir
    %s = loop.reduce add (%k) in [64] -> f32 { ...  loop.yield %p : f32 }
    %t = arith.mulf %s, %r : f32
    ```

    Innermost sums are rewritten first, so that factors can move out of several.

    **Rationale**:

    - fewer operations;
    - a sum of products of loads is a contraction, a sum with further factors is not;
    - a sum that no longer uses an earlier result need not wait for it, as in RMSNorm before a matmul.

    **Pipeline position**: before `loop-fuse-reductions`, which has to rescale fewer partial results then.
    """

    name = "loop-hoist-reduction-factors"
    needs: ClassVar[Mapping[str, int]] = {"loop.reduce": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        changed = True
        while changed:
            reductions = [inner for inner in op.walk(region_first=True) if isinstance(inner, loop.ReduceOp)]
            changed = any([mentions_factor(r) and (hoist_select(r) or hoist_factors(r)) for r in reductions])


def _end(op: loop.ReduceOp) -> Operation:
    assert op.body.block.last_op is not None
    return op.body.block.last_op


def _multiplied(ops: list[Operation], first: SSAValue, factors: list[SSAValue]) -> SSAValue:
    """Appends multiplications of `first` by all `factors` to `ops`, and returns the product."""
    for factor in factors:
        ops.append(product := arith.MulfOp(first, factor))
        first = product.result
    return first


def _continue(op: loop.ReduceOp, ops: list[Operation]) -> None:
    """Inserts `ops`, which use the result of `op`, after it. All other users of the result use the last of `ops`
    instead."""
    erase_unneeded(op.body)
    insert_after(op, *ops)
    op.result.replace_uses_with_if(ops[-1].results[0], lambda use: use.operation not in ops)
