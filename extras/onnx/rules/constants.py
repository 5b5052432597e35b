"""Constants, windows and transforms of signals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..limits import check_table
from ..registry import Host, refuse, rule
from ..values import HostArray, axis_of, dtype_of, number


@rule("Constant")
def constant(
    *,
    value: HostArray | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Any:
    if sum(v is not None for v in (value, value_float, value_floats, value_int, value_ints)) != 1:
        refuse("expected a constant with one value of numbers; text and sparse constants are not supported")
    # The result stays an array. It becomes a tensor if a later rule takes a tensor.
    if value is not None:
        return np.asarray(value)
    if value_int is not None or value_ints is not None:
        return np.array(value_ints if value_int is None else value_int, dtype=np.int64)
    return np.array(value_floats if value_float is None else value_float, dtype=np.float32)


def _cosines(size: int, periodic: int, coefficients: tuple[float, ...]) -> np.ndarray[Any, Any]:
    """Returns the window `sum((-1)**k * coefficients[k] * cos(k * x))` for `size` values of x.

    The values begin at 0. The last one is 2 pi, or one step before it if the window is `periodic`.
    """
    check_table(size)
    n = np.arange(size) * (2 * np.pi / max(size if periodic else size - 1, 1))
    return sum(((-1) ** k * c * np.cos(k * n) for k, c in enumerate(coefficients)), np.zeros(size))


WINDOWS: dict[str, tuple[float, ...]] = {
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46),
    "HannWindow": (0.5, 0.5),
}


@rule(*WINDOWS)
def window(size: Host, *, output_datatype: int = 1, periodic: int = 1, op: str) -> Tensor:
    return torch.from_numpy(_cosines(int(number(size)), periodic, WINDOWS[op])).to(dtype_of(output_datatype))


@rule("DFT")
def dft(
    x: Tensor,
    length: Host | None = None,
    axis: Host | None = None,
    *,
    axis_: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    opset: int,
) -> Tensor:
    # The last dimension of `x` has one element (the real part) or two (with the imaginary part), and is no axis.
    dim = axis_of(int(number(axis)) if axis is not None else -2 if opset >= 20 else axis_, x.dim())
    signal = torch.complex(x[..., 0], x[..., 1] if x.shape[-1] == 2 else torch.zeros_like(x[..., 0]))
    count = None if length is None else int(number(length))
    if inverse and onesided:
        return torch.fft.irfft(signal, count, dim).unsqueeze(-1)
    y = (torch.fft.ifft if inverse else torch.fft.fft)(signal, count, dim)
    y = y.narrow(dim, 0, y.shape[dim] // 2 + 1) if onesided else y
    return torch.view_as_real(y)


@rule("STFT")
def stft(
    x: Tensor, step: Host, window: Tensor | None = None, length: Host | None = None, *, onesided: int = 1
) -> Tensor:
    if x.dim() == 3 and x.shape[-1] == 2:
        signal = torch.complex(x[..., 0], x[..., 1])
    else:
        signal = x.squeeze(-1) if x.dim() == 3 else x
    size = int(number(length)) if length is not None else window.shape[0] if window is not None else 0
    frames = signal.unfold(-1, size, int(number(step)))
    frames = frames if window is None else frames * window
    y = torch.fft.fft(frames.to(torch.complex64))
    return torch.view_as_real(y[..., : size // 2 + 1] if onesided else y)


@rule("MelWeightMatrix")
def mel_weight_matrix(
    bins: Host, length: Host, rate: Host, lower: Host, upper: Host, *, output_datatype: int = 1
) -> Tensor:
    # The weights depend on constants only, so they are computed on the host.
    count, points = int(number(bins)), int(number(length)) // 2 + 1
    check_table(points, count + 2)

    def mel(f: float) -> float:
        return 2595 * np.log10(1 + f / 700)

    low, high = mel(float(number(lower))), mel(float(number(upper)))
    edges = low + np.arange(count + 2) * (high - low) / (count + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    places = ((int(number(length)) + 1) * hertz / float(number(rate))).astype(np.int64)
    result = np.zeros((points, count), np.float32)
    for n in range(count):
        first, center, last = places[n : n + 3]
        for k in range(first, center + 1):
            result[k, n] = (k - first) / (center - first) if center > first else 1
        for k in range(center, last):
            result[k, n] = (last - k) / (last - center)
    return torch.from_numpy(result).to(dtype_of(output_datatype))


@rule("RandomNormal", "RandomUniform")
def random(
    *,
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: list[int],
    op: str,
) -> Tensor:
    if op == "RandomNormal":
        return torch.randn(shape, dtype=dtype_of(dtype)) * scale + mean
    return torch.rand(shape, dtype=dtype_of(dtype)) * (high - low) + low


@rule("RandomNormalLike", "RandomUniformLike")
def random_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    op: str,
) -> Tensor:
    kind = x.dtype if dtype is None else dtype_of(dtype)
    if op == "RandomNormalLike":
        return torch.randn_like(x, dtype=kind) * scale + mean
    return torch.rand_like(x, dtype=kind) * (high - low) + low


@rule("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return (torch.rand_like(x) < x).to(x.dtype if dtype is None else dtype_of(dtype))
