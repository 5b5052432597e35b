"""Loading chunks ahead of their use: `tile-pipeline-loads`."""

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
    """Let the copies of later chunks run while this one is computed.

    What: in a kernel whose schedule says `copy = cp_async, stages = S`, every `tile.stage` of a loaded tile inside a
    loop over chunks becomes a `tile.stage_async` that runs S - 1 iterations ahead. The first S - 1 copies stand in
    front of the loop, the tiles in flight are carried around it, each iteration awaits the oldest and starts the
    newest, under a predicate in the last iterations. Loops shorter than S get as many stages as they have iterations;
    where bounds are computed (chunks that are masked are left out), the first copies are under a predicate as well.
    Tiles that are computed on, gathered, padded with anything but zero or not aligned to 4 bytes keep their plain copy.
    Why: memory answers after hundreds of cycles; meanwhile the block computes, and no registers hold what is coming.
    Why here: what is staged, and how it lies in shared memory, has just been decided; and these are still values, so
    nothing is known yet of slots, of which is free, or of barriers, and nothing has to be.

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
    """

    name = "tile-pipeline-loads"
    decision = ("copy", "cp_async")

    def on(self, op: tile.KernelOp) -> None:
        for loop in [o for o in op.body.walk() if isinstance(o, scf.ForOp)]:
            if staged := [o for o in loop.body.block.ops if isinstance(o, tile.StageOp)]:
                self._pipeline(loop, staged, op.schedule.stages, op.warps.data)
        erase_unneeded(op.body)

    def _pipeline(self, loop: scf.ForOp, staged: Sequence[tile.StageOp], stages: int, warps: int) -> None:
        """Make the copies `staged` directly inside `loop` run `stages` - 1 iterations ahead, where that can be."""
        trips, why = trip_count(loop), None
        if constant_index(loop.step) is None or (trips is not None and trips < 2):
            why = f"its loop has {'a step that is computed' if trips is None else 'no iterations ahead'}"
        found = [(op, why or find_copy(op, loop, warps)) for op in staged]
        for op, copy in found:
            self.decline(op, copy if isinstance(copy, str) else None)
        if copies := [copy for _, copy in found if isinstance(copy, Copy)]:
            _Pipeline(loop, copies, stages if trips is None else min(stages, trips)).build()


@dataclass
class _Pipeline:
    """The rewriting of one loop."""

    loop: scf.ForOp
    copies: list[Copy]
    stages: int

    def build(self) -> None:
        ahead, old = self.stages - 1, self.loop
        first = [self._ahead(old, old.lb, stage, inside=False) for stage in range(ahead)]  # stage -> the copies' tiles
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
        if ahead:
            arrived = self._await(start, args[::ahead])
            newest = self._ahead(start, body.args[0], ahead, inside=True)
        else:
            newest = self._insert(start, body.args[0], None)
            arrived = self._await(start, newest)
        shifted: list[SSAValue] = []  # every carried tile becomes the next older one
        for c, tile_in in enumerate(newest if ahead else ()):
            shifted += [*args[c * ahead + 1 : (c + 1) * ahead], tile_in]
        replace(last, scf.YieldOp(*last.operands, *shifted))
        for copy, value in zip(self.copies, arrived, strict=True):
            copy.stage.result.replace_all_uses_with(value)

    def _ahead(self, before: Operation, at: SSAValue, stages: int, *, inside: bool) -> list[SSAValue]:
        """The copies of the iteration that is `stages` behind `at`, under a predicate where there may be none."""
        first, step = constant_index(at), constant_index(self.loop.step)
        assert step is not None
        distance = arith.ConstantOp.from_int_and_width(stages * step + (first or 0), IndexType())
        made: list[Operation] = [distance] if first is not None else [distance, arith.AddiOp(at, distance.result)]
        counter, predicate = made[-1].results[0], None
        if inside or trip_count(self.loop) is None:
            made.append(payload.CmpOp("lt", counter, self.loop.ub))
            predicate = made[-1].results[0]
            if inside:
                counter.name_hint, predicate.name_hint = "next", "more"
        insert_before(before, *made, source=self.loop)
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
