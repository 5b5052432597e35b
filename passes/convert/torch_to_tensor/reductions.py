"""Reductions over any dimensions: sums, extremes, moments, positions; and cumulative operators, which are scans."""

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
from ....errors import ShapeError
from .registry import decomposes
from .views import reshape_to

Dims = Sequence[int] | int | None


def reduced(b: Builder, kind: str, x: SSAValue, over: Sequence[int], keepdim: bool) -> SSAValue:
    """Returns `x` reduced over `over`, which stay as dimensions of size 1 with `keepdim`."""
    return kept(b, b.reduce(kind, x, over), extents_of(x.type), over, keepdim)


def kept(b: Builder, x: SSAValue, shape: Sequence[Extent], over: Sequence[int], keepdim: bool) -> SSAValue:
    """Returns the result `x` of a reduction of a tensor of `shape`, with `keepdim` the reduced dimensions as size 1."""
    if not keepdim or not shape:
        return x
    exprs = [
        AffineExpr.dimension(d) if n != 1 else AffineExpr.constant(0) for d, n in enumerate(shape) if d not in over
    ]
    return b.map(x, exprs, [1 if d in over else n for d, n in enumerate(shape)])


def count(b: Builder, x: SSAValue, over: Sequence[int]) -> Polynomial:
    """Returns how many elements of `x` are reduced to one."""
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
    """The mean of floats over some dimensions; NaN over nothing."""
    total = b.reduce("add", x, over)
    result = b.div(total, b.measured(count(b, x, over), extents_of(total.type), element_type(total.type)))
    return kept(b, result, extents_of(x.type), over, keepdim)


def extreme(b: Builder, kind: str, x: SSAValue, over: Sequence[int], keepdim: bool = False) -> SSAValue:
    """Returns the largest or smallest element, NaN if there is one. Raises ShapeError over an empty dimension."""
    if 0 in [extents_of(x.type)[d] for d in over]:
        raise ShapeError(f"no {kind} over an empty dimension", argument="dim")
    return reduced(b, kind, b.working(x), over, keepdim)


def _extreme(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, kind: str = "") -> list[SSAValue]:
    """The extreme, and where it is if the overload says so."""
    over = _dims(self, dim)
    value = extreme(b, kind, self, over, keepdim)
    return [value] if len(b.result_types) == 1 else [value, position(b, kind, self, over, keepdim)]


def position(b: Builder, kind: str, self: SSAValue, over: Sequence[int], keepdim: bool) -> SSAValue:
    """Where along its one reduced dimension the extreme is: the first of equal ones, the first NaN if there is one."""
    x = b.working(self)
    shape = extents_of(x.type)
    if not over:
        return b.constant(0, (), i64)
    hit = b.cmp("eq", x, b.keep(extreme(b, kind, x, over), over, shape))
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))  # with a NaN the extreme is NaN, which equals nothing
    index = b.iota(over[0], shape)
    found = b.reduce("min", b.select(hit, index, b.like(index, shape[over[0]])), over)
    return kept(b, found, shape, over, keepdim)


def _arg(b: Builder, self: SSAValue, dim: int | None, keepdim: bool, kind: str) -> SSAValue:
    shape = extents_of(self.type)
    if dim is not None:
        return position(b, kind, self, _dims(self, dim), keepdim)
    found = position(b, kind, reshape_to(b, self, [prod(shape)]), [0], False)
    return kept(b, found, shape, range(len(shape)), keepdim)


for _kind in ("max", "min"):
    decomposes(f"a{_kind}", _kind, f"{_kind}.dim")(partial(_extreme, kind=_kind))
    decomposes(f"arg{_kind}")(partial(_arg, kind=_kind))


def _of_truths(b: Builder, self: SSAValue, dim: Dims = None, keepdim: bool = False, kind: str = "") -> SSAValue:
    return reduced(b, kind, b.truth(self), _dims(self, dim), keepdim)


for _name, _kind in (("any", "or"), ("all", "and")):
    decomposes(_name, f"{_name}.dim", f"{_name}.dims")(partial(_of_truths, kind=_kind))


def moments(b: Builder, x: SSAValue, over: Sequence[int], correction: float) -> tuple[SSAValue, SSAValue]:
    """Variance and mean of floats over some dimensions. Two passes: no difference of large squares."""
    shape = extents_of(x.type)
    mean = mean_over(b, x, over)
    centred = b.sub(x, b.keep(mean, over, shape))
    total = b.reduce("add", b.mul(centred, centred), over)
    n = count(b, x, over)
    if n.number is not None:
        return b.div(total, b.like(total, float(n.number - correction) if n.number > correction else 0.0)), mean
    known = b.measured(n, extents_of(total.type), element_type(total.type))
    return b.div(total, b.maximum(b.plus(known, -float(correction)), b.like(total, 0))), mean


@decomposes("var.correction", "var_mean.correction")
def var(b: Builder, self: SSAValue, dim: Dims, correction: float | None, keepdim: bool) -> list[SSAValue]:
    over = _dims(self, dim)
    found = moments(b, b.working(self), over, 1 if correction is None else correction)
    return [kept(b, v, extents_of(self.type), over, keepdim) for v in found]


def _scanned(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None, kind: ReductionKind) -> SSAValue:
    return b.scan(kind, b.cast(self, work_type(b.result_element)), normal_dim(dim, len(extents_of(self.type))))


decomposes("cumsum")(partial(_scanned, kind=ReductionKind.ADD))
decomposes("cumprod")(partial(_scanned, kind=ReductionKind.MUL))


def _extreme_so_far(b: Builder, self: SSAValue, dim: int, kind: ReductionKind) -> list[SSAValue]:
    """Returns the extreme value so far and its position: of equal values the last one, and the last NaN before all
    numbers."""
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
