"""Operators of torchvision with its schemas, computed element by element, where the package is not installed.

They follow torchvision's documentation and C++ kernels, and were compared with torchvision 0.29.1.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any

import torch

Tensor = torch.Tensor

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h,"
    " SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups,"
    " SymInt offset_groups, bool use_mask) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
)


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Returns the boxes that no kept box of a higher score overlaps, by score.

    Args:
        dets: boxes (x1, y1, x2, y2).
        scores: a score for each box.
        iou_threshold: largest ratio of intersection and union.
    """
    selected = list[int]()
    for i in torch.sort(scores, descending=True, stable=True).indices.tolist():
        if all(_overlap(dets[i], dets[j]) <= iou_threshold for j in selected):
            selected.append(i)
    return torch.tensor(selected, dtype=torch.int64)


def _overlap(a: Tensor, b: Tensor) -> float:
    sizes = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    common = sizes[0] * sizes[1]
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return float(common / union) if union else 0.0


def _pixels(image: Tensor, y: float, x: float, clamp: bool) -> list[tuple[int, int, float]]:
    """Returns the pixels (row, column, weight) that a position is interpolated from.

    Args:
        image: tensor of shape [channels, height, width].
        y, x: position.
        clamp: whether positions near the border are moved onto it; otherwise pixels outside do not count.
    """
    height, width = image.shape[1:]
    if clamp:
        if not (-1 <= y <= height and -1 <= x <= width):
            return []
        y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    y0, x0 = floor(y), floor(x)
    corners = [(y0 + i, x0 + j, abs(1 - i - (y - y0)) * abs(1 - j - (x - x0))) for i in (0, 1) for j in (0, 1)]
    return [(r, c, w) for r, c, w in corners if 0 <= r < height and 0 <= c < width]


def _samples(roi: Any, scale: float, bins: tuple[int, int], ratio: int, aligned: bool) -> Any:
    """Yields (row of bins, column of bins, y, x, 1 / number of samples) of each sample of a box."""
    shift = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (v * scale - shift for v in roi[1:].tolist())
    height, width = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
    grid = [ratio if ratio > 0 else ceil(size / n) for size, n in zip((height, width), bins, strict=True)]
    for i in range(bins[0]):
        for j in range(bins[1]):
            for a in range(grid[0]):
                for b in range(grid[1]):
                    y = y1 + (i + (a + 0.5) / grid[0]) * height / bins[0]
                    x = x1 + (j + (b + 0.5) / grid[1]) * width / bins[1]
                    yield i, j, y, x, 1 / max(grid[0] * grid[1], 1)


def roi_align(input: Tensor, rois: Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Tensor:
    result = input.new_zeros(rois.shape[0], input.shape[1], rows, columns)
    for k, roi in enumerate(rois):
        image = input[int(roi[0])]
        for i, j, y, x, share in _samples(roi, scale, (rows, columns), ratio, aligned):
            for r, c, weight in _pixels(image, y, x, True):
                result[k, :, i, j] += image[:, r, c] * weight * share
    return result


def roi_align_backward(
    grad: Tensor, rois: Tensor, scale: float, rows: int, columns: int, n: int, c: int, h: int, w: int, *sampling: Any
) -> Tensor:
    result = grad.new_zeros(n, c, h, w)
    for k, roi in enumerate(rois):
        image = result[int(roi[0])]
        for i, j, y, x, share in _samples(roi, scale, (rows, columns), *sampling):
            for r, column, weight in _pixels(image, y, x, True):
                image[:, r, column] += grad[k, :, i, j] * weight * share
    return result


def deform_conv2d(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups, use_mask = geometry
    (n, channels, _, _), (results, _, window_h, window_w) = input.shape, weight.shape
    result = input.new_zeros(n, results, *offset.shape[2:]) + bias[:, None, None]
    window, wide = window_h * window_w, channels // offset_groups
    for b, i, j in ((b, i, j) for b in range(n) for i in range(offset.shape[2]) for j in range(offset.shape[3])):
        read = input.new_zeros(channels, window)
        for g, p in ((g, p) for g in range(offset_groups) for p in range(window)):
            shift = offset[b, 2 * (g * window + p) :, i, j]
            y = i * stride_h - pad_h + p // window_w * dilation_h + float(shift[0])
            x = j * stride_w - pad_w + p % window_w * dilation_w + float(shift[1])
            factor = float(mask[b, g * window + p, i, j]) if use_mask else 1.0
            image = input[b, g * wide : (g + 1) * wide]
            for r, c, w in _pixels(image, y, x, False):
                read[g * wide : (g + 1) * wide, p] += image[:, r, c] * w * factor
        parts = read.reshape(groups, -1)
        result[b, :, i, j] += (weight.reshape(groups, results // groups, -1) @ parts[..., None]).reshape(-1)
    return result


def _fake_nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def _fake_deform_conv2d(input: Tensor, weight: Tensor, offset: Tensor, *_: Any) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[0], *offset.shape[2:])


_IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "nms": (nms, _fake_nms),
    "roi_align": (roi_align, lambda x, rois, s, h, w, *_: x.new_empty(rois.shape[0], x.shape[1], h, w)),
    "deform_conv2d": (deform_conv2d, _fake_deform_conv2d),
    "_roi_align_backward": (roi_align_backward, lambda g, r, s, a, b, n, c, h, w, *_: g.new_empty(n, c, h, w)),
}


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape, ctx.options = inputs[0].shape, inputs[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scale, rows, columns, ratio, aligned = ctx.options
    backward = torch.ops.torchvision._roi_align_backward
    gradient = backward(grad, *ctx.saved_tensors, scale, rows, columns, *ctx.shape, ratio, aligned)
    return gradient, *[None] * 6


def register() -> torch.library.Library | None:
    """Registers the operators, unless torchvision has. Keep the returned library alive."""
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    # A torchvision of another version of PyTorch raises RuntimeError.
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            name = schema.partition("(")[0]
            library.define(schema)
            function, fake = _IMPLEMENTATIONS[name]
            library.impl(name, function, "CPU")
            torch.library.register_fake(f"torchvision::{name}", fake, lib=library)
        torch.library.register_autograd("torchvision::roi_align", _backward, setup_context=_save, lib=library)
        return library
    return None


LIBRARY = register()
