"""Interpreter of the payload, which is the scalar arithmetic of all levels (`arith`, `math` and `payload` ops).

A product that is only used by a sum is not computed (`Product`). The sum is executed as a matrix multiplication, which
needs far less memory than all products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.interpreter import Interpreter, InterpreterFunctions, OpImplResult, PythonValues, impl, register_impls
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop, payload, tensor
from ...dialects.payload import element_type, is_float
from ...dialects.payload.prints import PrintingOp
from ...dialects.shapes.binding import Sizes
from ...dialects.support.locations import location_text
from ...dialects.tensor import ReductionKind
from ...errors import ExecutionError
from .domains import BINARY, INTEGER, UNARY, Array, TypedDomain, ranked


@dataclass(frozen=True)
class Product:
    """Elementwise product that is not computed yet, because its only use is a sum.

    Fields:
        factors: the multiplied values.
        element: element type of the product.
    """

    factors: tuple[Array, ...]
    element: Attribute

    def compute(self, domain: TypedDomain) -> Array:
        result = self.factors[0]
        for factor in self.factors[1:]:
            result = domain.binary("arith.mulf", result, factor, self.element)
        return result


def compact(x: Array) -> Array:
    """Returns `x` with size 1 along the axes that broadcasting created, which have the stride 0."""
    x = np.asarray(x)
    if 0 in x.shape or 0 not in x.strides:
        return x
    return x[tuple(slice(0, 1) if s == 0 else slice(None) for s in x.strides)]


def _merge(domain: TypedDomain, product: Product, rank: int) -> tuple[Array, Array | None]:
    """Multiplies factors until at most two are left. Returns them, with None for a missing second one.

    Broadcasting may make a product larger than its operands. In each step the pair with the smallest growth is
    multiplied.
    """
    factors = [ranked(compact(f), rank) for f in product.factors]
    while len(factors) > 2:
        pairs = [(i, j) for i in range(len(factors)) for j in range(i)]

        def growth(pair: tuple[int, int]) -> float:
            a, b = factors[pair[0]], factors[pair[1]]
            return prod(np.broadcast_shapes(a.shape, b.shape)) - max(a.size, b.size)

        i, j = min(pairs, key=growth)
        merged = domain.binary("arith.mulf", factors[j], factors[i], product.element)
        factors = [f for n, f in enumerate(factors) if n not in (i, j)] + [merged]
    return factors[0], factors[1] if len(factors) == 2 else None


def sum_of_product(domain: TypedDomain, product: Product, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """Returns the sum of a product over `axes`, which the result does not have.

    Args:
        domain: scalar domain.
        product: product of values that broadcast to `shape`.
        shape: extents of all axes.
        axes: numbers of the summed axes.
    """
    rank, element = len(shape), product.element
    a, b = _merge(domain, product, rank)
    if b is None:
        full = tuple(n if d in axes else a.shape[d] for d, n in enumerate(shape))
        return domain.reduce(ReductionKind.ADD, np.broadcast_to(a, full), tuple(axes), element)
    in_a = [a.shape[d] != 1 for d in range(rank)]
    in_b = [b.shape[d] != 1 for d in range(rank)]
    summed = [d for d in axes if in_a[d] and in_b[d]]
    times = prod(shape[d] for d in axes if not in_a[d] and not in_b[d])
    a = _presum(domain, a, [d for d in axes if in_a[d] and not in_b[d]], element)
    b = _presum(domain, b, [d for d in axes if in_b[d] and not in_a[d]], element)
    free = [d for d in range(rank) if d not in axes]
    if not summed:
        result = domain.binary("arith.mulf", a, b, element)
        result = result.reshape([result.shape[d] for d in free])
    else:
        result = _matmul(domain, a, b, free, summed, element)
    if times == 1:
        return result
    return domain.binary("arith.mulf", result, domain.constant(float(times), element), element)


def _presum(domain: TypedDomain, x: Array, axes: list[int], element: Attribute) -> Array:
    if not axes:
        return x
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    return domain.reduce(ReductionKind.ADD, x, tuple(axes), element).reshape(shape)


def _matmul(domain: TypedDomain, a: Array, b: Array, free: list[int], summed: list[int], element: Attribute) -> Array:
    """Returns the sum of `a * b` over the axes `summed`, as a batched matrix product.

    Args:
        domain: scalar domain.
        a: left factor, which depends on all axes in `summed`.
        b: right factor, which also does.
        free: numbers of the axes of the result. Axes of size 1 keep this size.
        summed: numbers of the summed axes.
        element: element type of the product.
    """
    batch = [d for d in free if a.shape[d] != 1 and b.shape[d] != 1]
    rows = [d for d in free if a.shape[d] != 1 and b.shape[d] == 1]
    columns = [d for d in free if a.shape[d] == 1 and b.shape[d] != 1]
    single = [d for d in free if a.shape[d] == 1 and b.shape[d] == 1]

    def size(x: Array, dims: list[int]) -> int:
        return prod(x.shape[d] for d in dims)

    # Sums over the axes that only one factor has were taken before (`_presum`); they have size 1 in both factors.
    presummed = [d for d in range(a.ndim) if d not in free and d not in summed]
    lhs = a.transpose(batch + rows + summed + columns + single + presummed)
    lhs = lhs.reshape(size(a, batch), size(a, rows), size(a, summed))
    rhs = b.transpose(batch + summed + columns + rows + single + presummed)
    rhs = rhs.reshape(size(b, batch), size(b, summed), size(b, columns))
    order = batch + rows + columns + single
    shape = [b.shape[d] if d in columns else a.shape[d] for d in order]
    result = domain.matmul(lhs, rhs).reshape(shape)
    return result.transpose([order.index(d) for d in free])


def feeds_only_a_sum(value: SSAValue) -> bool:
    """Returns true if the only use of `value` is a sum, or a multiplication whose result feeds only a sum."""
    use = next(iter(value.uses), None)
    if use is None or len(tuple(value.uses)) != 1:
        return False
    user = use.operation
    if isinstance(user, arith.MulfOp):
        return feeds_only_a_sum(user.result)
    if isinstance(user, loop.YieldOp):
        parent = user.parent_op()
        return isinstance(parent, loop.ReduceOp) and parent.kind.data == ReductionKind.ADD
    return isinstance(user, tensor.ReduceOp) and user.kind.data == ReductionKind.ADD


def stop(op: payload.AssertOp, value: Any, wrong: Any) -> None:
    """Raises ExecutionError for a failed assertion, with the first wrong integer.

    Args:
        op: the assertion.
        value: integers that it checks.
        wrong: mask of the integers for which it fails.
    """
    value, wrong = np.broadcast_arrays(value, wrong)
    operator, _, reason = op.message.data.rpartition(": ")
    place = location_text(op) or (op.place and op.place.data)
    raise ExecutionError(f"{reason}: {int(value[wrong][0])}", operator=operator, location=place)


def print_elements(op: PrintingOp, value: Any, indices: Sequence[Any], mask: Any, domain: TypedDomain) -> None:
    """Prints a line for each element of a value, in row-major order. The exact domain has no values to print.

    Args:
        op: the operation that prints.
        value: the elements.
        indices: array for each printed index.
        mask: elements that are printed.
        domain: domain of the elements.
    """
    if not domain.has_values:
        return
    value, mask, *indices = np.broadcast_arrays(value, mask, *indices)
    number = "{:.9g}" if is_float(op.value.type) else "{:d}"
    for element, *at in zip(value[mask], *(i[mask] for i in indices), strict=True):
        shown = number.format(float(element) if is_float(op.value.type) else int(element))
        print(f"{op.label.data}[{', '.join(str(int(i)) for i in at)}] = {shown}")


def _by_table(self: PayloadFunctions, interpreter: Interpreter, op: Operation, args: PythonValues) -> Any:
    if op.name in INTEGER:
        return OpImplResult((np.asarray(INTEGER[op.name](*args)),), None)
    compute: Any = self.domain.unary if op.name in UNARY else self.domain.binary
    return OpImplResult((compute(op.name, *args, element_type(op.results[0].type)),), None)


@register_impls
class PayloadFunctions(InterpreterFunctions):
    """Ops of the dialects `arith`, `math` and `payload`.

    Args:
        domain: scalar domain.
        sizes: values of the symbols of the program.
        fail: called for a failed assertion with the op, the integers it checks and the mask of the wrong ones.
    """

    def __init__(
        self, domain: TypedDomain, sizes: Sizes | None = None, fail: Callable[[payload.AssertOp, Any, Any], None] = stop
    ) -> None:
        self.domain = domain
        self.sizes = sizes or Sizes()
        self.fail = fail

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        yield from super()._impls()
        for op in (*arith.Arith.operations, *math.Math.operations, *payload.Payload.operations):
            if op is not arith.MulfOp and op.name in {*UNARY, *BINARY, *INTEGER}:
                yield op, _by_table

    @impl(arith.MulfOp)
    def mulf(self, interpreter: Interpreter, op: arith.MulfOp, args: PythonValues) -> PythonValues:
        element = element_type(op.result.type)
        a, b = args
        if isinstance(a, Product) or isinstance(b, Product) or feeds_only_a_sum(op.result):
            factors = [f for x in (a, b) for f in (x.factors if isinstance(x, Product) else (x,))]
            return (Product(tuple(factors), element),)
        return (self.domain.binary(op.name, a, b, element),)

    @impl(math.FmaOp)
    def fma(self, interpreter: Interpreter, op: math.FmaOp, args: PythonValues) -> PythonValues:
        a, b, c = args
        return (self.domain.fused(a, b, c, element_type(op.result.type)),)

    @impl(arith.ConstantOp)
    def constant(self, interpreter: Interpreter, op: arith.ConstantOp, args: PythonValues) -> PythonValues:
        value, element = op.value, element_type(op.result.type)
        if isinstance(value, FloatAttr | IntegerAttr):
            return (self.domain.constant(value.value.data, element),)
        if isinstance(value, DenseIntOrFPElementsAttr):
            numbers = np.asarray(value.get_values()).reshape(value.get_shape())
            return (self.domain.encode(numbers.astype(TypedDomain().dtype(element)), element),)
        raise ExecutionError("a constant that is not a number", operator=op.name)

    @impl(payload.ConstantOp)
    def payload_constant(self, interpreter: Interpreter, op: payload.ConstantOp, args: PythonValues) -> PythonValues:
        return (self.domain.constant(op.scalar, element_type(op.result.type)),)

    @impl(payload.ExtentOp)
    def extent(self, interpreter: Interpreter, op: payload.ExtentOp, args: PythonValues) -> PythonValues:
        return (self.domain.constant(self.sizes.number(op.symbol), element_type(op.result.type)),)

    @impl(payload.CmpOp)
    def cmp(self, interpreter: Interpreter, op: payload.CmpOp, args: PythonValues) -> PythonValues:
        domain = self.domain if isinstance(element_type(op.lhs.type), AnyFloat) else TypedDomain()
        return (domain.compare(op.predicate.data.value, args[0], args[1]),)

    @impl(payload.SelectOp)
    def select(self, interpreter: Interpreter, op: payload.SelectOp, args: PythonValues) -> PythonValues:
        return (np.where(*args),)

    @impl(payload.AssertOp)
    def assert_(self, interpreter: Interpreter, op: payload.AssertOp, args: PythonValues) -> PythonValues:
        wrong = ~np.asarray(args[1], bool)
        if wrong.any():
            self.fail(op, args[0], wrong)
        return (args[0],)

    @impl(payload.CastOp)
    def cast(self, interpreter: Interpreter, op: payload.CastOp, args: PythonValues) -> PythonValues:
        source, target = element_type(op.operand.type), element_type(op.result.type)
        floats = isinstance(source, AnyFloat) or isinstance(target, AnyFloat)
        return ((self.domain if floats else TypedDomain()).cast(args[0], source, target),)

    @impl(arith.BitcastOp)
    def bitcast(self, interpreter: Interpreter, op: arith.BitcastOp, args: PythonValues) -> PythonValues:
        if type(self.domain) is not TypedDomain:
            raise ExecutionError(
                f"expected the typed domain for a bitcast, but got {self.domain.name}", operator=op.name
            )
        return (np.asarray(args[0]).view(self.domain.dtype(element_type(op.result.type))),)

    @impl(payload.CombineBf16x3Op)
    def join(self, interpreter: Interpreter, op: payload.CombineBf16x3Op, args: PythonValues) -> PythonValues:
        element = element_type(op.result.type)
        small = self.domain.binary("arith.addf", args[2], args[1], element)
        return (self.domain.binary("arith.addf", small, args[0], element),)
