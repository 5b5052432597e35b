"""`convert-loop-to-tile`: outlines each loop nest as a kernel over tiles, according to its schedule.

A *tile* is a tensor value of one thread block: the elements of a loop value at all positions of one tile of the
iteration space. `Emitter` (`emitter.py`) creates tiles, `Reducer` (`reductions.py`) lowers reductions, and
`KernelBuilder` assembles the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

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
from ...analysis.operands import PRESPLIT
from ...rewriting import erase, insert_after, insert_before, replace, retype
from .clusters import ClusterReducer
from .emitter import Dim, Emitter, Tile
from .reductions import Reducer


def sources(nest: loop.NestOp) -> list[SSAValue]:
    """Returns the tensors that `nest` loads from memory, each once. A constant is loaded only if it has a domain."""
    loads = [op for op in nest.body.walk() if isinstance(op, loop.LoadOp)]
    read = (op.source for op in loads if op.domain is not None or not isinstance(op.source.owner, payload.ConstantOp))
    return [*dict.fromkeys(read)]


class KernelBuilder:
    """Builder of the kernel of one nest, according to its schedule.

    Args:
        nest: the nest.
        name: name of the kernel.
        scatter: optional scatter whose values and indices the nest computes. The kernel then stores only
            the result of the scatter.
    """

    def __init__(self, nest: loop.NestOp, name: str, scatter: tensor.ScatterOp | None = None) -> None:
        self.nest, self.name, self.scatter = nest, name, scatter
        self.results: tuple[SSAValue, ...] = tuple(nest.res) if scatter is None else (scatter.result,)
        self.inputs = sources(nest)
        self._schedule = schedule_of(nest)
        clusters = self._schedule.data.cluster * self._schedule.data.cluster_k > 1
        self._shared = shared_of_nest(nest, self._schedule) if clusters else Shared()
        self._rank: SSAValue | None = None

    def build(self) -> tile.KernelOp:
        """Returns the kernel, whose arguments are buffers for `self.inputs` and then `self.results`."""
        nest, indices, schedule, shared = self.nest, self.nest.body.block.args, self._schedule.data, self._shared
        tiles = [count_of(n, b) for n, b in zip(nest.sizes, schedule.block, strict=True)]
        counts = [shared.steps(a, n) if isinstance(n, int) else n for a, n in zip(indices, tiles, strict=True)]
        several = [i for i, n in enumerate(counts) if n != 1]
        grid = [i for i in several if i not in schedule.serial and indices[i] not in shared.indices]
        values = [*self.inputs, *self.results]
        block = Block(arg_types=[memref_of(element_type(v.type), extents_of(v.type)) for v in values])
        for arg, value in zip(block.args, values, strict=True):
            arg.name_hint = value.name_hint or ("out" if value in self.results else None)
        emitter = Emitter(nest, block, dict(zip(self.inputs, block.args, strict=False)), schedule.lanes == 1)
        self._outputs = block.args[len(self.inputs) :]
        counters: dict[int, SSAValue] = {i: _block_index(block, indices[i].name_hint) for i in grid}
        if shared.indices:
            self._rank = _block_index(block, "rank")
        scans = [op for op in nest.body.block.ops if isinstance(op, loop.ScanOp)]
        if scans or len(grid) < len(several):
            self._walk(emitter, counters, {i: counts[i] for i in several if i not in grid}, scans)
        else:
            self._bind(emitter, counters, {})
            self._program(emitter)
        shape = [*(counts[i] for i in grid), *([] if self._rank is None else [shared.ranks])]
        kernel = tile.KernelOp(self.name, shape, schedule.warps, schedule.lanes, shared.ranks, Region(block))
        kernel.attributes["schedule"] = self._schedule
        kernel.location = location_of(nest)
        return kernel

    def _walk(
        self, emitter: Emitter, counters: dict[int, SSAValue], walked: dict[int, Count], scans: Sequence[loop.ScanOp]
    ) -> None:
        """Emits the program in loops over tiles, which carry the results of `scans`.

        `walked` maps the position of each looped index to its number of tiles.
        """
        args = self.nest.body.block.args
        along = {op: self._carry_indices(op) for op in scans}
        starts = [self._start(emitter, op, along[op]) for op in scans]

        def program(loops: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
            depths = {i: emitter.depth + 1 - len(walked) + n for n, i in enumerate(walked)}
            self._bind(emitter, counters | dict(zip(walked, loops, strict=True)), depths)
            for op, value in zip(scans, carried, strict=True):
                emitter.carries[op] = Tile(value, tuple(emitter.dims[args[i]] for i in along[op]), emitter.depth)
            self._program(emitter)
            return [emitter.carries[op].value for op in scans]

        emitter.loops([emitter.range(n) for n in walked.values()], starts, program, [args[i].name_hint for i in walked])

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

    def _bind(self, emitter: Emitter, counters: dict[int, SSAValue], depths: dict[int, int]) -> None:
        """Creates the dimension of each free index.

        Args:
            emitter: receives the dimensions.
            counters: position of an index -> number of its current tile; no entry for an index with one tile.
            depths: position of an index -> depth of the loop that counts its tiles; no entry if the grid counts them.
        """
        args = zip(self.nest.body.block.args, self.nest.sizes, self._schedule.data.block, strict=True)
        for i, (index, n, b) in enumerate(args):
            ranks = (self._rank, self._shared.ranks) if index in self._shared.indices else (None, 1)
            emitter.dims[index] = Dim(n, b, counters.get(i), i, depths.get(i, 0), index.name_hint, *ranks)

    def _program(self, emitter: Emitter) -> None:
        """Emits the body of the nest and its stores."""
        nest = self.nest
        body: list[Operation] = list(nest.body.block.ops)[:-1]
        if any(op.regions for op in body):
            self._reduce(emitter, body)
        else:
            for op in body:
                emitter.scalar_op(op)
        emitter.location = location_of(nest)
        dims = [emitter.dims[index] for index in nest.body.block.args]
        access = nest.result_map.data if nest.result_map is not None else AffineMap.identity(len(dims))
        if self.scatter is not None:
            return emitter.scatter(self.scatter, self._outputs[0], dims, access)
        first = None if self._rank is None else self._first_block(dims)
        for value, buffer in zip(yielded(nest.body.block), self._outputs, strict=True):
            emitter.store(emitter.tile_of(value), buffer, dims, access, first)

    def _reduce(self, emitter: Emitter, body: Sequence[Operation]) -> None:
        pairs = zip(reduction_indices(self.nest), self._schedule.data.chunk, strict=True)
        chunks = {index: chunk for (index, _), chunk in pairs}
        if self._rank is None:
            Reducer(emitter, chunks).body(body)
        else:
            ClusterReducer(emitter, chunks, self._shared, self._rank).nest(body)

    def _first_block(self, dims: Sequence[Dim]) -> Dim | None:
        """Returns a dimension over the blocks of the cluster if all blocks have equal results, so that only the first
        block stores them. Returns None otherwise."""
        return Dim(self._shared.ranks, 1, self._rank, 0, 0) if all(d.rank is None for d in dims) else None


def _block_index(block: Block, hint: str | None) -> SSAValue:
    index = block.insert_arg(IndexType(), len(block.args))
    index.name_hint = hint
    return index


class ConvertLoopToTilePass(ModulePass):
    """Outlines every planned nest as a kernel, the program of one thread block over tiles.

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

    The schedule of a nest specifies a tile extent for each free index (`block`) and each reduction index (`chunk`).

    - A loop value becomes a tile over its indices with an extent above 1, in a fixed order. An index of extent 1 is a
      scalar.
    - A load becomes the load of a tile. Its domain excludes positions past the ends of ranges.
    - A reduction becomes a `tile.reduce`, in an `scf.for` if it has several chunks. A contraction whose operands vary
      along the rows and along the columns of the result becomes a `tile.dot`.
    - Payload operations only change their types. Each value is computed in the outermost loop that has its operands.
    - Chunks that are masked as a whole are skipped, such as keys after the queries of a block in causal attention. The
      loop bounds are expressions of the block's indices, derived from comparisons and domains in the body.
    - Blocks of a cluster that share rows take tiles in turn, and exchange partial results by `tile.cluster_allgather`.
      With `cluster_k` each block combines its part of the partial results (`tile.cluster_reduce_scatter`), and computes
      the remaining operations for this part.
    - A nest that computes values and indices of a scatter becomes a kernel that combines the values into the result.
    - A `loop.reshape` disappears: kernels access the tensor itself.

    **Rationale**: the types of tiles express the parallelism of a block, so later passes can choose layouts for it.

    **Pipeline position**: after `plan-schedules`, which makes all decisions that this pass carries out.
    """

    name = "convert-loop-to-tile"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        taken = {k.sym_name.data for k in op.ops if isinstance(k, tile.KernelOp)}
        names = (name for i in count() if (name := f"k{i}") not in taken)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for scatter in [o for o in func.body.walk() if isinstance(o, tensor.ScatterOp)]:
                _outline_scatter(scatter, func, next(names))
            reshapes = [o for o in func.body.walk() if isinstance(o, loop.ReshapeOp)]
            if reshapes:
                _duplicate_for_shapes(func)
            for nest in [o for o in func.body.walk() if isinstance(o, loop.NestOp)]:
                replace(nest, outline(nest, func, next(names)))
            for reshape in reversed(reshapes):
                _launch_on_source(reshape)


def _duplicate_for_shapes(func: FuncOp) -> None:
    """Clones each nest for every additional shape in which the host uses one of its results, as a launch has one result
    shape."""
    for nest in [o for o in func.body.walk() if isinstance(o, loop.NestOp)]:
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


def _launch_on_source(reshape: loop.ReshapeOp) -> None:
    """Removes `reshape` where launches can use its source or result directly, as kernels accept buffers of any
    shape."""
    source, result = reshape.source, reshape.result
    if isinstance(source.owner, tile.LaunchOp) and reshape.expands:
        retype(source, result.type)
        result.replace_all_uses_with(source)
    result.replace_uses_with_if(source, lambda use: isinstance(use.operation, tile.LaunchOp))
    if not any(result.uses):
        erase(reshape)


def _outline_scatter(scatter: tensor.ScatterOp, func: FuncOp, name: str) -> None:
    """Outlines `scatter` together with the nest that computes its values and indices, as the kernel `name`."""
    nest = scatter.values.owner
    if not isinstance(nest, loop.NestOp) or any(index.owner is not nest for index in scatter.indices):
        raise refused(scatter, "values and indices are results of one nest", CompileError)
    replace(scatter, outline(nest, func, name, scatter))
    if not any(list(r.uses) for r in nest.res):
        erase(nest)


def outline(nest: loop.NestOp, func: FuncOp, name: str, scatter: tensor.ScatterOp | None = None) -> tile.LaunchOp:
    """Inserts a kernel that computes `nest`, and returns its launch.

    Args:
        nest: the nest.
        func: function before which the kernel is inserted.
        name: name of the kernel.
        scatter: optional scatter of the nest's results, which the kernel also computes.

    Raises:
        ScheduleError: if the schedule needs `loop-split-k` or `loop-split-f32-operands` first.
        CompileError: if the nest cannot be lowered.
    """
    with blamed(nest):
        if schedule_of(nest).data.split_k > 1:
            raise ScheduleError("expected split_k = 1; run loop-split-k first", argument="split_k")
        if schedule_of(nest).data.f32_matmul_precision == PRESPLIT:
            raise ScheduleError(
                "expected split f32 operands; run loop-split-f32-operands first", argument="f32_matmul_precision"
            )
        builder = KernelBuilder(nest, name, scatter)
        insert_before(func, builder.build())
    start = None if scatter is None else scatter.init
    return tile.LaunchOp(name, builder.inputs, start, [r.type for r in builder.results])
