"""Rules of reductions over sliding windows, and of the gradient of a pooling by maximum."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, static
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import dims
from ....dialects.tensor.views import flipped, inside, permuted
from ....dialects.tensor.windows import Window, addresses, dilated, offsets, pooled, sliding
from ..registry import Body, Builder, HloOperation, rule
from .integers import ordered
from .reductions import combined

MOST_UNROLLED_OFFSETS = 256
"""Offsets of a window that are combined one after the other. More would make a kernel too long."""


def _windows(op: HloOperation, extents: Sequence[int], outputs: Sequence[int]) -> list[Window]:
    """Returns the window of each dimension.

    Args:
        op: The operation.
        extents: Shape of the input.
        outputs: Number of windows along each dimension.
    """
    ones = [1] * len(extents)
    return [
        dilated(extent, count, size, stride=stride, low=low, spacing=spacing, dilation=dilation)
        for extent, count, size, stride, (low, _), spacing, dilation in zip(
            extents,
            outputs,
            op.ints("window_dimensions"),
            op.ints("window_strides", ones),
            op.table("padding", [[0, 0]] * len(extents)),
            op.ints("base_dilations", ones),
            op.ints("window_dilations", ones),
            strict=True,
        )
    ]


def _is_trivial(window: Window) -> bool:
    """Returns true if each window is the element of the same position."""
    return window.size == window.scale == window.divisor == 1 and not window.shift and window.outputs == window.extent


@rule("stablehlo.reduce_window")
def reduce_window(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    values, initial = list(operands[: len(operands) // 2]), operands[len(operands) // 2 :]
    shape = static(extents_of(values[0].type))
    windows = _windows(op, shape, op.shape)
    over = [d for d, window in enumerate(windows) if not _is_trivial(window)]
    body, kind = op.body(), op.body().kind()
    if len(values) == 1 and kind is not None and kind != "xor":
        unsigned = op.unsigned and kind in ("max", "min")
        x = b.working(ordered(b, values[0], unsigned))
        if all(_is_scan(windows[d]) for d in over):
            for d in over:
                x = _scanned(b, kind, x, d, windows[d])
        else:
            x = _pooled(b, ReductionKind(kind), x, over, windows)
        return [combined(b, kind, ordered(b, x, unsigned), initial[0], op.element, op.unsigned)]
    if all(_is_scan(windows[d]) for d in over):
        for d in over:
            values = _scanned_by_doubling(b, body, values, d, windows[d])
        return [b.cast(v, t.element) for v, t in zip(values, op.results, strict=True)]
    return _folded(b, op, values, initial, over, windows)


def _is_scan(window: Window) -> bool:
    """Returns true if the window of position o has all elements up to o, or all elements from o."""
    n = window.extent
    plain = window.scale == window.step == window.divisor == 1 and window.outputs == n
    return plain and isinstance(n, int) and window.shift in (0, 1 - n) and window.size == n


def _scanned(b: Builder, kind: str, x: SSAValue, dim: int, window: Window) -> SSAValue:
    """Returns the scan along one dimension whose windows satisfy `_is_scan`; with a shift of 0 it starts at the end."""
    if window.shift or window.extent == 1:
        return b.scan(kind, x, dim)
    return flipped(b, b.scan(kind, flipped(b, x, dim), dim), dim)


def _scanned_by_doubling(
    b: Builder, body: Body, values: Sequence[SSAValue], dim: int, window: Window
) -> list[SSAValue]:
    """Returns the scan by a region, in a number of steps that is the logarithm of the number of elements."""
    backwards = not window.shift
    parts = [flipped(b, v, dim) if backwards else v for v in values]
    shape = static(extents_of(parts[0].type))
    distance = 1
    while distance < shape[dim]:
        exprs = dims(len(shape))
        exprs[dim] = exprs[dim] - distance
        exists = b.cmp("ge", b.iota(dim, shape), distance)
        earlier = [b.map(v, exprs, shape, [(exprs[dim], 0, shape[dim])]) for v in parts]
        both = body(b, [*earlier, *parts])
        parts = [b.select(exists, combined, v) for combined, v in zip(both, parts, strict=True)]
        distance *= 2
    return [flipped(b, v, dim) if backwards else v for v in parts]


def _pooled(b: Builder, kind: ReductionKind, x: SSAValue, over: Sequence[int], windows: Sequence[Window]) -> SSAValue:
    order = [*(d for d in range(len(windows)) if d not in over), *over]
    y = pooled(b, kind, permuted(b, x, order), [windows[d] for d in over])
    return permuted(b, y, [order.index(d) for d in range(len(order))])


def _offsets(op: HloOperation, windows: Sequence[Window]) -> list[tuple[int, ...]]:
    """Returns the offsets of the elements of a window, in their order."""
    offsets: list[tuple[int, ...]] = [()]
    for window in windows:
        assert isinstance(window.size, int)
        offsets = [(*offset, k) for offset in offsets for k in range(window.size)]
        if len(offsets) > MOST_UNROLLED_OFFSETS:
            raise op.refuse(f"expected a window of at most {MOST_UNROLLED_OFFSETS} elements for this function")
    return offsets


def _element(
    b: Builder, x: SSAValue, windows: Sequence[Window], offset: Sequence[int]
) -> tuple[SSAValue, SSAValue | None]:
    """Returns the element at one offset of each window, and a mask that is true where it exists, None for everywhere.

    Args:
        b: Builder of the operation.
        x: Tensor.
        windows: Window of each dimension.
        offset: Offset along each dimension.
    """
    space = [w.outputs for w in windows]
    exprs, bounds = addresses(windows, dims(len(space)), [AffineExpr.constant(k) for k in offset])
    return b.map(x, exprs, space, bounds), inside(b, space, bounds) if bounds else None


def _folded(
    b: Builder,
    op: HloOperation,
    values: Sequence[SSAValue],
    initial: Sequence[SSAValue],
    over: Sequence[int],
    windows: Sequence[Window],
) -> list[SSAValue]:
    """Returns the reduction of windows by a region, one offset after the other."""
    body, shape = op.body(), op.shape
    result = [b.broadcast(v, shape) for v in initial]
    for offset in _offsets(op, windows):
        elements = [_element(b, v, windows, offset) for v in values]
        both = body(b, [*result, *(value for value, _ in elements)])
        exists = elements[0][1]
        result = both if exists is None else [b.select(exists, new, v) for new, v in zip(both, result, strict=True)]
    return result


@rule("stablehlo.select_and_scatter")
def select_and_scatter(b: Builder, op: HloOperation, x: SSAValue, source: SSAValue, initial: SSAValue) -> SSAValue:
    """Adds each value of `source` to the element of `x` that a region selects in the window of that value.

    A first pass finds the offset of the selected element of each window. Then an element sums the values of the windows
    that selected it, which is a window over the outputs.

    Args:
        b: Builder of the operation.
        op: The operation.
        x: Tensor in which elements are selected.
        source: A value for each window.
        initial: Value of elements that no window selects.
    """
    shape, outputs = static(extents_of(x.type)), static(extents_of(source.type))
    windows = _windows(op, shape, outputs)
    kind = op.body(1).kind()
    if kind is None:
        raise op.refuse("expected a sum or another reduction of the scattered values")
    chosen = _selected(b, op, x, windows)
    space = [*shape, *(w.size for w in windows)]
    number: SSAValue = b.constant(0, space, i32)
    for d, window in enumerate(windows):
        number = b.add(b.scaled(number, window.size), b.cast(b.iota(len(shape) + d, space), i32))
    inverse = [
        w if _is_trivial(w) else Window(w.outputs, n, w.size, 1, -w.step, -w.shift, w.scale, False)
        for w, n in zip(windows, shape, strict=True)
    ]
    values = b.working(source)
    hit = b.cmp("eq", sliding(b, chosen, inverse, -1), number)
    neutral = identity(ReductionKind(kind), element_type(values.type))
    written = b.select(hit, sliding(b, values, inverse, neutral), b.constant(neutral, space, element_type(values.type)))
    total = b.reduce(kind, written, offsets(b, x, windows))
    return combined(b, kind, total, initial, op.element)


def _selected(b: Builder, op: HloOperation, x: SSAValue, windows: Sequence[Window]) -> SSAValue:
    """Returns the number of the offset that a region selects in each window, as i32; -1 for a window of padding."""
    body, best = op.body(), None
    number: SSAValue | None = None
    for n, offset in enumerate(_offsets(op, windows)):
        value, exists = _element(b, x, windows, offset)
        here = b.constant(n, extents_of(value.type), i32)
        if best is None or number is None:
            best, number = value, here if exists is None else b.select(exists, here, b.like(here, -1))
            continue
        stays = b.both(body(b, [best, value])[0], b.cmp("ge", number, 0))
        if exists is not None:
            stays = b.either(stays, b.negated(exists))
        best, number = b.select(stays, best, value), b.select(stays, number, here)
    assert number is not None, "a window has elements"
    return number
