"""`tile-warp-specialize`: lets a producer partition load operands by TMA, while a consumer partition computes.

A *TMA tile* (`Box`) is a staged rectangle of a buffer that one TMA instruction can load. A circular buffer
(`tile.ring`) passes TMA tiles from the producer to the consumer. It has one or more slots.
"""

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
    """Divides a kernel into a producer partition, which loads by TMA, and a consumer partition, which computes.

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

    The pass runs if the schedule has `copy = tma` and `stages = S`.

    - The consumer is the whole program. It waits for TMA tiles before their first use, and releases their slot after
      the last use.
    - The producer is one thread with a copy of the loops and index computations. It issues the TMA loads.
    - Tiles whose first use is the same operation share a circular buffer. It has S slots in an innermost loop (at most
      one per iteration), and one slot elsewhere.
    - With two or more consumer warpgroups, or several blocks per multiprocessor, registers move from the producer to
      the consumer.
    - Tiles that are computed, gathered or masked are staged by the consumer, as before.
    - With `cluster = N`, each of N neighbouring blocks loads a part of the tiles that all of them need, and multicasts
      it. The tile is then read from L2 once.

    **Rationale**: one thread copies a TMA tile with one instruction. The consumer threads need no addresses and no
    registers for it. The prefetch distance depends only on the free slots.

    **Pipeline position**: the alternative to `tile-pipeline-loads`, at the same position.
    """

    name = "tile-warp-specialize"
    decision = ("copy", "tma")

    def on(self, op: tile.KernelOp) -> None:
        tma_tiles: list[Box] = []
        for stage in [o for o in op.body.walk() if isinstance(o, tile.StageOp)]:
            if not all(isinstance(u.operation, tile.TmaStoreOp) for u in stage.result.uses):
                box = find_box(stage)
                why = box if isinstance(box, str) else _unreachable(stage, op)
                if why is None and isinstance(box, Box):
                    tma_tiles.append(box)
                self.decline(stage, why)
        if tma_tiles:
            cluster = op.schedule.cluster
            _specialize(op, share(op, tma_tiles, cluster, self.name) if cluster > 1 else tma_tiles)
        erase_unneeded(op.body)


@dataclass
class TileGroup:
    """TMA tiles that are first used by the same operation, and their circular buffer.

    block  the block of operations that uses the tiles
    first  the operation of `block` that uses them first
    boxes  the TMA tiles
    ring   the circular buffer
    """

    block: Block
    first: Operation
    boxes: list[Box]
    ring: SSAValue


def _specialize(kernel: tile.KernelOp, boxes: list[Box]) -> None:
    """Divides the program of `kernel` into a consumer and a producer, which loads `boxes`."""
    program, producer = Region(Block()), Region(Block())
    entry = kernel.body.block
    for op in list(entry.ops):
        op.detach()
        program.block.add_op(op)
    tile_groups = _tile_groups(entry, boxes, kernel.schedule.stages)
    _produce(program.block, producer.block, {}, tile_groups)
    for group in tile_groups:
        _consume(group)
    consumers, resident, registers = kernel.warps.data, max(1, kernel.schedule.blocks_per_sm), ()
    if consumers >= 2 * WARPGROUP or resident > 1:
        registers = (consumer_registers(consumers, resident), PRODUCER_REGISTERS)
    partitions = tile.WarpSpecializeOp(program, WARPGROUP, registers, producer)
    partitions.location = kernel.location
    entry.add_op(partitions)


def _unreachable(stage: tile.StageOp, kernel: tile.KernelOp) -> str | None:
    """Returns the reason why the producer cannot contain the load of `stage`, or None. Every enclosing operation must
    be a loop with bounds that the producer can compute."""
    parent = stage.parent_op()
    while parent is not kernel:
        if not isinstance(parent, scf.ForOp) or not all(is_index(v) for v in (parent.lb, parent.ub, parent.step)):
            return "it is inside of something other than loops whose bounds are indices"
        parent = parent.parent_op()
    return None


def _tile_groups(entry: Block, tma_tiles: list[Box], stages: int) -> list[TileGroup]:
    """Groups TMA tiles by their first use, and creates a circular buffer for each group in `entry`."""
    groups: dict[tuple[Block, Operation], list[Box]] = {}
    for box in tma_tiles:
        block = box.stage.parent
        assert block is not None
        first = min(_users(block, box), key=block.get_operation_index)
        groups.setdefault((block, first), []).append(box)
    tile_groups: list[TileGroup] = []
    for (block, first), boxes in groups.items():
        loop, slots = block.parent_op(), 1
        # The producer loads the tiles of nested loops between two tiles of this loop, so it cannot use more slots.
        inner = any(b is not block and block.is_ancestor(b) for b, _ in groups)
        if isinstance(loop, scf.ForOp) and not inner:
            trips = trip_count(loop)
            slots = stages if trips is None else max(1, min(stages, trips))
        ring = tile.RingOp(tile.RingType.get(slots, [b.type for b in boxes]))
        ring.result.name_hint = "ring"
        copy_location(first, (ring,))
        entry.add_op(ring)
        tile_groups.append(TileGroup(block, first, boxes, ring.result))
    return tile_groups


def _users(block: Block, box: Box) -> list[Operation]:
    users = (block.find_ancestor_op_in_block(use.operation) for use in box.stage.result.uses)
    return [user for user in users if user is not None]


def _consume(group: TileGroup) -> None:
    """Inserts the wait before the first use of the tiles of `group`, and the release of their slot after the last
    use."""
    block = group.block
    last = max((u for b in group.boxes for u in _users(block, b)), key=block.get_operation_index)
    take, release = tile.ConsumerWaitOp(group.ring), tile.ConsumerReleaseOp(group.ring)
    insert_before(group.first, take)
    insert_after(last, release)
    for box, tile_in in zip(group.boxes, take.res, strict=True):
        tile_in.name_hint = box.stage.result.name_hint
        box.stage.result.replace_all_uses_with(tile_in)
        erase(box.stage)


def _produce(source: Block, target: Block, values: dict[SSAValue, SSAValue], tile_groups: list[TileGroup]) -> None:
    """Appends the producer's copy of the block `source` to the block `target`: loops with TMA loads, and indices.

    `values` maps index values of `source` to those of `target`.
    """
    group_of_first_use = {q.first: q for q in tile_groups if q.block is source}
    for op in source.ops:
        if op in group_of_first_use:
            _produce_group(group_of_first_use[op], target, values)
        if isinstance(op, scf.ForOp) and any(op.is_ancestor(q.first) for q in tile_groups if q.block is not source):
            body = Block(arg_types=[op.body.block.args[0].type])
            body.args[0].name_hint = op.body.block.args[0].name_hint
            lb, ub, step = (values.get(v, v) for v in (op.lb, op.ub, op.step))
            loop = scf.ForOp(lb, ub, step, [], body)
            _produce(op.body.block, body, {**values, op.body.block.args[0]: body.args[0]}, tile_groups)
            body.add_op(scf.YieldOp())
            copy_location(op, (loop,))
            target.add_op(loop)
        elif op.results and not op.regions and all(is_index(r) for r in op.results):
            copy = op.clone(values)
            target.add_op(copy)
            values.update(zip(op.results, copy.results, strict=True))


def _produce_group(group: TileGroup, target: Block, values: dict[SSAValue, SSAValue]) -> None:
    loads = [b.make([values.get(s, s) for s in b.load.symbols]) for b in group.boxes]
    producer_load = tile.ProducerLoadOp(group.ring, [m.result for m in loads])
    copy_location(group.first, (*loads, producer_load))
    target.add_ops([*loads, producer_load])
