"""Programs for tests of the CPU target, with their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def _ints(*shape: int, high: int = 9) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(len(shape)))


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _bytes(*shape: int) -> torch.Tensor:
    return (_ints(*shape, high=256) - 128).to(torch.int8)


def _words(*shape: int) -> torch.Tensor:
    return (_ints(*shape, high=2**32) - 2**31).to(torch.int32)


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, i, v)


def _normalised(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.linear(F.rms_norm(x, x.shape[-1:]), w), x * 2


def _heads(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear((x / s.unsqueeze(-1)).bfloat16().reshape(1, -1), w)


DOTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a row of bf16": (F.linear, (_floats(1, 160).bfloat16(), _floats(77, 160).bfloat16())),
    "a long row of bf16": (F.linear, (_floats(1, 8352).bfloat16(), _floats(16, 8352).bfloat16())),
    "a normalised row of bf16": (_normalised, (_floats(1, 96).bfloat16(), _floats(64, 96).bfloat16())),
    "heads of bf16": (_heads, (_floats(7, 32), _floats(7).exp(), _floats(128, 224).bfloat16())),
    "gates of bf16": (
        lambda x, v, w: F.silu(F.linear(x, v)) * F.linear(x, w),
        (_floats(1, 64).bfloat16(), _floats(130, 64).bfloat16(), _floats(130, 64).bfloat16()),
    ),
    "rows times rows of bf16": (
        lambda x, y: (x.float() * y.float()).sum(-1),
        (_floats(21, 96).bfloat16(), _floats(21, 96).bfloat16()),
    ),
}
"""Dot products of bf16 vectors, which are not matmuls: name -> function and arguments."""


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "elementwise": (lambda x, y: F.gelu(x) * y + x.sin(), (_floats(37, 300), _floats(300))),
    "one element": (lambda x: x * 2, (_floats(1),)),
    "nothing": (lambda x: x * 2, (_floats(0, 3),)),
    "sums of no columns": (lambda x: x.sum(0), (_floats(500, 0),)),
    "softmax": (lambda x: torch.softmax(x, -1), (_floats(33, 300),)),
    "softmax of rows of -inf": (lambda x: torch.softmax(x.masked_fill(x < 9, -torch.inf), -1), (_floats(5, 40),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (257,), w, b), (_floats(20, 257), _floats(257), _floats(257))),
    "column sums": (lambda x: x.sum(0), (_floats(500, 130),)),
    "mean and variance over dimensions apart": (lambda x: torch.var_mean(x, (0, 2)), (_floats(5, 6, 70),)),
    "largest, with NaN": (lambda x: (x / (x > -2)).log().amax(1), (_floats(50, 100),)),
    "counts": (lambda x: (x > 0).sum(-1), (_floats(50, 100),)),
    "all and any": (lambda x: torch.stack([(x > -3).all(1), (x > 2).any(1)]), (_floats(50, 100),)),
    "transpose": (lambda x: x.t().contiguous() + 1, (_floats(130, 70),)),
    "transposes": (lambda x, y: (x.t() * y.t() + x.t(), y.t().half()), (_floats(128, 192), _floats(128, 192))),
    "product": (lambda a, b: a @ b, (_floats(70, 50), _floats(50, 90))),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1),
        (_floats(2, 3, 9, 20), _floats(3, 4, 3, 3)),
    ),
    "transposed convolution with steps": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, dilation=3),
        (_floats(2, 20, 7, 9), _floats(20, 17, 3, 4)),
    ),
    "products of transposed matrices": (lambda a, b: a.t() @ b.t(), (_floats(300, 70), _floats(90, 300))),
    "products of blocks that end": (lambda a, b: a @ b.t(), (_floats(259, 301), _floats(77, 301))),
    "products of few columns": (lambda a, b: a @ b, (_floats(40, 70), _floats(70, 5))),
    "product of a long sum": (lambda a, b: a @ b, (_floats(33, 1000), _floats(1000, 65))),
    "linear and epilogue": (lambda x, w, b: F.silu(F.linear(x, w, b)), (_floats(65, 96), _floats(80, 96), _floats(80))),
    "a row times a matrix": (lambda a, b: a @ b, (_floats(1, 333), _floats(333, 129))),
    "a norm and a row times a matrix": (
        lambda x, w, v: F.silu(F.linear(F.rms_norm(x, x.shape[-1:]), w)) * F.linear(F.rms_norm(x, x.shape[-1:]), v),
        (_floats(1, 304), _floats(700, 304), _floats(699, 304)[:1].expand(700, 304)),
    ),
    "rows that end in a vector": (
        lambda x, w: F.linear(F.rms_norm(x, (301,)), w),
        (_floats(1, 301), _floats(700, 301)),
    ),
    "a row that is chosen": (
        lambda x, i, w: F.linear(x[i].exp(), w),
        (_floats(4, 96), _ints(1, high=4), _floats(90, 96)),
    ),
    "products of rows a page apart": (lambda a, b: a @ b, (_floats(45, 1024), _floats(1024, 40))),
    "products of int64": (lambda a, b: a @ b, (_ints(20, 30), _ints(30, 40))),
    "products of int32": (lambda a, b: a @ b, (_words(37, 213), _words(213, 77))),
    "products of int8": (torch._int_mm, (_bytes(37, 216), _bytes(216, 72))),
    "linear of int8": (lambda x, w: torch._int_mm(x, w.t()), (_bytes(65, 304), _bytes(80, 304))),
    "products of transposed int8": (lambda a, b: torch._int_mm(a.t(), b), (_bytes(40, 88), _bytes(40, 80))),
    "products of int8 of odd depth": (lambda a, b: torch._int_mm(a, b), (_bytes(33, 43), _bytes(43, 24))),
    "products of int8 that wrap": (lambda a, b: a @ b, (_bytes(37, 50), _bytes(50, 77))),
    "products of f64": (lambda a, b: a @ b, (_floats(40, 30).double(), _floats(30, 70).double())),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_floats(2, 65, 32), _floats(2, 66, 32)[:, :65], _floats(2, 67, 32)[:, :65]),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), (_floats(2, 5, 19, 20), _floats(9, 5, 3, 3))),
    "convolution and epilogue": (
        lambda x, w, b, y: F.relu(F.conv2d(x, w, b, padding=1) + y),
        (_floats(2, 20, 15, 21), _floats(64, 20, 3, 3), _floats(64), _floats(2, 64, 15, 21)),
    ),
    "convolution with steps": (
        lambda x, w: F.conv2d(x, w, padding=2, stride=2, dilation=2),
        (_floats(1, 7, 30, 33), _floats(40, 7, 3, 3)),
    ),
    "convolution by groups": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=2),
        (_floats(2, 12, 9, 70), _floats(64, 6, 3, 3)),
    ),
    "convolution of channels side by side": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (
            _floats(1, 20, 15, 15).to(memory_format=torch.channels_last),
            _floats(48, 20, 3, 3).to(memory_format=torch.channels_last),
        ),
    ),
    "convolution of bf16": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (_floats(1, 20, 15, 15).bfloat16(), _floats(48, 20, 3, 3).bfloat16()),
    ),
    "convolution of few channels": (
        lambda x, w: F.conv2d(x, w, padding=3, stride=2),
        (_floats(1, 3, 40, 40), _floats(32, 3, 7, 7)),
    ),
    "convolution of each channel": (
        lambda x, w: F.conv2d(x, w, padding=2, groups=12),
        (_floats(2, 12, 19, 37), _floats(12, 1, 5, 5)),
    ),
    "padding": (
        lambda x, y, z, i: tuple(F.pad(t, (19, 3, 1, 2), value=5) + t[0, 0] for t in (x, y, z, i)),
        (_floats(7, 50), _floats(7, 70).bfloat16(), _floats(7, 35).double(), _ints(7, 40)),
    ),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (_floats(2, 4, 19, 20),)),
    "near": (
        lambda *xs: [
            (x.flip(-1), x[..., 1::2] * 2, x[..., ::3] + 1, x.repeat_interleave(2, -1), x.roll(3, 0)) for x in xs
        ],
        (_floats(6, 64), _floats(8, 32).double(), _floats(4, 64).half(), _ints(5, 64), _ints(4, 128).to(torch.int8)),
    ),
    "complex numbers": (
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
        (_floats(5, 48, 2), _floats(5, 48, 2)),
    ),
    "gather": (lambda x, i: x[i] * 2, (_floats(9, 70), _ints(50))),
    "scatter": (_put, (_floats(9, 70), _ints(50), _floats(50, 70))),
    "running sums": (lambda x: torch.cumsum(x, -1), (_floats(20, 100),)),
    "sort": (lambda x: torch.sort(x, -1).values, (_floats(6, 40),)),
    "few of many": (lambda x: x.topk(3), (_floats(6, 140),)),
    "softmax of columns that end in a tile": (lambda x: x.softmax(0), (_floats(10, 5).bfloat16(),)),
    "bf16": (lambda x: (x * 3).softmax(-1), (_floats(20, 100).bfloat16(),)),
    "products of bf16": (lambda a, b: a @ b, (_floats(37, 213).bfloat16(), _floats(213, 77).bfloat16())),
    "linear of bf16": (F.linear, (_floats(65, 300).bfloat16(), _floats(77, 300).bfloat16())),
    "products of rows of bf16 a page apart": (
        lambda a, b: a @ b.t(),
        (_floats(45, 2048).bfloat16(), _floats(40, 2048).bfloat16()),
    ),
    "products of transposed bf16": (lambda a, b: a.t() @ b, (_floats(38, 90).bfloat16(), _floats(38, 77).bfloat16())),
    "f16": (lambda x, w: F.linear(x, w), (_floats(20, 100).half(), _floats(40, 100).half())),
    "int8": (lambda x: (x * 2 + 1).clamp(-5, 7), (_ints(1000).to(torch.int8),)),
    "integers": (lambda x, y: (x // y, x % y, x << 2, x ^ y), (_ints(300, high=99), _ints(300, high=8) + 1)),
    "f64": (lambda x: x.exp().sum(-1), (_floats(20, 100).double(),)),
    "order of truth values": (
        lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y, x.sort(stable=True)[1], x > y[:1], x == y[:1]),
        (_ints(1000, high=2).bool(), _ints(1000, high=2).bool().flip(0)),
    ),
    "several kernels": (lambda x, w: F.relu(x @ w) @ w.t() + x, (_floats(40, 60), _floats(60, 50))),
    "recurrence": (torch.nn.LSTM(12, 20, batch_first=True).eval(), (_floats(2, 5, 12),)),
    **DOTS,
}
