"""From loop nests to kernels: `convert-loop-to-tile`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ....dialects import loop, tensor, tile
from ....dialects.support.locations import location_of, location_text
from ....errors import CompileError, ScheduleError
from ...analysis.f32_parts import STORED
from ...analysis.nest_schedule import schedule_of
from ...rewriting import erase
from .kernel_builder import KernelBuilder


@dataclass(frozen=True)
class ConvertLoopToTilePass(ModulePass):
    """Outline every planned nest as a kernel, a block's program over tiles.

    What: the schedule of a nest gives each free index a tile extent (1: the index is a block's own, a scalar) and each
    reduction index a chunk. A loop value becomes a tile over those of its indices that have one, in a fixed order; a
    load becomes the load of a tile, with the ends of ranges as its domain; a reduction is a `tile.reduce`, in an
    `scf.for` where it has several chunks; the payload stays what it is. Chunks of which every term is masked (the keys
    after the queries of a causal block, or before a window) are not visited: the loop's bounds are expressions of the
    block's indices, derived from the comparisons and domains in the body. A value is computed in the outermost loop
    that has its operands, so nothing is computed twice that does not change. The blocks of a cluster that share rows
    take their tiles in turn, and tell each other what they have of every result (`tile.cluster_allgather`). A nest that
    computes the values and indices of a scatter is its kernel, which stores neither but combines the values.
    Why: from here on the parallelism of a block is in the types, and layouts can be chosen for it.
    Why here: after `plan-schedules`, which decides; this pass only carries out.

    ```mlir
    %y = loop.nest (%i) in [64] -> tensor<64xf32>
           attributes {schedule = #tile.schedule<block = [1], chunk = [512], warps = 4>} {
      %s = loop.reduce add (%k) in [512] -> f32 {
        %a = loop.load %x[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<64x512xf32>
        loop.yield %a : f32
      }
      loop.yield %s : f32
    }
    ```
    becomes
    ```mlir
    tile.kernel @k0(%x: memref<64x512xf32>, %y: memref<64xf32>) blocks (%i) in [64] warps 4 attributes {...} {
      %a = tile.load %x[affine_map<(d0)[s0] -> (s0, d0)>](%i) : memref<64x512xf32>, index -> tensor<512xf32>
      %s = tile.reduce add %a over [0] : tensor<512xf32> -> f32
      tile.store %s, %y[affine_map<()[s0] -> (s0)>](%i) : f32, memref<64xf32>, index
    }
    %y = tile.launch @k0(%x) : (tensor<64x512xf32>) -> tensor<64xf32>
    ```
    """

    name = "convert-loop-to-tile"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        taken = {k.sym_name.data for k in op.ops if isinstance(k, tile.KernelOp)}
        numbers = (f"k{i}" for i in range(len(taken) + 1_000_000))
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for scatter in [o for o in func.body.walk() if isinstance(o, tensor.ScatterOp)]:
                outline(computing(scatter), func, next(n for n in numbers if n not in taken), scatter)
            for nest in [o for o in func.body.walk() if isinstance(o, loop.NestOp)]:
                outline(nest, func, next(n for n in numbers if n not in taken))


def computing(scatter: tensor.ScatterOp) -> loop.NestOp:
    """The nest that computes the values and indices of `scatter`. Raises CompileError if that is not one nest."""
    nest = scatter.values.owner
    if not isinstance(nest, loop.NestOp) or any(index.owner is not nest for index in scatter.indices):
        raise CompileError(
            "values and indices are results of one nest", operator=scatter.name, location=location_text(scatter)
        )
    return nest


def outline(nest: loop.NestOp, func: FuncOp, name: str, scatter: tensor.ScatterOp | None = None) -> None:
    """Replace `nest`, or the `scatter` of what it computes, by the launch of a new kernel `name` in front of `func`.

    Raises CompileError."""
    try:
        if schedule_of(nest).split_k.data > 1:
            raise ScheduleError("blocks are to share its sum; run loop-split-k first", argument="split_k")
        if schedule_of(nest).f32_matmul_precision.data == STORED:
            raise ScheduleError(
                "factors are to be split before; run loop-split-f32-operands first", argument="f32_matmul_precision"
            )
        builder = KernelBuilder(nest, name, scatter)
        kernel = builder.build()
    except CompileError as error:
        error.operator = error.operator or nest.name
        error.location = error.location or location_text(nest)
        raise
    Rewriter.insert_op(kernel, InsertPoint.before(func))
    replaced, start = (nest, None) if scatter is None else (scatter, scatter.init)
    launch = tile.LaunchOp(name, builder.inputs, replaced.result_types, start)
    launch.location = location_of(replaced)
    for old, new in zip(replaced.results, launch.res, strict=True):
        new.name_hint = old.name_hint
    Rewriter.replace_op(replaced, launch)
    if scatter is not None and not any(list(r.uses) for r in nest.res):
        erase(nest)
