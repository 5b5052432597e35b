"""Operators with sliding windows over the last dimensions of a tensor: convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.binding import Algebra, constant, divided, plus
from ....dialects.shapes.extents import Extent, extents_of, fixed, static
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import Builder, work_type
from ....dialects.tensor.views import numbered
from ....dialects.tensor.windows import UnevenWindow, Window, contract_windows, offsets, pooled, sliding, strided
from ....errors import ShapeError
from .registry import decomposes


def convolved(
    algebra: Algebra, extent: Extent, size: int, stride: int, padding: int, dilation: int, output_padding: int
) -> Window:
    """Returns the window of a convolution.

    Args:
        algebra: Arithmetic on symbolic sizes.
        extent: Elements of the input.
        size: Elements of a window.
        stride: Distance of windows.
        padding: Elements of padding on both ends.
        dilation: Distance of the elements of a window.
        output_padding: Not used; the parameters are those of `upsampled`.
    """
    room = plus(algebra.of(extent), constant(2 * padding - dilation * (size - 1) - 1))
    outputs = algebra.extent(plus(divided("div", room, stride), constant(1)))
    return strided(extent, outputs, size, stride, padding, dilation, True)


def upsampled(
    algebra: Algebra, extent: Extent, size: int, stride: int, padding: int, dilation: int, output_padding: int
) -> Window:
    """Returns the window of a transposed convolution: output o reads input `(o + padding - k * dilation) / stride`.

    Args:
        algebra: Arithmetic on symbolic sizes.
        extent: Elements of the input.
        size: Elements of a window.
        stride: Distance of windows in the output.
        padding: Elements of the output that are dropped on both ends.
        dilation: Distance of the elements of a window.
        output_padding: Number of further outputs.
    """
    last = constant(-stride - 2 * padding + dilation * (size - 1) + 1 + output_padding)
    outputs = algebra.extent(plus(last, algebra.of(extent), stride))
    return Window(extent, outputs, size, 1, -dilation, padding, stride, inside=False)


def adaptive(extent: Extent, outputs: int) -> Window:
    """Returns the window of adaptive pooling: `outputs` windows of nearly equal size cover `extent` elements."""
    if outputs == 1:
        return Window(extent, outputs, extent, scale=0)
    n = fixed(extent)
    size = max((-(-(o + 1) * n // outputs) - o * n // outputs for o in range(outputs)), default=0)
    if not outputs or n % outputs == 0:
        return Window(extent, outputs, size, scale=n // max(outputs, 1))
    return UnevenWindow(extent, outputs, size, inside=False)


def _per_dimension(values: Sequence[int], count: int) -> list[int]:
    """Returns a value for each of `count` dimensions. PyTorch also accepts one value for all."""
    if len(values) not in (1, count):
        raise ShapeError(f"expected 1 or {count} values, but got {len(values)}")
    return list(values) * (count if len(values) == 1 else 1)


@decomposes("convolution")
def convolution(
    b: Builder,
    input: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
) -> SSAValue:
    spatial = len(extents_of(weight.type)) - 2
    element = work_type(b.result_element)
    lists = [_per_dimension(argument, spatial) for argument in (stride, padding, dilation, output_padding)]
    sizes_of_dims = zip(extents_of(input.type)[2:], static(extents_of(weight.type)[2:]), *lists, strict=True)
    windows = [(upsampled if transposed else convolved)(b.algebra, *sizes) for sizes in sizes_of_dims]
    y = contract_windows(b, input, weight, windows, groups, transposed, element)
    return y if bias is None else b.add(y, b.place(b.cast(bias, element), [1], extents_of(y.type)))


def _strided(
    b: Builder,
    x: SSAValue,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    over_padding: bool = False,
) -> list[Window]:
    """Returns the window of each pooled dimension.

    With `over_padding` the padding counts as elements of the input. The number of outputs is that of the declared
    result, which depends on `ceil_mode`."""
    rank = len(extents_of(x.type))
    n = min(len(kernel_size), rank)
    spread = [_per_dimension(v, n) for v in (kernel_size, stride or kernel_size, padding, dilation)]
    sizes_of_dims = zip(extents_of(x.type)[rank - n :], b.result_shape[rank - n :], *spread, strict=True)
    windows = list[Window]()
    for extent, outputs, size, step, pad, dilate in sizes_of_dims:
        if over_padding:
            # All windows are inside the padded input, except with `ceil_mode`.
            if isinstance(extent, int) or ceil_mode:
                extent = b.algebra.extent(plus(b.algebra.of(extent), constant(2 * pad)))
            pad = 0
        windows.append(strided(extent, outputs, size, step, pad, dilate, not ceil_mode))
    return windows


def _adaptive(x: SSAValue, output_size: Sequence[int]) -> list[Window]:
    extents = extents_of(x.type)[len(extents_of(x.type)) - len(output_size) :]
    return [adaptive(extent, outputs) for extent, outputs in zip(extents, output_size, strict=True)]


def _largest_and_place(b: Builder, x: SSAValue, windows: Sequence[Window]) -> list[SSAValue]:
    """Returns the largest element of each window, and its flat index in the pooled dimensions of the input.

    The index is that of the last NaN, or the first of equal elements, as in PyTorch.
    """
    shape = extents_of(x.type)
    inside = range(len(shape) - len(windows), len(shape))
    largest = pooled(b, ReductionKind.MAX, x, windows)
    inner = offsets(b, x, windows)
    seen = sliding(b, x, windows, identity(ReductionKind.MAX, element_type(x.type)))
    space = extents_of(seen.type)
    index = sliding(b, numbered(b, inside, shape), windows, -1)
    is_element = b.cmp("ge", index, 0)
    hit = b.both(is_element, b.cmp("eq", seen, b.keep(largest, inner, space)))
    behind = b.measured(b.algebra.product(shape[d] for d in inside), space, i64)
    first = b.reduce("min", b.select(hit, index, behind), inner)
    if is_float(x.type):
        nan = b.both(is_element, b.isnan(seen))
        last = b.reduce("max", b.select(nan, index, b.like(index, -1)), inner)
        first = b.select(b.cmp("ge", last, 0), last, first)
    return [largest, first]


@decomposes("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    b: Builder,
    self: SSAValue,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[SSAValue]:
    x = b.working(self)
    windows = _strided(b, x, kernel_size, stride, padding, dilation, ceil_mode)
    with_places = len(b.result_types) > 1
    return _largest_and_place(b, x, windows) if with_places else [pooled(b, ReductionKind.MAX, x, windows)]


@decomposes("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, self: SSAValue, output_size: Sequence[int]) -> list[SSAValue]:
    x = b.working(self)
    return _largest_and_place(b, x, _adaptive(x, output_size))


@decomposes("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    b: Builder,
    self: SSAValue,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> SSAValue:
    x = b.working(self)
    # With `ceil_mode`, a window that reaches beyond the right padding ends there.
    windows, counted = (
        _strided(b, x, kernel_size, stride, padding, (1,), ceil_mode, over_padding)
        for over_padding in (False, count_include_pad)
    )
    return _mean(b, x, windows, counted, divisor_override)


@decomposes(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
def adaptive_avg_pool(b: Builder, self: SSAValue, output_size: Sequence[int]) -> SSAValue:
    x = b.working(self)
    windows = _adaptive(x, output_size)
    return _mean(b, x, windows, windows)


def _mean(
    b: Builder, x: SSAValue, windows: Sequence[Window], counted: Sequence[Window], divisor: int | None = None
) -> SSAValue:
    """Returns the sums of the windows, divided by `divisor`, or by the number of elements of the windows in
    `counted`."""
    total = pooled(b, ReductionKind.ADD, x, windows)
    shape = extents_of(total.type)
    if divisor is not None:
        count: SSAValue = b.constant(divisor, shape, i64)
    else:
        count = b.measured(b.algebra.product(w.size for w in counted if w.inside), shape, i64)
        for d, window in enumerate(counted, len(shape) - len(counted)):
            if not window.inside:
                sizes = pooled(b, ReductionKind.ADD, b.constant(1, [window.extent], i64), [window])
                count = b.mul(count, b.place(sizes, [d], shape))
    return b.div(total, b.cast(count, element_type(total.type)))
