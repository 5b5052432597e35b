"""Interpreter of the tile dialect. It executes all thread blocks of a grid at once: the first array axis is the block.

Inside a kernel a value has the shape [blocks, *tile], with size 1 along the axes that it does not depend on. Layouts
are ignored, because they only assign elements to threads. An element of a result that no block writes is an error, and
so is one that is written twice with different values.

`active` is the mask of the blocks that execute the current op. Blocks that have left a loop are inactive until the
others have left it, too.
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
from .payload import print_elements


@dataclass(eq=False)
class Ring:
    """State of a circular buffer (`tile.ring`) through which a producer warp passes groups of tiles to consumer warps.

    The interpreter executes the producer to its end, and then the consumers. The numbers of groups show whether the
    real, concurrent execution would deadlock.

    Fields:
        slots: capacity in groups.
        puts: all groups in order. Each is stored with the number of groups that the producer had put into every ring of
            the kernel when this group was complete.
        taken: number of groups that the consumers have read.
        released: number of groups whose slots the consumers have given back.
    """

    slots: int
    puts: list[tuple[tuple[Array, ...], list[int]]] = field(default_factory=list)
    taken: int = 0
    released: int = 0

    def put(self, tiles: tuple[Array, ...], rings: Sequence[Ring]) -> None:
        """Appends a group of tiles. `rings` are all rings of the kernel."""
        self.puts.append((tiles, [len(r.puts) + (r is self) for r in rings]))

    def take(self, rings: Sequence[Ring]) -> tuple[Array, ...]:
        """Returns the next group.

        Raises:
            ExecutionError: if the block deadlocks: the group is never put, or the producer needs a slot to get there
                that is only released later.
        """
        if self.taken == len(self.puts):
            raise ExecutionError("deadlock: takes more from a ring than is put into it")
        tiles, counts = self.puts[self.taken]
        for other, count in zip(rings, counts, strict=True):
            if count > other.slots + other.released:
                raise ExecutionError(f"deadlock: none of {other.slots} slots is released")
        self.taken += 1
        return tiles

    def release(self, pending: int, nothing: Sequence[Array]) -> None:
        """Releases the slot of the oldest group that is in use.

        Args:
            pending: number of taken groups that stay in use. They must be the newest ones.
            nothing: value for each tile of the group, which a wrong later use would read (NaN).

        Raises:
            ExecutionError: if the group was not taken, or an older group is not released yet.
        """
        if self.released + pending >= self.taken:
            raise ExecutionError("releases a slot of a ring that it did not take")
        if self.released + pending + 1 != self.taken:
            raise ExecutionError("releases a group of a ring before an older one")
        for array, value in zip(self.puts[self.released][0], nothing, strict=True):
            array[...] = value
        self.released += 1

    def check_empty(self) -> None:
        """Raises ExecutionError if a group was put and not taken, or taken and not released."""
        if not len(self.puts) == self.taken == self.released:
            raise ExecutionError("leaves groups in a ring that were put and not taken, or taken and not released")


@dataclass
class Row:
    """State of a row cache (`tile.row_buffer`), in which each block keeps the tiles of a row.

    The position of a tile in the row is its `place`.

    Fields:
        data: tiles, as [blocks, places, *tile].
        full: mask of the places that hold a tile, as [blocks, places].
    """

    data: Array
    full: Array

    @staticmethod
    def create(places: int, blocks: int, shape: Sequence[int], dtype: Any) -> Row:
        return Row(np.zeros((blocks, places, *shape), dtype), np.zeros((blocks, places), np.bool_))

    def store(self, value: Array, place: Array, active: Array) -> None:
        """Stores a tile of each active block.

        Args:
            value: tile of each block.
            place: place of the tile of each block.
            active: mask of the blocks that store.
        """
        blocks, places = self._address(place, active)
        value = np.broadcast_to(value, (len(active), *self.data.shape[2:]))
        self.data[blocks, places], self.full[blocks, places] = value[blocks], True

    def load(self, place: Array, active: Array) -> Array:
        """Returns the tile in the place `place` of each active block.

        Raises:
            ExecutionError: if a place holds no tile.
        """
        blocks, places = self._address(place, active)
        if not self.full[blocks, places].all():
            missing = int(places[np.argmin(self.full[blocks, places])])
            raise ExecutionError(f"reads place {missing} of a row before a tile is stored there")
        tiles = np.zeros((len(active), *self.data.shape[2:]), self.data.dtype)
        tiles[blocks] = self.data[blocks, places]
        return tiles

    def _address(self, place: Array, active: Array) -> tuple[Array, Array]:
        """Returns the numbers of the active blocks and the place of each. Raises ExecutionError for a wrong place."""
        blocks = np.flatnonzero(active)
        places = np.broadcast_to(place, active.shape)[blocks]
        count = self.full.shape[1]
        wrong = places[(places < 0) | (places >= count)]
        if wrong.size:
            raise ExecutionError(f"expected a place of a row in 0..{count - 1}, but got {int(wrong[0])}")
        return blocks, places


MAX_ELEMENTS = 1 << 24
"""Largest number of elements of a value. A grid with larger values is executed in groups of blocks."""


@dataclass
class Buffer:
    """Result tensor in global memory, with the mask of the elements that were written."""

    data: Array
    written: Array


EXCHANGES = (tile.ClusterAllGatherOp, tile.ClusterReduceScatterOp)
"""Ops in which the blocks of a cluster exchange tiles."""


def trips(lower: Array, upper: Array, step: Array) -> tuple[int, Array]:
    """Returns the largest trip count of a loop over all blocks, and the trip count of each block.

    Args:
        lower: lower bound of each block.
        upper: exclusive upper bound of each block.
        step: step of each block, which must be positive.
    """
    if np.any(step <= 0):
        raise ExecutionError(f"expected a positive loop step, but got {int(np.min(step))}")
    count = np.maximum(0, -((lower - upper) // step))
    return int(np.max(count, initial=0)), count


@register_impls
class TileFunctions(ScfFunctions):
    """Ops of the tile dialect, and `scf.for` inside of kernels.

    Args:
        domain: scalar domain.
        sizes: values of the symbols of the program.
    """

    def __init__(self, domain: TypedDomain, sizes: Sizes | None = None) -> None:
        self.domain = domain
        self.sizes = sizes or Sizes()
        self.active = np.ones(1, np.bool_)
        self.rings: list[Ring] = []

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        yield from super()._impls()
        # These ops move a tile to other memory or threads, or wait for it. Its elements do not change.
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
            # A `Ring` holds the state of one block, so blocks are executed one by one. Blocks of a cluster that
            # exchange tiles run the same iterations and share it.
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
        """Returns the indices of a tile, the values of symbols, and the mask of active blocks.

        All of them broadcast to the shape [blocks, *tile].

        Args:
            op: unused.
            tile_of: SSA value of the tile.
            symbols: SSA values of the symbols of a map.
            values: arrays of the symbols.
        """
        shape = shape_of(tile_of.type)
        dims = [np.arange(n).reshape((1, n) + (1,) * (len(shape) - 1 - d)) for d, n in enumerate(shape)]
        symbol_values: list[Array] = []
        for s, v in zip(symbols, values, strict=True):
            v = ranked(v, 1 + len(shape_of(s.type)))
            symbol_values.append(v if shape_of(s.type) else v.reshape((-1,) + (1,) * len(shape)))
        return dims, symbol_values, self.active.reshape((-1,) + (1,) * len(shape))

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
        """Returns the copied tile. Where the predicate is false it is NaN, so that a use of it changes the result."""
        element, count = element_type(op.result.type), len(op.symbols)
        dims, symbols, active = self._space(op, op.result, op.symbols, args[1 : 1 + count])
        copied = active if op.predicate is None else active & ranked(args[-1], 1).reshape((-1,) + (1,) * len(dims))
        mask = inside(self.sizes.domain(op.domain), dims, symbols) & copied
        fill = np.where(copied, self.domain.constant(0, element), self.domain.constant(float("nan"), element))
        return (ranked(fetch(args[0], op.map.data, dims, symbols, mask, fill), 1 + len(dims)),)

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
    def row_store(self, interpreter: Interpreter, op: tile.RowBufferStoreOp, args: PythonValues) -> PythonValues:
        args[1].store(args[0], args[2], self.active)
        return ()

    @impl(tile.RowBufferLoadOp)
    def row_load(self, interpreter: Interpreter, op: tile.RowBufferLoadOp, args: PythonValues) -> PythonValues:
        return (args[0].load(args[1], self.active),)

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
        """Groups the tiles of all blocks by cluster.

        Args:
            value: tile of each block.
            tile_of: SSA value of the tile.
            ranks: number of blocks of a cluster.

        Returns:
            An array of the shape [clusters, ranks, *tile].

        Raises:
            ExecutionError: if some blocks of a cluster are inactive, for which the others would wait forever.
        """
        clusters, shape = self.active.reshape(-1, ranks), shape_of(tile_of.type)
        if np.any(clusters != clusters[:, :1]):
            raise ExecutionError("deadlock: not all blocks of a cluster execute the exchange")
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
        offsets = np.ravel_multi_index(where, buffer.data.shape) if value.size else np.zeros(0, np.int64)
        scatter_into(self.domain, op.kind.data, buffer.data.reshape(-1), offsets, value, element_type(op.value.type))
        return ()

    def _elements(
        self, op: tile.StoreOp | tile.AtomicRmwOp | tile.TmaStoreOp, args: PythonValues
    ) -> tuple[Buffer, Array, tuple[Array, ...]]:
        """Returns the destination buffer of a store, the stored elements as a list, and their coordinates.

        Elements of inactive blocks and outside of the domain are left out.
        """
        value, buffer = args[0], args[1]
        if not isinstance(buffer, Buffer):
            raise ExecutionError("expected a result buffer as the destination, but got an input")
        dims, symbols, active = self._space(op, op.value, op.symbols, args[2:])
        if isinstance(op, tile.TmaStoreOp):
            mask = active & within(op.map.data, buffer.data.shape, dims, symbols)
        else:
            mask = active & inside(self.sizes.domain(op.domain), dims, symbols)
        where = coordinates(op.map.data, buffer.data.shape, dims, symbols, mask)
        shape = (len(self.active), *shape_of(op.value.type))
        mask = np.broadcast_to(mask, shape)
        value = np.broadcast_to(ranked(value, len(shape)), shape)[mask]
        return buffer, value, tuple(np.broadcast_to(c, shape)[mask] for c in where)

    def _write(self, op: tile.StoreOp | tile.TmaStoreOp, args: PythonValues) -> PythonValues:
        """Writes the elements of a tile to a result.

        Raises:
            ExecutionError: if an element is written twice with different values.
        """
        buffer, value, where = self._elements(op, args)
        data, written = buffer.data, buffer.written
        # NumPy does not index an array of rank 0 by lists of coordinates.
        if not where:
            data, written, where = data.reshape(1), written.reshape(1), (np.zeros(len(value), np.int64),)
        old = written[where] & ~self.domain.same(data[where], value)
        data[where] = value
        written[where] = True
        wrong = np.atleast_1d(old | ~self.domain.same(data[where], value))
        if wrong.any():
            at = tuple(int(np.atleast_1d(w)[int(np.argmax(wrong))]) for w in where)
            raise ExecutionError(f"element {at} is written twice, with different values")
        return ()

    @impl(tile.PrintOp)
    def print_tile(self, interpreter: Interpreter, op: tile.PrintOp, args: PythonValues) -> PythonValues:
        rank, count = len(shape_of(op.value.type)), len(op.indices)
        value, *indices = (ranked(a, 1 + rank) for a in args[: 1 + count])
        mask = self.active.reshape((-1,) + (1,) * rank)
        if op.mask is not None:
            mask = mask & ranked(args[1 + count], 1 + rank)
        whole = np.broadcast_to(value, (len(self.active), *shape_of(op.value.type)))
        print_elements(op, whole, indices, mask, self.domain)
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
        """Computes the dot immediately. The types of the IR ensure that nothing reads the result too early."""
        lhs, rhs, acc, *condition = args
        counts = condition[0] if condition else np.asarray(op.scale_d_zero is None)
        zero = self.domain.constant(0, Float32Type())
        acc = np.where(counts.reshape(-1, 1, 1), ranked(acc, 3), zero)
        return (self._contract(op, (lhs, rhs, acc), "wgmma"),)

    def _operand(self, value: SSAValue, x: Array, element: Attribute, atom: str | None) -> Array:
        """Returns an operand of a dot, rounded as its atom does, as an array of full size in the accumulator type.

        Args:
            value: SSA value of the operand.
            x: tiles of the operand.
            element: element type of the accumulator.
            atom: tensor core instruction; None for a dot of scalar instructions.
        """
        x = ranked(x, 3)
        x = np.broadcast_to(x, (x.shape[0], *shape_of(value.type)))
        source = element_type(value.type)
        if not isinstance(source, AnyFloat):
            raise ExecutionError(f"expected a float operand of a dot, but got {source}")
        if atom == "mma" and isinstance(source, Float32Type):
            x = self.domain.unary(payload.RoundTf32Op.name, x, source)
        return self.domain.cast(x, source, element) if atom is None else self.domain.dot_operand(x, source, element)

    @impl(scf.ForOp)
    def run_for(self, interpreter: Interpreter, op: scf.ForOp, args: PythonValues) -> PythonValues:
        """Executes a loop for all blocks. A block with fewer iterations than others then keeps its values inactive."""
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
