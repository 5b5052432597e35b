"""Lowers pipelines of `cp.async` copies: each carried tile becomes the offset of a slot in a circular shared buffer.

A *ring* is such a buffer, with slots for one tile each. A pipelined loop at the tile level carries the tiles of its
outstanding copies, the oldest first. The ring has one slot more than the loop carries tiles, the *free* slot, which
receives the next copy. The lowered loop carries the offsets of all slots, including the free one. An iteration yields
them rotated by one, so no slot number is computed:

```
(slot0, slot1, free)  ->  copy into free, read slot0  ->  (slot1, free, slot0)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.kernel.copies import COPY_BYTES
from ....dialects.layouts import LayoutAttr, bases_of, is_in_shared, layout_in_shared
from ....dialects.layouts.linear import Linear
from ....dialects.payload import Predicate, element_bytes, element_type, shape_of
from ....dialects.shapes.ranges import range_of_value
from ....dialects.support.locations import refused
from ...analysis.memory_access import plan_access
from .emitter import LOOP_STATES, Index, LoopState, Lowering, lowers
from .memory import Places, holder_predicate, shared_place


@dataclass(eq=False)
class Ring:
    """Circular shared buffer.

    tile   a tile that is copied into it, for type and name
    slots  number of slots
    free   offset of the slot that receives the copy in the loop that is being lowered, in elements
    """

    tile: SSAValue
    slots: int
    free: Index = 0

    @property
    def size(self) -> int:
        """Size of a slot in elements."""
        return layout_in_shared(self.tile).size

    @property
    def hint(self) -> str:
        """Name of the tiles, for the names of values."""
        op = self.tile.owner
        source = op.source.name_hint if isinstance(op, tile.StageAsyncOp) else None
        return self.tile.name_hint or source or "tile"

    def slot(self, out: Lowering, offset: Index, hint: str) -> SSAValue:
        """Returns a slot as a view of the buffer.

        Args:
            out: the lowering.
            offset: offset of the slot, in elements.
            hint: name of the view.
        """
        shared = kernel.SharedOp(element_type(self.tile.type), self.slots * self.size)
        buffer = out.at_head(shared, f"{self.hint}_ring", key=self)
        return out.emit(kernel.SubviewOp(buffer, out.value(offset), self.size), hint)


@dataclass(frozen=True)
class Pipeline:
    """Values that a loop carries in one ring.

    ring       the ring
    positions  positions of the tiles in the carried values, from the oldest to the newest
    goes_on    true if the loop starts with outstanding copies of an earlier or enclosing loop in the same ring
    passes_on  true if the copies are in an inner loop, to which this loop only passes its tiles
    """

    ring: Ring
    positions: tuple[int, ...]
    goes_on: bool = False
    passes_on: bool = False


class Rings:
    """Rings of one kernel, collected before it is lowered.

    Attributes:
        of_tile: tile at the tile level -> its ring.
        pipelines: loop -> the pipelines that it carries.
    """

    def __init__(self, kernel: tile.KernelOp) -> None:
        self.of_tile: dict[SSAValue, Ring] = {}
        self.pipelines: dict[Operation, list[Pipeline]] = {}
        self._first_slots: dict[Operation, int] = {}
        self._inside: set[Operation] = set()
        self._continued: set[Operation] = set()
        for op in kernel.body.walk():
            if isinstance(op, scf.ForOp):
                self._read_loop(op)
        for op in kernel.body.walk():
            if isinstance(op, tile.StageAsyncOp) and op.result not in self.of_tile:
                self.of_tile[op.result] = Ring(op.result, 1)

    def _read_loop(self, op: scf.ForOp) -> None:
        args, last = op.body.block.args[1:], op.body.block.last_op
        yielded = () if last is None else last.operands
        carried = [i for i, a in enumerate(args) if is_in_shared(a.type)]
        if op in self.pipelines:
            return
        if carried and isinstance(inner := yielded[carried[0]].owner, scf.ForOp) and inner.parent is op.body.block:
            self._pass_on(op, inner)
            return
        loop_pipelines: list[Pipeline] = []
        for i in carried:
            new = yielded[i].owner
            if not isinstance(new, tile.StageAsyncOp) or new.parent is not op.body.block:
                continue
            chain = [i]
            while (older := next((p for p in carried if yielded[p] is args[chain[0]]), None)) is not None:
                chain.insert(0, older)
            loop_pipelines.append(self._make(op, new, chain))
        if sorted(p for f in loop_pipelines for p in f.positions) != carried:
            raise refused(op, "carries a tile in shared memory that no pipeline of copies brings")
        if loop_pipelines:
            self.pipelines[op] = loop_pipelines

    def _pass_on(self, op: scf.ForOp, inner: scf.ForOp) -> None:
        """Records the pipelines of `op`, which only passes its tiles to the loop `inner` in its body."""
        args, last = op.body.block.args[1:], op.body.block.last_op
        assert last is not None
        self._read_loop(inner)
        loop_pipelines: list[Pipeline] = []
        for n, p in enumerate(self.pipelines.get(inner, ())):
            outer = tuple(args.index(inner.iter_args[i]) for i in p.positions if inner.iter_args[i] in args)
            if [last.operands[i] for i in outer] != [inner.results[i] for i in p.positions]:
                raise refused(op, "carries a tile in shared memory that no pipeline of copies brings")
            self.of_tile.update(dict.fromkeys((args[i] for i in outer), p.ring))
            loop_pipelines.append(replace(p, positions=outer, passes_on=True))
            self.pipelines[inner][n] = replace(p, goes_on=True)
        self._continued.add(inner)
        self.pipelines[op] = loop_pipelines

    def _make(self, op: scf.ForOp, new: tile.StageAsyncOp, chain: list[int]) -> Pipeline:
        """Returns the pipeline of the copy `new` in the loop `op`; `chain` has the positions of its carried tiles."""
        if new in self._inside:
            raise refused(op, "expected each copy in one pipeline, but two loop values carry it")
        self._inside.add(new)
        starts, args = [_start(op, i) for i in chain], [op.body.block.args[1 + i] for i in chain]
        earlier = starts[0].owner
        if isinstance(earlier, scf.ForOp) and (before := self._before(earlier, starts)) is not None:
            self.of_tile.update(dict.fromkeys((new.result, *args), before))
            return Pipeline(before, tuple(chain), goes_on=True)
        ring = Ring(new.result, len(chain) + 1)
        self.of_tile[new.result] = ring
        for slot, (start, arg) in enumerate(zip(starts, args, strict=True)):
            first = start.owner
            if not isinstance(first, tile.StageAsyncOp) or first in self._first_slots or arg.type != new.result.type:
                raise refused(op, "expected a pipeline that starts with copies before its loop")
            self._first_slots[first] = slot
            self.of_tile[first.result] = self.of_tile[arg] = ring
        return Pipeline(ring, tuple(chain))

    def _before(self, earlier: scf.ForOp, tiles: Sequence[SSAValue]) -> Ring | None:
        """Returns the ring whose tiles the loop `earlier` leaves outstanding as `tiles`, or None if there is none."""
        for p in self.pipelines.get(earlier, []):
            if [earlier.results[i] for i in p.positions] == tiles and all(len(list(t.uses)) == 1 for t in tiles):
                self._continued.add(earlier)
                return p.ring
        return None

    def drains(self, op: scf.ForOp) -> bool:
        """Returns true if no copies are outstanding after the pipelined loop `op`, as no other loop continues them."""
        return op in self.pipelines and op not in self._continued

    def destination(self, op: tile.StageAsyncOp) -> tuple[Ring, Index]:
        """Returns the ring of the copy `op`, and the offset of the slot that it fills, in elements."""
        ring = self.of_tile[op.result]
        return ring, ring.free if op in self._inside else self._first_slots.get(op, 0) * ring.size


def _start(op: scf.ForOp, position: int) -> SSAValue:
    """Returns the initial value of the carried value at `position`, from before all loops that pass it on to `op`."""
    value, outer = op.iter_args[position], op.parent_op()
    if not isinstance(outer, scf.ForOp) or not isinstance(value, BlockArgument) or value.owner is not outer.body.block:
        return value
    return _start(outer, value.index - 1) if value.index else value


def _below(op: tile.StageAsyncOp) -> dict[SSAValue, int]:
    """Returns exclusive upper bounds of symbols where the copy `op` happens: its predicate may be `symbol < bound`."""
    test = op.predicate.owner if op.predicate is not None else None
    if isinstance(test, payload.CmpOp) and test.predicate.data == Predicate.LT and test.lhs.type == IndexType():
        bound = range_of_value(test.rhs)
        if isinstance(bound, tuple):
            return {test.lhs: bound[1] - 1}
    return {}


@lowers(tile.StageAsyncOp)
def stage_async(out: Lowering, op: tile.StageAsyncOp) -> None:
    """Lowers a copy to a slot; its tile becomes the offset of the slot. One thread of `op.layout` copies an element."""
    ring, offset = out.state(Rings).destination(op)
    target = ring.slot(out, offset, f"{ring.hint}_next")
    assert isinstance(op.layout, LayoutAttr)
    bases = [bases_of(b) for b in (op.layout.reg, op.layout.lane, op.layout.warp)]
    layout = Linear(shape_of(op.result.type), *bases).compact()[0]
    places, predicate, source = Places(out, op, layout, _below(op)), out.maybe(op.predicate), out.of(op.source)
    access, size = plan_access(op, places, source.type), element_bytes(source.type)
    parts = places.described(access)
    place = shared_place(out, layout_in_shared(op.result), layout, size)
    vec = min(access.vec, place.vec)
    if vec * size not in COPY_BYTES or access.per_register:
        raise refused(op, f"expected copies of 4, 8 or 16 bytes, but got {vec * size}")
    holds = holder_predicate(out, layout)
    if holds is not None:
        predicate = holds if predicate is None else out.emit(arith.AndIOp(holds, predicate))
    parts |= {"vec": vec, "target": target, "place": out.value(place.origin), "predicate": predicate}
    out.add_op(kernel.CopyAsyncOp(source, **parts, target_xor=place.xor, target_regs=[[r] for r in place.regs]))
    out.values[op.result] = offset


@lowers(tile.CommitOp)
def commit(out: Lowering, op: tile.CommitOp) -> None:
    out.add_op(kernel.AsyncCommitOp())


@lowers(tile.AwaitOp)
def await_copies(out: Lowering, op: tile.AwaitOp) -> None:
    out.add_op(kernel.AsyncWaitOp(op.pending.data))
    for old, new in zip(op.tiles, op.res, strict=True):
        ring = out.state(Rings).of_tile[old]
        out.values[new] = ring.slot(out, out.values[old], new.name_hint or f"{ring.hint}_shared")


class Carried(LoopState):
    """State of a loop with `cp.async` pipelines: the free slots. The carried tiles become offsets of the other slots.

    Rings with equal numbers and sizes of slots rotate together and have equal offsets. So only the offsets of the first
    one, the leader, are carried. The followers use the values of their leader.
    """

    def __init__(self, out: Lowering, op: scf.ForOp) -> None:
        self.out, self.op = out, op
        self.leaders: dict[tuple[int, int], Pipeline] = {}
        self.followers: list[tuple[Pipeline, Pipeline]] = []
        for p in out.state(Rings).pipelines.get(op, []):
            leader = self.leaders.setdefault((p.ring.size, p.ring.slots), p)
            if leader is not p:
                self.followers.append((p, leader))
        self.dropped = {i for p, _ in self.followers for i in p.positions}

    def entry(self) -> list[SSAValue]:
        """Returns the first free slot of each leader: the slot after those with outstanding copies."""
        rings = [(p, p.ring) for p in self.leaders.values()]
        return [self.out.value(ring.free if p.goes_on else len(p.positions) * ring.size) for p, ring in rings]

    def bind(self, carried: Sequence[SSAValue], values: Sequence[SSAValue], inside: bool) -> None:
        offsets = self.out.values
        for p, slot in zip(self.leaders.values(), values, strict=True):
            p.ring.free = slot
            if inside:
                slot.name_hint = "free"
                for offset in (offsets[carried[i]] for i in p.positions):
                    if isinstance(offset, SSAValue):
                        offset.name_hint = "slot"
        for p, leader in self.followers:
            p.ring.free = leader.ring.free
            pairs = zip(p.positions, leader.positions, strict=True)
            offsets.update({carried[i]: offsets[carried[position]] for i, position in pairs})

    def next(self, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the free slots of the next iteration: the slots of the tiles that this iteration has read."""
        slots = (p.ring.free if p.passes_on else self.out.of(carried[p.positions[0]]) for p in self.leaders.values())
        return [self.out.value(slot) for slot in slots]

    def close(self) -> None:
        """Waits for all copies unless another loop continues them, so that later passes may reuse the memory."""
        if self.out.state(Rings).drains(self.op):
            self.out.add_op(kernel.AsyncWaitOp(0))


LOOP_STATES[tile.StageAsyncOp] = Carried
