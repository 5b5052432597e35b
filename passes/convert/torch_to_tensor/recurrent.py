"""Recurrent layers (LSTM, GRU, RNN) as a matmul for the inputs of all steps, and a fold over time.

The contribution of the input to the gates does not depend on the state, so one matmul computes it for all steps. A step
adds the contribution of the state. States are stored in the data type of the tensors; all else is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from xdsl.dialects import math
from xdsl.ir import SSAValue

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, fixed, static
from ....dialects.tensor.builder import Builder
from ....dialects.tensor.folds import fold
from ....dialects.tensor.views import permuted, reshape_to, sliced
from .concat import cat
from .matmul import times_transposed
from .random import dropped
from .registry import decomposes

Cell = Callable[..., Sequence[SSAValue]]
"""Step of a recurrent layer: (builder, contribution of the input to all gates, contribution of the state,
states...) -> the next states. The states of an LSTM are h and c; all other cells have h alone."""


def _lstm(b: Builder, from_input: SSAValue, from_state: SSAValue, h: SSAValue, c: SSAValue) -> Sequence[SSAValue]:
    """Returns (h', c') of an LSTM cell: c' = f * c + i * g, h' = o * tanh(c'). The caller applies a projection."""
    i, f, g, o = _gates(b, b.add(from_input, from_state), 4)
    c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.math(math.TanhOp, g)))
    return b.mul(b.sigmoid(o), b.math(math.TanhOp, c)), c


def _gru(b: Builder, from_input: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    """Returns h' = (1 - z) * n + z * h of a GRU cell, where n = tanh(x_n + r * h_n). x_n and h_n are the contributions
    of input and state to n."""
    (xr, xz, xn), (hr, hz, hn) = _gates(b, from_input, 3), _gates(b, from_state, 3)
    r, z = b.sigmoid(b.add(xr, hr)), b.sigmoid(b.add(xz, hz))
    n = b.math(math.TanhOp, b.add(xn, b.mul(r, hn)))
    return (b.add(n, b.mul(z, b.sub(h, n))),)


def _tanh(b: Builder, from_input: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    return (b.math(math.TanhOp, b.add(from_input, from_state)),)


def _relu(b: Builder, from_input: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    x = b.add(from_input, from_state)
    return (b.maximum(x, b.like(x, 0)),)


def _gates(b: Builder, x: SSAValue, count: int) -> list[SSAValue]:
    """Splits the last dimension into `count` equal parts."""
    rank, size = len(extents_of(x.type)), fixed(extents_of(x.type)[-1]) // count
    return [sliced(b, x, rank - 1, i * size, size) for i in range(count)]


def _biased(b: Builder, x: SSAValue, *biases: SSAValue) -> SSAValue:
    for bias in biases:
        x = b.add(x, b.broadcast(b.working(bias), extents_of(x.type)))
    return x


def _run(
    b: Builder, x: SSAValue, states: list[SSAValue], params: Sequence[SSAValue], has_biases: bool, cell: Cell
) -> list[SSAValue]:
    """Runs one direction of one layer.

    Args:
        b: Builder of the operator.
        x: Inputs, of shape [T, B, inputs].
        states: Initial states, of shape [B, ...] each.
        params: Weights [gates * hidden, inputs] and [gates * hidden, state], two biases [gates * hidden] if
            `has_biases`, and the projection [state, hidden] of an LSTM that has one.
        has_biases: True if `params` has biases.
        cell: Function of one step.

    Returns:
        The values of h after each step, of shape [T, B, ...]. For an LSTM, also the last value of c.
    """
    storage, weight, projection = element_type(states[0].type), params[1], params[4 if has_biases else 2 :]
    biases = params[2:4] if has_biases else ()
    # A GRU multiplies the bias of the state by its reset gate, so each step adds it. All other biases are added in
    # advance.
    state_biases = biases[1:] if cell is _gru else ()
    from_input = _biased(b, times_transposed(b, x, params[0]), *biases[: len(biases) - len(state_biases)])

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        from_state = _biased(b, times_transposed(b, carries[0], shared[0]), *shared[1 : 1 + len(state_biases)])
        h, *other_states = cell(b, slices[0], from_state, *map(b.working, carries))
        h = times_transposed(b, h, shared[-1]) if projection else h
        return [b.cast(v, storage) for v in (h, *other_states)]

    return fold(b, step, fixed(extents_of(x.type)[0]), states, [from_input], [weight, *state_biases, *projection], [0])


def _reversed(b: Builder, x: SSAValue) -> SSAValue:
    steps = fixed(extents_of(x.type)[0])
    return sliced(b, x, 0, steps - 1, steps, -1) if steps > 1 else x


def _layers(
    b: Builder,
    input: SSAValue,
    hx: SSAValue | Sequence[SSAValue],
    params: Sequence[SSAValue],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    generator: SSAValue | None,
    cell: Cell = _lstm,
) -> list[SSAValue]:
    """Returns the output and the last states of all layers. States have the shape [layers * directions, B, ...]."""
    x, states = input, [hx] if isinstance(hx, SSAValue) else hx
    batched = len(extents_of(x.type)) == 3
    if not batched:
        x, *states = (reshape_to(b, v, [extents_of(v.type)[0], 1, *extents_of(v.type)[1:]]) for v in (x, *states))
    elif batch_first:
        x = permuted(b, x, [1, 0, 2])
    directions = 2 if bidirectional else 1
    params_per_run = len(params) // (num_layers * directions)
    last: list[list[SSAValue]] = [[] for _ in states]
    for layer in range(num_layers):
        if layer and train and dropout:
            x, _ = dropped(b, x, dropout, generator, layer * prod(static(extents_of(x.type))))
        outputs = list[SSAValue]()
        for direction in range(directions):
            number = layer * directions + direction
            initial = [reshape_to(b, sliced(b, s, 0, number, 1), extents_of(s.type)[1:]) for s in states]
            inputs = _reversed(b, x) if direction else x
            steps, *finals = _run(
                b, inputs, initial, params[number * params_per_run : (number + 1) * params_per_run], has_biases, cell
            )
            end = sliced(b, steps, 0, fixed(extents_of(steps.type)[0]) - 1, 1)
            for ends, final in zip(last, (end, *finals), strict=True):
                ends.append(reshape_to(b, final, [1, *extents_of(final.type)[-2:]]))
            outputs.append(_reversed(b, steps) if direction else steps)
        x = outputs[0] if len(outputs) == 1 else cat(b, outputs, 2)
    ends = [cat(b, parts, 0) if len(parts) > 1 else parts[0] for parts in last]
    if not batched:
        return [reshape_to(b, v, [extents_of(v.type)[0], *extents_of(v.type)[2:]]) for v in (x, *ends)]
    return [permuted(b, x, [1, 0, 2]) if batch_first else x, *ends]


for _name, _cell in (("lstm", _lstm), ("gru", _gru), ("rnn_tanh", _tanh), ("rnn_relu", _relu)):
    decomposes(f"{_name}.input")(partial(_layers, cell=_cell))
