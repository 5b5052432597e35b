"""Large programs by name: whole networks, and programs whose size is a parameter.

The compiler recognises repeated layers. Many of these programs repeat nothing (each layer has another shape), so their
compile time shows how the compiler scales. A `Builder` returns a function or module and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
Builder = Callable[[], Program]


class Block(nn.Module):
    """A transformer block with `heads` heads and `hidden` units in its feed-forward part."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def blocks(count: int, unequal: bool) -> Builder:
    """Returns the builder of a stack of transformer blocks. Each block has another hidden width if `unequal`."""

    def build() -> Program:
        layers = [Block(256, 4, 512 + 64 * i * unequal) for i in range(count)]
        return nn.Sequential(*layers), (torch.randn(2, 64, 256),)

    return build


class Bottleneck(nn.Module):
    """A bottleneck block of ResNet-50: convolutions 1x1, 3x3, 1x1 added to a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        convs = [nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes]
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            self.skip = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = y if i == 2 else torch.relu(y)
        return torch.relu(y + self.skip(x))


def resnet50() -> Program:
    """Returns ResNet-50 in inference mode, and two images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(2, 3, 224, 224),)


class UNet(nn.Module):
    """A U-Net: two convolutions per level, max pooling down, interpolation and concatenation up."""

    def __init__(self, depth: int, width: int = 32) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(self._pair(i, o) for i, o in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(self._pair(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.last = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        convs = [nn.Conv2d(i, outputs, 3, padding=1) for i in (inputs, outputs)]
        return nn.Sequential(
            convs[0], nn.GroupNorm(8, outputs), nn.SiLU(), convs[1], nn.GroupNorm(8, outputs), nn.SiLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = list[torch.Tensor]()
        for i, pair in enumerate(self.down):
            x = pair(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for pair in self.up:
            x = pair(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return self.last(x)


def unet() -> Program:
    """Returns a U-Net of depth 3, and an image of 64x64."""
    return UNet(3), (torch.randn(1, 3, 64, 64),)


def pointwise(count: int, repeating: bool) -> Builder:
    """Returns the builder of a chain of pointwise operations. If not `repeating`, each one has another constant."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for i in range(count):
            step = i % 3
            constant = 0.5 if repeating else 0.5 + 1e-3 * i
            x = torch.sin(x) if step == 0 else x * constant if step == 1 else torch.relu(x) + constant
        return x

    return lambda: (chain, (torch.randn(1024),))


def matmuls(count: int) -> Builder:
    """Returns the builder of `count` independent matmuls, each with another number of columns."""

    def many(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(x @ w) for w in weights]

    return lambda: (many, (torch.randn(64, 64), *(torch.randn(64, 16 + 8 * i) for i in range(count))))


class Cells(nn.Module):
    """LSTM cell that a Python loop applies to the input of each step."""

    def __init__(self, steps: int, width: int = 64) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.LSTMCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros_like(x[0])
        for i in range(self.steps):
            h, c = self.cell(x[i], (h, c))
        return h


def lstm_cells(steps: int) -> Builder:
    """Returns the builder of an unrolled LSTM of some steps."""
    return lambda: (Cells(steps), (torch.randn(steps, 8, 64),))


class Experts(nn.Module):
    """A mixture of experts. A Python loop applies every expert to all tokens; each token sums its best two."""

    def __init__(self, count: int, width: int = 64) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True)
        return out


def experts(count: int) -> Builder:
    """Returns the builder of a mixture of `count` experts."""
    return lambda: (Experts(count), (torch.randn(32, 64),))


def unequal_mlp(count: int) -> Builder:
    """Returns the builder of `count` linear layers, each followed by relu, whose shapes differ."""

    def build() -> Program:
        sizes = [64 + 8 * (i * 7 % 211) for i in range(count + 1)]
        layers = [m for i, o in zip(sizes, sizes[1:], strict=False) for m in (nn.Linear(i, o), nn.ReLU())]
        return nn.Sequential(*layers), (torch.randn(32, sizes[0]),)

    return build


class Recurrent(nn.Module):
    """A stack of recurrent layers (`nn.LSTM`, `nn.GRU`), and a linear layer on the result of the last step."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, width: int) -> None:
        super().__init__()
        self.rnn, self.out = kind(width, width, layers, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def recurrent(kind: type[nn.RNNBase], steps: int) -> Builder:
    """Returns the builder of a network of 6 recurrent layers, with 10 sequences of `steps` steps."""
    return lambda: (Recurrent(kind, 6, 128), (torch.randn(10, steps, 128),))


def powers(x: torch.Tensor) -> torch.Tensor:
    """Multiplies by integer powers of two. Integer powers are computed by repeated squaring."""
    return x * 2 ** torch.arange(8)


def xorshift(x: torch.Tensor) -> torch.Tensor:
    """Computes 8 rounds of xorshift. Each intermediate value has two uses."""
    for _ in range(8):
        x = x ^ (x << 13)
        x = x ^ (x >> 7)
        x = x ^ (x << 17)
    return x


PROGRAMS: dict[str, Builder] = {
    "2 blocks": blocks(2, False),
    "8 unequal blocks": blocks(8, True),
    "16 unequal blocks": blocks(16, True),
    "ResNet-50": resnet50,
    "UNet depth 3": unet,
    "1,000 pointwise": pointwise(1_000, True),
    "5,000 pointwise": pointwise(5_000, True),
    "800 pointwise, not repeating": pointwise(800, False),
    "5,000 pointwise, not repeating": pointwise(5_000, False),
    "200 matmul shapes": matmuls(200),
    "LSTMCell x 25": lstm_cells(25),
    "LSTMCell x 50": lstm_cells(50),
    "LSTMCell x 60": lstm_cells(60),
    "MoE 16 experts as a loop": experts(16),
    "MoE 32 experts as a loop": experts(32),
    "MoE 64 experts as a loop": experts(64),
    "MLP 200 unequal layers": unequal_mlp(200),
    "GRU 512 steps": recurrent(nn.GRU, 512),
    "LSTM 512 steps": recurrent(nn.LSTM, 512),
    "integer powers": lambda: (powers, (torch.arange(8),)),
    "integer powers of tensors": lambda: (torch.pow, (torch.arange(8), torch.arange(8))),
    "xorshift x 8": lambda: (xorshift, (torch.arange(64),)),
    "ndtri": lambda: (torch.special.ndtri, (torch.rand(64),)),
}
