"""`loop-fuse-reductions`: groups reductions over one range, so that a kernel can compute them together, chunk by chunk.

A later reduction of a group may use an earlier result, its *reference value*: softmax sums exp(x - max). Chunk by
chunk, the reference value of the chunks so far changes, and partial results are *rescaled* to the new one.

A mean can be a reference value if the sum so far is divided by a running count. Then a variance is computed relative to
the mean of the terms so far, as in the formulas of Welford and Chan. For that, the number of terms becomes a reduction
itself, a sum of ones (`count_running`).
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

MIN_COUNTED_TERMS = SHARED_LENGTH + 1
"""Default of `count_from`: elements of the shortest row that one block cannot hold in registers."""


@dataclass(frozen=True)
class FuseReductionsPass(ModulePass):
    """Groups reductions over equal ranges into `loop.staged_reduce`, with a region that rescales partial results.

    ```mlir
    %m = loop.reduce max (%k) in [64] -> f32 { ... loop.yield %x : f32 }
    %l = loop.reduce add (%k) in [64] -> f32 { ... %p = math.exp (%x - %m) ... loop.yield %p : f32 }
    ```
    becomes
    ```mlir
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      ... the same, with `%m == -inf ? 0 : %m` for %m in exp ...
    } rescale (%m_old: f32, %l_old: f32, %m_new: f32, %l_new: f32) {
      ... loop.yield %m_old, %l_old * exp(%m_old - %m_new) ...
    }
    ```

    Reductions of one body with equal extents are grouped in two cases:

    - a later one uses an earlier result, and its partial results can be rescaled when that changes
      (`analysis/rescaling.py`);
    - they are independent, but load the same data.

    If rescaling a sum needs further sums, these become stages too. A maximum that is a reference value is replaced by 0
    while it is -infinity, which happens if all elements so far are masked. A remark gives the reason if dependent
    reductions are not grouped.

    **Rationale**: a kernel can read the range once, chunk by chunk (online softmax, flash attention), or divide it
    among blocks (split-K).

    **Pipeline position**: after `loop-hoist-reduction-factors`, which removes most dependences.

    **Options**:

    - `permit_narrowing`: also rescale sums of values that were rounded to a narrower float after they were scaled, as
      if rounding commuted with scaling. A remark reports each use.
    - `count_from`: minimum number of terms for which a mean is computed chunk by chunk, with a running count. Shorter
      rows fit in registers and are read twice at no cost.
    """

    name = "loop-fuse-reductions"
    needs: ClassVar[Mapping[str, int]] = {"loop.reduce": 2}

    permit_narrowing: bool = False
    count_from: int = MIN_COUNTED_TERMS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        merge_reductions(op.body, self.permit_narrowing, self.count_from)


def merge_reductions(region: Region, permit_narrowing: bool = False, count_from: int = MIN_COUNTED_TERMS) -> None:
    """Groups reductions in every block inside `region`, innermost first.

    Args:
        region: Region to rewrite.
        permit_narrowing: Option of the pass.
        count_from: Option of the pass.
    """
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
    """Returns true if two reductions in `block` that contain staged reductions have equal kinds and extents."""
    reductions = [op for op in block.ops if isinstance(op, loop.ReduceOp)]
    holders = [op for op in reductions if any(isinstance(inner, loop.StagedReduceOp) for inner in op.walk())]
    return len({(op.kind, op.sizes) for op in holders}) < len(holders)


def _unify(block: Block) -> None:
    """Moves all constants in `block` to its front, and merges the reductions that are equal then.

    Equal reductions may have their constants at different positions after the reductions inside them were grouped. They
    must become one, because they cannot be two stages of one group."""
    first, region = block.first_op, block.parent
    assert first is not None
    assert region is not None
    for constant in [op for outer in block.ops for op in outer.walk() if isinstance(op, payload.ConstantOp)]:
        if constant is not first:
            move_before(first, constant)
    eliminate_common_subexpressions(region)


def _merge_one(block: Block, permit_narrowing: bool) -> bool:
    """Builds the staged reduction of the first group of `block` with more than one member. Returns true if there is
    one."""
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
    """Returns `op` as a further stage of `group`, or None if it cannot be one.

    Emits a remark with the reason if `op` uses a result of the group."""
    members = [stage.reduce for stage in group]
    used = [stage for stage in group if order.uses(op, stage.reduce)]
    if not used:
        together = is_count(op) or any(shares_a_load(op, m) or (is_count(m) and divides(op, m)) for m in members)
        return Stage(op, FIXED) if together and not order.blocked([*members, op]) else None
    blocker = order.blocked([*members, op])
    if blocker is not None:
        emit_remark(op, NAME, f"not grouped: a {blocker.name} between it and an earlier reduction cannot be moved")
        return None
    try:
        counts = [m for m in members if is_count(m)]
        for stage in used:
            if stage.kind != FIXED or not only_as_mean(stage.reduce, counts, op, order):
                _check_reference(stage)
        frames: dict[SSAValue, loop.ReduceOp] = {stage.reduce.result: stage.reduce for stage in group}
        between: set[SSAValue] = {r for o in order.between([*members, op]) for r in o.results}
        typing = Typing(frames, between, permit_narrowing)
        kind = typing.stage(op)
    except Declined as why:
        emit_remark(op, NAME, f"not grouped, because it cannot be computed in chunks: {why}")
        return None
    for narrowed in typing.narrowed:
        emit_remark(narrowed, NAME, "assumed that rounding commutes with scaling, as permitted")
    return Stage(op, kind)


def _check_reference(stage: Stage) -> None:
    """Raises Declined if the partial result of a stage cannot be a reference value, such as a sum without a count."""
    kind = stage.reduce.kind.data
    extreme = kind in (ReductionKind.MAX, ReductionKind.MIN) and is_float(stage.reduce.result.type)
    if not extreme and stage.kind == FIXED:
        raise Declined(f"it uses a running {kind.value}, which would need a running count")


MAX_EXACT_COUNT = 1 << 24
"""Largest count that f32 holds exactly, with all smaller ones."""


def count_running(block: Block, least: int) -> None:
    """Replaces the constant divisor of means by a count, a sum of ones.

    A mean qualifies if it has at least `least` terms and another reduction over the same terms uses it."""
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
        if max(least, 2) <= terms <= MAX_EXACT_COUNT and any(
            order.uses(r, mean) and r.sizes == total.sizes and shares_a_load(r, total) for r in reduces
        ):
            mean.operands[1] = _count_before(total)


def _count_before(total: loop.ReduceOp) -> SSAValue:
    """Inserts a reduction before `total` that counts its terms, and returns the count."""
    block = Block(arg_types=[a.type for a in total.body.block.args])
    one = payload.ConstantOp(1.0, total.result.type)
    block.add_ops([one, loop.YieldOp(one.result)])
    count = loop.ReduceOp(ReductionKind.ADD, total.sizes, Region(block), total.result.type)
    count.result.name_hint = "count"
    insert_before(total, count)
    return count.result


def fold_counts(block: Block) -> None:
    """Replaces counts in `block` that became no stage of a group by constants."""
    for op in tuple(block.ops):
        if isinstance(op, loop.ReduceOp) and is_float(op.result.type) and (number := counted(op)) is not None:
            replace(op, payload.ConstantOp(float(number), op.result.type))


def divides(total: loop.ReduceOp, count: loop.ReduceOp) -> bool:
    """Returns true if a division of `total` by `count` exists."""
    uses = (use.operation for use in total.result.uses)
    return any(isinstance(op, arith.DivfOp) and op.rhs is count.result and op.lhs is total.result for op in uses)


def only_as_mean(reduce: loop.ReduceOp, counts: list[loop.ReduceOp], op: Operation, order: BlockOrder) -> bool:
    """Returns true if `op` uses the sum `reduce` only as a mean, or if `reduce` is a count itself.

    Args:
        reduce: Earlier reduction of a group.
        counts: Counts of the group.
        op: Later reduction that uses `reduce`.
        order: Order of the operations in their block.
    """
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
