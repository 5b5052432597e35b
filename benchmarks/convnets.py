"""Times convolutional networks on the CPU, compared with eager PyTorch and torch.compile: f32 inference.

    python benchmarks/convnets.py [--only WORD] [--batch N] [--threads N] [--json FILE]

The compared versions of a network are called arms: `eager`, `inductor` (torch.compile), `ours` and `prepacked`. `ours`
computes everything in each call; `prepacked` computes values that depend on weights only once. All results are compared
with eager PyTorch, then the arms take turns in one process. Prints a line per network and batch size: milliseconds of a
call, and the time of PyTorch's fastest arm divided by ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import nn

import deplodock
from deplodock.backend.host.timing import in_turns

PYTORCH, OURS = ("eager", "inductor"), ("ours", "prepacked")
"""Arms of PyTorch, and arms of deplodock."""

TOLERANCE = 1e-3
"""Largest difference from eager PyTorch, relative to the largest result."""


def conv_norm(inputs: int, outputs: int, side: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Returns a convolution, padded so that it divides the image size by `stride`, and its batch norm.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        side: height and width of the window.
        stride: step of the window.
        groups: number of channel groups.
    """
    conv = nn.Conv2d(inputs, outputs, side, stride, side // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """A residual block of ResNet: convolutions of `shapes` (output channels, window side, stride) and a shortcut."""

    def __init__(self, inputs: int, *shapes: tuple[int, int, int]) -> None:
        super().__init__()
        layers, channels, strides = list[nn.Module](), inputs, 1
        for outputs, side, stride in shapes:
            layers += [*conv_norm(channels, outputs, side, stride), nn.ReLU()]
            channels, strides = outputs, strides * stride
        self.body = nn.Sequential(*layers[:-1])
        same_shape = channels == inputs and strides == 1
        self.shortcut = nn.Identity() if same_shape else nn.Sequential(*conv_norm(inputs, channels, 1, strides))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet(counts: tuple[int, ...], bottleneck: bool) -> nn.Module:
    """Returns a ResNet. `counts` is the number of blocks in each stage."""
    layers: list[nn.Module] = [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            basic = (width, 3, stride), (width, 3, 1)
            layers.append(Residual(inputs, *(((width, 1, 1), basic[0], (4 * width, 1, 1)) if bottleneck else basic)))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class InvertedResidual(nn.Module):
    """A block of MobileNetV2: expands the channels, convolves each channel, and reduces the channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        wide = [*conv_norm(inputs, width, 1), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(
            *wide, *conv_norm(width, width, 3, stride, width), nn.ReLU6(), *conv_norm(width, outputs, 1)
        )
        self.equal = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.equal else self.body(x)


def mobilenet() -> nn.Module:
    """Returns MobileNetV2."""
    layers, inputs = [*conv_norm(3, 32, 3, 2), nn.ReLU6()], 32
    stages = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    for expansion, outputs, count, stride in stages:
        for i in range(count):
            layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net with batch norms: max pooling down, transposed convolutions up, concatenation of equal levels."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        pairs = [*zip([3, *widths[:-1]], widths, strict=True)]
        self.down = nn.ModuleList(self._pair(i, o) for i, o in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * o, o, 2, 2) for o in widths[-2::-1])
        self.merge = nn.ModuleList(self._pair(2 * o, o) for o in widths[-2::-1])
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(*conv_norm(inputs, outputs, 3), nn.ReLU(), *conv_norm(outputs, outputs, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = list[torch.Tensor]()
        for i, pair in enumerate(self.down):
            x = pair(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.last(x)


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images in NCHW order."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    """A block of ConvNeXt: a depthwise convolution, a layer norm, and two linear layers over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """Returns ConvNeXt-T."""
    layers, inputs = list[nn.Module](), 3
    for width, count in zip((96, 192, 384, 768), (3, 3, 9, 3), strict=True):
        if inputs == 3:
            layers += [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
        else:
            layers += [ChannelNorm(inputs), nn.Conv2d(inputs, width, 2, 2)]
        layers += [NextBlock(width) for _ in range(count)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-18": (lambda: resnet((2, 2, 2, 2), False), 224),
    "ResNet-50": (lambda: resnet((3, 4, 6, 3), True), 224),
    "MobileNetV2": (mobilenet, 224),
    "U-Net": (UNet, 128),
    "ConvNeXt-T": (convnext, 224),
}
"""Name -> function that returns the network, and height and width of its images."""


def network(name: str, batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns a network with random weights and batch-norm statistics, and its `batch` images."""
    torch.manual_seed(0)
    build, side = NETWORKS[name]
    module = build().eval()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            assert m.running_mean is not None
            assert m.running_var is not None
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.5, 1.5)
    return module, (torch.randn(batch, 3, side, side),)


def measure(name: str, batch: int, arms: tuple[str, ...], seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Times the arms of one network in turns.

    Args:
        name: Name of the network.
        batch: Number of images.
        arms: Names of the arms, of `eager`, `inductor`, `ours`, `prepacked`.
        seconds: Time of all samples together.
        clock: Returns the time in seconds: wall time or processor time.

    Returns:
        A row: the median of each arm in milliseconds, and the largest difference from eager PyTorch.
    """
    module, args = network(name, batch)
    row: dict[str, Any] = {"network": name, "batch": batch, "threads": torch.get_num_threads()}
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    with torch.no_grad():
        expected = module(*args)
        for arm in arms:
            start = perf_counter()
            if arm == "eager":
                program: Callable[..., Any] = module
            elif arm == "inductor":
                program = torch.compile(module)
            else:
                program = deplodock.compile(
                    module, args, target="cpu", prepack_weights=arm == "prepacked", record="none"
                )
            result = program(*args)
            row[f"{arm}_compile_seconds"] = round(perf_counter() - start, 1)
            error = float((result - expected).abs().max() / expected.abs().max())
            if not error < TOLERANCE:
                raise click.ClickException(f"{name}: {arm} differs from eager by {error:.1e}")
            calls[arm] = lambda program=program: program(*args)

        def sample(call: Callable[[], torch.Tensor]) -> float:
            start = clock()
            call()
            return clock() - start

        once = {arm: min(sample(call) for _ in range(2)) for arm, call in calls.items()}
        rounds = max(5, min(51, int(seconds / sum(once.values()))))
        samples = in_turns({arm: lambda call=call: sample(call) for arm, call in calls.items()}, rounds)
    for arm, times in samples.items():
        row[arm] = round(sorted(times)[len(times) // 2] * 1e3, 3)
        row[f"{arm}_least"] = round(min(times) * 1e3, 3)
    row["load"] = round(os.getloadavg()[0], 2)
    return row


def ratio(row: dict[str, Any], ours: str, kind: str = "") -> float | None:
    """Returns the time of PyTorch's fastest arm divided by the arm `ours`, or None if one of them was not measured.

    Args:
        row: row of a network.
        ours: `ours` or `prepacked`.
        kind: suffix of the columns: empty for medians, `_least` for least times.
    """
    best = min((row[arm + kind] for arm in PYTORCH if arm + kind in row), default=None)
    return None if best is None or ours not in row else best / row[ours + kind]


@click.command(help=__doc__)
@click.option("--only", default="", help="Networks whose name contains this text.")
@click.option("--batch", "batches", type=int, multiple=True, default=(1, 8), help="Number of images.")
@click.option("--threads", type=int, default=None, help="Threads of PyTorch and of compiled programs.")
@click.option("--arm", "arms", type=click.Choice((*PYTORCH, *OURS)), multiple=True, default=(*PYTORCH, *OURS))
@click.option("--seconds", default=8.0, help="Time of the samples of one network.")
@click.option("--processor", is_flag=True, help="Count seconds of the processor, which other work disturbs less.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(
    only: str,
    batches: tuple[int, ...],
    threads: int | None,
    arms: tuple[str, ...],
    seconds: float,
    processor: bool,
    path: Path | None,
) -> None:
    """Measures the networks and prints the table."""
    if threads is not None:
        torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    columns = "".join(f"{arm:>11s}" for arm in arms)
    click.echo(
        f"{'network':14s}{'batch':>6s}{columns}   ms; best of PyTorch's over ours, of medians and of least times"
    )
    for name in (n for n in NETWORKS if only in n):
        for batch in batches:
            row = measure(name, batch, arms, seconds, process_time if processor else perf_counter)
            rows.append(row)
            times = "".join(f"{row[arm]:11.2f}" for arm in arms)
            ratios = {arm: (ratio(row, arm), ratio(row, arm, "_least")) for arm in OURS}
            shares = ", ".join(f"{arm} {of[0]:.2f} {of[1]:.2f}" for arm, of in ratios.items() if of[0] and of[1])
            click.echo(f"{name:14s}{batch:6d}{times}   {shares}")
            if path is not None:
                path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
