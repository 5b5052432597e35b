"""Resampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..limits import check_table
from ..registry import Host, refuse, rule
from ..values import axis_of, numbers


def _positions(
    count: int, extent: int, scale: float, transformation: str, begin: float, end: float
) -> np.ndarray[Any, Any]:
    """Returns the coordinates in the input of the elements of an output of `count` elements."""
    x = np.arange(count, dtype=np.float64)
    match transformation:
        case "asymmetric":
            return x / scale
        case "half_pixel" | "half_pixel_symmetric":
            y = (x + 0.5) / scale - 0.5
            if transformation == "half_pixel":
                return y
            adjustment = count / (scale * extent)
            return extent / 2 * (1 - adjustment) + y
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if count > 1 else np.zeros(1)
        case "align_corners":
            return x * (extent - 1) / (scale * extent - 1) if count > 1 else np.zeros(count)
        case "tf_crop_and_resize":
            if count > 1:
                return begin * (extent - 1) + x * (end - begin) * (extent - 1) / (count - 1)
            return np.full(count, 0.5 * (begin + end) * (extent - 1))
        case _:
            return refuse(f"the coordinate transformation {transformation} is not supported")


def _nearest(x: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    match mode:
        case "round_prefer_floor":
            return np.ceil(x - 0.5)
        case "round_prefer_ceil":
            return np.floor(x + 0.5)
        case "floor":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
        case _:
            return refuse(f"the nearest mode {mode} is not supported")


def _cubic(t: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    t = np.abs(t)
    inner = (a + 2) * t**3 - (a + 3) * t**2 + 1
    outer = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


def weights_of(
    x: np.ndarray[Any, Any], extent: int, scale: float, mode: str, a: float, exclude: bool, antialias: bool
) -> np.ndarray[Any, Any]:
    """Returns the matrix of an interpolation along one dimension: a row for each output, a column for each input.

    Args:
        x: coordinates of the outputs in the input.
        extent: number of inputs.
        scale: outputs for each input.
        mode: `linear` or `cubic`.
        a: coefficient of the cubic kernel.
        exclude: whether inputs outside of the image have no weight; else the edge is repeated.
        antialias: whether the kernel is widened when the image gets smaller.
    """
    reach = {"linear": 1.0, "cubic": 2.0}[mode]
    narrow = min(scale, 1.0) if antialias else 1.0
    kernel = (lambda t: np.maximum(1 - np.abs(t), 0)) if mode == "linear" else (lambda t: _cubic(t, a))
    matrix = np.zeros((len(x), extent))
    for row, center in enumerate(x):
        first, last = int(np.floor(center - reach / narrow)) - 1, int(np.ceil(center + reach / narrow)) + 1
        columns = np.arange(first, last + 1)
        w = kernel((columns - center) * narrow)
        if exclude:
            w = np.where((columns >= 0) & (columns < extent), w, 0.0)
        if exclude or antialias:
            w = w / w.sum()
        np.add.at(matrix[row], columns.clip(0, extent - 1), w)
    return matrix


@rule("Resize", "Upsample")
def resize(
    x: Tensor,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    op: str,
) -> Tensor:
    # Interpolates each dimension by itself, as a selection of elements or as a product with a constant matrix.
    if op == "Upsample":
        roi, scales, coordinate_transformation_mode, nearest_mode = None, roi, "asymmetric", "floor"
    dims = [*range(x.dim())] if axes is None else [axis_of(a, x.dim()) for a in axes]
    extents = [x.shape[d] for d in dims]
    if any(not isinstance(e, int) for e in extents):
        refuse("the sizes of the image vary, which is not supported")
    if sizes is not None and sizes.size:
        counts = [int(s) for s in numbers(sizes)]
        factors = [w / e for w, e in zip(counts, extents, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factor = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors = [factor] * len(dims)
            counts = [int(np.floor(factor * e + 0.5)) for e in extents]
    else:
        assert scales is not None
        factors = [float(s) for s in numbers(scales)]
        counts = [int(np.floor(f * e)) for f, e in zip(factors, extents, strict=True)]
    box = [0.0] * len(dims) + [1.0] * len(dims) if roi is None or not roi.size else [float(r) for r in numbers(roi)]
    outside = torch.zeros((), dtype=torch.bool)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    for n, dim in enumerate(dims):
        extent, count = extents[n], counts[n]
        if extent == count and factors[n] == 1.0 and not crop:
            continue
        check_table(count, 1 if mode == "nearest" else extent)
        at = _positions(count, extent, factors[n], coordinate_transformation_mode, box[n], box[n + len(dims)])
        if crop:
            shape = [-1 if d == dim else 1 for d in range(x.dim())]
            outside = outside | torch.from_numpy((at < 0) | (at > extent - 1)).reshape(shape)
        if mode == "nearest":
            index = torch.from_numpy(_nearest(at, nearest_mode).clip(0, extent - 1).astype(np.int64))
            x = x.index_select(dim, index)
        else:
            matrix = weights_of(at, extent, factors[n], mode, cubic_coeff_a, bool(exclude_outside), bool(antialias))
            table = torch.from_numpy(matrix.astype(np.float32)).to(x.dtype)
            x = torch.matmul(x.movedim(dim, -1), table.T).movedim(-1, dim)
    return torch.where(outside, torch.full((), extrapolation_value, dtype=x.dtype), x) if crop else x
