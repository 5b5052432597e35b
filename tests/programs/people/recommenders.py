"""Recommenders, tables, and reinforcement learning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in (10, 20, 7))
        self.bottom, self.top = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(4 + 6, 1)
        i, j = torch.tril_indices(4, 4, -1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        t = torch.stack([x, *(table(sparse[:, n]) for n, table in enumerate(self.tables))], 1)
        z = torch.bmm(t, t.transpose(1, 2))[:, self.i, self.j]
        return torch.sigmoid(self.top(torch.cat([x, z], 1)))


@program
def dlrm() -> Built:
    return inference(DLRM()), (torch.randn(3, 5), torch.randint(0, 7, (3, 3)))


@program
def factorisation_machine() -> Built:
    table, linear = torch.randn(30, 4), torch.randn(30)

    def run(index: Tensor, value: Tensor) -> Tensor:
        v = table[index] * value[..., None]
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return (linear[index] * value).sum(1) + pairs

    return run, (torch.randint(0, 30, (3, 5)), torch.rand(3, 5))


@program
def deep_and_cross() -> Built:
    cross = inference(nn.ModuleList(nn.Linear(6, 6) for _ in range(3)))

    def run(x: Tensor) -> Tensor:
        y = x
        for layer in cross:
            y = x * layer(y) + y
        return y

    return run, (torch.randn(4, 6),)


@program
def two_towers_with_batch_softmax() -> Built:
    user, item = inference(nn.Linear(6, 4)), inference(nn.Linear(5, 4))

    def run(u: Tensor, i: Tensor) -> Tensor:
        scores = F.normalize(user(u), dim=-1) @ F.normalize(item(i), dim=-1).T / 0.05
        return F.cross_entropy(scores, torch.arange(u.shape[0]))

    return run, (torch.randn(6, 6), torch.randn(6, 5))


@program
def interest_attention() -> Built:
    net = inference(nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 1)))

    def run(candidate: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        q = candidate[:, None].expand_as(history)
        score = net(torch.cat([q, history, q - history, q * history], -1)).squeeze(-1)
        return (torch.where(mask, score, 0.0)[..., None] * history).sum(1)

    return run, (torch.randn(2, 4), torch.randn(2, 6, 4), torch.rand(2, 6) > 0.3)


@program
def gated_experts_for_tasks() -> Built:
    experts, gates = torch.randn(3, 6, 4), torch.randn(2, 6, 3)

    def run(x: Tensor) -> Tensor:
        y = F.relu(torch.einsum("bi,eio->beo", x, experts))
        return torch.einsum("tbe,beo->tbo", torch.softmax(torch.einsum("bi,tie->tbe", x, gates), -1), y)

    return run, (torch.randn(4, 6),)


@program
def soft_decision_trees() -> Built:
    feature, threshold, leaf = torch.randn(5, 3, 6), torch.randn(5, 3), torch.randn(5, 8)
    bits = torch.tensor([[(i >> d) & 1 for d in range(3)] for i in range(8)]).float()

    def run(x: Tensor) -> Tensor:
        p = torch.sigmoid(torch.einsum("bi,tdi->btd", x, feature.softmax(-1)) - threshold)[:, :, None]
        route = (p * bits + (1 - p) * (1 - bits)).prod(-1)
        return (route * leaf).sum(-1).mean(1)

    return run, (torch.randn(4, 6),)


@program
def attention_over_columns() -> Built:
    layer = inference(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True))
    table, scale = torch.randn(20, 8), torch.randn(3, 8)

    def run(category: Tensor, number: Tensor) -> Tensor:
        return layer(torch.cat([table[category], number[..., None] * scale], 1)).mean(1)

    return run, (torch.randint(0, 20, (2, 4)), torch.randn(2, 3))


@program
def hashed_embeddings() -> Built:
    table = torch.randn(16, 4)

    def run(key: Tensor) -> Tensor:
        x = key ^ key >> 7
        x = x * 73244475 & 0x7FFFFFFF
        return table[(x ^ x >> 11) % 16] + table[(x * 31 + 7) % 16]

    return run, (torch.randint(0, 1 << 30, (6,)),)


@program
def calibrated_bins() -> Built:
    edges, values = torch.linspace(-2, 2, 9), torch.rand(10)
    return (lambda x: values[torch.bucketize(x, edges)]), (torch.randn(12),)


@program
def ranking_gain() -> Built:
    def run(score: Tensor, relevance: Tensor) -> Tensor:
        order = score.argsort(1, descending=True)
        discount = 1 / torch.log2(torch.arange(score.shape[1]) + 2.0)
        gain = ((2.0 ** relevance.gather(1, order) - 1) * discount).sum(1)
        best = ((2.0 ** relevance.sort(1, descending=True).values - 1) * discount).sum(1)
        return gain / best.clamp(min=1e-9)

    return run, (torch.randn(3, 7), torch.randint(0, 4, (3, 7)))


@program
def q_learning_loss() -> Built:
    net = inference(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))

    def run(s: Tensor, a: Tensor, r: Tensor, s2: Tensor, done: Tensor) -> Tensor:
        target = r + 0.99 * net(s2).max(1).values * (1 - done)
        return F.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), target)

    return run, (
        torch.randn(5, 4),
        torch.randint(0, 3, (5,)),
        torch.randn(5),
        torch.randn(5, 4),
        torch.tensor([0.0, 1, 0, 0, 1]),
    )


@program
def policy_gradient_loss() -> Built:
    def run(new: Tensor, old: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        log_new = F.log_softmax(new, -1)
        chosen = log_new.gather(1, action[:, None]).squeeze(1) - F.log_softmax(old, -1).gather(
            1, action[:, None]
        ).squeeze(1)
        a, ratio = (advantage - advantage.mean()) / (advantage.std() + 1e-8), chosen.exp()
        entropy = -(log_new.exp() * log_new).sum(1).mean()
        return -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean() - 0.01 * entropy

    return run, (torch.randn(6, 3), torch.randn(6, 3), torch.randn(6), torch.randint(0, 3, (6,)))


@program
def generalised_advantages() -> Built:
    def run(reward: Tensor, value: Tensor, done: Tensor) -> Tensor:
        last, found = torch.zeros(reward.shape[1]), []
        for t in reversed(range(reward.shape[0])):
            delta = reward[t] + 0.99 * value[t + 1] * (1 - done[t]) - value[t]
            last = delta + 0.99 * 0.95 * (1 - done[t]) * last
            found.insert(0, last)
        return torch.stack(found)

    return run, (torch.randn(6, 3), torch.randn(7, 3), (torch.rand(6, 3) > 0.8).float())


@program
def distributional_projection() -> Built:
    support = torch.linspace(-5, 5, 11)

    def run(p: Tensor, reward: Tensor) -> Tensor:
        b = (reward[:, None] + 0.99 * support).clamp(-5, 5) + 5
        low, high = b.floor().long(), b.ceil().long()
        m = torch.zeros_like(p)
        m = m.scatter_add(1, low, p * (high.float() + (low == high).float() - b))
        return m.scatter_add(1, high, p * (b - low.float()))

    return run, (torch.softmax(torch.randn(4, 11), 1), torch.randn(4))


@program
def tree_search_scores() -> Built:
    def run(value: Tensor, prior: Tensor, visits: Tensor) -> Tensor:
        bonus = 1.25 * prior * visits.sum(1, keepdim=True).float().sqrt() / (1 + visits)
        return (torch.where(visits > 0, value / visits.clamp(min=1), 0.0) + bonus).argmax(1)

    return run, (torch.randn(3, 5), torch.softmax(torch.randn(3, 5), 1), torch.randint(0, 9, (3, 5)))


@program
def kolmogorov_arnold_layer() -> Built:
    """B-splines of degree three on a grid, by the recursion of Cox and de Boor."""
    grid, weight = torch.linspace(-2.2, 2.2, 12), torch.randn(4, 8, 3)

    def run(x: Tensor) -> Tensor:
        y = x[..., None]
        b = ((y >= grid[:-1]) & (y < grid[1:])).float()
        for k in range(1, 4):
            left = (y - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * b[..., :-1]
            b = left + (grid[k + 1 :] - y) / (grid[k + 1 :] - grid[1:-k]) * b[..., 1:]
        return torch.einsum("bik,iko->bo", b, weight)

    return run, (torch.randn(5, 4).clamp(-2, 2),)


@program
def associative_memory() -> Built:
    patterns = F.normalize(torch.randn(9, 6), dim=-1)

    def run(state: Tensor) -> Tensor:
        for _ in range(3):
            state = torch.softmax(8 * state @ patterns.T, -1) @ patterns
        return state

    return run, (torch.randn(2, 6),)
