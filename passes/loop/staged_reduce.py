"""Builds a `loop.staged_reduce` from a group of reductions, with the region that rescales partial results.

`analysis/rescaling.py` decides how a partial result changes when its reference value does. For a sum, it is a linear
combination of sums of *basis values*: with the matrix T of factors, new sums = T * old sums. Online softmax has one
basis value and T = exp(old max - new max). An `Expr` describes a basis value or an entry of T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from xdsl.dialects import arith, math
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Block, Operation, Region, SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import yielded
from ...dialects.payload import is_float
from ...dialects.support.equivalence import Numbering
from ...dialects.support.locations import copy_location, location_of
from ...dialects.tensor import ReductionKind, identity
from ..analysis.block_order import BlockOrder
from ..analysis.rescaling import FIXED, ONE, ZERO, Chosen, Expr, Kinds, Linear, Shift, depends_on
from ..rewriting import block_of, erase_unneeded, move_before

_OPS: dict[str, Callable[..., Operation]] = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
    "neg": arith.NegfOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "mul_reassoc": partial(arith.MulfOp, flags=FastMathFlagsAttr((FastMathFlag.REASSOC,))),
    "exp2_afn": partial(math.Exp2Op, fastmath=FastMathFlagsAttr((FastMathFlag.APPROX_FUNC,))),
}
"""Name of an operation in an `Expr` -> function that makes it."""


@dataclass
class RescalingBuilder:
    """Emits operations that compute expressions of rescaling. Equal expressions are computed once."""

    ops: list[Operation]
    """Emitted operations, in order."""
    old: Mapping[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Result of a reduction -> its old value in the rescaling region."""
    new: Mapping[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Result of a reduction -> its new value in the rescaling region."""
    kinds: Mapping[SSAValue, ReductionKind] = field(default_factory=dict[SSAValue, ReductionKind])
    """Result of a reduction -> its kind."""
    values: Mapping[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Value in an expression -> value to use where the operations are inserted."""
    guarded: bool = False
    """True inside a "guard" (`Expr`): the result is not used while the old reference value is infinite, so reference
    values need no replacement by 0."""
    done: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue], init=False)
    """Expression -> its value."""

    def expression(self, expr: Expr, like: SSAValue) -> SSAValue:
        """Returns the value of `expr`, with the type of `like`, and emits its operations if needed."""
        key = (expr, self.guarded)
        if key not in self.done:
            self.done[key] = self._build(expr, like)
        return self.done[key]

    def add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def _build(self, expr: Expr, like: SSAValue) -> SSAValue:
        match expr:
            case ("at", SSAValue() as value, side):
                return self.value_at(value, str(side))
            case ("value", SSAValue() as value):
                return self.values.get(value, value)
            case ("one",):
                return self.add(payload.ConstantOp(1, like.type))
            case ("guard", SSAValue() as member, inner):
                empty = self.add(payload.ConstantOp(identity(self.kinds[member], member.type), member.type))
                at_start = self.add(payload.CmpOp("eq", self.old[member], empty))
                zero = self.add(payload.ConstantOp(0, like.type))
                outside, self.guarded = self.guarded, True
                moved = self.expression(inner, like)  # pyright: ignore[reportArgumentType]
                self.guarded = outside
                return self.add(payload.SelectOp(at_start, zero, moved))
            case ("select" | "unless" as name, SSAValue() as condition, inner):
                zero = self.add(payload.ConstantOp(0, like.type))
                value = self.expression(inner, like)  # pyright: ignore[reportArgumentType]
                sides = (value, zero) if name == "select" else (zero, value)
                return self.add(payload.SelectOp(self.values.get(condition, condition), *sides))
            case (name, *parts):
                return self.add(_OPS[str(name)](*(self.expression(part, like) for part in parts)))  # pyright: ignore
            case _:
                raise AssertionError(expr)

    def unmoved(self, member: SSAValue) -> SSAValue:
        """Returns an i1 that is true if the maximum or minimum `member` did not change, or was NaN, which it stays."""
        old, new = self.old[member], self.new[member]
        same = self.add(payload.CmpOp("eq", old, new))
        if not is_float(old.type):
            return same
        return self.add(arith.OrIOp(same, self.add(payload.CmpOp("ne", old, old))))

    def value_at(self, value: SSAValue, side: str) -> SSAValue:
        """Returns `value` at the old or the new reference values: it may depend on results of reductions.

        `side` is "old" or "new". The operations between the results and `value` are emitted again."""
        frame = self.old if side == "old" else self.new
        if value in frame and self.guarded:
            return frame[value]
        key, op = (side, value, self.guarded), value.owner
        if key in self.done:
            return self.done[key]
        if value in frame:
            result = finite_reference(frame[value], self.kinds[value], self.ops)
        elif isinstance(op, Operation) and depends_on(value, set(self.old)):
            result = self.add(payload.retyped(op, [self.value_at(o, side) for o in op.operands], value.type))
        else:
            result = value
        self.done[key] = result
        return result


def finite_reference(value: SSAValue, kind: ReductionKind, ops: list[Operation]) -> SSAValue:
    """Returns a maximum or minimum as a reference value: 0 while it is the infinity from which it starts.

    Args:
        value: Result of a reduction.
        kind: Kind of the reduction. Results of other kinds are returned as they are.
        ops: List to which the new operations are appended.
    """
    if kind not in (ReductionKind.MAX, ReductionKind.MIN) or not is_float(value.type):
        return value
    empty = payload.ConstantOp(identity(kind, value.type), value.type)
    at_start = payload.CmpOp("eq", value, empty.result)
    zero = payload.ConstantOp(0, value.type)
    frame = payload.SelectOp(at_start.result, zero.result, value)
    ops.extend((empty, at_start, zero, frame))
    return frame.result


@dataclass
class Stage:
    """A reduction of a group."""

    reduce: loop.ReduceOp
    kind: Kinds
    """Rule by which its partial results are rescaled: `FIXED` (unchanged), `Shift`, `Linear` (by T) or `Chosen`."""
    sums: tuple[loop.ReduceOp, ...] = ()
    """Sums of the basis values, in the order of the columns of T; the first one is `reduce`."""


def build_staged(order: BlockOrder, group: Sequence[Stage]) -> loop.StagedReduceOp:
    """Replaces the reductions of `group`, all in one block, by one `loop.staged_reduce`."""
    members = [stage.reduce for stage in group]
    between, last = order.between(members), order.position[members[-1]]
    later = [op for op in order.after(members) if op not in between and order.position[op] < last]
    stages = _with_basis_sums(group)
    reduces = [stage.reduce for stage in stages]
    rescale = _rescaling(stages)
    body = Block()
    anchor = members[-1].next_op
    assert anchor is not None
    for op in sorted([*members, *between], key=lambda op: order.position[op]):
        body.add_ops([s.reduce for s in stages if s.sums[0] is op and s.reduce.parent is None])
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
    _use_finite_references(body, reduces)
    copy_location(members[0], (staged,))
    return staged


def _with_basis_sums(group: Sequence[Stage]) -> list[Stage]:
    """Returns the stages of `group` and the further sums that their rescaling needs.

    Each sum is before the first stage that needs it. Equal sums are computed once."""
    stages = list[Stage]()
    for stage in group:
        sums, added = [stage.reduce], list[Stage]()
        if isinstance(stage.kind, Linear):
            for basis, row in zip(stage.kind.basis[1:], stage.kind.matrix[1:], strict=True):
                sum = _basis_sum(stage.reduce, basis)
                existing = next((s.reduce for s in [*group, *stages, *added] if _same_reduction(s.reduce, sum)), None)
                if existing is None:
                    added.append(Stage(sum, Linear((basis,), (row,))))
                else:
                    sum.erase()
                sums.append(sum if existing is None else existing)
        for s in (*added, Stage(stage.reduce, stage.kind)):
            s.sums = tuple(sums)
            stages.append(s)
    return stages


def _same_reduction(a: loop.ReduceOp, b: loop.ReduceOp) -> bool:
    first, second = a.body.block, b.body.block
    numbering = Numbering(first.args, second.args)
    return a.kind == b.kind and numbering.of(yielded(first)[0]) == numbering.of(yielded(second)[0])


def _basis_sum(reduce: loop.ReduceOp, basis: Expr) -> loop.ReduceOp:
    """Returns a copy of `reduce` that sums the basis value `basis` instead. It is not inserted."""
    values: dict[SSAValue, SSAValue] = {}
    copy, builder = reduce.clone(values), RescalingBuilder([], values=values)
    block = copy.body.block
    end = block.last_op
    assert end is not None
    end.operands[0] = builder.expression(basis, copy.result)
    block.insert_ops_before(builder.ops, end)
    erase_unneeded(copy.body)
    copy.result.name_hint = None
    return copy


def _rescaling(stages: Sequence[Stage]) -> Block:
    """Returns the block of the rescaling region. Its arguments are all old results, then all new ones."""
    reduces = [stage.reduce for stage in stages]
    types = [r.result.type for r in reduces]
    block = Block(arg_types=[*types, *types])
    old: dict[SSAValue, SSAValue] = {r.result: a for r, a in zip(reduces, block.args[: len(types)], strict=True)}
    new: dict[SSAValue, SSAValue] = {r.result: a for r, a in zip(reduces, block.args[len(types) :], strict=True)}
    for argument, stage in zip(block.args, [*stages, *stages], strict=True):
        argument.name_hint = stage.reduce.result.name_hint
    builder = RescalingBuilder([], old, new, {r.result: r.kind.data for r in reduces})
    rescaled = [_rescaled(stage, builder, old) for stage in stages]
    block.add_ops([*builder.ops, loop.YieldOp(*rescaled)])
    return block


def _rescaled(stage: Stage, builder: RescalingBuilder, old: dict[SSAValue, SSAValue]) -> SSAValue:
    partial = old[stage.reduce.result]
    if stage.kind == FIXED:
        return partial
    if isinstance(stage.kind, Shift):
        return builder.add(arith.AddfOp(partial, builder.expression(stage.kind.by, partial)))
    if isinstance(stage.kind, Chosen):
        constant = stage.kind.otherwise.owner
        assert isinstance(constant, payload.ConstantOp)
        replacement = payload.ConstantOp(constant.value, partial.type)
        unmoved = builder.unmoved(stage.kind.member)
        return builder.add(payload.SelectOp(unmoved, partial, builder.add(replacement)))
    assert isinstance(stage.kind, Linear)
    total: SSAValue | None = None
    for sum, entry in zip(stage.sums, stage.kind.matrix[0], strict=True):
        if entry != ZERO:
            term = old[sum.result]
            if entry != ONE:
                term = builder.add(arith.MulfOp(term, builder.expression(entry, term)))
            total = term if total is None else builder.add(arith.AddfOp(total, term))
    return partial if total is None else total


def _use_outside(staged: loop.StagedReduceOp, results: dict[SSAValue, SSAValue], between: Sequence[Operation]) -> None:
    """Replaces uses after `staged` by its results. Operations inside `staged` that are also used after it are copied
    there.

    Args:
        staged: Staged reduction.
        results: Result of a reduction -> result of `staged`. The results of copied operations are added.
        between: Operations inside `staged` that are not reductions.
    """
    repeated = set[Operation]()
    for op in reversed(between):
        uses = (use.operation for result in op.results for use in result.uses)
        if any(user in repeated or not staged.is_ancestor(user) for user in uses):
            repeated.add(op)
    # `clone` adds the results of each copy to `results`.
    copies = [op.clone(results) for op in between if op in repeated]
    block_of(staged).insert_ops_after(copies, staged)
    for old, new in results.items():
        old.replace_uses_with_if(new, lambda u: not staged.is_ancestor(u.operation) and u.operation not in copies)
        new.name_hint = old.name_hint


def _use_finite_references(body: Block, reduces: Sequence[loop.ReduceOp]) -> None:
    """Replaces extremes of empty ranges by 0 where later stages use them as reference values.

    Comparisons of terms with the extreme keep its real value."""
    for reduce in reduces:
        uses = [use for use in reduce.result.uses if use.operation is not body.last_op]
        uses = [u for u in uses if not (isinstance(u.operation, payload.CmpOp) and u.operation.parent is not body)]
        ops = list[Operation]()
        frame = finite_reference(reduce.result, reduce.kind.data, ops) if uses else reduce.result
        if frame is not reduce.result:
            for use in uses:
                use.operation.operands[use.index] = frame
            body.insert_ops_after(ops, reduce)
