"""The interpreter at the tensor and loop levels, against NumPy and PyTorch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError

RNG = np.random.default_rng(3)


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


def floats(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


def unary(op: str, t: str = "f32", out: str | None = None):
    out = out or t
    arrow = f" -> tensor<7x{out}>" if op == "payload.cast" else ""
    return module(
        f"func.func @main(%x: tensor<7x{t}>) -> tensor<7x{out}> {{\n"
        f"  %y = {op} %x : tensor<7x{t}>{arrow}\n  func.return %y : tensor<7x{out}>\n}}"
    )


POINTS = np.array([-2.5, -1.0, -0.3, 0.0, 0.7, 2.5, 40.0], np.float32)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("math.exp", torch.exp),
        ("math.exp2", torch.exp2),
        ("math.expm1", torch.expm1),
        ("math.log", torch.log),
        ("math.log1p", torch.log1p),
        ("math.sqrt", torch.sqrt),
        ("math.rsqrt", torch.rsqrt),
        ("math.tanh", torch.tanh),
        ("math.erf", torch.erf),
        ("math.sin", torch.sin),
        ("math.floor", torch.floor),
        ("math.trunc", torch.trunc),
        ("math.roundeven", torch.round),
        ("math.absf", torch.abs),
        ("arith.negf", torch.neg),
    ],
)
def test_float_functions(op: str, reference):
    (got,) = run(unary(op), [POINTS])
    np.testing.assert_allclose(got, reference(torch.from_numpy(POINTS)).numpy(), rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("source", "target", "dtype"),
    [
        ("f32", "i32", torch.int32),
        ("f32", "i8", torch.int8),
        ("f32", "i1", torch.bool),
        ("f32", "f16", torch.float16),
        ("i64", "i8", torch.int8),
        ("i64", "f32", torch.float32),
        ("i1", "f32", torch.float32),
        ("i1", "i64", torch.int64),
    ],
)
def test_casts(source: str, target: str, dtype: torch.dtype):
    x = {"f32": POINTS, "i64": np.array([-300, -1, 0, 1, 127, 128, 2**40]), "i1": POINTS > 0}[source]
    (got,) = run(unary("payload.cast", source, target), [x])
    np.testing.assert_array_equal(got, torch.from_numpy(x).to(dtype).numpy())


def test_bfloat16_rounds_to_nearest_even():
    x = np.array([1.0, 1.00390625, 1.01171875, 3.14159, -1e-30, 65504.0, np.inf], np.float32)
    (got,) = run(unary("payload.cast", "f32", "bf16"), [x])
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), torch.from_numpy(x).bfloat16().float().numpy())


@pytest.mark.parametrize("op", ["arith.divsi", "arith.remsi", "arith.floordivsi"])
def test_integer_division(op: str):
    text = (
        "func.func @main(%x: tensor<4xi64>, %y: tensor<4xi64>) -> tensor<4xi64> {\n"
        f"  %z = {op} %x, %y : tensor<4xi64>\n  func.return %z : tensor<4xi64>\n}}"
    )
    x, y = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    mode = {"arith.divsi": "trunc", "arith.floordivsi": "floor"}.get(op)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    want = torch.div(tx, ty, rounding_mode=mode) if mode else torch.fmod(tx, ty)
    np.testing.assert_array_equal(run(module(text), [x, y])[0], want.numpy())


INDEX_MAPS = """
func.func @main(%x: tensor<5x6xf32>) -> (tensor<6x5xf32>, tensor<7x6xf32>, tensor<2x3xf32>, tensor<10x3xf32>) {
  %zero = payload.constant 0.5 : f32
  %t = tensor.index_map %x[d1, d0] : tensor<5x6xf32> -> tensor<6x5xf32>
  %p = tensor.index_map %x[d0 - 1, d1]
       where 0 <= d0 - 1 < 5 else %zero : tensor<5x6xf32> -> tensor<7x6xf32>
  %s = tensor.index_map %x[d0 * 2 + 1, 5 - d1 * 2] : tensor<5x6xf32> -> tensor<2x3xf32>
  %r = tensor.index_map %x[(d0 * 3 + d1) floordiv 6, (d0 * 3 + d1) mod 6]
       : tensor<5x6xf32> -> tensor<10x3xf32>
  func.return %t, %p, %s, %r : tensor<6x5xf32>, tensor<7x6xf32>, tensor<2x3xf32>, tensor<10x3xf32>
}
"""


def test_index_maps():
    x = floats(5, 6)
    t, p, s, r = run(module(INDEX_MAPS), [x])
    np.testing.assert_array_equal(t, x.T)
    np.testing.assert_array_equal(p, np.pad(x, ((1, 1), (0, 0)), constant_values=0.5))
    np.testing.assert_array_equal(s, x[1::2, ::-1][:, ::2])
    np.testing.assert_array_equal(r, x.reshape(10, 3))


def test_access_outside_the_source_is_an_error():
    wrong = "where 1 <= d0 < 7"
    text = INDEX_MAPS.replace("where 0 <= d0 - 1 < 5", wrong)
    with pytest.raises(ExecutionError, match=r"test.mlir:5:3: tensor.index_map: coordinate 0 is 5, outside 0..4"):
        run(module(text), [floats(5, 6)])


def test_gather_reads_zero_outside():
    text = """
    func.func @main(%t: tensor<10x3xf32>, %i: tensor<4x3xi64>) -> tensor<4x3xf32> {
      %y = tensor.gather %t[%i, d1]
           : tensor<10x3xf32> -> tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }"""
    t, i = floats(10, 3), np.repeat(np.array([[3], [9], [-1], [10]]), 3, 1)
    (got,) = run(module(text), [t, i])
    np.testing.assert_array_equal(got[:2], t[[3, 9]])
    np.testing.assert_array_equal(got[2:], 0)


@pytest.mark.parametrize(
    ("kind", "reference"), [("add", torch.sum), ("mul", torch.prod), ("max", torch.amax), ("min", torch.amin)]
)
def test_reductions(kind: str, reference):
    text = f"""
    func.func @main(%x: tensor<4x5xf32>, %b: tensor<5xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
      %y = tensor.reduce {kind} %x over [1] : tensor<4x5xf32> -> tensor<4xf32>
      %c = tensor.index_map %b[d1] : tensor<5xf32> -> tensor<4x5xf32>
      %d = tensor.index_map %b[d0] : tensor<5xf32> -> tensor<4x5xf32>
      %z = tensor.reduce {kind} %d over [1] : tensor<4x5xf32> -> tensor<4xf32>
      func.return %y, %z : tensor<4xf32>, tensor<4xf32>
    }}"""
    x, b = floats(4, 5), floats(5)
    y, z = run(module(text), [x, b])
    np.testing.assert_allclose(y, reference(torch.from_numpy(x), 1).numpy(), rtol=1e-6)
    repeated = torch.from_numpy(b[:4]).reshape(4, 1).expand(4, 5)
    np.testing.assert_allclose(z, reference(repeated, 1).numpy(), rtol=1e-6)


def test_empty_reductions_give_the_identity():
    text = """
    func.func @main(%x: tensor<2x0xf32>, %i: tensor<2x0xi1>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xi1>) {
      %y = tensor.reduce add %x over [1] : tensor<2x0xf32> -> tensor<2xf32>
      %m = tensor.reduce max %x over [1] : tensor<2x0xf32> -> tensor<2xf32>
      %a = tensor.reduce and %i over [1] : tensor<2x0xi1> -> tensor<2xi1>
      func.return %y, %m, %a : tensor<2xf32>, tensor<2xf32>, tensor<2xi1>
    }"""
    for domain in ("typed", "exact"):
        y, m, a = run(module(text), [floats(2, 0), np.zeros((2, 0), np.bool_)], domain)
        assert a.all()
        assert y[0] == 0
        if domain == "typed":
            assert np.isneginf(m).all()


CONTRACTION = """
func.func @main(%a: tensor<2x5x9xf32>, %b: tensor<9x4xf32>, %g: tensor<5xf32>) -> tensor<2x5x4xf32> {
  %l = tensor.index_map %a[d0, d1, d3] : tensor<2x5x9xf32> -> tensor<2x5x4x9xf32>
  %r = tensor.index_map %b[d3, d2] : tensor<9x4xf32> -> tensor<2x5x4x9xf32>
  %s = tensor.index_map %g[d1] : tensor<5xf32> -> tensor<2x5x4x9xf32>
  %p = arith.mulf %l, %r : tensor<2x5x4x9xf32>
  %q = arith.mulf %p, %s : tensor<2x5x4x9xf32>
  %m = tensor.reduce add %q over [3] : tensor<2x5x4x9xf32> -> tensor<2x5x4xf32>
  func.return %m : tensor<2x5x4xf32>
}
"""
AS_LOOP = """
func.func @main(%a: tensor<2x5x9xf32>, %b: tensor<9x4xf32>, %g: tensor<5xf32>) -> tensor<2x5x4xf32> {
  %y = loop.nest (%n, %i, %j) in [2, 5, 4] -> tensor<2x5x4xf32> {
    %m = loop.reduce add (%k) in [9] -> f32 {
      %l = loop.load %a[%n, %i, %k] : tensor<2x5x9xf32>
      %r = loop.load %b[%k, %j] : tensor<9x4xf32>
      %p = arith.mulf %l, %r : f32
      loop.yield %p : f32
    }
    %s = loop.load %g[%i] : tensor<5xf32>
    %q = arith.mulf %m, %s : f32
    loop.yield %q : f32
  }
  func.return %y : tensor<2x5x4xf32>
}
"""


def test_contractions_agree_between_levels():
    args = [floats(2, 5, 9), floats(9, 4), floats(5)]
    want = (args[0].astype(np.float64) @ args[1]) * args[2][:, None]
    for text in (CONTRACTION, AS_LOOP):
        np.testing.assert_allclose(run(module(text), args, "real")[0], want, rtol=1e-12)
        np.testing.assert_allclose(run(module(text), args)[0], want, rtol=1e-4, atol=1e-5)
    exact = [run(module(t), args, "exact")[0] for t in (CONTRACTION, AS_LOOP)]
    np.testing.assert_array_equal(exact[0], exact[1])
    wrong = AS_LOOP.replace("(%k) in [9]", "(%k) in [8]")
    assert np.all(run(module(wrong), args, "exact")[0] != exact[0])


def test_arguments_are_checked():
    with pytest.raises(ExecutionError, match=r"argument 1 of @main: expected float32\[9, 4\], but got float64\[9, 4\]"):
        run(module(AS_LOOP), [floats(2, 5, 9), np.zeros((9, 4)), floats(5)])
    with pytest.raises(ExecutionError, match="expected 3 arguments of @main, but got 0"):
        run(module(AS_LOOP), [])
