"""Reading global memory once: `tile-cache-rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tile
from ...dialects.shapes.ranges import constant_index
from ...dialects.support.equivalence import Numbering
from ...dialects.support.locations import ancestors
from ..pass_manager import TilePass
from ..rewriting import insert_after, insert_before, replace


class CacheRowsPass(TilePass):
    """Keep in shared memory what several loops of a block read.

    What: where two loops load the same tiles, iteration by iteration, and the schedule says `cache_rows = shared`, the
    first loop keeps each tile in a row in shared memory and the later ones read it there. (Where the result of an
    earlier load reaches a load of the same tile, `cse` merges the two.)
    Why: rows are reduced first and used afterwards, and memory is what they wait for; reading them once is half of it.
    Why here: as soon as there are loads. Accesses still say what is read and no layout ties the loops, so that the next
    passes give a tile the same layout wherever it is kept, and threads read back only what they put there themselves.

    ```mlir
    %m = scf.for %k = %c0 to %c4 step %c1 iter_args(...) {
      %a = tile.load %x[%i, d0 + %k * 1024] : ... -> tensor<1024xf32>
      ...
    }
    scf.for %j = %c0 to %c4 step %c1 {
      %b = tile.load %x[%i, d0 + %j * 1024] : ... -> tensor<1024xf32>
      ...
    }
    ```
    becomes
    ```mlir
    %row = tile.row_buffer : !tile.row_buffer<4 of tensor<1024xf32>>
    %m = scf.for %k = %c0 to %c4 step %c1 iter_args(...) {
      %a = tile.load %x[%i, d0 + %k * 1024] : ... -> tensor<1024xf32>
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
    inside = scf.ForOp
    needs: ClassVar[Mapping[str, int]] = {"scf.for": 2}

    def on(self, op: tile.KernelOp) -> None:
        keep = op.schedule.cache_rows == "shared"
        loads: dict[object, list[_First]] = {}
        for load in [o for o in op.body.walk() if isinstance(o, tile.LoadOp)]:
            seen = loads.setdefault((load.source, load.result.type, frozenset(load.properties.items())), [])
            if not any(self._reuse(first, load, keep) for first in seen):
                seen.append(_First(load))
        if keep and not any(first.row for seen in loads.values() for first in seen):
            self.decline(op, "no two loops load the same tiles")

    def _reuse(self, first: _First, load: tile.LoadOp, keep: bool) -> bool:
        """Lets `load` use the tiles of `first`, which an earlier loop loads, if `keep`. Returns false if `load` is a
        first load itself."""
        loops = first.same_tiles(load)
        if loops is None:
            return False
        if not loops[1]:
            return True
        if keep:
            first.replace(load, *loops)
        else:
            name = f"%{load.source.name_hint}" if load.source.name_hint else "a row"
            self.decline(load, f"{name} in several chunks is read again by each loop")
        return keep


Loops = Sequence[scf.ForOp]
"""Loops around an op, outermost first."""


@dataclass
class _First:
    """The first load of some tiles. Once they are kept, `row` is what they are kept in, and `loops` the loops over
    them, from the outermost."""

    op: tile.LoadOp
    row: SSAValue | None = None
    loops: Loops = ()

    def same_tiles(self, op: tile.LoadOp) -> tuple[Loops, Loops] | None:
        """The loops around this load and those around `op`, inside of what both are in, whose iterations load what
        those of the former have given before them; none of them if the result of this load reaches `op`. None if the
        tiles are not the same."""
        own, other = ([*ancestors(o)][::-1] for o in (self.op, op))
        while own and other and own[0] is other[0]:
            own, other = own[1:], other[1:]
        if not own:
            return ((), ()) if self._same(op, (), ()) else None
        loops, others = ([o for o in around if isinstance(o, scf.ForOp)] for around in (own, other))
        if not len(own) == len(loops) == len(others) == len(other) or (self.row is not None and self.loops != loops):
            return None
        if not isinstance(op.result.type, TensorType):
            return None
        if any(_trips(a) is None or _trips(a) != _trips(b) for a, b in zip(loops, others, strict=True)):
            return None
        return (loops, others) if self._same(op, loops, others) else None

    def _same(self, op: tile.LoadOp, own: Loops, other: Loops) -> bool:
        """Whether `op` in an iteration of the loops `other` loads what this load does in the same one of `own`."""
        numbering = Numbering(*([o.body.block.args[0] for o in loops] for loops in (own, other)))
        return numbering.of(self.op.result) == numbering.of(op.result)

    def replace(self, op: tile.LoadOp, own: Loops, loops: Loops) -> None:
        """Replaces `op`, inside `loops`, by what a row keeps of this load, inside the loops `own`."""
        if self.row is None:
            row = tile.RowBufferOp(tile.RowBufferType.get(prod(_trips(o) or 1 for o in own), self.op.result.type))
            row.result.name_hint = f"{self.op.source.name_hint}_row" if self.op.source.name_hint else "row"
            place, computed = _place(own)
            insert_before(own[0], row, source=self.op)
            insert_after(self.op, *computed, tile.RowBufferStoreOp(self.op.result, row.result, place))
            self.row, self.loops = row.result, own
        place, computed = _place(loops)
        replace(op, *computed, tile.RowBufferLoadOp(self.row, place, op.result.type))


def _place(loops: Loops) -> tuple[SSAValue, list[Operation]]:
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
