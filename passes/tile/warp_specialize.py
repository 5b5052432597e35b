"""Giving the loading of operands to warps of their own: `tile-warp-specialize`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue

from ...dialects import tile
from ...dialects.kernel.barriers import PRODUCER_REGISTERS, WARPGROUP, consumer_registers
from ...dialects.shapes.ranges import trip_count
from ...dialects.support.locations import copy_location
from ..analysis.async_copies import Box, find_box, is_index, share
from ..pass_manager import TilePass
from ..rewriting import erase, erase_unneeded, insert_after, insert_before


class WarpSpecializePass(TilePass):
    """Let warps of their own load what the others compute on.

    What: in a kernel whose schedule says `copy = tma, stages = S`, staged tiles that are boxes of their buffers come
    through rings. The kernel's program becomes the consumer, which takes the boxes of a block of operations in front of
    their first use and gives the slot back behind the last one. A copy of its loops and indices, without everything
    else, becomes the producer: one thread, which starts the boxes and puts them. Tiles that one operation uses first
    share a ring, of S slots inside of an innermost loop, of one elsewhere. With two warpgroups or more, or
    several blocks on a multiprocessor, the producer gives registers to the consumer. What is computed on, gathered or
    masked in its own way is staged by the consumer as before.
    With `cluster = N` in the schedule, boxes that N blocks next to each other all need are loaded together: each block
    loads a part of the rows for all of them, so the box leaves the level-2 cache once.
    Why: one instruction of one thread copies a box, without registers and addresses in the threads that compute; and
    how far ahead it runs is decided by the free slots alone, not by a program written into the loop.
    Why here: instead of `tile-pipeline-loads`, at the same place and for the same reasons.

    ```mlir
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero) {
      %x = tile.load %X[d0 + %i * 128, d1 + %k * 64] : ... -> tensor<128x64xbf16, #l>
      %t = tile.stage %x : ... -> tensor<128x64xbf16, #s>
      %n = tile.dot %t, ...
    ```
    becomes
    ```mlir
    %r = tile.ring : !tile.ring<4 of tensor<128x64xbf16, #s>>
    tile.warp_specialize {
      %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%a = %zero) {
        %t = tile.consumer_wait %r : ...
        %n = tile.dot %t, ...
        tile.consumer_release %r : ...
    } producer warps 4 registers [240, 24] {
      scf.for %k = %c0 to %c8 step %c1 {
        %x = tile.tma_load %X[d0 + %i * 128, d1 + %k * 64] : ... -> tensor<128x64xbf16, #s>
        tile.producer_load %r, %x : ...
    ```
    """

    name = "tile-warp-specialize"
    decision = ("copy", "tma")

    def on(self, op: tile.KernelOp) -> None:
        found: list[Box] = []
        for stage in [o for o in op.body.walk() if isinstance(o, tile.StageOp)]:
            if not all(isinstance(u.operation, tile.TmaStoreOp) for u in stage.result.uses):
                box = find_box(stage)
                why = box if isinstance(box, str) else _unreachable(stage, op)
                if why is None and isinstance(box, Box):
                    found.append(box)
                self.decline(stage, why)
        if found:
            cluster = op.schedule.cluster
            _specialize(op, share(op, found, cluster, self.name) if cluster > 1 else found)
        erase_unneeded(op.body)


@dataclass
class Queue:
    """The boxes that a block of operations uses first in one operation, and their ring."""

    block: Block
    first: Operation
    boxes: list[Box]
    ring: SSAValue


def _specialize(kernel: tile.KernelOp, boxes: list[Box]) -> None:
    """Split the program of `kernel` into a consumer and a producer, which loads `boxes`."""
    program, producer = Region(Block()), Region(Block())
    entry = kernel.body.block
    for op in list(entry.ops):
        op.detach()
        program.block.add_op(op)
    queues = _queues(entry, boxes, kernel.schedule.stages)
    _produce(program.block, producer.block, {}, queues)
    for queue in queues:
        _consume(queue)
    consumers, resident, registers = kernel.warps.data, max(1, kernel.schedule.blocks_per_sm), ()
    if consumers >= 2 * WARPGROUP or resident > 1:
        registers = (consumer_registers(consumers, resident), PRODUCER_REGISTERS)
    partitions = tile.WarpSpecializeOp(program, WARPGROUP, registers, producer)
    partitions.location = kernel.location
    entry.add_op(partitions)


def _unreachable(stage: tile.StageOp, kernel: tile.KernelOp) -> str | None:
    """Why the producer can't get to where `stage` is: what lies around it is no loop over indices alone."""
    around = stage.parent_op()
    while around is not kernel:
        if not isinstance(around, scf.ForOp) or not all(is_index(v) for v in (around.lb, around.ub, around.step)):
            return "it is inside of something other than loops whose bounds are indices"
        around = around.parent_op()
    return None


def _queues(entry: Block, found: list[Box], stages: int) -> list[Queue]:
    """Group the boxes by where they are used first, and give each group a ring in `entry`."""
    groups: dict[tuple[Block, Operation], list[Box]] = {}
    for box in found:
        block = box.stage.parent
        assert block is not None
        first = min(_users(block, box), key=block.get_operation_index)
        groups.setdefault((block, first), []).append(box)
    queues: list[Queue] = []
    for (block, first), boxes in groups.items():
        loop, slots = block.parent_op(), 1
        inner = any(b is not block and block.is_ancestor(b) for b, _ in groups)  # their boxes would come in between
        if isinstance(loop, scf.ForOp) and not inner:
            trips = trip_count(loop)
            slots = stages if trips is None else max(1, min(stages, trips))
        ring = tile.RingOp(tile.RingType.get(slots, [b.type for b in boxes]))
        ring.result.name_hint = "ring"
        copy_location(first, (ring,))
        entry.add_op(ring)
        queues.append(Queue(block, first, boxes, ring.result))
    return queues


def _users(block: Block, box: Box) -> list[Operation]:
    users = (block.find_ancestor_op_in_block(use.operation) for use in box.stage.result.uses)
    return [user for user in users if user is not None]


def _consume(queue: Queue) -> None:
    """Take the boxes in front of their first use, and give them back behind the last."""
    block = queue.block
    last = max((u for b in queue.boxes for u in _users(block, b)), key=block.get_operation_index)
    take, release = tile.ConsumerWaitOp(queue.ring), tile.ConsumerReleaseOp(queue.ring)
    insert_before(queue.first, take)
    insert_after(last, release)
    for box, tile_in in zip(queue.boxes, take.res, strict=True):
        tile_in.name_hint = box.stage.result.name_hint
        box.stage.result.replace_all_uses_with(tile_in)
        erase(box.stage)


def _produce(source: Block, target: Block, values: dict[SSAValue, SSAValue], queues: list[Queue]) -> None:
    """Append to `target` what of `source` a producer does; `values` are what index values of `source` are there."""
    here = {q.first: q for q in queues if q.block is source}
    for op in source.ops:
        if op in here:
            _put(here[op], target, values)
        if isinstance(op, scf.ForOp) and any(op.is_ancestor(q.first) for q in queues if q.block is not source):
            body = Block(arg_types=[op.body.block.args[0].type])
            body.args[0].name_hint = op.body.block.args[0].name_hint
            lb, ub, step = (values.get(v, v) for v in (op.lb, op.ub, op.step))
            loop = scf.ForOp(lb, ub, step, [], body)
            _produce(op.body.block, body, {**values, op.body.block.args[0]: body.args[0]}, queues)
            body.add_op(scf.YieldOp())
            copy_location(op, (loop,))
            target.add_op(loop)
        elif op.results and not op.regions and all(is_index(r) for r in op.results):
            copy = op.clone(values)
            target.add_op(copy)
            values.update(zip(op.results, copy.results, strict=True))


def _put(queue: Queue, target: Block, values: dict[SSAValue, SSAValue]) -> None:
    made = [b.make([values.get(s, s) for s in b.load.symbols]) for b in queue.boxes]
    put = tile.ProducerLoadOp(queue.ring, [m.result for m in made])
    copy_location(queue.first, (*made, put))
    target.add_ops([*made, put])
