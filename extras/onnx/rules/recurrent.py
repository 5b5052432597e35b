"""Recurrent layers, by PyTorch's own operators, whose gates have another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..registry import refuse, rule

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Position in ONNX of the gates of PyTorch: input, forget, cell, output; reset, update, new; the only one."""

DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _reordered(weights: Tensor, op: str) -> Tensor:
    """Returns weights or a bias of one direction with the gates in PyTorch's order."""
    parts = weights.chunk(len(GATES[op]), 0)
    return torch.cat([parts[g] for g in GATES[op]], 0)


def _check(op: str, activations: Sequence[str] | None, directions: int, **unsupported: Any) -> None:
    usual = DEFAULTS[op] * directions
    if activations is not None and [a.lower() for a in activations] != [a.lower() for a in usual]:
        refuse(f"expected the activations {', '.join(usual)}, but got {', '.join(activations)}")
    for name, value in unsupported.items():
        if value is not None and value != 0:
            refuse(f"the attribute {name} is not supported")


@rule("LSTM", "GRU", "RNN")
def recurrent(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    hidden_size: int | None = None,
    direction: str = "forward",
    activations: Sequence[str] | None = None,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    clip: float | None = None,
    input_forget: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
    op: str,
    outputs: int,
) -> list[Tensor]:
    # The results are all hidden states by direction, the last one, and the last cell.
    directions = w.shape[0]
    parameters = {"activation_alpha": activation_alpha, "activation_beta": activation_beta}
    _check(op, activations, directions, clip=clip, input_forget=input_forget, **parameters)
    if lengths is not None:
        refuse("sequence lengths are not supported; pass whole sequences")
    if layout:
        x = x.transpose(0, 1)
        h, c = (None if s is None else s.transpose(0, 1) for s in (h, c))
    size, batch = r.shape[-1], x.shape[1]
    zeros = torch.zeros(directions, batch, size, dtype=x.dtype)
    h, c = zeros if h is None else h, zeros if c is None else c
    if op == "LSTM" and peepholes is not None or op == "GRU" and not linear_before_reset:
        states = [
            _steps(
                x,
                w[d],
                r[d],
                None if b is None else b[d],
                h[d],
                c[d],
                None if peepholes is None else peepholes[d],
                op,
                direction == "reverse" or d == 1,
            )
            for d in range(directions)
        ]
        ys = torch.stack([s[0] for s in states], 1)
        last, cell = (torch.stack([s[n] for s in states], 0) for n in (1, 2))
    else:
        flat: list[Tensor] = []
        for d in range(directions):
            flat += [_reordered(w[d], op), _reordered(r[d], op)]
            if b is not None:
                flat += [_reordered(half, op) for half in b[d].chunk(2, 0)]
        two, backward = directions == 2, direction == "reverse"
        options = (flat, b is not None, 1, 0.0, False, two, False)
        source = x.flip(0) if backward else x
        if op == "LSTM":
            y, last, cell = torch.lstm(source, [h, c], *options)
        else:
            y, last = (torch.gru if op == "GRU" else torch.rnn_tanh)(source, h, *options)
            cell = last
        y = y.flip(0) if backward else y
        ys = y.reshape(x.shape[0], batch, directions, size).transpose(1, 2)
    if layout:
        ys, last, cell = ys.permute(2, 0, 1, 3), last.transpose(0, 1), cell.transpose(0, 1)
    return [ys, last, cell][: max(outputs, 1)]


def _steps(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, h: Tensor, c: Tensor, p: Tensor | None, op: str, backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Unrolls one direction of an LSTM with peepholes, or of a GRU that resets before its product, which PyTorch has
    not. Returns all hidden states, the last one and the last cell."""
    if b is None:
        b = torch.zeros(2 * w.shape[0], dtype=x.dtype)
    of_input, of_state = b.chunk(2, 0)
    states: list[Tensor] = []
    order = range(x.shape[0] - 1, -1, -1) if backward else range(x.shape[0])
    for t in order:
        if op == "GRU":
            z, reset, new = (torch.matmul(x[t], w.T) + of_input).chunk(3, -1)
            rz, rr, rn = r.chunk(3, 0)
            bz, br, bn = of_state.chunk(3, 0)
            z = torch.sigmoid(z + torch.matmul(h, rz.T) + bz)
            reset = torch.sigmoid(reset + torch.matmul(h, rr.T) + br)
            new = torch.tanh(new + torch.matmul(reset * h, rn.T) + bn)
            h = (1 - z) * new + z * h
        else:
            i, o, f, g = (torch.matmul(x[t], w.T) + torch.matmul(h, r.T) + of_input + of_state).chunk(4, -1)
            pi, po, pf = p.chunk(3, 0) if p is not None else (0, 0, 0)
            i, f = torch.sigmoid(i + pi * c), torch.sigmoid(f + pf * c)
            c = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + po * c)
            h = o * torch.tanh(c)
        states.append(h)
    return torch.stack(states[::-1] if backward else states), h, c
