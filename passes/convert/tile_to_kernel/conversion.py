"""From a block's program over tiles to one thread's program in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IndexType, ModuleOp, VectorType
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass

from ....dialects import kernel, tile
from ....dialects.support.locations import refused
from ...rewriting import erase
from . import dots, global_access, shared_staging  # noqa: F401  their functions lower ops  # pyright: ignore[reportUnusedImport]
from .cp_async_pipeline import Carried, Rings
from .emitter import Lowering, lowers
from .host import lower_declaration, lower_host
from .tma_pipeline import Cursors


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
                op.body.block.insert_op_before(lower_kernel(k), k)
        launchable = {k.sym_name.data for k in kernels if 0 not in k.grid_shape}
        for main in [f for f in op.ops if isinstance(f, func.FuncOp)]:
            new = lower_declaration(main) if main.is_declaration else lower_host(main, launchable)
            op.body.block.insert_op_before(new, main)
            erase(main)
        erase(*kernels)


def lower_kernel(op: tile.KernelOp) -> kernel.FuncOp:
    """The kernel at the kernel level."""
    out = Lowering(op)
    count = prod(n for n in out.grid if isinstance(n, int))
    if count >= 1 << 31:
        raise refused(op, f"a grid has 1 to 2^31 - 1 blocks, not {count}")
    for b, index in zip(op.blocks, out.block_indices([b.first_use is not None for b in op.blocks]), strict=True):
        if isinstance(index, SSAValue) and index.name_hint is None:
            index.name_hint = b.name_hint
        out.values[b] = index
    out.lower_block(op.body.block)
    symbolic = any(not isinstance(n, int) for n in out.grid)
    grid = [n for n in out.grid if n != 1] if symbolic else [count]
    resident = 0 if op.schedule is None else op.schedule.data.blocks_per_sm
    new = kernel.FuncOp(
        op.sym_name.data, grid, out.warps + out.producers, op.cluster_size, resident or None, body=Region(out.entry)
    )
    new.attributes.update(op.attributes)  # the schedule, for whoever reads the CUDA
    new.location = op.location
    return new


@lowers(tile.BroadcastOp)
def lower_broadcast(out: Lowering, op: tile.BroadcastOp) -> SSAValue:
    """A tile repeated: each thread has what it needs already, in fewer registers."""
    layout, source = out.layout(op.result), out.of(op.source)
    if not isinstance(source.type, VectorType):
        return out.emit(kernel.SplatOp(source, layout.registers))
    picks = layout.without(op.along.get_values()).picks(out.layout(op.source))
    if picks is None:
        raise refused(op, "needs elements of other threads (tile-assign-layouts inserts the conversion)")
    return out.picked(source, picks)


@lowers(tile.SliceOp)
def lower_slice(out: Lowering, op: tile.SliceOp) -> SSAValue:
    """The registers of a part."""
    registers = out.layout(op.source).registers_of(out.layout(op.result), op.at.get_values())
    return out.emit(kernel.ShuffleRegistersOp(out.vector(op.source), registers))


@lowers(scf.ForOp)
def lower_for(out: Lowering, op: scf.ForOp) -> None:
    """A loop, which carries where rings are as well."""
    pipelines = Carried(out, op)
    kept, cursors = pipelines.kept(), Cursors.of(out, op)
    starts = [out.of(op.iter_args[i]) for i in kept] + pipelines.entry()
    cursor = len(starts)
    starts += cursors.values(out)
    lb, ub, step = out.of(op.lb), out.of(op.ub), out.of(op.step)
    body = Block(arg_types=[IndexType(), *(s.type for s in starts)])
    counter, *carried = op.body.block.args
    out.define(counter, body.args[0])
    for i, new in zip(kept, body.args[1:], strict=False):
        out.define(carried[i], new)
    free = body.args[1 + len(kept) : 1 + cursor]
    pipelines.name(carried, free)
    pipelines.set(carried, free)
    cursors.set(body.args[1 + cursor :])
    loop = scf.ForOp(lb, ub, step, starts, body)
    loop.attributes.update(op.attributes)
    with out.inside(body):
        out.lower_block(op.body.block)
        last = op.body.block.last_op
        assert isinstance(last, scf.YieldOp)
        out.location = last.location
        yielded = [out.of(last.operands[i]) for i in kept]
        out.add_op(scf.YieldOp(*yielded, *pipelines.freed(carried), *cursors.values(out)))
    out.location = op.location
    out.add_op(loop)
    for i, new in zip(kept, loop.results, strict=False):
        out.define(op.results[i], new)
    cursors.set(loop.results[cursor:])
    pipelines.set(op.results, loop.results[len(kept) : cursor])
    if out.state(Rings).drains(op):  # nothing is in flight any more, and whoever reuses the memory can see that
        out.add_op(kernel.AsyncWaitOp(0))
