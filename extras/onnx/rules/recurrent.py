"""Recurrent layers, by PyTorch's own operators, whose gates have another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..registry import refuse, rule
from .control import LONGEST_LOOP

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
    if directions != (2 if direction == "bidirectional" else 1):
        refuse(f"expected weights of {3 - directions} directions for {direction}, but got {directions}")
    if hidden_size not in (None, r.shape[-1]):
        refuse(f"expected weights of the hidden size {hidden_size}, but they have {r.shape[-1]}")
    if layout:
        x = x.transpose(0, 1)
        h, c = (None if s is None else s.transpose(0, 1) for s in (h, c))
    size, batch = r.shape[-1], x.shape[1]
    zeros = torch.zeros(directions, batch, size, dtype=x.dtype)
    h, c = zeros if h is None else h, zeros if c is None else c
    if peepholes is not None or lengths is not None or op == "GRU" and not linear_before_reset:
        if not isinstance(x.shape[0], int) or x.shape[0] > LONGEST_LOOP:
            refuse(f"expected at most {LONGEST_LOOP} steps, which are unrolled, but got {x.shape[0]}")
        layers = [
            _Layer(
                op,
                w[d],
                r[d],
                None if b is None else b[d],
                h[d],
                c[d],
                None if peepholes is None else peepholes[d],
                linear=bool(linear_before_reset),
                backward=direction == "reverse" or d == 1,
            )
            for d in range(directions)
        ]
        states = [layer(x, lengths) for layer in layers]
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


@dataclass(frozen=True)
class _Layer:
    """Recurrent layer of one direction, unrolled, with ONNX's order of gates.

    It has peepholes, sequence lengths and resets before the product, which PyTorch's operators lack.

    Attributes:
        op: LSTM, GRU or RNN.
        w, r, b: weights of the input and of the state, and the biases of both.
        h, c: initial state and cell.
        p: weights of the cell in the gates of an LSTM.
        linear: whether a GRU resets after its product.
        backward: whether steps are taken from the last to the first.
    """

    op: str
    w: Tensor
    r: Tensor
    b: Tensor | None
    h: Tensor
    c: Tensor
    p: Tensor | None
    linear: bool
    backward: bool

    def __call__(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns all hidden states, the last one and the last cell. After the length of a sequence states are 0."""
        h, c = self.h, self.c
        states: list[Tensor] = []
        for t in reversed(range(x.shape[0])) if self.backward else range(x.shape[0]):
            new_h, new_c = self._step(x[t], h, c)
            if lengths is None:
                h, c = new_h, new_c
                states.append(h)
            else:
                inside = (lengths > t).unsqueeze(-1)
                h, c = torch.where(inside, new_h, h), torch.where(inside, new_c, c)
                states.append(torch.where(inside, new_h, torch.zeros_like(new_h)))
        return torch.stack(states[::-1] if self.backward else states), h, c

    def _step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        biases = (0.0, 0.0) if self.b is None else self.b.chunk(2, 0)
        of_input = torch.matmul(x, self.w.T) + biases[0]
        if self.op == "GRU" and not self.linear:
            rz, rr, rn = self.r.chunk(3, 0)
            bz, br, bn = (0.0, 0.0, 0.0) if self.b is None else biases[1].chunk(3, 0)  # pyright: ignore
            z, reset, new = of_input.chunk(3, -1)
            z = torch.sigmoid(z + torch.matmul(h, rz.T) + bz)
            reset = torch.sigmoid(reset + torch.matmul(h, rr.T) + br)
            new = torch.tanh(new + torch.matmul(reset * h, rn.T) + bn)
            return (1 - z) * new + z * h, c
        of_state = torch.matmul(h, self.r.T) + biases[1]
        if self.op == "GRU":
            (z, reset, new), (hz, hr, hn) = of_input.chunk(3, -1), of_state.chunk(3, -1)
            z, reset = torch.sigmoid(z + hz), torch.sigmoid(reset + hr)
            return (1 - z) * torch.tanh(new + reset * hn) + z * h, c
        if self.op == "RNN":
            return torch.tanh(of_input + of_state), c
        i, o, f, g = (of_input + of_state).chunk(4, -1)
        pi, po, pf = (0.0, 0.0, 0.0) if self.p is None else self.p.chunk(3, 0)
        i, f = torch.sigmoid(i + pi * c), torch.sigmoid(f + pf * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + po * c) * torch.tanh(c), c
