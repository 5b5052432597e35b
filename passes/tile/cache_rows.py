"""`tile-cache-rows`: keeps tiles in shared memory that several loops of a block load from global memory.

A *row buffer* (`tile.row_buffer`) is an array of tiles in shared memory, with one tile for each iteration of a loop.
"""

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
    """Stores tiles that several loops of a block load in shared memory, so that global memory is read once.

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

    If the schedule has `cache_rows = shared`, and two loops load the same tile in each iteration, the first loop stores
    each tile in a row buffer, and the later loops read it there. Two loads of the same tile in one block are left to
    `cse`.

    **Rationale**: normalisations reduce a row first and use it afterwards, and are limited by memory bandwidth. Caching
    the row halves the reads.

    **Pipeline position**: on the first tile program, before `tile-assign-layouts`, so that a tile gets the same layout
    in all loops. Each thread then reads only elements that it stored itself.
    """

    name = "tile-cache-rows"
    inside = scf.ForOp
    needs: ClassVar[Mapping[str, int]] = {"scf.for": 2}

    def on(self, op: tile.KernelOp) -> None:
        enabled = op.schedule.cache_rows == "shared"
        loads: dict[object, list[_First]] = {}
        for load in [o for o in op.body.walk() if isinstance(o, tile.LoadOp)]:
            seen = loads.setdefault((load.source, load.result.type, frozenset(load.properties.items())), [])
            if not any(self._reuse(first, load, enabled) for first in seen):
                seen.append(_First(load))
        if enabled and not any(first.row for seen in loads.values() for first in seen):
            self.decline(op, "no two loops load the same tiles")

    def _reuse(self, first: _First, load: tile.LoadOp, enabled: bool) -> bool:
        """Lets `load` read the row buffer of the earlier load `first` if both load the same tiles in different loops.

        Args:
            first: the earlier load.
            load: the later load, which is replaced.
            enabled: whether the schedule caches rows. If not, `load` is not changed, and a remark reports it.

        Returns:
            True if `load` was replaced, or if `cse` can merge the two loads, so that nothing remains to be done.
        """
        loops = first.same_tiles(load)
        if loops is None:
            return False
        if not loops[1]:
            return True
        if enabled:
            first.replace(load, *loops)
        else:
            name = f"%{load.source.name_hint}" if load.source.name_hint else "a row"
            self.decline(load, f"{name} in several chunks is read again by each loop")
        return enabled


Loops = Sequence[scf.ForOp]
"""Loops around an operation, outermost first."""


@dataclass
class _First:
    """First load of some tiles. Once another load has been replaced, `row` is the row buffer and `loops` are the loops
    around the first load, outermost first."""

    op: tile.LoadOp
    row: SSAValue | None = None
    loops: Loops = ()

    def same_tiles(self, op: tile.LoadOp) -> tuple[Loops, Loops] | None:
        """Returns the loops around this load and those around `op`, if both load the same tile in each iteration.

        Loops around both loads are not included. Both lists are empty if the block of this load contains `op`, as `cse`
        merges the two. Returns None if the tiles differ or may differ.
        """
        ours, other = ([*ancestors(o)][::-1] for o in (self.op, op))
        while ours and other and ours[0] is other[0]:
            ours, other = ours[1:], other[1:]
        if not ours:
            return ((), ()) if self._same(op, (), ()) else None
        loops, others = ([o for o in parents if isinstance(o, scf.ForOp)] for parents in (ours, other))
        if not len(ours) == len(loops) == len(others) == len(other) or (self.row is not None and self.loops != loops):
            return None
        if not isinstance(op.result.type, TensorType):
            return None
        if any(_trips(a) is None or _trips(a) != _trips(b) for a, b in zip(loops, others, strict=True)):
            return None
        return (loops, others) if self._same(op, loops, others) else None

    def _same(self, op: tile.LoadOp, loops: Loops, others: Loops) -> bool:
        # Both loop counters get the same number, so equal numbers of the results mean equal accesses.
        numbering = Numbering(*([o.body.block.args[0] for o in nest] for nest in (loops, others)))
        return numbering.of(self.op.result) == numbering.of(op.result)

    def replace(self, op: tile.LoadOp, loops: Loops, others: Loops) -> None:
        """Replaces a later load of the row by a read of the row buffer of this load.

        Args:
            op: the later load.
            loops: loops around this load.
            others: loops around the later load, with equal trip counts.
        """
        if self.row is None:
            row = tile.RowBufferOp(tile.RowBufferType.get(prod(_trips(o) or 1 for o in loops), self.op.result.type))
            row.result.name_hint = f"{self.op.source.name_hint}_row" if self.op.source.name_hint else "row"
            index, index_ops = _row_index(loops)
            insert_before(loops[0], row, source=self.op)
            insert_after(self.op, *index_ops, tile.RowBufferStoreOp(self.op.result, row.result, index))
            self.row, self.loops = row.result, loops
        index, index_ops = _row_index(others)
        replace(op, *index_ops, tile.RowBufferLoadOp(self.row, index, op.result.type))


def _row_index(loops: Loops) -> tuple[SSAValue, list[Operation]]:
    """Returns the linear number of the current iteration of `loops` (the last loop is fastest), and the operations that
    compute it."""
    counters = [o.body.block.args[0] for o in loops]
    if len(counters) == 1:
        return counters[0], []
    expr: AffineExpr = AffineExpr.symbol(0)
    for i, loop in enumerate(loops[1:], 1):
        expr = expr * (_trips(loop) or 1) + AffineExpr.symbol(i)
    number = tile.AffineOp(AffineMap(0, len(counters), (expr,)), counters, IndexType())
    return number.result, [number]


def _trips(loop: scf.ForOp) -> int | None:
    """Returns the constant trip count of a loop from 0 with step 1, or None if it is 0 or the loop has another form."""
    first, end, step = (constant_index(v) for v in (loop.lb, loop.ub, loop.step))
    return end if first == 0 and step == 1 and end is not None and end > 0 else None
