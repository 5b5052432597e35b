"""Interpreter of the loop dialect: each loop index is an array axis, so a nest is a few NumPy operations.

The last axes belong to the free indices of the nest. A reduction adds axes before them. For example, the values in the
body of a matmul `c[i, j] = sum_k a[i, k] * b[k, j]` have the axes [k, i, j]. NumPy broadcasting then lets the body use
values from outside of the reduction unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.arith import MulfOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.payload import element_type
from ...dialects.shapes.binding import Sizes
from ...dialects.tensor import identity
from .affine_access import Axis, coordinates, read
from .domains import Array, TypedDomain, combine_values, ranked, reduce_value, scan_value
from .payload import Product, feeds_only_a_sum, sum_of_product
from .tensor import full

MAX_ELEMENTS = 1 << 25
"""Largest number of elements of an intermediate array. A reduction that needs more is executed in pieces."""


@register_impls
class LoopFunctions(InterpreterFunctions):
    """Ops of the loop dialect.

    Args:
        domain: scalar domain.
        chunk: iterations per chunk of a staged reduction. The partial results are merged by its rescaling, as in a
            kernel. None computes each stage over its whole range.
        sizes: values of the symbols of the program.

    State during execution:
        axes: array axis of each loop index.
        shape: extents of the axes of the current reductions and of the nest.
        sizes: result of `reduction_sizes` for the current nest.
        range: iterations of the current chunk of a staged reduction, or None outside of one.
    """

    def __init__(self, domain: TypedDomain, chunk: int | None = None, sizes: Sizes | None = None) -> None:
        self.domain = domain
        self.symbols = sizes or Sizes()
        self.chunk = chunk
        self.axes: dict[SSAValue, Axis] = {}
        self.shape: tuple[int, ...] = ()
        self.sizes: dict[Operation, int] = {}
        self.range: tuple[int, int] | None = None

    @impl(loop.NestOp)
    def nest(self, interpreter: Interpreter, op: loop.NestOp, args: PythonValues) -> PythonValues:
        shape = self.symbols.numbers(op.sizes)
        # Without iterations the body must not be executed, because its loads could be out of bounds.
        if 0 in shape:
            types = [r.type for r in op.results]
            return tuple(np.zeros(self.symbols.shape(t), self.domain.dtype(element_type(t))) for t in types)
        self.shape = shape
        self.sizes = reduction_sizes(op, self.symbols)
        values = self._enter(op.body.block.args, [(0, n) for n in shape], 0)
        results = interpreter.run_ssacfg_region(op.body, values, "nest")
        return tuple(self._scatter(op, np.broadcast_to(_computed(self.domain, r), shape)) for r in results)

    def _scatter(self, op: loop.NestOp, value: Array) -> Array:
        """Returns the result tensor of a nest from the values of its iterations.

        Without a result map both are equal. For example, the result map `(i, j) -> (2 * i + j)` flattens two indices.
        """
        if op.result_map is None:
            return value
        shape = self.symbols.shape(op.results[0].type)
        extents = self.symbols.numbers(op.sizes)
        dims = [Axis(len(extents) - 1 - d, 0, n).values() for d, n in enumerate(extents)]
        out = np.zeros(shape, value.dtype)
        if value.size:
            places = coordinates(op.result_map.data, shape, dims, (), np.asarray(True))
            out[tuple(np.broadcast_arrays(*places))] = value
        return out

    def _enter(self, args: Sequence[SSAValue], ranges: Sequence[tuple[int, int]], inner: int) -> tuple[Array, ...]:
        """Adds an axis for each loop index in `args`, before `inner` existing axes. Returns the index values."""
        for d, (arg, (lo, hi)) in enumerate(zip(args, ranges, strict=True)):
            self.axes[arg] = Axis(inner + len(args) - 1 - d, lo, hi - lo)
        return tuple(self.axes[arg].values() for arg in args)

    @impl(loop.ReduceOp)
    def reduce(self, interpreter: Interpreter, op: loop.ReduceOp, args: PythonValues) -> PythonValues:
        """Executes all iterations at once, or in pieces if the intermediate arrays would be too large."""
        shape = self.symbols.numbers(op.sizes)
        ranges = [(0, n) for n in shape]
        element = op.result.type
        if 0 in shape:
            return (self.domain.constant(identity(op.kind.data, element), element),)
        if self.range is not None and isinstance(op.parent_op(), loop.StagedReduceOp):
            ranges[0] = self.range
        pieces = min(math.ceil(self.sizes.get(op, 1) / MAX_ELEMENTS), ranges[0][1] - ranges[0][0]) if ranges else 1
        if pieces <= 1:
            return (self._reduce_range(interpreter, op, ranges),)
        result = self.domain.constant(identity(op.kind.data, element), element)
        lo, hi = ranges[0]
        step = math.ceil((hi - lo) / pieces)
        for start in range(lo, hi, step):
            part = self._reduce_range(interpreter, op, [(start, min(start + step, hi)), *ranges[1:]])
            result = combine_values(self.domain, op.kind.data, result, part, element)
        return (result,)

    def _reduce_range(self, interpreter: Interpreter, op: loop.ReduceOp, ranges: Sequence[tuple[int, int]]) -> Array:
        outer = self.shape
        # A chunk restricts the index of the stage itself, not reductions nested in it.
        staged, self.range = self.range, None
        values = self._enter(op.body.block.args, ranges, len(outer))
        self.shape = tuple(hi - lo for lo, hi in ranges) + outer
        (x,) = interpreter.run_ssacfg_region(op.body, values, "reduce")
        shape, self.shape, self.range = self.shape, outer, staged
        axes = tuple(range(len(ranges)))
        if isinstance(x, Product):
            return sum_of_product(self.domain, x, shape, axes)
        x = ranked(x, len(shape))
        x = np.broadcast_to(x, shape[: len(ranges)] + x.shape[len(ranges) :])
        return reduce_value(self.domain, op.kind.data, x, axes, element_type(op.result.type))

    @impl(loop.ScanOp)
    def scan(self, interpreter: Interpreter, op: loop.ScanOp, args: PythonValues) -> PythonValues:
        axis = len(self.shape) - 1 - self.axes[op.index].position
        x = ranked(args[0], len(self.shape))
        x = np.broadcast_to(x, [n if d == axis else x.shape[d] for d, n in enumerate(self.shape)])
        return (scan_value(self.domain, op.kind.data, x, axis, op.source.type),)

    @impl(loop.StagedReduceOp)
    def staged(self, interpreter: Interpreter, op: loop.StagedReduceOp, args: PythonValues) -> PythonValues:
        extent = self.symbols.number(op.stage_ops[0].sizes[0]) if op.stage_ops else 0
        if self.chunk is None or extent <= self.chunk:
            return interpreter.run_ssacfg_region(op.stages, (), "stages")
        merged: PythonValues = ()
        for start in range(0, extent, self.chunk):
            outer, self.range = self.range, (start, min(start + self.chunk, extent))
            part = interpreter.run_ssacfg_region(op.stages, (), "stages")
            self.range = outer
            merged = self._merge(interpreter, op, merged, part) if merged else part
        return merged

    def _merge(
        self, interpreter: Interpreter, op: loop.StagedReduceOp, a: PythonValues, b: PythonValues
    ) -> PythonValues:
        """Merges the partial results `a` and `b` of two chunks.

        For each stage, in order, it rescales both partial results to the merged results of the earlier stages and
        combines them. For online softmax the first stage merges the maxima, and the second one rescales both sums to
        the merged maximum.
        """
        merged = [self.domain.constant(identity(r.kind.data, r.result.type), r.result.type) for r in op.stage_ops]
        for i, stage in enumerate(op.stage_ops):
            old, new = (interpreter.run_ssacfg_region(op.rescale, (*x, *merged), "rescaling")[i] for x in (a, b))
            merged[i] = combine_values(self.domain, stage.kind.data, old, new, stage.result.type)
        return tuple(merged)

    @impl(loop.LoadOp)
    def load(self, interpreter: Interpreter, op: loop.LoadOp, args: PythonValues) -> PythonValues:
        axes = [self.axes[i] for i in op.indices]
        first = 1 + len(axes)
        symbols = [np.asarray(s) for s in args[first : first + len(op.symbols)]]
        fill = args[-1] if op.fill is not None else None
        names = [f"%{i.name_hint}" if i.name_hint else f"d{n}" for n, i in enumerate(op.indices)]
        source, domain = full(args[0], op.source, self.symbols), self.symbols.domain(op.domain)
        return (read(source, op.map.data, axes, symbols, domain, fill, names),)

    @impl(loop.ReshapeOp)
    def reshape(self, interpreter: Interpreter, op: loop.ReshapeOp, args: PythonValues) -> PythonValues:
        return (full(args[0], op.source, self.symbols).reshape(self.symbols.shape(op.result.type)),)

    @impl_terminator(loop.YieldOp)
    def yield_(
        self, interpreter: Interpreter, op: loop.YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()


def _computed(domain: TypedDomain, x: Array | Product) -> Array:
    return x.compute(domain) if isinstance(x, Product) else x


def reduction_sizes(nest: loop.NestOp, symbols: Sizes) -> dict[Operation, int]:
    """Estimates the memory that each reduction of a nest needs if all its iterations are executed at once.

    A nested reduction counts as one iteration, because it may be executed in pieces itself.

    Returns:
        The number of elements of the largest array in the body, by reduction.
    """
    loops = [nest, *(op for op in nest.body.walk() if isinstance(op, loop.ReduceOp))]
    extents = {a: n for op in loops for a, n in zip(op.body.block.args, symbols.numbers(op.sizes), strict=True)}
    depends: dict[SSAValue, set[SSAValue]] = {a: {a} for a in extents}
    sizes: dict[Operation, int] = {}
    for op in nest.body.walk(region_first=True):
        inside = {a for inner in op.walk() for region in inner.regions for a in region.block.args}
        used = (o for inner in op.walk() for o in inner.operands)
        indices = set[SSAValue]().union(*(depends.get(o, ()) for o in used)) - inside
        depends.update(dict.fromkeys(op.results, indices))
        size, ancestor = math.prod(extents[a] for a in indices), op.parent_op()
        # A product that is only summed never becomes an array (`payload.Product`), and neither does its yield.
        products = op.results or op.operands
        summed = all(isinstance(p.owner, MulfOp) and feeds_only_a_sum(p) for p in products)
        while ancestor is not None and not summed:
            if isinstance(ancestor, loop.ReduceOp):
                sizes[ancestor] = max(sizes.get(ancestor, 0), size)
                size //= math.prod(max(extents[a], 1) for a in ancestor.body.block.args if a in indices)
            ancestor = ancestor.parent_op()
    return sizes
