"""Interpreter of the tensor dialect."""

from __future__ import annotations

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import SSAValue

from ...dialects import tensor
from ...dialects.payload import element_type
from ...dialects.shapes.binding import Sizes
from .affine_access import Axis, evaluate, fetch, read, within
from .domains import Array, TypedDomain, ranked, reduce_value, scan_value, scatter_into
from .payload import Product, compact, sum_of_product


def full(x: Array, value: SSAValue, sizes: Sizes) -> Array:
    """Returns the array of a value, broadcast to the full shape of its type (a view).

    Args:
        x: array, of size 1 along some indices.
        value: SSA value of the array.
        sizes: values of the symbols in its type.
    """
    return np.broadcast_to(x, sizes.shape(value.type))


def tensor_axes(shape: tuple[int, ...]) -> list[Axis]:
    """Returns an axis for each dimension of a tensor."""
    return [Axis(len(shape) - 1 - d, 0, n) for d, n in enumerate(shape)]


@register_impls
class TensorFunctions(InterpreterFunctions):
    """Ops of the tensor dialect.

    A contraction is a multiplication and a `tensor.reduce`. The multiplication returns a `Product`, and `reduce`
    computes it as a matrix multiplication.
    """

    def __init__(self, domain: TypedDomain, sizes: Sizes | None = None) -> None:
        self.domain = domain
        self.sizes = sizes or Sizes()

    @impl(tensor.IndexMapOp)
    def index_map(self, interpreter: Interpreter, op: tensor.IndexMapOp, args: PythonValues) -> PythonValues:
        source, *fill = args
        domain = self.sizes.domain(op.domain)
        axes = tensor_axes(self.sizes.shape(op.result.type))
        return (read(full(source, op.source, self.sizes), op.map.data, axes, (), domain, fill[0] if fill else None),)

    @impl(tensor.GatherOp)
    def gather(self, interpreter: Interpreter, op: tensor.GatherOp, args: PythonValues) -> PythonValues:
        source = full(args[0], op.source, self.sizes)
        symbols = [np.asarray(a).astype(np.int64) for a in args[1:]]
        dims = [axis.values() for axis in tensor_axes(self.sizes.shape(op.result.type))]
        mask = within(op.map.data, source.shape, dims, symbols)
        zero = self.domain.constant(0, element_type(op.source.type))
        return (fetch(source, op.map.data, dims, symbols, mask, zero),)

    @impl(tensor.ScatterOp)
    def scatter(self, interpreter: Interpreter, op: tensor.ScatterOp, args: PythonValues) -> PythonValues:
        result = np.array(full(args[0], op.init, self.sizes))
        values, *indices = (full(a, v, self.sizes) for a, v in zip(args[1:], op.operands[1:], strict=True))
        dims = [axis.values() for axis in tensor_axes(values.shape)]
        at = [np.broadcast_to(evaluate(e, dims, indices), values.shape) for e in op.map.data.results]
        inside = np.broadcast_to(within(op.map.data, result.shape, dims, indices), values.shape)
        offsets = np.ravel_multi_index([c[inside] for c in at], result.shape) if inside.any() else np.zeros(0, np.int64)
        scatter_into(
            self.domain, op.kind.data, result.reshape(-1), offsets, values[inside], element_type(op.result.type)
        )
        return (result,)

    @impl(tensor.ReduceOp)
    def reduce(self, interpreter: Interpreter, op: tensor.ReduceOp, args: PythonValues) -> PythonValues:
        (x,), shape = args, self.sizes.shape(op.source.type)
        dims = tuple(int(d) for d in op.dims.get_values())
        if isinstance(x, Product):
            return (sum_of_product(self.domain, x, shape, dims),)
        x = ranked(compact(x), len(shape))
        # Repeated values count in a sum: expand the reduced dimensions.
        x = np.broadcast_to(x, [n if d in dims else x.shape[d] for d, n in enumerate(shape)])
        return (reduce_value(self.domain, op.kind.data, x, dims, element_type(op.source.type)),)

    @impl(tensor.PrefixScanOp)
    def scan(self, interpreter: Interpreter, op: tensor.PrefixScanOp, args: PythonValues) -> PythonValues:
        x = full(compact(args[0]), op.source, self.sizes)
        return (scan_value(self.domain, op.kind.data, x, op.dim.value.data, element_type(op.source.type)),)

    @impl(tensor.ScanOp)
    def fold(self, interpreter: Interpreter, op: tensor.ScanOp, args: PythonValues) -> PythonValues:
        first, last = len(op.carries), len(op.carries) + len(op.each)
        carries, shared = tuple(args[:first]), tuple(args[last:])
        sequences = [full(np.asarray(a), v, self.sizes) for a, v in zip(args[first:last], op.each, strict=True)]
        histories: dict[int, list[Array]] = {i: [] for i in op.stacked}
        for t in range(op.steps):
            carries = interpreter.call_op(op.step, (*carries, *(a[t] for a in sequences), *shared))
            for i, history in histories.items():
                history.append(full(np.asarray(carries[i]), op.carries[i], self.sizes))
        return tuple(np.stack(histories[i]) if i in histories else c for i, c in enumerate(carries))

    @impl(tensor.IotaOp)
    def iota(self, interpreter: Interpreter, op: tensor.IotaOp, args: PythonValues) -> PythonValues:
        axis = tensor_axes(self.sizes.shape(op.result.type))[op.dim.value.data]
        return (axis.values().astype(self.domain.dtype(element_type(op.result.type))),)
