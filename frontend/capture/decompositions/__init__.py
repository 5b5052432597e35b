"""Decompositions of ATen operators that neither PyTorch nor the torch level decomposes, into other ATen operators.

`DECOMPOSITIONS` is the table of all of them. This file has those that fit in no other file of the folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._C import DispatchKey
from torch._decomp import decompositions
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

from ....errors import UnsupportedError
from .backward import BACKWARD, BAGS
from .distributions import DISTRIBUTIONS
from .operators import along, wide
from .ordering import ORDERING
from .polynomials import POLYNOMIALS
from .sampling import ANTIALIASED, FRACTIONAL, INTERPOLATED, NEAREST_ELEMENTS, SAMPLING
from .special import SPECIAL

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _convolution_backward(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of a convolution's input, weight and bias, each computed if its bit in `output_mask` is
    set.

    The gradient of the input is a transposed convolution. The gradient of the weight is a convolution of the input
    whose kernel is `gradient`, with stride and dilation exchanged.
    """
    dims = range(input.dim() - 2)
    stride, padding, dilation = (list(v) * len(dims) if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if output_mask[0] and transposed:
        of_input = aten.convolution(gradient, weight, None, stride, padding, dilation, False, [0 for _ in dims], groups)
        # If the output padding is at least the stride, the convolution has more positions than the input.
        for d in dims:
            of_input = of_input.narrow(d + 2, 0, input.shape[d + 2])
    elif output_mask[0]:
        least = [
            (gradient.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1
            for d in dims
        ]
        missing = [input.shape[d + 2] - least[d] for d in dims]
        of_input = aten.convolution(gradient, weight, None, stride, padding, dilation, True, missing, groups)
    if output_mask[1]:
        image, kernel = (gradient, input) if transposed else (input, gradient)
        batch, *size = image.shape[0], *image.shape[2:]
        image = image.reshape(batch, groups, -1, *size).transpose(0, 2).reshape(-1, groups * batch, *size)
        kernel = kernel.transpose(0, 1)
        of_weight = aten.convolution(image, kernel, None, dilation, padding, stride, False, [0 for _ in dims], groups)
        for d in dims:
            of_weight = of_weight.narrow(d + 2, 0, weight.shape[d + 2])
        of_weight = of_weight.transpose(0, 1)
    if output_mask[2]:
        of_bias = gradient.sum([0, *range(2, gradient.dim())])
    return of_input, of_weight, of_bias


def _transformer_encoder_layer_fwd(src: Tensor, embed_dim: int, num_heads: int, *arguments: Any) -> Tensor:
    """Computes `nn.TransformerEncoderLayer` in inference by the module itself, with its fast path disabled.

    The last arguments are a mask and its type. Type 0 is a mask of queries and keys, type 1 of samples and keys, type 2
    of samples, heads, queries and keys. True elements of a mask are ignored by attention.
    """
    attention, (use_gelu, norm_first, eps), others = arguments[:4], arguments[4:7], arguments[7:15]
    mask, mask_type = (*arguments[15:], None, None)[:2]
    if mask is not None:
        mask = torch.where((mask.flatten(0, 1) if mask_type == 2 else mask) != 0, -math.inf, 0.0).to(src.dtype)
    activation = "gelu" if use_gelu else "relu"
    with _disable_current_modes():
        layer = nn.TransformerEncoderLayer(
            embed_dim, num_heads, len(others[4]), 0.0, activation, eps, True, norm_first, device="meta"
        )
    weights = dict(zip(_ENCODER_WEIGHTS, (*attention, *others), strict=True))
    masks = {"src_key_padding_mask" if mask_type == 1 else "src_mask": mask}
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return torch.func.functional_call(layer.eval(), weights, (src,), masks)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


_ENCODER_WEIGHTS = [
    f"{of}{kind}"
    for of in ("self_attn.in_proj_", "self_attn.out_proj.", "norm1.", "norm2.", "linear1.", "linear2.")
    for kind in ("weight", "bias")
]
"""Names of the layer's parameters, in the order of the operator's arguments."""


def _embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales the rows that `indices` selects and that are longer than `max_norm` to about that length, as PyTorch
    does."""
    rows = wide(self)
    norm = torch.linalg.vector_norm(rows, norm_type, 1)
    used = torch.zeros(self.shape[0], dtype=torch.bool).index_fill(0, indices.reshape(-1), True)
    scale = torch.where(used & (norm > max_norm), max_norm / (norm + 1e-7), 1.0)
    return (rows * scale[:, None]).to(self.dtype)


def _multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Returns the sum over targets t and other classes i of max(0, 1 - (x[t] - x[i])), divided by the number of
    classes.

    The targets of a row end at its first negative number. `reduction`: 0 for no reduction, 1 for the mean over rows, 2
    for their sum. PyTorch decomposes this operator into `multilabel_margin_loss_forward` whenever it is traced, so that
    operator has no entry here.
    """
    if not self.is_floating_point():
        raise UnsupportedError(f"PyTorch has no kernel for {self.dtype}")
    x = wide(self).reshape(-1, self.shape[-1] if self.dim() else 1)
    target, classes = target.reshape(x.shape), x.shape[1]
    listed = (target < 0).cumsum(-1) == 0
    place = torch.where(listed, target, classes)
    is_target = torch.zeros_like(F.pad(x, (0, 1))).scatter(-1, place, 1.0)[:, :classes]
    margin = 1 - x.gather(-1, torch.where(listed, target, 0))[:, :, None] + x[:, None, :]
    counts = listed[:, :, None] & (is_target == 0)[:, None, :] & (margin > 0)
    loss = torch.where(counts, margin, 0.0).sum((1, 2)) / classes
    loss = loss.reshape(self.shape[:-1]) if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()
    return loss.to(self.dtype)


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _pdist(self: Tensor, p: float = 2) -> Tensor:
    """Returns the distances of all pairs of rows, in the order (0, 1), (0, 2), ..., (1, 2), ..."""
    first, second = torch.triu_indices(self.shape[0], self.shape[0], 1)
    return _norm(self[first] - self[second], p)


def _norm(x: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(x, p, -1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Returns the sum over `sumdim` of the product of three tensors.

    Each tensor first gets dimensions of size 1 at its own positions (`expand1`, `expand2`, `expand3`).
    """

    def spread(x: Tensor, dims: Sequence[int]) -> Tensor:
        x = wide(x) if x.is_floating_point() else x
        for d in sorted(dims):
            x = x.unsqueeze(d)
        return x

    return (spread(i1, expand1) * spread(i2, expand2) * spread(i3, expand3)).sum(list(sumdim)).to(i1.dtype)


def _lcm(self: Tensor, other: Tensor) -> Tensor:
    """Returns the least common multiple, |x / gcd * y|. Narrow types are computed in 32 bits, as in C."""
    dtype = torch.promote_types(self.dtype, other.dtype)
    wide = dtype if dtype == torch.int64 else torch.int32
    x, y, divisor = (v.to(wide) for v in (self, other, torch.gcd(self, other)))
    return (x.div(torch.where(divisor == 0, 1, divisor), rounding_mode="trunc") * y).abs().to(dtype)


def _nextafter(self: Tensor, other: Tensor) -> Tensor:
    """Returns the next float after `self` towards `other`, by an increment or decrement of its bits as an integer."""
    dtype = torch.promote_types(self.dtype, other.dtype)
    shape = torch.broadcast_shapes(self.shape, other.shape)
    x, y = (v.to(dtype).expand(shape).contiguous() for v in (self, other))
    bits = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    neighbour = torch.where((y > x) == (x > 0), bits + 1, bits - 1).view(dtype)
    neighbour = torch.where(x == 0, torch.copysign(torch.ones_like(bits).view(dtype), y), neighbour)
    return torch.where(x == y, y, torch.where(x.isnan() | y.isnan(), math.nan, neighbour))


def _frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the fraction (magnitude in [0.5, 1)) and the exponent of each number, from its bits."""
    x = wide(self).contiguous()
    whole, width, bits = (torch.int64, 64, 52) if x.dtype == torch.float64 else (torch.int32, 32, 23)
    exponents, half = (1 << width - 1) - (1 << bits), (1 << width - 2 - bits) - 2 << bits
    small = x.abs() < torch.finfo(x.dtype).smallest_normal
    raw = torch.where(small, x * 2.0**bits, x).view(whole)
    fraction = (raw & ~exponents | half).view(x.dtype)
    power = ((raw & exponents) - half >> bits) - torch.where(small, bits, 0)
    plain = (x == 0) | ~x.isfinite()
    return torch.where(plain, x, fraction).to(self.dtype), torch.where(plain, 0, power).to(torch.int32)


def _matrix_exp(self: Tensor) -> Tensor:
    """Returns the exponential of matrices, by scaling and squaring.

    Each matrix is divided by 2^k and inserted in a Taylor polynomial. The result is squared k times. A norm above
    `2 ** MATRIX_SQUARINGS` gives NaN.
    """
    x = wide(self)
    scale = torch.log2(x.abs().sum(-2).amax(-1).clamp(min=1)).ceil() if x.numel() else x.new_zeros(x.shape[:-2])
    x = x * torch.exp2(-scale)[..., None, None]
    powers = [torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape), x, x @ x]
    powers.append(powers[2] @ x)
    fourth, total = powers[2] @ powers[2], torch.zeros_like(x)
    for block in range(4 if x.dtype == torch.float64 else 2, -1, -1):
        total = total @ fourth + sum(p * (1 / math.factorial(4 * block + i)) for i, p in enumerate(powers))
    for i in range(MATRIX_SQUARINGS):
        total = torch.where((i < scale)[..., None, None], total @ total, total)
    return torch.where((scale > MATRIX_SQUARINGS)[..., None, None], math.nan, total).to(self.dtype)


MATRIX_SQUARINGS = 10
"""Binary logarithm of the largest norm of a matrix whose exponential is computed."""


def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return self.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate).reshape(self.shape)


def _masked_index(self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Tensor:
    """Returns the elements at `indices` where `mask` is true, else `fill`.

    A negative index counts from the end, as in PyTorch's kernel. PyTorch's own decomposition replaces it by 0.
    """
    if not self.numel():
        return self.new_full(aten._unsafe_index(self, indices).shape, fill)
    inside = [None if i is None else i.clamp(-n, n - 1) for i, n in zip(indices, self.shape, strict=False)]
    return aten._unsafe_index(self, inside).masked_fill(~mask, fill)


def _pad_circular(self: Tensor, pad: Sequence[int]) -> Tensor:
    """Pads dimensions circularly, the last dimension first. Negative padding removes elements before the others are
    repeated."""
    for i in range(len(pad) // 2):
        d, before, after = self.dim() - 1 - i, *pad[2 * i : 2 * i + 2]
        self = self.narrow(d, max(-before, 0), self.shape[d] + min(before, 0) + min(after, 0))
        place = torch.arange(-max(before, 0), self.shape[d] + max(after, 0), device=self.device)
        self = self.index_select(d, place % self.shape[d])
    return self


def _roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Rolls dimensions; without `dims`, rolls all elements as one dimension.

    Unlike PyTorch's decomposition, it takes no remainders of symbolic sizes.
    """
    if not dims:
        return _roll(self.reshape(-1), shifts, [0]).reshape(self.shape)
    for shift, d in zip(shifts, dims, strict=True):
        size = self.shape[d] if self.dim() else 0
        varies = isinstance(size, torch.SymInt) or isinstance(shift, torch.SymInt)
        start = -shift if varies else -shift % max(size, 1)
        if start:
            self = self.index_select(d, (torch.arange(size, device=self.device) + start) % size)
    return self


def _split(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    ends = accumulate(split_sizes)
    return tuple(self.narrow(dim, end - size, size) for size, end in zip(split_sizes, ends, strict=True))


def _round(self: Tensor, *, decimals: int) -> Tensor:
    x, power = wide(self), 10.0 ** abs(decimals)
    rounded = (x / power).round() * power if decimals < 0 else (x * power).round() / power
    return rounded.to(self.dtype)


def _scaled_and_shifted(y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    y = y if weight is None else y * along(weight, 1, y.dim())
    y = y if bias is None else y + along(bias, 1, y.dim())
    return y.to(dtype)


def _group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    x = wide(input).reshape(N, group, C // group, *input.shape[2:])
    y, mean, scale = aten.native_layer_norm(x, x.shape[2:], None, None, eps)
    y = _scaled_and_shifted(y.reshape(input.shape), weight, bias, input.dtype)
    return y, *(v.reshape(N, group).to(input.dtype) for v in (mean, scale))


def _normalized_by_running_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the batch normalization by running statistics, and empty tensors for the statistics of the batch."""
    x = wide(input)
    scale = (running_var.to(x.dtype) + eps).rsqrt()
    y = (x - along(running_mean.to(x.dtype), 1, x.dim())) * along(scale, 1, x.dim())
    return _scaled_and_shifted(y, weight, bias, input.dtype), input.new_empty(0), input.new_empty(0)


def _quantized(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Rounds `x` to the nearest value (q - zero_point) * scale with q in the range. Also returns where q was in the
    range.

    Computes in f32. A zero point of a floating-point type is added before rounding (PyTorch,
    ATen/native/quantized/cuda/FakeQuantizeCore.cu). NaN becomes the least q, as the cast to an integer does in CUDA.
    """
    narrow = x.to(torch.float32)
    steps = narrow * (1 / scale)
    with_fraction = isinstance(zero_point, Tensor) and zero_point.is_floating_point()
    q = torch.round(steps + zero_point) if with_fraction else torch.round(steps) + zero_point
    inside = (q >= quant_min) & (q <= quant_max)
    q = torch.where(q.isnan(), quant_min, q.clamp(quant_min, quant_max))
    return ((q - zero_point) * scale).to(x.dtype), inside


def _quantized_by_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Quantizes with a scale, a zero point and a switch that are tensors of one element."""
    on = fake_quant_enabled.reshape(()) != 0
    quantized, inside = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    return torch.where(on, quantized, self), inside | ~on


def _quantized_per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    scale, zero_point = (along(v, axis, self.dim()) for v in (scale, zero_point))
    return _quantized(self, scale, zero_point, quant_min, quant_max)


def _int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    return self.to(torch.int32) @ mat2.to(torch.int32)


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    entry, forget, update, output = (F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)).chunk(4, 1)
    cell = forget.sigmoid() * cell + entry.sigmoid() * update.tanh()
    return output.sigmoid() * cell.tanh(), cell


def _gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    of_input = F.linear(input, w_ih, b_ih).chunk(3, 1)
    of_hidden = F.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset = (of_input[0] + of_hidden[0]).sigmoid()
    update = (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (hx - new)


if DispatchKey.CompositeImplicitAutograd not in aten.gru_cell.default.py_kernels:
    # PyTorch's kernel calls `_thnn_fused_gru_cell` for tensors of a GPU, which has no rule for tensors without data.
    aten.gru_cell.default.py_impl(DispatchKey.CompositeImplicitAutograd)(_gru_cell)

_one_layer_lstm = decompositions.one_layer_lstm


def _one_layer(*args: Any, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Computes an LSTM layer. Removes the dimension of size 1 that PyTorch 2.11 adds to the returned states."""
    result, states = _one_layer_lstm(*args, **kwargs)
    return result, tuple(s.squeeze(0) if s.dim() > 2 else s for s in states)


decompositions.one_layer_lstm = _one_layer

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "convolution_backward.default": _convolution_backward,
    "_transformer_encoder_layer_fwd.default": _transformer_encoder_layer_fwd,
    "embedding_renorm.default": _embedding_renorm,
    "multilabel_margin_loss.default": _multilabel_margin_loss,
    "_cdist_forward.default": _cdist,
    "_pdist_forward.default": _pdist,
    "_trilinear.default": _trilinear,
    "_is_all_true.default": torch.all,
    "_is_any_true.default": torch.any,
    "lcm.default": _lcm,
    "_unsafe_masked_index.default": _masked_index,
    "nextafter.default": _nextafter,
    "frexp.Tensor": _frexp,
    "_pad_circular.default": _pad_circular,
    "put.default": _put,
    "linalg_matrix_exp.default": _matrix_exp,
    "roll.default": _roll,
    "round.decimals": _round,
    "split_with_sizes.default": _split,
    "_native_batch_norm_legit_no_training.default": _normalized_by_running_stats,
    "native_group_norm.default": _group_norm,
    "fake_quantize_per_tensor_affine_cachemask.default": _quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _quantized_by_tensors,
    "fake_quantize_per_channel_affine_cachemask.default": _quantized_per_channel,
    "_int_mm.default": _int_mm,
    **NEAREST_ELEMENTS,
    **INTERPOLATED,
    **ANTIALIASED,
    **BACKWARD,
    **BAGS,
    **DISTRIBUTIONS,
    **FRACTIONAL,
    **ORDERING,
    **POLYNOMIALS,
    **SAMPLING,
    "lstm_cell.default": _lstm_cell,
    "gru_cell.default": _gru_cell,
    **SPECIAL,
}
"""Decomposition by overload name, without `aten.`."""
