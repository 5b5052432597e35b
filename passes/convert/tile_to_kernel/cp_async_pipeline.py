"""Rings: where tiles on their way to shared memory are, and the copies that bring them.

A loop that carries tiles in flight, the oldest first, needs one slot more than it carries: the one that the newest copy
goes to while the others are full or filling. Here the carried tiles become the offsets of their slots, with the free
slot carried as well; what an iteration yields is a rotation of them. No slot number is ever computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.kernel.cp_async import COPY_BYTES
from ....dialects.layouts.attributes import LayoutAttr, bases_of
from ....dialects.layouts.linear import Linear, Shared
from ....dialects.payload import Predicate, element_type, shape_of
from ....dialects.shapes.ranges import range_of_value
from ....dialects.support.locations import refused
from ....dialects.tile.async_copy import is_in_shared
from ...analysis.memory_access import element_bytes, memory_type, plan_access
from ...analysis.tile_layouts import layout_in_shared
from .emitter import Emitter, Index
from .global_access import holder_predicate, origins
from .register_coordinates import Places
from .shared_staging import shared_place


@dataclass
class Ring:
    """A shared buffer of `slots` slots, each for one tile of type `tile`. `free` is the slot that a copy inside of the
    loop goes to, while that is being lowered; `buffer` what was allocated."""

    tile: SSAValue
    slots: int
    free: Index = 0
    buffer: SSAValue | None = None

    @property
    def size(self) -> int:
        """Elements of a slot."""
        return layout_in_shared(self.tile).size

    @property
    def hint(self) -> str:
        """A name: that of the tile, or of the buffer that it is copied from."""
        op = self.tile.owner
        source = op.source.name_hint if isinstance(op, tile.StageAsyncOp) else None
        return self.tile.name_hint or source or "tile"

    def allocated(self, out: Emitter) -> SSAValue:
        """The buffer; allocated once."""
        if self.buffer is None:
            element = element_type(self.tile.type)
            self.buffer = out.allocate(kernel.SharedOp(element, self.slots * self.size), f"{self.hint}_ring")
        return self.buffer

    def slot(self, out: Emitter, offset: Index, hint: str) -> SSAValue:
        """The slot that starts at element `offset`."""
        return out.emit(kernel.SubviewOp(self.allocated(out), out.value(offset), self.size), hint)


@dataclass(frozen=True)
class Pipeline:
    """Positions of carried values of a loop, from the oldest tile to the newest, that are one ring. It may go on with
    the ring of an earlier loop, whose tiles are in flight then."""

    ring: Ring
    positions: tuple[int, ...]
    goes_on: bool = False


@dataclass
class Rings:
    """The rings of one kernel, found before it is lowered."""

    op: tile.KernelOp
    of_tile: dict[SSAValue, Ring] = field(default_factory=dict[SSAValue, Ring])
    pipelines: dict[Operation, list[Pipeline]] = field(default_factory=dict[Operation, list[Pipeline]])
    _first_slots: dict[Operation, int] = field(default_factory=dict[Operation, int])
    _inside: set[Operation] = field(default_factory=set[Operation])
    _continued: set[Operation] = field(default_factory=set[Operation])

    def __post_init__(self) -> None:
        for op in self.op.body.walk():
            if isinstance(op, scf.ForOp):
                self._read_loop(op)
        for op in self.op.body.walk():
            if isinstance(op, tile.StageAsyncOp) and op.result not in self.of_tile:
                self.of_tile[op.result] = Ring(op.result, 1)

    def _read_loop(self, op: scf.ForOp) -> None:
        args, yielded = op.body.block.args[1:], yields(op)
        carried = [i for i, a in enumerate(args) if is_in_shared(a.type)]
        found: list[Pipeline] = []
        for i in carried:
            new = yielded[i].owner
            if not isinstance(new, tile.StageAsyncOp) or new.parent is not op.body.block:
                continue
            chain = [i]
            while (older := next((p for p in carried if yielded[p] is args[chain[0]]), None)) is not None:
                chain.insert(0, older)
            found.append(self._make(op, new, chain))
        if sorted(p for f in found for p in f.positions) != carried:
            raise refused(op, "carries a tile in shared memory that no pipeline of copies brings")
        if found:
            self.pipelines[op] = found

    def _make(self, op: scf.ForOp, new: tile.StageAsyncOp, chain: list[int]) -> Pipeline:
        if new in self._inside:
            raise refused(op, "carries one copy in two pipelines")
        self._inside.add(new)
        before = self._before(op, chain)
        if before is not None:
            self.of_tile.update(dict.fromkeys((new.result, *(op.body.block.args[1 + i] for i in chain)), before))
            return Pipeline(before, tuple(chain), goes_on=True)
        ring = Ring(new.result, len(chain) + 1)
        self.of_tile[new.result] = ring
        for slot, i in enumerate(chain):
            first, arg = op.iter_args[i].owner, op.body.block.args[1 + i]
            if not isinstance(first, tile.StageAsyncOp) or first in self._first_slots or arg.type != new.result.type:
                raise refused(op, "starts a pipeline with something other than copies of its own")
            self._first_slots[first] = slot
            self.of_tile[first.result] = self.of_tile[arg] = ring
        return Pipeline(ring, tuple(chain))

    def _before(self, op: scf.ForOp, chain: list[int]) -> Ring | None:
        """The ring of an earlier loop whose tiles in flight are those that the positions `chain` start with."""
        tiles = [op.iter_args[i] for i in chain]
        earlier = tiles[0].owner
        if not isinstance(earlier, scf.ForOp):
            return None
        for p in self.pipelines.get(earlier, []):
            if [earlier.results[i] for i in p.positions] == tiles and all(len(list(t.uses)) == 1 for t in tiles):
                self._continued.add(earlier)
                return p.ring
        return None

    def drains(self, op: scf.ForOp) -> bool:
        """Whether nothing is in flight behind a loop that pipelines copies: no later one goes on with them."""
        return op in self.pipelines and op not in self._continued

    def destination(self, op: tile.StageAsyncOp) -> tuple[Ring, Index]:
        """The ring of a copy and the offset of the slot that it goes to."""
        ring = self.of_tile[op.result]
        return ring, ring.free if op in self._inside else self._first_slots.get(op, 0) * ring.size


def yields(op: scf.ForOp) -> list[SSAValue]:
    """What a loop yields."""
    last = op.body.block.last_op
    return list(last.operands) if last is not None else []


def below(op: tile.StageAsyncOp) -> dict[SSAValue, int]:
    """Upper bounds of symbols that the predicate of a copy promises."""
    test = op.predicate.owner if op.predicate is not None else None
    if isinstance(test, payload.CmpOp) and test.predicate.data == Predicate.LT and test.lhs.type == IndexType():
        bound = range_of_value(test.rhs)
        if isinstance(bound, tuple):
            return {test.lhs: bound[1] - 1}
    return {}


def copier(op: tile.StageAsyncOp) -> Linear:
    """Who copies what; each element is copied once."""
    assert isinstance(op.layout, LayoutAttr)
    layout = op.layout
    return Linear(shape_of(op.result.type), bases_of(layout.reg), bases_of(layout.lane), bases_of(layout.warp))


def copy_async(
    out: Emitter, op: tile.StageAsyncOp, source: SSAValue, places: Places, target: SSAValue, predicate: SSAValue | None
) -> None:
    """Emit the copy of the elements of `places.layout`, which holds nothing twice, into the slot `target`."""
    memory, bits = memory_type(source), len(places.layout.reg)
    access = plan_access(op, places, memory)
    where = origins(access, places)
    shared: Shared = layout_in_shared(op.result)
    size = element_bytes(memory)
    place = shared_place(out, shared, places.layout, size)
    access.vec = min(access.vec, place.vec)
    if access.vec * size not in COPY_BYTES or access.per_register:
        raise refused(op, f"copies {access.vec * size} bytes at once; only 4, 8 or 16 are possible")
    coordinates, checks = ([out.value(index) for index in part] for part in where)
    holds = holder_predicate(out, places.layout)
    if holds is not None:
        predicate = holds if predicate is None else out.emit(arith.AndIOp(holds, predicate))
    out.add_op(
        kernel.CopyAsyncOp(
            source,
            coordinates,
            regs=access.regs(bits),
            vec=access.vec,
            checks=checks,
            steps=access.steps(bits),
            bounds=access.bounds,
            target=target,
            place=out.value(place.origin),
            target_xor=place.xor,
            target_regs=[[r] for r in place.regs],
            predicate=predicate,
        )
    )


@dataclass
class Carried:
    """How the carried tiles of a loop become offsets of slots: rings with slots of one size turn together, so only the
    first of them, a leader, has its offsets carried."""

    leaders: list[Pipeline]
    followers: list[tuple[Pipeline, Pipeline]]

    @staticmethod
    def of(pipelines: Sequence[Pipeline]) -> Carried:
        """The leaders among `pipelines`, and every other one with its own."""
        leaders: dict[tuple[int, int], Pipeline] = {}
        found = Carried([], [])
        for p in pipelines:
            leader = leaders.setdefault((p.ring.size, p.ring.slots), p)
            if leader is p:
                found.leaders.append(p)
            else:
                found.followers.append((p, leader))
        return found

    def kept(self, count: int) -> list[int]:
        """The positions among `count` carried values that are still carried."""
        gone = {i for p, _ in self.followers for i in p.positions}
        return [i for i in range(count) if i not in gone]

    def entry(self, out: Emitter) -> list[SSAValue]:
        """The free slots with which the loop starts: those behind the ones that are filling."""
        return [out.value(p.ring.free if p.goes_on else len(p.positions) * p.ring.size) for p in self.leaders]

    def leave(self, free: Sequence[SSAValue]) -> None:
        """Behind the loop: `free` are its last results, the slots that are free now."""
        for p, slot in zip(self.leaders, free, strict=True):
            p.ring.free = slot

    def enter(self, tiles: Sequence[SSAValue], values: dict[SSAValue, Index], free: Sequence[BlockArgument]) -> None:
        """Inside of the loop: `tiles` are its carried tiles, `free` the last arguments, its free slots."""
        for p, slot in zip(self.leaders, free, strict=True):
            slot.name_hint = "free"
            p.ring.free = slot
            for i in p.positions:
                if isinstance(offset := values[tiles[i]], SSAValue):
                    offset.name_hint = "slot"
        for p, leader in self.followers:
            p.ring.free = leader.ring.free
        self.follow(tiles, values)

    def follow(self, tiles: Sequence[SSAValue], values: dict[SSAValue, Index]) -> None:
        """Give the tiles of the other rings the offsets of their leaders'."""
        for p, leader in self.followers:
            for i, own in zip(p.positions, leader.positions, strict=True):
                values[tiles[i]] = values[tiles[own]]

    def freed(self, tiles: Sequence[SSAValue], values: dict[SSAValue, Index]) -> list[Index]:
        """What the next iteration finds free: the slots whose tiles this one has read."""
        return [values[tiles[p.positions[0]]] for p in self.leaders]
