"""Lowers reductions to tiles: at once, chunk by chunk, or in stages with a rescaling between chunks.

A *chunk* is the part of the reduction range that one tile holds. An accumulator is a partial result over the chunks so
far, which a loop over chunks carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from ....dialects import loop, payload, tile
from ....dialects.loop.dependence import (
    Contraction,
    Dependence,
    Indices,
    access_indices,
    contiguous_index,
    find_contraction,
    rescaling_slice,
    yielded,
)
from ....dialects.payload import tensor_bytes
from ....dialects.shapes.extents import Count, count_of
from ....dialects.support.locations import location_of
from ....dialects.tensor import ReductionKind, identity
from ....target.model import MAX_LANES
from ...analysis.rescaling import counted
from ...pass_manager import emit_remark
from .chunk_bounds import Bounds, ChunkBounds
from .emitter import Body, Dim, Emitter, Tile, padding_of, union


class Reducer:
    """Lowering of the reductions of one nest.

    Args:
        emitter: receives the operations.
        chunks: reduction index -> extent of a chunk.
    """

    ranks: Mapping[SSAValue, tuple[SSAValue | None, int]] = {}
    """Index that the blocks of a cluster share -> number of the block in the cluster, and number of blocks."""

    def __init__(self, emitter: Emitter, chunks: dict[SSAValue, int]) -> None:
        self.emitter, self.chunks = emitter, chunks
        self.dependence = Dependence()
        self._order = len(emitter.nest.sizes)
        """Sort key of the next reduction index among the dimensions of a tile, after the free indices."""

    @cached_property
    def bounds(self) -> ChunkBounds:
        return ChunkBounds(self.emitter, self.dependence)

    def body(self, ops: Sequence[Operation]) -> None:
        """Lowers the operations of a body (without its yield)."""
        for op in ops:
            if isinstance(op, loop.ReduceOp):
                with self._hoisted(op):
                    self.emitter.tiles[op.result] = self.reduce(op)
            elif isinstance(op, loop.StagedReduceOp):
                self.staged(op)
            else:
                self.emitter.scalar_op(op)

    def _hoisted(self, op: Operation) -> AbstractContextManager[None]:
        """Returns a context that closes the open loops on which `op` does not depend, so that `op` is computed once."""
        return self.emitter.at(self._depth(op)) if self.emitter.depth else nullcontext()

    # Depths and dimensions

    def _depth(self, op: Operation) -> int:
        """Returns the depth of the innermost open loop on whose values `op` depends."""
        values = {v for inner in op.walk() for v in inner.operands} - {r for inner in op.walk() for r in inner.results}
        definitions = (self.emitter.dims.get(v) or self.emitter.tiles.get(v) for v in values)
        return max((d.depth for d in definitions if d is not None), default=0)

    def _dims(self, indices: Indices) -> tuple[Dim, ...]:
        dims = self.emitter.dims
        return union(d for v in indices if (d := dims[v]).tile > 1)

    def _bind(self, stages: Sequence[loop.ReduceOp], counters: Sequence[SSAValue]) -> tuple[Dim, ...]:
        """Creates and returns the dimensions of reduction indices.

        Args:
            stages: the reduction, or all stages of a staged reduction, which share their dimensions.
            counters: counters of the innermost loops, one for each index with more than one chunk.
        """
        e, dims, looped, orders = self.emitter, list[Dim](), 0, self._orders(stages)
        for i, (arg, count) in enumerate(zip(stages[0].body.block.args, self._counts(stages[0]), strict=True)):
            counter, depth = None, 0
            if count != 1:
                counter, depth = counters[looped], e.depth + 1 - len(counters) + looped
                looped += 1
            ranks = self.ranks.get(arg, (None, 1))
            dim = Dim(stages[0].sizes[i], self.chunks[arg], counter, orders[i], depth, arg.name_hint, *ranks)
            dims.append(dim)
            for stage in stages:
                e.dims[stage.body.block.args[i]] = dim
        return tuple(dims)

    def _orders(self, stages: Sequence[loop.ReduceOp]) -> list[float]:
        """Returns the sort keys of the reduction indices of `stages` among the dimensions of a tile.

        They follow all other dimensions. For a matmul they are between the rows and the columns of its result.
        """
        indices, dims = stages[0].body.block.args, self.emitter.dims
        for contraction in filter(None, map(self._product, stages)):
            free_dims = self._dims(contraction.only_lhs | contraction.only_rhs | contraction.shared)
            if len(free_dims) == 2:
                enclosing = (d for a, d in dims.items() if a.owner.parent_op().is_ancestor(stages[0]))  # pyright: ignore
                rows = free_dims[0].order
                step = (min(d.order for d in enclosing if d.order > rows) - rows) / (len(indices) + 1)
                return [rows + step * (i + 1) for i in range(len(indices))]
        return [self._order + i for i in range(len(indices))]

    def _counts(self, op: loop.ReduceOp) -> list[Count]:
        return [count_of(n, self.chunks[a]) for a, n in zip(op.body.block.args, op.sizes, strict=True)]

    def _visited(self, stages: Sequence[loop.ReduceOp], looped: Sequence[int]) -> list[Bounds]:
        """Returns the bounds of the loops over the chunks of the indices `looped`, which skip masked chunks."""
        counts = self._counts(stages[0])
        if any(isinstance(o, payload.CmpOp) or getattr(o, "domain", None) for o in stages[0].body.walk()):
            return self.bounds.of(stages, looped, counts, [self.chunks[a] for a in stages[0].body.block.args])
        return [self.emitter.range(counts[i]) for i in looped]

    # Reductions

    def reduce(self, op: loop.ReduceOp) -> Tile:
        """Lowers a plain reduction: at once if one chunk holds the range, else chunk by chunk."""
        if 0 in op.sizes:
            return self.emitter.constant(identity(op.kind.data, op.result.type), op.result.type, (), 0)
        if isinstance(yielded(op.body.block)[0].owner, payload.ConstantOp) and (number := counted(op)) is not None:
            return self.emitter.constant(number, op.result.type, (), 0)
        if looped := [i for i, n in enumerate(self._counts(op)) if n != 1]:
            return self._in_chunks(op, looped)
        return self._combined(op, self._reduced(op, self._bind((op,), ())))

    def _in_chunks(self, op: loop.ReduceOp, looped: Sequence[int]) -> Tile:
        """Reduces chunk by chunk, in loops over the indices `looped`.

        A contraction, or a reduction of columns in one thread, reduces each chunk and carries the result so far. So a
        chunk of a contraction can become a `tile.dot`. Other reductions carry one accumulator per element of a chunk.
        """
        e, dims = self.emitter, self._dims(self.dependence.of_reduce(op))
        if self._product(op) is None and not self._is_of_columns(op, dims):
            return self._by_elements(op, looped, dims)

        def chunk(counters: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
            new = self._reduced(op, self._bind((op,), counters))
            new = self._combined(op, new, Tile(carried[0], dims, e.depth))
            return [e.spread(new, dims, e.depth)]

        return Tile(self._loops(op, looped, dims, chunk), dims, e.depth)

    def _by_elements(self, op: loop.ReduceOp, looped: Sequence[int], dims: Sequence[Dim]) -> Tile:
        """Reduces chunk by chunk into one accumulator for each element of a chunk, and combines those at the end."""
        e = self.emitter
        pairs = enumerate(zip(op.body.block.args, op.sizes, strict=True))
        partial = tuple(Dim(n, c, None, self._order + i, 0) for i, (a, n) in pairs if (c := self.chunks[a]) > 1)

        def chunk(counters: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
            chunk_dims = self._bind((op,), counters)
            value, all_dims = self._body_value(op, chunk_dims), (*dims, *(d for d in chunk_dims if d.tile > 1))
            new = e.combine(op.kind.data, Tile(carried[0], all_dims, e.depth), value)
            return [e.spread(new, all_dims, e.depth)]

        whole = (*dims, *partial)
        return self._finish(op, Tile(self._loops(op, looped, whole, chunk), whole, e.depth), partial)

    def _loops(self, op: loop.ReduceOp, looped: Sequence[int], dims: Sequence[Dim], body: Body) -> SSAValue:
        """Emits loops over the chunks of the indices `looped` that carry a tile over `dims`; returns its last value."""
        e = self.emitter
        start = e.constant(identity(op.kind.data, op.result.type), op.result.type, dims, e.depth).value
        start.name_hint = op.result.name_hint
        hints = [op.body.block.args[i].name_hint for i in looped]
        return e.loops(self._visited((op,), looped), [start], body, hints)[0]

    def _product(self, op: loop.ReduceOp) -> Contraction | None:
        """Returns the contraction that `op` computes if both operands have tile dimensions of their own, else None."""
        contraction = find_contraction(op, self.dependence)
        if contraction is None or not self._dims(contraction.only_lhs) or not self._dims(contraction.only_rhs):
            return None
        return contraction

    def _is_of_columns(self, op: loop.ReduceOp, result_dims: Sequence[Dim]) -> bool:
        """Returns true if a block of one thread reduces columns, with vectors along a dimension of the result.

        This is so if the largest tensor, among those loaded along all indices, is contiguous along a dimension of the
        result. Without such a load, the last dimension of the result counts. The dimension must fill a vector.

        Args:
            op: the reduction.
            result_dims: dimensions of its result.
        """
        if not self.emitter.alone or not result_dims:
            return False
        dims, reduced, last = self.emitter.dims, {*op.body.block.args}, max(result_dims, key=lambda d: d.order)
        loads = [inner for inner in op.walk() if isinstance(inner, loop.LoadOp)]
        used = {load: access_indices(load) for load in loads}
        wide = [o for o in loads if reduced & {*used[o]} and {*result_dims} <= {dims[i] for i in used[o] if i in dims}]
        along = contiguous_index(max(wide, key=lambda load: tensor_bytes(load.source.type))) if wide else None
        vector_dim = last if not wide else None if along is None else dims.get(along)
        return vector_dim is not None and vector_dim in result_dims and vector_dim.tile >= MAX_LANES

    def _body_value(self, op: loop.ReduceOp, chunk_dims: Sequence[Dim]) -> Tile:
        """Returns the terms that `op` reduces in one chunk, with the identity past the ends of ranges."""
        self._lower_body(op, chunk_dims)
        value, tails = yielded(op.body.block)[0], [d for d in chunk_dims if d.has_tail]
        return self._masked(value, tails, op) if tails else self.emitter.tile_of(value)

    def _lower_body(self, op: loop.ReduceOp, chunk_dims: Sequence[Dim], without: Operation | None = None) -> None:
        self._order += len(chunk_dims)
        self.body([o for o in list(op.body.block.ops)[:-1] if o is not without])
        self._order -= len(chunk_dims)

    def _reduced(self, op: loop.ReduceOp, chunk_dims: Sequence[Dim]) -> Tile | tuple[Tile, Tile]:
        """Returns the reduction of one chunk, along `chunk_dims`; for a matmul the operands (lhs, rhs) instead."""
        contraction = self._product(op)
        if contraction is None:
            return self._finish(op, self._body_value(op, chunk_dims), chunk_dims)
        return self._factors(op, chunk_dims, contraction)

    def _factors(
        self, op: loop.ReduceOp, chunk_dims: Sequence[Dim], contraction: Contraction
    ) -> Tile | tuple[Tile, Tile]:
        """Lowers one chunk of a contraction.

        Args:
            op: the reduction.
            chunk_dims: dimensions of its indices.
            contraction: the contraction that it computes.

        Returns:
            The operands (lhs, rhs) if they are matrices, so that a `tile.dot` can multiply them. Otherwise the result,
            computed by a multiplication and a reduction.
        """
        e, product = self.emitter, contraction.product
        self._lower_body(op, chunk_dims, product if product.result.has_one_use() else None)
        tails = [d for d in chunk_dims if d.has_tail]
        a, b = self._masked_factors(product, tails, op) if tails else (e.tile_of(v) for v in product.operands)
        lhs, rhs = sorted((a, b), key=lambda t: [d.order for d in t.dims])
        dims, summed = union(lhs.dims, rhs.dims), [d for d in chunk_dims if d.tile > 1]
        if len(dims) == 3 and summed == [dims[1]] and (lhs.dims, rhs.dims) == (dims[:2], dims[1:]):
            return lhs, rhs
        why = f"{len(dims) - len(summed)} free and {len(summed)} summed dimensions; a dot has 2 and 1"
        emit_remark(op, "convert-loop-to-tile", why)
        return self._finish(op, e.payload(product, (a, b)), chunk_dims)

    def _combined(self, op: loop.ReduceOp, new: Tile | tuple[Tile, Tile], old: Tile | None = None) -> Tile:
        """Returns the result of `_reduced` combined with an accumulator.

        Args:
            op: the reduction.
            new: result over a chunk, or the operands of a `tile.dot`.
            old: accumulator, if any.
        """
        if not isinstance(new, Tile):
            return self._dot(op, *new, old)
        return new if old is None else self.emitter.combine(op.kind.data, old, new)

    def _dot(self, op: loop.ReduceOp, lhs: Tile, rhs: Tile, old: Tile | None = None) -> Tile:
        e, dims, depth = self.emitter, (lhs.dims[0], rhs.dims[1]), max(lhs.depth, rhs.depth)
        e.location = location_of(op)
        if old is not None and (old.depth > depth or not {*old.dims} <= {*dims}):
            return e.combine(op.kind.data, old, self._dot(op, lhs, rhs))
        acc = e.constant(0.0, op.result.type, dims, depth).value if old is None else e.spread(old, dims, depth)
        dot = tile.DotOp(lhs.value, rhs.value, acc)
        e.insert(dot, depth, op.result.name_hint if old is None else old.value.name_hint)
        return Tile(dot.result, dims, depth)

    def _finish(self, op: loop.ReduceOp, value: Tile, reduced_dims: Sequence[Dim]) -> Tile:
        """Emits the reduction of `value` along `reduced_dims`, and returns its result."""
        e = self.emitter
        e.location = location_of(op)
        reduced_dims = [d for d in reduced_dims if d.tile > 1]
        if not reduced_dims:
            return value
        dims = union(value.dims, reduced_dims)
        source = e.spread(value, dims, value.depth)
        new = tile.ReduceOp(op.kind.data, source, [dims.index(d) for d in reduced_dims])
        e.insert(new, value.depth, op.result.name_hint)
        return Tile(new.result, tuple(d for d in dims if d not in reduced_dims), value.depth)

    # Masks

    def _masked_factors(self, product: Operation, tails: Sequence[Dim], op: loop.ReduceOp) -> list[Tile]:
        """Returns the operands of a multiplication, masked so that the product is 0 past the ends of ranges.

        Args:
            product: the multiplication.
            tails: dimensions whose last tile extends past the end of the range.
            op: the reduction of the products.
        """
        factors = [self.emitter.tile_of(v) for v in product.operands]
        padding = padding_of(product, factors, union(*(f.dims for f in factors)))
        missing = [d for d in tails if padding.get(d) != 0]
        return [self._masked(v, missing, op) for v in product.operands]

    def _masked(self, value: SSAValue, tails: Sequence[Dim], op: loop.ReduceOp) -> Tile:
        """Returns the tile of `value`, with the identity of `op` in elements past the end of the dimensions `tails`."""
        e = self.emitter
        neutral = identity(op.kind.data, op.result.type)
        masked = e.tile_of(value)
        missing = [d for d in tails if masked.beyond(d) != neutral]
        if not missing:
            return masked
        inner, is_sum = value.owner, op.kind.data == ReductionKind.ADD
        if is_sum and isinstance(inner, arith.MulfOp) and inner.parent_block() is op.body.block:
            # Masking both operands is often free, as loads fill with 0, and preserves the contraction.
            a, b = (self._masked(o, missing, op) for o in inner.operands)
            return e.payload(inner, (a, b))
        for d in missing:
            masked = e.within(d, masked, neutral)
        return masked

    # Staged reductions

    def staged(self, op: loop.StagedReduceOp) -> None:
        """Lowers a staged reduction: stage by stage if one chunk holds the range, else chunk by chunk."""
        e, stages = self.emitter, op.stage_ops
        looped = [i for i, n in enumerate(self._counts(stages[0])) if n != 1] if stages else []
        if not looped or 0 in stages[0].sizes:
            self._at_once(op)
            return
        with self._hoisted(op):
            dims = [self._dims(indices) for indices in self.dependence.of_staged(op)]
            starts: list[SSAValue] = []
            for stage, result_dims, result in zip(stages, dims, op.res, strict=True):
                neutral = identity(stage.kind.data, stage.result.type)
                starts.append(e.constant(neutral, stage.result.type, result_dims, e.depth).value)
                starts[-1].name_hint = result.name_hint or stage.result.name_hint

            def chunk(counters: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
                chunk_dims = self._bind(stages, counters)
                old = [Tile(c, d, e.depth) for c, d in zip(carried, dims, strict=True)]
                return [t.value for t in self._stages(op, chunk_dims, old)]

            hints = [stages[0].body.block.args[i].name_hint for i in looped]
            results = e.loops(self._visited(stages, looped), starts, chunk, hints)
            for result, stage, value, result_dims in zip(op.res, stages, results, dims, strict=True):
                value.name_hint = result.name_hint or stage.result.name_hint
                e.tiles[result] = Tile(value, result_dims, e.depth)

    def _at_once(self, op: loop.StagedReduceOp) -> None:
        """Lowers a staged reduction whose range fits in one chunk: as one reduction after another."""
        self.body(list(op.stages.block.ops)[:-1])
        for result, stage in zip(op.res, op.stage_ops, strict=True):
            self.emitter.tiles[result] = self.emitter.tiles[stage.result]

    def _stages(self, op: loop.StagedReduceOp, chunk_dims: Sequence[Dim], old: Sequence[Tile]) -> list[Tile]:
        """Emits all stages over one chunk, and returns their results.

        Each stage is computed relative to the new results of the earlier stages. Its old result is rescaled to them and
        then combined with the chunk (see `loop.staged_reduce`).

        Args:
            op: the staged reduction.
            chunk_dims: dimensions of its indices.
            old: results over the preceding chunks; empty if there are none.
        """
        e, new = self.emitter, list[Tile]()
        for inner in list(op.stages.block.ops)[:-1]:
            if not isinstance(inner, loop.ReduceOp):
                self.body([inner])
                continue
            reduced = self._reduced(inner, chunk_dims)
            here = self._combined(inner, reduced, self._rescaling(op, len(new), old, new) if old else None)
            if old:
                dims = old[len(new)].dims
                here = Tile(e.spread(here, dims, e.depth), dims, e.depth)
            here.value.name_hint = inner.result.name_hint
            e.tiles[inner.result] = here
            new.append(here)
        return new

    def _rescaling(self, op: loop.StagedReduceOp, result: int, old: Sequence[Tile], new: Sequence[Tile]) -> Tile:
        """Returns a result over the preceding chunks, rescaled to the new reference values.

        Args:
            op: the staged reduction.
            result: number of the result.
            old: all results over the preceding chunks.
            new: new results of the earlier stages.
        """
        e = self.emitter
        args = op.rescale.block.args
        e.tiles.update(zip(args, old, strict=False))
        e.tiles.update(zip(args[len(old) :], new, strict=False))
        self.body(rescaling_slice(op, result))
        return e.tiles[yielded(op.rescale.block)[result]]
