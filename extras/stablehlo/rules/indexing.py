"""Rules of slices at computed positions, and of gathers. XLA clamps their start indices so that slices fit."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type
from ....dialects.shapes.binding import Polynomial, constant, plus
from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, fixed, most
from ....dialects.tensor.builder import Bound, dims, width_of
from ....dialects.tensor.views import gathered, shifted
from ..registry import Builder, HloOperation, HloType, rule
from .integers import extended


def index_integers(b: Builder, x: SSAValue, type: HloType, extent: Extent) -> SSAValue:
    """Returns indices in a signed type that holds every index of a dimension.

    Args:
        b: builder of the operation.
        x: integers.
        type: their type.
        extent: extent of the dimension.
    """
    width = width_of(element_type(x.type))
    if type.unsigned and width < 64:
        return extended(b, x)
    element = i64 if width > 32 or most(extent) >= 1 << 31 else i32
    return b.cast(x, element)


def clamped(b: Builder, x: SSAValue, extent: Extent, size: int, unsigned: bool = False) -> SSAValue:
    """Returns start indices between 0 and the last start at which a slice fits.

    Args:
        b: builder of the operation.
        x: start indices.
        extent: extent of the dimension.
        size: elements of the slice.
        unsigned: whether they are unsigned 64-bit integers, whose large values are negative here.
    """
    last = b.sub(b.like(x, extent), b.like(x, size)) if isinstance(extent, SymbolAttr) else b.like(x, extent - size)
    x = b.select(b.cmp("lt", x, 0), last, x) if unsigned else x
    return b.minimum(b.maximum(x, b.like(x, 0)), last)


def _starts(
    b: Builder, op: HloOperation, first: int, extents: Sequence[Extent], sizes: Sequence[int]
) -> list[int | SSAValue]:
    """Returns the start index along each dimension: a number, or a tensor of rank 0.

    Args:
        b: builder of the operation.
        op: the operation.
        first: number of the operand that is the first start index.
        extents: shape of the tensor.
        sizes: shape of the slice.
    """
    starts = list[int | SSAValue]()
    for d, (n, size) in enumerate(zip(extents, sizes, strict=True)):
        constants = op.constants(first + d)
        if n == size:
            starts.append(0)
        elif constants is not None and isinstance(n, int):
            starts.append(min(max(constants[0], 0), n - size))
        else:
            type = op.operands[first + d]
            x = index_integers(b, op.scope.value(op.ir.operands[first + d]), type, n)
            starts.append(clamped(b, x, n, size, type.unsigned and width_of(element_type(x.type)) == 64))
    return starts


def first_start(op: HloOperation, operand: int) -> Polynomial | None:
    """Returns the first element of an operand with start indices if it is known, else None."""
    start = op.sizes(operand) if operand < len(op.operands) else None
    return start[0] if start else None


@rule("stablehlo.dynamic_slice")
def dynamic_slice(b: Builder, op: HloOperation, x: SSAValue, *_: SSAValue) -> SSAValue:
    sizes = op.ints("slice_sizes")
    steps = op.scope.steps
    if steps is not None and (row := steps.read(b, x, sizes, first_start(op, 1))) is not None:
        return row
    exprs = dims(len(sizes))
    indices = list[SSAValue]()
    for d, start in enumerate(_starts(b, op, 1, extents_of(x.type), sizes)):
        if isinstance(start, int):
            exprs[d] = shifted(exprs[d], start)
            continue
        exprs[d] = AffineExpr.symbol(len(indices))
        indices.append(offset_by(b, start, d, sizes))
    return gathered(b, x, exprs, sizes, indices)


def offset_by(b: Builder, start: SSAValue, dim: int, shape: Sequence[Extent]) -> SSAValue:
    """Returns the indices of a slice along a dimension: its start plus the position in the slice.

    Args:
        b: builder of the operation.
        start: the start; it is broadcast to `shape`.
        dim: the dimension.
        shape: shape of the slice.
    """
    start = b.broadcast(start, shape)
    return start if shape[dim] == 1 else b.add(start, b.iota(dim, shape, element_type(start.type)))


@rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(b: Builder, op: HloOperation, x: SSAValue, update: SSAValue, *_: SSAValue) -> SSAValue:
    shape, sizes = extents_of(x.type), op.operands[1].shape
    if 0 in sizes:
        return x
    steps = op.scope.steps
    if steps is not None and (result := steps.write(b, x, update, first_start(op, 2))) is not None:
        return result
    exprs = dims(len(shape))
    bounds = list[Bound]()
    indices = list[SSAValue]()
    inside: SSAValue | None = None
    for d, start in enumerate(_starts(b, op, 2, shape, sizes)):
        if isinstance(start, int):
            exprs[d] = shifted(exprs[d], -start)
            if sizes[d] != shape[d]:
                bounds.append((exprs[d], 0, sizes[d]))
            continue
        exprs[d] = AffineExpr.symbol(len(indices))
        position = b.sub(b.iota(d, shape, element_type(start.type)), b.broadcast(start, shape))
        indices.append(position)
        legal = b.both(b.cmp("ge", position, 0), b.cmp("lt", position, sizes[d]))
        inside = legal if inside is None else b.both(inside, legal)
    if bounds:
        written = b.map(b.constant(True, shape, i1), dims(len(shape)), shape, bounds, False)
        inside = written if inside is None else b.both(inside, written)
    if inside is None:
        return update
    if not indices:
        return b.select(inside, b.map(update, exprs, shape, bounds), x)
    # A gather has no domain, so rows outside of the update read zero, and the select drops them.
    return b.select(inside, gathered(b, update, exprs, shape, indices), x)


def _constant_start(b: Builder, op: HloOperation, component: int, extent: Extent, size: Extent) -> int | None:
    """Returns the start of all slices of a gather along a dimension if it is one number at which they fit, else None.

    Args:
        b: builder of the operation.
        op: the gather.
        component: position of the start in the index vector.
        extent: extent of the dimension.
        size: elements of a slice.
    """
    if extent == size:
        return 0
    starts = op.sizes(1) if len(op.operands[1].dims) == 1 else None
    if starts is None or (start := starts[component].number) is None or start < 0:
        return None
    room = plus(plus(b.algebra.of(extent), b.algebra.of(size), -1), constant(-start))
    return start if op.scope.bounds(room)[0] >= 0 else None


@rule("stablehlo.gather")
def gather(b: Builder, op: HloOperation, x: SSAValue, index: SSAValue) -> SSAValue:
    return gather_slices(b, op, x, index, op.ints("slice_sizes"))


def gather_slices(b: Builder, op: HloOperation, x: SSAValue, index: SSAValue, sizes: Sequence[Extent]) -> SSAValue:
    """Returns slices of a tensor at positions in another one.

    Args:
        b: builder of the operation.
        op: a gather, whose operand 1 is `index`.
        x: the tensor.
        index: start indices.
        sizes: shape of a slice.
    """
    n = op.numbers(stablehlo.GatherDimensionNumbers, "dimension_numbers")
    source, places = extents_of(x.type), extents_of(index.type)
    collapsed, batching = list(n.collapsed_slice_dims), list(n.operand_batching_dims)
    offsets, along = list(n.offset_dims), list(n.start_index_map)
    vector = n.index_vector_dim
    rank = len(offsets) + len(places) - (vector < len(places))
    batch = [d for d in range(rank) if d not in offsets]
    position = dict(zip([d for d in range(len(places)) if d != vector], batch, strict=True))
    sliced = [d for d in range(len(source)) if d not in (*collapsed, *batching)]
    offset = dict(zip(sliced, offsets, strict=True))
    extent_of = {d: places[q] for q, d in position.items()} | {d: sizes[s] for s, d in offset.items()}
    shape = [extent_of[d] for d in range(rank)]
    exprs = list[AffineExpr]()
    indices = list[SSAValue]()
    for d, extent in enumerate(source):
        expr = AffineExpr.dimension(offset[d]) if d in offset and sizes[d] != 1 else AffineExpr.constant(0)
        if d in batching:
            expr = AffineExpr.dimension(position[list(n.start_indices_batching_dims)[batching.index(d)]])
        elif d in along and (start := _constant_start(b, op, along.index(d), extent, sizes[d])) is not None:
            expr = shifted(expr, start)
        elif d in along and extent != sizes[d]:
            component = AffineExpr.constant(along.index(d))
            at = [component if q == vector else AffineExpr.dimension(position[q]) for q in range(len(places))]
            start = b.map(index_integers(b, index, op.operands[1], extent), at, shape)
            wraps = op.operands[1].unsigned and width_of(op.operands[1].element) == 64
            start = clamped(b, start, extent, fixed(sizes[d]), wraps)
            indices.append(offset_by(b, start, offset[d], shape) if d in offset else start)
            expr = AffineExpr.symbol(len(indices) - 1)
        exprs.append(expr)
    return gathered(b, x, exprs, shape, indices)
