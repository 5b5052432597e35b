"""Convolutions: contractions through the index maps of sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.shapes.extents import extents_of, static
from ....dialects.tensor.builder import Builder, dims, work_type
from ....errors import ShapeError
from .registry import decomposes
from .reshape import reshape_to
from .windows import Bound, Strided, Upsampled, domain_of


@decomposes("conv1d", "conv2d", "conv3d", "convolution")
def convolution(
    b: Builder,
    input: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
) -> SSAValue:
    spatial = len(extents_of(weight.type)) - 2
    element = work_type(b.result_element)
    x, w = b.cast(input, element), b.cast(weight, element)
    batched = len(extents_of(x.type)) == spatial + 2
    if not batched:
        x = reshape_to(b, x, [1, *extents_of(x.type)])
    lists = [_each(argument, spatial) for argument in (stride, padding, dilation, output_padding)]
    each = zip(extents_of(x.type)[2:], static(extents_of(w.type)[2:]), *lists, strict=True)
    windows = [(Upsampled if transposed else Strided).over(b.algebra, *sizes) for sizes in each]
    y = _contract_windows(b, x, w, windows, groups, transposed)
    if bias is not None:
        y = b.add(y, b.place(b.cast(bias, element), [1], extents_of(y.type)))
    return y if batched else reshape_to(b, y, extents_of(y.type)[1:])


def _each(values: Sequence[int], count: int) -> list[int]:
    if len(values) not in (1, count):
        raise ShapeError(f"{len(values)} values for {count} dimensions")
    return list(values) * count if len(values) == 1 else list(values)


def _contract_windows(
    b: Builder,
    x: SSAValue,
    w: SSAValue,
    windows: Sequence[Strided | Upsampled],
    groups: int,
    transposed: bool,
) -> SSAValue:
    """Over the space (batch, group, channel, outputs..., input channel, offsets...), summed over the last ones.

    The weight of an ordinary convolution is (group and channel, input channel, offsets...), that of a transposed one
    (group and input channel, channel, offsets...).
    """
    batch, n = extents_of(x.type)[0], len(windows)
    rows, columns = static(extents_of(w.type)[:2])
    per_group, inner = (columns, rows // groups) if transposed else (rows // groups, columns)
    if extents_of(x.type)[1] != inner * groups:
        raise ShapeError(f"{extents_of(x.type)[1]} channels where {inner * groups} are needed", argument="input")
    space = [batch, groups, per_group, *(v.outputs for v in windows), inner, *(v.size for v in windows)]
    index = dims(len(space))
    group, channel, c = index[1], index[2], index[3 + n]
    x_at, bounds = [index[0], _grouped(group, c, groups, inner)], list[Bound]()
    for i, window in enumerate(windows):
        o, k = index[3 + i], index[4 + n + i]
        x_at.append(window.place(o, k))
        bounds += window.bounds(o, k)
    row, column, count = (c, channel, inner) if transposed else (channel, c, per_group)
    w_at = [_grouped(group, row, groups, count), column, *index[4 + n :]]
    spread = b.map(x, x_at, space, domain_of(bounds, len(space)), 0)
    y = b.reduce("add", b.mul(spread, b.map(w, w_at, space)), range(3 + n, len(space)))
    return reshape_to(b, y, [batch, groups * per_group, *(v.outputs for v in windows)])


def _grouped(group: AffineExpr, member: AffineExpr, groups: int, size: int) -> AffineExpr:
    return member if groups == 1 else group * size + member
