"""Programs of `jax_conformance`: functions of `jax.numpy`, `jax.lax` and `jax.nn`, gradients, and models, as data.

`FUNCTIONS`, `GRADIENTS` and `MODELS` map a name to a function and its arguments. Most functions return several results,
so that one program shows all variants of an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

Program = tuple[Callable[..., Any], tuple[Any, ...]]

_RANDOM = np.random.default_rng(7)
_INF, _NAN = np.inf, np.nan


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    """Returns normally distributed numbers."""
    return jnp.asarray(_RANDOM.standard_normal(shape), dtype)


def integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = np.int32) -> Any:
    """Returns integers from `low` to `high - 1`.

    Args:
        shape: shape of the array.
        low: least number.
        high: exclusive upper bound.
        dtype: element type.
    """
    return jnp.asarray(_RANDOM.integers(low, high, shape), dtype)


def truths(*shape: int) -> Any:
    """Returns random booleans."""
    return jnp.asarray(_RANDOM.integers(0, 2, shape), bool)


SPECIAL = jnp.asarray([0.0, -0.0, 1.5, -2.5, 0.5, 2.5, _INF, -_INF, _NAN, 3e9, -3e9, 1e-30, 300.0, -1.0], np.float32)
EXTREMES = jnp.asarray([-(2**31), -(2**31) + 1, -7, -1, 0, 1, 6, 2**31 - 1], np.int32)
UNSIGNED = jnp.asarray([0, 1, 7, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 2, 2**32 - 1], np.uint32)
KEY = jnp.asarray([3, 2**31 + 5], np.uint32)


def _arithmetic(x: Any, y: Any) -> Any:
    return x + y, x - y, x * y, x / y, x % y, x // y, -x, abs(x), jnp.sign(x), jnp.maximum(x, y), jnp.minimum(x, y)


def _whole(x: Any, y: Any) -> Any:
    return (
        x + y,
        x - y,
        x * y,
        x // y,
        x % y,
        jnp.maximum(x, y),
        jnp.minimum(x, y),
        x < y,
        x >= y,
        x.astype(jnp.float32),
    )


def _logical(x: Any, y: Any) -> Any:
    counts = x.sum(), jnp.cumsum(x, 1), x.astype(jnp.int32) + y, jnp.mean(x)
    return x & y, x | y, x ^ y, ~x, x == y, x < y, x + y, x * y, jnp.where(x, 1.0, y), counts, x.any(0), x.all(1)


def _shifts(x: Any, u: Any) -> Any:
    n = jnp.asarray([0, 1, 5, 31, 32, 40, -1, 3], np.int32)
    m = n.astype(jnp.uint32)
    signed = lax.shift_left(x, n), lax.shift_right_arithmetic(x, n), lax.shift_right_logical(x, n), x >> 3, x << 2
    return (
        signed,
        lax.shift_left(u, m),
        lax.shift_right_arithmetic(u, m),
        lax.shift_right_logical(u, m),
        u >> 4,
        u << 30,
    )


def _bits(x: Any, u: Any, small: Any) -> Any:
    counts = lax.population_count(x), lax.population_count(u), lax.clz(x), lax.clz(u), lax.clz(small)
    return counts, ~x, ~u, x & 12, u | 9, u ^ (u >> 3), jnp.bitwise_count(x), jnp.bitwise_invert(small)


def _rounding(x: Any) -> Any:
    modes = lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN
    named = jnp.round(x), jnp.floor(x), jnp.ceil(x), jnp.trunc(x), jnp.rint(x), jnp.round(x, 1)
    return named, [lax.round(x, mode) for mode in modes], jnp.modf(x)


def _conversions(x: Any, n: Any, u: Any) -> Any:
    types = (jnp.int32, jnp.int8, jnp.uint8, jnp.uint32, jnp.bool_, jnp.bfloat16, jnp.float16, jnp.int16, jnp.uint16)
    return [v.astype(t) for v in (x, n, u) for t in types], n.astype(jnp.float32), u.astype(jnp.float32)


def _bit_views(x: Any, n: Any) -> Any:
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return bits, lax.bitcast_convert_type(n, jnp.float32), lax.bitcast_convert_type(x, jnp.uint32), bits ^ n[:1]


def _pads(x: Any) -> Any:
    modes = ("edge", "reflect", "symmetric", "wrap", "mean", "maximum")
    return jnp.pad(x, ((1, 2), (0, 3)), constant_values=2.5), [jnp.pad(x, ((2, 1), (1, 2)), mode) for mode in modes]


def _indices(x: Any, i: Any, j: Any) -> Any:
    return x[i], x[-1], x[i, j], x[:, i], x[i[:, None], j], x[i, 1:3], x[..., None, ::-1], x[1:5:2, ::-2]


def _takes(x: Any, i: Any) -> Any:
    return [jnp.take(x, i, axis, mode=mode) for axis in (None, 0, 1) for mode in ("clip", "wrap", "fill")]


def _sets(x: Any, i: Any, u: Any) -> Any:
    rows = x.at[i].set(u, unique_indices=True), x.at[1:3].set(7.0), x.at[::2, 1].set(u[:3, 0]), x.at[2, 3].set(9.0)
    return rows, x.at[i, 2].set(0.5), x.at[jnp.asarray([9, -3, 1])].set(u[:3]), x.at[-1].set(u[0])


def _updates(x: Any, i: Any, u: Any) -> Any:
    repeated = jnp.asarray([0, 2, 0, 0], np.int32)
    ways = x.at[i].add(u), x.at[repeated].add(u), x.at[repeated].max(u), x.at[repeated].min(u), x.at[repeated].mul(u)
    return ways, x.at[:, i].add(1.0), x.at[repeated, 1].add(u[:, 0]), x.at[repeated].set(u), x.at[1].divide(2.0)


def _dynamic(x: Any, i: Any, u: Any) -> Any:
    read = lax.dynamic_slice(x, (i, 1), (2, 3)), lax.dynamic_index_in_dim(x, i, 1), lax.dynamic_slice_in_dim(x, i, 4)
    return read, lax.dynamic_update_slice(x, u, (i, i)), lax.dynamic_update_index_in_dim(x, x[0], i, 0), x[i]


def _sorts(x: Any, n: Any, special: Any) -> Any:
    several = lax.sort((n % 3, x, n), dimension=1, num_keys=2)
    return jnp.sort(x), jnp.sort(x, 0, descending=True), jnp.sort(n, None), jnp.sort(special), several


def _argsorts(x: Any, n: Any, special: Any) -> Any:
    orders = jnp.argsort(x, 0), jnp.argsort(n, 1), jnp.argsort(n, 1, descending=True), jnp.argsort(special)
    return orders, jnp.lexsort((x[0], n[0] % 3)), jnp.argsort(n.astype(jnp.uint32))


def _extremes(x: Any, n: Any, special: Any) -> Any:
    return [f(v, axis) for f in (jnp.argmax, jnp.argmin) for v in (x, n) for axis in (0, 1, None)], jnp.argmax(special)


def _cumulative(x: Any, n: Any) -> Any:
    ways = lax.cumsum(x, 1, reverse=True), lax.cummax(x, 0), lax.cummin(x, 1, reverse=True), lax.cumlogsumexp(x, 1)
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), jnp.cumsum(n), ways, jnp.diff(x, axis=1), jnp.ediff1d(x)


def _reductions(x: Any, n: Any, m: Any) -> Any:
    sums = x.sum(), x.sum(1, keepdims=True), x.mean((0, 2)), jnp.sum(x, where=m, axis=0), n.sum(-1), jnp.prod(n % 3, 1)
    return sums, x.max(2), x.min((0, 1)), jnp.max(x, initial=0.5, axis=0), m.any(0), m.all(), jnp.ptp(x, 1), x.prod(0)


def _moments(x: Any) -> Any:
    return x.var(0), x.std(1, ddof=1), jnp.cov(x), jnp.corrcoef(x), jnp.nanmean(x, 1), jnp.average(x, 0, x[:, 0] ** 2)


def _products(x: Any, y: Any, v: Any) -> Any:
    return x @ y, x[0] @ v, v @ y[0], jnp.tensordot(x, y, ((2,), (1,))), jnp.vdot(v, v), jnp.dot(x, v), x @ y[0]


def _typed_products(x: Any, n: Any) -> Any:
    low, bytes_ = x.astype(jnp.bfloat16), n.astype(jnp.int8)
    wide = (
        jnp.matmul(low, low.T, preferred_element_type=jnp.float32),
        lax.dot(bytes_, bytes_.T, preferred_element_type=jnp.int32),
    )
    return (
        wide,
        low @ low.T,
        n @ n.T,
        n.astype(jnp.uint32) @ n.T.astype(jnp.uint32),
        x.astype(jnp.float16) @ x.T.astype(jnp.float16),
    )


def _einsums(x: Any, y: Any) -> Any:
    texts = ("abc,cbd->dab", "abc,cbd->", "abc,dcb->abd")
    return [jnp.einsum(t, x, y if "cb" in t[4:6] else y.T.transpose(0, 2, 1)) for t in texts], jnp.einsum(
        "aab->b", x[:, :3]
    )


def _nn(x: Any) -> Any:
    names = "relu relu6 gelu silu elu selu celu softplus leaky_relu hard_tanh hard_sigmoid hard_swish log_sigmoid"
    return [getattr(jax.nn, name)(x) for name in (*names.split(), "squareplus", "mish", "sigmoid", "soft_sign", "glu")]


def _softmaxes(x: Any, n: Any, m: Any) -> Any:
    masked = jax.nn.softmax(x, 0, where=m), jax.nn.logsumexp(x, 1, keepdims=True), special.logsumexp(x, 0, b=x**2)
    return jax.nn.softmax(x), jax.nn.log_softmax(x, 0), masked, jax.nn.one_hot(n, 5), jax.nn.standardize(x)


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _batch_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-3) * scale + bias, 0.9 * mean, 0.9 * variance


def _group_norms(x: Any, scale: Any) -> Any:
    groups = x.reshape(2, 36, 2, 2)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    rms = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale
    return ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * scale, rms


def _attention(q: Any, k: Any, v: Any) -> Any:
    causal = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return causal, jax.nn.dot_product_attention(q.astype(jnp.bfloat16), *(t.astype(jnp.bfloat16) for t in (k, v)))


def _conv(
    x: Any, w: Any, strides: Any = (1, 1), padding: Any = "SAME", layout: Any = ("NHWC", "HWIO", "NHWC"), **more: Any
) -> Any:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=layout, **more)


def _convs(x: Any, w: Any) -> Any:
    return _conv(x, w), _conv(x, w, (2, 2)), _conv(x, w, padding="VALID"), _conv(x, w, (2, 1), ((2, 0), (1, 3)))


def _more_convs(x: Any, w: Any) -> Any:
    nchw = ("NCHW", "OIHW", "NCHW")
    grouped = (
        _conv(x, w, layout=nchw, feature_group_count=2),
        _conv(x, w, layout=nchw, feature_group_count=2, rhs_dilation=(2, 1)),
    )
    return grouped, _conv(x[:, :2], w, layout=nchw, padding=((1, 1), (0, 2)), batch_group_count=2)


def _other_convs(x: Any, w: Any, y: Any, v: Any) -> Any:
    spatial3 = lax.conv_general_dilated(y, v, (1, 2, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
    return jnp.convolve(x[0, :, 0], w[:, 0, 0], "same"), _conv(x, w, (1,), layout=("NWC", "WIO", "NWC")), spatial3


def _transposed(x: Any, w: Any) -> Any:
    flipped = lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True)
    return (
        lax.conv_transpose(x, w, (2, 2), "VALID"),
        flipped,
        _conv(x, w, padding=((2, 2), (1, 0)), lhs_dilation=(2, 3)),
    )


def _depthwise(x: Any, w: Any) -> Any:
    return (
        _conv(x, w, feature_group_count=4),
        jax.image.resize(x, (1, 5, 9, 4), "linear"),
        jax.image.resize(x, (1, 12, 3, 4), "nearest"),
    )


def _pools(x: Any) -> Any:
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    largest = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
    return largest, lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 2, 1), "SAME") / 9.0


def _windows(x: Any, n: Any) -> Any:
    least = lax.reduce_window(x, jnp.inf, lax.min, (3, 2), (2, 1), ((1, 1), (0, 1)), (1, 2), (2, 1))
    return (
        least,
        lax.reduce_window(n, 1, lax.mul, (2, 2), (1, 1), "SAME"),
        lax.reduce_window(n, 5, lax.add, (4, 1), (1, 1), "VALID"),
    )


def _uniform(key: Any) -> Any:
    first, second = jax.random.split(key)
    return (
        jax.random.uniform(first, (3, 5)),
        jax.random.normal(second, (7,)),
        jax.random.uniform(key, (4,), jnp.bfloat16, -2, 3),
    )


def _draws(key: Any, x: Any) -> Any:
    keys = jax.random.split(jax.random.fold_in(key, 3), 4)
    dropped = jnp.where(jax.random.bernoulli(keys[0], 0.7, x.shape), x / 0.7, 0.0)
    more = (
        jax.random.categorical(keys[2], x, axis=1),
        jax.random.choice(keys[3], x[0], (3,)),
        jax.random.randint(keys[1], (6,), -3, 11),
    )
    return dropped, jax.random.permutation(keys[1], 11), jax.random.permutation(keys[2], x), more


def _distributions(key: Any) -> Any:
    names = ("exponential", "gumbel", "laplace", "cauchy", "logistic", "rademacher")
    return (
        jax.random.bits(key, (5,)),
        jax.random.truncated_normal(key, -1.0, 2.0, (4,)),
        [getattr(jax.random, n)(key, (6,)) for n in names],
    )


def _scans(w: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        state, total = carry
        state = jnp.tanh(state @ w + x)
        return (state, total + state.sum()), state * 2

    start = jnp.zeros(xs.shape[1:]), jnp.float32(0)
    return lax.scan(step, start, xs), lax.scan(step, start, xs, reverse=True), lax.map(lambda x: jnp.sin(x) @ w, xs)


def _loops(w: Any, x: Any) -> Any:
    grown = lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h @ w) + i, x)
    counted = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2 + w), (jnp.int32(0), w))
    return grown, counted, lax.fori_loop(2, 5, lambda i, h: h.at[i].add(h[i - 1]), x[0])


def _branches(x: Any, p: Any) -> Any:
    chosen = lax.cond(p > 0, lambda v: (jnp.sin(v), v), lambda v: (v * 2, -v), x)
    return chosen, lax.switch(p, [jnp.cos, jnp.exp, lambda v: v - 1], x), lax.select_n(x > 0, x, x * 3)


def _vmaps(x: Any, i: Any, w: Any) -> Any:
    rows = jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (2,)))(x, i), jax.vmap(jnp.dot, (0, None))(x, w)
    return (
        rows,
        jax.vmap(lambda r, j: lax.cond(j > 1, jnp.sin, jnp.cos, r))(x, i),
        jax.vmap(lambda r, j: r.at[j].set(0))(x, i),
    )


def _nested(x: Any) -> Any:
    inner = jax.jit(lambda v: jnp.where(v > 0, v, jnp.expm1(v)))
    return inner(x) + inner(x * 2), jax.checkpoint(lambda v: jnp.sin(inner(v)))(x), jax.jvp(inner, (x,), (x * 3,))


def _histograms(x: Any, n: Any) -> Any:
    edges = jnp.asarray([-2.0, -0.5, 0.0, 1.0, 2.5])
    counts, _ = jnp.histogram(x, 7)
    return (
        counts,
        jnp.histogram(x, edges)[0],
        jnp.bincount(n, length=10),
        jnp.digitize(x, edges),
        jnp.bincount(n, x, length=10),
    )


def _segments(x: Any, n: Any) -> Any:
    ways = jax.ops.segment_sum(x, n, 5), jax.ops.segment_max(x, n, 5), jax.ops.segment_prod(x, n, 6)
    return ways, jax.ops.segment_sum(x, jnp.sort(n), 5, indices_are_sorted=True)


def _sets_of_values(n: Any) -> Any:
    return (
        jnp.unique(n, size=6, fill_value=99),
        jnp.nonzero(n > 0, size=8),
        jnp.isin(n, jnp.asarray([1, 4])),
        jnp.union1d(n[:3], n[3:6], size=6),
    )


def _series(x: Any) -> Any:
    spaces = (
        jnp.linspace(x[0], x[1], 7),
        jnp.arange(2, 11, 3) * x[0],
        jnp.logspace(0, 2, 5),
        jnp.geomspace(1.0, 16.0, 5),
    )
    return spaces, jnp.meshgrid(x, x[:3]), jnp.linspace(0, 1, 5, endpoint=False) + x[0], jnp.indices((2, 3)) + x[1]


def _matrices(x: Any, v: Any) -> Any:
    triangles = (
        jnp.tril(x),
        jnp.triu(x, 1),
        jnp.eye(4, 5, 1) + x[0, 0],
        jnp.diag(v),
        jnp.diag(x),
        jnp.trace(x),
        jnp.tri(3) * x[0, 0],
    )
    return triangles, jnp.outer(v, v), jnp.kron(x[:2, :2], x), jnp.cross(x[:, :3], x[:, 1:4]), jnp.vander(v, 3)


def _interpolations(x: Any, p: Any) -> Any:
    grid = jnp.asarray([-2.0, -1.0, 0.5, 2.0])
    return (
        jnp.polyval(p, x),
        jnp.interp(x, grid, p),
        jnp.trapezoid(p, grid),
        jnp.heaviside(x, 0.5),
        jnp.clip(x, -0.5, None),
    )


def _associative(x: Any) -> Any:
    sums = lax.associative_scan(jnp.add, x, axis=1)
    return sums, lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (x, x * 2), axis=1)


def _quantiles(x: Any) -> Any:
    return jnp.quantile(x, 0.3, 0), jnp.percentile(x, jnp.asarray([10.0, 75.0]), 1), jnp.median(x, 1), jnp.median(x)


def _norms(x: Any) -> Any:
    lengths = jnp.linalg.norm(x, axis=1), jnp.linalg.norm(x, 1, 0), jnp.linalg.norm(x), jnp.linalg.norm(x, jnp.inf, 1)
    return lengths, x / jnp.linalg.norm(x, axis=-1, keepdims=True), jnp.linalg.norm(x, "fro")


def _shapes(x: Any) -> Any:
    swapped = x.swapaxes(0, 2), jnp.moveaxis(x, 0, -1), x.T, x.transpose(1, 0, 2), jnp.expand_dims(x, (0, 2))
    return x.reshape(4, -1), x.ravel(), swapped, jnp.squeeze(x[:1], 0), jnp.atleast_3d(x[0]), jnp.rollaxis(x, 2)


def _copies(x: Any) -> Any:
    return (
        jnp.broadcast_to(x, (2, *x.shape)),
        jnp.tile(x, (2, 3)),
        jnp.repeat(x, 3, 1),
        jnp.repeat(x, jnp.asarray([1, 0, 2]), 0, total_repeat_length=3),
    )


def _joins(x: Any, y: Any) -> Any:
    stacked = jnp.stack([x, x * 2], 1), jnp.hstack([x, x]), jnp.vstack([x, y]), jnp.column_stack([x[0], x[1]])
    return (
        jnp.concatenate([x, y, x[:1]]),
        stacked,
        jnp.split(x, 2, 1),
        jnp.array_split(y, 3),
        jnp.append(x, y),
        jnp.block([[x], [y]]),
    )


def _turns(x: Any) -> Any:
    rolled = jnp.roll(x, 2, 1), jnp.roll(x, -1), jnp.roll(x, (1, -2), (0, 1)), jnp.roll(x, x.shape[0] + 1, 0)
    return jnp.flip(x), jnp.flip(x, 1), jnp.rot90(x), rolled, lax.rev(x, (0,))


def _nans(x: Any) -> Any:
    tests = jnp.isnan(x), jnp.isinf(x), jnp.isfinite(x), jnp.isneginf(x), jnp.signbit(x), jnp.isclose(x, x[::-1])
    return (
        tests,
        jnp.nan_to_num(x),
        jnp.nanmax(x),
        jnp.nansum(jnp.clip(x, -9, 9)),
        jnp.nanargmin(x),
        jnp.nan_to_num(x, nan=1, posinf=2),
    )


def _choices(x: Any, y: Any, c: Any) -> Any:
    return (
        jnp.where(c, x, y),
        jnp.where(c, x, 0),
        jnp.select([x > 1, y > 0], [x, y], -1.0),
        jnp.choose(c.astype(int), [x, y], mode="clip"),
        lax.clamp(-1.0, x, 0.5),
    )


def _comparisons(x: Any, y: Any) -> Any:
    return (
        x == y,
        x != y,
        x < y,
        x <= y,
        x > y,
        x >= y,
        jnp.array_equal(x, x),
        jnp.allclose(x[:3], x[:3]),
        x < 1,
        jnp.sign(x),
    )


def _powers(x: Any, n: Any) -> Any:
    roots = jnp.sqrt(x), jnp.cbrt(x), lax.rsqrt(x), jnp.square(x), jnp.reciprocal(x), x**x, x**0.3, x**-1.5
    return roots, x**2, x**3, x**-2, n**2, n**3, n ** (abs(n) % 4), jnp.float_power(x, 2.5), lax.integer_pow(x, 5)


def _exponentials(x: Any) -> Any:
    logs = jnp.log(x), jnp.log2(x), jnp.log10(x), jnp.log1p(x), jnp.logaddexp(x, x * 2), jnp.logaddexp2(x, 1.0)
    return jnp.exp(x), jnp.exp2(x), jnp.expm1(x), logs


def _trigonometry(x: Any, y: Any) -> Any:
    names = "sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arctanh sinc deg2rad".split()
    return (
        [getattr(jnp, name)(x) for name in names],
        jnp.arccosh(1 + y**2),
        jnp.arctan2(x, y),
        jnp.hypot(x, y),
        jnp.unwrap(y * 4),
    )


def _specials(x: Any, p: Any) -> Any:
    shaped = (
        special.erf(x),
        special.erfc(x),
        special.erfinv(p - 0.5),
        special.ndtr(x),
        special.ndtri(p),
        special.i0e(x),
        special.i1e(x),
    )
    return (
        shaped,
        special.expit(x),
        special.logit(p),
        special.entr(p),
        special.xlogy(p, p),
        special.xlog1py(x, p),
        special.log_ndtr(x),
    )


def _gammas(p: Any) -> Any:
    return (
        special.gammaln(p),
        special.digamma(p),
        special.gamma(p),
        special.betaln(p, p),
        jax.scipy.stats.norm.logpdf(p),
    )


def _divisions(x: Any, y: Any) -> Any:
    pairs = lax.div(x, y), lax.rem(x, y), jnp.fmod(x, y), jnp.mod(x, y), jnp.remainder(x, y), jnp.floor_divide(x, y)
    return pairs, jnp.divmod(x, y), jnp.true_divide(x, y), lax.div(x.astype(jnp.uint32), y.astype(jnp.uint32))


def _searches(x: Any, y: Any) -> Any:
    return jnp.searchsorted(x, y), jnp.searchsorted(x, y, "right"), jnp.searchsorted(x, y, method="compare_all")


FUNCTIONS: Mapping[str, Program] = {
    "arithmetic f32": (_arithmetic, (floats(3, 5), floats(3, 5))),
    "arithmetic bf16": (_arithmetic, (floats(3, 5, dtype=jnp.bfloat16), floats(3, 5, dtype=jnp.bfloat16))),
    "arithmetic f16": (_arithmetic, (floats(3, 5, dtype=np.float16), floats(1, 5, dtype=np.float16))),
    "arithmetic i32": (_whole, (integers(4, 6), integers(4, 6, low=1))),
    "arithmetic i8": (
        _whole,
        (integers(4, 6, low=-128, high=128, dtype=np.int8), integers(4, 6, low=1, dtype=np.int8)),
    ),
    "arithmetic u32": (_whole, (UNSIGNED, UNSIGNED[::-1] | jnp.uint32(1))),
    "arithmetic u8": (
        _whole,
        (integers(9, low=0, high=256, dtype=np.uint8), integers(9, low=1, high=256, dtype=np.uint8)),
    ),
    "integer division": (_divisions, (jnp.tile(EXTREMES, 3), jnp.asarray([3, -4, -1, 0, 7, -1, 2, 1] * 3, np.int32))),
    "booleans": (_logical, (truths(3, 4), truths(3, 4))),
    "shifts": (_shifts, (EXTREMES, UNSIGNED)),
    "bits": (_bits, (EXTREMES, UNSIGNED, integers(9, low=0, high=256, dtype=np.uint8))),
    "comparisons": (_comparisons, (SPECIAL, SPECIAL[::-1])),
    "where, select, clamp": (_choices, (floats(4, 5), floats(4, 5), truths(4, 5))),
    "rounding": (_rounding, (jnp.concatenate([SPECIAL, floats(6) * 4, jnp.arange(-4, 5) / 2]),)),
    "powers": (_powers, (jnp.abs(floats(3, 4)) + 0.1, integers(5))),
    "exp, log": (_exponentials, (jnp.abs(floats(3, 4)) + 0.1,)),
    "trigonometry": (_trigonometry, (floats(9) / 4, floats(9))),
    "special functions": (_specials, (floats(9), jnp.abs(floats(9)) % 0.9 + 0.05)),
    "gamma functions": (_gammas, (jnp.abs(floats(9)) * 3 + 0.2,)),
    "nan, inf": (_nans, (SPECIAL,)),
    "conversions": (_conversions, (SPECIAL, EXTREMES, UNSIGNED)),
    "bitcast": (_bit_views, (SPECIAL, EXTREMES[:1] + jnp.arange(14))),
    "reshape, transpose": (_shapes, (floats(2, 3, 4),)),
    "tile, repeat": (_copies, (floats(3, 2),)),
    "concatenate, split": (_joins, (floats(3, 4), floats(2, 4))),
    "flip, roll": (_turns, (floats(3, 5),)),
    "pad modes": (_pads, (floats(3, 4),)),
    "lax.pad": (
        lambda x: (lax.pad(x, 1.0, ((1, 2, 1), (-1, 0, 2))), lax.pad(x, 0.0, ((0, -1, 0), (2, 1, 0)))),
        (floats(3, 4),),
    ),
    "indexing": (_indices, (floats(6, 5), integers(3, low=-7, high=9), integers(3, low=-5, high=5))),
    "take": (_takes, (floats(4, 3), integers(2, 3, low=-6, high=7))),
    "take_along_axis": (
        lambda x, i: (jnp.take_along_axis(x, i, 1), jnp.put_along_axis(x, i, 2.0, 1, inplace=False)),
        (floats(4, 5), integers(4, 2, low=0, high=5)),
    ),
    "x.at[].set": (_sets, (floats(6, 5), jnp.asarray([4, 0, 2, 5], np.int32), floats(4, 5))),
    "x.at[].add, max, mul": (_updates, (floats(6, 5), jnp.asarray([4, 0, 9, -1], np.int32), floats(4, 5))),
    "dynamic_slice": (_dynamic, (floats(6, 5), jnp.int32(3), floats(2, 3))),
    "sort": (_sorts, (floats(3, 7), integers(3, 7), SPECIAL)),
    "argsort, lexsort": (_argsorts, (floats(3, 7), integers(3, 7), SPECIAL)),
    "top_k": (
        lambda x, n: (lax.top_k(x, 3), lax.top_k(n, 2), lax.top_k(SPECIAL[:8], 5)),
        (floats(3, 9), integers(2, 8)),
    ),
    "argmax, argmin": (_extremes, (floats(3, 7), integers(3, 7, low=0, high=4), SPECIAL)),
    "cumsum, cumprod, cummax": (_cumulative, (floats(3, 9), integers(7))),
    "sum, max, any": (_reductions, (floats(2, 3, 4), integers(3, 5), truths(2, 3, 4))),
    "var, std, cov": (_moments, (floats(4, 9),)),
    "quantile, median": (_quantiles, (floats(5, 6),)),
    "norms": (_norms, (floats(4, 5),)),
    "einsum": (_einsums, (floats(3, 4, 5), floats(5, 4, 6))),
    "matmul": (_products, (floats(2, 3, 4), floats(2, 4, 5), floats(4))),
    "matmul bf16, int8": (_typed_products, (floats(3, 16), integers(3, 16))),
    "tril, diag, kron, outer": (_matrices, (floats(4, 5), floats(4))),
    "linspace, meshgrid": (_series, (floats(5),)),
    "polyval, interp": (_interpolations, (floats(9), floats(4))),
    "histogram, bincount": (_histograms, (floats(20), integers(20, low=0, high=9))),
    "searchsorted": (_searches, (jnp.sort(floats(11)), floats(2, 4))),
    "segment_sum": (_segments, (floats(8, 3), integers(8, low=0, high=5))),
    "unique, nonzero of a size": (_sets_of_values, (integers(9, low=0, high=5),)),
    "softmax, logsumexp, one_hot": (
        _softmaxes,
        (floats(4, 6), integers(4, low=-1, high=7), truths(4, 6).at[0].set(True)),
    ),
    "activations": (_nn, (floats(4, 8) * 3,)),
    "layer norm": (layer_norm, (floats(4, 16), floats(16), floats(16))),
    "batch norm": (_batch_norm, (floats(2, 5, 5, 3), floats(3), floats(3))),
    "group norm, rms norm": (_group_norms, (floats(2, 6, 6, 4), floats(4))),
    "attention": (_attention, (floats(2, 9, 3, 8), floats(2, 9, 3, 8), floats(2, 9, 3, 8))),
    "conv NHWC": (_convs, (floats(2, 7, 6, 3), floats(3, 3, 3, 4))),
    "conv NCHW, groups, dilation": (_more_convs, (floats(2, 4, 7, 6), floats(6, 2, 3, 3))),
    "conv 1d, 3d": (_other_convs, (floats(2, 8, 3), floats(3, 3, 4), floats(1, 4, 5, 3, 2), floats(2, 3, 2, 2, 3))),
    "conv transposed": (_transposed, (floats(1, 4, 5, 3), floats(3, 3, 3, 3))),
    "conv depthwise, resize": (_depthwise, (floats(1, 6, 6, 4), floats(3, 3, 1, 8))),
    "max and average pool": (_pools, (floats(2, 6, 7, 3),)),
    "reduce_window": (_windows, (floats(6, 5), integers(5, 4))),
    "random uniform, normal": (_uniform, (KEY,)),
    "random permutation, dropout": (_draws, (KEY, floats(4, 6))),
    "random distributions": (_distributions, (KEY,)),
    "scan": (_scans, (floats(4, 4), floats(5, 2, 4))),
    "fori_loop": (_loops, (floats(4, 4), floats(6, 4)[:4])),
    "while_loop on data": (
        lambda x: lax.while_loop(lambda v: v.sum() < 100, lambda v: v * 2, x),
        (jnp.abs(floats(5)),),
    ),
    "cond, switch": (_branches, (floats(5), jnp.int32(1))),
    "vmap": (_vmaps, (floats(4, 6), integers(4, low=0, high=6), floats(6))),
    "nested jit, checkpoint, jvp": (_nested, (floats(5),)),
    "associative_scan": (_associative, (floats(2, 9),)),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(4)), (floats(4, 4),)),
    "solve": (lambda x, y: jnp.linalg.solve(x + 4 * jnp.eye(4), y), (floats(4, 4), floats(4, 2))),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft(x)), (floats(3, 8),)),
    "complex": (lambda x, y: jnp.abs(x + 1j * y), (floats(5), floats(5))),
}
