"""`loop-split-k`: divides a reduction among several blocks.

A *part* is the range of the reduction that one block computes. `Split` (`analysis/nest_schedule.py`) describes the
division of one nest.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import loop, payload
from ...dialects.loop.dependence import is_in, rescaling_slice, yielded
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import extents_attr
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.nest_schedule import Split, find_split, schedule_of
from ..pass_manager import NestPass
from ..rewriting import erase_unneeded, insert_before, replace

Values = dict[SSAValue, SSAValue]


def split_nest(split: Split) -> None:
    """Inserts a nest that reduces each part before the nest of `split`, which then combines the partial results."""
    nest = split.nest
    partial = parts_nest(split)
    insert_before(nest, partial)
    combine_parts(split, partial.res)
    del nest.attributes["schedule"]
    for body in (partial.body, nest.body):
        erase_unneeded(body)


def parts_nest(split: Split) -> loop.NestOp:
    """Returns the nest that reduces each part, with one result for each stage. It is not inserted.

    Its indices are the part and the free indices. The part is the outermost dimension of the results, so that their
    rows are contiguous."""
    nest, reduction = split.nest, split.reduction
    extents = [nest.sizes[i] for i in split.free]
    block = Block(arg_types=[IndexType()] * (len(extents) + 1))
    values: Values = {}
    for arg, i in zip(block.args[1:], split.free, strict=True):
        values[nest.body.block.args[i]] = arg
        arg.name_hint = nest.body.block.args[i].name_hint
    part = block.args[0]
    part.name_hint = "part"
    for op in nest.body.block.ops:
        if op is reduction:
            break
        # An operation is copied if the new nest has its operands. Other operations depend on an index that it lacks.
        if all(v in values or not is_in(v, nest.body.block) for v in op.operands):
            _clone(op, values, block, split, part)
    _clone(reduction, values, block, split, part)
    results = [values[r] for r in reduction.results]
    block.add_op(loop.YieldOp(*results))
    new = loop.NestOp([split.parts, *extents], [r.type for r in results], Region(block))
    for r, old in zip(new.res, reduction.results, strict=True):
        r.name_hint = f"{old.name_hint or 'sum'}_parts"
    new.attributes["schedule"] = _parts_schedule(split)
    return new


def _parts_schedule(split: Split) -> ScheduleAttr:
    """Returns the schedule of the nest that reduces the parts, derived from the schedule of the whole nest.

    The grid has one more index, for the part. Chunks are at most as long as a part, and there are fewer warps if chunks
    become shorter."""
    decided = split.nest.attributes["schedule"]
    assert isinstance(decided, ScheduleAttr)
    before = decided.data
    block = [1, *(before.block[i] for i in split.free)]
    chunk = list(before.chunk)
    position, shorter = 0, 1
    for op in split.reduction.walk():
        if isinstance(op, loop.ReduceOp):
            if op in split.stages:
                limit = 1 << max(0, split.length - 1).bit_length()
                shorter = max(1, chunk[position + split.axis] // limit)
                chunk[position + split.axis] = min(chunk[position + split.axis], limit)
            position += len(op.sizes)
    serial = [1 + split.free.index(i) for i in before.serial if i in split.free]
    names = ("lanes", "thread", "atom", "copy", "stages", "f32_matmul_precision", "promotion_interval")
    # With partial accumulators, ptxas may spill registers unless it knows the number of blocks per multiprocessor.
    if before.promotion_interval:
        names += ("promotion_memory", "blocks_per_sm")
    unchanged = {n: getattr(before, n) for n in names}
    return ScheduleAttr.get(block, chunk, serial=serial, warps=max(1, before.warps // shorter), **unchanged)


def _clone(op: Operation, values: Values, block: Block, split: Split, part: SSAValue) -> None:
    """Appends a copy of `op` to `block`. Stages of the split reduction in it are restricted to one part."""
    new = op.clone(values)
    block.add_op(new)
    for old, copy in list(zip(op.walk(), new.walk(), strict=True)):
        if old in split.stages:
            assert isinstance(copy, loop.ReduceOp)
            _restrict(copy, split, part)


def _restrict(op: loop.ReduceOp, split: Split, part: SSAValue) -> None:
    """Restricts the split index of a reduction to one part: uses of the index become `part * length + index`."""
    index = op.body.block.args[split.axis]
    for user in dict.fromkeys(use.operation for use in index.uses):
        if isinstance(user, loop.LoadOp):
            replace(user, _shifted_load(user, index, part, split.length))
        elif isinstance(user, payload.CastOp):
            _shift_cast(user, part, split.length)
    shape = [n if i != split.axis else split.length for i, n in enumerate(op.sizes)]
    op.properties["extents"] = extents_attr(shape)


def _shifted_load(op: loop.LoadOp, index: SSAValue, part: SSAValue, length: int) -> loop.LoadOp:
    """Returns a load like `op` that reads at `part * length + index` instead of `index`."""
    count = len(op.indices)
    dims = [AffineExpr.dimension(i) for i in range(count)]
    moved = [
        AffineExpr.dimension(count) * length + d if v is index else d for d, v in zip(dims, op.indices, strict=True)
    ]
    symbols = [AffineExpr.symbol(i) for i in range(len(op.symbols))]

    def rewrite(map: AffineMap) -> AffineMap:
        return map.replace_dims_and_symbols(moved, symbols, count + 1, len(symbols))

    domain = op.domain and DomainAttr.get(rewrite(op.domain.affine), op.domain.limits)
    return loop.LoadOp(op.source, rewrite(op.map.data), [*op.indices, part], op.symbols, domain, op.fill)


def _shift_cast(op: payload.CastOp, part: SSAValue, length: int) -> None:
    """Replaces a cast of the split index to an integer by the same cast of `part * length + index`."""
    first, scale = payload.CastOp(part, i64), payload.ConstantOp(length, i64)
    start = arith.MuliOp(first.result, scale.result)
    index = payload.CastOp(op.operand, i64)
    total = arith.AddiOp(start.result, index.result)
    casts = [] if op.result.type == i64 else [payload.CastOp(total.result, op.result.type)]
    replace(op, first, scale, start, index, total, *casts)


def combine_parts(split: Split, parts: Sequence[SSAValue]) -> None:
    """Replaces the reduction of the nest by reductions over the partial results in `parts`.

    Partial results of a staged reduction are first rescaled to the reference value of the whole range."""
    reduction, whole = split.reduction, list[SSAValue]()
    for i, stage in enumerate(split.stages):
        block = Block(arg_types=[IndexType()])
        block.args[0].name_hint = "part"
        loaded = [_load_part(split, parts[j], block) for j in range(len(parts))]
        if isinstance(reduction, loop.StagedReduceOp):
            args = reduction.rescale.block.args
            values: Values = dict(zip(args, [*loaded, *whole], strict=False))
            for op in rescaling_slice(reduction, i):
                block.add_op(op.clone(values))
            value = values[yielded(reduction.rescale.block)[i]]
        else:
            value = loaded[0]
        block.add_op(loop.YieldOp(value))
        new = loop.ReduceOp(stage.kind.data, [split.parts], Region(block), stage.result.type)
        new.result.name_hint = reduction.results[i].name_hint
        insert_before(reduction, new, source=stage)
        whole.append(new.result)
    replace(reduction, results=whole)


def _load_part(split: Split, parts: SSAValue, block: Block) -> SSAValue:
    indices = [split.nest.body.block.args[i] for i in split.free]
    op = loop.LoadOp(parts, AffineMap.identity(len(indices) + 1), [block.args[0], *indices])
    block.add_op(op)
    return op.result


class SplitKPass(NestPass):
    """Divides a reduction among several blocks, by one nest for partial results and one that combines them.

    ```mlir
    %y = loop.nest () in [] -> tensor<f32> attributes {schedule = #tile.schedule<block = [], ..., split_k = 64>} {
      %s = loop.reduce add (%k) in [65536] -> f32 { ... loop.load %x[%k] ... }
    ```
    becomes
    ```mlir
    %s_parts = loop.nest (%part) in [64] -> tensor<64xf32> attributes {schedule = ...} {
      %s = loop.reduce add (%k) in [1024] -> f32 {
        %a = loop.load %x[%part * 1024 + %k] : tensor<65536xf32> ... }
    %y = loop.nest () in [] -> tensor<f32> {
      %s = loop.reduce add (%part) in [64] -> f32 { ... loop.load %s_parts[%part] ... }
    ```

    A nest with `split_k = p` becomes two nests. The first reduces each of p equal parts of the index with the most
    chunks. The second combines the partial results and computes everything else. If the reduction is staged, each part
    has its own reference value, and the rescaling region converts the partial results to a common one. Split sums,
    split-K matmuls and attention over a divided cache are all this rewrite.

    **Rationale**: a nest with few results and long reductions would leave most multiprocessors idle.

    **Pipeline position**: after `plan-schedules`, which decides the number of parts. It runs again for the second
    nests.
    """

    name = "loop-split-k"
    decision = ("split_k",)

    def on(self, op: loop.NestOp) -> None:
        split_nest(find_split(op, schedule_of(op).data.split_k))
