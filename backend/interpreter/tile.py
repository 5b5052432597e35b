"""The tile dialect, executed: all blocks of a grid at once, a block being one more array axis.

Inside a kernel a value has the shape [blocks, *tile], of size 1 along what it does not depend on. Layouts say only who
holds which element, so they mean nothing here. A result element that no block writes, or that two write differently, is
an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import AnyFloat, Float32Type
from xdsl.interpreter import Interpreter, OpImplResult, PythonValues, impl, register_impls
from xdsl.interpreters.scf import ScfFunctions
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.layouts import without_flight
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.binding import Sizes
from ...dialects.tile.copies import tiles_of
from ...errors import ExecutionError
from .affine_access import coordinates, evaluate, fetch, inside, within
from .domains import Array, TypedDomain, combine_values, ranked, reduce_value, scan_value, scatter_into


@dataclass(eq=False)
class Ring:
    """What one ring holds, for a block that runs alone. `puts` are all groups in order, each with how many groups every
    ring had by then; so many of them were `taken`, and so many `released`."""

    slots: int
    puts: list[tuple[tuple[Array, ...], list[int]]] = field(default_factory=list)
    taken: int = 0
    released: int = 0

    def put(self, tiles: tuple[Array, ...], rings: Sequence[Ring]) -> None:
        """Put a group; `rings` are all of the kernel."""
        self.puts.append((tiles, [len(r.puts) + (r is self) for r in rings]))

    def take(self, rings: Sequence[Ring]) -> tuple[Array, ...]:
        """The next group. Raises ExecutionError where the block waits for ever."""
        if self.taken == len(self.puts):
            raise ExecutionError("waits for ever: takes more from a ring than is put into it")
        tiles, counts = self.puts[self.taken]
        for other, count in zip(rings, counts, strict=True):
            if count > other.slots + other.released:
                raise ExecutionError(f"waits for ever: no slot of {other.slots} gets free")
        self.taken += 1
        return tiles

    def release(self, pending: int, nothing: Sequence[Array]) -> None:
        """Give back the group that was taken before the `pending` newest ones: each tile becomes its `nothing`."""
        if self.released + pending >= self.taken:
            raise ExecutionError("gives back a slot of a ring that it did not take")
        if self.released + pending + 1 != self.taken:
            raise ExecutionError("gives back a group of a ring before an older one")
        for array, value in zip(self.puts[self.released][0], nothing, strict=True):
            array[...] = value
        self.released += 1

    def check_empty(self) -> None:
        """Raise ExecutionError if somebody put what nobody took, and so would have waited or left it lying."""
        if not len(self.puts) == self.taken == self.released:
            raise ExecutionError("leaves groups in a ring that were put and not taken, or taken and not given back")


@dataclass
class Row:
    """The tiles in the places of one row, `[blocks, places, *tile]`, and which places hold one, `[blocks, places]`."""

    data: Array
    full: Array

    @staticmethod
    def create(places: int, blocks: int, shape: Sequence[int], dtype: Any) -> Row:
        return Row(np.zeros((blocks, places, *shape), dtype), np.zeros((blocks, places), np.bool_))

    def keep(self, value: Array, place: Array, active: Array) -> None:
        blocks, places = self._where(place, active)
        value = np.broadcast_to(value, (len(active), *self.data.shape[2:]))
        self.data[blocks, places], self.full[blocks, places] = value[blocks], True

    def kept(self, place: Array, active: Array) -> Array:
        """The tile in its own `place` of each block in `active`. Raises ExecutionError where none was put."""
        blocks, places = self._where(place, active)
        if not self.full[blocks, places].all():
            missing = int(places[np.argmin(self.full[blocks, places])])
            raise ExecutionError(f"reads place {missing} of a row, where nothing was put")
        found = np.zeros((len(active), *self.data.shape[2:]), self.data.dtype)
        found[blocks] = self.data[blocks, places]
        return found

    def _where(self, place: Array, active: Array) -> tuple[Array, Array]:
        blocks = np.flatnonzero(active)
        places = np.broadcast_to(place, active.shape)[blocks]
        if np.any((places < 0) | (places >= self.full.shape[1])):
            raise ExecutionError(f"a row of {self.full.shape[1]} places has no place {int(np.max(places))}")
        return blocks, places


MAX_ELEMENTS = 1 << 24
"""Elements of the largest value; a grid of more blocks than fit is run in pieces."""


@dataclass
class Buffer:
    """A result in global memory: its elements so far and which of them were written."""

    data: Array
    written: Array


EXCHANGES = (tile.ClusterAllGatherOp, tile.ClusterReduceScatterOp)
"""Operations in which the blocks of a cluster exchange tiles."""


def trips(lower: Array, upper: Array, step: Array) -> tuple[int, Array]:
    """The most iterations of a loop over all blocks, and each block's own number."""
    if np.any(step <= 0):
        raise ExecutionError(f"a loop with step {int(np.min(step))}")
    count = np.maximum(0, -((lower - upper) // step))
    return int(np.max(count, initial=0)), count


@register_impls
class TileFunctions(ScfFunctions):
    """Block programs over any scalar domain."""

    def __init__(self, domain: TypedDomain, sizes: Sizes | None = None) -> None:
        self.domain = domain
        self.sizes = sizes or Sizes()
        self.active = np.ones(1, np.bool_)
        self.rings: list[Ring] = []

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        yield from super()._impls()
        # The same tiles elsewhere, or later.
        for moved in (tile.AwaitOp, tile.CommitOp, tile.DotWaitOp, tile.ConvertLayoutOp, tile.StageOp):
            yield moved, lambda self, interpreter, op, args: OpImplResult(args, None)
        for stored in (tile.StoreOp, tile.TmaStoreOp):
            yield stored, lambda self, interpreter, op, args: OpImplResult(self._write(op, args), None)

    @impl(tile.LaunchOp)
    def launch(self, interpreter: Interpreter, op: tile.LaunchOp, args: PythonValues) -> PythonValues:
        kernel = interpreter.get_op_for_symbol(op.kernel)
        assert isinstance(kernel, tile.KernelOp)
        shapes = [self.sizes.shape(b.type) for b in kernel.buffers]
        whole = [np.broadcast_to(a, self.sizes.shape(v.type)) for a, v in zip(args, op.inputs, strict=False)]
        inputs = [a.reshape(shape) for a, shape in zip(whole, shapes, strict=False)]
        results = [
            Buffer(np.zeros(shape, self.domain.dtype(element_type(r.type))), np.zeros(shape, np.bool_))
            for r, shape in zip(op.res, shapes[len(inputs) :], strict=True)
        ]
        if op.start is not None:
            start = np.broadcast_to(args[-1], self.sizes.shape(op.start.type))
            results = [Buffer(np.array(start), np.ones(start.shape, np.bool_))]
        self._run_grid(interpreter, kernel, (*inputs, *results))
        for n, buffer in enumerate(results):
            if not buffer.written.all():
                at = tuple(int(i) for i in np.argwhere(~buffer.written)[0])
                raise ExecutionError(f"element {at} of result {n} is never written")
        return tuple(b.data.reshape(self.sizes.shape(r.type)) for b, r in zip(results, op.res, strict=True))

    def _run_grid(self, interpreter: Interpreter, kernel: tile.KernelOp, buffers: PythonValues) -> None:
        grid = tuple(self.sizes.count(c) for c in kernel.grid_shape)
        blocks = math.prod(grid)
        largest = max((math.prod(shape_of(r.type)) for op in kernel.walk() for r in op.results), default=1)
        step = max(1, MAX_ELEMENTS // largest // kernel.cluster_size) * kernel.cluster_size
        if any(isinstance(op, tile.WarpSpecializeOp) for op in kernel.walk()):
            # A ring is that of one block, or of the blocks of a cluster that run the same iterations.
            step = kernel.cluster_size if any(isinstance(op, EXCHANGES) for op in kernel.walk()) else 1
        for first in range(0, blocks, step):
            numbers = np.arange(first, min(first + step, blocks))
            ids = np.unravel_index(numbers, grid) if grid else ()
            self.active = np.ones(len(numbers), np.bool_)
            self.rings = []
            interpreter.run_ssacfg_region(kernel.body, (*buffers, *(i.astype(np.int64) for i in ids)), "kernel")
            for ring in self.rings:
                ring.check_empty()

    def _space(self, op: Operation, tile_of: SSAValue, symbols: Sequence[SSAValue], values: Sequence[Array]):
        """The tile's indices and the symbols' values, all of the shape [blocks, *tile]."""
        shape = shape_of(tile_of.type)
        dims = [np.arange(n).reshape((1, n) + (1,) * (len(shape) - 1 - d)) for d, n in enumerate(shape)]
        found: list[Array] = []
        for s, v in zip(symbols, values, strict=True):
            v = ranked(v, 1 + len(shape_of(s.type)))
            found.append(v if shape_of(s.type) else v.reshape((-1,) + (1,) * len(shape)))
        return dims, found, self.active.reshape((-1,) + (1,) * len(shape))

    @impl(tile.LoadOp)
    def load(self, interpreter: Interpreter, op: tile.LoadOp, args: PythonValues) -> PythonValues:
        source = args[0].data if isinstance(args[0], Buffer) else args[0]
        dims, symbols, active = self._space(op, op.result, op.symbols, args[1 : 1 + len(op.symbols)])
        fill = args[-1] if op.fill is not None else self.domain.constant(0, element_type(op.result.type))
        fill = ranked(fill, 1).reshape((-1,) + (1,) * len(dims))
        mask = inside(self.sizes.domain(op.domain), dims, symbols)
        mask = mask if self.active.all() else mask & active
        return (ranked(fetch(source, op.map.data, dims, symbols, mask, fill), 1 + len(dims)),)

    @impl(tile.StageAsyncOp)
    def stage_async(self, interpreter: Interpreter, op: tile.StageAsyncOp, args: PythonValues) -> PythonValues:
        """The tile as it arrives; where nothing is copied it holds what nobody may read."""
        element, count = element_type(op.result.type), len(op.symbols)
        dims, symbols, active = self._space(op, op.result, op.symbols, args[1 : 1 + count])
        copied = active if op.predicate is None else active & ranked(args[-1], 1).reshape((-1,) + (1,) * len(dims))
        mask = inside(self.sizes.domain(op.domain), dims, symbols) & copied
        rest = np.where(copied, self.domain.constant(0, element), self.domain.constant(float("nan"), element))
        return (ranked(fetch(args[0], op.map.data, dims, symbols, mask, rest), 1 + len(dims)),)

    @impl(tile.TmaLoadOp)
    def tma_load(self, interpreter: Interpreter, op: tile.TmaLoadOp, args: PythonValues) -> PythonValues:
        zero = self.domain.constant(0, element_type(op.result.type))
        dims, symbols, active = self._space(op, op.result, op.symbols, args[1:])
        mask = within(op.map.data, args[0].shape, dims, symbols) & active
        return (ranked(fetch(args[0], op.map.data, dims, symbols, mask, zero), 1 + len(dims)),)

    @impl(tile.RingOp)
    def ring(self, interpreter: Interpreter, op: tile.RingOp, args: PythonValues) -> PythonValues:
        assert isinstance(op.result.type, tile.RingType)
        self.rings.append(Ring(op.result.type.slots.data))
        return (self.rings[-1],)

    @impl(tile.ProducerLoadOp)
    def put(self, interpreter: Interpreter, op: tile.ProducerLoadOp, args: PythonValues) -> PythonValues:
        blocks = len(self.active)
        pairs = zip(args[1:], op.tiles, strict=True)
        tiles = (np.array(np.broadcast_to(a, (blocks, *shape_of(t.type)))) for a, t in pairs)
        args[0].put(tuple(tiles), self.rings)
        return ()

    @impl(tile.ConsumerWaitOp)
    def take(self, interpreter: Interpreter, op: tile.ConsumerWaitOp, args: PythonValues) -> PythonValues:
        return args[0].take(self.rings)

    @impl(tile.ConsumerReleaseOp)
    def release(self, interpreter: Interpreter, op: tile.ConsumerReleaseOp, args: PythonValues) -> PythonValues:
        nothing = [self.domain.constant(float("nan"), element_type(t)) for t in tiles_of(op.ring)]
        if op.condition is None or np.all(args[1]):
            args[0].release(1 if op.is_late else 0, nothing)
        return ()

    @impl(tile.RowBufferOp)
    def row(self, interpreter: Interpreter, op: tile.RowBufferOp, args: PythonValues) -> PythonValues:
        row = op.result.type
        assert isinstance(row, tile.RowBufferType)
        return (Row.create(row.places.data, len(self.active), row.shape, self.domain.dtype(element_type(row.tile))),)

    @impl(tile.RowBufferStoreOp)
    def keep(self, interpreter: Interpreter, op: tile.RowBufferStoreOp, args: PythonValues) -> PythonValues:
        args[1].keep(args[0], args[2], self.active)
        return ()

    @impl(tile.RowBufferLoadOp)
    def kept(self, interpreter: Interpreter, op: tile.RowBufferLoadOp, args: PythonValues) -> PythonValues:
        return (args[0].kept(args[1], self.active),)

    @impl(tile.ClusterAllGatherOp)
    def peers(self, interpreter: Interpreter, op: tile.ClusterAllGatherOp, args: PythonValues) -> PythonValues:
        tiles = (self._of_cluster(value, old, op.ranks) for value, old in zip(args, op.tiles, strict=True))
        return tuple(np.repeat(t, op.ranks, axis=0) for t in tiles)

    @impl(tile.ClusterReduceScatterOp)
    def reduce_scatter(
        self, interpreter: Interpreter, op: tile.ClusterReduceScatterOp, args: PythonValues
    ) -> PythonValues:
        tiles, element = self._of_cluster(args[0], op.source, op.ranks), element_type(op.source.type)
        total = tiles[:, 0]
        for rank in range(1, op.ranks):
            total = combine_values(self.domain, op.kind.data, total, tiles[:, rank], element)
        parts = np.stack(np.split(total, op.ranks, axis=1 + op.dim.data), axis=1)
        return (parts.reshape(-1, *parts.shape[2:]),)

    def _of_cluster(self, value: Array, tile_of: SSAValue, ranks: int) -> Array:
        """Returns a tile of each block as [clusters, ranks, *tile]."""
        clusters, shape = self.active.reshape(-1, ranks), shape_of(tile_of.type)
        if np.any(clusters != clusters[:, :1]):
            raise ExecutionError("blocks of one cluster wait for others that do not come")
        value = np.broadcast_to(ranked(value, 1 + len(shape)), (len(self.active), *shape))
        return value.reshape(-1, ranks, *shape)

    @impl(tile.WarpSpecializeOp)
    def partitions(self, interpreter: Interpreter, op: tile.WarpSpecializeOp, args: PythonValues) -> PythonValues:
        for partition in (op.producer, op.consumer):
            interpreter.run_ssacfg_region(partition, (), "partition")
        return ()

    @impl(tile.AtomicRmwOp)
    def atomic_rmw(self, interpreter: Interpreter, op: tile.AtomicRmwOp, args: PythonValues) -> PythonValues:
        buffer, value, where = self._elements(op, args)
        places = np.ravel_multi_index(where, buffer.data.shape) if value.size else np.zeros(0, np.int64)
        scatter_into(self.domain, op.kind.data, buffer.data.reshape(-1), places, value, element_type(op.value.type))
        return ()

    def _elements(
        self, op: tile.StoreOp | tile.AtomicRmwOp | tile.TmaStoreOp, args: PythonValues
    ) -> tuple[Buffer, Array, tuple[Array, ...]]:
        """The buffer that a tile goes to, its elements that do, one after the other, and the coordinates of each."""
        value, buffer = args[0], args[1]
        if not isinstance(buffer, Buffer):
            raise ExecutionError("writes an input")
        dims, symbols, active = self._space(op, op.value, op.symbols, args[2:])
        if isinstance(op, tile.TmaStoreOp):
            mask = active & within(op.map.data, buffer.data.shape, dims, symbols)
        else:
            mask = active & inside(self.sizes.domain(op.domain), dims, symbols)
        places = coordinates(op.map.data, buffer.data.shape, dims, symbols, mask)
        shape = (len(self.active), *shape_of(op.value.type))
        mask = np.broadcast_to(mask, shape)
        value = np.broadcast_to(ranked(value, len(shape)), shape)[mask]
        return buffer, value, tuple(np.broadcast_to(p, shape)[mask] for p in places)

    def _write(self, op: tile.StoreOp | tile.TmaStoreOp, args: PythonValues) -> PythonValues:
        """Write the elements of a tile; none twice."""
        buffer, value, where = self._elements(op, args)
        data, written = buffer.data, buffer.written
        if not where:  # a buffer of rank 0 takes no list of coordinates
            data, written, where = data.reshape(1), written.reshape(1), (np.zeros(len(value), np.int64),)
        old = written[where] & ~self.domain.same(data[where], value)
        data[where] = value
        written[where] = True
        wrong = np.atleast_1d(old | ~self.domain.same(data[where], value))
        if wrong.any():
            at = tuple(int(np.atleast_1d(w)[int(np.argmax(wrong))]) for w in where)
            raise ExecutionError(f"element {at} is written twice, with different values")
        return ()

    @impl(tile.SliceOp)
    def slice(self, interpreter: Interpreter, op: tile.SliceOp, args: PythonValues) -> PythonValues:
        whole, part = shape_of(op.source.type), shape_of(op.result.type)
        value = ranked(args[0], 1 + len(whole))
        for d, (first, count) in enumerate(zip(op.at.get_values(), part, strict=True)):
            if value.shape[1 + d] != 1 or whole[d] == 1:
                value = value.take(range(first, first + count), axis=1 + d)
        return (value,)

    @impl(tile.AffineOp)
    def affine(self, interpreter: Interpreter, op: tile.AffineOp, args: PythonValues) -> PythonValues:
        dims, symbols, _ = self._space(op, op.result, op.symbols, args)
        return (ranked(evaluate(op.map.data.results[0], dims, symbols), 1 + len(dims)),)

    @impl(tile.BroadcastOp)
    def broadcast(self, interpreter: Interpreter, op: tile.BroadcastOp, args: PythonValues) -> PythonValues:
        x = ranked(args[0], 1 + len(shape_of(op.source.type)))
        return (np.expand_dims(x, tuple(1 + int(d) for d in sorted(op.along.get_values()))),)

    @impl(tile.ReduceOp)
    def reduce(self, interpreter: Interpreter, op: tile.ReduceOp, args: PythonValues) -> PythonValues:
        shape = shape_of(op.source.type)
        dims = tuple(1 + int(d) for d in op.dims.get_values())
        x = ranked(args[0], 1 + len(shape))
        x = np.broadcast_to(x, [n if d in dims else x.shape[d] for d, n in enumerate((1, *shape))])
        return (reduce_value(self.domain, op.kind.data, x, dims, element_type(op.source.type)),)

    @impl(tile.ScanOp)
    def scan(self, interpreter: Interpreter, op: tile.ScanOp, args: PythonValues) -> PythonValues:
        shape, axis, element = shape_of(op.source.type), 1 + op.dim.data, element_type(op.source.type)
        x, init = ranked(args[0], 1 + len(shape)), np.expand_dims(ranked(args[1], len(shape)), axis)
        x = np.broadcast_to(x, [n if d == axis else x.shape[d] for d, n in enumerate((1, *shape))])
        x = combine_values(
            self.domain, op.kind.data, init, scan_value(self.domain, op.kind.data, x, axis, element), element
        )
        return x, x.take(-1, axis=axis)

    @impl(tile.DotOp)
    def dot(self, interpreter: Interpreter, op: tile.DotOp, args: PythonValues) -> PythonValues:
        return (self._contract(op, args, None if op.atom is None else op.atom.data),)

    def _contract(self, op: tile.DotOp | tile.DotAsyncOp, args: Sequence[Array], atom: str | None) -> Array:
        element = element_type(without_flight(op.acc.type))
        lhs, rhs = (self._operand(v, x, element, atom) for v, x in zip((op.lhs, op.rhs), args, strict=False))
        product = self.domain.matmul(lhs, rhs)
        return self.domain.binary("arith.addf", ranked(args[2], 3), product, element)

    @impl(tile.AccumulatorsOp)
    def accumulators(self, interpreter: Interpreter, op: tile.AccumulatorsOp, args: PythonValues) -> PythonValues:
        return args or (ranked(self.domain.constant(float("nan"), Float32Type()), 3),)

    @impl(tile.DotAsyncOp)
    def dot_async(self, interpreter: Interpreter, op: tile.DotAsyncOp, args: PythonValues) -> PythonValues:
        """Computed at once: that nothing is read too early is in the types."""
        lhs, rhs, acc, *condition = args
        counts = condition[0] if condition else np.asarray(op.scale_d_zero is None)
        zero = self.domain.constant(0, Float32Type())
        acc = np.where(counts.reshape(-1, 1, 1), ranked(acc, 3), zero)
        return (self._contract(op, (lhs, rhs, acc), "wgmma"),)

    def _operand(self, value: SSAValue, x: Array, element: Attribute, atom: str | None) -> Array:
        """An operand of a contraction as its atom takes it, in the accumulator's type, of full size in its tile."""
        x = ranked(x, 3)
        x = np.broadcast_to(x, (x.shape[0], *shape_of(value.type)))
        source = element_type(value.type)
        if not isinstance(source, AnyFloat):
            raise ExecutionError(f"contracts {source}")
        if atom == "mma" and isinstance(source, Float32Type):
            x = self.domain.unary(payload.RoundTf32Op.name, x, source)
        return self.domain.cast(x, source, element) if atom is None else self.domain.factor(x, source, element)

    @impl(scf.ForOp)
    def run_for(self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues) -> PythonValues:
        """A loop; blocks that run fewer iterations than others keep their values and write nothing any more."""
        lower, upper, step = (ranked(a, 1) for a in args[:3])
        state, outer = tuple(args[3:]), self.active
        most, count = trips(lower, upper, step)
        for i in range(most):
            running = outer & (i < count)
            self.active = np.broadcast_to(running, outer.shape)
            new = interpreter.run_ssacfg_region(op.body, (lower + i * step, *state), "for")
            state = tuple(
                self._advance(running, a, b, len(shape_of(without_flight(r.type))))
                for a, b, r in zip(state, new, op.results, strict=True)
            )
        self.active = outer
        return state

    def _advance(self, running: Array, old: Array, new: Array, rank: int) -> Array:
        if running.all():
            return new
        mask = running.reshape((-1,) + (1,) * rank)
        return np.where(mask, ranked(new, 1 + rank), ranked(old, 1 + rank))
