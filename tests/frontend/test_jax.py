"""`deplodock.from_jax`: functions of JAX, compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import deplodock  # noqa: E402
from deplodock.errors import ExecutionError, ShapeError, UnsupportedError  # noqa: E402
from deplodock.tools.cli import main  # noqa: E402


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


def test_symbolic_sizes() -> None:
    """The constraints of JAX are the range of a size. Shapes are computed during the import."""
    b, q = jax.export.symbolic_shape("b,q", constraints=["b >= 2", "b <= 9"])
    specs = jax.ShapeDtypeStruct((b, 4), jnp.float32), jax.ShapeDtypeStruct((2 * q,), jnp.float32)

    def program(x: Any, y: Any) -> Any:
        pairs = jnp.concatenate([x.reshape(-1, 2), x.reshape(-1, 2)]).sum(0)
        rows = x[1:], x[::-1], jnp.pad(x, ((1, 2), (0, 0))), jnp.arange(x.shape[0]), jnp.argmax(x, 0)
        return pairs, rows, jax.nn.softmax(x @ x.T, -1), y.reshape(-1, 2).sum(1), x.mean(0)

    compiled = deplodock.from_jax(program, *specs, executor="reference")
    for n in (2, 5):
        x, y = arrays((n, 4), (6,))
        for actual, expected in zip(jax.tree.leaves(compiled(x, y)), jax.tree.leaves(program(x, y)), strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="the size b is 1, outside of 2 to 9"):
        compiled(*arrays((1, 4), (6,)))
    with pytest.raises(ShapeError, match="5"):
        compiled(*arrays((2, 4), (5,)))


def exported() -> Any:
    def program(x: Any, u: Any) -> Any:
        return jax.nn.softmax(x * np.array([1, 5, 2, 7], np.float32)), u + 1

    types = jax.ShapeDtypeStruct((3, 4), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.uint32)
    return jax.export.export(jax.jit(program), platforms=("cpu",))(*types)


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, bytecode and artifacts of jax.export are run and compared with JAX."""
    program = exported()
    (tmp_path / "text.stablehlo").write_text(program.mlir_module(), encoding="utf-8")
    (tmp_path / "bytes.stablehlo").write_bytes(program.mlir_module_serialized)
    (tmp_path / "artifact.jax").write_bytes(program.serialize())
    for file in sorted(tmp_path.iterdir()):
        assert main(["run", str(file), "--target", "sm_90a", "--executor", "reference"]) == 0
        assert "compared with JAX" in capsys.readouterr().out
    assert main(["compile", str(tmp_path / "artifact.jax"), "--ir", "tensor"]) == 0
    assert "constants = array<i64: 2>" in capsys.readouterr().out
    results = deplodock.from_jax(program, executor="reference")(*arrays((3, 4)), np.arange(3, dtype=np.uint32))
    assert results[1].dtype == jnp.uint32


IDENTITY = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{ {} }}"

BAD = {
    "empty": (b"", "expected StableHLO"),
    "truncated text": (b"func.func @main(%x: tensor<3xf32>) -> tensor<3x", "is no valid StableHLO: line 1"),
    "truncated bytecode": (b"ML\xefR\x0dStableHLO_v1.17.0\x00\x05", "is no valid StableHLO"),
    "nesting": (b"(" * 100_000, "levels of brackets"),
    "other bytes": (bytes(range(256)) * 9, "expected StableHLO"),
    "no main": (b"module {}", "expected a function @main, but got none"),
    "types": (IDENTITY.format("return %x : tensor<4xf32>").encode(), "different type than prior uses"),
    "unknown operation": (
        IDENTITY.format('%0 = "os.system"(%x) : (tensor<3xf32>) -> tensor<3xf32> return %0 : tensor<3xf32>').encode(),
        "unregistered dialect",
    ),
    "custom call": (
        IDENTITY.format(
            "%0 = stablehlo.custom_call @f(%x) : (tensor<3xf32>) -> tensor<3xf32> return %0 : tensor<3xf32>"
        ).encode(),
        ".stablehlo:1: error: stablehlo.custom_call: the custom call f is not supported",
    ),
    "recursion": (
        IDENTITY.format(
            "%0 = func.call @main(%x) : (tensor<3xf32>) -> tensor<3xf32> return %0 : tensor<3xf32>"
        ).encode(),
        "may be recursive",
    ),
    "size": (IDENTITY.format("return %x : tensor<3xf32>").replace("3xf32", f"{1 << 50}xf32").encode(), "elements"),
    "complex": (IDENTITY.format("return %x : tensor<3xf32>").replace("f32", "complex<f32>").encode(), "complex<f32>"),
}
"""Name of a fault -> the bytes of a file, and a part of the message."""


@pytest.mark.parametrize("fault", BAD)
def test_bad_files(fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, message = BAD[fault]
    file = tmp_path / "bad.stablehlo"
    file.write_bytes(data)
    assert main(["compile", str(file), "--ir", "tensor"]) == 1
    error = capfd.readouterr().err
    assert "bad.stablehlo" in error
    assert message in error
    assert "internal error" not in error


def test_equal_layers_are_one_function() -> None:
    (x,), weights = arrays((3, 8)), arrays(*[(8, 8)] * 5)

    def layers(x: Any, weights: list[Any]) -> Any:
        for w in weights:
            y = x - x.mean(-1, keepdims=True)
            y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)
            x = x + jax.nn.softmax(jnp.tanh(y @ w) * 2 + jnp.sin(y), -1) @ w / 3
        return x

    text = check(layers, x, weights).ir("tensor")
    assert text.count("func.call @layer") >= 4


def test_fast_math() -> None:
    """Exponentials and quotients get their flags only if the user permits them."""
    (x,) = arrays((3, 8))
    assert "fastmath" not in check(jax.nn.softmax, x).ir("tensor")
    text = check(jax.nn.softmax, x, fast_math=True).ir("tensor")
    assert "math.exp2" in text
    assert "fastmath<afn>" in text
    assert "fastmath<arcp>" in text


@pytest.mark.parametrize("bits", [8, 32])
def test_unsigned_integers(bits: int) -> None:
    """Unsigned integers are signless at the tensor level, and compute as in XLA."""
    rng = np.random.default_rng(0)
    unsigned = jnp.dtype(f"uint{bits}")
    u, v = (jnp.asarray(rng.integers(0, most, (4, 9)), unsigned) for most in (2**bits, 5))

    def arithmetic(u: Any, v: Any) -> Any:
        sums = u + v, u - v, u * v, -u, u**v, jax.lax.div(u, v), jax.lax.rem(u, v), u >> v, u << v
        order = u > v, jnp.maximum(u, v), jnp.minimum(u, v), u.max(0), jnp.argmax(u, 1), jax.lax.clamp(v, u, v + v)
        return sums, order, u.astype(jnp.float32), u.astype(jnp.int32), u.astype(jnp.uint8)

    assert f"tensor<4x9xi{bits}>" in check(arithmetic, u, v).ir("tensor")


def test_conversions_of_floats_saturate() -> None:
    ends = [127.5, 128.5, -129.5, 255.5, 256.5, 65536, 2147483648, -2147483904, 4294967296, 1e20, np.inf, np.nan]
    z = jnp.asarray([*ends, *(-e for e in ends)], jnp.float32)
    check(lambda z: [z.astype(d) for d in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "bool")], z)


def test_low_precision_is_rounded_by_each_operation() -> None:
    """The results are equal to XLA's, bit by bit."""
    (x,) = arrays((500,), dtype=jnp.bfloat16)

    def chain(x: Any) -> Any:
        return x * x[::-1] + x * 3, x / 3, jnp.sqrt(jnp.abs(x)) - x

    compiled = deplodock.from_jax(chain, x, executor="reference")
    for actual, expected in zip(compiled(x), jax.jit(chain)(x), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_arguments_and_results() -> None:
    """Keys of random numbers keep their type, results do not alias arguments, and mistakes are refused."""
    key, x = jax.random.key(0), np.ones((3, 4), np.float32)

    def program(key: Any, x: Any, parts: dict[str, Any]) -> Any:
        key, other = jax.random.split(key)
        return key, jax.random.bits(other, (5,)), x, x[:0].sum(0), x * parts["scale"]

    args = key, x, {"scale": 2.0}
    compiled = deplodock.from_jax(program, *args, executor="reference")
    assert "%parts_scale: tensor<f32>" in compiled.ir("tensor")
    new_key, numbers, same, empty, scaled = compiled(*args)
    expected = jax.jit(program)(*args)
    np.testing.assert_array_equal(jax.random.key_data(new_key), jax.random.key_data(expected[0]))
    np.testing.assert_array_equal(numbers, expected[1])
    x[:] = 7
    assert (same.max(), empty.sum(), scaled.max()) == (1, 0, 2)
    for wrong, error in (
        ((key, x[:2], {"scale": 2.0}), ExecutionError),
        ((key, x.astype(np.int32), {"scale": 2.0}), ExecutionError),
        ((key, x), ShapeError),
    ):
        with pytest.raises(error, match="expected|is "):
            compiled(*wrong)
    with pytest.raises(ExecutionError, match="compile the transformed function"):
        jax.jit(compiled)(*args)
