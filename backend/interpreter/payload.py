"""The payload, executed: the same functions at all levels, over any scalar domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.interpreter import Interpreter, InterpreterFunctions, OpImplResult, PythonValues, impl, register_impls
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, payload, tensor
from ...dialects.payload import element_type
from ...dialects.shapes.binding import Sizes
from ...dialects.support.locations import location_text
from ...dialects.tensor import ReductionKind
from ...errors import ExecutionError
from .contraction import Product
from .domains import BINARY, INTEGER, UNARY, TypedDomain


def feeds_only_a_sum(value: SSAValue) -> bool:
    """Whether `value` is used once, by a reduction that adds, possibly through further products."""
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
    """Raise ExecutionError for an assertion that fails where `wrong` holds, with the first integer there."""
    value, wrong = np.broadcast_arrays(value, wrong)
    operator, _, reason = op.message.data.rpartition(": ")
    place = location_text(op) or (op.place and op.place.data)
    raise ExecutionError(f"{reason}: {int(value[wrong][0])}", operator=operator, location=place)


def _by_table(self: PayloadFunctions, interpreter: Interpreter, op: Operation, args: PythonValues) -> Any:
    """An operation that is a function of a table."""
    if op.name in INTEGER:
        return OpImplResult((np.asarray(INTEGER[op.name](*args)),), None)
    compute: Any = self.domain.unary if op.name in UNARY else self.domain.binary
    return OpImplResult((compute(op.name, *args, element_type(op.results[0].type)),), None)


@register_impls
class PayloadFunctions(InterpreterFunctions):
    """`arith`, `math` and `payload` on values of a scalar domain."""

    def __init__(
        self, domain: TypedDomain, sizes: Sizes | None = None, fail: Callable[[payload.AssertOp, Any, Any], None] = stop
    ) -> None:
        """`fail` is told of an assertion, its integers, and where it does not hold."""
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
            raise ExecutionError("numbers that are not stored in a type have no bits", operator=op.name)
        return (np.asarray(args[0]).view(self.domain.dtype(element_type(op.result.type))),)

    @impl(payload.CombineBf16x3Op)
    def join(self, interpreter: Interpreter, op: payload.CombineBf16x3Op, args: PythonValues) -> PythonValues:
        element = element_type(op.result.type)
        small = self.domain.binary("arith.addf", args[2], args[1], element)
        return (self.domain.binary("arith.addf", small, args[0], element),)
