"""Outlines one planned nest as a kernel: its buffers, its grid, and the program of a block."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap

from ....dialects import loop, payload, tensor, tile
from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, memref_of
from ....dialects.shapes.tile_counts import count_of
from ....dialects.support.locations import location_of
from ....dialects.tensor import ReductionKind, identity
from ...analysis.cluster_rows import shared_of_nest, shares_rows
from ...analysis.dependence import yielded
from ...analysis.nest_schedule import reduction_indices, reductions, schedule_of
from .emitter import Emitter
from .reductions import Reducer
from .tile_values import Dim


def sources(nest: loop.NestOp) -> list[SSAValue]:
    """The tensors that a nest reads, in the order of their first use."""
    found: dict[SSAValue, None] = {}
    for op in nest.body.walk():
        if isinstance(op, loop.LoadOp) and not (isinstance(op.source.owner, payload.ConstantOp) and op.domain is None):
            found.setdefault(op.source)
    return list(found)


def preferred_fills(nest: loop.NestOp) -> dict[SSAValue, float]:
    """Source -> what its padding should hold: the identity of a reduction that takes the loaded value as it is.

    With one such value for all loads of a tensor they stay equal, and are done once.
    """
    fills: dict[SSAValue, float] = {}
    for op in reductions(nest):
        value = yielded(op.body.block)[0]
        while isinstance(value.owner, payload.CastOp) and payload.is_float(value.owner.operand.type):
            value = value.owner.operand
        load = value.owner
        if isinstance(load, loop.LoadOp) and load.domain is None and op.kind.data != ReductionKind.ADD:
            fills.setdefault(load.source, identity(op.kind.data, op.result.type))
    return fills


def result_map(nest: loop.NestOp) -> AffineMap:
    """From the free indices of a nest to the coordinates of its results."""
    return nest.result_map.data if nest.result_map is not None else AffineMap.identity(len(nest.sizes))


class KernelBuilder:
    """Builds the kernel of one nest according to its schedule.

    With `scatter`, of which the nest computes values and indices, it combines them into the scatter's result, its only
    one, and the nest's own results are not stored."""

    def __init__(self, nest: loop.NestOp, name: str, scatter: tensor.ScatterOp | None = None) -> None:
        self.nest = nest
        self.name = name
        self.scatter = scatter
        self.results: tuple[SSAValue, ...] = tuple(nest.res) if scatter is None else (scatter.result,)
        self.schedule = schedule_of(nest)
        self.inputs = sources(nest)

    def build(self) -> tile.KernelOp:
        """The kernel; its inputs are `self.inputs`, its results `self.results`."""
        nest, schedule = self.nest, self.schedule
        self._shared = shared_of_nest(nest, schedule)
        blocks = [b.data for b in schedule.block]
        serial = {s.data for s in schedule.serial}
        indices = nest.body.block.args
        counts = [count_of(n, b) for n, b in zip(nest.sizes, blocks, strict=True)]
        for i, (index, n) in enumerate(zip(indices, counts, strict=True)):
            if index in self._shared.indices and isinstance(n, int):
                counts[i] = self._shared.steps(index, n)
                serial.add(i)
        grid = [i for i, n in enumerate(counts) if n != 1 and i not in serial]
        walked = [i for i, n in enumerate(counts) if n != 1 and i in serial]
        values = [*self.inputs, *self.results]
        types = [memref_of(element_type(v.type), extents_of(v.type)) for v in values]
        ranks = [self._shared.ranks] if self._shared.indices else []
        block = Block(arg_types=[*types, *(IndexType() for _ in (*grid, *ranks))])
        for arg, value in zip(block.args, values, strict=False):
            arg.name_hint = value.name_hint or ("out" if value in self.results else None)
        for arg, i in zip(block.args[len(values) :], grid, strict=False):
            arg.name_hint = indices[i].name_hint
        self._rank = block.args[-1] if ranks else None
        if self._rank is not None:
            self._rank.name_hint = "rank"
        emitter = Emitter(block, dict(zip(self.inputs, block.args, strict=False)), preferred_fills(nest))
        emitter.location = location_of(nest)
        counters: dict[int, SSAValue] = dict(zip(grid, block.args[len(values) :], strict=False))
        self._blocks = blocks
        self._outputs = block.args[len(self.inputs) : len(values)]

        def program(loops: list[SSAValue], _: list[SSAValue]) -> list[SSAValue]:
            depths = {i: emitter.depth + 1 - len(walked) + n for n, i in enumerate(walked)}
            self._program(emitter, counters | dict(zip(walked, loops, strict=True)), depths)
            return []

        emitter.loops([counts[i] for i in walked], [], program, [indices[i].name_hint for i in walked])
        shape = [*(counts[i] for i in grid), *ranks]
        cluster = schedule.cluster.data if shares_rows(schedule) else 1  # those that share boxes come later
        kernel = tile.KernelOp(self.name, shape, schedule.warps.data, Region(block), cluster)
        kernel.attributes["schedule"] = schedule
        kernel.location = location_of(nest)
        return kernel

    def _program(self, emitter: Emitter, counters: dict[int, SSAValue], depths: dict[int, int]) -> None:
        """The body of the nest and its stores, with the free indices bound to their counters."""
        nest = self.nest
        dims = [
            Dim(n, self._blocks[i], counters.get(i), i, depths.get(i, 0), arg.name_hint, *self._among(arg))
            for i, (n, arg) in enumerate(zip(nest.sizes, nest.body.block.args, strict=True))
        ]
        emitter.dims.update(zip(nest.body.block.args, dims, strict=True))
        pairs = zip(reduction_indices(nest), self.schedule.chunk, strict=True)
        reducer = Reducer(emitter, {arg: c.data for (arg, _), c in pairs}, len(dims), self._shared, self._rank)
        body: list[Operation] = list(nest.body.block.ops)
        reducer.body(body[:-1])
        emitter.location = location_of(nest)
        if self.scatter is not None:
            yields: dict[SSAValue, SSAValue] = dict(zip(nest.res, yielded(nest.body.block), strict=True))
            tiles = [emitter.tile_of(yields[v]) for v in (self.scatter.values, *self.scatter.indices)]
            emitter.scatter(self.scatter, tiles, self._outputs[0], dims, result_map(nest))
            return
        for value, buffer in zip(yielded(nest.body.block), self._outputs, strict=True):
            emitter.store(emitter.tile_of(value), buffer, dims, result_map(nest), self._only_first(dims))

    def _among(self, index: SSAValue) -> tuple[SSAValue | None, int]:
        """The number of the block among those that share `index`, and how many they are."""
        return (self._rank, self._shared.ranks) if index in self._shared.indices else (None, 1)

    def _only_first(self, dims: Sequence[Dim]) -> Dim | None:
        """The ranks, if all blocks of a cluster have the same results, of which the first writes them."""
        if self._rank is None or any(d.rank is not None for d in dims):
            return None
        return Dim(self._shared.ranks, 1, self._rank, 0, 0)
