"""Networks for images: classifiers, encoders and decoders, attention over pixels and windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


def image(channels: int = 3, size: int = 16, batch: int = 1) -> Tensor:
    return torch.randn(batch, channels, size, size)


def conv_bn(a: int, b: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers = [nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if act else []))


class BasicBlock(nn.Module):
    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv_bn(a, b, 3, stride), conv_bn(b, b, act=False)
        self.shortcut = nn.Identity() if a == b and stride == 1 else conv_bn(a, b, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


@program
def small_resnet() -> Built:
    body = [conv_bn(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), BasicBlock(8, 8), BasicBlock(8, 16, 2)]
    return inference(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))), (image(size=24),)


@program
def bottleneck_with_groups() -> Built:
    layers = nn.Sequential(conv_bn(16, 8, 1), conv_bn(8, 8, 3, groups=4), conv_bn(8, 16, 1, act=False))
    inference(layers)
    return (lambda x: F.relu(x + layers(x))), (image(16, 8),)


class MBConv(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_bn(c, 4 * c, 1), conv_bn(4 * c, 4 * c, 5, groups=4 * c)
        self.reduce, self.restore = nn.Conv2d(4 * c, 4, 1), nn.Conv2d(4, 4 * c, 1)
        self.project = conv_bn(4 * c, c, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        gate = torch.sigmoid(self.restore(F.silu(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.project(y * gate)


@program
def efficientnet_block() -> Built:
    return inference(MBConv()), (image(8, 10),)


@program
def hard_swish_block() -> Built:
    layers = nn.Sequential(nn.Conv2d(8, 16, 1), nn.Hardswish(), nn.Conv2d(16, 16, 3, 2, 1, groups=16), nn.Hardsigmoid())
    return inference(layers), (image(8, 9),)


@program
def convnext_block() -> Built:
    class ConvNeXt(nn.Module):
        def __init__(self, c: int = 8) -> None:
            super().__init__()
            self.dw, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, eps=1e-6)
            self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
            self.gamma = nn.Parameter(torch.full((c,), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            y = self.dw(x).permute(0, 2, 3, 1)
            y = self.gamma * self.down(F.gelu(self.up(self.norm(y))))
            return x + y.permute(0, 3, 1, 2)

    return inference(ConvNeXt()), (image(8, 10),)


@program
def dense_block() -> Built:
    layers = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(8 + 4 * i), nn.ReLU(), nn.Conv2d(8 + 4 * i, 4, 3, padding=1)) for i in range(3)
    )
    inference(layers)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(x, 2)

    return run, (image(8, 8),)


@program
def inception_block() -> Built:
    one, three, five = conv_bn(8, 4, 1), nn.Sequential(conv_bn(8, 4, 1), conv_bn(4, 6)), conv_bn(8, 3, 5)
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(8, 2, 1))
    branches = inference(nn.ModuleList([one, three, five, pooled]))
    return (lambda x: torch.cat([b(x) for b in branches], 1)), (image(8, 8),)  # type: ignore[union-attr]


@program
def channel_shuffle() -> Built:
    right = inference(nn.Sequential(conv_bn(4, 4, 1), conv_bn(4, 4, 3, groups=4, act=False), conv_bn(4, 4, 1)))

    def run(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat((a, right(b)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    return run, (image(8, 8),)


class UNet(nn.Module):
    """Two levels down and up; the way up by nearest neighbours or by a transposed convolution."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.d1, self.d2, self.middle = conv_bn(3, 8), conv_bn(8, 16), conv_bn(16, 32)
        up = nn.ConvTranspose2d if transposed else None
        self.u2 = (
            up(32, 16, 2, 2) if up else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1))
        )
        self.u1 = (
            up(16, 8, 2, 2) if up else nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 8, 1))
        )
        self.c2, self.c1, self.head = conv_bn(32, 16), conv_bn(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        y = self.u2(self.middle(F.max_pool2d(b, 2)))
        y = self.u1(self.c2(torch.cat([b, y], 1)))
        return self.head(self.c1(torch.cat([a, y], 1)))


@program
def unet_with_upsampling() -> Built:
    return inference(UNet(False)), (image(),)


@program
def unet_with_transposed_convolutions() -> Built:
    return inference(UNet(True)), (image(),)


@program
def pixel_shuffle_super_resolution() -> Built:
    layers = [nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2), nn.Sigmoid()]
    return inference(nn.Sequential(*layers)), (image(1, 9),)


@program
def transposed_decoder() -> Built:
    layers = [nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()]
    return inference(nn.Sequential(*layers)), (torch.randn(2, 6, 1, 1),)


@program
def patch_discriminator() -> Built:
    layers = [
        nn.Conv2d(3, 8, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 4, 2, 1),
        nn.InstanceNorm2d(16),
        nn.Conv2d(16, 1, 3),
    ]
    return inference(nn.Sequential(*layers)), (image(),)


@program
def dilated_pyramid() -> Built:
    rates = inference(nn.ModuleList(nn.Conv2d(8, 4, 3, padding=r, dilation=r) for r in (1, 2, 4)))
    whole = inference(nn.Conv2d(8, 4, 1))

    def run(x: Tensor) -> Tensor:
        pooled = F.interpolate(
            whole(F.adaptive_avg_pool2d(x, 1)), size=x.shape[2:], mode="bilinear", align_corners=False
        )
        return torch.cat([*(F.relu(r(x)) for r in rates), pooled], 1)  # type: ignore[union-attr]

    return run, (image(8, 9),)


@program
def feature_pyramid() -> Built:
    lateral = inference(nn.ModuleList(nn.Conv2d(c, 8, 1) for c in (4, 8, 16)))
    smooth = inference(nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))

    def run(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        top = lateral[2](c)
        middle = lateral[1](b) + F.interpolate(top, size=b.shape[-2:], mode="nearest")
        low = lateral[0](a) + F.interpolate(middle, size=a.shape[-2:], mode="nearest")
        return [s(x) for s, x in zip(smooth, (low, middle, top), strict=True)]  # type: ignore[arg-type]

    return run, (image(4, 16), image(8, 8), image(16, 4))


class ViT(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, d)), nn.Parameter(torch.randn(1, 17, d))
        self.qkv, self.proj, self.n1, self.n2 = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return self.head((x + self.mlp(self.n2(x)))[:, 0])


@program
def vision_transformer() -> Built:
    return inference(ViT()), (image(batch=2),)


@program
def mlp_mixer() -> Built:
    n, across, along = nn.LayerNorm(8), nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)), nn.Linear(8, 8)
    for m in (n, across, along):
        inference(m)

    def run(x: Tensor) -> Tensor:
        x = x + across(n(x).transpose(1, 2)).transpose(1, 2)
        return x + along(n(x))

    return run, (torch.randn(2, 16, 8),)


@program
def shifted_windows() -> Built:
    """Attention inside of windows that are shifted around the image."""
    table, qkv = torch.randn(49, 2), inference(nn.Linear(8, 24))
    grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
    relative = (grid[:, :, None] - grid[:, None, :]).permute(1, 2, 0) + 3
    index = (relative[..., 0] * 7 + relative[..., 1]).view(-1)

    def run(x: Tensor) -> Tensor:
        x = torch.roll(x, (-2, -2), dims=(1, 2))
        b, h, w, c = x.shape
        windows = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = qkv(windows).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = table[index].view(16, 16, 2).permute(2, 0, 1)
        y = (torch.softmax(q @ k.mT * 0.5 + bias, -1) @ v).transpose(1, 2).reshape(-1, 16, c)
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(y, (2, 2), dims=(1, 2))

    return run, (torch.randn(1, 8, 8, 8),)


@program
def channel_and_spatial_attention() -> Built:
    mlp, conv = (
        inference(nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8))),
        inference(nn.Conv2d(2, 1, 7, padding=3)),
    )

    def run(x: Tensor) -> Tensor:
        gate = torch.sigmoid(mlp(x.mean((2, 3))) + mlp(x.amax((2, 3))))
        x = x * gate[:, :, None, None]
        return x * torch.sigmoid(conv(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)))

    return run, (image(8, 9),)


@program
def non_local_block() -> Built:
    theta, phi, g, out = (inference(nn.Conv2d(a, b, 1)) for a, b in ((8, 4), (8, 4), (8, 4), (4, 8)))

    def run(x: Tensor) -> Tensor:
        q, k, v = theta(x).flatten(2), F.max_pool2d(phi(x), 2).flatten(2), F.max_pool2d(g(x), 2).flatten(2)
        y = torch.softmax(q.transpose(1, 2) @ k, -1) @ v.transpose(1, 2)
        return x + out(y.transpose(1, 2).view(x.shape[0], 4, *x.shape[2:]))

    return run, (image(8, 8),)


@program
def modulated_convolution() -> Built:
    """A style scales the weights, which are then normalised, sample by sample."""
    weight = torch.randn(6, 4, 3, 3)

    def run(x: Tensor, style: Tensor) -> Tensor:
        w = weight[None] * style[:, None, :, None, None]
        w = w * torch.rsqrt(w.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        b, _, h, v = x.shape
        return F.conv2d(x.reshape(1, -1, h, v), w.view(-1, 4, 3, 3), padding=1, groups=b).view(b, -1, h, v)

    return run, (image(4, 8, 2), torch.randn(2, 4))


@program
def adaptive_instance_norm() -> Built:
    def run(content: Tensor, style: Tensor) -> Tensor:
        mean, std = style.mean((2, 3), keepdim=True), style.std((2, 3), keepdim=True)
        normal = (content - content.mean((2, 3), keepdim=True)) / (content.std((2, 3), keepdim=True) + 1e-5)
        return normal * std + mean

    return run, (image(4, 8), image(4, 6))


@program
def coordinate_convolution() -> Built:
    conv = inference(nn.Conv2d(5, 4, 3, padding=1))

    def run(x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        ys, xs = torch.linspace(-1, 1, h), torch.linspace(-1, 1, w)
        grid = torch.stack([ys[:, None].expand(h, w), xs[None, :].expand(h, w)])
        return conv(torch.cat([x, grid.expand(b, -1, -1, -1)], 1))

    return run, (image(3, 8),)


@program
def blur_pool() -> Built:
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel / 16).expand(4, 1, 3, 3).contiguous()
    return (lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=4)), (image(4, 9),)


@program
def squeezed_fire_module() -> Built:
    squeeze, one, three = (
        inference(m) for m in (nn.Conv2d(8, 3, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1))
    )

    def run(x: Tensor) -> Tensor:
        x = F.relu(squeeze(x))
        return F.max_pool2d(torch.cat([F.relu(one(x)), F.relu(three(x))], 1), 3, 2, ceil_mode=True)

    return run, (image(8, 9),)


@program
def three_dimensional_convolutions() -> Built:
    layers = [nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 2, 1)]
    return inference(nn.Sequential(*layers)), (torch.randn(1, 2, 4, 6, 6),)


@program
def classifier_in_half_precision() -> Built:
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    ]
    return inference(nn.Sequential(*layers)).bfloat16(), (image(size=8).bfloat16(),)


@program
def channels_last_network() -> Built:
    layers = inference(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)))
    return layers.to(memory_format=torch.channels_last), (image(size=9).to(memory_format=torch.channels_last),)
