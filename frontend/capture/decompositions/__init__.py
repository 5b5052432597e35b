"""Operators of ATen for which neither PyTorch nor the torch level has a decomposition, made of other operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .antialiasing import ANTIALIASED
from .quantized import QUANTIZED
from .windows import WINDOWS

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
    """The gradients of a convolution are convolutions: that of the input is the transposed one, and that of the weight
    has the gradient as its kernel, with the steps of kernel and input exchanged."""
    dims = range(input.dim() - 2)
    stride, padding, dilation = (list(v) * len(dims) if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if output_mask[0] and transposed:
        of_input = aten.convolution(gradient, weight, None, stride, padding, dilation, False, [0 for _ in dims], groups)
    elif output_mask[0]:
        least = [
            (gradient.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1
            for d in dims
        ]
        rest = [input.shape[d + 2] - least[d] for d in dims]
        of_input = aten.convolution(gradient, weight, None, stride, padding, dilation, True, rest, groups)
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


def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What `nn.MultiheadAttention` calls in inference. A mask of type 0 is of queries and keys, of type 1 of samples
    and keys, of type 2 of all with heads; what it has is left out."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    if mask is not None:
        masked = mask.to(torch.bool)
        masked = masked[:, None, None, :] if mask_type == 1 else masked
        scores = scores.masked_fill(masked, -math.inf)
    shares = torch.softmax(scores, -1)
    result = F.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, result.new_empty(0)
    return result, shares.mean(1) if average_attn_weights else shares


def _transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """What `nn.TransformerEncoderLayer` calls in inference."""

    def norm(x: Tensor, which: int) -> Tensor:
        weight, bias = ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))[which]
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attention(x: Tensor) -> Tensor:
        parameters = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *parameters, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm(src, 0))
        return x + feed_forward(norm(x, 1))
    x = norm(src + attention(src), 0)
    return norm(x + feed_forward(x), 1)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: _convolution_backward,
    aten._native_multi_head_attention.default: _native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer_fwd,
    **ANTIALIASED,
    **QUANTIZED,
    **WINDOWS,
}
