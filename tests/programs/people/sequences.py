"""Recurrent networks, state spaces, convolutions over time, and algorithms over sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Built, inference, program


@program
def lstm_classifier() -> Built:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 6, 2, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            _, (h, _) = self.lstm(self.embed(x))
            return self.head(h[-1])

    return inference(Classifier()), (torch.randint(0, 20, (2, 7)),)


@program
def bidirectional_gru() -> Built:
    gru = inference(nn.GRU(5, 4, bidirectional=True, batch_first=True))
    return (lambda x: gru(x)[0].max(1).values), (torch.randn(2, 6, 5),)


@program
def plain_recurrent_network() -> Built:
    rnn = inference(nn.RNN(4, 6, nonlinearity="relu"))
    return (lambda x, h: rnn(x, h)), (torch.randn(6, 2, 4), torch.randn(1, 2, 6))


@program
def lstm_cell_in_a_loop() -> Built:
    cell = inference(nn.LSTMCell(4, 5))

    def run(x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], 5)
        outputs = []
        for step in x:
            h, c = cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs)

    return run, (torch.randn(5, 2, 4),)


class CausalConv(nn.Module):
    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        self.pad, self.conv = dilation, nn.Conv1d(c, 2 * c, 2, dilation=dilation)
        self.residual, self.skip = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(y), self.skip(y)


@program
def wavenet() -> Built:
    layers = inference(nn.ModuleList(CausalConv(4, 2**i) for i in range(3)))

    def run(x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for layer in layers:
            x, skip = layer(x)
            total = total + skip
        return F.relu(total)

    return run, (torch.randn(1, 4, 16),)


@program
def temporal_convolutions() -> Built:
    layers = [
        nn.Conv1d(3, 6, 3, padding=2, dilation=2),
        nn.BatchNorm1d(6),
        nn.PReLU(),
        nn.Conv1d(6, 6, 3, 2),
        nn.Dropout(0.3),
    ]
    return inference(nn.Sequential(*layers)), (torch.randn(2, 3, 15),)


@program
def conformer_convolution() -> Built:
    norm, up, out = nn.LayerNorm(8), nn.Conv1d(8, 16, 1), nn.Conv1d(8, 8, 1)
    deep, bn = nn.Conv1d(8, 8, 7, padding=3, groups=8), nn.BatchNorm1d(8)
    for m in (norm, up, out, deep, bn):
        inference(m)

    def run(x: Tensor) -> Tensor:
        y = F.glu(up(norm(x).transpose(1, 2)), dim=1)
        return x + out(F.silu(bn(deep(y)))).transpose(1, 2)

    return run, (torch.randn(2, 10, 8),)


class SelectiveScan(nn.Module):
    """A state space whose step sizes depend on the input, as a loop over time (Mamba's reference form)."""

    def __init__(self, d: int = 6, n: int = 4) -> None:
        super().__init__()
        self.a_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1))
        self.project, self.dt, self.skip = nn.Linear(d, 1 + 2 * n), nn.Linear(1, d), nn.Parameter(torch.ones(d))
        self.n = n

    def forward(self, u: Tensor) -> Tensor:
        delta, b, c = self.project(u).split([1, self.n, self.n], dim=-1)
        delta = F.softplus(self.dt(delta))
        decay = torch.exp(delta[..., None] * -torch.exp(self.a_log))
        inputs = delta[..., None] * b[:, :, None, :] * u[..., None]
        state, outputs = torch.zeros_like(decay[:, 0]), []
        for t in range(u.shape[1]):
            state = decay[:, t] * state + inputs[:, t]
            outputs.append((state * c[:, t, None, :]).sum(-1))
        return torch.stack(outputs, 1) + u * self.skip


@program
def selective_state_space() -> Built:
    return inference(SelectiveScan()), (torch.randn(2, 6, 6),)


@program
def mamba_mixer_around_the_scan() -> Built:
    up, conv, scan, out = nn.Linear(6, 12), nn.Conv1d(6, 6, 4, groups=6, padding=3), SelectiveScan(), nn.Linear(6, 6)
    for m in (up, conv, scan, out):
        inference(m)

    def run(x: Tensor) -> Tensor:
        u, gate = up(x).chunk(2, -1)
        u = F.silu(conv(u.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2))
        return out(scan(u) * F.silu(gate))

    return run, (torch.randn(1, 5, 6),)


@program
def rwkv_time_mixing() -> Built:
    mix, key, value, gate = torch.rand(8), *(inference(nn.Linear(8, 8, bias=False)) for _ in range(3))
    decay, bonus = -torch.exp(torch.randn(8)), torch.randn(8)

    def run(x: Tensor) -> Tensor:
        last = F.pad(x, (0, 0, 1, -1))
        mixed = x * mix + last * (1 - mix)
        k, v, r = key(mixed), value(mixed), torch.sigmoid(gate(mixed))
        numerator = denominator = torch.zeros_like(k[:, 0])
        most, outputs = torch.full_like(k[:, 0], -1e38), []
        for t in range(x.shape[1]):
            top = torch.maximum(most, bonus + k[:, t])
            a, b = torch.exp(most - top), torch.exp(bonus + k[:, t] - top)
            outputs.append((a * numerator + b * v[:, t]) / (a * denominator + b))
            top = torch.maximum(most + decay, k[:, t])
            a, b = torch.exp(most + decay - top), torch.exp(k[:, t] - top)
            numerator, denominator, most = a * numerator + b * v[:, t], a * denominator + b, top
        return r * torch.stack(outputs, 1)

    return run, (torch.randn(2, 5, 8),)


@program
def quasi_recurrent_pooling() -> Built:
    def run(z: Tensor, f: Tensor, o: Tensor) -> Tensor:
        z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
        h, outputs = torch.zeros_like(z[:, 0]), []
        for t in range(z.shape[1]):
            h = f[:, t] * h + (1 - f[:, t]) * z[:, t]
            outputs.append(o[:, t] * h)
        return torch.stack(outputs, 1)

    return run, tuple(torch.randn(2, 6, 4) for _ in range(3))


@program
def additive_attention() -> Built:
    w, u, v = (inference(nn.Linear(6, 6, bias=False)) for _ in range(3))

    def run(query: Tensor, keys: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores = v(torch.tanh(w(query)[:, None] + u(keys))).sum(-1)
        scores = scores.masked_fill(torch.arange(keys.shape[1]) >= lengths[:, None], -1e9)
        weights = scores.softmax(-1)
        return torch.bmm(weights[:, None], keys).squeeze(1), weights

    return run, (torch.randn(2, 6), torch.randn(2, 7, 6), torch.tensor([7, 4]))


@program
def highway_layers() -> Built:
    layers = inference(nn.ModuleList(nn.Linear(8, 16) for _ in range(3)))

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            h, t = layer(x).chunk(2, -1)
            t = torch.sigmoid(t - 1)
            x = t * F.relu(h) + (1 - t) * x
        return x

    return run, (torch.randn(3, 8),)


@program
def forward_algorithm_of_an_hmm() -> Built:
    def run(start: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
        alpha = start + emission[:, 0]
        for t in range(1, emission.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + transition, 1) + emission[:, t]
        return torch.logsumexp(alpha, 1)

    return run, (torch.randn(4), torch.randn(4, 4), torch.randn(2, 6, 4))


@program
def viterbi_decoding() -> Built:
    def run(transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
        score, back = emission[:, 0], []
        for t in range(1, emission.shape[1]):
            best, index = (score[:, :, None] + transition).max(1)
            score = best + emission[:, t]
            back.append(index)
        tag = score.argmax(1)
        path = [tag]
        for index in reversed(back):
            tag = index.gather(1, tag[:, None]).squeeze(1)
            path.append(tag)
        return score.max(1).values, torch.stack(path[::-1], 1)

    return run, (torch.randn(4, 4), torch.randn(2, 5, 4))


@program
def bag_of_words() -> Built:
    bag = inference(nn.EmbeddingBag(20, 6, mode="mean"))
    return (lambda x: bag(x)), (torch.randint(0, 20, (3, 5)),)


@program
def statistics_pooling() -> Built:
    def run(x: Tensor, mask: Tensor) -> Tensor:
        weight = mask / mask.sum(1, keepdim=True)
        mean = (x * weight[..., None]).sum(1)
        variance = ((x - mean[:, None]) ** 2 * weight[..., None]).sum(1)
        return torch.cat([mean, variance.clamp(min=1e-7).sqrt()], -1)

    return run, (torch.randn(2, 9, 5), (torch.rand(2, 9) > 0.3).float())


@program
def exponential_moving_average() -> Built:
    def run(x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1])
        weights = torch.where(t[:, None] >= t, 0.9 ** (t[:, None] - t).clamp(min=0).float(), torch.zeros(()))
        return 0.1 * x @ weights.T

    return run, (torch.randn(3, 12),)


@program
def running_maximum_and_drawdown() -> Built:
    def run(returns: Tensor) -> tuple[Tensor, Tensor]:
        wealth = torch.cumprod(1 + returns, 1)
        top = torch.cummax(wealth, 1).values
        return wealth, ((top - wealth) / top).amax(1)

    return run, (torch.randn(3, 12) * 0.1,)


@program
def reversed_discounted_sums() -> Built:
    def run(rewards: Tensor) -> Tensor:
        total, found = torch.zeros(rewards.shape[0]), []
        for t in reversed(range(rewards.shape[1])):
            total = rewards[:, t] + 0.97 * total
            found.append(total)
        return torch.stack(found[::-1], 1)

    return run, (torch.randn(3, 7),)


@program
def dropout_between_layers() -> Built:
    layers = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.0), nn.Mish(), nn.Softplus(), nn.Linear(8, 4), nn.LogSoftmax(-1)
    )
    return layers.requires_grad_(False), (torch.randn(3, 8),)
