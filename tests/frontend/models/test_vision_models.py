"""Convolutional networks as people write them: residual blocks, and a U with skip connections."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import deplodock


class Residual(nn.Module):
    """Two convolutions and a shortcut, which is a convolution itself where the shape changes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        same = stride == 1 and before == width
        short = nn.Conv2d(before, width, 1, stride, bias=False)
        self.shortcut = nn.Identity() if same else nn.Sequential(short, nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of residual blocks, each of half the size and twice the width; two blocks a stage make ResNet-18."""

    def __init__(self, width: int, stages: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = [width << stage for stage in range(stages) for _ in range(blocks)]
        pairs = zip([width, *widths[:-1]], widths, strict=True)
        self.blocks = nn.Sequential(*(Residual(a, b, 1 if a == b else 2) for a, b in pairs))
        self.mean, self.out = nn.AdaptiveAvgPool2d(1), nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.mean(self.blocks(self.pool(self.stem(x)))).flatten(1))


def double(before: int, width: int) -> nn.Sequential:
    """Two convolutions, each normalised."""
    layers = [(before, width), (width, width)]
    return nn.Sequential(*(m for a, b in layers for m in (nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU())))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, and what was on the way down joined to what comes up."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.start, self.out = double(1, width), nn.Conv2d(width, 2, 1)
        widths = [width << i for i in range(depth)]
        self.down = nn.ModuleList(double(w, 2 * w) for w in widths)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[::-1])
        self.joined = nn.ModuleList(double(2 * w, w) for w in widths[::-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        passed = []
        for down in self.down:
            passed.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([passed.pop(), up(x)], 1))
        return self.out(x)


def check(model: nn.Module, x: torch.Tensor, executor: str) -> None:
    """The model, with statistics that a trained one would have, gives what PyTorch gives."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_(0, 0.2)
            norm.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(norm.weight, 1, 0.2)
    model.eval()
    with torch.no_grad():
        expected = model(x)
    assert expected.std() > 1e-2
    torch.testing.assert_close(deplodock.compile(model, (x,), executor=executor)(x), expected, rtol=1e-4, atol=1e-5)


def test_a_resnet_of_18_layers() -> None:
    torch.manual_seed(0)
    check(ResNet(8, 4, 2), torch.randn(2, 3, 32, 32), "reference")


def test_a_unet_of_23_layers() -> None:
    torch.manual_seed(0)
    check(UNet(4, 4), torch.randn(2, 1, 32, 32), "reference")


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_small_ones_in_kernels(name: str, executor: str) -> None:
    torch.manual_seed(0)
    if name == "resnet":
        check(ResNet(4, 2, 1), torch.randn(1, 3, 16, 16), executor)
    else:
        check(UNet(2, 1), torch.randn(1, 1, 8, 8), executor)
