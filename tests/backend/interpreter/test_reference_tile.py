"""The interpreter at the tile level: grids, partial blocks, loops, gathers, and refused stores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from deplodock.backend.interpreter import tile as tile_level
from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError

RNG = np.random.default_rng(11)


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


def floats(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


GEMM = """
tile.kernel @k0(%x: memref<30x40xbf16>, %w: memref<40x20xf32>, %b: memref<20xf32>, %y: memref<30x20xf32>)
    blocks (%i, %j) in [2, 2] warps 4 {
  %zero = payload.constant 0.0 : f32
  %zero16 = payload.constant 0.0 : bf16
  %acc0 = payload.constant 0.0 : tensor<16x16xf32>
  %lo = arith.constant 0 : index
  %hi = arith.constant 5 : index
  %one = arith.constant 1 : index
  %acc = scf.for %k = %lo to %hi step %one iter_args(%a = %acc0) -> (tensor<16x16xf32>) {
    %xt = tile.load %x[d0 + %i * 16, d1 + %k * 8]
          where 0 <= d0 + %i * 16 < 30 else %zero16
          : memref<30x40xbf16> -> tensor<16x8xbf16>
    %wt = tile.load %w[d0 + %k * 8, d1 + %j * 16]
          where 0 <= d1 + %j * 16 < 20 else %zero
          : memref<40x20xf32> -> tensor<8x16xf32>
    %n = tile.dot %xt, %wt, %a : tensor<16x8xbf16>, tensor<8x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
    scf.yield %n : tensor<16x16xf32>
  }
  %bt = tile.load %b[d0 + %j * 16]
        where 0 <= d0 + %j * 16 < 20 else %zero : memref<20xf32> -> tensor<16xf32>
  %bb = tile.broadcast %bt along [0] : tensor<16xf32> -> tensor<16x16xf32>
  %s = arith.addf %acc, %bb : tensor<16x16xf32>
  tile.store %s, %y[d0 + %i * 16, d1 + %j * 16]
      where 0 <= d0 + %i * 16 < 30 and 0 <= d1 + %j * 16 < 20
      : tensor<16x16xf32>, memref<30x20xf32>
}
func.func @main(%x: tensor<30x40xbf16>, %w: tensor<40x20xf32>, %b: tensor<20xf32>) -> tensor<30x20xf32> {
  %y = tile.launch @k0(%x, %w, %b) : (tensor<30x40xbf16>, tensor<40x20xf32>, tensor<20xf32>) -> tensor<30x20xf32>
  func.return %y : tensor<30x20xf32>
}
"""


def gemm_args():
    return [floats(30, 40).astype(ml_dtypes.bfloat16), floats(40, 20), floats(20)]


@pytest.mark.parametrize("limit", [1 << 24, 256])
def test_contraction_with_tails(limit: int, monkeypatch: pytest.MonkeyPatch):
    """A small `limit` of elements makes the interpreter run the grid block by block."""
    monkeypatch.setattr(tile_level, "MAX_ELEMENTS", limit)
    x, w, b = gemm_args()
    want = x.astype(np.float64) @ w + b
    np.testing.assert_allclose(run(module(GEMM), [x, w, b], "real")[0], want, rtol=1e-12)
    np.testing.assert_allclose(run(module(GEMM), [x, w, b])[0], want, rtol=1e-4, atol=1e-5)


def test_equal_to_the_tensor_level_exactly():
    text = """
    func.func @main(%x: tensor<30x40xbf16>, %w: tensor<40x20xf32>, %b: tensor<20xf32>) -> tensor<30x20xf32> {
      %c = payload.cast %x : tensor<30x40xbf16> -> tensor<30x40xf32>
      %l = tensor.index_map %c[d0, d2] : tensor<30x40xf32> -> tensor<30x20x40xf32>
      %r = tensor.index_map %w[d2, d1] : tensor<40x20xf32> -> tensor<30x20x40xf32>
      %p = arith.mulf %l, %r : tensor<30x20x40xf32>
      %m = tensor.reduce add %p over [2] : tensor<30x20x40xf32> -> tensor<30x20xf32>
      %bb = tensor.index_map %b[d1] : tensor<20xf32> -> tensor<30x20xf32>
      %y = arith.addf %m, %bb : tensor<30x20xf32>
      func.return %y : tensor<30x20xf32>
    }"""
    args = gemm_args()
    want = run(module(text), args, "exact")[0]
    np.testing.assert_array_equal(run(module(GEMM), args, "exact")[0], want)
    short = module(GEMM.replace("arith.constant 5 : index", "arith.constant 4 : index"))
    assert np.all(run(short, args, "exact")[0] != want)


def test_a_tail_without_its_domain_is_an_error():
    text = GEMM.replace("< 30 else %zero16", "< 31 else %zero16")
    with pytest.raises(ExecutionError, match="tile.load: coordinate 0 is 30, outside 0..29"):
        run(module(text), gemm_args())


def test_an_element_left_out_is_an_error():
    with pytest.raises(ExecutionError, match=r"tile.launch: element \(29, 0\) of result 0 is never written"):
        run(module(GEMM.replace("< 30 and 0 <=", "< 29 and 0 <=")), gemm_args())


def test_an_element_written_twice_is_an_error():
    text = GEMM.replace(
        "tile.store %s, %y[d0 + %i * 16,",
        "tile.store %s, %y[d0 + %i * 14,",
    )
    with pytest.raises(ExecutionError, match="tile.store: element .* is written twice, with different values"):
        run(module(text), gemm_args())


def test_loops_of_different_length_in_different_blocks():
    """Block i sums its first i + 1 chunks."""
    text = """
    tile.kernel @k0(%x: memref<32xf32>, %y: memref<4xf32>) blocks (%i) in [4] warps 1 {
      %lo = arith.constant 0 : index
      %one = arith.constant 1 : index
      %hi = arith.addi %i, %one : index
      %z = payload.constant 0.0 : f32
      %s = scf.for %c = %lo to %hi step %one iter_args(%a = %z) -> (f32) {
        %v = tile.load %x[d0 + %c * 8] : memref<32xf32> -> tensor<8xf32>
        %r = tile.reduce add %v over [0] : tensor<8xf32> -> f32
        %n = arith.addf %a, %r : f32
        scf.yield %n : f32
      }
      tile.store %s, %y[%i] : f32, memref<4xf32>
    }
    func.func @main(%x: tensor<32xf32>) -> tensor<4xf32> {
      %y = tile.launch @k0(%x) : (tensor<32xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }"""
    x = floats(32)
    want = [x[: 8 * (i + 1)].sum(dtype=np.float64) for i in range(4)]
    np.testing.assert_allclose(run(module(text), [x], "real")[0], want, rtol=1e-12)


def test_gather_by_a_tile_of_indices():
    text = """
    tile.kernel @k0(%t: memref<9x4xf32>, %n: memref<16xi64>, %y: memref<16x4xf32>) blocks (%i) in [2] warps 1 {
      %z = payload.constant -1.0 : f32
      %v = tile.load %n[d0 + %i * 8] : memref<16xi64> -> tensor<8xi64>
      %w = payload.cast %v : tensor<8xi64> -> tensor<8xindex>
      %b = tile.broadcast %w along [1] : tensor<8xindex> -> tensor<8x4xindex>
      %g = tile.load %t[%b, d1] where 0 <= %b < 9 else %z
           : memref<9x4xf32> -> tensor<8x4xf32>
      %k = tile.affine d0 + %i * 8 : tensor<8x4xindex>
      %k0 = payload.cast %k : tensor<8x4xindex> -> tensor<8x4xi64>
      %k1 = payload.cast %k0 : tensor<8x4xi64> -> tensor<8x4xf32>
      %o = arith.addf %g, %k1 : tensor<8x4xf32>
      tile.store %o, %y[d0 + %i * 8, d1] : tensor<8x4xf32>, memref<16x4xf32>
    }
    func.func @main(%t: tensor<9x4xf32>, %n: tensor<16xi64>) -> tensor<16x4xf32> {
      %y = tile.launch @k0(%t, %n) : (tensor<9x4xf32>, tensor<16xi64>) -> tensor<16x4xf32>
      func.return %y : tensor<16x4xf32>
    }"""
    t, n = floats(9, 4), RNG.integers(-2, 12, 16)
    inside = (n >= 0) & (n < 9)
    want = np.where(inside[:, None], t[np.clip(n, 0, 8)], np.float32(-1)) + np.arange(16, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(run(module(text), [t, n])[0], want)
