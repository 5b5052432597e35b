"""Compares convolutions, windows, scatters, sorts and bits of StableHLO with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deplodock
from deplodock.errors import CompileError

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

RANDOM = np.random.default_rng(0)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(RANDOM.standard_normal(shape), dtype)


def integers(*shape: int, low: int = -3, high: int = 9, dtype: Any = np.int32) -> Any:
    return jnp.asarray(RANDOM.integers(low, high, shape), dtype)


def agrees(function: Callable[..., Any], *args: Any) -> None:
    """Compares a program on the reference with JAX: integers exactly, floats by a tolerance."""
    expected = jax.jit(function)(*args)
    result = deplodock.from_jax(function, *args, target="cpu", executor="reference")(*args)
    leaves, right_leaves = jax.tree.leaves(result), jax.tree.leaves(expected)
    assert [(v.dtype, v.shape) for v in leaves] == [(v.dtype, v.shape) for v in right_leaves]
    for leaf, right in zip(leaves, right_leaves, strict=True):
        exact = not jnp.issubdtype(right.dtype, jnp.floating)
        x, y = (np.asarray(v).astype(np.float64) for v in (leaf, right))
        np.testing.assert_allclose(x, y, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


def scattered(operation: Callable[..., Any], *numbers: Any) -> Callable[..., Any]:
    """Returns a scatter that drops windows outside of the operand. `numbers`: dimensions of the windows."""
    return lambda x, i, u: operation(x, i, u, lax.ScatterDimensionNumbers(*numbers), mode="drop")


INT8, UINT32 = np.int8, np.uint32

SCATTERS = {
    "windows partly outside": (lax.scatter, ((1, 2), (), (0, 1)), (8, 7), [[0, 0], [3, 4], [6, 6], [-1, 2]], (4, 3, 2)),
    "sums of windows": (lax.scatter_add, ((1, 2), (), (0, 1)), (8, 7), [[0, 0], [1, 1], [5, 5], [2, 1]], (4, 3, 2)),
    "windows shorter than a row": (lax.scatter, ((1,), (0,), (0,)), (8, 7), [[3], [9], [3], [-1], [0]], (5, 4)),
    "products in the middle": (lax.scatter_mul, ((0, 2), (1,), (1,)), (3, 6, 4), [[5], [0], [5]], (3, 3, 4)),
    "batches": (lax.scatter, ((2,), (1,), (1,), (0,), (0,)), (3, 6, 4), [[[1], [7]]] * 3, (3, 2, 4)),
    "a window of each batch": (lax.scatter_min, ((1, 2), (), (1,), (0,), (0,)), (3, 6, 4), [[0], [4], [5]], (3, 2, 4)),
    "one window": (lax.scatter, ((0, 1), (), (0, 1)), (8, 7), [3, 2], (3, 2)),
    "one window outside": (lax.scatter, ((0, 1), (), (0, 1)), (8, 7), [6, 2], (3, 2)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name: str) -> None:
    operation, numbers, shape, starts, updates = SCATTERS[name]
    agrees(scattered(operation, *numbers), floats(*shape), jnp.asarray(starts, np.int32), floats(*updates))


def test_scatter_of_types() -> None:
    """Unsigned maxima and minima, sums that wrap, booleans, and many writes to one row: the last one remains."""

    def function(x: Any, n: Any, m: Any, i: Any, u: Any, v: Any, w: Any) -> Any:
        return n.at[i].max(v), n.at[i].min(v), m.at[i].add(w), (m > 0).at[i].set(True), x.at[i].set(u), x.at[i].add(u)

    wide = {"low": 0, "high": 2**32, "dtype": UINT32}
    bytes_ = {"low": -128, "high": 128, "dtype": INT8}
    rows = integers(24, low=0, high=30)
    agrees(
        function, floats(30, 2), integers(30, 3, **wide), integers(30, **bytes_), rows, floats(24, 2),
        integers(24, 3, **wide), integers(24, **bytes_),
    )  # fmt: skip


def test_a_scatter_by_another_function_needs_unique_indices() -> None:
    x, rows = floats(6, 2), jnp.asarray([1, 3], np.int32)
    agrees(lambda x, i: x.at[i].apply(jnp.sin, unique_indices=True), x, rows)
    with pytest.raises(CompileError, match="unique"):
        deplodock.from_jax(lambda x, i: x.at[i].apply(jnp.sin), x, rows, executor="reference")


def test_convolution() -> None:
    """Negative padding, dilation of both operands, batch groups and integers."""

    def function(x: Any, w: Any, n: Any, v: Any) -> Any:
        dilated = lax.conv_general_dilated(x, w, (1, 2), ((-1, 2), (3, -2)), (2, 1), (1, 2))
        batches = lax.conv_general_dilated(x, w[:2], (1, 1), "SAME", batch_group_count=2)
        return dilated, batches, lax.conv(n, v, (1, 1), "SAME", preferred_element_type=jnp.int32)

    bytes_ = {"low": -128, "high": 128, "dtype": INT8}
    agrees(
        function, floats(2, 2, 7, 9), floats(4, 2, 3, 2), integers(1, 2, 5, 5, **bytes_), integers(3, 2, 3, 3, **bytes_)
    )


def _pick(x: Any, y: Any) -> Any:
    first = x[0] >= y[0]
    return jnp.where(first, x[0], y[0]), jnp.where(first, x[1], y[1])


def test_windows() -> None:
    """Unsigned maxima, scans from both ends, windows of pairs, and the gradient of a minimum over ties."""

    def function(x: Any, n: Any, u: Any) -> Any:
        pairs = lax.reduce_window((x, n), (-jnp.inf, 0), _pick, (1, 2), (1, 2), "VALID")
        unsigned = lax.reduce_window(u, UINT32(0), lax.max, (2, 2), (1, 1), "SAME"), lax.cummin(u, 1, reverse=True)

        def least(v: Any) -> Any:
            return (lax.reduce_window(v, jnp.inf, lax.min, (2, 3), (1, 2), "SAME") ** 2).sum()

        return pairs, unsigned, lax.cumlogsumexp(x, 1, reverse=True), jax.grad(least)(jnp.round(x))

    agrees(function, floats(6, 8), integers(6, 8), integers(4, 3, low=0, high=2**32, dtype=UINT32))


def test_sort() -> None:
    """Several keys and tensors, descending, booleans, unsigned integers, and the largest elements."""

    def function(x: Any, n: Any, u: Any) -> Any:
        return lax.sort((n % 3, x, n), num_keys=2), jnp.sort(n > 2), jnp.argsort(x, descending=True), lax.top_k(u, 3)

    agrees(function, floats(19), integers(19), integers(2, 9, low=0, high=2**32, dtype=UINT32))


def test_reduction_by_any_region() -> None:
    def function(x: Any) -> Any:
        return lax.reduce(x, np.float32(1), lambda a, b: a * b + 0 * a, (0, 2))

    agrees(function, floats(3, 5, 7))


def test_bits() -> None:
    """Counts of bits, views as other types, and fewer bits of precision."""
    x = jnp.concatenate([jnp.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.0, 1e-7], np.float32), floats(9) * 100])

    def function(x: Any, n: Any, u: Any) -> Any:
        counts = [f(v) for f in (lax.population_count, lax.clz) for v in (n, u)]
        narrow = [lax.reduce_precision(x, e, m) for e, m in ((8, 7), (5, 10), (4, 3))]
        views = lax.bitcast_convert_type(x, jnp.uint8), lax.bitcast_convert_type(u.reshape(-1, 2), jnp.float32)
        return counts, narrow, views, lax.bitcast_convert_type(x[0], jnp.int16)

    agrees(function, x, integers(9, low=-128, high=128, dtype=INT8), integers(8, low=0, high=60000, dtype=np.uint16))


def test_rotations_of_random_bits_are_constants() -> None:
    """The amounts are rows of tables in a loop; shifts by an unknown amount would have tests."""
    key = jnp.asarray([3, 2**31 + 5], UINT32)
    compiled = deplodock.from_jax(lambda k: jax.random.bits(k, (5,)), key, target="cpu", executor="reference")
    assert "payload.select" not in compiled.ir("tensor")
    np.testing.assert_array_equal(compiled(key), jax.random.bits(key, (5,)))
