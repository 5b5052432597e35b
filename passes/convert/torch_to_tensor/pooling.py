"""Pooling: windows, reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.shapes.polynomial import constant, plus
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import Builder
from .registry import decomposes
from .reshape import numbered
from .windows import Adaptive, Strided, Window, offsets, sliding


def _strided_windows(
    b: Builder,
    x: SSAValue,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Window]:
    """One window for each entry of the kernel; the declared result says how many positions there are (`ceil_mode`)."""
    rank = len(extents_of(x.type))
    n = min(len(kernel_size), rank)
    spread = [list(v) * n if len(v) == 1 else list(v) for v in (kernel_size, stride or kernel_size, padding, dilation)]
    extents, outputs = extents_of(x.type)[rank - n :], b.result_shape[rank - n :]
    each = zip(extents, outputs, *spread, strict=True)
    return [Strided(e, o, *sizes, whole=not ceil_mode) for e, o, *sizes in each]


def _adaptive_windows(b: Builder, x: SSAValue, output_size: Sequence[int]) -> list[Window]:
    extents = extents_of(x.type)[len(extents_of(x.type)) - len(output_size) :]
    return [Adaptive(extent, outputs) for extent, outputs in zip(extents, output_size, strict=True)]


def _largest(b: Builder, x: SSAValue, windows: Sequence[Window]) -> SSAValue:
    low = identity(ReductionKind.MAX, element_type(x.type))
    return b.reduce("max", sliding(b, x, windows, low), offsets(b, x, windows))


def _largest_and_place(b: Builder, x: SSAValue, windows: Sequence[Window]) -> list[SSAValue]:
    """The largest element of each window and its position in the (flat) input plane.

    Of equal ones the first counts, of NaNs the last.
    """
    shape = extents_of(x.type)
    plane = shape[len(shape) - len(windows) :]
    largest = _largest(b, x, windows)
    inner = offsets(b, x, windows)
    seen = sliding(b, x, windows, identity(ReductionKind.MAX, element_type(x.type)))
    space = extents_of(seen.type)
    index = sliding(b, numbered(b, range(len(shape) - len(plane), len(shape)), shape), windows, -1)
    there = b.cmp("ge", index, 0)
    hit = b.both(there, b.cmp("eq", seen, b.keep(largest, inner, space)))
    first = b.reduce("min", b.select(hit, index, b.measured(b.algebra.product(plane), space, i64)), inner)
    if is_float(x.type):
        nan = b.both(there, b.isnan(seen))
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
    windows = _strided_windows(b, x, kernel_size, stride, padding, dilation, ceil_mode)
    return _largest_and_place(b, x, windows) if len(b.result_types) > 1 else [_largest(b, x, windows)]


@decomposes("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, self: SSAValue, output_size: Sequence[int]) -> list[SSAValue]:
    x = b.working(self)
    return _largest_and_place(b, x, _adaptive_windows(b, x, output_size))


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
    windows = _strided_windows(b, x, kernel_size, stride, padding, ceil_mode=ceil_mode)
    if divisor_override is not None:
        return _quotient(b, _total(b, x, windows), lambda shape: b.constant(divisor_override, shape, i64))
    # A window that sticks out over the padding on the right is cut off there (`ceil_mode`).
    counted = [_over_padding(b, w) for w in windows] if count_include_pad else windows
    return _quotient(b, _total(b, x, windows), lambda shape: _sizes(b, counted, shape))


@decomposes(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
def adaptive_avg_pool(b: Builder, self: SSAValue, output_size: Sequence[int]) -> SSAValue:
    x = b.working(self)
    windows = _adaptive_windows(b, x, output_size)
    return _quotient(b, _total(b, x, windows), lambda shape: _sizes(b, windows, shape))


def _over_padding(b: Builder, window: Window) -> Window:
    assert isinstance(window, Strided)
    if not isinstance(window.extent, int) and window.whole:
        return replace(window, padding=0)  # wholly inside, whatever the extent
    wide = plus(b.algebra.of(window.extent), constant(2 * window.padding))
    return replace(window, extent=b.algebra.extent(wide), padding=0)


def _total(b: Builder, x: SSAValue, windows: Sequence[Window]) -> SSAValue:
    return b.reduce("add", sliding(b, x, windows, 0), offsets(b, x, windows))


def _sizes(b: Builder, windows: Sequence[Window], shape: Sequence[Extent]) -> SSAValue:
    """How many elements each window has, as integers of `shape` (the last dimensions are the windows' positions)."""
    count = b.measured(b.algebra.product(w.size for w in windows if w.inside), shape, i64)
    for i, window in enumerate(windows):
        if window.inside:
            continue
        ones = b.constant(1, [window.extent], i64)
        own = b.reduce("add", sliding(b, ones, [window], 0), [1])
        count = b.mul(count, b.place(own, [len(shape) - len(windows) + i], shape))
    return count


def _quotient(b: Builder, total: SSAValue, count: Callable[[Sequence[Extent]], SSAValue]) -> SSAValue:
    element = element_type(total.type)
    divisor = b.cast(count(extents_of(total.type)), element)
    return b.div(total, divisor) if element != i1 else total
