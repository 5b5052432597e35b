"""Reductions over tiles: at once, chunk by chunk, or staged with a rescaling between chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    transport_slice,
    yielded,
)
from ....dialects.payload import tensor_bytes
from ....dialects.shapes.extents import Count, count_of
from ....dialects.support.locations import location_of
from ....dialects.tensor import ReductionKind, identity
from ....target.model import MAX_LANES
from ...analysis.nest_schedule import Shared, Sum, needed_by, stages_of
from ...analysis.rescaling import counted
from ...pass_manager import emit_remark
from .chunk_bounds import Bounds, ChunkBounds
from .emitter import Dim, Emitter, Tile, padding_of, union


class Reducer:
    """Lowers the reductions of one nest.

    Args:
        emitter: Receives the operations.
        chunks: Reduction indices with the extents of their tiles.
        free: Number of free indices, which come before those of reductions in a tile.
        shared: The indices that the blocks of a cluster share.
        ranks: These indices with the number of the block in the cluster, and the number of blocks.
    """

    def __init__(
        self,
        emitter: Emitter,
        chunks: dict[SSAValue, int],
        free: int,
        shared: Shared,
        ranks: Mapping[SSAValue, tuple[SSAValue | None, int]],
    ) -> None:
        self.emitter, self.chunks, self.shared, self.ranks = emitter, chunks, shared, ranks
        self.dependence = Dependence()
        self._order = free
        """The place of the next reduction index in tiles."""

    @cached_property
    def bounds(self) -> ChunkBounds:
        return ChunkBounds(self.emitter, self.dependence)

    def program(self, ops: Sequence[Operation]) -> None:
        if self.shared.part is None:
            self.body(ops)
        else:
            self._body_in_parts(ops, self.shared.part)

    def body(self, ops: Sequence[Operation]) -> None:
        """Lower the operations of a body (without its yield)."""
        for op in ops:
            if isinstance(op, loop.ReduceOp):
                self.reduce(op)
            elif isinstance(op, loop.StagedReduceOp):
                self.staged(op)
            else:
                self.emitter.scalar_op(op)

    def _body_in_parts(self, ops: Sequence[Operation], index: SSAValue) -> None:
        """Lower the operations of a nest whose reductions the blocks of a cluster share: reductions over whole tiles
        first. Then each block has its part of their results along the free `index`, and computes the rest for it."""
        e, sums = self.emitter, [op for op in ops if isinstance(op, Sum)]
        needed = needed_by(sums, ops) | {*sums}
        self.body([op for op in ops if op in needed])
        whole = e.dims[index]
        stages = [(stage, result) for op in sums for stage, result in zip(stages_of(op), op.results, strict=True)]
        results = [e.tiles[result] for _, result in stages]
        rank = next(iter(self.ranks.values()))[0]
        part = replace(whole, tile=whole.tile // self.shared.ranks, rank=rank, ranks=self.shared.ranks)
        e.dims[index] = part
        e.tiles = {value: t for value, t in e.tiles.items() if whole not in t.dims}
        for (stage, value), old in zip(stages, results, strict=True):
            e.location = location_of(stage)
            new = tile.ClusterReduceScatterOp(stage.kind.data, old.value, old.dims.index(whole), self.shared.ranks)
            e.insert(new, old.depth, value.name_hint)
            e.tiles[value] = Tile(new.result, tuple(part if d is whole else d for d in old.dims), old.depth)
        self.body([op for op in ops if op not in sums])

    # Depths and dimensions

    def _depth(self, op: Operation) -> int:
        """The number of loops whose values `op` needs from around it."""
        e = self.emitter
        inside = {r for inner in op.walk() for r in inner.results}
        found = 0
        for inner in op.walk():
            for operand in inner.operands:
                if operand in e.dims:
                    found = max(found, e.dims[operand].depth)
                elif operand in e.tiles and operand not in inside:
                    found = max(found, e.tiles[operand].depth)
        return found

    def _dims(self, indices: Indices) -> tuple[Dim, ...]:
        dims = self.emitter.dims
        return union(d for v in indices if (d := dims[v]).tile > 1)

    def _bind(self, stages: Sequence[loop.ReduceOp], counters: Sequence[SSAValue]) -> tuple[Dim, ...]:
        """Make the reduction indices of `stages`, which run together, dimensions. The innermost loops count those that
        have more than one chunk."""
        e, dims, looped, orders = self.emitter, list[Dim](), 0, self._orders(stages)
        for i, (arg, count) in enumerate(zip(stages[0].body.block.args, self._counts(stages[0]), strict=True)):
            counter, depth = None, 0
            if count != 1:
                counter, depth = counters[looped], e.depth + 1 - len(counters) + looped
                looped += 1
            among = self.ranks.get(arg, (None, 1))
            dim = Dim(stages[0].sizes[i], self.chunks[arg], counter, orders[i], depth, arg.name_hint, *among)
            dims.append(dim)
            for stage in stages:
                e.dims[stage.body.block.args[i]] = dim
        return tuple(dims)

    def _orders(self, stages: Sequence[loop.ReduceOp]) -> list[float]:
        """The places of the indices of `stages` in tiles: behind all others, or, for a product of matrices, between the
        rows and the columns of its result."""
        indices, dims = stages[0].body.block.args, self.emitter.dims
        for found in filter(None, map(self._product, stages)):
            own = self._dims(found.only_lhs | found.only_rhs | found.shared)
            if len(own) == 2:
                around = (d for a, d in dims.items() if a.owner.parent_op().is_ancestor(stages[0]))  # pyright: ignore
                step = (min(d.order for d in around if d.order > own[0].order) - own[0].order) / (len(indices) + 1)
                return [own[0].order + step * (i + 1) for i in range(len(indices))]
        return [self._order + i for i in range(len(indices))]

    def _counts(self, op: loop.ReduceOp) -> list[Count]:
        counts = [count_of(n, self.chunks[a]) for a, n in zip(op.body.block.args, op.sizes, strict=True)]
        pairs = zip(op.body.block.args, counts, strict=True)
        return [self.shared.steps(a, n) if isinstance(n, int) else n for a, n in pairs]

    def _is_shared(self, op: loop.ReduceOp) -> bool:
        return any(a in self.shared.indices for a in op.body.block.args)

    def _visited(self, stages: Sequence[loop.ReduceOp], looped: Sequence[int]) -> list[Bounds]:
        """The chunks of the indices `looped` that are not masked as a whole: bounds of loops."""
        first, counts = stages[0], self._counts(stages[0])
        masked = any(isinstance(o, payload.CmpOp) or getattr(o, "domain", None) for o in first.body.walk())
        if not masked or self._is_shared(first):
            return [(self.emitter.number(0), self.emitter.count(counts[i])) for i in looped]
        return self.bounds.of(stages, looped, counts, [self.chunks[a] for a in first.body.block.args])

    # Reductions

    def reduce(self, op: loop.ReduceOp) -> None:
        """Lower a plain reduction."""
        e, element = self.emitter, op.result.type
        with e.at(self._depth(op)):
            number = identity(op.kind.data, element) if 0 in op.sizes else counted(op)
            if number is not None:
                e.tiles[op.result] = e.constant(number, element, (), 0)
                return
            if looped := [i for i, n in enumerate(self._counts(op)) if n != 1]:
                total = self._in_chunks(op, looped)
            else:
                total = self._combined(op, self._reduced(op, self._bind((op,), ())))
            e.tiles[op.result] = self._together(op, total) if self._is_shared(op) else total

    def _in_chunks(self, op: loop.ReduceOp, looped: Sequence[int]) -> Tile:
        """Reduce chunk by chunk, in loops over the indices `looped`.

        A contraction adds each chunk's sum to the accumulator, so that it can become a matrix product, and so does a
        thread that reduces columns; any other reduction keeps one accumulator for each element of the chunk and
        combines those at the end.
        """
        e, kind, element = self.emitter, op.kind.data, op.result.type
        dims, partial = self._dims(self.dependence.of_reduce(op)), tuple[Dim, ...]()
        every_chunk = self._product(op) is not None or self._is_of_columns(op, dims)
        if not every_chunk:
            pairs = enumerate(zip(op.body.block.args, op.sizes, strict=True))
            partial = tuple(Dim(n, c, None, self._order + i, 0) for i, (a, n) in pairs if (c := self.chunks[a]) > 1)
        start = e.constant(identity(kind, element), element, (*dims, *partial), e.depth)
        start.value.name_hint = op.result.name_hint

        def chunk(counters: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
            own = self._bind((op,), counters)
            if every_chunk:
                new, all_dims = self._reduced(op, own), dims
                new = self._combined(op, new, Tile(carried[0], dims, e.depth))
            else:
                value, all_dims = self._body_value(op, own), (*dims, *(d for d in own if d.tile > 1))
                new = e.combine(kind, Tile(carried[0], all_dims, e.depth), value)
            return [e.spread(new, all_dims, e.depth)]

        hints = [op.body.block.args[i].name_hint for i in looped]
        (result,) = e.loops(self._visited((op,), looped), [start.value], chunk, hints)
        return self._finish(op, Tile(result, (*dims, *partial), e.depth), partial)

    def _product(self, op: loop.ReduceOp) -> Contraction | None:
        """The contraction that `op` is, if a chunk of it is one of two tiles."""
        found = find_contraction(op, self.dependence)
        return found if found is not None and self._dims(found.only_lhs) and self._dims(found.only_rhs) else None

    def _is_of_columns(self, op: loop.ReduceOp, around: Sequence[Dim]) -> bool:
        """Whether one thread reduces the columns of a tile: most of what it loads as wide as the tile lies side by side
        along an index `around` the reduction, by whole vectors; or nothing is, and the last index is one."""
        if not self.emitter.alone or not around:
            return False
        dims, own, last = self.emitter.dims, {*op.body.block.args}, max(around, key=lambda d: d.order)
        loads = [inner for inner in op.walk() if isinstance(inner, loop.LoadOp)]
        used = {load: access_indices(load) for load in loads}
        wide = [o for o in loads if own & {*used[o]} and {*around} <= {dims[i] for i in used[o] if i in dims}]
        along = contiguous_index(max(wide, key=lambda load: tensor_bytes(load.source.type))) if wide else None
        found = last if not wide else None if along is None else dims.get(along)
        return found is not None and found in around and found.tile >= MAX_LANES

    def _body_value(self, op: loop.ReduceOp, own: Sequence[Dim]) -> Tile:
        self._lower_body(op, own)
        value, tails = yielded(op.body.block)[0], [d for d in own if d.has_tail]
        return self._masked(value, tails, op) if tails else self.emitter.tile_of(value)

    def _lower_body(self, op: loop.ReduceOp, own: Sequence[Dim], without: Operation | None = None) -> None:
        self._order += len(own)
        self.body([o for o in list(op.body.block.ops)[:-1] if o is not without])
        self._order -= len(own)

    def _reduced(self, op: loop.ReduceOp, own: Sequence[Dim]) -> Tile | tuple[Tile, Tile]:
        """`op` over the tile of its indices `own`; if that is a product of matrices, these."""
        found = self._product(op)
        return self._finish(op, self._body_value(op, own), own) if found is None else self._factors(op, own, found)

    def _factors(self, op: loop.ReduceOp, own: Sequence[Dim], found: Contraction) -> Tile | tuple[Tile, Tile]:
        """The two factors of the contraction `found`, if they are matrices; else the sum of their products."""
        e, product = self.emitter, found.product
        self._lower_body(op, own, product if product.result.has_one_use() else None)
        factors = [e.tile_of(v) for v in product.operands]
        known = padding_of(product, factors, union(*(f.dims for f in factors)))
        tails = [d for d in own if d.has_tail and known.get(d) != 0]
        a, b = (self._masked(v, tails, op) for v in product.operands)
        lhs, rhs = sorted((a, b), key=lambda t: [d.order for d in t.dims])
        dims, summed = union(lhs.dims, rhs.dims), [d for d in own if d.tile > 1]
        if len(dims) == 3 and summed == [dims[1]] and (lhs.dims, rhs.dims) == (dims[:2], dims[1:]):
            return lhs, rhs
        why = f"{len(dims) - len(summed)} free and {len(summed)} summed dimensions; a dot has 2 and 1"
        emit_remark(op, "convert-loop-to-tile", why)
        return self._finish(op, e.payload(product, (a, b)), own)

    def _combined(self, op: loop.ReduceOp, new: Tile | tuple[Tile, Tile], old: Tile | None = None) -> Tile:
        """`new`, of `_reduced`, combined with `old`, if there is that; of matrices, their product added to it."""
        e = self.emitter
        if isinstance(new, Tile):
            return new if old is None else e.combine(op.kind.data, old, new)
        (lhs, rhs), dims, e.location = new, (new[0].dims[0], new[1].dims[1]), location_of(op)
        depth = max(lhs.depth, rhs.depth)
        if old is not None and (old.depth > depth or not {*old.dims} <= {*dims}):
            return e.combine(op.kind.data, old, self._combined(op, new))
        acc = e.constant(0.0, op.result.type, dims, depth).value if old is None else e.spread(old, dims, depth)
        dot = tile.DotOp(lhs.value, rhs.value, acc)
        e.insert(dot, depth, op.result.name_hint if old is None else old.value.name_hint)
        return Tile(dot.result, dims, depth)

    def _finish(self, op: loop.ReduceOp, value: Tile, own: Sequence[Dim]) -> Tile:
        """`value` reduced along the dimensions `own`."""
        e = self.emitter
        e.location = location_of(op)
        own = [d for d in own if d.tile > 1]
        if not own:
            return value
        dims = union(value.dims, own)
        source = e.spread(value, dims, value.depth)
        new = tile.ReduceOp(op.kind.data, source, [dims.index(d) for d in own])
        e.insert(new, value.depth, op.result.name_hint)
        return Tile(new.result, tuple(d for d in dims if d not in own), value.depth)

    # Masks

    def _masked(self, value: SSAValue, tails: Sequence[Dim], op: loop.ReduceOp) -> Tile:
        """The tile of `value` with the identity of `op` wherever an index of `tails` is past its range."""
        e = self.emitter
        neutral = identity(op.kind.data, op.result.type)
        found = e.tile_of(value)
        missing = [d for d in tails if found.beyond(d) != neutral]
        if not missing:
            return found
        inner, is_sum = value.owner, op.kind.data == ReductionKind.ADD
        if is_sum and isinstance(inner, arith.MulfOp) and inner.parent_block() is op.body.block:
            # Two factors that are both zero are cheaper to arrange than their product, and keep it a contraction.
            a, b = (self._masked(o, missing, op) for o in inner.operands)
            return e.payload(inner, (a, b))
        for d in missing:
            found = e.within(d, found, neutral)
        return found

    # Staged reductions

    def staged(self, op: loop.StagedReduceOp) -> None:
        """Lower a staged reduction: its stages one after another if a tile holds the range, else chunk by chunk."""
        e, stages = self.emitter, op.stage_ops
        counts = self._counts(stages[0]) if stages else []
        looped = [i for i, n in enumerate(counts) if n != 1]
        shared = bool(stages) and self._is_shared(stages[0])
        if (not looped and not shared) or 0 in stages[0].sizes:
            self.body(list(op.stages.block.ops)[:-1])
            for result, stage in zip(op.res, stages, strict=True):
                e.tiles[result] = e.tiles[stage.result]
            return
        with e.at(self._depth(op)):
            if not looped:
                self._share(op, self._stages(op, self._bind(stages, ()), ()))
                return
            dims = [self._dims(found) for found in self.dependence.of_staged(op)]
            starts: list[SSAValue] = []
            for stage, own, result in zip(stages, dims, op.res, strict=True):
                neutral = identity(stage.kind.data, stage.result.type)
                starts.append(e.constant(neutral, stage.result.type, own, e.depth).value)
                starts[-1].name_hint = result.name_hint or stage.result.name_hint

            def chunk(counters: list[SSAValue], carried: list[SSAValue]) -> list[SSAValue]:
                own = self._bind(stages, counters)
                old = [Tile(c, d, e.depth) for c, d in zip(carried, dims, strict=True)]
                return [t.value for t in self._stages(op, own, old)]

            hints = [stages[0].body.block.args[i].name_hint for i in looped]
            results = e.loops(self._visited(stages, looped), starts, chunk, hints)
            for result, stage, value, own in zip(op.res, stages, results, dims, strict=True):
                value.name_hint = result.name_hint or stage.result.name_hint
                e.tiles[result] = Tile(value, own, e.depth)
            if shared:
                self._share(op, [e.tiles[result] for result in op.res])

    def _stages(self, op: loop.StagedReduceOp, own: Sequence[Dim], old: Sequence[Tile]) -> list[Tile]:
        """One chunk: each stage in the frame that the earlier ones have moved to, combined with what it was, if that is
        not the first."""
        e, new = self.emitter, list[Tile]()
        for inner in list(op.stages.block.ops)[:-1]:
            if not isinstance(inner, loop.ReduceOp):
                self.body([inner])
                continue
            reduced = self._reduced(inner, own)
            here = self._combined(inner, reduced, self._rescaling(op, len(new), old, new) if old else None)
            if old:
                dims = old[len(new)].dims
                here = Tile(e.spread(here, dims, e.depth), dims, e.depth)
            here.value.name_hint = inner.result.name_hint
            e.tiles[inner.result] = here
            new.append(here)
        return new

    def _rescaling(self, op: loop.StagedReduceOp, result: int, old: Sequence[Tile], new: Sequence[Tile]) -> Tile:
        """Result number `result` so far, moved from its old frame to the one that the stages before it are in now."""
        e = self.emitter
        args = op.rescale.block.args
        e.tiles.update(zip(args, old, strict=False))
        e.tiles.update(zip(args[len(old) :], new, strict=False))
        self.body(transport_slice(op, result))
        return e.tiles[yielded(op.rescale.block)[result]]

    # Blocks of a cluster

    def _peers(self, values: Sequence[Tile]) -> tuple[Dim, list[Tile]]:
        """What every block of the cluster has for `values`, along a new dimension."""
        e = self.emitter
        peer = Dim(self.shared.ranks, self.shared.ranks, None, -1, 0, "peer")
        depth = max(v.depth for v in values)
        op = tile.ClusterAllGatherOp([v.value for v in values], self.shared.ranks)
        e.insert(op, depth)
        for result, value in zip(op.res, values, strict=True):
            result.name_hint = value.value.name_hint
        return peer, [Tile(r, (peer, *v.dims), depth) for r, v in zip(op.res, values, strict=True)]

    def _together(self, op: loop.ReduceOp, value: Tile) -> Tile:
        """The result of a plain reduction, from what each block of the cluster has of it, if they share it."""
        if self.shared.part is not None:
            return value
        self.emitter.location = location_of(op)
        peer, (values,) = self._peers([value])
        return self._finish(op, values, (peer,))

    def _share(self, op: loop.StagedReduceOp, parts: Sequence[Tile]) -> None:
        """The results of a staged reduction from the parts of the blocks, each in a frame of its own: stage by stage
        all of them move into the frame of the earlier results of the whole, and are combined there."""
        e, new = self.emitter, list[Tile]()
        if self.shared.part is not None:
            e.tiles.update(zip(op.res, parts, strict=True))
            return
        e.location = location_of(op)
        peer, old = self._peers(parts)
        for result, stage in zip(op.res, op.stage_ops, strict=True):
            moved = self._rescaling(op, len(new), old, new)
            whole = self._finish(stage, moved, (peer,))
            whole.value.name_hint = result.name_hint or stage.result.name_hint
            e.tiles[result] = whole
            new.append(whole)
