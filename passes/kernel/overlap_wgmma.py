"""Letting products of warpgroups run into the next iteration: `kernel-overlap-wgmma`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import kernel, payload
from ...dialects.kernel.memory import shape_of_memory
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ...dialects.shapes.ranges import constant_index
from ..remarks import emit_remark
from ..rewriting import erase, insert_at_start, insert_before, move_before, replace
from .wgmma_dataflow import HARMLESS, is_zero, start_over


@dataclass(frozen=True)
class OverlapWgmmaPass(ModulePass):
    """Start the products of the next chunk before waiting for those of the last.

    What: in a loop that does nothing but take boxes from rings and multiply them, an iteration starts its products and
    then waits for those of the iteration before, whose slots it gives back; behind the loop the last ones are waited
    for. The accumulators are carried as what they are, in flight, so nothing can read them early. Where they start from
    zero, the first product does not add to them, and nobody has to clear them. A loop that does more with its sums
    (attention scales them), or whose ring has one slot, is left as it is.
    Why: with a wait for its own products in every iteration tensor cores are idle between two of them.
    Why here: waits and slots have only just appeared, and no arithmetic of indices has been moved around yet.

    ```mlir
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero, %slot = %c0, ...) {
      kernel.mbar_wait %full[%slot] parity %phase
      %p = kernel.registers_to_accumulators %a
      %q = kernel.wgmma %x[...], %y[...] into %p ...
      kernel.wgmma_commit
      %r = kernel.wgmma_wait 0, %q
      kernel.mbar_arrive %empty[%slot]
    ```
    becomes
    ```mlir
    %start = kernel.undef_accumulators
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%p = %start, %slot = %c0, ..., %last = %c0) {
      %more = payload.cmp ne %k, %c0
      kernel.mbar_wait %full[%slot] parity %phase
      %q = kernel.wgmma %x[...], %y[...] into %p ... if %more
      kernel.wgmma_commit
      %r = kernel.wgmma_wait 1, %q
      scf.if %more { kernel.mbar_arrive %empty[%last] }
    ...
    %acc = kernel.wgmma_wait 0, %s
    kernel.mbar_arrive %empty[...]
    ```
    """

    name = "kernel-overlap-wgmma"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in op.body.ops:
            if not isinstance(func, kernel.FuncOp):
                continue
            boxes = {o.shared for o in func.body.walk() if isinstance(o, kernel.TmaLoadOp)}
            for loop in [o for o in func.body.walk() if isinstance(o, scf.ForOp)]:
                if boxes and any(isinstance(o, kernel.WgmmaOp) for o in loop.body.block.ops):
                    found = _find(loop, boxes)
                    if isinstance(found, str):
                        emit_remark(loop, self.name, found)
                    else:
                        _overlap(loop, found)


@dataclass
class Found:
    """What there is in a loop: how accumulators start, the first product into each, the waits, and the arrivals that
    give slots back with the conditional around each, if any."""

    resumes: list[kernel.RegistersToAccumulatorsOp] = field(default_factory=list[kernel.RegistersToAccumulatorsOp])
    first: list[kernel.WgmmaOp] = field(default_factory=list[kernel.WgmmaOp])
    waits: list[kernel.WgmmaWaitOp] = field(default_factory=list[kernel.WgmmaWaitOp])
    releases: list[tuple[scf.IfOp | None, kernel.MbarArriveOp]] = field(
        default_factory=list[tuple[scf.IfOp | None, kernel.MbarArriveOp]]
    )


def _find(loop: scf.ForOp, boxes: set[SSAValue]) -> Found | str:
    """The parts of a loop whose products may overlap, or why they may not."""
    found, body = Found(), loop.body.block
    for op in body.ops:
        why = None
        if isinstance(op, kernel.RegistersToAccumulatorsOp):
            found.resumes.append(op)
            why = _starts_otherwise(op, body)
        elif isinstance(op, kernel.WgmmaOp):
            if op.acc.owner is (found.resumes[-1] if found.resumes else None):
                found.first.append(op)
            why = None if _reads_boxes(op, boxes) else "a product reads what threads compute"
        elif isinstance(op, kernel.WgmmaWaitOp):
            found.waits.append(op)
            users = [u.operation for u in op.result.uses]
            if op.pending.data or len(users) != 1 or not isinstance(users[0], scf.YieldOp):
                why = "its sums are used in the same iteration"
        elif isinstance(op, scf.IfOp | kernel.MbarArriveOp):
            release = _release(op, body)
            if isinstance(release, str):
                return release
            found.releases.append(release)
        elif not isinstance(op, (*HARMLESS, scf.YieldOp)) and not payload.is_payload(op):
            why = f"it does something else as well: {op.name}"
        if why is not None:
            return why
    if not len(found.resumes) == len(found.first) == len(found.waits):
        return "its products are not each started and waited for once"
    rings = [a.barriers for _, a in found.releases]
    if len(set(rings)) < len(rings) or any(shape_of_memory(r.type)[0] < 2 for r in rings):
        return "a ring has no slot left for the next chunk"
    return found


def _starts_otherwise(op: kernel.RegistersToAccumulatorsOp, body: Block) -> str | None:
    carried = isinstance(op.source, BlockArgument) and op.source.owner is body and op.source.index > 0
    return None if carried and op.source.has_one_use() else "its sums are used in the same iteration"


def _reads_boxes(op: kernel.WgmmaOp, boxes: set[SSAValue]) -> bool:
    """Whether both operands are boxes in shared memory, which stay as they are until their slot is given back."""
    for value in (op.lhs, op.rhs):
        if isinstance(value.owner, kernel.SubviewOp):
            value = value.owner.ring
        if not isinstance(value.type, MemRefType) or value not in boxes:
            return False
    return op.scale_d_zero is None and op.use_acc is None


def _release(op: scf.IfOp | kernel.MbarArriveOp, body: Block) -> tuple[scf.IfOp | None, kernel.MbarArriveOp] | str:
    """The arrival that `op` is, under its condition."""
    if isinstance(op, kernel.MbarArriveOp):
        return (None, op) if _reaches(op, body) else "who gives a slot back depends on the iteration"
    inside = [o for o in op.true_region.block.ops if not isinstance(o, scf.YieldOp)]
    test = op.cond.owner
    apart = isinstance(test, Operation) and (
        test.parent is not body or all(_is_outside(v, body) for v in test.operands)
    )
    if op.false_region.blocks or op.results or len(inside) != 1 or not apart:
        return "it does something else as well: scf.if"
    arrive = inside[0]
    if not isinstance(arrive, kernel.MbarArriveOp) or not _reaches(arrive, body):
        return "it does something else as well: scf.if"
    return op, arrive


def _reaches(arrive: kernel.MbarArriveOp, body: Block) -> bool:
    """Whether the block that an arrival goes to is known outside of the loop."""
    return arrive.rank is None or _is_outside(arrive.rank, body)


def _is_outside(value: SSAValue, body: Block) -> bool:
    return value.owner is not body and not (isinstance(value.owner, Operation) and value.owner.parent is body)


def _overlap(loop: scf.ForOp, found: Found) -> None:
    """Rewrite a loop; its carried values are the old ones, then the slot of the last chunk for every release."""
    block, body = loop.parent, loop.body.block
    last = body.last_op
    assert block is not None
    assert isinstance(last, scf.YieldOp)
    runs = _surely_runs(loop)
    more = payload.CmpOp("ne", body.args[0], loop.lb)
    more.result.name_hint = "more"
    insert_at_start(body, more, source=loop)
    starts = list(loop.iter_args)
    for resume, product in zip(found.resumes, found.first, strict=True):
        argument = resume.source
        assert isinstance(argument, BlockArgument)
        number = argument.index - 1
        zero = runs and is_zero(starts[number])
        starts[number] = _start(loop, resume, starts[number], zero)
        if zero:
            start_over(product, more.result)
        replaced = body.insert_arg(resume.result.type, argument.index)
        replaced.name_hint = argument.name_hint
        resume.result.replace_all_uses_with(replaced)
        erase(resume)
        body.erase_arg(argument)
    inside: list[Operation] = []
    for wait in found.waits:
        later = kernel.WgmmaWaitOp(len(found.waits), wait.acc, keep=True)
        later.result.name_hint = wait.result.name_hint
        wait.result.replace_all_uses_with(later.result)
        erase(wait)
        inside.append(later)
    slots = [(arrive.index, _Again(arrive)) for _, arrive in found.releases]
    conditions = [_take(pair, loop) for pair in found.releases]
    before: list[SSAValue] = []
    for slot, _ in slots:
        starts.append(_at_entry(slot, loop))
        before.append(body.insert_arg(slot.type, len(body.args)))
        before[-1].name_hint = "last"
    for (_, again), held, condition in zip(slots, before, conditions, strict=True):
        inside += again.arrive(held, [condition, more.result])
    insert_before(last, *inside)
    last.operands = [*last.operands, *(slot for slot, _ in slots)]
    _replace(loop, starts, [w.result for w in inside if isinstance(w, kernel.WgmmaWaitOp)], slots, conditions, runs)


def _replace(
    loop: scf.ForOp,
    starts: Sequence[SSAValue],
    waited: Sequence[SSAValue],
    slots: Sequence[tuple[SSAValue, _Again]],
    conditions: Sequence[SSAValue | None],
    runs: bool,
) -> None:
    """Put a loop with the new carried values in the place of `loop`; behind it, wait and give the last slots back."""
    yielded = loop.body.block.last_op
    assert yielded is not None
    positions = [i for i, v in enumerate(yielded.operands) if v in waited]
    new = scf.ForOp(loop.lb, loop.ub, loop.step, starts, loop.detach_region(loop.body))
    new.attributes.update(loop.attributes)
    behind: list[Operation] = []
    results = list(new.results)
    for i in positions:
        wait = kernel.WgmmaWaitOp(0, new.results[i])
        behind.append(wait)
        results[i] = wait.result
    ran = None
    if not runs and slots:
        behind.append(test := payload.CmpOp("lt", new.lb, new.ub))
        ran = test.result
    for (_, again), held, condition in zip(slots, new.results[len(loop.results) :], conditions, strict=True):
        behind += again.arrive(held, [condition, ran])
    for old, made in zip(loop.results, new.results, strict=False):
        made.name_hint = old.name_hint
    replace(loop, new, *behind, results=results[: len(loop.results)])


def _surely_runs(loop: scf.ForOp) -> bool:
    lb, ub = constant_index(loop.lb), constant_index(loop.ub)
    return lb is not None and ub is not None and lb < ub


def _start(loop: scf.ForOp, resume: kernel.RegistersToAccumulatorsOp, init: SSAValue, zero: bool) -> SSAValue:
    """The accumulators in front of the loop: without values if the first product is to overwrite them."""
    assert isinstance(resume.result.type, AsyncAccumulatorsType)
    op = kernel.UndefAccumulatorsOp(resume.result.type) if zero else kernel.RegistersToAccumulatorsOp(init)
    op.result.name_hint = resume.result.name_hint
    insert_before(loop, op, source=resume)
    return op.result


def _take(release: tuple[scf.IfOp | None, kernel.MbarArriveOp], loop: scf.ForOp) -> SSAValue | None:
    """Remove an arrival from the loop; its condition, which from now on is computed in front of the loop."""
    conditional, arrive = release
    condition = None if conditional is None else conditional.cond
    erase(arrive)
    if conditional is not None:
        erase(conditional)
    if condition is not None and isinstance(condition.owner, Operation) and condition.owner.parent is loop.body.block:
        move_before(loop, condition.owner)
    return condition


def _at_entry(slot: SSAValue, loop: scf.ForOp) -> SSAValue:
    """Some slot, for the first iteration, which gives none back."""
    if isinstance(slot, BlockArgument) and slot.owner is loop.body.block:
        return loop.iter_args[slot.index - 1]
    return slot if _is_outside(slot, loop.body.block) else loop.lb


class _Again:
    """Makes arrivals like one that is there, at other slots."""

    def __init__(self, arrive: kernel.MbarArriveOp) -> None:
        self.barriers, self.rank = arrive.barriers, arrive.rank
        self.asynchronous = arrive.asynchronous is not None

    def arrive(self, slot: SSAValue, conditions: Sequence[SSAValue | None]) -> list[Operation]:
        """The arrival for `slot` where all conditions hold."""
        tests = [c for c in conditions if c is not None]
        arrive = kernel.MbarArriveOp(self.barriers, slot, self.rank, self.asynchronous)
        if not tests:
            return [arrive]
        made: list[Operation] = []
        test = tests[0]
        if len(tests) > 1:
            both = arith.AndIOp(test, tests[1])
            both.result.name_hint = "free"
            made.append(both)
            test = both.result
        made.append(scf.IfOp(test, [], Region(Block([arrive, scf.YieldOp()]))))
        return made
