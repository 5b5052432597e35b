"""Loading chunks ahead of their use: `tile-pipeline-loads`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.shapes.ranges import constant_index, trip_count
from ..analysis.async_copies import Copy, find_copy
from ..anchored import TilePass
from ..dce import erase_unneeded
from ..remarks import emit_remark
from ..rewriting import insert_before, replace


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
            pipeline_loop(loop, op.schedule.stages, op.warps.data)
        erase_unneeded(op.body)


def pipeline_loop(loop: scf.ForOp, stages: int, warps: int) -> None:
    """Make the copies directly inside `loop` run `stages` - 1 iterations ahead, where that can be."""
    staged = [op for op in loop.body.block.ops if isinstance(op, tile.StageOp)]
    trips = trip_count(loop)
    if constant_index(loop.step) is None or (trips is not None and trips < 2):
        for op in staged:
            why = "has a step that is computed" if trips is None else "has no iterations ahead"
            emit_remark(op, PipelineLoadsPass.name, f"its loop {why}")
        return
    copies: list[Copy] = []
    for op in staged:
        found = find_copy(op, loop, warps)
        if isinstance(found, Copy):
            copies.append(found)
        else:
            emit_remark(op, PipelineLoadsPass.name, found)
    if copies:
        _Pipeline(loop, copies, stages if trips is None else min(stages, trips)).build()


@dataclass
class _Pipeline:
    """The rewriting of one loop."""

    loop: scf.ForOp
    copies: list[Copy]
    stages: int

    def build(self) -> None:
        """Replace the loop."""
        ahead, old = self.stages - 1, self.loop
        first = [self._before(s) for s in range(ahead)]  # stage -> the copies' tiles
        carried = [tiles[c] for c in range(len(self.copies)) for tiles in first]
        body = old.body.detach_block(0)
        args = [body.insert_arg(value.type, len(body.args)) for value in carried]
        for arg, value in zip(args, carried, strict=True):
            arg.name_hint = value.name_hint
        self.loop = scf.ForOp(old.lb, old.ub, old.step, [*old.iter_args, *carried], body)
        self.loop.attributes.update(old.attributes)
        replace(old, self.loop, results=self.loop.results[: len(old.results)])
        start, last = body.first_op, body.last_op
        assert start is not None
        assert isinstance(last, scf.YieldOp)
        if ahead:
            arrived = self._await(start, args[::ahead])
            newest = self._next(body, start, ahead)
        else:
            newest = self._insert(start, body.args[0], None)
            arrived = self._await(start, newest)
        shifted: list[SSAValue] = []  # every carried tile becomes the next older one
        for c, tile_in in enumerate(newest if ahead else ()):
            shifted += [*args[c * ahead + 1 : (c + 1) * ahead], tile_in]
        replace(last, scf.YieldOp(*last.operands, *shifted))
        for copy, value in zip(self.copies, arrived, strict=True):
            copy.stage.result.replace_all_uses_with(value)

    def _before(self, number: int) -> list[SSAValue]:
        """The copies of iteration `number`, in front of the loop."""
        lb, step = constant_index(self.loop.lb), constant_index(self.loop.step)
        assert step is not None
        first = arith.ConstantOp.from_int_and_width(number * step if lb is None else lb + number * step, IndexType())
        made: list[Operation] = [first]
        if lb is None:
            made.append(arith.AddiOp(self.loop.lb, first.result))
        counter, predicate = made[-1].results[0], None
        if trip_count(self.loop) is None:
            more = payload.CmpOp("lt", counter, self.loop.ub)
            made.append(more)
            predicate = more.result
        insert_before(self.loop, *made)
        return self._insert(self.loop, counter, predicate)

    def _insert(self, before: Operation, at: SSAValue, predicate: SSAValue | None) -> list[SSAValue]:
        """All copies of iteration `at`, one group."""
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

    def _next(self, body: Block, before: Operation, ahead: int) -> list[SSAValue]:
        """The copies of the iteration that is `ahead` of this one, if there is one."""
        step = constant_index(self.loop.step)
        assert step is not None
        distance = arith.ConstantOp.from_int_and_width(ahead * step, IndexType())
        counter = arith.AddiOp(body.args[0], distance.result)
        more = payload.CmpOp("lt", counter.result, self.loop.ub)
        counter.result.name_hint, more.result.name_hint = "next", "more"
        insert_before(before, distance, counter, more, source=self.loop)
        return self._insert(before, counter.result, more.result)
