"""Recurrent layers: one product for the inputs of all steps, then a fold over time.

What a gate gets from the input does not depend on the state, so it is computed for all steps at once; a step adds what
it gets from the state. States are kept in the tensors' own data type, everything else is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import math
from xdsl.ir import SSAValue

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, fixed, static
from ....dialects.tensor.builder import Builder
from .concat import cat
from .matmul import times_transposed
from .random import keep_some
from .registry import decomposes
from .scan_builder import fold
from .views import permuted, reshape_to, sliced


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction of one layer: `input` [gates * hidden, inputs], `state` [gates * hidden, state],
    biases [gates * hidden] or None, and `projection` [state, hidden] of an LSTM with one."""

    input: SSAValue
    state: SSAValue
    input_bias: SSAValue | None
    state_bias: SSAValue | None
    projection: SSAValue | None


Cell = Callable[[Builder, SSAValue, list[SSAValue], Weights], list[SSAValue]]
"""(builder, input [T, B, inputs], states [B, ...] each, weights) -> the first state of all steps [T, B, ...], and the
last values of the other states."""


def lstm_cell(b: Builder, x: SSAValue, states: list[SSAValue], w: Weights) -> list[SSAValue]:
    """c' = f * c + i * g, h' = o * tanh(c'), projected if there is a projection."""
    storage = element_type(states[0].type)
    given = _input_part(b, x, w, with_state_bias=True)

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        h, c = carries
        c = b.working(c)
        i, f, g, o = _gates(b, b.add(slices[0], times_transposed(b, h, shared[0])), 4)
        c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.math(math.TanhOp, g)))
        h = b.mul(b.sigmoid(o), b.math(math.TanhOp, c))
        if len(shared) > 1:
            h = times_transposed(b, h, shared[1])
        return [b.cast(h, storage), b.cast(c, storage)]

    shared = [w.state] if w.projection is None else [w.state, w.projection]
    return fold(b, step, fixed(extents_of(x.type)[0]), states, [given], shared, [0])


def gru_cell(b: Builder, x: SSAValue, states: list[SSAValue], w: Weights) -> list[SSAValue]:
    """h' = (1 - z) * n + z * h with n = tanh(x_n + r * h_n): the reset gate r scales what n gets from the state."""
    storage = element_type(states[0].type)
    given = _input_part(b, x, w, with_state_bias=False)

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        h = b.working(carries[0])
        from_state = times_transposed(b, carries[0], shared[0])
        if len(shared) > 1:
            from_state = b.add(from_state, b.broadcast(b.working(shared[1]), extents_of(from_state.type)))
        (xr, xz, xn), (hr, hz, hn) = _gates(b, slices[0], 3), _gates(b, from_state, 3)
        r, z = b.sigmoid(b.add(xr, hr)), b.sigmoid(b.add(xz, hz))
        n = b.math(math.TanhOp, b.add(xn, b.mul(r, hn)))
        return [b.cast(b.add(n, b.mul(z, b.sub(h, n))), storage)]

    shared = [w.state] if w.state_bias is None else [w.state, w.state_bias]
    return fold(b, step, fixed(extents_of(x.type)[0]), states, [given], shared, [0])


def _plain_cell(activation: Callable[[Builder, SSAValue], SSAValue]) -> Cell:
    """h' = activation(x + h)."""

    def cell(b: Builder, x: SSAValue, states: list[SSAValue], w: Weights) -> list[SSAValue]:
        storage = element_type(states[0].type)

        def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
            return [b.cast(activation(b, b.add(slices[0], times_transposed(b, carries[0], shared[0]))), storage)]

        given = _input_part(b, x, w, with_state_bias=True)
        return fold(b, step, fixed(extents_of(x.type)[0]), states, [given], [w.state], [0])

    return cell


def _input_part(b: Builder, x: SSAValue, w: Weights, *, with_state_bias: bool) -> SSAValue:
    """What the gates of all steps get from the input, [T, B, gates * hidden]."""
    found = times_transposed(b, x, w.input)
    for bias in (w.input_bias, w.state_bias if with_state_bias else None):
        if bias is not None:
            found = b.add(found, b.broadcast(b.working(bias), extents_of(found.type)))
    return found


def _gates(b: Builder, x: SSAValue, count: int) -> list[SSAValue]:
    """The `count` equal parts of the last dimension."""
    rank, size = len(extents_of(x.type)), fixed(extents_of(x.type)[-1]) // count
    return [sliced(b, x, rank - 1, i * size, size) for i in range(count)]


@dataclass(frozen=True)
class Layout:
    """How the layers of a recurrent module are arranged, and the dropout between them."""

    layers: int
    directions: int
    batch_first: bool
    dropout: float
    generator: SSAValue | None


def _run(
    b: Builder, x: SSAValue, states: Sequence[SSAValue], params: Sequence[SSAValue], biases: bool, layout: Layout,
    cell: Cell,
) -> list[SSAValue]:  # fmt: skip
    """The output and the last states of all layers; `states` are [layers * directions, B, ...] each."""
    batched = len(extents_of(x.type)) == 3
    if not batched:
        x = reshape_to(b, x, [extents_of(x.type)[0], 1, extents_of(x.type)[1]])
        states = [reshape_to(b, s, [extents_of(s.type)[0], 1, *extents_of(s.type)[1:]]) for s in states]
    elif layout.batch_first:
        x = permuted(b, x, [1, 0, 2])
    cells = layout.layers * layout.directions
    each = len(params) // cells
    last: list[list[SSAValue]] = [[] for _ in states]
    for layer in range(layout.layers):
        if layer and layout.dropout:
            x = keep_some(b, x, layout.dropout, layout.generator, layer * prod(static(extents_of(x.type))))
        outputs = list[SSAValue]()
        for direction in range(layout.directions):
            number = layer * layout.directions + direction
            weights = _weights(params[number * each : (number + 1) * each], biases)
            own = [reshape_to(b, sliced(b, s, 0, number, 1), extents_of(s.type)[1:]) for s in states]
            given = _reversed(b, x) if direction else x
            steps, *finals = cell(b, given, own, weights)
            end = sliced(b, steps, 0, fixed(extents_of(steps.type)[0]) - 1, 1)
            for i, final in enumerate([end, *finals]):
                last[i].append(reshape_to(b, final, [1, *extents_of(final.type)[-2:]]))
            outputs.append(_reversed(b, steps) if direction else steps)
        x = outputs[0] if len(outputs) == 1 else cat(b, outputs, 2)
    ends = [cat(b, parts, 0) if len(parts) > 1 else parts[0] for parts in last]
    if not batched:
        return [reshape_to(b, v, [extents_of(v.type)[0], *extents_of(v.type)[2:]]) for v in (x, *ends)]
    return [permuted(b, x, [1, 0, 2]) if layout.batch_first else x, *ends]


def _weights(params: Sequence[SSAValue], biases: bool) -> Weights:
    pair = (params[2], params[3]) if biases else (None, None)
    plain = 4 if biases else 2
    return Weights(params[0], params[1], *pair, params[plain] if len(params) > plain else None)


def _reversed(b: Builder, x: SSAValue) -> SSAValue:
    steps = fixed(extents_of(x.type)[0])
    return sliced(b, x, 0, steps - 1, steps, -1) if steps > 1 else x


def _layers(cell: Cell) -> Callable[..., list[SSAValue]]:
    def decomposition(
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
    ) -> list[SSAValue]:
        layout = Layout(num_layers, 2 if bidirectional else 1, batch_first, dropout if train else 0, generator)
        states = [hx] if isinstance(hx, SSAValue) else hx
        return _run(b, input, states, params, has_biases, layout, cell)

    return decomposition


decomposes("lstm.input")(_layers(lstm_cell))
decomposes("gru.input")(_layers(gru_cell))
decomposes("rnn_tanh.input")(_layers(_plain_cell(lambda b, x: b.math(math.TanhOp, x))))
decomposes("rnn_relu.input")(_layers(_plain_cell(lambda b, x: b.maximum(x, b.like(x, 0)))))
