"""Grouping reductions over the same range so that one pass over it, in chunks, computes them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import loop, payload
from ...dialects.payload import is_float
from ...dialects.support.locations import copy_location, location_of
from ...dialects.tensor import ReductionKind
from ..analysis.block_order import BlockOrder, shares_a_load
from ..analysis.cluster_rows import SHARED_LENGTH
from ..analysis.rescale_builder import Builder, Expr, repaired
from ..analysis.rescaling import FIXED, ZERO, Chosen, Declined, Kinds, Linear, Recipe, Same, Shift, Typing, is_count
from ..analysis.running_mean import count_running, divides, fold_counts, only_as_mean
from ..cse import eliminate_common_subexpressions
from ..remarks import emit_remark
from ..rewriting import erase_unused, move_before


@dataclass
class Stage:
    """A reduction and how its partial results move; `sums` are the stages of its basis values, itself first."""

    reduce: loop.ReduceOp
    kind: Kinds
    sums: tuple[loop.ReduceOp, ...] = ()


def build_staged(order: BlockOrder, group: Sequence[Stage]) -> loop.StagedReduceOp:
    """Replace the reductions of `group`, all in one block, by one `loop.staged_reduce`."""
    members = [stage.reduce for stage in group]
    between = order.between(members)
    later = [
        op for op in order.after(members) if op not in between and order.position[op] < order.position[members[-1]]
    ]
    stages = _with_basis_sums(group)
    reduces = [stage.reduce for stage in stages]
    rescale = _rescaling(stages)
    body = Block()
    anchor = members[-1].next_op
    assert anchor is not None
    inside = {op: None for op in sorted([*members, *between], key=lambda op: order.position[op])}
    for op in inside:
        for extra in [s.reduce for s in stages if s.reduce not in inside and _first_user(s.reduce, stages) is op]:
            body.add_op(extra)
        op.detach()
        body.add_op(op)
    body.add_op(loop.YieldOp(*(r.result for r in reduces)))
    staged = loop.StagedReduceOp(Region(body), Region(rescale), [r.result.type for r in reduces])
    staged.location = location_of(members[0])
    order.block.insert_op_before(staged, anchor)
    results: dict[SSAValue, SSAValue] = {r.result: new for r, new in zip(reduces, staged.res, strict=True)}
    _use_outside(staged, results, between)
    for op in later:
        move_before(anchor, op)
    _repair_frames(body, reduces)
    copy_location(members[0], (staged,))
    return staged


def _first_user(sum: loop.ReduceOp, stages: Sequence[Stage]) -> Operation | None:
    """The stage for which the basis sum `sum` was added."""
    return next((s.reduce for s in stages if sum in s.sums[1:] and s.reduce is s.sums[0]), None)


def _with_basis_sums(group: Sequence[Stage]) -> list[Stage]:
    """The group with a stage for every basis value, before the stage that needs it; equal ones are shared."""
    stages = list[Stage]()
    for stage in group:
        sums = [stage.reduce]
        if isinstance(stage.kind, Linear):
            for recipe, row in zip(stage.kind.basis[1:], stage.kind.matrix[1:], strict=True):
                sum = _basis_sum(stage.reduce, recipe)
                known = next((s.reduce for s in [*group, *stages] if _same_reduction(s.reduce, sum)), None)
                if known is None:
                    stages.append(Stage(sum, Linear((recipe,), (row,)), ()))
                    known = sum
                else:
                    sum.erase()
                sums.append(known)
        stages.append(Stage(stage.reduce, stage.kind, tuple(sums)))
    _complete_rows(stages)
    return stages


def _complete_rows(stages: Sequence[Stage]) -> None:
    """Give the added stages the sums of the stage they were added for: they move by another row of its matrix."""
    for stage in stages:
        if not stage.sums:
            owner = next(s for s in stages if stage.reduce in s.sums)
            stage.sums = owner.sums


def _same_reduction(a: loop.ReduceOp, b: loop.ReduceOp) -> bool:
    if a.kind != b.kind:
        return False
    same = Same(dict(zip(a.body.block.args, b.body.block.args, strict=True)))
    return same.values(_yielded(a), _yielded(b))


def _yielded(reduce: loop.ReduceOp) -> SSAValue:
    end = reduce.body.block.last_op
    assert end is not None
    return end.operands[0]


def _basis_sum(reduce: loop.ReduceOp, recipe: Recipe) -> loop.ReduceOp:
    """A copy of `reduce` that sums another basis value."""
    values: dict[SSAValue, SSAValue] = {}
    copy = reduce.clone(values)
    block = copy.body.block
    end = block.last_op
    assert end is not None
    ops = list[Operation]()
    end.operands[0] = _compute(recipe, values, ops, copy.result)
    block.insert_ops_before(ops, end)
    erase_unused(block)
    copy.result.name_hint = None
    return copy


def _compute(recipe: Recipe, values: dict[SSAValue, SSAValue], ops: list[Operation], like: SSAValue) -> SSAValue:
    match recipe:
        case ("value", SSAValue() as value):
            return values.get(value, value)
        case ("one",):
            op: Operation = payload.ConstantOp(1, like.type)
        case ("mul" | "div" as name, left, right):
            make = arith.MulfOp if name == "mul" else arith.DivfOp
            a = _compute(left, values, ops, like)  # pyright: ignore[reportArgumentType]
            b = _compute(right, values, ops, like)  # pyright: ignore[reportArgumentType]
            if left == ("one",) and name == "mul":
                return b
            op = make(a, b)
        case ("select" | "unless" as name, SSAValue() as condition, inner):
            zero = payload.ConstantOp(0, like.type)
            ops.append(zero)
            value = _compute(inner, values, ops, like)  # pyright: ignore[reportArgumentType]
            sides = (value, zero.result) if name == "select" else (zero.result, value)
            op = payload.SelectOp(values.get(condition, condition), *sides)
        case _:
            raise AssertionError(recipe)
    ops.append(op)
    return op.results[0]


def _rescaling(stages: Sequence[Stage]) -> Block:
    """The block that moves all results from the old frame to the new one."""
    reduces = [stage.reduce for stage in stages]
    types = [r.result.type for r in reduces]
    block = Block(arg_types=[*types, *types])
    old: dict[SSAValue, SSAValue] = {r.result: a for r, a in zip(reduces, block.args[: len(types)], strict=True)}
    new: dict[SSAValue, SSAValue] = {r.result: a for r, a in zip(reduces, block.args[len(types) :], strict=True)}
    for argument, stage in zip(block.args, [*stages, *stages], strict=True):
        argument.name_hint = stage.reduce.result.name_hint
    builder = Builder(old, new, {r.result: r.kind.data for r in reduces}, [])
    moved = [_moved(stage, builder, old) for stage in stages]
    for op in builder.ops:
        block.add_op(op)
    block.add_op(loop.YieldOp(*moved))
    return block


def _moved(stage: Stage, builder: Builder, old: dict[SSAValue, SSAValue]) -> SSAValue:
    own = old[stage.reduce.result]
    if stage.kind == FIXED:
        return own
    if isinstance(stage.kind, Shift):
        add = arith.AddfOp(own, builder.expression(stage.kind.by, own))
        builder.ops.append(add)
        return add.result
    if isinstance(stage.kind, Chosen):
        constant = stage.kind.otherwise.owner
        assert isinstance(constant, payload.ConstantOp)
        none = payload.ConstantOp(constant.value, own.type)
        select = payload.SelectOp(builder.unmoved(stage.kind.member), own, none.result)
        builder.ops.extend((none, select))
        return select.result
    assert isinstance(stage.kind, Linear)
    total: SSAValue | None = None
    for sum, entry in zip(stage.sums, stage.kind.matrix[0], strict=True):
        if entry != ZERO:
            term = _times(builder, entry, old[sum.result])
            if total is not None:
                add = arith.AddfOp(total, term)
                builder.ops.append(add)
                term = add.result
            total = term
    return own if total is None else total


def _times(builder: Builder, entry: Expr, value: SSAValue) -> SSAValue:
    if entry == ("one",):
        return value
    product = arith.MulfOp(value, builder.expression(entry, value))
    builder.ops.append(product)
    return product.result


def _use_outside(staged: loop.StagedReduceOp, results: dict[SSAValue, SSAValue], between: Sequence[Operation]) -> None:
    """Let everything after `staged` use its results. What lies between stages and is used after them is repeated."""
    place: Operation = staged
    again = set[Operation]()
    for op in reversed(between):
        uses = [use.operation for result in op.results for use in result.uses]
        if any(user in again or not _is_within(user, staged) for user in uses):
            again.add(op)
    for op in between:
        if op in again:
            copy = op.clone(results)
            assert staged.parent is not None
            staged.parent.insert_op_after(copy, place)
            place = copy
            results.update(zip(op.results, copy.results, strict=True))
    copies = {op for op in _following(staged, place)}
    for old, new in results.items():
        for use in tuple(old.uses):
            if not _is_within(use.operation, staged) and use.operation not in copies:
                use.operation.operands[use.index] = new
    for old, new in results.items():
        new.name_hint = old.name_hint


def _following(first: Operation, last: Operation) -> list[Operation]:
    ops, op = list[Operation](), first
    while op is not last and op.next_op is not None:
        op = op.next_op
        ops.append(op)
    return ops


def _is_within(op: Operation, ancestor: Operation) -> bool:
    current: Operation | None = op
    while current is not None and current is not ancestor:
        current = current.parent_op()
    return current is ancestor


def _repair_frames(body: Block, reduces: Sequence[loop.ReduceOp]) -> None:
    """Let later stages use 0 instead of a maximum that has seen nothing, but where terms are compared with it."""
    end = body.last_op
    for reduce in reduces:
        uses = [use for use in reduce.result.uses if use.operation is not end]
        uses = [u for u in uses if not (isinstance(u.operation, payload.CmpOp) and u.operation.parent is not body)]
        if (
            not uses
            or reduce.kind.data not in (ReductionKind.MAX, ReductionKind.MIN)
            or not is_float(reduce.result.type)
        ):
            continue
        ops = list[Operation]()
        frame = repaired(reduce.result, reduce.kind.data, ops)
        for use in uses:
            use.operation.operands[use.index] = frame
        body.insert_ops_after(ops, reduce)


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
    count_from: rows of so many terms have their means computed in chunks, with a running count (`running_mean.py`);
    shorter ones fit into registers, where two readings cost nothing.
    """

    name = "loop-fuse-reductions"

    permit_narrowing: bool = False
    count_from: int = LONG

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        merge_reductions(op.body, self.permit_narrowing, self.count_from)


def merge_reductions(region: Region, permit_narrowing: bool = False, count_from: int = LONG) -> None:
    """Merge what can be merged in every block inside `region`, innermost first."""
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
    """Whether there are two alike among the reductions in `block` that hold merged ones."""
    reductions = [op for op in block.ops if isinstance(op, loop.ReduceOp)]
    holders = [op for op in reductions if any(isinstance(inner, loop.StagedReduceOp) for inner in op.walk())]
    return len({(op.kind, op.sizes) for op in holders}) < len(holders)


def _unify(block: Block) -> None:
    """Let reductions that are equal, but for where their constants stand, become one: as two stages of one reduction
    they could not. What was merged inside of them may have made them equal as well."""
    first = block.first_op
    assert first is not None
    for constant in [op for outer in block.ops for op in outer.walk() if isinstance(op, payload.ConstantOp)]:
        if constant is not first:
            move_before(first, constant)
    region = block.parent
    assert region is not None
    eliminate_common_subexpressions(region)


def _merge_one(block: Block, permit_narrowing: bool) -> bool:
    """Merge the first group of `block` that has more than one reduction."""
    order = BlockOrder(block)
    groups = list[list[Stage]]()
    for op in block.ops:
        if not isinstance(op, loop.ReduceOp) or not op.sizes:
            continue
        reasons = list[str]()
        for group in groups:
            if group[0].reduce.sizes == op.sizes:
                joined = _join(order, group, op, permit_narrowing, reasons)
                if joined is not None:
                    group.append(joined)
                    break
        else:
            groups.append([Stage(op, FIXED)])
        for reason in reasons:
            emit_remark(op, FuseReductionsPass.name, reason)
    for group in groups:
        if len(group) > 1:
            build_staged(order, group)
            return True
    return False


def _join(
    order: BlockOrder, group: list[Stage], op: loop.ReduceOp, permit_narrowing: bool, reasons: list[str]
) -> Stage | None:
    """`op` as a further stage of `group`; None, with a reason unless it has nothing to do with the group."""
    members = [stage.reduce for stage in group]
    used = [stage for stage in group if order.uses(op, stage.reduce)]
    if not used:
        together = is_count(op) or any(shares_a_load(op, m) or (is_count(m) and divides(op, m)) for m in members)
        return Stage(op, FIXED) if together and not order.blocked([*members, op]) else None
    blocker = order.blocked([*members, op])
    if blocker is not None:
        reasons.append(f"stays apart: between it and an earlier reduction lies a {blocker.name}")
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
        reasons.append(f"stays apart, it cannot be computed in chunks: {why}")
        return None
    for narrowed in typing.narrowed:
        emit_remark(narrowed, FuseReductionsPass.name, "assumed that rounding commutes with scaling, as permitted")
    return Stage(op, kind)


def _check_frame(stage: Stage) -> None:
    """Refuse results that mean nothing until the whole range has been seen."""
    kind = stage.reduce.kind.data
    extreme = kind in (ReductionKind.MAX, ReductionKind.MIN) and is_float(stage.reduce.result.type)
    if not extreme and stage.kind == FIXED:
        raise Declined(f"it uses a running {kind.value}, which would need a running count")
