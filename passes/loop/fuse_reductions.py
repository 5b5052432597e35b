"""Groups of reductions over the same range, which one pass over it computes in chunks: `loop-fuse-reductions`.

A mean is known before the end of the range if its sum is divided by a running count. Then a variance is measured from
the mean of the terms so far, and moves to the mean of all by small steps, as in Welford's and Chan's formulas. So the
number of terms becomes a reduction, a sum of ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import loop, payload
from ...dialects.payload import is_float
from ...dialects.tensor import ReductionKind
from ..analysis.block_order import BlockOrder, shares_a_load
from ..analysis.nest_schedule import SHARED_LENGTH
from ..analysis.rescaling import FIXED, Declined, Typing, counted, is_count, terms_of
from ..pass_manager import emit_remark
from ..rewriting import eliminate_common_subexpressions, insert_before, move_before, replace
from .staged_reduce import Stage, build_staged

NAME = "loop-fuse-reductions"

LONG = SHARED_LENGTH + 1
"""Terms of the shortest row that one block does not easily keep in registers."""


@dataclass(frozen=True)
class FuseReductionsPass(ModulePass):
    """Group reductions over equal ranges into `loop.staged_reduce`, with the rescaling that merges chunks of them.

    What: in each body, reductions with equal extents are put together if later ones use earlier ones and their partial
    results can be moved when the earlier results change (`analysis/rescaling.py`), or if they are independent but read
    the same data. Where a summand moves by a matrix, the other sums that it needs become stages too. Maxima that serve
    as frames are repaired: a range in which everything is masked counts as 0, and moves to 0. Where a reduction has to
    stay apart, a remark says why.
    Why: a kernel can then walk the range once, chunk by chunk (online softmax, flash attention), or in parts that other
    blocks compute (split reductions).
    Why here: after loop-hoist-reduction-factors, which removes most dependences; the last word of the loop level.

    ```mlir
    %m = loop.reduce max (%k) in [64] -> f32 { ... loop.yield %x : f32 }
    %l = loop.reduce add (%k) in [64] -> f32 { ... %p = math.exp (%x - %m) ... loop.yield %p : f32 }
    ```
    becomes
    ```mlir
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      ... the same, with the repaired %m ...
    } rescale (%m_old: f32, %l_old: f32, %m_new: f32, %l_new: f32) {
      ... loop.yield %m_old, %l_old * exp(%m_old - %m_new) ...
    }
    ```

    permit_narrowing: also move sums of values that were rounded to a narrower float after they were scaled, as if
    rounding commuted with scaling. Each use leaves a remark.
    count_from: rows of so many terms have their means computed in chunks, with a running count;
    shorter ones fit into registers, where two readings cost nothing.
    """

    name = "loop-fuse-reductions"
    needs: ClassVar[Mapping[str, int]] = {"loop.reduce": 2}

    permit_narrowing: bool = False
    count_from: int = LONG

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        merge_reductions(op.body, self.permit_narrowing, self.count_from)


def merge_reductions(region: Region, permit_narrowing: bool = False, count_from: int = LONG) -> None:
    """Merges reductions in every block inside `region`, innermost first."""
    for block in region.blocks:
        for op in tuple(block.ops):
            for inner in op.regions:
                merge_reductions(inner, permit_narrowing, count_from)
        if _may_be_equal(block):
            _unify(block)
        if sum(isinstance(op, loop.ReduceOp) for op in block.ops) > 1:
            count_running(block, count_from)
            while _merge_one(block, permit_narrowing):
                pass
            fold_counts(block)


def _may_be_equal(block: Block) -> bool:
    """Returns true if two of the reductions in `block` that hold merged ones look alike."""
    reductions = [op for op in block.ops if isinstance(op, loop.ReduceOp)]
    holders = [op for op in reductions if any(isinstance(inner, loop.StagedReduceOp) for inner in op.walk())]
    return len({(op.kind, op.sizes) for op in holders}) < len(holders)


def _unify(block: Block) -> None:
    """Makes one of reductions that are equal except for the places of their constants, maybe after merging inside of
    them. They could not be two stages of one reduction."""
    first, region = block.first_op, block.parent
    assert first is not None
    assert region is not None
    for constant in [op for outer in block.ops for op in outer.walk() if isinstance(op, payload.ConstantOp)]:
        if constant is not first:
            move_before(first, constant)
    eliminate_common_subexpressions(region)


def _merge_one(block: Block, permit_narrowing: bool) -> bool:
    """Merges the first group of `block` that has more than one reduction. Returns true if there is one."""
    order = BlockOrder(block)
    groups = list[list[Stage]]()
    for op in block.ops:
        if not isinstance(op, loop.ReduceOp) or not op.sizes:
            continue
        for group in groups:
            if group[0].reduce.sizes == op.sizes and (stage := _join(order, group, op, permit_narrowing)) is not None:
                group.append(stage)
                break
        else:
            groups.append([Stage(op, FIXED)])
    for group in groups:
        if len(group) > 1:
            build_staged(order, group)
            return True
    return False


def _join(order: BlockOrder, group: list[Stage], op: loop.ReduceOp, permit_narrowing: bool) -> Stage | None:
    """Returns `op` as a further stage of `group`, or None, with a remark unless it has nothing to do with the group."""
    members = [stage.reduce for stage in group]
    used = [stage for stage in group if order.uses(op, stage.reduce)]
    if not used:
        together = is_count(op) or any(shares_a_load(op, m) or (is_count(m) and divides(op, m)) for m in members)
        return Stage(op, FIXED) if together and not order.blocked([*members, op]) else None
    blocker = order.blocked([*members, op])
    if blocker is not None:
        emit_remark(op, NAME, f"stays apart: between it and an earlier reduction lies a {blocker.name}")
        return None
    try:
        counts = [m for m in members if is_count(m)]
        for stage in used:
            if stage.kind != FIXED or not only_as_mean(stage.reduce, counts, op, order):
                _check_frame(stage)
        frames: dict[SSAValue, loop.ReduceOp] = {stage.reduce.result: stage.reduce for stage in group}
        between: set[SSAValue] = {r for o in order.between([*members, op]) for r in o.results}
        typing = Typing(frames, between, permit_narrowing)
        kind = typing.stage(op)
    except Declined as why:
        emit_remark(op, NAME, f"stays apart, it cannot be computed in chunks: {why}")
        return None
    for narrowed in typing.narrowed:
        emit_remark(narrowed, NAME, "assumed that rounding commutes with scaling, as permitted")
    return Stage(op, kind)


def _check_frame(stage: Stage) -> None:
    """Refuses results that have no meaning before the end of the range."""
    kind = stage.reduce.kind.data
    extreme = kind in (ReductionKind.MAX, ReductionKind.MIN) and is_float(stage.reduce.result.type)
    if not extreme and stage.kind == FIXED:
        raise Declined(f"it uses a running {kind.value}, which would need a running count")


EXACT = 1 << 24
"""Counts are exact in f32 up to here."""


def count_running(block: Block, least: int) -> None:
    """Divides by a count in every mean in `block` of at least `least` terms that another reduction over the same terms
    uses."""
    order = BlockOrder(block)
    reduces = [op for op in order.ops if isinstance(op, loop.ReduceOp)]
    sums: dict[SSAValue, loop.ReduceOp] = {r.result: r for r in reduces if r.kind.data == ReductionKind.ADD}
    for mean in order.ops:
        if not isinstance(mean, arith.DivfOp) or mean.lhs not in sums:
            continue
        total, number = sums[mean.lhs], mean.rhs.owner
        terms = terms_of(total)
        if terms is None or not isinstance(number, payload.ConstantOp) or number.scalar != terms:
            continue
        if max(least, 2) <= terms <= EXACT and any(
            order.uses(r, mean) and r.sizes == total.sizes and shares_a_load(r, total) for r in reduces
        ):
            mean.operands[1] = _count_before(total)


def _count_before(total: loop.ReduceOp) -> SSAValue:
    """Inserts a reduction before `total` that counts its terms. Returns its result."""
    block = Block(arg_types=[a.type for a in total.body.block.args])
    one = payload.ConstantOp(1.0, total.result.type)
    block.add_ops([one, loop.YieldOp(one.result)])
    count = loop.ReduceOp(ReductionKind.ADD, total.sizes, Region(block), total.result.type)
    count.result.name_hint = "count"
    insert_before(total, count)
    return count.result


def fold_counts(block: Block) -> None:
    """Replaces the counts in `block` that were not merged by their numbers."""
    for op in tuple(block.ops):
        if isinstance(op, loop.ReduceOp) and is_float(op.result.type) and (number := counted(op)) is not None:
            replace(op, payload.ConstantOp(float(number), op.result.type))


def divides(total: loop.ReduceOp, count: loop.ReduceOp) -> bool:
    """Returns true if some mean is `total` divided by `count`."""
    uses = (use.operation for use in total.result.uses)
    return any(isinstance(op, arith.DivfOp) and op.rhs is count.result and op.lhs is total.result for op in uses)


def only_as_mean(reduce: loop.ReduceOp, counts: list[loop.ReduceOp], op: Operation, order: BlockOrder) -> bool:
    """Returns true if `op` needs the sum `reduce` only divided by one of `counts`, or if that is one of these."""
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
