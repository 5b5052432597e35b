"""Audio, images as signals, and numerical methods on grids."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


@program
def spectrogram_by_convolution() -> Built:
    n = torch.arange(16)
    angles = 2 * math.pi * torch.outer(torch.arange(9), n) / 16
    window = torch.hann_window(16)
    kernels = torch.cat([torch.cos(angles), -torch.sin(angles)])[:, None] * window

    def run(x: Tensor) -> Tensor:
        real, imaginary = F.conv1d(x[:, None], kernels, stride=8).chunk(2, 1)
        return torch.log(real.pow(2) + imaginary.pow(2) + 1e-6)

    return run, (torch.randn(2, 64),)


@program
def power_spectrum() -> Built:
    return (lambda x: torch.fft.rfft(x * torch.hann_window(32)).abs().pow(2)), (torch.randn(3, 32),)


@program
def convolution_by_fft() -> Built:
    def run(x: Tensor, kernel: Tensor) -> Tensor:
        n = x.shape[-1] + kernel.shape[-1] - 1
        return torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(kernel, n=n), n=n)

    return run, (torch.randn(2, 24), torch.randn(2, 9))


@program
def mel_cepstra() -> Built:
    bank, size = torch.rand(17, 8), 8
    basis = torch.cos(math.pi / size * (torch.arange(size) + 0.5)[None] * torch.arange(6)[:, None]) * math.sqrt(
        2 / size
    )
    return (lambda power: torch.log(power @ bank + 1e-6) @ basis.T), (torch.rand(2, 5, 17),)


@program
def frames_and_overlap_add() -> Built:
    def run(x: Tensor) -> Tensor:
        frames = x.unfold(-1, 8, 4) * torch.hann_window(8)
        return F.fold(frames.transpose(1, 2), (1, x.shape[-1]), (1, 8), stride=(1, 4)).flatten(1)

    return run, (torch.randn(2, 32),)


@program
def sinc_filters() -> Built:
    low = torch.linspace(0.02, 0.3, 4)

    def run(x: Tensor) -> Tensor:
        n = torch.arange(-7, 8).float()
        high = low + 0.1
        band = 2 * high[:, None] * torch.sinc(2 * high[:, None] * n) - 2 * low[:, None] * torch.sinc(
            2 * low[:, None] * n
        )
        return F.conv1d(x[:, None], (band * torch.hamming_window(15))[:, None], padding=7)

    return run, (torch.randn(2, 40),)


@program
def mu_law() -> Built:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        code = ((torch.sign(x) * torch.log1p(255 * x.abs()) / math.log1p(255) + 1) / 2 * 255 + 0.5).long()
        y = code.float() / 255 * 2 - 1
        return code, torch.sign(y) * (torch.exp(y.abs() * math.log1p(255)) - 1) / 255

    return run, (torch.rand(3, 10) * 2 - 1,)


@program
def autocorrelation() -> Built:
    def run(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        lags = [(x[:, : x.shape[1] - k] * x[:, k:]).sum(1) for k in range(6)]
        return torch.stack(lags, 1) / lags[0][:, None]

    return run, (torch.randn(2, 20),)


@program
def signal_to_distortion_ratio() -> Built:
    def run(guess: Tensor, truth: Tensor) -> Tensor:
        guess, truth = guess - guess.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
        target = (guess * truth).sum(-1, keepdim=True) / (truth.pow(2).sum(-1, keepdim=True) + 1e-8) * truth
        return 10 * torch.log10(target.pow(2).sum(-1) / ((guess - target).pow(2).sum(-1) + 1e-8))

    return run, (torch.randn(3, 50), torch.randn(3, 50))


@program
def separation_masks() -> Built:
    encode, decode = nn.Conv1d(1, 8, 4, 2, bias=False), nn.ConvTranspose1d(8, 1, 4, 2, bias=False)
    mask = nn.Sequential(nn.GroupNorm(1, 8), nn.Conv1d(8, 16, 1), nn.ReLU())
    for m in (encode, decode, mask):
        inference(m)

    def run(x: Tensor) -> Tensor:
        y = encode(x[:, None])
        parts = mask(y).view(x.shape[0], 2, 8, -1) * y[:, None]
        return decode(parts.flatten(0, 1)).view(x.shape[0], 2, -1)

    return run, (torch.randn(2, 32),)


@program
def sobel_edges() -> Built:
    gx = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    kernels = torch.stack([gx, gx.T])[:, None]
    return (lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), kernels).pow(2).sum(1).sqrt()), (
        torch.rand(1, 1, 8, 9),
    )


@program
def gaussian_blur() -> Built:
    t = torch.arange(-2, 3).float()
    g = torch.exp(-t.pow(2) / 2)
    g = g / g.sum()

    def run(x: Tensor) -> Tensor:
        x = F.conv2d(x, g.view(1, 1, 1, 5).expand(3, 1, 1, 5), padding=(0, 2), groups=3)
        return F.conv2d(x, g.view(1, 1, 5, 1).expand(3, 1, 5, 1), padding=(2, 0), groups=3)

    return run, (torch.rand(1, 3, 9, 10),)


@program
def structural_similarity() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        pool = nn.AvgPool2d(3, 1)
        ma, mb = pool(a), pool(b)
        va, vb, cab = pool(a * a) - ma * ma, pool(b * b) - mb * mb, pool(a * b) - ma * mb
        top = (2 * ma * mb + 1e-4) * (2 * cab + 9e-4)
        return (top / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))).mean((1, 2, 3))

    return run, (torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8))


@program
def total_variation() -> Built:
    def run(x: Tensor) -> Tensor:
        return x.diff(dim=-1).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()

    return run, (torch.rand(1, 3, 8, 8),)


@program
def colours_to_hue() -> Built:
    def run(rgb: Tensor) -> Tensor:
        r, g, b = rgb.unbind(1)
        most, index = rgb.max(1)
        spread = most - rgb.min(1).values
        safe = torch.where(spread == 0, torch.ones_like(spread), spread)
        candidates = torch.stack([(g - b) / safe % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1)
        hue = candidates.gather(1, index[:, None]).squeeze(1) / 6
        return torch.stack([hue, torch.where(most == 0, 0.0, spread / most.clamp(min=1e-8)), most], 1)

    return run, (torch.rand(2, 3, 5, 5),)


@program
def median_filter() -> Built:
    def run(x: Tensor) -> Tensor:
        patches = F.unfold(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3)
        return patches.median(1).values.view(x.shape[0], *x.shape[2:])

    return run, (torch.rand(1, 1, 7, 8),)


@program
def dilation_and_erosion() -> Built:
    return (lambda x: F.max_pool2d(x, 3, 1, 1) + F.max_pool2d(-x, 3, 1, 1)), (torch.rand(1, 1, 8, 8),)


@program
def normalised_histogram() -> Built:
    def run(x: Tensor) -> Tensor:
        bins = (x * 8).long().clamp(0, 7)
        counts = torch.zeros(8).scatter_add(0, bins.flatten(), torch.ones(x.numel()))
        cumulative = counts.cumsum(0) / x.numel()
        return cumulative[bins]

    return run, (torch.rand(6, 7),)


@program
def linear_interpolation() -> Built:
    xs, ys = torch.linspace(0, 1, 9), torch.randn(9)

    def run(x: Tensor) -> Tensor:
        i = torch.searchsorted(xs, x).clamp(1, 8)
        t = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + t * (ys[i] - ys[i - 1])

    return run, (torch.rand(12),)


@program
def optical_flow_warp() -> Built:
    def run(x: Tensor, flow: Tensor) -> Tensor:
        b, _, h, w = x.shape
        y, v = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([v, y]).float()[None] + flow
        grid = torch.stack([2 * grid[:, 0] / (w - 1) - 1, 2 * grid[:, 1] / (h - 1) - 1], -1)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)

    return run, (torch.rand(1, 2, 6, 7), torch.randn(1, 2, 6, 7))


@program
def heat_equation() -> Built:
    def run(u: Tensor) -> Tensor:
        for _ in range(4):
            around = torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1, 1) + torch.roll(u, -1, 1)
            u = u + 0.1 * (around - 4 * u)
        return u

    return run, (torch.rand(9, 10),)


@program
def game_of_life() -> Built:
    def run(board: Tensor) -> Tensor:
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
        for _ in range(2):
            neighbours = sum(torch.roll(board, s, (0, 1)) for s in shifts)
            board = ((neighbours == 3) | ((board == 1) & (neighbours == 2))).to(torch.int32)
        return board

    return run, (torch.randint(0, 2, (9, 9), dtype=torch.int32),)


@program
def ising_energy() -> Built:
    def run(spins: Tensor) -> tuple[Tensor, Tensor]:
        s = spins.float() * 2 - 1
        neighbours = s.roll(1, 0) + s.roll(1, 1)
        return -(s * neighbours).sum(), s.mean()

    return run, (torch.randint(0, 2, (8, 8)),)


@program
def shallow_water_step() -> Built:
    def run(h: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        u = u - 0.1 * F.pad(h[1:] - h[:-1], (0, 1))
        return h - 0.1 * F.pad(u[1:] * h[1:] - u[:-1] * h[:-1], (1, 0)), u

    return run, (torch.rand(20) + 1, torch.randn(20))


@program
def power_iteration() -> Built:
    def run(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(5):
            v = F.normalize(a.T @ (a @ v), dim=0)
        return v, (a @ v).norm()

    return run, (torch.randn(6, 5), torch.randn(5))


@program
def conjugate_gradients() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        a = a @ a.T + torch.eye(6)
        x, r = torch.zeros_like(b), b
        p, rr = r, r @ r
        for _ in range(4):
            ap = a @ p
            alpha = rr / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            new = r @ r
            p, rr = r + new / rr * p, new
        return x

    return run, (torch.randn(6, 6), torch.randn(6))


@program
def newton_schulz_orthogonalisation() -> Built:
    def run(g: Tensor) -> Tensor:
        x = g / (g.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    return run, (torch.randn(6, 8),)
