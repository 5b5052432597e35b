"""Operators of torchvision for detection: nms, roi_align and its gradient, and deform_conv2d.

They are functions of tensors with the results of torchvision's C++ kernels (torchvision/csrc/ops/cpu).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._sympy.value_ranges import bound_sympy

Tensor = torch.Tensor

_LIBRARY = torch.library.Library("deplodock", "FRAGMENT")
_LIBRARY.define("greedy_selection(Tensor conflicts) -> Tensor")


@torch.library.impl(_LIBRARY, "greedy_selection", "CompositeExplicitAutograd")
def _greedy_selection(conflicts: Tensor) -> Tensor:
    """Returns the elements that are selected if each one is taken unless it conflicts with an earlier one."""
    selected = torch.ones(conflicts.shape[0], dtype=torch.bool, device=conflicts.device)
    for i in range(conflicts.shape[0]):
        selected[i] = not (conflicts[i, :i] & selected[:i]).any()
    return selected


@torch.library.register_fake("deplodock::greedy_selection", lib=_LIBRARY)
def _selection_of_fakes(conflicts: Tensor) -> Tensor:
    return conflicts.new_empty(conflicts.shape[:1])


greedy_selection: Any = torch.ops.deplodock.greedy_selection


def _most(size: Any) -> int:
    """Returns the largest value of a size, which may depend on data. Raises ValueError if it has no bound."""
    if isinstance(size, int):
        return size
    env = size.node.shape_env
    most = bound_sympy(size.node.expr, env.var_to_range).upper
    if not most < MAX_BOXES:
        raise ValueError(f"expected at most {MAX_BOXES} boxes; call torch._check(boxes.shape[0] <= n)")
    return int(most)


MAX_BOXES = 1 << 15
"""Largest bound of a number of boxes that depends on data. There is a bit for each pair of boxes."""


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Returns the indices of the boxes that no box of a higher score overlaps by more than the threshold, by score.

    Boxes are ordered, and a box is kept unless it conflicts with a box that is kept (`greedy_selection`). A number of
    boxes that depends on data is filled up with empty boxes to its bound.
    """
    count, most = dets.shape[0], _most(dets.shape[0])
    order = torch.sort(scores, descending=True, stable=True).indices
    if most <= 1:
        return order
    boxes = dets[order]
    if not isinstance(count, int):
        row = torch.arange(most, device=dets.device)
        boxes = torch.where((row < count)[:, None], boxes[torch.where(row < count, row, 0)], 0.0)
    x1, y1, x2, y2 = boxes.unbind(1)
    area = (x2 - x1) * (y2 - y1)
    width = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    height = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    common = width * height
    conflicts = common / (area[:, None] + area - common) > iou_threshold
    selected = greedy_selection(conflicts)
    return order[selected.narrow(0, 0, count)]


def _box_samples(
    rois: Tensor, scale: float, bins: int, grid: int, size: int, axis: int, aligned: bool
) -> tuple[Tensor, Tensor]:
    """Returns the sampling positions of boxes along one axis, and a mask of the samples that exist.

    Args:
        rois: boxes (image, x1, y1, x2, y2), of shape [boxes, 5].
        scale: pixels of the input for a unit of the boxes.
        bins: bins of a box along the axis.
        grid: samples of a bin; 0 or less for a sample for each row of the bin, rounded up.
        size: size of the input along the axis.
        axis: 0 for x, 1 for y.
        aligned: whether boxes are shifted by half a pixel.

    Returns:
        Two tensors of shape [boxes, bins, samples].
    """
    shift = 0.5 if aligned else 0.0
    start, end = rois[:, 1 + axis] * scale - shift, rois[:, 3 + axis] * scale - shift
    length = end - start if aligned else (end - start).clamp(min=1.0)
    width = length / bins
    samples = grid if grid > 0 else size
    count = torch.full_like(width, grid) if grid > 0 else torch.ceil(width)
    if grid <= 0:
        torch.ops.aten._assert_async.msg(
            (count <= samples).all(), f"roi_align: a bin has more than {samples} samples; pass sampling_ratio"
        )
    number = torch.arange(samples, device=rois.device, dtype=width.dtype)
    bin = torch.arange(bins, device=rois.device, dtype=width.dtype)
    step = (number + 0.5) * (width / count)[:, None]
    places = (start[:, None] + bin * width[:, None])[:, :, None] + step[:, None, :]
    return places, (number < count[:, None])[:, None, :].expand(places.shape)


def _bilinear(places: Tensor, exists: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns the two rows that a sample is interpolated from, and their weights, which are 0 outside of the input.

    Args:
        places: positions of samples.
        exists: mask of the samples.
        size: rows of the input.

    Returns:
        Rows and weights, with a last dimension of size 2.
    """
    inside = exists & (places >= -1) & (places <= size)
    places = places.clamp(0, size - 1)
    low = places.floor().to(torch.int64)
    fraction = places - low
    rows = torch.stack([low, (low + 1).clamp(max=size - 1)], -1)
    return rows, torch.stack([1 - fraction, fraction], -1) * inside[..., None]


def _corners(
    rois: Tensor, scale: float, bins: tuple[int, int], size: tuple[int, int], grid: int, aligned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the pixels that bins are computed from: rows and columns with their weights, and the samples of a bin.

    Rows have the shape [boxes, bins, samples * 2], and columns likewise. The weight of a pixel is the product of both
    weights, divided by the number of samples.
    """
    y, in_height = _box_samples(rois, scale, bins[0], grid, size[0], 1, aligned)
    rows, row_weights = _bilinear(y, in_height, size[0])
    x, in_width = _box_samples(rois, scale, bins[1], grid, size[1], 0, aligned)
    columns, column_weights = _bilinear(x, in_width, size[1])
    count = (in_height[:, 0].sum(-1) * in_width[:, 0].sum(-1)).clamp(min=1).to(rois.dtype)
    return rows.flatten(2), row_weights.flatten(2), columns.flatten(2), column_weights.flatten(2), count


def _roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Returns the mean of bilinear samples of each bin of each box.

    Args:
        input: images of shape [n, channels, height, width].
        rois: boxes (image, x1, y1, x2, y2), of shape [boxes, 5].
        spatial_scale: pixels of the input for a unit of the boxes.
        pooled_height: rows of bins.
        pooled_width: columns of bins.
        sampling_ratio: samples of a bin along each axis; 0 or less for a sample for each pixel of the bin.
        aligned: whether boxes are shifted by half a pixel.
    """
    bins, size = (pooled_height, pooled_width), (input.shape[2], input.shape[3])
    rows, y, columns, x, count = _corners(rois, spatial_scale, bins, size, sampling_ratio, aligned)
    image = rois[:, 0].to(torch.int64)[:, None, None, None, None]
    at_rows, at_columns = rows[:, :, None, :, None], columns[:, None, :, None, :]
    pixels = input.permute(0, 2, 3, 1)[image, at_rows, at_columns]
    weights = y[:, :, None, :, None] * x[:, None, :, None, :] / count[:, None, None, None, None]
    return (pixels * weights[..., None]).sum((3, 4)).permute(0, 3, 1, 2).to(input.dtype)


def _roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Returns the gradient of the images: the gradient of a bin, with the weights of its pixels, added to these.

    Args:
        grad: gradient of shape [boxes, channels, pooled_height, pooled_width].
        rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned: as for `_roi_align`.
        batch_size, channels, height, width: shape of the images.
    """
    bins, size = (pooled_height, pooled_width), (height, width)
    rows, y, columns, x, count = _corners(rois, spatial_scale, bins, size, sampling_ratio, aligned)
    weights = y[:, :, None, :, None] * x[:, None, :, None, :] / count[:, None, None, None, None]
    image = rois[:, 0].to(torch.int64)[:, None, None, None, None]
    place = (image * height + rows[:, :, None, :, None]) * width + columns[:, None, :, None, :]
    values = grad.permute(0, 2, 3, 1)[:, :, :, None, None, :] * weights[..., None]
    result = grad.new_zeros(batch_size * height * width, channels)
    result = result.index_add(0, place.reshape(-1), values.reshape(-1, channels))
    return result.reshape(batch_size, height, width, channels).permute(0, 3, 1, 2)


def _deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Returns a convolution whose window reads at positions that are shifted by `offset`, interpolated.

    Args:
        input: images of shape [n, channels, height, width].
        weight: weights of shape [results, channels / groups, window rows, window columns].
        offset: shifts, of shape [n, offset_groups * window * 2, rows, columns].
        mask: factors, of shape [n, offset_groups * window, rows, columns]; used if `use_mask`.
        bias: a number for each result.
        stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w: geometry of the window.
        groups: groups of channels that are convolved.
        offset_groups: groups of channels that share shifts.
        use_mask: whether `mask` is used.
    """
    n, channels, height, width = input.shape
    results, _, window_h, window_w = weight.shape
    rows, columns = offset.shape[2:]
    window = window_h * window_w
    shifts = offset.reshape(n, offset_groups, window, 2, rows, columns)

    def positions(axis: int, size: int, window_size: int, stride: int, pad: int, dilation: int) -> Tensor:
        number = torch.arange(window, device=input.device)
        inside = number // window_w if axis == 0 else number % window_w
        at = torch.arange(size, device=input.device) * stride - pad
        at = at[:, None] if axis == 0 else at
        return (inside[:, None, None] * dilation + at).to(offset.dtype) + shifts[:, :, :, axis]

    y = positions(0, rows, window_h, stride_h, pad_h, dilation_h)
    x = positions(1, columns, window_w, stride_w, pad_w, dilation_w)
    # Elements [n, offset group, channel of the group, window, row, column].
    flat = input.reshape(n, offset_groups, channels // offset_groups, 1, height * width)
    y0, x0 = y.floor(), x.floor()
    samples: Any = 0.0
    for row, of_row in ((y0, 1 - (y - y0)), (y0 + 1, y - y0)):
        for column, of_column in ((x0, 1 - (x - x0)), (x0 + 1, x - x0)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = torch.where(inside, row * width + column, 0).to(torch.int64).reshape(n, offset_groups, 1, 1, -1)
            pixels = torch.gather(
                flat.expand(-1, -1, -1, 1, -1), 4, place.expand(-1, -1, channels // offset_groups, 1, -1)
            )
            pixels = pixels.reshape(n, offset_groups, -1, window, rows, columns)
            samples = samples + pixels * torch.where(inside, of_row * of_column, 0)[:, :, None]
    if use_mask:
        samples = samples * mask.reshape(n, offset_groups, 1, window, rows, columns)
    samples = samples.reshape(n, groups, -1, rows * columns)
    weights = weight.reshape(groups, results // groups, -1)
    return (weights @ samples).reshape(n, results, rows, columns) + bias[:, None, None]


DECOMPOSITIONS = {
    "nms.default": _nms,
    "roi_align.default": _roi_align,
    "_roi_align_backward.default": _roi_align_backward,
    "deform_conv2d.default": _deform_conv2d,
}
"""Decomposition by overload name, without `torchvision.`."""
