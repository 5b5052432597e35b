"""`deplodock.from_jax`: functions of JAX, compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import deplodock  # noqa: E402


def arrays(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[Any]:
    """Returns random arrays of standard normal numbers."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def check(function: Callable[..., Any], *args: Any, executor: str = "reference", **options: Any) -> Any:
    """Compiles a function, compares its results with those of JAX, and returns the compiled function."""
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
    """The softmax of JAX becomes a staged reduction, as that of PyTorch does."""
    text = check(attention, *arrays((2, 3, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16))).ir("loop")
    assert text.count("loop.nest") == 1
    assert text.count("loop.staged_reduce") == 1
