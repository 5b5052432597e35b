"""`tile-pipeline-dots`: makes `wgmma` dots asynchronous.

Dots that add to the same accumulator, one after the other, form a `Group` with one wait at its end. *Circular buffer*
means `tile.ring` here: `tile.consumer_wait` takes the tiles of a slot, `tile.consumer_release` frees the slot.
"""

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
from ..analysis.tile_layouts import route_of
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
    """Makes dots of warpgroups asynchronous, and moves independent work before their waits.

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

    A `tile.dot` with the atom `wgmma` becomes a `tile.dot_async` with a `tile.dot_wait` as late as possible:

    - Dots that add to one accumulator in sequence get one wait, after the last dot. Slots of circular buffers that were
      released between them are released after the wait.
    - A loop that only multiplies tiles of circular buffers keeps its dots in flight. An iteration starts its dots,
      waits for the dots of the previous iteration and releases their slots. It needs a second slot, and no thread may
      compute operands or use the accumulators in the loop.
    - Independent operations move before a wait: computations in registers, and loads up to the first store or barrier.
    - A group whose accumulators are in registers already starts before the wait of the preceding group, if its operands
      are available there.

    Accumulators that start at zero are overwritten by the first dot (scale-d = 0), so no thread clears them.

    **Rationale**: tensor cores are idle between a wait and the next dot, and a warpgroup that waits does nothing else.
    Dots into the same accumulator are executed in order, so they need no waits between them.

    **Pipeline position**: last of the tile passes, when the order of operations is final. The results are still SSA
    values, so nothing can read an accumulator before its wait.
    """

    name = "tile-pipeline-dots"
    needs: ClassVar[Mapping[str, int]] = {"tile.dot{atom}|tile.dot_wait": 1}

    def on(self, op: tile.KernelOp) -> None:
        dots = [o for o in op.body.walk() if isinstance(o, tile.DotOp) and o.is_wgmma]
        groups = [_start(dot) for dot in dots if dot.parent is not None]
        for loop in dict.fromkeys(g.wait.parent_op() for g in groups):
            if isinstance(loop, scf.ForOp):
                inside = [g for g in groups if g.wait.parent_op() is loop]
                if (why := _why_not_in_flight(loop)) is None:
                    _carry(loop, inside)
                self.decline(loop, why)
        for before, group in pairwise(groups):
            if before.wait.parent is not None and before.wait.parent is group.wait.parent:
                _hoist_before(before.wait)
                _start_early(group, before.wait)
        for wait in [o for o in op.body.walk() if isinstance(o, tile.DotWaitOp)]:
            _hoist_before(wait)
        if groups:
            erase_unneeded(op.body)


@dataclass(frozen=True)
class Group:
    """Asynchronous dots that add to the same accumulators in sequence.

    start  defines the accumulators before the first dot
    first  the first dot
    wait   the wait after the last dot
    """

    start: tile.AccumulatorsOp
    first: tile.DotAsyncOp
    wait: tile.DotWaitOp


def _start(dot: tile.DotOp) -> Group:
    """Replaces `dot`, and the dots that continue to add to its accumulator, by one group. Returns the group."""
    chain, releases = [dot], list[Operation]()
    while (link := _next(chain[-1])) is not None:
        chain.append(link[0])
        releases += link[1]
    assert isinstance(dot.acc.type, TensorType)
    zero = constant_of(dot.acc) == 0
    start = tile.AccumulatorsOp(None if zero else dot.acc, tile.AsyncAccumulatorsType(dot.acc.type))  # pyright: ignore
    insert_before(dot, start)
    sums, dots = start.result, list[tile.DotAsyncOp]()
    for old in chain:
        dots.append(tile.DotAsyncOp(old.lhs, old.rhs, sums, scale_d_zero=zero and old is dot))
        insert_before(old, dots[-1])
        sums = dots[-1].result
        sums.name_hint = old.result.name_hint
    wait = tile.DotWaitOp(sums, 0)
    insert_after(chain[-1], wait)
    for release in reversed(releases):
        release.detach()
        block_of(wait).insert_op_after(release, wait)
    wait.result.name_hint = sums.name_hint
    chain[-1].result.replace_all_uses_with(wait.result)
    erase(*reversed(chain))
    return Group(start, dots[0], wait)


def _next(dot: tile.DotOp) -> tuple[tile.DotOp, list[Operation]] | None:
    """Returns the dot that adds to the result of `dot`, and the releases between the two.

    Returns None if there is no such dot, or if an operation between the two may depend on their order.
    """
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
    """Returns true if `op` computes registers from registers of the same warp, without shared memory."""
    if isinstance(op, tile.ReduceOp):
        layout = linear_of(op.source.type)
        plan = None if layout is None else layout.compact()[0].reduction(op.dims.get_values())
        return plan is not None and not plan.warps
    if isinstance(op, tile.ConvertLayoutOp):
        source, target = linear_of(op.source.type), linear_of(op.result.type)
        return source is not None and target is not None and route_of(op, source, target) != "shared"
    pure = payload.is_payload(op) and op.has_trait(Pure)
    return pure or isinstance(op, tile.AffineOp | tile.BroadcastOp | tile.SliceOp)


def _why_not_in_flight(loop: scf.ForOp) -> str | None:
    """Returns the reason why dots of `loop` cannot stay in flight in the next iteration, or None if they can."""
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
    """Lets `loop` carry the accumulators of `groups` while their dots are in flight, and waits for them after the
    loop."""
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
    """Moves the start of `group` before `wait`, the wait of an earlier group, if its operands are available there.

    The accumulators of `group` must exist already. Otherwise they would need registers in addition to those of the
    earlier group.
    """
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


def _hoist_before(wait: tile.DotWaitOp) -> None:
    """Moves the operations that do not depend on `wait` from after it to before it, in the same order."""
    dependent: set[SSAValue] = set(wait.results)
    loads = True
    for op in list(ops_after(wait)):
        free = not any(v in dependent for v in op.operands)
        if free and (_computes_registers(op) or loads and isinstance(op, tile.LoadOp)):
            move_before(wait, op)
        else:
            dependent |= set(op.results)
            harmless = isinstance(op, tile.ConsumerReleaseOp | tile.DotWaitOp | tile.LoadOp)
            loads = loads and (harmless or _computes_registers(op))
