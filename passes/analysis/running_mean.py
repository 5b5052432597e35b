"""Means that mean something before the whole range has been seen: sums divided by a running count.

A sum is divided by how many there are; computed in chunks, a sum so far by how many there were so far. Then what is
measured from the mean (a variance) is measured from the mean of what was seen, and moves to that of all by small steps,
as in Welford's and Chan's formulas. So the number becomes a reduction of its own, a sum of ones.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, Region, SSAValue

from ...dialects import loop, payload
from ...dialects.payload import is_float
from ...dialects.support.locations import copy_location
from ...dialects.tensor import ReductionKind
from .block_order import BlockOrder, shares_a_load
from .rescaling import is_count

EXACT = 1 << 24
"""Counts are exact in f32 up to here."""


def count_running(block: Block, least: int) -> None:
    """Let every mean in `block` of at least `least` terms, from which another reduction over the same terms measures,
    divide by a count."""
    order = BlockOrder(block)
    reduces = [op for op in order.ops if isinstance(op, loop.ReduceOp)]
    for mean in order.ops:
        total = mean.lhs.owner if isinstance(mean, arith.DivfOp) else None
        if not isinstance(mean, arith.DivfOp) or not isinstance(total, loop.ReduceOp) or total.parent is not block:
            continue
        number = mean.rhs.owner
        sizes = [n for n in total.sizes if isinstance(n, int)]
        if (
            total.kind.data != ReductionKind.ADD
            or len(sizes) < len(total.sizes)
            or not isinstance(number, payload.ConstantOp)
        ):
            continue
        if not max(least, 2) <= prod(sizes) <= EXACT or number.scalar != prod(sizes):
            continue
        if any(order.uses(r, mean) and r.sizes == total.sizes and shares_a_load(r, total) for r in reduces):
            mean.operands[1] = _count_before(total)


def _count_before(total: loop.ReduceOp) -> SSAValue:
    """A reduction in front of `total` that counts its terms."""
    block = Block(arg_types=[a.type for a in total.body.block.args])
    one = payload.ConstantOp(1.0, total.result.type)
    block.add_ops([one, loop.YieldOp(one.result)])
    count = loop.ReduceOp(ReductionKind.ADD, total.sizes, Region(block), total.result.type)
    count.result.name_hint = "count"
    copy_location(total, [count, *block.ops])
    assert total.parent is not None
    total.parent.insert_op_before(count, total)
    return count.result


def counted(reduce: loop.ReduceOp) -> int | None:
    """The number that `reduce` comes to, if it counts over a known range."""
    sizes = [n for n in reduce.sizes if isinstance(n, int)]
    return prod(sizes) if is_count(reduce) and len(sizes) == len(reduce.sizes) else None


def fold_counts(block: Block) -> None:
    """Replace the counts that stand alone in `block` by their numbers."""
    for op in tuple(block.ops):
        if isinstance(op, loop.ReduceOp) and is_float(op.result.type) and (number := counted(op)) is not None:
            constant = payload.ConstantOp(float(number), op.result.type)
            copy_location(op, [constant])
            block.insert_op_before(constant, op)
            op.result.replace_all_uses_with(constant.result)
            block.erase_op(op)


def divides(total: loop.ReduceOp, count: loop.ReduceOp) -> bool:
    """Whether some mean is `total` divided by `count`."""
    uses = (use.operation for use in total.result.uses)
    return any(isinstance(op, arith.DivfOp) and op.rhs is count.result and op.lhs is total.result for op in uses)


def only_as_mean(reduce: loop.ReduceOp, counts: list[loop.ReduceOp], op: Operation, order: BlockOrder) -> bool:
    """Whether `op` needs the sum `reduce` only divided by one of `counts`, or it is one of these."""
    numbers = [c.result for c in counts]
    if reduce in counts:
        return True
    if reduce.kind.data != ReductionKind.ADD:
        return False
    for use in reduce.result.uses:
        user = use.operation
        if user not in order.position:
            if op.is_ancestor(user):
                return False
        elif order.uses(op, user) and not (isinstance(user, arith.DivfOp) and user.rhs in numbers):
            return False
    return bool(counts)
