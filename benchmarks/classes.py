"""The classes of programs that the targets on an H200, and on the cores of a CPU, are about, each with its cases and
its baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

BF16, F32 = torch.bfloat16, torch.float32

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One program: a function of tensors in the order of `shapes`, and the operations that it cannot do without.

    Of `indices`, shape by name, are integers below a bound. `f32_matmul_precision` is an option for the planner.
    """

    name: str
    function: Callable[..., torch.Tensor]
    shapes: dict[str, Shape]
    dtype: torch.dtype = BF16
    flops: float = 0.0
    indices: dict[str, int] = field(default_factory=dict[str, int])
    f32_matmul_precision: str | None = None

    def inputs(self, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
        """Random normal inputs, the same for the same seed and device."""
        generator = torch.Generator(device).manual_seed(seed)

        def one(name: str, shape: Shape) -> torch.Tensor:
            if name in self.indices:
                return torch.randint(self.indices[name], shape, generator=generator, device=device)
            return torch.randn(shape, generator=generator, device=device, dtype=F32).to(self.dtype)

        return [one(*item) for item in self.shapes.items()]


@dataclass(frozen=True)
class Class:
    """Programs with one target: `baseline` over our time is to be at least `ship`, then `goal`, then `stretch`.

    The baseline `best` is the fastest of PyTorch's. `rate` is what a GPU of this kind computes at best, in operations a
    second, for the floor of a time.
    """

    name: str
    baseline: str
    ship: float
    goal: float
    stretch: float
    cases: tuple[Case, ...]
    rate: float = 790e12


def _product(m: int, n: int, k: int, dtype: torch.dtype = BF16, **more: Any) -> Case:
    shapes = {"x": (m, k), "w": (k, n)}
    return Case(f"{m}x{n}x{k}", torch.matmul, shapes, dtype, 2.0 * m * n * k, **more)


def _linear(m: int, n: int, k: int) -> Case:
    return Case(f"linear {m}x{n}x{k}", F.linear, {"x": (m, k), "w": (n, k)}, BF16, 2.0 * m * n * k)


def _batched(b: int, m: int, n: int, k: int) -> Case:
    return Case(f"{b}x{m}x{n}x{k}", torch.matmul, {"x": (b, m, k), "w": (b, k, n)}, BF16, 2.0 * b * m * n * k)


def _fused(name: str, function: Callable[..., torch.Tensor], m: int, n: int, k: int, more: dict[str, Shape]) -> Case:
    products = 2 if "v" in more else 1
    return Case(f"{name} {m}x{n}x{k}", function, {"x": (m, k), "w": (n, k), **more}, BF16, 2.0 * products * m * n * k)


def _bias_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def _residual(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w) + r


def _gate_up(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def _norm_first(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), g), w)


def _attention(b: int, heads: int, kv: int, length: int, width: int, causal: bool) -> Case:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != heads)

    shapes = {"q": (b, heads, length, width), "k": (b, kv, length, width), "v": (b, kv, length, width)}
    flops = 4.0 * b * heads * length * length * width * (0.5 if causal else 1.0)
    kind = "causal" if causal else "full"
    return Case(f"{kind} B{b} H{heads}/{kv} S{length} D{width}", function, shapes, BF16, flops)


def _decode(b: int, heads: int, kv: int, length: int, width: int) -> Case:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=kv != heads)

    shapes = {"q": (b, heads, 1, width), "k": (b, kv, length, width), "v": (b, kv, length, width)}
    return Case(f"B{b} H{heads}/{kv} S{length} D{width}", function, shapes, BF16, 4.0 * b * heads * length * width)


def _rows(rows: int, columns: int, dtype: torch.dtype) -> tuple[Case, ...]:
    kind = "bf16" if dtype is BF16 else "f32"
    size, weight = (rows, columns), (columns,)
    return (
        Case(f"softmax {kind} {rows}x{columns}", lambda x: F.softmax(x, -1), {"x": size}, dtype),
        Case(
            f"rms_norm {kind} {rows}x{columns}",
            lambda x, g: F.rms_norm(x, (columns,), g),
            {"x": size, "g": weight},
            dtype,
        ),
        Case(
            f"layer_norm {kind} {rows}x{columns}",
            lambda x, g, b: F.layer_norm(x, (columns,), g, b),
            {"x": size, "g": weight, "b": weight},
            dtype,
        ),
        Case(
            f"cross_entropy {kind} {rows}x{columns}",
            lambda x, t: F.cross_entropy(x.float(), t, reduction="none"),
            {"x": size, "t": (rows,)},
            dtype,
            indices={"t": columns},
        ),
    )


def _swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y


def _gelu_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + y, approximate="tanh")


CLASSES = (
    Class("bf16 product, large", "eager", 0.95, 1.0, 1.05, tuple(_product(n, n, n) for n in (4096, 8192))),
    Class(
        "bf16 product, small, odd, batched",
        "eager",
        1.0,
        1.15,
        1.5,
        (
            _product(512, 512, 512),
            _product(1024, 1024, 256),
            _product(4096, 4096, 128),
            _product(1000, 3000, 520),
            _product(128, 11008, 4096),
            _batched(64, 256, 256, 64),
            _batched(16, 512, 512, 128),
        ),
    ),
    Class(
        "product with prologue or epilogue",
        "max-autotune",
        1.05,
        1.2,
        1.5,
        (
            _fused("bias gelu", _bias_gelu, 4096, 4096, 4096, {"b": (4096,)}),
            _fused("residual", _residual, 4096, 4096, 1024, {"r": (4096, 4096)}),
            _fused("silu gate", _gate_up, 4096, 11008, 4096, {"v": (11008, 4096)}),
            _fused("rms norm first", _norm_first, 512, 4096, 2048, {"g": (2048,)}),
        ),
    ),
    Class(
        "f32 product",
        "eager",
        1.8,
        2.2,
        2.7,
        tuple(_product(n, n, n, F32, f32_matmul_precision="bf16x3") for n in (1024, 2048, 4096)),
        rate=131e12,
    ),
    Class(
        "attention",
        "eager",
        1.2,
        1.7,
        1.9,
        (
            _attention(4, 32, 32, 2048, 128, True),
            _attention(2, 32, 32, 8192, 128, True),
            _attention(4, 32, 8, 4096, 128, True),
            _attention(4, 32, 32, 2048, 128, False),
            _attention(8, 16, 16, 1024, 64, True),
        ),
    ),
    Class(
        "attention, decoding",
        "eager",
        1.5,
        3.0,
        6.0,
        (_decode(1, 32, 8, 8192, 128), _decode(16, 32, 8, 4096, 128), _decode(1, 28, 4, 32768, 128)),
    ),
    Class(
        "rows",
        "torch.compile",
        1.1,
        1.5,
        2.2,
        (*_rows(16384, 4096, BF16), *_rows(4096, 32768, BF16), *_rows(16384, 2048, F32), *_rows(1024, 131072, F32)),
    ),
    Class(
        "elementwise",
        "torch.compile",
        0.98,
        1.0,
        1.03,
        (
            Case("swiglu", _swiglu, {"x": (8192, 11008), "y": (8192, 11008)}),
            Case("gelu of a sum", _gelu_add, {"x": (16384, 4096), "y": (16384, 4096)}, F32),
        ),
    ),
    Class("launch-bound", "torch.compile", 2.0, 5.0, 10.0, (*_rows(32, 2048, F32), *_rows(32, 1024, BF16))),
    Class(
        "few rows times a matrix",
        "eager",
        1.0,
        1.1,
        2.0,
        (_product(1, 4096, 4096), _linear(1, 4096, 4096), _linear(1, 11008, 4096), _linear(8, 4096, 11008)),
    ),
)
"""The rows of the table; the 84 shapes have a benchmark of their own (`seed84.py`)."""


def _core(name: str, least: float, *cases: Case) -> Class:
    """A class of f32 programs on cores, with one bound."""
    return Class(name, "best", least, least, least, cases)


def _one(name: str, function: Callable[..., torch.Tensor], *shapes: Shape) -> Case:
    return Case(name, function, {f"x{i}": shape for i, shape in enumerate(shapes)}, F32)


def _times(m: int, n: int, k: int) -> Case:
    return _one(f"linear {m}x{n}x{k}", F.linear, (m, k), (n, k))


def _heads(heads: int, length: int, width: int, causal: bool) -> Case:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return _one(
        f"{'causal' if causal else 'full'} H{heads} S{length} D{width}", function, *[(1, heads, length, width)] * 3
    )


def _convolution(channels: int, size: int) -> Case:
    shapes = (1, channels, size, size), (channels, channels, 3, 3)
    return _one(f"{channels} channels of {size}x{size}", lambda x, w: F.conv2d(x, w, padding=1), *shapes)


CORE_CLASSES = (
    _core(
        "elementwise and norms",
        1.3,
        _one("gelu(x) * y + z 4096x4096", lambda x, y, z: F.gelu(x) * y + z, *[(4096, 4096)] * 3),
        _one("silu(x) * y 512x5632", _swiglu, (512, 5632), (512, 5632)),
        *(case for case in _rows(8192, 2048, F32) if "norm" in case.name),
    ),
    _core("softmax", 1.3, *(_one(f"{s}", lambda x: F.softmax(x, -1), s) for s in ((4096, 4096), (28, 512, 512)))),
    _core("column sums", 1.4, *(_one(f"{n}x{n}", lambda x: x.sum(0), (n, n)) for n in (2048, 8192))),
    _core("transposes", 1.2, *(_one(f"{n}x{n}", lambda x: x.t().contiguous(), (n, n)) for n in (2048, 4096))),
    _core("products, large", 0.97, *(_product(n, n, n, F32) for n in (512, 1024, 2048))),
    _core(
        "product with epilogue",
        1.1,
        _one("bias gelu 512x5504x2048", _bias_gelu, (512, 2048), (5504, 2048), (5504,)),
        _one("residual 512x2048x2048", _residual, (512, 2048), (2048, 2048), (512, 2048)),
    ),
    _core("attention", 1.4, _heads(32, 512, 64, True), _heads(28, 512, 128, True), _heads(32, 512, 64, False)),
    _core("few rows times a matrix", 0.95, _times(4, 2048, 2048), _times(32, 2048, 2048), _times(128, 5632, 2048)),
    _core("a row times a matrix", 0.95, _times(1, 5632, 2048), _times(1, 4096, 4096), _product(1, 4096, 4096, F32)),
    _core("convolutions 3x3", 0.8, _convolution(64, 56), _convolution(256, 14)),
    _core(
        "tiny",
        1.0,
        _one("relu 64", torch.relu, (64,)),
        _one("x * y + x 1000", lambda x, y: x * y + x, (1000,), (1000,)),
        _one("softmax 16x64", lambda x: F.softmax(x, -1), (16, 64)),
        _times(8, 32, 32),
    ),
)
"""The same for the cores of a CPU, in f32."""
