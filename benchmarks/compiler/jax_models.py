"""Gradients and models of `jax_conformance`, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .jax_programs import Program, floats, integers, layer_norm, truths


def _mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((q.shape[-2], k.shape[-2]), bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(mask, scores, -1e9), -1), v)


def _conv(x: Any, w: Any, strides: Any = (1, 1), padding: str = "SAME", **more: Any) -> Any:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **more)


def _max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _average_pool(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 1, 2, 1), "VALID") / 6


def _recurrent(w: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        state = jnp.tanh(state @ w + x)
        return state, state.sum(-1)

    last, sums = lax.scan(step, jnp.zeros(xs.shape[1:]), xs)
    return last.sum() + (sums**2).sum()


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return x


_clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def _gradient(f: Callable[..., Any], *args: Any, over: int | tuple[int, ...] = 0) -> Program:
    """Returns the gradient of the weighted sum of `f` as a program.

    Args:
        f: differentiable function of arrays.
        args: arguments.
        over: positions of the arguments to differentiate by.
    """

    def total(*values: Any) -> Any:
        y = f(*values)
        return (y * (1 + jnp.arange(y.size).reshape(y.shape) % 3)).sum()

    return jax.value_and_grad(total, argnums=over), args


_ROWS = jnp.asarray([4, 0, 2, 4], np.int32)

GRADIENTS: Mapping[str, Program] = {
    "mlp": _gradient(_mlp, floats(8, 16), floats(16, 32), floats(32), floats(32, 4), floats(4), over=(0, 1, 2, 3, 4)),
    "cross entropy": _gradient(_cross_entropy, floats(6, 9), integers(6, low=0, high=9)),
    "layer norm": _gradient(layer_norm, floats(4, 16), floats(16), floats(16), over=(0, 1, 2)),
    "activations": _gradient(
        lambda x: jax.nn.gelu(x) + jax.nn.silu(x) * jax.nn.softplus(x) + jax.nn.elu(x), floats(4, 9)
    ),
    "attention": _gradient(_attention, floats(1, 2, 9, 8), floats(1, 2, 9, 8), floats(1, 2, 9, 8), over=(0, 1, 2)),
    "conv": _gradient(_conv, floats(2, 6, 5, 3), floats(3, 3, 3, 4), over=(0, 1)),
    "conv, strides and dilation": _gradient(
        lambda x, w: _conv(x, w, (2, 2), "VALID", rhs_dilation=(1, 2)),
        floats(2, 9, 8, 3),
        floats(3, 2, 3, 4),
        over=(0, 1),
    ),
    "conv, groups": _gradient(
        lambda x, w: _conv(x, w, (2, 1), feature_group_count=2), floats(2, 6, 5, 4), floats(3, 3, 2, 6), over=(0, 1)
    ),
    "conv transposed": _gradient(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), floats(1, 4, 5, 3), floats(3, 3, 3, 4), over=(0, 1)
    ),
    "max pool": _gradient(_max_pool, floats(2, 6, 7, 3)),
    "average pool": _gradient(_average_pool, floats(2, 6, 7, 3)),
    "recurrence by scan": _gradient(_recurrent, floats(4, 4) / 2, floats(5, 2, 4), over=(0, 1)),
    "embedding": _gradient(lambda table, i: table[i] ** 2, floats(7, 5), jnp.asarray([[0, 3], [3, 6]], np.int32)),
    "dynamic_slice, where": _gradient(
        lambda x, i: lax.dynamic_slice(jnp.where(x > 0, x, x**2), (i, 1), (2, 3)), floats(6, 5), jnp.int32(3)
    ),
    "x.at[].set, add": _gradient(
        lambda x, u: x.at[_ROWS].add(u).at[1:3].set(u[:2] * 2), floats(6, 5), floats(4, 5), over=(0, 1)
    ),
    "concatenate, pad, roll": _gradient(
        lambda x, y: jnp.roll(jnp.pad(jnp.concatenate([x, y * x[:2]]), 1), 2, 0)[::2, ::-1],
        floats(3, 4),
        floats(2, 4),
        over=(0, 1),
    ),
    "sort, top_k": _gradient(lambda x: jnp.sort(x, 1)[:, ::2].sum(1) + lax.top_k(x, 3)[0].prod(1), floats(4, 9)),
    "cumsum, cumprod": _gradient(lambda x: jnp.cumsum(x, 1) * jnp.cumprod(x, 0), floats(4, 6)),
    "cummax, max, min": _gradient(lambda x: lax.cummax(x, 1).sum(0) + x.max(0) * x.min(0), floats(4, 6)),
    "logsumexp, softmax": _gradient(lambda x: jax.nn.logsumexp(x, 1) + jax.nn.softmax(x, 1)[:, 0], floats(4, 6)),
    "powers, logarithms": _gradient(
        lambda x, y: x**y + jnp.log1p(x) * jnp.sqrt(x) + lax.rsqrt(x) * jnp.expm1(y),
        jnp.abs(floats(4, 6)) + 0.2,
        floats(4, 6),
        over=(0, 1),
    ),
    "trigonometry, erf": _gradient(
        lambda x: jnp.sin(x) * jnp.arctan(x) + lax.erf(x) / jnp.cosh(x) + jnp.arcsin(x / 9), floats(4, 6)
    ),
    "var, std, norm": _gradient(lambda x: x.var(0) + x.std(0) * jnp.linalg.norm(x, axis=0) + x.prod(0), floats(4, 6)),
    "einsum": _gradient(lambda x, y: jnp.einsum("abc,cbd->da", x, y), floats(3, 4, 5), floats(5, 4, 6), over=(0, 1)),
    "matmul bf16": _gradient(
        lambda x, y: (x @ y).astype(jnp.float32),
        floats(5, 16, dtype=jnp.bfloat16),
        floats(16, 4, dtype=jnp.bfloat16),
        over=(0, 1),
    ),
    "segment_sum": _gradient(lambda x, n: jax.ops.segment_sum(x**2, n, 5), floats(8, 3), integers(8, low=0, high=5)),
    "cond, custom_vjp": _gradient(
        lambda x, p: lax.cond(p > 0, lambda v: jnp.sin(v) * v, jnp.abs, _clipped(x)), floats(6), jnp.int32(1)
    ),
    "checkpoint": _gradient(
        jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w)), floats(3, 5), floats(5, 5), over=(0, 1)
    ),
    "per-example gradients": (
        jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (None, 0)),
        (floats(5, 4), floats(6, 5)),
    ),
    "hessian": (
        jax.hessian(lambda x: (jnp.sin(x) * x[::-1] ** 2).sum() + jnp.interp(x, jnp.arange(3.0), x[:3]).sum()),
        (floats(5),),
    ),
}


WIDTH, HEADS, TOKENS, STEPS, LAYERS = 32, 4, 50, 12, 2


def _transformer_parameters() -> Any:
    weights: dict[str, Any] = {
        name: floats(*shape) * 0.1
        for name, shape in {
            "embedding": (TOKENS, WIDTH),
            "positions": (STEPS, WIDTH),
            "output": (WIDTH, TOKENS),
        }.items()
    }
    shapes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "projection": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    norms = {"scale1": jnp.ones(WIDTH), "bias1": jnp.zeros(WIDTH), "scale2": jnp.ones(WIDTH), "bias2": jnp.zeros(WIDTH)}
    weights["layers"] = [{**norms, **{k: floats(*s) * 0.1 for k, s in shapes.items()}} for _ in range(LAYERS)]
    return weights


def transformer(weights: Any, tokens: Any) -> Any:
    """Returns the logits of a decoder with causal attention."""
    batch, steps = tokens.shape
    x = weights["embedding"][tokens] + weights["positions"][None]

    def heads(t: Any) -> Any:
        return t.reshape(batch, steps, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    for layer in weights["layers"]:
        q, k, v = jnp.split(layer_norm(x, layer["scale1"], layer["bias1"]) @ layer["qkv"], 3, -1)
        mixed = _attention(heads(q), heads(k), heads(v)).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ layer["projection"]
        x = x + jax.nn.gelu(layer_norm(x, layer["scale2"], layer["bias2"]) @ layer["up"]) @ layer["down"]
    return x @ weights["output"]


def _lstm(weights: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ weights["input"] + h @ weights["state"] + weights["bias"], 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], weights["state"].shape[0]))
    (h, c), outputs = lax.scan(step, (zero, zero), xs)
    return outputs @ weights["output"], h, c


def cnn(weights: Any, images: Any) -> Any:
    """Returns the logits of a convolutional network with a residual block and a batch norm."""
    x = jax.nn.relu(_conv(images, weights["first"], (2, 2)) + weights["bias"])
    y = _conv(x, weights["depthwise"], feature_group_count=x.shape[-1])
    y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-3)
    x = _max_pool(jax.nn.relu(x + _conv(y, weights["pointwise"])))
    return x.mean((1, 2)) @ weights["dense"]


_CNN = {
    "first": floats(3, 3, 3, 8) * 0.2,
    "bias": floats(8),
    "depthwise": floats(3, 3, 1, 8) * 0.3,
    "pointwise": floats(1, 1, 8, 8) * 0.3,
    "dense": floats(8, 5),
}
_LSTM = {"input": floats(6, 32) / 3, "state": floats(8, 32) / 3, "bias": floats(32), "output": floats(8, 4)}


def _adam_step(weights: Any, moments: Any, count: Any, *batch: Any) -> Any:
    """Returns the weights, moments and count after one step of Adam, and the loss."""

    def loss(w: Any) -> Any:
        return _cross_entropy(cnn(w, batch[0]), batch[1])

    value, gradients = jax.value_and_grad(loss)(weights)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    rate = 1e-2 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-6), weights, first, second)
    return weights, (first, second), count, value


_ZEROS = jax.tree.map(jnp.zeros_like, _CNN)

MODELS: Mapping[str, Program] = {
    "transformer": (transformer, (_transformer_parameters(), integers(2, STEPS, low=0, high=TOKENS))),
    "LSTM by scan": (_lstm, (_LSTM, floats(7, 3, 6))),
    "CNN": (cnn, (_CNN, floats(2, 12, 12, 3))),
    "CNN, training step with Adam": (
        _adam_step,
        (_CNN, (_ZEROS, _ZEROS), jnp.float32(0), floats(2, 12, 12, 3), integers(2, low=0, high=5)),
    ),
    "MLP, dropout from a key": (
        lambda key, x, *w: _mlp(jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0), *w),
        (jnp.asarray([1, 2], np.uint32), floats(8, 16), floats(16, 32), floats(32), floats(32, 4), floats(4)),
    ),
    "masked pooling in bf16": (
        lambda x, m, w: jax.nn.softmax(jnp.where(m[:, :, None], x, 0).sum(1) / jnp.maximum(m.sum(1)[:, None], 1) @ w),
        (floats(3, 7, 8, dtype=jnp.bfloat16), truths(3, 7), floats(8, 4, dtype=jnp.bfloat16)),
    ),
}
