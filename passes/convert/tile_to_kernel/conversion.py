"""From a block's program over tiles to one thread's program in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import Float32Type, IndexType, IntegerAttr, ModuleOp, TensorType, VectorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ....dialects import kernel, payload, tile
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.layouts.linear import LANE_BITS, LANES, Linear, Shared, log2
from ....dialects.payload import element_type, shape_of
from ....dialects.support.locations import refused
from ....dialects.tile.async_copy import SliceOp, TmaStoreOp
from ....dialects.tile.dot import without_flight
from ....dialects.tile.row_cache import ClusterAllGatherOp, RowBufferLoadOp, RowBufferOp, RowBufferStoreOp
from ....dialects.tile.schedule import ScheduleAttr
from ....dialects.tile.warp_specialize import (
    ConsumerReleaseOp,
    ConsumerWaitOp,
    ProducerLoadOp,
    RingOp,
    TmaLoadOp,
    WarpSpecializeOp,
)
from ....errors import BorderError
from ...analysis.memory_access import Write
from ...analysis.tile_layouts import layout_in_registers, layout_in_shared, linear_of, shared_of
from ...rewriting import erase
from . import cp_async_pipeline, global_access, row_cache, scratch, shared_staging, tma_pipeline, tma_store
from .cluster_exchange import peers
from .dot_fma import lower_dot
from .dot_mma import lower_mma
from .dot_wgmma import dot_async
from .emitter import Emitter, Index
from .host import lower_declaration, lower_host
from .register_coordinates import Places


@dataclass(frozen=True)
class ConvertTileToKernelPass(ModulePass):
    """Give every thread its part of the block's tiles.

    What: a tile with a layout becomes the vector of registers that its layout gives each thread; the payload only
    changes its type. Loads and stores get coordinates computed from who the thread is, and as wide an access as can be
    proved right; reductions fold registers, shuffle lanes and meet in shared memory; contractions loop over slices of
    operands in shared memory; `tile.launch` becomes a launch on buffers, with `@main`'s results as trailing arguments.
    Why: hardware runs threads; until here nothing had to know about them.
    Why here: every decision has been taken (layouts, what is in shared memory), so this is mechanical. Barriers and
    addresses in shared memory are left to the passes after it, which see all accesses.

    ```mlir
    %x = tile.load %X[affine_map<(d0)[s0] -> (s0, d0)>](%i) : memref<8x128xf32>, index -> tensor<128xf32, #l>
    %y = arith.mulf %x, %x : tensor<128xf32, #l>    // #l: reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]]
    ```
    becomes
    ```mlir
    %x = kernel.load %X[%block, %0] regs [[0, 1], [0, 2]] vec 4 : memref<8x128xf32> (index, index) -> vector<4xf32>
    %y = arith.mulf %x, %x : vector<4xf32>          // %0 = thread * 4
    ```
    """

    name = "convert-tile-to-kernel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = [k for k in op.ops if isinstance(k, tile.KernelOp)]
        for k in kernels:
            if 0 not in k.grid_shape:
                op.body.block.insert_op_before(_Kernel(k).lower(), k)
        launchable = {k.sym_name.data for k in kernels if 0 not in k.grid_shape}
        for main in [f for f in op.ops if isinstance(f, func.FuncOp)]:
            new = lower_declaration(main) if main.is_declaration else lower_host(main, launchable)
            op.body.block.insert_op_before(new, main)
            erase(main)
        erase(*kernels)


Lowering = Callable[["_Kernel", Any], None]


class _Kernel:
    """The lowering of one kernel: what every value of the tile level became."""

    def __init__(self, op: tile.KernelOp) -> None:
        self.op = op
        self.warps = op.warps.data
        self.grid = op.grid_shape
        block = Block(arg_types=[b.type for b in op.buffers])
        self.out = Emitter(block, self.grid, self.warps)
        self.values: dict[SSAValue, Index] = {}
        for old, new in zip(op.buffers, block.args, strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new
        self.rings = cp_async_pipeline.Rings(op)
        self.queues: dict[SSAValue, tma_pipeline.Queue] = {}
        self.rows: dict[SSAValue, row_cache.Row] = {}
        self.maps = tma_pipeline.Maps(self.out)
        self.scratch = scratch.Scratch(self.out)
        self.producers = 0
        self._layouts: dict[Attribute, Linear] = {}

    def lower(self) -> kernel.FuncOp:
        """The kernel at the kernel level."""
        count = prod(n for n in self.grid if isinstance(n, int))
        if count >= 1 << 31:
            raise refused(self.op, f"a grid has 1 to 2^31 - 1 blocks, not {count}")
        used = [b if b.uses else None for b in self.op.blocks]
        for b, index in zip(self.op.blocks, self.out.block_indices([b is not None for b in used]), strict=True):
            self.values[b] = self.out.name(index, b.name_hint) if b.name_hint else index
        self.lower_block(self.op.body.block)
        symbolic = any(not isinstance(n, int) for n in self.grid)
        grid = [n for n in self.grid if n != 1] if symbolic else [count]
        warps, cluster = self.warps + self.producers, self.op.cluster_size
        schedule = self.op.attributes.get("schedule")
        resident = schedule.data.blocks_per_sm if isinstance(schedule, ScheduleAttr) else 0
        new = kernel.FuncOp(
            *(self.op.sym_name.data, grid, warps, cluster, resident or None), body=Region(self.out.entry)
        )
        new.attributes.update(self.op.attributes)  # the schedule, for whoever reads the CUDA
        new.location = self.op.location
        return new

    def lower_block(self, block: Block) -> None:
        """Lower the ops of `block` but its terminator."""
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                continue
            self.out.location = op.location
            lowering = _LOWERINGS.get(type(op))
            if lowering is not None:
                lowering(self, op)
            elif payload.is_payload(op):
                self.lower_payload(op)
            else:
                raise refused(op, "has no lowering to the kernel level", BorderError)

    def of(self, value: SSAValue) -> SSAValue:
        """What `value` became."""
        return self.out.value(self.values[value])

    def layout(self, value: SSAValue) -> Linear:
        """The register layout of a tile; a scalar is one register that all threads have."""
        t = without_flight(value.type)
        if not shape_of(t):
            return Linear((), (), ((),) * LANE_BITS, ((),) * log2(self.warps))
        if (known := self._layouts.get(t)) is None:
            known = self._layouts[t] = layout_in_registers(value, self.warps)
        return known

    def define(self, old: SSAValue, new: Index) -> None:
        """Remember that `old` became `new`, which takes over its name."""
        if isinstance(new, SSAValue) and old.name_hint is not None:
            new.name_hint = old.name_hint
        self.values[old] = new

    def vector(self, value: SSAValue) -> SSAValue:
        """What a tile or scalar became, as a vector of registers."""
        new = self.of(value)
        return new if isinstance(new.type, VectorType) else self.out.emit(kernel.SplatOp(new, 1))

    def from_vector(self, old: SSAValue, new: SSAValue) -> None:
        """`define` for a result that is a vector also where the tile is a scalar."""
        scalar = not isinstance(old.type, TensorType)
        self.define(old, self.out.emit(kernel.ExtractOp(new)) if scalar else new)

    def lower_payload(self, op: Operation) -> None:
        """Change the container: tiles become vectors of registers."""
        constant = isinstance(op, payload.ConstantOp | arith.ConstantOp)
        if constant and isinstance(op.results[0].type, IndexType) and isinstance(op.value, IntegerAttr):
            self.values[op.results[0]] = op.value.value.data
            return
        if isinstance(op, payload.ExtentOp) and isinstance(op.result.type, IndexType):
            self.values[op.result] = self.out.size(op.symbol)
            return
        container: Attribute = IndexType()
        for v in (*op.results, *op.operands):
            if isinstance(v.type, TensorType):
                container = VectorType(IndexType(), [self.layout(v).registers])
                break
        new = self.out.add_op(payload.retyped(op, [self.of(v) for v in op.operands], container))
        self.values.update(zip(op.results, new.results, strict=True))

    def places(self, op: tile.LoadOp | tile.StoreOp | tile.AffineOp, layout: Linear) -> Places:
        """For computing where `op`'s tile is."""
        return Places(self.out, layout, op.symbols, [self.values[s] for s in op.symbols])

    def lower_load(self, op: tile.LoadOp) -> None:
        fill = None if op.fill is None else self.of(op.fill)
        places = self.places(op, self.layout(op.result))
        self.from_vector(op.result, global_access.load(self.out, op, self.of(op.source), places, fill))

    def lower_store(self, op: Write) -> None:
        layout, left = self.layout(op.value).compact()
        value, symbols = self.vector(op.value), [self.values[s] for s in op.symbols]
        if len(left) != self.layout(op.value).registers:
            value = self.out.emit(kernel.ShuffleRegistersOp(value, left))
            symbols = [
                self.out.emit(kernel.ShuffleRegistersOp(s, left))
                if isinstance(s, SSAValue) and isinstance(s.type, VectorType)
                else s
                for s in symbols
            ]
        places = Places(self.out, layout, op.symbols, symbols)
        global_access.store(self.out, op, value, self.of(op.target), places)

    def lower_affine(self, op: tile.AffineOp) -> None:
        places = self.places(op, self.layout(op.result))
        offsets = places.offsets(places.form(op.map.data.results[0]))
        origin = places.origin(offsets)
        if offsets.per_register or not isinstance(op.result.type, TensorType):
            self.define(op.result, origin)
        else:
            self.define(op.result, self.out.emit(kernel.IndicesOp(self.out.value(origin), offsets.steps)))

    def lower_broadcast(self, op: tile.BroadcastOp) -> None:
        layout, source = self.layout(op.result), self.of(op.source)
        if not isinstance(source.type, VectorType):
            self.define(op.result, self.out.emit(kernel.SplatOp(source, layout.registers)))
            return
        picks = layout.without(op.along.get_values()).picks(self.layout(op.source))
        if picks is None:
            raise refused(op, "needs elements of other threads (tile-assign-layouts inserts the conversion)")
        same = picks == tuple(range(self.layout(op.source).registers))
        self.define(op.result, source if same else self.out.emit(kernel.ShuffleRegistersOp(source, picks)))

    def lower_reduce(self, op: tile.ReduceOp) -> None:
        layout = self.layout(op.source)
        reduced = layout.compact()[0].drop(op.dims.get_values())
        new = shared_staging.reduce(self.out, op, self.of(op.source), layout)
        picks = self.layout(op.result).picks(reduced)
        if picks is None:
            raise refused(op, "leaves the result in other threads than its layout says")
        if picks != tuple(range(reduced.registers)):
            new = self.out.emit(kernel.ShuffleRegistersOp(new, picks))
        self.from_vector(op.result, new)

    def operand(self, value: SSAValue) -> Linear | Shared:
        """Where an operand of a contraction lies: in registers or in shared memory."""
        return layout_in_shared(value) if linear_of(value.type) is None else self.layout(value)

    def lower_dot(self, op: tile.DotOp) -> None:
        values = self.of(op.lhs), self.of(op.rhs), self.of(op.acc)
        right, acc = layout_in_shared(op.rhs), self.layout(op.acc)
        if op.is_wgmma:
            why = "is asynchronous (tile-pipeline-dots makes it tile.dot_async)"
            raise refused(op, why, argument="atom")
        if op.atom is None:
            new = lower_dot(self.out, op, *values, (layout_in_shared(op.lhs), right, acc))
        else:
            new = lower_mma(self.out, op, *values, (self.operand(op.lhs), right, acc))
        self.define(op.result, new)

    def lower_accumulators(self, op: tile.AccumulatorsOp) -> None:
        t = kernel.AsyncAccumulatorsType(VectorType(Float32Type(), [self.layout(op.result).registers]))
        start = None if op.start is None else kernel.RegistersToAccumulatorsOp(self.of(op.start))
        self.define(op.result, self.out.emit(start or kernel.UndefAccumulatorsOp(t)))

    def lower_dot_async(self, op: tile.DotAsyncOp) -> None:
        values = self.of(op.lhs), self.of(op.rhs), self.of(op.acc)
        layouts = self.operand(op.lhs), layout_in_shared(op.rhs), self.layout(op.acc)
        use_acc = None if op.use_acc is None else self.of(op.use_acc)
        self.define(op.result, dot_async(self.out, op, values, use_acc, layouts))

    def lower_dot_wait(self, op: tile.DotWaitOp) -> None:
        self.define(op.result, self.out.emit(kernel.WgmmaWaitOp(op.pending.data, self.of(op.acc))))

    def lower_convert(self, op: tile.ConvertLayoutOp) -> None:
        value, hint = self.of(op.source), op.result.name_hint
        if (at := shared_of(op.source.type)) is not None:
            new = shared_staging.load_shared(self.out, value, at, self.layout(op.result))
        else:
            ends = self.layout(op.source), self.layout(op.result)
            through = self.scratch if self.queues else None
            new = shared_staging.convert(self.out, value, *ends, None if op.via is None else op.via.data, hint, through)
        if new is None:
            why = "cannot be converted so: a thread needs elements that it cannot reach"
            raise refused(op, why, argument="via")
        self.define(op.result, new)

    def lower_slice(self, op: SliceOp) -> None:
        registers = self.layout(op.source).registers_of(self.layout(op.result), op.at.get_values())
        self.define(op.result, self.out.emit(kernel.ShuffleRegistersOp(self.vector(op.source), registers)))

    def lower_tma_store(self, op: TmaStoreOp) -> None:
        buffer, held = self.of(op.value), self.layout(tma_store.staged_as(op).source)
        symbols = [self.values[s] for s in op.symbols]
        tma_store.tma_store(self.out, op, buffer, self.maps, self.values[op.target], symbols, held)
        self.scratch.give(buffer)

    def lower_stage(self, op: tile.StageOp) -> None:
        hint = op.source.name_hint
        at = layout_in_shared(op.result)
        if all(isinstance(u.operation, TmaStoreOp) for u in op.result.uses):
            warp_group_private = WARPGROUP if scratch.groups_apart(at, self.layout(op.source)) else None
            buffer = self.scratch.take(element_type(op.result.type), at, warp_group_private, f"{hint or 'tile'}_shared")
            self.values[op.result] = buffer
            shared_staging.store_shared(self.out, self.of(op.source), self.layout(op.source), buffer, at, matrices=True)
            return
        self.values[op.result] = shared_staging.stage(self.out, self.of(op.source), self.layout(op.source), at, hint)

    def lower_stage_async(self, op: tile.StageAsyncOp) -> None:
        ring, offset = self.rings.destination(op)
        target = ring.slot(self.out, offset, f"{ring.hint}_next")
        layout = cp_async_pipeline.copier(op).compact()[0]
        places = Places(self.out, layout, op.symbols, [self.values[s] for s in op.symbols], cp_async_pipeline.below(op))
        predicate = None if op.predicate is None else self.of(op.predicate)
        cp_async_pipeline.copy_async(self.out, op, self.of(op.source), places, target, predicate)
        self.values[op.result] = offset

    def lower_commit(self, op: tile.CommitOp) -> None:
        self.out.add_op(kernel.AsyncCommitOp())

    def lower_await(self, op: tile.AwaitOp) -> None:
        self.out.add_op(kernel.AsyncWaitOp(op.pending.data))
        for old, new in zip(op.tiles, op.res, strict=True):
            ring = self.rings.of_tile[old]
            self.values[new] = ring.slot(self.out, self.values[old], new.name_hint or f"{ring.hint}_shared")

    def lower_for(self, op: scf.ForOp) -> None:
        pipelines = cp_async_pipeline.Carried.of(self.rings.pipelines.get(op, []))
        kept = pipelines.kept(len(op.iter_args))
        cursors = tma_pipeline.Cursors.of(op, self.queues)
        starts = [self.of(op.iter_args[i]) for i in kept] + pipelines.entry(self.out)
        cursor = len(starts)
        starts += cursors.values(self.out)
        lb, ub, step = self.of(op.lb), self.of(op.ub), self.of(op.step)
        body = Block(arg_types=[IndexType(), *(s.type for s in starts)])
        counter, *carried = op.body.block.args
        self.define(counter, body.args[0])
        for i, new in zip(kept, body.args[1:], strict=False):
            self.define(carried[i], new)
        pipelines.enter(carried, self.values, body.args[1 + len(kept) : 1 + cursor])
        cursors.set(body.args[1 + cursor :])
        loop = scf.ForOp(lb, ub, step, starts, body)
        loop.attributes.update(op.attributes)
        with self.out.inside(body):
            self.lower_block(op.body.block)
            last = op.body.block.last_op
            assert isinstance(last, scf.YieldOp)
            self.out.location = last.location
            free = (self.out.value(v) for v in pipelines.freed(carried, self.values))
            yielded = [*(self.of(last.operands[i]) for i in kept), *free, *cursors.values(self.out)]
            self.out.add_op(scf.YieldOp(*yielded))
        self.out.location = op.location
        self.out.add_op(loop)
        for i, new in zip(kept, loop.results, strict=False):
            self.define(op.results[i], new)
        cursors.set(loop.results[cursor:])
        pipelines.leave(loop.results[len(kept) : cursor])
        pipelines.follow(op.results, self.values)
        if self.rings.drains(op):  # nothing is in flight any more, and whoever reuses the memory can see that
            self.out.add_op(kernel.AsyncWaitOp(0))

    def lower_row_buffer(self, op: RowBufferOp) -> None:
        self.rows[op.result] = row_cache.make_row(self.out, op, self.layout)

    def lower_row_buffer_store(self, op: RowBufferStoreOp) -> None:
        row, place = self.rows[op.row], self.values[op.place]
        row_cache.keep(self.out, op, row, self.of(op.value), self.layout(op.value), place)

    def lower_row_buffer_load(self, op: RowBufferLoadOp) -> None:
        row, place = self.rows[op.row], self.values[op.place]
        self.define(op.result, row_cache.kept(self.out, op, row, self.layout(op.result), place))

    def lower_cluster_allgather(self, op: ClusterAllGatherOp) -> None:
        for old, new in zip(op.res, peers(self.out, op, [self.vector(v) for v in op.tiles], self.layout), strict=True):
            self.define(old, new)

    def lower_ring(self, op: RingOp) -> None:
        self.queues[op.result] = tma_pipeline.make_queue(self.out, op.result, self.op.cluster_size)

    def lower_producer_load(self, op: ProducerLoadOp) -> None:
        tma_pipeline.put(self.out, op, self.queues[op.ring], self.maps, self.values)

    def lower_consumer_wait(self, op: ConsumerWaitOp) -> None:
        self.values.update(zip(op.res, tma_pipeline.take(self.out, op, self.queues[op.ring]), strict=True))

    def lower_consumer_release(self, op: ConsumerReleaseOp) -> None:
        condition = None if op.condition is None else self.of(op.condition)
        tma_pipeline.release(self.out, op, self.queues[op.ring], condition)

    def lower_box(self, op: TmaLoadOp) -> None:
        """`tile.producer_load` starts it: it needs to know the slot."""

    def lower_warp_specialize(self, op: WarpSpecializeOp) -> None:
        """The consumer's warps come first, so who a thread is stays as it was; of the producer one thread works."""
        out, found = self.out, list(self.queues.values())
        tma_pipeline.set_up(out, found, self.warps)
        consumer, producer = Block(arg_types=[IndexType()]), Block(arg_types=[IndexType()])
        for block in (consumer, producer):
            block.args[0].name_hint = "w"
        with out.inside(consumer):
            self.lower_block(op.consumer.block)
        for queue in found:
            queue.slot = queue.phase = 0
        with out.inside(producer):
            first = payload.CmpOp("eq", out.id("thread"), out.value(LANES * self.warps))
            with out.when(out.emit(first, "elected")):
                self.lower_block(op.producer.block)
        self.producers = op.warps.data
        out.location = op.location
        programs, warps = [Region(consumer), Region(producer)], [self.warps, self.producers]
        out.add_op(kernel.WarpSpecializeOp(["consumer", "producer"], warps, op.registers, programs))
        tma_pipeline.tear_down(out, found)


_LOWERINGS: dict[type[Operation], Lowering] = {
    tile.LoadOp: _Kernel.lower_load,
    tile.StoreOp: _Kernel.lower_store,
    tile.AtomicRmwOp: _Kernel.lower_store,
    tile.AffineOp: _Kernel.lower_affine,
    tile.BroadcastOp: _Kernel.lower_broadcast,
    tile.ReduceOp: _Kernel.lower_reduce,
    tile.DotOp: _Kernel.lower_dot,
    tile.AccumulatorsOp: _Kernel.lower_accumulators,
    tile.DotAsyncOp: _Kernel.lower_dot_async,
    tile.DotWaitOp: _Kernel.lower_dot_wait,
    tile.ConvertLayoutOp: _Kernel.lower_convert,
    tile.StageOp: _Kernel.lower_stage,
    SliceOp: _Kernel.lower_slice,
    TmaStoreOp: _Kernel.lower_tma_store,
    tile.StageAsyncOp: _Kernel.lower_stage_async,
    tile.CommitOp: _Kernel.lower_commit,
    tile.AwaitOp: _Kernel.lower_await,
    scf.ForOp: _Kernel.lower_for,
    RowBufferOp: _Kernel.lower_row_buffer,
    RowBufferStoreOp: _Kernel.lower_row_buffer_store,
    RowBufferLoadOp: _Kernel.lower_row_buffer_load,
    ClusterAllGatherOp: _Kernel.lower_cluster_allgather,
    RingOp: _Kernel.lower_ring,
    TmaLoadOp: _Kernel.lower_box,
    ProducerLoadOp: _Kernel.lower_producer_load,
    ConsumerWaitOp: _Kernel.lower_consumer_wait,
    ConsumerReleaseOp: _Kernel.lower_consumer_release,
    WarpSpecializeOp: _Kernel.lower_warp_specialize,
}
