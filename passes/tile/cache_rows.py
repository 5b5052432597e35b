"""Reading global memory once: `tile-cache-rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, ModuleOp, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ...dialects import tile
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.equivalence import Numbering
from ...dialects.support.locations import copy_location
from ...dialects.tile.row_cache import RowBufferLoadOp, RowBufferOp, RowBufferStoreOp, RowBufferType
from ...dialects.tile.schedule import ScheduleAttr
from ..remarks import emit_remark

NAME = "tile-cache-rows"


@dataclass(frozen=True)
class CacheRowsPass(ModulePass):
    """Keep what a block reads more than once.

    What: a load of what an earlier load has given already, in a place that its result reaches, goes away: the tile
    stays in registers. Where two loops load the same tiles, iteration by iteration, and the schedule says
    `cache_rows = shared`, the first loop keeps each tile in a row in shared memory and the later ones read it there.
    Why: rows are reduced first and used afterwards, and memory is what they wait for; reading them once is half of it.
    Why here: as soon as there are loads. Accesses still say what is read and no layout ties the loops, so that the next
    passes give a tile the same layout wherever it is kept, and threads read back only what they put there themselves.

    ```mlir
    %m = scf.for %k = %c0 to %c4 step %c1 iter_args(...) {
      %a = tile.load %x[affine_map<(d0)[s0, s1] -> (s0, d0 + s1 * 1024)>](%i, %k) : ... -> tensor<1024xf32>
      ...
    }
    scf.for %j = %c0 to %c4 step %c1 {
      %b = tile.load %x[affine_map<(d0)[s0, s1] -> (s0, d0 + s1 * 1024)>](%i, %j) : ... -> tensor<1024xf32>
      ...
    }
    ```
    becomes
    ```mlir
    %row = tile.row_buffer : !tile.row_buffer<4 of tensor<1024xf32>>
    %m = scf.for %k = %c0 to %c4 step %c1 iter_args(...) {
      %a = tile.load %x[affine_map<(d0)[s0, s1] -> (s0, d0 + s1 * 1024)>](%i, %k) : ... -> tensor<1024xf32>
      tile.row_buffer_store %a, %row[%k] : tensor<1024xf32>, !tile.row_buffer<4 of tensor<1024xf32>>
      ...
    }
    scf.for %j = %c0 to %c4 step %c1 {
      %b = tile.row_buffer_load %row[%j] : !tile.row_buffer<4 of tensor<1024xf32>> -> tensor<1024xf32>
      ...
    }
    ```
    """

    name = "tile-cache-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                stage_rows(kernel)


def stage_rows(kernel: tile.KernelOp) -> None:
    """Load every tile of `kernel` once, as far as its schedule lets it keep them."""
    schedule = kernel.attributes.get("schedule")
    keep = isinstance(schedule, ScheduleAttr) and schedule.data.cache_rows == "shared"
    loads: dict[object, list[_First]] = {}
    for op in [o for o in kernel.body.walk() if isinstance(o, tile.LoadOp)]:
        seen = loads.setdefault((op.source, op.result.type, frozenset(op.properties.items())), [])
        for first in seen:
            loops = first.same_tiles(op)
            if loops is None:
                continue
            if loops and not keep:
                name = op.source.name_hint
                emit_remark(op, NAME, f"{f'%{name}' if name else 'a row'} in several chunks is read again by each loop")
                continue
            _replace(op, first, loops)
            break
        else:
            seen.append(_First(op))
    if keep and not any(first.row for seen in loads.values() for first in seen):
        emit_remark(kernel, NAME, "no two loops load the same tiles")


@dataclass
class _First:
    """The first load of some tiles. Once they are kept, `row` is what they are kept in, and `loops` the loops over
    them, from the outermost."""

    op: tile.LoadOp
    row: SSAValue | None = None
    loops: Sequence[scf.ForOp] = ()

    def same_tiles(self, op: tile.LoadOp) -> list[scf.ForOp] | None:
        """The loops around `op`, outermost first, whose iterations load what this load has given in as many iterations
        of loops before them; none of them if its result reaches `op`. None if the tiles are not the same."""
        block = _common_block(self.op, op)
        own, other = _loops(self.op, block), _loops(op, block)
        if not own:
            return [] if own is not None and self._same(op, [], []) else None
        if other is None or len(own) != len(other) or (self.row is not None and [*self.loops] != own):
            return None
        if not isinstance(op.result.type, TensorType):
            return None
        if any(_trips(a) is None or _trips(a) != _trips(b) for a, b in zip(own, other, strict=True)):
            return None
        return other if self._same(op, own, other) else None

    def _same(self, op: tile.LoadOp, own: Sequence[scf.ForOp], other: Sequence[scf.ForOp]) -> bool:
        """Whether `op` in an iteration of the loops `other` loads what this load does in the same one of `own`."""
        numbering = Numbering(*([o.body.block.args[0] for o in loops] for loops in (own, other)))
        return numbering.of(self.op.result) == numbering.of(op.result)

    def keep(self, loops: Sequence[scf.ForOp]) -> SSAValue:
        """The row in which the tiles of all iterations of `loops`, which are around this load, are kept."""
        if self.row is None:
            row = RowBufferOp(RowBufferType.get(prod(_trips(o) or 1 for o in loops), self.op.result.type))
            row.result.name_hint = f"{self.op.source.name_hint}_row" if self.op.source.name_hint else "row"
            Rewriter.insert_op(row, InsertPoint.before(loops[0]))
            place, computed = _place(loops)
            keep = RowBufferStoreOp(self.op.result, row.result, place)
            copy_location(self.op, (row, *computed, keep))
            Rewriter.insert_op([*computed, keep], InsertPoint.after(self.op))
            self.row, self.loops = row.result, loops
        return self.row


def _replace(op: tile.LoadOp, first: _First, loops: Sequence[scf.ForOp]) -> None:
    """Let what uses `op` use the result of `first`, or what is kept of it for `loops`, which are around `op`."""
    if not loops:
        op.result.replace_all_uses_with(first.op.result)
        Rewriter.erase_op(op)
        return
    own = _loops(first.op, _common_block(first.op, op))
    assert own is not None
    row = first.keep(own)
    place, computed = _place(loops)
    kept = RowBufferLoadOp(row, place, op.result.type)
    kept.result.name_hint = op.result.name_hint
    copy_location(op, (*computed, kept))
    Rewriter.insert_op(computed, InsertPoint.before(op))
    Rewriter.replace_op(op, kept)


def _place(loops: Sequence[scf.ForOp]) -> tuple[SSAValue, list[Operation]]:
    """The number of the current iteration of `loops`, of which the last one runs fastest, and what computes it."""
    counters = [o.body.block.args[0] for o in loops]
    if len(counters) == 1:
        return counters[0], []
    expr: AffineExpr = AffineExpr.symbol(0)
    for i, loop in enumerate(loops[1:], 1):
        expr = expr * (_trips(loop) or 1) + AffineExpr.symbol(i)
    number = tile.AffineOp(AffineMap(0, len(counters), (expr,)), counters, IndexType())
    return number.result, [number]


def _trips(loop: scf.ForOp) -> int | None:
    """How many iterations a loop from 0 in steps of 1 has, if that is a number above 0."""
    first, end, step = (constant_index(v) for v in (loop.lb, loop.ub, loop.step))
    return end if first == 0 and step == 1 and end is not None and end > 0 else None


def _common_block(a: Operation, b: Operation) -> Block:
    """The innermost block that both are in, themselves or inside of something."""
    around: list[Block] = []
    current: Operation | None = a
    while current is not None and current.parent is not None:
        around.append(current.parent)
        current = current.parent_op()
    current = b
    while current is not None and current.parent not in around:
        current = current.parent_op()
    assert current is not None
    assert current.parent is not None
    return current.parent


def _loops(op: Operation, block: Block) -> list[scf.ForOp] | None:
    """The loops around `op` inside of `block`, outermost first; None if it is in something else there."""
    found: list[scf.ForOp] = []
    while op.parent is not block:
        parent = op.parent_op()
        if not isinstance(parent, scf.ForOp):
            return None
        found.insert(0, parent)
        op = parent
    return found
