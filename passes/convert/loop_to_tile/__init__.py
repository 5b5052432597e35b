"""From loop nests to kernels: `convert-loop-to-tile`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue, Use
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass

from ....dialects import loop, payload, tensor, tile
from ....dialects.loop.dependence import Dependence, yielded
from ....dialects.payload import element_type
from ....dialects.shapes.extents import Count, count_of, extents_of, memref_of
from ....dialects.support.locations import blamed, location_of, refused
from ....dialects.tensor import identity
from ....errors import CompileError, ScheduleError
from ...analysis.nest_schedule import Shared, reduction_indices, schedule_of, shared_of_nest
from ...analysis.operands import STORED
from ...rewriting import erase, insert_after, insert_before, replace
from .emitter import Dim, Emitter, Tile
from .reductions import Reducer


def sources(nest: loop.NestOp) -> list[SSAValue]:
    found: dict[SSAValue, None] = {}
    for op in nest.body.walk():
        if isinstance(op, loop.LoadOp) and not (isinstance(op.source.owner, payload.ConstantOp) and op.domain is None):
            found.setdefault(op.source)
    return list(found)


class KernelBuilder:
    """Builds the kernel of one nest according to its schedule.

    With `scatter`, of which the nest computes values and indices, it combines them into the scatter's result, its only
    one, and the nest's own results are not stored."""

    def __init__(self, nest: loop.NestOp, name: str, scatter: tensor.ScatterOp | None = None) -> None:
        self.nest, self.name, self.scatter = nest, name, scatter
        self.results: tuple[SSAValue, ...] = tuple(nest.res) if scatter is None else (scatter.result,)
        self.inputs = sources(nest)
        self._schedule = schedule_of(nest)
        self._shared = Shared()
        self._rank: SSAValue | None = None

    def build(self) -> tile.KernelOp:
        """The kernel; its inputs are `self.inputs`, its results `self.results`."""
        nest, indices, schedule = self.nest, self.nest.body.block.args, self._schedule.data
        if schedule.cluster * schedule.cluster_k > 1:
            self._shared = shared_of_nest(nest, self._schedule)
        serial = {*schedule.serial, *(i for i, index in enumerate(indices) if index in self._shared.indices)}
        tiles = [count_of(n, b) for n, b in zip(nest.sizes, schedule.block, strict=True)]
        counts = [self._shared.steps(a, n) if isinstance(n, int) else n for a, n in zip(indices, tiles, strict=True)]
        grid = [i for i, n in enumerate(counts) if n != 1 and i not in serial]
        walked = [i for i, n in enumerate(counts) if n != 1 and i in serial]
        values, ranks = [*self.inputs, *self.results], [self._shared.ranks] if self._shared.indices else []
        types = [memref_of(element_type(v.type), extents_of(v.type)) for v in values]
        block = Block(arg_types=[*types, *(IndexType() for _ in (*grid, *ranks))])
        for arg, value in zip(block.args, values, strict=False):
            arg.name_hint = value.name_hint or ("out" if value in self.results else None)
        counters: dict[int, SSAValue] = dict(zip(grid, block.args[len(values) :], strict=False))
        for i, arg in counters.items():
            arg.name_hint = indices[i].name_hint
        if ranks:
            self._rank = block.args[-1]
            self._rank.name_hint = "rank"
        emitter = Emitter(nest, block, dict(zip(self.inputs, block.args, strict=False)), schedule.lanes == 1)
        self._outputs = block.args[len(self.inputs) : len(values)]
        scans = [op for op in nest.body.block.ops if isinstance(op, loop.ScanOp)]
        if walked or scans:
            self._walk(emitter, counters, {i: counts[i] for i in walked}, scans)
        else:
            self._program(emitter, counters, {}, {})
        shape = [*(counts[i] for i in grid), *ranks]
        cluster = self._shared.ranks  # those that share boxes come later
        kernel = tile.KernelOp(self.name, shape, schedule.warps, schedule.lanes, cluster, Region(block))
        kernel.attributes["schedule"] = self._schedule
        kernel.location = location_of(nest)
        return kernel

    def _walk(
        self, emitter: Emitter, counters: dict[int, SSAValue], walked: dict[int, Count], scans: Sequence[loop.ScanOp]
    ) -> None:
        """Emits the program in loops over the tiles along the indices `walked`, which carry the results of `scans`."""
        args = self.nest.body.block.args
        along = {op: self._carry_indices(op) for op in scans}
        starts = [self._start(emitter, op, along[op]) for op in scans]

        def program(loops: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
            depths = {i: emitter.depth + 1 - len(walked) + n for n, i in enumerate(walked)}
            carries = {op: (value, along[op]) for op, value in zip(scans, carried, strict=True)}
            self._program(emitter, counters | dict(zip(walked, loops, strict=True)), depths, carries)
            return [emitter.carries[op].value for op in scans]

        emitter.loops([*walked.values()], starts, program, [args[i].name_hint for i in walked])

    def _carry_indices(self, scan: loop.ScanOp) -> list[int]:
        """Returns the positions of the free indices along which the carry of `scan` is a tile."""
        depends = Dependence().of(scan.source)
        indices = enumerate(zip(self.nest.body.block.args, self._schedule.data.block, strict=True))
        return [i for i, (a, n) in indices if a in depends and a is not scan.index and n > 1]

    def _start(self, emitter: Emitter, scan: loop.ScanOp, along: Sequence[int]) -> SSAValue:
        kind, element = scan.kind.data, scan.result.type
        shape = [self._schedule.data.block[i] for i in along]
        start = payload.ConstantOp(identity(kind, element), tile.tile_type(element, shape))
        return emitter.insert(start, 0, scan.result.name_hint).results[0]

    def _program(
        self,
        emitter: Emitter,
        counters: dict[int, SSAValue],
        depths: dict[int, int],
        carries: dict[loop.ScanOp, tuple[SSAValue, list[int]]],
    ) -> None:
        """Emits the body of the nest and its stores. By position: the numbers of the tiles of free indices, and the
        depths of the loops that count them. By scan: its carry, and the indices that this depends on."""
        nest, chunks = self.nest, self._schedule.data.chunk
        args, shared = nest.body.block.args, self._shared
        ranks = dict.fromkeys(shared.indices, (self._rank, shared.ranks))
        dims = [
            Dim(n, b, counters.get(i), i, depths.get(i, 0), arg.name_hint, *ranks.get(arg, (None, 1)))
            for i, (n, b, arg) in enumerate(zip(nest.sizes, self._schedule.data.block, args, strict=True))
        ]
        emitter.dims.update(zip(args, dims, strict=True))
        for scan, (value, along) in carries.items():
            emitter.carries[scan] = Tile(value, tuple(dims[i] for i in along), emitter.depth)
        body: list[Operation] = list(nest.body.block.ops)[:-1]
        if any(op.regions for op in body):
            sizes = {arg: c for (arg, _), c in zip(reduction_indices(nest), chunks, strict=True)}
            Reducer(emitter, sizes, len(dims), shared, ranks).program(body)
        else:
            for op in body:
                emitter.scalar_op(op)
        dims = [emitter.dims[index] for index in args]
        emitter.location = location_of(nest)
        access = nest.result_map.data if nest.result_map is not None else AffineMap.identity(len(dims))
        if self.scatter is not None:
            return emitter.scatter(self.scatter, self._outputs[0], dims, access)
        first = None
        if self._rank is not None and all(d.rank is None for d in dims):
            first = Dim(shared.ranks, 1, self._rank, 0, 0)  # all blocks have the same results; the first stores them
        for value, buffer in zip(yielded(nest.body.block), self._outputs, strict=True):
            emitter.store(emitter.tile_of(value), buffer, dims, access, first)


class ConvertLoopToTilePass(ModulePass):
    """Outline every planned nest as a kernel, a block's program over tiles.

    What: the schedule of a nest gives each free index a tile extent (1: the index is a block's own, a scalar) and each
    reduction index a chunk. A loop value becomes a tile over those of its indices that have one, in a fixed order; a
    load becomes the load of a tile, with the ends of ranges as its domain; a reduction is a `tile.reduce`, in an
    `scf.for` where it has several chunks; the sum of a product of two factors, one along the rows and one along the
    columns of the result, is a `tile.dot`; the payload stays what it is. Chunks of which every term is masked (the keys
    after the queries of a causal block, or before a window) are not visited: the loop's bounds are expressions of the
    block's indices, derived from the comparisons and domains in the body. A value is computed in the outermost loop
    that has its operands, so nothing is computed twice that does not change. The blocks of a cluster that share rows
    take their tiles in turn, and tell each other what they have of every result (`tile.cluster_allgather`). With
    `cluster_k` each block has a part of the sums of all blocks (`tile.cluster_reduce_scatter`), and computes what
    follows for its part. A nest that
    computes the values and indices of a scatter is its kernel, which stores neither but combines the values.
    Where a nest reads or gives a tensor in another shape (`loop.reshape`), its kernel does so with the tensor itself.
    Why: from here on the parallelism of a block is in the types, and layouts can be chosen for it.
    Why here: after `plan-schedules`, which decides; this pass only carries out.

    ```mlir
    %y = loop.nest (%i) in [64] -> tensor<64xf32>
           attributes {schedule = #tile.schedule<block = [1], chunk = [512], warps = 4>} {
      %s = loop.reduce add (%k) in [512] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<64x512xf32>
        loop.yield %a : f32
      }
      loop.yield %s : f32
    }
    ```
    becomes
    ```mlir
    tile.kernel @k0(%x: memref<64x512xf32>, %y: memref<64xf32>) blocks (%i) in [64] warps 4 attributes {...} {
      %a = tile.load %x[%i, d0] : memref<64x512xf32> -> tensor<512xf32>
      %s = tile.reduce add %a over [0] : tensor<512xf32> -> f32
      tile.store %s, %y[%i] : f32, memref<64xf32>
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
                nest = scatter.values.owner
                if not isinstance(nest, loop.NestOp) or any(index.owner is not nest for index in scatter.indices):
                    raise refused(scatter, "values and indices are results of one nest", CompileError)
                outline(nest, func, next(n for n in numbers if n not in taken), scatter)
            reshapes = [o for o in func.body.walk() if isinstance(o, loop.ReshapeOp)]
            for nest in [o for o in func.body.walk() if isinstance(o, loop.NestOp)] if reshapes else ():
                _duplicate_for_shapes(nest)
            for nest in [o for o in func.body.walk() if isinstance(o, loop.NestOp)]:
                outline(nest, func, next(n for n in numbers if n not in taken))
            for reshape in reversed(reshapes):
                if reshape.result.type == reshape.source.type:
                    reshape.result.replace_all_uses_with(reshape.source)
                if not any(reshape.result.uses):
                    erase(reshape)


def _duplicate_for_shapes(nest: loop.NestOp) -> None:
    """Copies `nest` for every further shape in which the host has one of its results: a launch gives it one."""
    for i, result in enumerate(nest.res):
        uses: dict[Attribute, list[Use]] = {}
        for use in result.uses:
            op = use.operation
            if isinstance(op, loop.ReshapeOp) and op.expands:
                uses.setdefault(op.result.type, []).append(use)
            elif not isinstance(op, loop.ReshapeOp | loop.LoadOp):
                uses.setdefault(result.type, []).append(use)
        for others in list(uses.values())[1:]:
            copy = nest.clone()
            insert_after(nest, copy)
            for use in others:
                use.operation.operands[use.index] = copy.res[i]


def _type_on_host(result: SSAValue) -> Attribute:
    made = (use.operation for use in result.uses)
    return next((op.result.type for op in made if isinstance(op, loop.ReshapeOp) and op.expands), result.type)


def outline(nest: loop.NestOp, func: FuncOp, name: str, scatter: tensor.ScatterOp | None = None) -> None:
    """Replace `nest`, or the `scatter` of what it computes, by the launch of a new kernel `name` in front of `func`.

    Raises CompileError."""
    with blamed(nest):
        if schedule_of(nest).data.split_k > 1:
            raise ScheduleError("blocks are to share its sum; run loop-split-k first", argument="split_k")
        if schedule_of(nest).data.f32_matmul_precision == STORED:
            raise ScheduleError(
                "factors are to be split before; run loop-split-f32-operands first", argument="f32_matmul_precision"
            )
        builder = KernelBuilder(nest, name, scatter)
        kernel = builder.build()
    insert_before(func, kernel)
    replaced, start = (nest, None) if scatter is None else (scatter, scatter.init)
    inputs = [loop.unreshaped(v) for v in builder.inputs]
    replace(replaced, tile.LaunchOp(name, inputs, start, [_type_on_host(r) for r in replaced.results]))
    if scatter is not None and not any(list(r.uses) for r in nest.res):
        erase(nest)
