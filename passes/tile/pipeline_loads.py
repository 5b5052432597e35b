"""`tile-pipeline-loads`: copies the chunks of later iterations to shared memory asynchronously (cp.async)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.shapes.ranges import constant_index, trip_count
from ..analysis.async_copies import Copy, find_copy
from ..pass_manager import TilePass
from ..rewriting import erase_unneeded, insert_before, rebuilt, replace


class PipelineLoadsPass(TilePass):
    """Starts the copies of later chunks while the current chunk is computed.

    ```mlir
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero) {
      %x = tile.load %X[d0 + %i * 64, d1 + %k * 32] : ... -> tensor<64x32xf32, #l>
      %t = tile.stage %x : ... -> tensor<64x32xf32, #s>
      %n = tile.dot %t, ...
    ```
    becomes, with S = 2,
    ```mlir
    %t0 = tile.stage_async %X[d0 + %i * 64, d1 + %c0 * 32] by #l : ... -> tensor<64x32xf32, #s>
    tile.commit
    %s, %r = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero, %t1 = %t0) {
      %t = tile.await %t1 pending 0 : tensor<64x32xf32, #s>
      %next = arith.addi %k, %c1 : index
      %more = payload.cmp lt %next, %c8 : index
      %t2 = tile.stage_async %X[d0 + %i * 64, d1 + %next * 32] if %more by #l : ...
      tile.commit
      %n = tile.dot %t, ...
      scf.yield %n, %t2
    ```

    If the schedule has `copy = cp_async` and `stages = S`, each `tile.stage` of a loaded tile in a loop over chunks
    becomes a `tile.stage_async` that is issued S - 1 iterations early. The first S - 1 copies are issued before the
    loop, which carries the outstanding tiles. An iteration waits for the oldest tile and issues the newest one, with a
    predicate that is false in the last iterations. A loop with fewer than S iterations gets one stage per iteration. If
    the bounds of the loop are computed, the copies before it have predicates too.

    Tiles keep the synchronous copy if they are computed before staging, gathered, padded with a nonzero value, or not
    aligned to 4 bytes.

    **Rationale**: the latency of global memory is hundreds of cycles. The block computes meanwhile, and outstanding
    tiles occupy no registers.

    **Pipeline position**: after `tile-stage-dot-operands`, which decides the staged tiles and their layouts. The tiles
    are still SSA values here: later passes assign slots of circular buffers and insert barriers.
    """

    name = "tile-pipeline-loads"
    decision = ("copy", "cp_async")

    def on(self, op: tile.KernelOp) -> None:
        for loop in [o for o in op.body.walk() if isinstance(o, scf.ForOp)]:
            if staged := [o for o in loop.body.block.ops if isinstance(o, tile.StageOp)]:
                self._pipeline(loop, staged, op.schedule.stages, op.warps.data)
        erase_unneeded(op.body)

    def _pipeline(self, loop: scf.ForOp, staged: Sequence[tile.StageOp], stages: int, warps: int) -> None:
        """Issues the copies `staged`, which are directly in the body of `loop`, `stages` - 1 iterations early. Reports
        each one that must remain synchronous."""
        trips, why = trip_count(loop), None
        if constant_index(loop.step) is None or (trips is not None and trips < 2):
            why = f"its loop has {'a step that is computed' if trips is None else 'no iterations ahead'}"
        candidates = [(op, why or find_copy(op, loop, warps)) for op in staged]
        for op, copy in candidates:
            self.decline(op, copy if isinstance(copy, str) else None)
        if copies := [copy for _, copy in candidates if isinstance(copy, Copy)]:
            _Pipeline(loop, copies, stages if trips is None else min(stages, trips)).build()


@dataclass
class _Pipeline:
    """Rewriting of one loop.

    loop    the loop
    copies  loads that become asynchronous copies
    stages  number of chunks in shared memory; copies are issued `stages - 1` iterations early
    """

    loop: scf.ForOp
    copies: list[Copy]
    stages: int

    def build(self) -> None:
        distance, old = self.stages - 1, self.loop
        # first[i] has the tiles of iteration i, one for each copy.
        first = [self._ahead(old, old.lb, stage, inside=False) for stage in range(distance)]
        carried = [tiles[c] for c in range(len(self.copies)) for tiles in first]
        body = old.body.block
        args = [body.insert_arg(value.type, len(body.args)) for value in carried]
        for arg, value in zip(args, carried, strict=True):
            arg.name_hint = value.name_hint
        self.loop = rebuilt(old, [*old.iter_args, *carried])
        replace(old, self.loop, results=self.loop.results[: len(old.results)])
        start, last = body.first_op, body.last_op
        assert start is not None
        assert isinstance(last, scf.YieldOp)
        if distance:
            arrived = self._await(start, args[::distance])
            newest = self._ahead(start, body.args[0], distance, inside=True)
        else:
            newest = self._insert(start, body.args[0], None)
            arrived = self._await(start, newest)
        # Each carried tile takes the position of the next older tile.
        shifted: list[SSAValue] = []
        for c, tile_in in enumerate(newest if distance else ()):
            shifted += [*args[c * distance + 1 : (c + 1) * distance], tile_in]
        replace(last, scf.YieldOp(*last.operands, *shifted))
        for copy, value in zip(self.copies, arrived, strict=True):
            copy.stage.result.replace_all_uses_with(value)

    def _ahead(self, before: Operation, at: SSAValue, stages: int, *, inside: bool) -> list[SSAValue]:
        """Inserts the copies of a later iteration, with a predicate if that iteration may not exist.

        Args:
            before: operation before which the copies are inserted.
            at: counter of the current iteration, or start of the loop.
            stages: number of iterations between the current iteration and that of the copies.
            inside: whether the copies are in the loop.

        Returns:
            The tiles.
        """
        first, step = constant_index(at), constant_index(self.loop.step)
        assert step is not None
        distance = arith.ConstantOp.from_int_and_width(stages * step + (first or 0), IndexType())
        ops: list[Operation] = [distance] if first is not None else [distance, arith.AddiOp(at, distance.result)]
        counter, predicate = ops[-1].results[0], None
        if inside or trip_count(self.loop) is None:
            ops.append(payload.CmpOp("lt", counter, self.loop.ub))
            predicate = ops[-1].results[0]
            if inside:
                counter.name_hint, predicate.name_hint = "next", "more"
        insert_before(before, *ops, source=self.loop)
        return self._insert(before, counter, predicate)

    def _insert(self, before: Operation, at: SSAValue, predicate: SSAValue | None) -> list[SSAValue]:
        tiles: list[SSAValue] = []
        for copy in self.copies:
            op = copy.make(self.loop.body.block.args[0], at, predicate)
            op.result.name_hint = copy.stage.source.name_hint
            insert_before(before, op, source=copy.load)
            tiles.append(op.result)
        insert_before(before, tile.CommitOp(), source=self.loop)
        return tiles

    def _await(self, before: Operation, tiles: Sequence[SSAValue]) -> list[SSAValue]:
        op = tile.AwaitOp(tiles, max(self.stages - 2, 0))
        for result, copy in zip(op.res, self.copies, strict=True):
            result.name_hint = copy.stage.result.name_hint
        insert_before(before, op, source=self.loop)
        return list(op.res)
