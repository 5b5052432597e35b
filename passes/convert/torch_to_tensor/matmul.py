"""Products of matrices: two index maps to the full index space, a multiplication, and a sum."""

from __future__ import annotations

from collections.abc import Sequence
from sys import maxunicode

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, work_type
from ....errors import ShapeError
from .registry import decomposes
from .views import permuted


def contract(
    b: Builder, x: SSAValue, x_at: Sequence[int], y: SSAValue, y_at: Sequence[int], space: Sequence[Extent], over: int
) -> SSAValue:
    """Sum of products over the last `over` dimensions of the index space `space`.

    Dimension `i` of `x` runs along dimension `x_at[i]` of the space, and is repeated if its size is 1; same for `y`.
    Both are cast to the type in which the result is computed before they are spread out.
    """
    element = work_type(b.result_element)
    spread = [_spread(b, b.cast(v, element), at, space) for v, at in ((x, x_at), (y, y_at))]
    rank = len(space)
    return b.reduce("add", b.mul(*spread), range(rank - over, rank))


def _spread(b: Builder, x: SSAValue, at: Sequence[int], space: Sequence[Extent]) -> SSAValue:
    shape = extents_of(x.type)
    for n, d in zip(shape, at, strict=True):
        if n not in (1, space[d]):
            raise ShapeError(f"a dimension of {n} elements meets one of {space[d]}")
    zero = AffineExpr.constant(0)
    exprs = [zero if n == 1 and space[d] != 1 else AffineExpr.dimension(d) for n, d in zip(shape, at, strict=True)]
    return b.map(x, exprs, space)


def product(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """`torch.matmul`: vectors, matrices, and stacks of them with broadcasting."""
    left, right = extents_of(x.type), extents_of(y.type)
    if not left or not right:
        raise ShapeError("a matrix product needs at least one dimension on both sides")
    inner = left[-1]
    if right[max(len(right) - 2, 0)] != inner:
        raise ShapeError(f"shapes {list(left)} and {list(right)} cannot be multiplied")
    batch = broadcast_shape([left[:-2], right[:-2]])
    n = len(batch)
    rows, columns = list(left[-2:-1]), list(right[-1:]) if len(right) > 1 else []
    space = [*batch, *rows, *columns, inner]
    k = len(space) - 1
    x_at = [*range(n - len(left[:-2]), n), *([n] if rows else []), k]
    y_at = [*range(n - len(right[:-2]), n), k, *([k - 1] if columns else [])]
    return contract(b, x, x_at, y, y_at, space, 1)


@decomposes("matmul", "mm", "bmm")
def matmul(b: Builder, self: SSAValue, other: SSAValue | None = None, mat2: SSAValue | None = None) -> SSAValue:
    return product(b, self, mat2 if other is None else other)  # pyright: ignore[reportArgumentType]


def times_transposed(b: Builder, x: SSAValue, weight: SSAValue) -> SSAValue:
    """x [..., k] times the transpose of weight [..., k]."""
    rows, rank = extents_of(x.type)[:-1], len(extents_of(x.type))
    space = [*rows, *extents_of(weight.type)]
    k = len(space) - 1
    return contract(b, x, [*range(rank - 1), k], weight, [*range(rank - 1, k), k], space, 1)


@decomposes("linear")
def linear(b: Builder, input: SSAValue, weight: SSAValue, bias: SSAValue | None) -> SSAValue:
    y = times_transposed(b, input, weight)
    return y if bias is None else b.add(*b.unify(y, bias, element=work_type(b.result_element)))


def _added(b: Builder, self: SSAValue, y: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    """`beta * self + alpha * y`; with beta 0 `self` is not looked at, so its NaN does not show."""
    y = b.scaled(y, alpha)
    if beta == 0:
        return y
    x, y = b.unify(self, y, element=work_type(b.result_element))
    return b.add(b.scaled(x, beta), y)


@decomposes("addmm")
def addmm(b: Builder, self: SSAValue, mat1: SSAValue, mat2: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    return _added(b, self, product(b, mat1, mat2), beta, alpha)


@decomposes("addmv")
def addmv(b: Builder, self: SSAValue, mat: SSAValue, vec: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    return _added(b, self, product(b, mat, vec), beta, alpha)


@decomposes("addbmm")
def addbmm(b: Builder, self: SSAValue, batch1: SSAValue, batch2: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    batch, rows, inner = extents_of(batch1.type)
    space = [rows, extents_of(batch2.type)[2], batch, inner]
    return _added(b, self, contract(b, batch1, [2, 0, 3], batch2, [2, 3, 1], space, 2), beta, alpha)


@decomposes("einsum")
def einsum(b: Builder, equation: str, tensors: Sequence[SSAValue], path: Sequence[int] | None) -> SSAValue:
    inputs, output = _read_equation(b, equation, [len(extents_of(t.type)) for t in tensors])
    value, labels = _sum_out(b, tensors[0], inputs[0], {*output, *"".join(inputs[1:])})
    for number, (other, other_labels) in enumerate(zip(tensors[1:], inputs[1:], strict=True), 2):
        value, labels = _contract_labels(b, value, labels, other, other_labels, {*output, *"".join(inputs[number:])})
    return permuted(b, value, [labels.index(c) for c in output])


def _read_equation(b: Builder, equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of every operand and of the result; the dimensions of an ellipsis have the last letters of Unicode."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise b.unsupported("equation", f"{len(terms)} terms for {len(ranks)} tensors")
    hidden = [rank - len(term) + 3 for term, rank in zip(terms, ranks, strict=True)]
    most = max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)
    dots = "".join(chr(maxunicode - most + i) for i in range(most))
    inputs = [term.replace("...", dots[most - n :]) for n, term in zip(hidden, terms, strict=True)]
    for labels, rank in zip(inputs, ranks, strict=True):
        if len(labels) != rank:
            raise b.unsupported("equation", f"{len(labels)} labels for a tensor of rank {rank}")
    every = "".join(inputs)
    once = sorted(c for c in set(every) - set(dots) if every.count(c) == 1)
    return inputs, right.replace("...", dots) if arrow else dots + "".join(once)


def _sum_out(b: Builder, x: SSAValue, labels: Sequence[str], needed: set[str]) -> tuple[SSAValue, list[str]]:
    """`x` with every label once (a repeated one is a diagonal), summed over those not needed."""
    sizes = dict(zip(labels, extents_of(x.type), strict=True))
    unique = [*(c for c in sizes if c in needed), *(c for c in sizes if c not in needed)]
    gone = sum(c not in needed for c in unique)
    x = b.map(x, [AffineExpr.dimension(unique.index(c)) for c in labels], [sizes[c] for c in unique])
    if gone:
        x = b.cast(x, work_type(b.result_element))
        x = b.reduce("add", x, range(len(unique) - gone, len(unique)))
    return x, unique[: len(unique) - gone]


def _contract_labels(
    b: Builder, x: SSAValue, x_labels: Sequence[str], y: SSAValue, y_labels: Sequence[str], needed: set[str]
) -> tuple[SSAValue, list[str]]:
    sizes: dict[str, Extent] = {}
    for labels, value in ((x_labels, x), (y_labels, y)):
        for c, n in zip(labels, extents_of(value.type), strict=True):
            sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]
    kept = [c for c in sizes if c in needed]
    gone = [c for c in sizes if c not in needed]
    order = [*kept, *gone]
    at = [[order.index(c) for c in labels] for labels in (x_labels, y_labels)]
    return contract(b, x, at[0], y, at[1], [sizes[c] for c in order], len(gone)), kept
