"""Folds, and the recurrent layers: one product for the inputs of all steps, then a fold over time.

What a gate gets from the input does not depend on the state, so it is computed for all steps at once; a step adds what
it gets from the state. States are kept in the tensors' own data type, everything else is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from xdsl.dialects import math
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from ....dialects import tensor
from ....dialects.kernel import padded_row
from ....dialects.payload import element_type
from ....dialects.shapes.extents import Extent, extents_of, fixed, static, tensor_of
from ....dialects.tensor.builder import Builder, dims
from .concat import cat
from .matmul import times_transposed
from .random import dropped
from .registry import decomposes
from .views import permuted, reshape_to, sliced

Step = Callable[[Builder, list[SSAValue], list[SSAValue], list[SSAValue]], Sequence[SSAValue]]
"""(builder, carries, slices, shared) -> the next carries, of the same types."""


def fold(
    b: Builder,
    step: Step,
    count: int,
    carries: Sequence[SSAValue],
    each: Sequence[SSAValue],
    shared: Sequence[SSAValue],
    history: Sequence[int],
) -> list[SSAValue]:
    """The last value of every carry after `count` steps, or all its values, stacked, for those in `history`.

    `step` must not use values of `b`: what it needs is handed to it. In memory a slice starts at a multiple of 16 bytes
    only if its size is one; tensors of other slices are kept as rows with a gap at their end.
    """
    inputs = [_packed(b, v) if i in history else v for i, v in enumerate(carries)]
    op = tensor.ScanOp("step", count, inputs, [_packed(b, v, 1) for v in each], shared, history)
    inner = Builder(b.result_types, b.location, b.algebra, b.asserts)
    block = Block(arg_types=op.step_types)
    first, last = len(carries), len(carries) + len(each)
    shapes = [*(extents_of(v.type) for v in carries), *(extents_of(v.type)[1:] for v in each)]
    args = [_unpacked(inner, a, shape) for a, shape in zip(block.args, shapes, strict=False)]
    results = list(step(inner, args[:first], args[first:], list(block.args[last:])))
    results = [_packed(inner, r) if i in history else r for i, r in enumerate(results)]
    block.add_ops([*inner.ops, ReturnOp(*results)])
    function = FuncOp("step", (op.step_types, [r.type for r in results]), Region(block), "private")
    b.functions += [(op, function), *inner.functions]
    b.insert(op)
    whole = [(count, *extents_of(carry.type)) for carry in carries]
    return [_unpacked(b, r, whole[i], 1) if i in history else r for i, r in enumerate(op.res)]


def _packed(b: Builder, x: SSAValue, outer: int = 0) -> SSAValue:
    """`x` itself if its size, without the first `outer` dimensions, is a multiple of 16 bytes, or if there is nothing
    behind it; else its elements in a row with a gap."""
    shape = extents_of(x.type)
    row = padded_row(tensor_of(element_type(x.type), shape[outer:]))
    if shape[outer:] == tuple(row) or outer and shape[0] == 1:
        return x
    if len(row) == 1:
        x = reshape_to(b, x, [*shape[:outer], prod(static(shape[outer:]))])
    index = dims(outer + len(row))
    return b.map(x, index, [*shape[:outer], *row], [(index[-1], 0, extents_of(x.type)[-1])])


def _unpacked(b: Builder, x: SSAValue, shape: Sequence[Extent], outer: int = 0) -> SSAValue:
    """What was packed to `x`, which has the first `outer` dimensions of `shape` for itself."""
    own = extents_of(x.type)
    if own != tuple(shape) and len(own) == outer + 1:
        exact = b.map(x, dims(len(own)), [*own[:outer], prod(static(shape[outer:]))])
        return reshape_to(b, exact, shape)
    return b.map(x, dims(len(own)), shape)


Rule = Callable[..., Sequence[SSAValue]]
"""(builder, what all gates get from the input, and from the state, states...) -> the next states."""


def _lstm(b: Builder, given: SSAValue, from_state: SSAValue, h: SSAValue, c: SSAValue) -> Sequence[SSAValue]:
    """c' = f * c + i * g, h' = o * tanh(c'), projected if there is a projection."""
    i, f, g, o = _gates(b, b.add(given, from_state), 4)
    c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.math(math.TanhOp, g)))
    return b.mul(b.sigmoid(o), b.math(math.TanhOp, c)), c


def _gru(b: Builder, given: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    """h' = (1 - z) * n + z * h with n = tanh(x_n + r * h_n): the reset gate r scales what n gets from the state."""
    (xr, xz, xn), (hr, hz, hn) = _gates(b, given, 3), _gates(b, from_state, 3)
    r, z = b.sigmoid(b.add(xr, hr)), b.sigmoid(b.add(xz, hz))
    n = b.math(math.TanhOp, b.add(xn, b.mul(r, hn)))
    return (b.add(n, b.mul(z, b.sub(h, n))),)


def _tanh(b: Builder, given: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    return (b.math(math.TanhOp, b.add(given, from_state)),)


def _relu(b: Builder, given: SSAValue, from_state: SSAValue, h: SSAValue) -> Sequence[SSAValue]:
    x = b.add(given, from_state)
    return (b.maximum(x, b.like(x, 0)),)


def _gates(b: Builder, x: SSAValue, count: int) -> list[SSAValue]:
    """The `count` equal parts of the last dimension."""
    rank, size = len(extents_of(x.type)), fixed(extents_of(x.type)[-1]) // count
    return [sliced(b, x, rank - 1, i * size, size) for i in range(count)]


def _biased(b: Builder, x: SSAValue, *biases: SSAValue) -> SSAValue:
    for bias in biases:
        x = b.add(x, b.broadcast(b.working(bias), extents_of(x.type)))
    return x


def _run(
    b: Builder, x: SSAValue, states: list[SSAValue], params: Sequence[SSAValue], has_biases: bool, rule: Rule
) -> list[SSAValue]:
    """One direction of one layer: `x` [T, B, inputs], `states` [B, ...] each. Gives the first state of all steps
    [T, B, ...], and the last values of the other states.

    `params` are [gates * hidden, inputs], [gates * hidden, state], two biases [gates * hidden] if it has them, and
    [state, hidden] of an LSTM with a projection.
    """
    storage, weight, projection = element_type(states[0].type), params[1], params[4 if has_biases else 2 :]
    biases = params[2:4] if has_biases else ()
    own = biases[1:] if rule is _gru else ()  # what is scaled with what comes from the state
    given = _biased(b, times_transposed(b, x, params[0]), *biases[: len(biases) - len(own)])

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        from_state = _biased(b, times_transposed(b, carries[0], shared[0]), *shared[1 : 1 + len(own)])
        h, *rest = rule(b, slices[0], from_state, *map(b.working, carries))
        h = times_transposed(b, h, shared[-1]) if projection else h
        return [b.cast(v, storage) for v in (h, *rest)]

    return fold(b, step, fixed(extents_of(x.type)[0]), states, [given], [weight, *own, *projection], [0])


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
    rule: Rule = _lstm,
) -> list[SSAValue]:
    """The output and the last states of all layers; states are [layers * directions, B, ...] each."""
    x, states = input, [hx] if isinstance(hx, SSAValue) else hx
    batched = len(extents_of(x.type)) == 3
    if not batched:
        x, *states = (reshape_to(b, v, [extents_of(v.type)[0], 1, *extents_of(v.type)[1:]]) for v in (x, *states))
    elif batch_first:
        x = permuted(b, x, [1, 0, 2])
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    last: list[list[SSAValue]] = [[] for _ in states]
    for layer in range(num_layers):
        if layer and train and dropout:
            x, _ = dropped(b, x, dropout, generator, layer * prod(static(extents_of(x.type))))
        outputs = list[SSAValue]()
        for direction in range(directions):
            number = layer * directions + direction
            own = [reshape_to(b, sliced(b, s, 0, number, 1), extents_of(s.type)[1:]) for s in states]
            given = _reversed(b, x) if direction else x
            steps, *finals = _run(b, given, own, params[number * each : (number + 1) * each], has_biases, rule)
            end = sliced(b, steps, 0, fixed(extents_of(steps.type)[0]) - 1, 1)
            for ends, final in zip(last, (end, *finals), strict=True):
                ends.append(reshape_to(b, final, [1, *extents_of(final.type)[-2:]]))
            outputs.append(_reversed(b, steps) if direction else steps)
        x = outputs[0] if len(outputs) == 1 else cat(b, outputs, 2)
    ends = [cat(b, parts, 0) if len(parts) > 1 else parts[0] for parts in last]
    if not batched:
        return [reshape_to(b, v, [extents_of(v.type)[0], *extents_of(v.type)[2:]]) for v in (x, *ends)]
    return [permuted(b, x, [1, 0, 2]) if batch_first else x, *ends]


for _name, _rule in (("lstm", _lstm), ("gru", _gru), ("rnn_tanh", _tanh), ("rnn_relu", _relu)):
    decomposes(f"{_name}.input")(partial(_layers, rule=_rule))
