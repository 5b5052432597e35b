"""Networks on graphs and sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program

NODES, EDGES = 7, 15


def edges() -> Tensor:
    return torch.randint(0, NODES, (2, EDGES))


def features(d: int = 6) -> Tensor:
    return torch.randn(NODES, d)


@program
def graph_convolution_of_a_matrix() -> Built:
    weight = torch.randn(6, 4)

    def run(x: Tensor, adjacency: Tensor) -> Tensor:
        a = adjacency + torch.eye(NODES)
        scale = a.sum(1).rsqrt()
        return F.relu(scale[:, None] * (a * scale[None]) @ (x @ weight))

    return run, (features(), (torch.rand(NODES, NODES) > 0.6).float())


@program
def graph_attention() -> Built:
    project, left, right = inference(nn.Linear(6, 8)), torch.randn(2, 4), torch.randn(2, 4)

    def run(x: Tensor, adjacency: Tensor) -> Tensor:
        h = project(x).view(NODES, 2, 4)
        scores = F.leaky_relu((h * left).sum(-1)[:, None] + (h * right).sum(-1)[None], 0.2)
        scores = scores.masked_fill(~adjacency[..., None], float("-inf"))
        return F.elu(torch.einsum("ijh,jhd->ihd", scores.softmax(1), h).flatten(1))

    return run, (features(), (torch.rand(NODES, NODES) > 0.5) | torch.eye(NODES, dtype=torch.bool))


@program
def messages_by_index_add() -> Built:
    message = inference(nn.Linear(12, 6))

    def run(x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        m = F.relu(message(torch.cat([x[source], x[target]], 1)))
        return x + torch.zeros_like(x).index_add(0, target, m)

    return run, (features(), edges())


@program
def mean_of_neighbours() -> Built:
    def run(x: Tensor, edge: Tensor) -> Tensor:
        total = torch.zeros_like(x).scatter_add(0, edge[1][:, None].expand(-1, 6), x[edge[0]])
        count = torch.zeros(NODES).scatter_add(0, edge[1], torch.ones(EDGES))
        return torch.cat([x, total / count.clamp(min=1)[:, None]], 1)

    return run, (features(), edges())


@program
def maximum_of_neighbours() -> Built:
    def run(x: Tensor, edge: Tensor) -> Tensor:
        index = edge[1][:, None].expand(-1, 6)
        return torch.full_like(x, -1e9).scatter_reduce(0, index, x[edge[0]], "amax", include_self=True)

    return run, (features(), edges())


@program
def softmax_over_incoming_edges() -> Built:
    def run(score: Tensor, edge: Tensor) -> Tensor:
        target = edge[1]
        top = torch.full((NODES,), -1e9).scatter_reduce(0, target, score, "amax")
        e = torch.exp(score - top[target])
        return e / torch.zeros(NODES).scatter_add(0, target, e)[target]

    return run, (torch.randn(EDGES), edges())


@program
def isomorphism_network() -> Built:
    mlp = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6))
    inference(mlp)
    return (lambda x, a: mlp(1.1 * x + a @ x).sum(0)), (features(), (torch.rand(NODES, NODES) > 0.6).float())


@program
def continuous_filter_convolution() -> Built:
    net, centers = inference(nn.Sequential(nn.Linear(10, 6), nn.Softplus())), torch.linspace(0, 5, 10)

    def run(x: Tensor, position: Tensor) -> Tensor:
        d = (position[:, None] - position[None]).pow(2).sum(-1).clamp(min=1e-12).sqrt()
        w = net(torch.exp(-10 * (d[..., None] - centers) ** 2)) * (0.5 * (torch.cos(d / 5 * torch.pi) + 1))[..., None]
        return torch.einsum("jd,ijd->id", x, w)

    return run, (features(), torch.randn(NODES, 3))


@program
def equivariant_update() -> Built:
    gate = inference(nn.Linear(1, 1))

    def run(x: Tensor) -> Tensor:
        d = x[:, None] - x[None]
        weight = torch.tanh(gate(d.pow(2).sum(-1, keepdim=True)))
        return x + (d * weight).sum(1) / (x.shape[0] - 1)

    return run, (torch.randn(NODES, 3),)


@program
def deep_sets() -> Built:
    phi, rho = inference(nn.Linear(4, 8)), inference(nn.Linear(8, 2))
    return (lambda x, mask: rho((F.relu(phi(x)) * mask[..., None]).sum(1))), (torch.randn(3, 6, 4), torch.ones(3, 6))


@program
def induced_set_attention() -> Built:
    points = torch.randn(1, 3, 8)
    a, b = (inference(nn.MultiheadAttention(8, 2, batch_first=True)) for _ in range(2))

    def run(x: Tensor) -> Tensor:
        h, _ = a(points.expand(x.shape[0], -1, -1), x, x, need_weights=False)
        return x + b(x, h, h, need_weights=False)[0]

    return run, (torch.randn(2, 9, 8),)


@program
def page_rank() -> Built:
    def run(a: Tensor) -> Tensor:
        p = a / a.sum(1, keepdim=True).clamp(min=1)
        r = torch.full((a.shape[0],), 1 / a.shape[0])
        for _ in range(8):
            r = 0.85 * r @ p + 0.15 / a.shape[0]
        return r

    return run, ((torch.rand(NODES, NODES) > 0.6).float(),)


@program
def capsule_routing() -> Built:
    weight = torch.randn(6, 3, 4, 4)

    def run(u: Tensor) -> Tensor:
        guess = torch.einsum("bid,ijde->bije", u, weight)
        logits, v = torch.zeros(u.shape[0], 6, 3), torch.zeros(())
        for _ in range(3):
            s = (logits.softmax(2)[..., None] * guess).sum(1)
            n = s.pow(2).sum(-1, keepdim=True)
            v = n / (1 + n) * s / (n + 1e-8).sqrt()
            logits = logits + (guess * v[:, None]).sum(-1)
        return v

    return run, (torch.randn(2, 6, 4),)


@program
def lloyd_step() -> Built:
    def run(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        owner = torch.cdist(x, centers).argmin(1)
        member = F.one_hot(owner, centers.shape[0]).float()
        return owner, member.T @ x / member.sum(0).clamp(min=1)[:, None]

    return run, (torch.randn(20, 3), torch.randn(4, 3))


@program
def optimal_transport_by_sinkhorn() -> Built:
    def run(a: Tensor, b: Tensor) -> Tensor:
        cost = torch.cdist(a, b).pow(2)
        f, g = torch.zeros(a.shape[0]), torch.zeros(b.shape[0])
        for _ in range(6):
            f = -torch.logsumexp(g[None] - cost, 1)
            g = -torch.logsumexp(f[:, None] - cost, 0)
        return (torch.exp(f[:, None] + g[None] - cost) * cost).sum()

    return run, (torch.randn(6, 2), torch.randn(5, 2))
