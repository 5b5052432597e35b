"""Contractions of warpgroups in flight: `tile-pipeline-dots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import Pure

from ...dialects import payload, tile
from ...dialects.layouts import linear_of
from ...dialects.payload import constant_of
from ...dialects.shapes.ranges import trip_count
from ..analysis.tile_layouts import way_of
from ..pass_manager import TilePass
from ..rewriting import (
    block_of,
    erase,
    erase_unneeded,
    insert_after,
    insert_at_start,
    insert_before,
    move_before,
    rebuilt,
    replace,
    retype,
    set_fields,
)
from .loops import ops_after


class PipelineDotsPass(TilePass):
    """Let contractions of warpgroups run while the threads do something else.

    What: a `tile.dot` whose atom is wgmma becomes a `tile.dot_async` with a `tile.dot_wait` as late as may be:
    - Dots of which each adds to the sums of the one before are one group with one wait. Slots that are given back
      between them are given back behind it.
    - A loop that only takes tiles from rings and multiplies them carries its sums in flight. An iteration starts its
      dots, waits for those of the iteration before, and gives back the slots that those have read; behind the loop the
      last ones are waited for. Where a thread stores operands to shared memory, or computes on the sums (attention
      scales them), or a ring has one slot, it does not.
    - What needs neither the sums nor what stays behind a wait moves in front of it: computations in registers, and
      loads up to the first store or barrier.
    - Dots that go on with sums in registers start before the wait for dots that come before them, if their operands are
      ready. That wait leaves them pending.
    Sums that start as zeros are overwritten by the first dot (scale-d = 0), and nobody has to clear them.
    Why: tensor cores add up products into the same sums in their order by themselves; they are idle from a wait to the
    next dot, and a warpgroup that waits has nothing else to do.
    Why here: last, when all operations of a block stand where they will; and these are still values, so that nothing
    can be read too early.

    ```mlir
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero) {
      %x, %y = tile.consumer_wait %r
      %n = tile.dot %x, %y, %a atom "wgmma"
      tile.consumer_release %r
      scf.yield %n
    }
    ```
    becomes
    ```mlir
    %start = tile.accumulators -> !tile.async_accumulators<...>
    %f = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %start) {
      %more = payload.cmp ne %k, %c0 : index
      %x, %y = tile.consumer_wait %r
      %n = tile.dot_async %x, %y into %a use_acc %more
      %w = tile.dot_wait %n pending 1
      tile.consumer_release %r pending 1 if %more
      scf.yield %w
    }
    %s = tile.dot_wait %f pending 0
    tile.consumer_release %r
    ```
    """

    name = "tile-pipeline-dots"
    needs: ClassVar[Mapping[str, int]] = {"tile.dot{atom}|tile.dot_wait": 1}

    def on(self, op: tile.KernelOp) -> None:
        dots = [o for o in op.body.walk() if isinstance(o, tile.DotOp) and o.is_wgmma]
        groups = [_start(dot) for dot in dots if dot.parent is not None]
        for loop in dict.fromkeys(g.wait.parent_op() for g in groups):
            if isinstance(loop, scf.ForOp):
                inside = [g for g in groups if g.wait.parent_op() is loop]
                if (why := _why_apart(loop)) is None:
                    _carry(loop, inside)
                self.decline(loop, why)
        for before, group in pairwise(groups):
            if before.wait.parent is not None and before.wait.parent is group.wait.parent:
                _fill(before.wait)
                _start_early(group, before.wait)
        for wait in [o for o in op.body.walk() if isinstance(o, tile.DotWaitOp)]:
            _fill(wait)
        if groups:
            erase_unneeded(op.body)


@dataclass(frozen=True)
class Group:
    """Dots into the same accumulators: how those start, the first dot, and the wait for the last."""

    start: tile.AccumulatorsOp
    first: tile.DotAsyncOp
    wait: tile.DotWaitOp


def _start(dot: tile.DotOp) -> Group:
    """Replace `dot` and those that go on with its sums by one group, which is waited for behind the last."""
    chain, releases = [dot], list[Operation]()
    while (link := _next(chain[-1])) is not None:
        chain.append(link[0])
        releases += link[1]
    assert isinstance(dot.acc.type, TensorType)
    zero = constant_of(dot.acc) == 0
    start = tile.AccumulatorsOp(None if zero else dot.acc, tile.AsyncAccumulatorsType(dot.acc.type))  # pyright: ignore
    insert_before(dot, start)
    sums, made = start.result, list[tile.DotAsyncOp]()
    for old in chain:
        made.append(tile.DotAsyncOp(old.lhs, old.rhs, sums, scale_d_zero=zero and old is dot))
        insert_before(old, made[-1])
        sums = made[-1].result
        sums.name_hint = old.result.name_hint
    wait = tile.DotWaitOp(sums, 0)
    insert_after(chain[-1], wait)
    for release in reversed(releases):
        release.detach()
        block_of(wait).insert_op_after(release, wait)
    wait.result.name_hint = sums.name_hint
    chain[-1].result.replace_all_uses_with(wait.result)
    erase(*reversed(chain))
    return Group(start, made[0], wait)


def _next(dot: tile.DotOp) -> tuple[tile.DotOp, list[Operation]] | None:
    """The dot that goes on with the sums of `dot`, and the slots that are given back between the two; None where
    nothing does, or anything else comes between."""
    user, releases = dot.result.get_user_of_unique_use(), list[Operation]()
    if not isinstance(user, tile.DotOp) or not user.is_wgmma or user.acc is not dot.result or user.parent != dot.parent:
        return None
    for op in takewhile(lambda op: op is not user, ops_after(dot)):
        if isinstance(op, tile.ConsumerReleaseOp):
            releases.append(op)
        elif not isinstance(op, tile.ConsumerWaitOp) and not _computes_registers(op):
            return None
    return user, releases


def _computes_registers(op: Operation) -> bool:
    """Whether `op` computes registers of a thread from those of its warp."""
    if isinstance(op, tile.ReduceOp):
        layout = linear_of(op.source.type)
        plan = None if layout is None else layout.compact()[0].reduction(op.dims.get_values())
        return plan is not None and not plan.warps
    if isinstance(op, tile.ConvertLayoutOp):
        source, target = linear_of(op.source.type), linear_of(op.result.type)
        return source is not None and target is not None and way_of(op, source, target) != "shared"
    pure = payload.is_payload(op) and op.has_trait(Pure)
    return pure or isinstance(op, tile.AffineOp | tile.BroadcastOp | tile.SliceOp)


def _why_apart(loop: scf.ForOp) -> str | None:
    """Why the dots of one iteration may not be in flight in the next; None if they may."""
    body, rings = loop.body.block, list[SSAValue]()
    for op in body.ops:
        if isinstance(op, tile.AccumulatorsOp):
            start = op.start
            if not isinstance(start, BlockArgument) or start.owner is not body or not start.has_one_use():
                return "its sums are used in the same iteration"
        elif isinstance(op, tile.DotAsyncOp):
            if not all(isinstance(v.owner, tile.ConsumerWaitOp) for v in (op.lhs, op.rhs)):
                return "a product reads what threads compute"
        elif isinstance(op, tile.DotWaitOp):
            if not isinstance(op.result.get_user_of_unique_use(), scf.YieldOp):
                return "its sums are used in the same iteration"
        elif isinstance(op, tile.ConsumerReleaseOp):
            rings.append(op.ring)
        elif not isinstance(op, tile.ConsumerWaitOp | scf.YieldOp) and not _computes_registers(op):
            return f"it does something else as well: {op.name}"
    if len(set(rings)) < len(rings) or any(tile.slots_of(ring) < 2 for ring in rings):
        return "a ring has no slot left for the next chunk"
    return None


def _carry(loop: scf.ForOp, groups: Sequence[Group]) -> None:
    """Let `loop` carry its sums in flight, and wait for the last ones behind it."""
    body, runs, starts = loop.body.block, bool(trip_count(loop)), list(loop.iter_args)
    last = body.last_op
    assert last is not None
    more = payload.CmpOp("ne", body.args[0], loop.lb)
    more.result.name_hint = "more"
    insert_at_start(body, more, source=loop)
    for group in groups:
        argument, t = group.start.start, group.start.result.type
        assert isinstance(argument, BlockArgument)
        init = starts[argument.index - 1]
        zero = runs and constant_of(init) == 0
        start = tile.AccumulatorsOp(None if zero else init, t)
        insert_before(loop, start, source=group.start)
        starts[argument.index - 1] = start.result
        if zero:
            set_fields(group.first, use_acc=more.result)
        replace(group.start, results=[argument])
        retype(argument, t)
        replace(group.wait, wait := tile.DotWaitOp(group.wait.acc, len(groups)))
        move_before(last, wait)
    rings = list[SSAValue]()
    for release in [o for o in body.ops if isinstance(o, tile.ConsumerReleaseOp)]:
        rings.append(release.ring)
        insert_before(last, tile.ConsumerReleaseOp(release.ring, 1, more.result), source=release)
        erase(release)
    new = rebuilt(loop, starts)
    waits = {r: tile.DotWaitOp(r, 0) for r in new.results if isinstance(r.type, tile.AsyncAccumulatorsType)}
    ran = [] if runs else [payload.CmpOp("lt", loop.lb, loop.ub)]
    releases = [tile.ConsumerReleaseOp(ring, condition=ran[0].result if ran else None) for ring in rings]
    results = [waits[r].result if r in waits else r for r in new.results]
    replace(loop, new, *waits.values(), *ran, *releases, results=results)


def _start_early(group: Group, wait: tile.DotWaitOp) -> None:
    """Start `group` before `wait`, which is for an earlier group, if all that it reads is ready there. Its sums must be
    in registers already: others would need them in addition to those that `wait` is for."""
    if group.start.start is None or wait.pending.data:
        return
    dots = [group.first]
    while isinstance(user := dots[-1].result.get_user_of_unique_use(), tile.DotAsyncOp):
        dots.append(user)
    operands = [group.start.start, *(v for dot in dots for v in (dot.lhs, dot.rhs))]
    following = {*ops_after(wait)}
    takes = [o for o in dict.fromkeys(v.owner for v in operands) if o in following]
    rings = [o.ring for o in takes if isinstance(o, tile.ConsumerWaitOp)]
    between = takewhile(lambda op: op is not group.wait, ops_after(wait))
    others = (o for o in between if isinstance(o, tile.ConsumerWaitOp | tile.ConsumerReleaseOp) and o not in takes)
    if not any(o.ring in rings for o in others) and len(rings) == len(takes):
        for op in (*takes, group.start, *dots):
            assert isinstance(op, Operation)
            move_before(wait, op)
        replace(wait, tile.DotWaitOp(wait.acc, 1, done=True))


def _fill(wait: tile.DotWaitOp) -> None:
    """Move what can be computed before `wait` in front of it, in its order."""
    behind: set[SSAValue] = set(wait.results)
    loads = True
    for op in list(ops_after(wait)):
        free = not any(v in behind for v in op.operands)
        if free and (_computes_registers(op) or loads and isinstance(op, tile.LoadOp)):
            move_before(wait, op)
        else:
            behind |= set(op.results)
            harmless = isinstance(op, tile.ConsumerReleaseOp | tile.DotWaitOp | tile.LoadOp)
            loads = loads and (harmless or _computes_registers(op))
