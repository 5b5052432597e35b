"""Sliding windows over dimensions of a tensor: convolutions and poolings.

Output position `o` and *offset* `k` inside the window address one input position, or none (padding). One index map
reads all windows, with the dimensions (leading..., outputs..., offsets...). Then a convolution is a contraction over
the offsets and the channels, and pooling is a reduction over the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ...errors import ShapeError
from ..payload import element_type
from ..shapes.extents import Extent, extents_of, fixed, static
from . import ReductionKind, identity
from .builder import Bound, Builder, Number, dims
from .views import reshape_to, shifted


@dataclass(frozen=True)
class Window:
    """Sliding window along one dimension.

    Output o and offset k address the input at `(scale * o + step * k + shift) / divisor`, if that has no remainder and
    is inside the input.
    """

    extent: Extent
    """Elements of the input."""
    outputs: Extent
    """Output positions."""
    size: Extent
    """Maximum number of offsets in a window."""
    scale: int = 1
    step: int = 1
    shift: int = 0
    divisor: int = 1
    inside: bool = True
    """True if all addresses are inside the input."""

    def address(self, o: AffineExpr, k: AffineExpr) -> tuple[AffineExpr, list[Bound]]:
        """Returns the input position of an output and an offset, and the bounds within which it exists."""
        terms = [e if factor == 1 else e * factor for e, factor in ((o, self.scale), (k, self.step)) if factor]
        place, bounds = shifted(reduce(add, terms), self.shift), list[Bound]()
        if self.divisor > 1:
            bounds, place = [(place % self.divisor, 0, 1)], place // self.divisor
        return place, [] if self.inside else [*bounds, (place, 0, self.extent)]


@dataclass(frozen=True)
class UnevenWindow(Window):
    """Sliding window of adaptive pooling, whose windows have different sizes."""

    def address(self, o: AffineExpr, k: AffineExpr) -> tuple[AffineExpr, list[Bound]]:
        n, outputs = fixed(self.extent), fixed(self.outputs)
        place, end = (o * n) // outputs + k, (o * n + (n + outputs - 1)) // outputs
        return place, [(end + place * -1, 1, n + 1)]


def strided(
    extent: Extent, outputs: Extent, size: int, stride: int, padding: int, dilation: int, inside: bool
) -> Window:
    """Returns a window with stride, padding and dilation.

    Args:
        extent: Elements of the input.
        outputs: Output positions.
        size: Elements of a window.
        stride: Distance of windows.
        padding: Elements of padding on the left.
        dilation: Distance of the elements of a window.
        inside: True if no window reaches beyond the right padding. Used if an extent is a symbol.
    """
    if isinstance(extent, int) and isinstance(outputs, int):
        inside = (outputs - 1) * stride + (size - 1) * dilation < extent
    return Window(extent, outputs, size, stride, dilation, -padding, inside=inside and not padding)


def dilated(
    extent: int, outputs: int, size: int, *, stride: int, low: int, spacing: int, dilation: int, reverse: bool = False
) -> Window:
    """Returns a window over an input with padding, whose elements may have gaps between them.

    Args:
        extent: Elements of the input.
        outputs: Output positions.
        size: Elements of a window.
        stride: Distance of windows.
        low: Elements of padding on the left; a negative number drops elements.
        spacing: Distance of the elements of the input; more than 1 inserts padding between them.
        dilation: Distance of the elements of a window.
        reverse: True if offset 0 is the last element of a window.
    """
    last = (size - 1) * dilation
    shift = (last if reverse else 0) - low
    inside = spacing == 1 and low <= 0 and (outputs - 1) * stride + last - low < extent
    return Window(extent, outputs, size, stride, -dilation if reverse else dilation, shift, spacing, inside)


def addresses(
    windows: Sequence[Window], outputs: Sequence[AffineExpr], offsets: Sequence[AffineExpr]
) -> tuple[list[AffineExpr], list[Bound]]:
    """Returns the input position along each dimension, and all bounds within which the positions exist.

    Args:
        windows: Window of each dimension.
        outputs: Output along each dimension.
        offsets: Offset in the window along each dimension.
    """
    pairs = [w.address(o, k) for w, o, k in zip(windows, outputs, offsets, strict=True)]
    return [place for place, _ in pairs], [bound for _, bounds in pairs for bound in bounds]


def sliding(b: Builder, x: SSAValue, windows: Sequence[Window], fill: Number) -> SSAValue:
    """Returns all windows of `x`, with the dimensions (leading..., outputs..., offsets...).

    Args:
        b: Builder of the operator.
        x: Tensor.
        windows: Windows of the last dimensions of `x`.
        fill: Value outside `x`.
    """
    shape = extents_of(x.type)
    lead, n = len(shape) - len(windows), len(windows)
    space = [*shape[:lead], *(w.outputs for w in windows), *(w.size for w in windows)]
    index = dims(len(space))
    places, bounds = addresses(windows, index[lead : lead + n], index[lead + n :])
    return b.map(x, [*index[:lead], *places], space, bounds, fill)


def offsets(b: Builder, x: SSAValue, windows: Sequence[Window]) -> list[int]:
    """Returns the dimensions of `sliding(b, x, windows, ...)` that are offsets.

    Args:
        b: Builder of the operator.
        x: Tensor.
        windows: Windows of the last dimensions of `x`.
    """
    rank = len(extents_of(x.type))
    return list(range(rank, rank + len(windows)))


def contract_windows(
    b: Builder, x: SSAValue, w: SSAValue, windows: Sequence[Window], groups: int, transposed: bool, element: Attribute
) -> SSAValue:
    """Returns the sum of a convolution, of shape [batch, groups * channels, outputs...].

    The index space is (batch, group, channel, outputs..., input channel, offsets...); the input channel and the offsets
    are summed.

    Args:
        b: Builder of the operator.
        x: Input, of shape [batch, groups * input channels, elements...].
        w: Weight, with the dimensions (group and channel, input channel, offsets...), or, for a transposed convolution,
            (group and input channel, channel, offsets...).
        windows: Windows of the last dimensions of `x`.
        groups: Number of groups.
        transposed: True for the weight of a transposed convolution.
        element: Type in which the sum is computed.

    Raises:
        ShapeError: If the channels of `x` and `w` differ.
    """
    batch, n = extents_of(x.type)[0], len(windows)
    rows, columns = static(extents_of(w.type)[:2])
    per_group, inner = (columns, rows // groups) if transposed else (rows // groups, columns)
    if extents_of(x.type)[1] != inner * groups:
        raise ShapeError(f"expected {inner * groups} channels, but got {extents_of(x.type)[1]}", argument="input")
    space = [batch, groups, per_group, *(v.outputs for v in windows), inner, *(v.size for v in windows)]
    index = dims(len(space))
    group, channel, c = index[1], index[2], index[3 + n]
    places, bounds = addresses(windows, index[3 : 3 + n], index[4 + n :])
    x_at = [index[0], _grouped(group, c, groups, inner), *places]
    row, column, count = (c, channel, inner) if transposed else (channel, c, per_group)
    w_at = [_grouped(group, row, groups, count), column, *index[4 + n :]]
    # The padding is applied before the cast, so that it becomes the fill value of a load from `x`.
    operands = b.map(x, x_at, space, bounds, 0), b.map(w, w_at, space)
    y = b.reduce("add", b.mul(*(b.cast(operand, element) for operand in operands)), range(3 + n, len(space)))
    return reshape_to(b, y, [batch, groups * per_group, *(v.outputs for v in windows)])


def _grouped(group: AffineExpr, member: AffineExpr, groups: int, size: int) -> AffineExpr:
    return member if groups == 1 else group * size + member


def pooled(b: Builder, kind: ReductionKind, x: SSAValue, windows: Sequence[Window]) -> SSAValue:
    """Returns the reduction of each window of `x`.

    Args:
        b: Builder of the operator.
        kind: Reduction kind.
        x: Tensor.
        windows: Windows of the last dimensions of `x`.
    """
    seen = sliding(b, x, windows, identity(kind, element_type(x.type)))
    return b.reduce(kind.value, seen, offsets(b, x, windows))
