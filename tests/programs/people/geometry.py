"""Points, rays, rotations and fields over space."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


@program
def radiance_field() -> Built:
    net = inference(nn.Sequential(nn.Linear(27, 16), nn.ReLU(), nn.Linear(16, 4)))

    def run(points: Tensor) -> Tensor:
        waves = points[..., None] * 2.0 ** torch.arange(4) * math.pi
        return net(torch.cat([points, torch.sin(waves).flatten(-2), torch.cos(waves).flatten(-2)], -1))

    return run, (torch.rand(5, 6, 3),)


@program
def volume_rendering() -> Built:
    def run(raw: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        step = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e10)], 1)
        alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * step)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        weights = alpha * through
        return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), (weights * depth).sum(1)

    return run, (torch.randn(4, 8, 4), torch.linspace(2, 6, 8).expand(4, 8).contiguous())


@program
def sine_network() -> Built:
    layers = inference(nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 1)]))

    def run(x: Tensor) -> Tensor:
        for layer in layers[:-1]:  # type: ignore[index]
            x = torch.sin(30 * layer(x))
        return layers[-1](x)  # type: ignore[index]

    return run, (torch.rand(10, 2),)


@program
def point_net() -> Built:
    local = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
    inference(local)
    return (lambda x: local(x.transpose(1, 2)).max(2).values), (torch.randn(2, 10, 3),)


@program
def edge_convolution() -> Built:
    """Features of the three nearest neighbours of every point."""
    net = inference(nn.Linear(6, 8))

    def run(x: Tensor) -> Tensor:
        distance = torch.cdist(x, x)
        index = distance.topk(4, largest=False).indices[..., 1:]
        b, n, k = index.shape
        near = x.gather(1, index.reshape(b, -1, 1).expand(-1, -1, 3)).view(b, n, k, 3)
        own = x[:, :, None].expand(-1, -1, k, -1)
        return F.leaky_relu(net(torch.cat([own, near - own], -1)), 0.2).amax(2)

    return run, (torch.randn(1, 9, 3),)


@program
def chamfer_distance() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        d = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
        return d.min(2).values.mean(1) + d.min(1).values.mean(1)

    return run, (torch.randn(2, 8, 3), torch.randn(2, 7, 3))


@program
def rotations_from_quaternions() -> Built:
    def run(q: Tensor, v: Tensor) -> Tensor:
        w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
        rows = [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
            torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
        ]
        return (torch.stack(rows, -2) @ v[..., None]).squeeze(-1)

    return run, (torch.randn(5, 4), torch.randn(5, 3))


@program
def rotations_from_six_numbers() -> Built:
    def run(d: Tensor) -> Tensor:
        a = F.normalize(d[..., :3], dim=-1)
        b = F.normalize(d[..., 3:] - (a * d[..., 3:]).sum(-1, keepdim=True) * a, dim=-1)
        return torch.stack([a, b, torch.linalg.cross(a, b)], -2)

    return run, (torch.randn(5, 6),)


@program
def camera_projection() -> Built:
    def run(points: Tensor, rotation: Tensor, shift: Tensor, k: Tensor) -> Tensor:
        seen = points @ rotation.T + shift
        pixel = seen @ k.T
        return torch.where(seen[:, 2:] > 0.1, pixel[:, :2] / pixel[:, 2:].clamp(min=1e-3), torch.nan)

    k = torch.tensor([[50.0, 0, 16], [0, 50, 16], [0, 0, 1]])
    return run, (torch.randn(9, 3), torch.eye(3), torch.tensor([0.0, 0, 2]), k)


@program
def rays_and_spheres() -> Built:
    def run(origin: Tensor, direction: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        direction = direction / direction.norm(dim=-1, keepdim=True)
        to = origin[:, None] - center
        b = (to * direction[:, None]).sum(-1)
        found = b * b - (to.pow(2).sum(-1) - radius**2)
        t = -b - found.clamp(min=0).sqrt()
        return torch.where((found > 0) & (t > 0), t, torch.inf).min(1).values

    return run, (torch.randn(6, 3), torch.randn(6, 3), torch.randn(3, 3) * 3, torch.rand(3) + 0.5)


@program
def homography_of_a_grid() -> Built:
    def run(h: Tensor, image: Tensor) -> Tensor:
        y, x = torch.meshgrid(torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 6), indexing="ij")
        points = torch.stack([x, y, torch.ones_like(x)], -1) @ h.T
        return F.grid_sample(image, (points[..., :2] / points[..., 2:])[None], align_corners=True)

    return run, (torch.eye(3) + torch.randn(3, 3) * 0.05, torch.rand(1, 2, 6, 6))


@program
def spatial_transformer() -> Built:
    locate = inference(nn.Sequential(nn.Flatten(), nn.Linear(64, 6)))

    def run(x: Tensor) -> Tensor:
        theta = locate(x).view(-1, 2, 3) * 0.1 + torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)

    return run, (torch.rand(2, 1, 8, 8),)


@program
def gravity_of_many_bodies() -> Built:
    def run(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        d = x[None] - x[:, None]
        force = d * (mass[None, :] / (d.pow(2).sum(-1) + 0.01).pow(1.5))[..., None]
        v = v + 0.01 * force.sum(1)
        return x + 0.01 * v, v

    return run, (torch.randn(7, 3), torch.randn(7, 3), torch.rand(7))


@program
def lennard_jones_energy() -> Built:
    def run(x: Tensor) -> Tensor:
        n = x.shape[0]
        i, j = torch.triu_indices(n, n, 1)
        r2 = (x[i] - x[j]).pow(2).sum(-1)
        s6 = (1 / r2) ** 3
        return (4 * (s6 * s6 - s6)).sum()

    return run, (torch.randn(6, 3) * 3,)


@program
def gaussian_splat_weights() -> Built:
    def run(center: Tensor, scale: Tensor, opacity: Tensor) -> Tensor:
        y, x = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
        d = torch.stack([x, y], -1)[None] - center[:, None, None]
        alpha = (opacity[:, None, None] * torch.exp(-0.5 * (d / scale[:, None, None]).pow(2).sum(-1))).clamp(max=0.99)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha]), 0)[:-1]
        return (alpha * through).sum(0)

    return run, (torch.rand(5, 2) * 6, torch.rand(5, 2) + 0.5, torch.rand(5))


@program
def spherical_harmonics() -> Built:
    def run(d: Tensor, coefficients: Tensor) -> Tensor:
        x, y, z = F.normalize(d, dim=-1).unbind(-1)
        basis = [
            torch.full_like(x, 0.2821),
            -0.4886 * y,
            0.4886 * z,
            -0.4886 * x,
            1.0925 * x * y,
            0.3154 * (3 * z * z - 1),
        ]
        return (torch.stack(basis, -1)[:, None] * coefficients).sum(-1)

    return run, (torch.randn(6, 3), torch.randn(6, 3, 6))
