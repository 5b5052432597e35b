"""Builder of tensor-level ops, with which the lowerings of torch operators are written.

Every method appends ops and returns their value: `b.mul(x, b.like(x, 2))` appends a constant and a multiplication.
Elementwise methods take tensors of one shape and one element type; `unify` and `working` convert operands to that. A
method selects the float, integer or boolean op by the type of its operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from xdsl.dialects import arith, math
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import IntegerType, Signedness, UnknownLoc, f32, i1, i32, i64
from xdsl.dialects.func import FuncOp
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...errors import ShapeError, UnsupportedError
from .. import payload, tensor
from ..payload import element_type, is_float, is_float8, is_low_precision
from ..shapes.binding import Algebra, Polynomial
from ..shapes.domain import DomainAttr
from ..shapes.extents import Extent, SymbolAttr, extents_of, extents_text, tensor_of
from ..support.locations import line_text

Number = int | float | bool | SymbolAttr
"""A Python number, or a symbolic size."""

Bound = tuple[AffineExpr, int, Extent]
"""Constraint (expression, lo, hi): `lo <= expression < hi`."""

UINT8, UINT16, UINT32, UINT64 = (IntegerType(width, Signedness.UNSIGNED) for width in (8, 16, 32, 64))
UNSIGNED: dict[Attribute, Attribute] = {UINT8: i32, UINT16: i32, UINT32: i64, UINT64: i64}
"""PyTorch's unsigned integer types -> type in which they are computed. Like bf16 they are storage types. A uint64 is
computed on the bits of its i64, so only operators that treat both alike support it (`BITS_ONLY` in `scalars.py`)."""


def work_type(element: Attribute) -> Attribute:
    """Returns the type in which values stored as `element` are computed: f32 for f16 and bf16, i32 for u8."""
    return f32 if is_low_precision(element) else UNSIGNED.get(element, element)


@dataclass(eq=False)
class Builder:
    """Collects the ops that replace one torch op.

    result_types: types that the torch op declares.
    location: source location of new ops.
    algebra: symbolic sizes of the program.
    asserts: name of the operator in assertions about its indices, or None to build no assertions.
    ops: collected ops.
    functions: collected scans with the function of their step.
    """

    result_types: Sequence[Attribute] = ()
    location: Attribute | None = None
    algebra: Algebra = field(default_factory=Algebra)
    asserts: str | None = None
    ops: list[Operation] = field(default_factory=list[Operation], init=False)
    functions: list[tuple[tensor.ScanOp, FuncOp]] = field(
        default_factory=list[tuple[tensor.ScanOp, FuncOp]], init=False
    )

    def insert(self, op: Operation) -> SSAValue:
        """Appends an op and returns its first result."""
        if self.location is not None and isinstance(op.location, UnknownLoc):
            op.location = self.location  # pyright: ignore[reportAttributeAccessIssue]
        self.ops.append(op)
        return op.results[0]

    def unsupported(self, argument: str, reason: str) -> UnsupportedError:
        """Returns the error for an unsupported argument; the driver adds the operator and the location."""
        return UnsupportedError(reason, argument=argument)

    @property
    def result_element(self) -> Attribute:
        return element_type(self.result_types[0])

    @property
    def result_shape(self) -> tuple[Extent, ...]:
        return extents_of(self.result_types[0])

    def count(self, extents: Iterable[Extent]) -> Extent:
        """Returns the number of elements of a shape."""
        return self.algebra.extent(self.algebra.product(extents))

    # Types

    def constant(self, value: Number, shape: Sequence[Extent] | None, element: Attribute) -> SSAValue:
        """Returns a constant tensor, or a scalar.

        Args:
            value: its value.
            shape: its shape, or None for a scalar.
            element: its element type.
        """
        stored = i64 if isinstance(value, SymbolAttr) else f32 if is_float8(element) else element
        type = stored if shape is None else tensor_of(stored, shape)
        if isinstance(value, SymbolAttr):
            return self.cast(self.insert(payload.ExtentOp(value, type)), element)
        number = value if is_float(stored) else wrapped_number(value, stored)
        return self.cast(self.insert(payload.ConstantOp(number, type)), element)

    def measured(self, value: Polynomial, shape: Sequence[Extent], element: Attribute) -> SSAValue:
        """Returns a tensor that holds a polynomial of sizes, computed in i64.

        Args:
            value: the polynomial.
            shape: shape of the tensor.
            element: element type of the result.
        """
        if value.number is not None:
            return self.constant(value.number, shape, element)
        if (name := self.algebra.named(value)) is not None:
            return self.constant(name, shape, element)
        return self._sum_of_sizes(value, shape, element)

    def _sum_of_sizes(self, value: Polynomial, shape: Sequence[Extent], element: Attribute) -> SSAValue:
        total: SSAValue | None = None
        for symbols, coefficient in self.algebra.terms(value):
            term = self.constant(coefficient, shape, i64)
            for s in symbols:
                term = self.mul(term, self.constant(s, shape, i64))
            total = term if total is None else self.add(total, term)
        assert total is not None, "a polynomial that is no number has terms"
        return self.cast(total, element)

    def like(self, x: SSAValue, value: Number) -> SSAValue:
        """Returns a constant tensor with the shape and element type of `x`."""
        return self.constant(value, extents_of(x.type), element_type(x.type))

    def cast(self, x: SSAValue, element: Attribute) -> SSAValue:
        """Returns `x` converted as by PyTorch's `to(dtype)`; `x` itself if it already has that element type."""
        source = element_type(x.type)
        if source == element:
            return x
        if f32 not in (source, element) and (is_float8(source) or is_float8(element)):
            # float8 converts to and from f32 only.
            x = self.insert(payload.CastOp(x, f32))
        return self.insert(payload.CastOp(x, element))

    def working(self, x: SSAValue) -> SSAValue:
        """Returns `x` converted to the type in which it is computed."""
        return self.cast(x, work_type(element_type(x.type)))

    def floating(self, x: SSAValue) -> SSAValue:
        """Returns `x` converted to a float type to compute in: integers become f32."""
        x = x if element_type(x.type) == UINT64 else self.working(x)
        return x if is_float(x.type) else self.cast(x, f32)

    def operand(self, value: SSAValue | Number, element: Attribute, shape: Sequence[Extent]) -> SSAValue:
        """Returns a tensor or number as a tensor of the given element type and shape.

        Args:
            value: tensor or number.
            element: element type.
            shape: shape to broadcast to.
        """
        if not isinstance(value, SSAValue):
            return self.constant(value, shape, element)
        return self.broadcast(self.cast(value, element), shape)

    def unify(self, *values: SSAValue | Number, element: Attribute | None = None) -> list[SSAValue]:
        """Returns all values broadcast to one shape and promoted to one element type, in the type to compute in.

        A number is rounded to the type to compute in, not to the element type: next to bf16 tensors 0.1 is an f32
        (see `scalars.py`).

        Args:
            values: tensors and numbers.
            element: element type; by default the element type of the torch op's result.
        """
        element = self.result_element if element is None else element
        shape = broadcast_shape([extents_of(v.type) for v in values if isinstance(v, SSAValue)])
        return [
            self.working(self.operand(v, element, shape))
            if isinstance(v, SSAValue | SymbolAttr)
            else self.constant(wrapped_number(v, element), shape, work_type(element))
            for v in values
        ]

    # Elementwise operations

    def _pick(
        self, x: SSAValue, float_op: type | None, int_op: type | None, bool_op: type | None
    ) -> Callable[..., Operation]:
        """Returns the op class for the element type of `x`. Raises UnsupportedError if there is none."""
        element = element_type(x.type)
        chosen = float_op if is_float(element) else bool_op if element == i1 else int_op
        if chosen is None or is_float8(element):
            raise UnsupportedError(f"no such operation on {element}")
        return chosen

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(self._pick(x, arith.AddfOp, arith.AddiOp, arith.OrIOp)(x, y))

    def sub(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(self._pick(x, arith.SubfOp, arith.SubiOp, None)(x, y))

    def mul(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(self._pick(x, arith.MulfOp, arith.MuliOp, arith.AndIOp)(x, y))

    def div(self, x: SSAValue, y: SSAValue, *, permit: FastMathFlag | None = None) -> SSAValue:
        """Returns the quotient; integers truncate.

        Args:
            x: dividend.
            y: divisor.
            permit: fast-math flag of a float division, or None.
        """
        if permit is not None:
            return self.insert(arith.DivfOp(x, y, FastMathFlagsAttr((permit,))))
        return self.insert(self._pick(x, arith.DivfOp, arith.DivSIOp, None)(x, y))

    def floordiv(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(arith.FloorDivSIOp(x, y))

    def rem(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(self._pick(x, payload.FmodOp, arith.RemSIOp, None)(x, y))

    def neg(self, x: SSAValue) -> SSAValue:
        return self.insert(arith.NegfOp(x)) if is_float(x.type) else self.sub(self.like(x, 0), x)

    def abs(self, x: SSAValue) -> SSAValue:
        return self.insert(self._pick(x, math.AbsFOp, math.AbsIOp, None)(x))

    def maximum(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Returns the larger value, or NaN if either is NaN."""
        return self.insert(self._pick(x, arith.MaximumfOp, arith.MaxSIOp, arith.OrIOp)(x, y))

    def minimum(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """Returns the smaller value, or NaN if either is NaN."""
        return self.insert(self._pick(x, arith.MinimumfOp, arith.MinSIOp, arith.AndIOp)(x, y))

    def math(self, op: type, *operands: SSAValue) -> SSAValue:
        """Returns the result of an op of the math dialect, or of another elementwise op that takes only operands."""
        return self.insert(op(*operands))

    def exp(self, x: SSAValue) -> SSAValue:
        return self.insert(math.ExpOp(x))

    def log(self, x: SSAValue) -> SSAValue:
        return self.insert(math.LogOp(x))

    def sqrt(self, x: SSAValue) -> SSAValue:
        return self.insert(math.SqrtOp(x))

    def rsqrt(self, x: SSAValue) -> SSAValue:
        return self.insert(math.RsqrtOp(x))

    def scaled(self, x: SSAValue, factor: Number, *, permit: FastMathFlag | None = None) -> SSAValue:
        """Returns `x * factor`, or `x` for the factor 1.

        Args:
            x: a tensor.
            factor: a number.
            permit: fast-math flag of the multiplication, or None.
        """
        if permit is not None:
            return self.insert(arith.MulfOp(x, self.like(x, factor), FastMathFlagsAttr((permit,))))
        return x if factor == 1 else self.mul(x, self.like(x, factor))

    def plus(self, x: SSAValue, value: Number) -> SSAValue:
        return self.add(x, self.like(x, value))

    def sigmoid(self, x: SSAValue) -> SSAValue:
        one = self.like(x, 1)
        return self.div(one, self.add(one, self.exp(self.neg(x))))

    # Truth values

    def cmp(self, predicate: str, x: SSAValue, y: SSAValue | Number) -> SSAValue:
        """Returns the comparison of `x` with a tensor or a number.

        Args:
            predicate: eq, ne, lt, le, gt or ge.
            x: left operand.
            y: right operand.
        """
        return self.insert(payload.CmpOp(predicate, x, y if isinstance(y, SSAValue) else self.like(x, y)))

    def select(self, cond: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(payload.SelectOp(cond, x, y))

    def truth(self, x: SSAValue) -> SSAValue:
        """Returns `x != 0`, which is true for NaN."""
        return x if element_type(x.type) == i1 else self.cmp("ne", self.working(x), 0)

    def both(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(arith.AndIOp(x, y))

    def either(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.insert(arith.OrIOp(x, y))

    def negated(self, x: SSAValue) -> SSAValue:
        return self.insert(arith.XOrIOp(x, self.like(x, True)))

    def isnan(self, x: SSAValue) -> SSAValue:
        return self.cmp("ne", x, x)

    def index(self, x: SSAValue, extent: Extent, *, wraps: bool = False) -> SSAValue:
        """Returns the integers `x`, with an assertion that they are legal indices if the program is checked.

        Args:
            x: indices.
            extent: exclusive upper bound of an index.
            wraps: whether negative indices down to -`extent` are legal.
        """
        if self.asserts is None or 0 in extents_of(x.type):
            return x
        end = self.like(x, extent)
        start = self.like(x, 0)
        if wraps:
            start = self.like(x, -extent) if isinstance(extent, int) else self.sub(start, end)
        legal = self.both(self.cmp("ge", x, start), self.cmp("lt", x, end))
        place = line_text(self.location) if self.location is not None else None
        least = f"-{extent}" if wraps else "0"
        return self.insert(
            payload.AssertOp(x, legal, f"{self.asserts}: an index is outside [{least}, {extent})", place)
        )

    # Views and reductions

    def map(
        self,
        x: SSAValue,
        results: Sequence[AffineExpr],
        shape: Sequence[Extent],
        bounds: Sequence[Bound] = (),
        fill: Number = 0,
    ) -> SSAValue:
        """Returns a view: element `d` is `x[results(d)]`, or `fill` if a bound does not hold.

        Args:
            x: the source.
            results: coordinates in `x`, as expressions of the view's dimensions.
            shape: shape of the view.
            bounds: constraints.
            fill: value where a constraint does not hold.
        """
        map = AffineMap(len(shape), 0, tuple(results))
        if not bounds and tuple(shape) == extents_of(x.type) and map == AffineMap.identity(len(shape)):
            return x
        domain = _domain(bounds, len(shape)) if bounds else None
        value = self.constant(fill, None, element_type(x.type)) if bounds else None
        return self.insert(tensor.IndexMapOp(x, map, shape, domain, value))

    def broadcast(self, x: SSAValue, shape: Sequence[Extent]) -> SSAValue:
        """Returns `x` repeated along its dimensions of size 1 and along new leading dimensions."""
        x_shape = extents_of(x.type)
        if x_shape == tuple(shape):
            return x
        if len(x_shape) > len(shape):
            raise ShapeError(f"cannot broadcast {extents_text(x_shape)} to {extents_text(shape)}")
        return self.place(x, range(len(shape) - len(x_shape), len(shape)), shape)

    def place(self, x: SSAValue, at: Sequence[int], shape: Sequence[Extent]) -> SSAValue:
        """Returns `x` repeated along new dimensions, and along its dimensions of size 1.

        Args:
            x: a tensor.
            at: dimension of the result for each dimension of `x`.
            shape: shape of the result.
        """
        x_shape, zero = extents_of(x.type), AffineExpr.constant(0)
        if any(n not in (1, shape[d]) for n, d in zip(x_shape, at, strict=True)):
            raise ShapeError(f"cannot broadcast {extents_text(x_shape)} to {extents_text(shape)}")
        exprs = [AffineExpr.dimension(d) if n == shape[d] else zero for n, d in zip(x_shape, at, strict=True)]
        return self.map(x, exprs, shape)

    def reduce(self, kind: str, x: SSAValue, over: Sequence[int]) -> SSAValue:
        """Returns the reduction of `x`, or `x` itself if `over` is empty. The sum of booleans is their "or".

        Args:
            kind: reduction kind.
            x: a tensor.
            over: dimensions to reduce.
        """
        kind = "or" if kind == "add" and element_type(x.type) == i1 else kind
        return self.insert(tensor.ReduceOp(kind, x, over)) if over else x

    def scan(self, kind: str, x: SSAValue, dim: int) -> SSAValue:
        """Returns the inclusive scan of `x`, or `x` itself if it is a scalar.

        Args:
            kind: reduction kind.
            x: a tensor.
            dim: dimension to scan along.
        """
        return self.insert(tensor.PrefixScanOp(kind, x, dim)) if extents_of(x.type) else x

    def keep(self, x: SSAValue, over: Sequence[int], shape: Sequence[Extent]) -> SSAValue:
        """Returns the result of a reduction repeated along the reduced dimensions.

        Args:
            x: the result.
            over: reduced dimensions.
            shape: shape before the reduction.
        """
        return self.place(x, [d for d in range(len(shape)) if d not in over], shape)

    def iota(self, dim: int, shape: Sequence[Extent], element: Attribute = i64) -> SSAValue:
        """Returns the index along one dimension.

        Args:
            dim: the dimension.
            shape: shape of the tensor.
            element: element type.
        """
        return self.insert(tensor.IotaOp(dim, tensor_of(element, shape)))


def _domain(bounds: Sequence[Bound], rank: int) -> DomainAttr:
    within = AffineMap(rank, 0, tuple(expr for expr, _, _ in bounds))
    return DomainAttr.get(within, [(lo, hi) for _, lo, hi in bounds])


def dims(rank: int) -> list[AffineExpr]:
    return [AffineExpr.dimension(i) for i in range(rank)]


def broadcast_shape(shapes: Sequence[Sequence[Extent]]) -> tuple[Extent, ...]:
    """Returns the shape that all `shapes` broadcast to. Raises ShapeError if there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Extent] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if n != 1 and result[i] not in (1, n):
                raise ShapeError(f"shapes {', '.join(map(extents_text, shapes))} do not broadcast")
            result[i] = n if n != 1 else result[i]
    return tuple(result)


def normal_dim(dim: int, rank: int) -> int:
    """Returns `dim` as a number that is not negative. A tensor of rank 0 counts as one of rank 1, as in PyTorch."""
    size = max(rank, 1)
    if not -size <= dim < size:
        raise ShapeError(f"expected a dimension of a tensor of rank {rank}, but got {dim}")
    return dim % size


def normal_dims(over: Sequence[int] | int | None, rank: int, *, empty_is_all: bool = True) -> list[int]:
    """Returns dimensions to reduce over, in ascending order.

    Args:
        over: a dimension, a list of them, or None for all.
        rank: rank of the tensor.
        empty_is_all: whether an empty list means all dimensions.
    """
    if over is None or (empty_is_all and not isinstance(over, int) and not over):
        return list(range(rank))
    dims = [normal_dim(d, rank) for d in ([over] if isinstance(over, int) else over)]
    if len(set(dims)) != len(dims):
        raise ShapeError(f"expected distinct dimensions, but got {list(dims)}")
    return sorted(dims) if rank else []


def width_of(element: Attribute) -> int:
    """Returns the bits of an integer type, or 0 for any other type."""
    return element.bitwidth if isinstance(element, IntegerType) else 0


def wrapped_number(value: float, element: Attribute) -> float:
    """Returns `value` as a number of type `element`: modulo 2^width for an integer, unchanged for a float or a
    boolean."""
    width = width_of(element)
    if width <= 1:
        return value
    if not isfinite(value):
        raise UnsupportedError(f"expected a finite number for {element}, but got {value}")
    bits = int(value) & ((1 << width) - 1)
    return bits - (1 << width) if element not in UNSIGNED and bits >> (width - 1) else bits
