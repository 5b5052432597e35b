"""Views: everything that only renames indices is one index map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ...dialects.payload import shape_of
from ...errors import ShapeError
from .builder import Builder, dims, normal_dim, normal_dims
from .registry import decomposes


def regroup(source: Sequence[int], target: Sequence[int]) -> list[AffineExpr]:
    """Where each coordinate of a tensor of shape `source` lies in its reshape to `target`.

    Dimensions are matched in the smallest groups of equal size, so that unrelated ones stay out of each other's
    division and remainder.
    """
    zero = AffineExpr.constant(0)
    result = [zero] * len(source)
    if 0 in source:
        return result
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = min(i + 1, len(source)), min(j + 1, len(target))
        while (left := prod(source[i:i_end])) != (right := prod(target[j:j_end])):
            i_end, j_end = (i_end + 1, j_end) if left < right else (i_end, j_end + 1)
            if i_end > len(source) or j_end > len(target):
                raise ShapeError(f"cannot reshape {list(source)} to {list(target)}")
        _split_group(result, source, range(i, i_end), _linear(target, range(j, j_end)))
        i, j = i_end, j_end
    return result


def _linear(shape: Sequence[int], group: range) -> AffineExpr:
    total: AffineExpr | None = None
    for d in group:
        if shape[d] != 1:
            stride = prod(shape[d + 1 : group.stop])
            term = AffineExpr.dimension(d) if stride == 1 else AffineExpr.dimension(d) * stride
            total = term if total is None else total + term
    return AffineExpr.constant(0) if total is None else total


def _split_group(result: list[AffineExpr], source: Sequence[int], group: range, linear: AffineExpr) -> None:
    wide = [d for d in group if source[d] != 1]
    for position, d in enumerate(wide):
        stride = prod(source[e] for e in wide[position + 1 :])
        quotient = linear if stride == 1 else linear // stride
        result[d] = quotient if position == 0 else quotient % source[d]


def reshape_to(b: Builder, x: SSAValue, shape: Sequence[int]) -> SSAValue:
    """`x` with the same elements in the same order in another shape (without -1)."""
    return b.map(x, regroup(shape_of(x.type), shape), shape)


def permuted(b: Builder, x: SSAValue, order: Sequence[int]) -> SSAValue:
    """Dimension `i` of the result is dimension `order[i]` of `x`."""
    shape = shape_of(x.type)
    exprs = [AffineExpr.dimension(list(order).index(d)) for d in range(len(shape))]
    return b.map(x, exprs, [shape[d] for d in order])


def sliced(b: Builder, x: SSAValue, dim: int, start: int, size: int, step: int = 1) -> SSAValue:
    """`size` elements of `x` along `dim`, from `start` on, `step` apart (negative: backwards)."""
    shape = list(shape_of(x.type))
    exprs = dims(len(shape))
    exprs[dim] = shifted(exprs[dim] if step == 1 else exprs[dim] * step, start)
    shape[dim] = size
    return b.map(x, exprs, shape)


def shifted(expr: AffineExpr, offset: int) -> AffineExpr:
    """`expr + offset`, without adding 0."""
    return expr + offset if offset else expr


def selected(b: Builder, x: SSAValue, dim: int, index: int) -> SSAValue:
    """The slice `index` of `x` along `dim`, without that dimension."""
    shape = shape_of(x.type)
    exprs = [AffineExpr.dimension(d if d < dim else d - 1) for d in range(len(shape))]
    exprs[dim] = AffineExpr.constant(index)
    return b.map(x, exprs, [n for d, n in enumerate(shape) if d != dim])


def clamped_range(start: int | None, end: int | None, step: int, extent: int) -> tuple[int, int]:
    """First index and number of elements of Python's `start:end:step` (step > 0) on `extent` elements."""
    found = range(extent)[slice(start, end, step)]
    return found.start, len(found)


@decomposes("view", "reshape", "_unsafe_view")
def reshape(
    b: Builder, self: SSAValue, size: Sequence[int] | None = None, shape: Sequence[int] | None = None
) -> SSAValue:
    wanted = list(size if size is not None else shape or [])
    return reshape_to(b, self, completed(wanted, prod(shape_of(self.type))))


def completed(shape: Sequence[int], elements: int) -> list[int]:
    """`shape` with a -1 in it replaced by what makes up `elements`; ShapeError if nothing does."""
    found = list(shape)
    if found.count(-1) == 1:
        rest = -prod(found)
        found[found.index(-1)] = elements // rest if rest else -1
    if prod(found) != elements or any(n < 0 for n in found):
        raise ShapeError(f"{elements} elements do not make up {list(shape)}")
    return found


@decomposes("view_as", "reshape_as")
def view_as(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return reshape(b, self, size=shape_of(other.type))


@decomposes("flatten.using_ints")
def flatten(b: Builder, self: SSAValue, start_dim: int, end_dim: int) -> SSAValue:
    shape = shape_of(self.type)
    first, last = normal_dim(start_dim, len(shape)), normal_dim(end_dim, len(shape))
    if first > last:
        raise ShapeError(f"dimension {first} is after {last}", argument="end_dim")
    return reshape_to(b, self, [*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]])


@decomposes("ravel")
def ravel(b: Builder, self: SSAValue) -> SSAValue:
    return reshape_to(b, self, [prod(shape_of(self.type))])


@decomposes("unflatten.int")
def unflatten(b: Builder, self: SSAValue, dim: int, sizes: Sequence[int]) -> SSAValue:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    return reshape(b, self, size=[*shape[:dim], *completed(sizes, shape[dim]), *shape[dim + 1 :]])


@decomposes("unsqueeze")
def unsqueeze(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    shape = list(shape_of(self.type))
    shape.insert(normal_dim(dim, len(shape) + 1), 1)
    return reshape_to(b, self, shape)


@decomposes("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(b: Builder, self: SSAValue, dim: int | Sequence[int] | None = None) -> SSAValue:
    shape = shape_of(self.type)
    among = normal_dims(dim, len(shape), empty_is_all=False)
    return reshape_to(b, self, [n for d, n in enumerate(shape) if n != 1 or d not in among])


@decomposes("permute")
def permute(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    rank = len(shape_of(self.type))
    order = [normal_dim(d, rank) for d in dims]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"{list(dims)} is not a permutation of {rank} dimensions")
    return permuted(b, self, order)


@decomposes("transpose.int", "swapaxes")
def transpose(
    b: Builder,
    self: SSAValue,
    dim0: int | None = None,
    dim1: int | None = None,
    axis0: int | None = None,
    axis1: int | None = None,
) -> SSAValue:
    rank = len(shape_of(self.type))
    first = normal_dim(axis0 if dim0 is None else dim0, rank)  # pyright: ignore[reportArgumentType]
    second = normal_dim(axis1 if dim1 is None else dim1, rank)  # pyright: ignore[reportArgumentType]
    order = list(range(rank))
    if rank:
        order[first], order[second] = second, first
    return permuted(b, self, order)


@decomposes("t", "numpy_T")
def t(b: Builder, self: SSAValue) -> SSAValue:
    return permuted(b, self, range(len(shape_of(self.type)))[::-1])


@decomposes("movedim.int", "movedim.intlist")
def movedim(b: Builder, self: SSAValue, source: int | Sequence[int], destination: int | Sequence[int]) -> SSAValue:
    rank = len(shape_of(self.type))
    origin = [normal_dim(d, rank) for d in ([source] if isinstance(source, int) else source)]
    target = [normal_dim(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(d for d in range(rank) if d not in origin)
    placed = dict(zip(target, origin, strict=True))
    return permuted(b, self, [placed[d] if d in placed else next(rest) for d in range(rank)])


@decomposes("expand")
def expand(b: Builder, self: SSAValue, size: Sequence[int], implicit: bool) -> SSAValue:
    own = shape_of(self.type)
    offset = len(size) - len(own)
    return b.broadcast(self, [own[i - offset] if n == -1 and i >= offset else n for i, n in enumerate(size)])


@decomposes("expand_as")
def expand_as(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.broadcast(self, shape_of(other.type))


@decomposes("slice.Tensor")
def slice_(b: Builder, self: SSAValue, dim: int, start: int | None, end: int | None, step: int) -> SSAValue:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    if step <= 0 or not shape:
        raise b.unsupported("step", f"a slice needs a positive step, not {step}")
    first, size = clamped_range(start, end, step, shape[dim])
    return sliced(b, self, dim, first, size, step)


@decomposes("narrow")
def narrow(b: Builder, self: SSAValue, dim: int, start: int, length: int) -> SSAValue:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    start = start + shape[dim] if start < 0 else start
    if length < 0 or start < 0 or start + length > shape[dim]:
        raise ShapeError(f"[{start}:{start + length}] is outside of {shape[dim]} elements", argument="length")
    return sliced(b, self, dim, start, length)


@decomposes("select.int")
def select(b: Builder, self: SSAValue, dim: int, index: int) -> SSAValue:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    if not -shape[dim] <= index < shape[dim]:
        raise ShapeError(f"{index} is outside of {shape[dim]} elements", argument="index")
    return selected(b, self, dim, index % shape[dim])


@decomposes("unbind.int")
def unbind(b: Builder, self: SSAValue, dim: int) -> list[SSAValue]:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    return [selected(b, self, dim, i) for i in range(shape[dim])]


def pieces(b: Builder, x: SSAValue, dim: int, sizes: Sequence[int]) -> list[SSAValue]:
    """`x` cut along `dim` into pieces of these sizes, which must use it up."""
    shape = shape_of(x.type)
    dim = normal_dim(dim, len(shape))
    if sum(sizes) != shape[dim] or any(n < 0 for n in sizes):
        raise ShapeError(f"{list(sizes)} do not add up to {shape[dim]} elements")
    return [sliced(b, x, dim, sum(sizes[:i]), n) for i, n in enumerate(sizes)]


@decomposes("split.Tensor")
def split(b: Builder, self: SSAValue, split_size: int, dim: int) -> list[SSAValue]:
    return pieces(b, self, dim, even_sizes(shape_of(self.type)[normal_dim(dim, len(shape_of(self.type)))], split_size))


def even_sizes(extent: int, size: int) -> list[int]:
    """`extent` in parts of `size`, the last of which may be smaller; one empty part of nothing."""
    if size <= 0:
        return [extent]
    return [min(size, extent - i) for i in range(0, extent, size)] or [0]


@decomposes("split_with_sizes", "split.sizes")
def split_with_sizes(
    b: Builder, self: SSAValue, dim: int, split_sizes: Sequence[int] = (), split_size: Sequence[int] = ()
) -> list[SSAValue]:
    return pieces(b, self, dim, split_sizes or split_size)


@decomposes("chunk")
def chunk(b: Builder, self: SSAValue, chunks: int, dim: int) -> list[SSAValue]:
    shape = shape_of(self.type)
    dim = normal_dim(dim, len(shape))
    if not shape[dim]:
        return [self] * chunks
    return pieces(b, self, dim, even_sizes(shape[dim], -(-shape[dim] // chunks)))


@decomposes("flip")
def flip(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    shape = shape_of(self.type)
    for dim in sorted({normal_dim(d, len(shape)) for d in dims}) if shape else []:
        self = sliced(b, self, dim, shape[dim] - 1, shape[dim], -1) if shape[dim] > 1 else self
    return self


@decomposes("repeat")
def repeat(b: Builder, self: SSAValue, repeats: Sequence[int]) -> SSAValue:
    own = shape_of(self.type)
    offset = len(repeats) - len(own)
    if offset < 0 or any(n < 0 for n in repeats):
        raise ShapeError(f"{list(repeats)} for a tensor of rank {len(own)}", argument="repeats")
    shape = [r * (own[i - offset] if i >= offset else 1) for i, r in enumerate(repeats)]
    exprs = dims(len(shape))[offset:]
    for i, n in enumerate(own):
        if repeats[offset + i] != 1:
            exprs[i] = exprs[i] % n if n > 1 else AffineExpr.constant(0)
    return b.map(self, exprs, shape)


@decomposes("repeat_interleave.self_int")
def repeat_interleave(b: Builder, self: SSAValue, repeats: int, dim: int | None, output_size: int | None) -> SSAValue:
    x = self if dim is not None else reshape(b, self, size=[-1])
    shape = list(shape_of(x.type))
    dim = 0 if dim is None else normal_dim(dim, len(shape))
    exprs = dims(len(shape))
    exprs[dim] = exprs[dim] // repeats if repeats > 1 else exprs[dim]
    shape[dim] *= repeats
    return b.map(x, exprs, shape)


@decomposes("roll")
def roll(b: Builder, self: SSAValue, shifts: Sequence[int], dims: Sequence[int]) -> SSAValue:
    shape = shape_of(self.type)
    if not dims:
        flat = reshape_to(b, self, [prod(shape)])
        return reshape_to(b, roll(b, flat, shifts, [0]), shape)
    if len(shifts) != len(dims):
        raise ShapeError(f"{len(shifts)} shifts for {len(dims)} dimensions", argument="shifts")
    for shift, dim in zip(shifts, (normal_dim(d, len(shape)) for d in dims), strict=True):
        extent = shape[dim] if shape else 0
        if extent and shift % extent:
            exprs = [AffineExpr.dimension(d) for d in range(len(shape))]
            exprs[dim] = (exprs[dim] + (extent - shift % extent)) % extent
            self = b.map(self, exprs, shape)
    return self


@decomposes("diagonal")
def diagonal(b: Builder, self: SSAValue, offset: int, dim1: int, dim2: int) -> SSAValue:
    shape = shape_of(self.type)
    row, column = normal_dim(dim1, len(shape)), normal_dim(dim2, len(shape))
    if row == column:
        raise ShapeError("the two dimensions of a diagonal are the same", argument="dim2")
    below, right = max(-offset, 0), max(offset, 0)
    size = max(min(shape[row] - below, shape[column] - right), 0)
    kept = [d for d in range(len(shape)) if d not in (row, column)]
    exprs = [AffineExpr.dimension(kept.index(d) if d in kept else len(kept)) for d in range(len(shape))]
    exprs[row], exprs[column] = shifted(exprs[row], below), shifted(exprs[column], right)
    return b.map(self, exprs, [*(shape[d] for d in kept), size])


@decomposes("unfold")
def unfold(b: Builder, self: SSAValue, dimension: int, size: int, step: int) -> SSAValue:
    shape = list(shape_of(self.type))
    dim = normal_dim(dimension, len(shape))
    exprs = dims(len(shape))
    if shape:
        exprs[dim] = exprs[dim] * step + AffineExpr.dimension(len(shape))
        shape[dim] = (shape[dim] - size) // step + 1
    return b.map(self, exprs, [*shape, size])
