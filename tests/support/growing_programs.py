"""Programs of variable size, for tests that compile time grows in proportion to a program (`test_growth.py`).

A kind is a function from a size `n` to a program: a function of tensors and its example arguments. The number of
operations is proportional to `n`. Parts of a program have different extents, so that the compiler cannot treat them as
equal, except in kinds that test repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = tuple[Callable[..., object], tuple[Tensor, ...]]

KINDS: dict[str, Callable[[int], Program]] = {}
"""Name of a kind -> function from `n` to a program."""


def kind(build: Callable[[int], Program]) -> Callable[[int], Program]:
    """Registers a kind in `KINDS` under the name of its function."""
    KINDS[build.__name__] = build
    return build


def _rows(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def _module(layers: Sequence[nn.Module], *args: Tensor) -> Program:
    return nn.Sequential(*layers).eval(), args


@kind
def equal_layers(n: int) -> Program:
    return _module([m for _ in range(n) for m in (nn.Linear(8, 8), nn.ReLU())], _rows(4, 8))


@kind
def unequal_layers(n: int) -> Program:
    widths = [8 + 37 * i % 67 for i in range(n + 1)]
    return _module(
        [m for a, b in zip(widths, widths[1:], strict=False) for m in (nn.Linear(a, b), nn.GELU())], _rows(4, 8)
    )


@kind
def unequal_transformer_blocks(n: int) -> Program:
    layers = [nn.TransformerEncoderLayer(8, 2, 16 + i, 0.0, batch_first=True) for i in range(n)]
    for layer in layers:
        layer.train()
    return nn.Sequential(*layers), (_rows(2, 6, 8),)


@kind
def pointwise_chain(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for _ in range(n):
            x = torch.tanh(x * 1.5 + 0.25)
        return x

    return run, (_rows(4, 8),)


@kind
def chain_without_repeats(n: int) -> Program:
    steps = (torch.tanh, torch.sin, torch.sigmoid, torch.cos, torch.abs, torch.neg, torch.exp)

    def run(x: Tensor) -> Tensor:
        state = 1
        for i in range(n):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            x = steps[(state >> 16) % len(steps)](x) + i * 0.5
        return x

    return run, (_rows(4, 8),)


@kind
def chain_of_row_reductions(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = F.layer_norm(x, (8,)) * (i + 0.5)
        return x

    return run, (_rows(4, 8),)


@kind
def chain_of_softmaxes(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = torch.softmax(x * (i + 0.5), i % 2)
        return x

    return run, (_rows(4, 8),)


@kind
def unrolled_lstm_cells(n: int) -> Program:
    cell = nn.LSTMCell(4, 4)

    def run(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        for t in range(n):
            h, c = cell(x[t], (h, c))
        return h

    return run, (_rows(n, 2, 4), _rows(2, 4), _rows(2, 4))


@kind
def unrolled_gru_cells(n: int) -> Program:
    cell = nn.GRUCell(4, 4)

    def run(x: Tensor, h: Tensor) -> Tensor:
        found = []
        for t in range(n):
            h = cell(x[t], h)
            found.append(h)
        return torch.stack(found)

    return run, (_rows(n, 2, 4), _rows(2, 4))


@kind
def experts_as_a_loop(n: int) -> Program:
    experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(n))
    gate = nn.Linear(8, n)

    def run(x: Tensor) -> Tensor:
        weights = torch.softmax(gate(x), -1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            result = result + weights[:, i : i + 1] * expert(x)
        return result

    return run, (_rows(4, 8),)


@kind
def matmuls_of_all_shapes(n: int) -> Program:
    weights = [_rows(8, 8 + 37 * i % 67) for i in range(n)]

    def run(x: Tensor) -> list[Tensor]:
        return [x @ w for w in weights]

    return run, (_rows(4, 8),)


@kind
def heads_as_a_loop(n: int) -> Program:
    weights = _rows(n, 3, 8, 4)

    def run(x: Tensor) -> Tensor:
        heads = []
        for i in range(n):
            q, k, v = (x @ weights[i, j] for j in range(3))
            heads.append(torch.softmax(q @ k.T, -1) @ v)
        return torch.cat(heads, -1)

    return run, (_rows(6, 8),)


@kind
def growing_concatenations(n: int) -> Program:
    weights = [_rows(4 + 2 * i, 2) for i in range(n)]

    def run(x: Tensor) -> Tensor:
        for w in weights:
            x = torch.cat([x, torch.relu(x @ w)], -1)
        return x

    return run, (_rows(4, 4),)


@kind
def one_concatenation_of_many(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        return torch.cat([x * (i + 0.5) for i in range(n)], -1)

    return run, (_rows(4, 3),)


@kind
def residual_chain(n: int) -> Program:
    weights = [_rows(8, 8) * (i + 1) for i in range(n)]

    def run(x: Tensor) -> Tensor:
        for w in weights:
            x = x + torch.relu(x @ w)
        return x

    return run, (_rows(4, 8),)


@kind
def unequal_convolutions(n: int) -> Program:
    widths = [2 + 37 * i % 67 for i in range(n + 1)]
    pairs = zip(widths, widths[1:], strict=False)
    layers = [m for a, b in pairs for m in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())]
    return _module(layers, _rows(1, 2, 6, 6))


@kind
def pooling_chain(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=0.5), 3, 1) + i
        return x

    return run, (_rows(1, 2, 6, 6),)


@kind
def resampling_chain(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = F.avg_pool2d(F.interpolate(x, scale_factor=2), 2) * (i + 0.5)
        return x

    return run, (_rows(1, 2, 4, 4),)


@kind
def many_results(n: int) -> Program:
    def run(x: Tensor) -> list[Tensor]:
        return [torch.sin(x) * (i + 0.5) for i in range(n)]

    return run, (_rows(4, 8),)


@kind
def many_arguments(n: int) -> Program:
    def run(*xs: Tensor) -> Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total + torch.tanh(x)
        return total

    return run, tuple(_rows(4, 8) + i for i in range(n))


@kind
def reductions_of_one_tensor(n: int) -> Program:
    def run(x: Tensor) -> list[Tensor]:
        return [(x * (i + 0.5)).sum(i % 2) for i in range(n)]

    return run, (_rows(4, 8),)


@kind
def chain_of_sums_over_all(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = x - x.mean() * (i + 0.5)
        return x

    return run, (_rows(4, 8),)


@kind
def tree_of_sums(n: int) -> Program:
    def run(*xs: Tensor) -> Tensor:
        level = list(xs)
        while len(level) > 1:
            level = [torch.sin(a) + b for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0]

    return run, tuple(_rows(4, 8) + i for i in range(n))


@kind
def values_used_twice(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for _ in range(n):
            x = x * x + x
        return x

    return run, (_rows(4, 8),)


@kind
def rounds_of_shifts(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for _ in range(n):
            x = x ^ x << 13
            x = x ^ x >> 7
            x = x ^ x << 17
        return x

    return run, (torch.arange(1, 9),)


@kind
def integer_powers(n: int) -> Program:
    def run(x: Tensor, e: Tensor) -> Tensor:
        for i in range(n):
            x = x**e + i
        return x

    return run, (torch.arange(1, 9), torch.arange(8))


@kind
def chain_of_views(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = (x.reshape(2, -1).t().flip(0) + i).reshape(4, 6).t()
        return x

    return run, (_rows(4, 6),)


@kind
def slices_of_one_tensor(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        return torch.stack([torch.sin(x[i]) * x[-i - 1] for i in range(n)])

    return run, (_rows(n, 8),)


@kind
def embeddings(n: int) -> Program:
    tables = [_rows(10 + i, 4) for i in range(n)]

    def run(index: Tensor) -> Tensor:
        return torch.cat([F.embedding(index[:, i], table) for i, table in enumerate(tables)], -1)

    return run, (torch.zeros(4, n, dtype=torch.long),)


@kind
def chain_of_gathers(n: int) -> Program:
    def run(x: Tensor, index: Tensor) -> Tensor:
        for i in range(n):
            x = torch.gather(x, 1, index) + i
        return x

    return run, (_rows(4, 8), torch.arange(8).expand(4, 8).contiguous())


@kind
def chain_of_scans(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = torch.cumsum(x, i % 2) * 0.5
        return x

    return run, (_rows(4, 8),)


@kind
def masked_updates(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = torch.where(x > i * 0.1, x.masked_fill(x < 0, 0.5), -x)
        return x

    return run, (_rows(4, 8),)


@kind
def conversions(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = (x.to(torch.bfloat16) * (i + 0.5)).float() + x.half().float()
        return x

    return run, (_rows(4, 8),)


@kind
def slice_assignments(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        x = x.clone()
        for i in range(n):
            x[:, i] = torch.sin(x[:, i - 1])
        return x

    return run, (_rows(4, n),)


@kind
def dropouts(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = F.dropout(x, 0.25) * (i + 0.5)
        return x

    return run, (_rows(4, 8),)


@kind
def clenshaw_recurrence(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        b0 = b1 = torch.zeros_like(x)
        for i in range(n):
            b0, b1 = 2 * x * b0 - b1 + 1 / (i + 1), b0
        return b0 - b1

    return run, (_rows(64),)


@kind
def powers_by_squaring(n: int) -> Program:
    def run(x: Tensor, bits: Tensor) -> Tensor:
        result = torch.ones_like(x)
        for i in range(n):
            result = torch.where((bits >> i & 1) != 0, result * x, result)
            x = x * x
        return result

    return run, (torch.arange(64), torch.arange(64))


@kind
def crossed_values(n: int) -> Program:
    def run(a: Tensor, b: Tensor) -> Tensor:
        for i in range(n):
            a, b = torch.sin(a) * b + i, torch.cos(b) - a
        return a * b

    return run, (_rows(64), _rows(64) + 1)


@kind
def one_value_used_often(n: int) -> Program:
    def run(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        total = x
        for i in range(n):
            total = total * (y + i * 0.5)
        return total

    return run, (_rows(64),)


@kind
def casts_between(n: int) -> Program:
    types = (torch.int32, torch.float64, torch.int16, torch.float32)

    def run(x: Tensor) -> Tensor:
        for i in range(n):
            x = (x + i).to(types[i % 4])
        return x

    return run, (_rows(64),)


@kind
def unrolled_scan(n: int) -> Program:
    def run(x: Tensor, decay: Tensor, drive: Tensor, read: Tensor) -> Tensor:
        state, found = torch.zeros(2, 16, 4), []
        for t in range(n):
            state = decay[:, :, t] * state + drive[:, :, t] * x[:, :, t, None]
            found.append(torch.matmul(state, read[:, t, :, None])[..., 0])
        return torch.stack(found, -1)

    return run, (_rows(2, 16, n), _rows(2, 16, n, 4), _rows(2, 16, n, 4), _rows(2, n, 4))


@kind
def joined_recurrence(n: int) -> Program:
    def run(k: Tensor, v: Tensor, decay: Tensor, first: Tensor) -> Tensor:
        above = below = torch.zeros(1, 16)
        largest, result = torch.full((1, 16), -1e38), torch.zeros_like(k)
        for t in range(n):
            peak = torch.maximum(largest, k[:, t] + first)
            old, new = torch.exp(largest - peak), torch.exp(k[:, t] + first - peak)
            result[:, t] = (old * above + new * v[:, t]) / (old * below + new)
            peak = torch.maximum(largest + decay, k[:, t])
            old, new = torch.exp(largest + decay - peak), torch.exp(k[:, t] - peak)
            above, below, largest = old * above + new * v[:, t], old * below + new, peak
        return result

    return run, (_rows(1, n, 16), _rows(1, n, 16), _rows(16), _rows(16))
