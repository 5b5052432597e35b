"""Diffusion models, autoencoders and other generators."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


def time_embedding(t: Tensor, d: int = 16) -> Tensor:
    rates = torch.exp(-math.log(10000) * torch.arange(d // 2).float() / (d // 2))
    angles = t[:, None].float() * rates[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class ResidualBlock(nn.Module):
    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(16, 2 * c)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time(F.silu(time_embedding(t)))[:, :, None, None].chunk(2, 1)
        y = self.c1(F.silu(self.n1(x)))
        return x + self.c2(F.silu(self.n2(y) * (1 + scale) + shift))


@program
def diffusion_residual_block() -> Built:
    return inference(ResidualBlock()), (torch.randn(2, 8, 8, 8), torch.tensor([3, 500]))


@program
def attention_over_pixels() -> Built:
    norm, qkv, out = inference(nn.GroupNorm(4, 8)), inference(nn.Conv2d(8, 24, 1)), inference(nn.Conv2d(8, 8, 1))

    def run(x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = qkv(norm(x)).view(b, 3, 2, c // 2, h * w).unbind(1)
        weights = torch.einsum("bhcs,bhct->bhst", q, k) / math.sqrt(c // 2)
        return x + out(torch.einsum("bhst,bhct->bhcs", weights.softmax(-1), v).reshape(b, c, h, w))

    return run, (torch.randn(1, 8, 6, 6),)


class DiTBlock(nn.Module):
    """A transformer block whose norms are shifted and scaled by a condition."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))
        self.attention = nn.MultiheadAttention(d, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU("tanh"), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, k1, g1, s2, k2, g2 = self.modulation(c)[:, None].chunk(6, -1)
        y = self.norm(x) * (1 + k1) + s1
        x = x + g1 * self.attention(y, y, y, need_weights=False)[0]
        return x + g2 * self.mlp(self.norm(x) * (1 + k2) + s2)


@program
def diffusion_transformer_block() -> Built:
    return inference(DiTBlock()), (torch.randn(2, 9, 16), torch.randn(2, 16))


def schedule() -> Tensor:
    return torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


@program
def add_noise() -> Built:
    alphas = schedule()

    def run(x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        a = alphas[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    return run, (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.tensor([10, 700]))


@program
def ddim_step() -> Built:
    alphas = schedule()

    def run(x: Tensor, epsilon: Tensor, t: Tensor, s: Tensor) -> Tensor:
        a, b = alphas[t], alphas[s]
        start = ((x - (1 - a).sqrt() * epsilon) / a.sqrt()).clamp(-1, 1)
        return b.sqrt() * start + (1 - b).sqrt() * epsilon

    return run, (torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4), torch.tensor(900), torch.tensor(850))


@program
def guided_prediction() -> Built:
    def run(both: Tensor) -> Tensor:
        without, with_ = both.chunk(2)
        guided = without + 7.5 * (with_ - without)
        spread = with_.std((1, 2, 3), keepdim=True) / guided.std((1, 2, 3), keepdim=True)
        return 0.7 * guided * spread + 0.3 * guided

    return run, (torch.randn(4, 3, 4, 4),)


@program
def variational_autoencoder_loss() -> Built:
    encode, decode = inference(nn.Linear(20, 8)), inference(nn.Sequential(nn.Linear(4, 20), nn.Sigmoid()))

    def run(x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = encode(x).chunk(2, 1)
        y = decode(mean + (0.5 * log_variance).exp() * noise)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy(y, x, reduction="sum") / x.shape[0], divergence

    return run, (torch.rand(3, 20), torch.randn(3, 4))


@program
def vector_quantisation() -> Built:
    book = torch.randn(12, 4)

    def run(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = z.permute(0, 2, 3, 1).reshape(-1, 4)
        distance = flat.pow(2).sum(1, keepdim=True) + book.pow(2).sum(1) - 2 * flat @ book.t()
        index = distance.argmin(1)
        q = F.embedding(index, book).view(z.shape[0], *z.shape[2:], 4).permute(0, 3, 1, 2)
        return z + (q - z), index, F.mse_loss(q, z) * 1.25

    return run, (torch.randn(1, 4, 5, 5),)


@program
def finite_scalar_quantisation() -> Built:
    levels = torch.tensor([8.0, 5.0, 5.0])

    def run(z: Tensor) -> tuple[Tensor, Tensor]:
        half = (levels - 1) / 2
        code = torch.round(torch.tanh(z) * half)
        weights = torch.cumprod(torch.tensor([1, 8, 5]), 0)
        return code / half, ((code + half).long() * weights).sum(-1)

    return run, (torch.randn(6, 3),)


@program
def affine_coupling_flow() -> Built:
    net = inference(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)))

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        log_s, t = net(a).chunk(2, 1)
        log_s = torch.tanh(log_s)
        z = torch.cat([a, b * log_s.exp() + t], 1)
        return z, log_s.sum(1) - 0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(1)

    return run, (torch.randn(5, 8),)


@program
def flow_matching_loss() -> Built:
    net = inference(nn.Sequential(nn.Linear(9, 16), nn.SiLU(), nn.Linear(16, 8)))

    def run(x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        mixed = (1 - t) * noise + t * x
        return (net(torch.cat([mixed, t], 1)) - (x - noise)).pow(2).mean()

    return run, (torch.randn(4, 8), torch.randn(4, 8), torch.rand(4, 1))


@program
def euler_steps_of_an_ode() -> Built:
    net = inference(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))

    def run(x: Tensor) -> Tensor:
        for _ in range(6):
            k = net(x)
            x = x + 0.1 * net(x + 0.05 * k)
        return x

    return run, (torch.randn(3, 4),)


@program
def normal_by_box_muller() -> Built:
    def run(u: Tensor, v: Tensor) -> Tensor:
        return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v)

    return run, (torch.rand(16) * 0.9 + 0.05, torch.rand(16))


@program
def gumbel_arg_max() -> Built:
    return (lambda logits, u: (logits - torch.log(-torch.log(u))).argmax(-1)), (torch.randn(4, 9), torch.rand(4, 9))


@program
def masked_autoencoder_shuffle() -> Built:
    """Random tokens are kept, others become one learnt token, and all go back to where they were."""
    token = torch.randn(1, 1, 8)

    def run(x: Tensor, noise: Tensor) -> Tensor:
        order = noise.argsort(1)
        restore = order.argsort(1)
        kept = x.gather(1, order[:, :3, None].expand(-1, -1, 8))
        full = torch.cat([kept, token.expand(x.shape[0], x.shape[1] - 3, -1)], 1)
        return full.gather(1, restore[:, :, None].expand(-1, -1, 8))

    return run, (torch.randn(2, 9, 8), torch.rand(2, 9))
