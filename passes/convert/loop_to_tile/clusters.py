"""Reductions that the blocks of a cluster share: each block reduces its chunks, then they exchange their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from ....dialects import loop, tile
from ....dialects.shapes.extents import Count
from ....dialects.support.locations import location_of
from ...analysis.nest_schedule import Shared, Sum, needed_by, stages_of
from .chunk_bounds import Bounds
from .emitter import Dim, Emitter, Tile
from .reductions import Reducer


class ClusterReducer(Reducer):
    """Lowers the reductions of a nest whose indices `shared` the blocks of a cluster take in turn.

    Args:
        emitter: Receives the operations.
        chunks: Reduction indices with the extents of their tiles.
        shared: The indices, and the number of blocks.
        rank: The number of the block in its cluster.
    """

    def __init__(self, emitter: Emitter, chunks: dict[SSAValue, int], shared: Shared, rank: SSAValue) -> None:
        super().__init__(emitter, chunks)
        self.shared, self.rank = shared, rank
        self.ranks = dict.fromkeys(shared.indices, (rank, shared.ranks))

    def nest(self, ops: Sequence[Operation]) -> None:
        """Lowers the operations of a nest.

        With `cluster_k` (`shared.part`), each block first computes partial results of the reductions over whole tiles.
        The blocks exchange them, so that each has the results of its part, and computes the other operations for it.
        """
        if self.shared.part is None:
            self.body(ops)
            return
        e, sums, whole = self.emitter, [op for op in ops if isinstance(op, Sum)], self.emitter.dims[self.shared.part]
        needed = needed_by(sums, ops) | {*sums}
        self.body([op for op in ops if op in needed])
        stages = [(stage, result) for op in sums for stage, result in zip(stages_of(op), op.results, strict=True)]
        results = [e.tiles[result] for _, result in stages]
        part = replace(whole, tile=whole.tile // self.shared.ranks, rank=self.rank, ranks=self.shared.ranks)
        e.dims[self.shared.part] = part
        e.tiles = {value: t for value, t in e.tiles.items() if whole not in t.dims}
        for (stage, value), old in zip(stages, results, strict=True):
            e.location = location_of(stage)
            new = tile.ClusterReduceScatterOp(stage.kind.data, old.value, old.dims.index(whole), self.shared.ranks)
            e.insert(new, old.depth, value.name_hint)
            e.tiles[value] = Tile(new.result, tuple(part if d is whole else d for d in old.dims), old.depth)
        self.body([op for op in ops if op not in sums])

    def reduce(self, op: loop.ReduceOp) -> Tile:
        """Lowers a plain reduction. If the blocks share it, their partial results are combined."""
        value = super().reduce(op)
        if not self._is_shared(op) or self.shared.part is not None or value.constant is not None:
            return value
        self.emitter.location = location_of(op)
        peer, (values,) = self._peers([value])
        return self._finish(op, values, (peer,))

    def staged(self, op: loop.StagedReduceOp) -> None:
        """Lowers a staged reduction. If the blocks share it, their partial results are combined."""
        first, e = op.stage_ops[0] if op.stage_ops else None, self.emitter
        if first is None or not self._is_shared(first) or 0 in first.sizes:
            super().staged(op)
            return
        if any(n != 1 for n in self._counts(first)):
            super().staged(op)
        else:
            with self._hoisted(op):
                e.tiles.update(zip(op.res, self._stages(op, self._bind(op.stage_ops, ()), ()), strict=True))
        if self.shared.part is None:
            self._share(op, [e.tiles[result] for result in op.res])

    def _share(self, op: loop.StagedReduceOp, parts: Sequence[Tile]) -> None:
        """Combines the partial results of a staged reduction from all blocks.

        The partial results of a block are relative to reference values of that block. Stage by stage they are rescaled
        to the combined results of the earlier stages, and then combined.

        Args:
            op: the staged reduction.
            parts: partial result of each stage in the current block.
        """
        e, new = self.emitter, list[Tile]()
        e.location = location_of(op)
        peer, old = self._peers(parts)
        for result, stage in zip(op.res, op.stage_ops, strict=True):
            moved = self._rescaling(op, len(new), old, new)
            whole = self._finish(stage, moved, (peer,))
            whole.value.name_hint = result.name_hint or stage.result.name_hint
            e.tiles[result] = whole
            new.append(whole)

    def _peers(self, values: Sequence[Tile]) -> tuple[Dim, list[Tile]]:
        """Returns the new dimension over the blocks of the cluster, and the `values` of all blocks along it."""
        e = self.emitter
        peer = Dim(self.shared.ranks, self.shared.ranks, None, -1, 0, "peer")
        depth = max(v.depth for v in values)
        op = tile.ClusterAllGatherOp([v.value for v in values], self.shared.ranks)
        e.insert(op, depth)
        for result, value in zip(op.res, values, strict=True):
            result.name_hint = value.value.name_hint
        return peer, [Tile(r, (peer, *v.dims), depth) for r, v in zip(op.res, values, strict=True)]

    def _is_shared(self, op: loop.ReduceOp) -> bool:
        return any(a in self.shared.indices for a in op.body.block.args)

    def _counts(self, op: loop.ReduceOp) -> list[Count]:
        pairs = zip(op.body.block.args, super()._counts(op), strict=True)
        return [self.shared.steps(a, n) if isinstance(n, int) else n for a, n in pairs]

    def _visited(self, stages: Sequence[loop.ReduceOp], looped: Sequence[int]) -> list[Bounds]:
        """Returns the bounds of the loops over the chunks of one block. Masked chunks of shared reductions are not
        skipped."""
        if not self._is_shared(stages[0]):
            return super()._visited(stages, looped)
        counts = self._counts(stages[0])
        return [self.emitter.range(counts[i]) for i in looped]
