"""`deplodock.from_jax`: functions of JAX, compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import deplodock  # noqa: E402
from deplodock.errors import UnsupportedError  # noqa: E402


def arrays(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[Any]:
    """Returns random arrays of standard normal numbers."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def check(function: Callable[..., Any], *args: Any, executor: str = "reference", **options: Any) -> Any:
    """Compiles a function, compares its results with JAX, and returns the compiled function."""
    compiled = deplodock.from_jax(function, *args, executor=executor, **options)
    actual, expected = compiled(*args), jax.jit(function)(*args)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        rtol = 1e-2 if a.dtype in (jnp.bfloat16, jnp.float16) else 2e-5
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol=rtol, atol=1e-5)
    return compiled


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return {"y": jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(mask, scores, -1e9), -1), v)}


def test_attention_is_one_nest() -> None:
    """The softmax of JAX becomes a staged reduction, as from PyTorch."""
    text = check(attention, *arrays((2, 3, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16))).ir("loop")
    assert text.count("loop.nest") == 1
    assert text.count("loop.staged_reduce") == 1


def recurrent(p: Any, xs: Any, h: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x @ p["wz"] + h @ p["uz"])
        h = (1 - z) * h + z * jnp.tanh(x @ p["wn"] + (h * z) @ p["un"])
        return h, h

    return jax.lax.scan(step, h, xs)


def test_a_scan_is_a_scan() -> None:
    """The steps of a recurrent network are one function with a loop of launches. Its gradient has two."""
    wz, uz, wn, un, xs, h = arrays((4, 8), (8, 8), (4, 8), (8, 8), (7, 3, 4), (3, 8))
    weights = {"wz": wz, "uz": uz, "wn": wn, "un": un}
    text = check(recurrent, weights, xs, h).ir("tensor")
    assert text.count("tensor.scan") == 1
    assert "history [0]" in text or "history [1]" in text
    gradient = check(jax.grad(lambda *args: (recurrent(*args)[1] ** 2).sum(), argnums=(0, 1)), weights, xs, h)
    assert gradient.ir("tensor").count("tensor.scan") == 2


@pytest.mark.parametrize("write", [0, 1, 2, 3])
def test_rows_that_a_loop_writes(write: int) -> None:
    """Rows are written in place of slices only if no step reads rows of earlier steps."""

    def loop(x: Any, w: Any) -> Any:
        def step(i: Any, h: Any) -> Any:
            row, at = ((h[i] @ w, i), (h[i - 1] @ w, i), (h[5 - i] @ w * i, 5 - i), (h[i] @ w * i, 5 - i))[write]
            return jax.lax.dynamic_update_index_in_dim(h, jnp.tanh(row), at, 0)

        return jax.lax.fori_loop(1, 6, step, x)

    text = check(loop, *arrays((6, 8), (8, 8))).ir("tensor")
    assert ("history" in text) == (write in (0, 2))


def test_a_loop_that_depends_on_data_is_refused() -> None:
    def doubled(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 4, lambda c: c * 2, x)

    with pytest.raises(UnsupportedError, match=r"test_jax.py:\d+: stablehlo.while: the number of steps"):
        deplodock.from_jax(doubled, jnp.ones(3))


def test_indices_outside_of_an_array() -> None:
    """Slices are clamped, gathers fill or clamp, and negative indices count from the end."""
    (x,) = arrays((6, 5))
    index, start = jnp.asarray([0, 7, -1, -9]), jnp.int32(5)

    def read(x: Any, i: Any, start: Any) -> Any:
        rows = x[i], x[i, 1], x[:, i], jnp.take(x, i, axis=0, mode="clip"), jnp.take_along_axis(x, i[None] % 5, 1)
        slices = jax.lax.dynamic_slice(x, (start, 0), (2, 5)), jax.lax.dynamic_slice(x, (start, start), (2, 3))
        return rows, slices, jax.lax.dynamic_update_slice(x, x[:2, :3], (start, 1))

    check(read, x, index, start)


def test_reductions_of_pairs() -> None:
    x = arrays((4, 9))[0].at[1, 2].set(jnp.nan)

    def best(x: Any) -> Any:
        whole, small = x.astype(jnp.int32), jnp.abs(x * 9).astype(jnp.uint8)
        return jnp.argmax(x, -1), jnp.argmin(x, 0), jnp.argmax(x), jnp.argmax(whole, 1), jnp.argmin(small, 1)

    check(best, x)
