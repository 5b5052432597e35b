"""Reductions (sums, extremes and their positions, variance), and cumulative operators, which are scans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.binding import Polynomial
from ....dialects.shapes.extents import Extent, extents_of, most
from ....dialects.tensor import ReductionKind
from ....dialects.tensor.builder import Builder, normal_dim, normal_dims, work_type
from ....dialects.tensor.views import reshape_to
from ....errors import ShapeError
from .registry import decomposes

Dims = Sequence[int] | int | None


def reduced(b: Builder, kind: str, x: SSAValue, over: Sequence[int], keepdim: bool) -> SSAValue:
    """Returns a reduction of `x`.

    Args:
        b: Builder of the operator.
        kind: Reduction kind, such as "add".
        x: Tensor.
        over: Dimensions to reduce.
        keepdim: True to keep the reduced dimensions with size 1.
    """
    return keep_dims(b, b.reduce(kind, x, over), extents_of(x.type), over, keepdim)


def keep_dims(b: Builder, x: SSAValue, shape: Sequence[Extent], over: Sequence[int], keepdim: bool) -> SSAValue:
    """Returns the result of a reduction, with the reduced dimensions as size 1 if `keepdim` is true.

    Args:
        b: Builder of the operator.
        x: Result of the reduction, without the reduced dimensions.
        shape: Shape of the tensor that was reduced.
        over: Reduced dimensions.
        keepdim: False to return `x` as it is.
    """
    if not keepdim or not shape:
        return x
    exprs = [
        AffineExpr.dimension(d) if n != 1 else AffineExpr.constant(0) for d, n in enumerate(shape) if d not in over
    ]
    return b.map(x, exprs, [1 if d in over else n for d, n in enumerate(shape)])


def count(b: Builder, x: SSAValue, over: Sequence[int]) -> Polynomial:
    """Returns the number of elements that a reduction of `x` over the dimensions `over` combines.

    Args:
        b: Builder of the operator.
        x: Tensor.
        over: Dimensions to reduce.
    """
    return b.algebra.product(extents_of(x.type)[d] for d in over)


def _dims(x: SSAValue, dim: Dims) -> list[int]:
    return normal_dims(dim, len(extents_of(x.type)))


def _total(
    b: Builder, self: SSAValue, dtype: Attribute | None, dim: Dims = None, keepdim: bool = False, kind: str = ""
) -> SSAValue:
    x = b.cast(self if dtype is None else b.cast(self, dtype), work_type(b.result_element))
    return reduced(b, kind, x, _dims(x, dim), keepdim)


decomposes("sum", "sum.dim_IntList")(partial(_total, kind="add"))
decomposes("prod", "prod.dim_int")(partial(_total, kind="mul"))


@decomposes("mean", "mean.dim")
def mean(b: Builder, self: SSAValue, dtype: Attribute | None, dim: Dims = None, keepdim: bool = False) -> SSAValue:
    x = b.cast(self, work_type(b.result_element))
    return mean_over(b, x, _dims(x, dim), keepdim)


def mean_over(b: Builder, x: SSAValue, over: Sequence[int], keepdim: bool = False) -> SSAValue:
    """Returns the mean of floats; NaN if there are no elements.

    Args:
        b: Builder of the operator.
        x: Tensor of floats.
        over: Dimensions to reduce.
        keepdim: True to keep them with size 1.
    """
    total = b.reduce("add", x, over)
    result = b.div(total, b.measured(count(b, x, over), extents_of(total.type), element_type(total.type)))
    return keep_dims(b, result, extents_of(x.type), over, keepdim)


def extreme(b: Builder, kind: str, x: SSAValue, over: Sequence[int], keepdim: bool = False) -> SSAValue:
    """Returns the largest or smallest element, or NaN if any element is NaN.

    Args:
        b: Builder of the operator.
        kind: "max" or "min".
        x: Tensor.
        over: Dimensions to reduce.
        keepdim: True to keep them with size 1.

    Raises:
        ShapeError: If a dimension is empty.
    """
    if 0 in [extents_of(x.type)[d] for d in over]:
        raise ShapeError(f"expected one or more elements for {kind}, but a reduced dimension is empty", argument="dim")
    return reduced(b, kind, b.working(x), over, keepdim)


def _extreme(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, kind: str = "") -> list[SSAValue]:
    """Returns the extreme, and its position if the overload has two results."""
    over = _dims(self, dim)
    value = extreme(b, kind, self, over, keepdim)
    return [value] if len(b.result_types) == 1 else [value, position(b, kind, self, over, keepdim)]


def position(b: Builder, kind: str, self: SSAValue, over: Sequence[int], keepdim: bool) -> SSAValue:
    """Returns the index of the extreme along one dimension, as i64: the first NaN, or the first of equal extremes.

    Args:
        b: Builder of the operator.
        kind: "max" or "min".
        self: Tensor.
        over: The reduced dimension, or none for a scalar tensor.
        keepdim: True to keep it with size 1.
    """
    x = b.working(self)
    shape = extents_of(x.type)
    if not over:
        return b.constant(0, (), i64)
    hit = b.cmp("eq", x, b.keep(extreme(b, kind, x, over), over, shape))
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))  # With a NaN the extreme is NaN, which equals no element.
    index = b.iota(over[0], shape)
    position_of_hit = b.reduce("min", b.select(hit, index, b.like(index, shape[over[0]])), over)
    return keep_dims(b, position_of_hit, shape, over, keepdim)


def _arg(b: Builder, self: SSAValue, dim: int | None, keepdim: bool, kind: str) -> SSAValue:
    shape = extents_of(self.type)
    if dim is not None:
        return position(b, kind, self, _dims(self, dim), keepdim)
    flat_position = position(b, kind, reshape_to(b, self, [prod(shape)]), [0], False)
    return keep_dims(b, flat_position, shape, range(len(shape)), keepdim)


for _kind in ("max", "min"):
    decomposes(f"a{_kind}", _kind, f"{_kind}.dim")(partial(_extreme, kind=_kind))
    decomposes(f"arg{_kind}")(partial(_arg, kind=_kind))


def _of_truths(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, kind: str = "") -> SSAValue:
    return reduced(b, kind, b.truth(self), _dims(self, dim), keepdim)


for _name, _kind in (("any", "or"), ("all", "and")):
    decomposes(_name, f"{_name}.dim", f"{_name}.dims")(partial(_of_truths, kind=_kind))


def moments(b: Builder, x: SSAValue, over: Sequence[int], correction: float) -> tuple[SSAValue, SSAValue]:
    """Returns the variance and the mean of floats. The variance is the mean of squared differences, which is more
    precise than a difference of squares.

    Args:
        b: Builder of the operator.
        x: Tensor of floats.
        over: Dimensions to reduce.
        correction: Number that is subtracted from the element count in the divisor.
    """
    shape = extents_of(x.type)
    mean = mean_over(b, x, over)
    centred = b.sub(x, b.keep(mean, over, shape))
    total = b.reduce("add", b.mul(centred, centred), over)
    n = count(b, x, over)
    if n.number is not None:
        return b.div(total, b.like(total, float(n.number - correction) if n.number > correction else 0.0)), mean
    count_values = b.measured(n, extents_of(total.type), element_type(total.type))
    return b.div(total, b.maximum(b.plus(count_values, -float(correction)), b.like(total, 0))), mean


@decomposes("var.correction", "var_mean.correction")
def var(b: Builder, self: SSAValue, dim: Dims, correction: float | None, keepdim: bool) -> list[SSAValue]:
    over = _dims(self, dim)
    results = moments(b, b.working(self), over, 1 if correction is None else correction)
    return [keep_dims(b, v, extents_of(self.type), over, keepdim) for v in results]


def _scanned(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None, kind: ReductionKind) -> SSAValue:
    return b.scan(kind, b.cast(self, work_type(b.result_element)), normal_dim(dim, len(extents_of(self.type))))


decomposes("cumsum")(partial(_scanned, kind=ReductionKind.ADD))
decomposes("cumprod")(partial(_scanned, kind=ReductionKind.MUL))


def _extreme_so_far(b: Builder, self: SSAValue, dim: int, kind: ReductionKind) -> list[SSAValue]:
    """Returns the extreme of the elements so far, and its index as i64: that of the last NaN, or the last equal
    extreme."""
    x = b.working(self)
    rank = len(extents_of(x.type))
    if not rank:
        return [x, b.constant(0, [], i64)]
    dim = normal_dim(dim, rank)
    best = b.cast(b.scan(kind, x, dim), element_type(self.type))
    # An element that equals the extreme of all elements up to it sets the position until the next one does.
    hit = b.cmp("eq", x, b.working(best))
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))
    shape = extents_of(x.type)
    position = b.iota(dim, shape, i32 if most(shape[dim]) < 1 << 31 else i64)
    return [best, b.cast(b.scan(ReductionKind.MAX, b.select(hit, position, b.like(position, 0)), dim), i64)]


for _kind in (ReductionKind.MAX, ReductionKind.MIN):
    decomposes(f"cum{_kind.value}")(partial(_extreme_so_far, kind=_kind))


@decomposes("logcumsumexp")
def logcumsumexp(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    x = b.floating(self)
    return b.scan(ReductionKind.LOGADDEXP, x, normal_dim(dim, len(extents_of(x.type))))
