"""The interpreter at the loop level: domains, symbols, nested and staged reductions, execution in pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deplodock.backend.interpreter import loop as loop_level
from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.loop import NestOp
from deplodock.dialects.shapes.binding import Sizes
from deplodock.dialects.support.parsing import parse_module

RNG = np.random.default_rng(5)


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


def floats(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


SOFTMAX = """
func.func @main(%x: tensor<6x37xf32>) -> tensor<6xf32> {
  %y = loop.nest (%i) in [6] -> tensor<6xf32> {
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [37] -> f32 {
        %v = loop.load %x[%i, %k] : tensor<6x37xf32>
        loop.yield %v : f32
      }
      %l0 = loop.reduce add (%k) in [37] -> f32 {
        %v = loop.load %x[%i, %k] : tensor<6x37xf32>
        %d = arith.subf %v, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    %g = math.log %l : f32
    %r = arith.addf %g, %m : f32
    loop.yield %r : f32
  }
  func.return %y : tensor<6xf32>
}
"""


@pytest.mark.parametrize("chunk", [None, 1, 4, 36, 37, 64])
def test_staged_reduction_in_any_chunks(chunk: int | None):
    x = floats(6, 37)
    want = torch.logsumexp(torch.from_numpy(x).double(), 1).numpy()
    np.testing.assert_allclose(run(module(SOFTMAX), [x], "real", chunk=chunk)[0], want, rtol=1e-12)
    exact = run(module(SOFTMAX), [x], "exact")[0]
    np.testing.assert_array_equal(run(module(SOFTMAX), [x], "exact", chunk=chunk)[0], exact)


def test_a_wrong_transport_is_seen_in_chunks_only():
    x, wrong = floats(6, 37), module(SOFTMAX.replace("arith.subf %om, %nm", "arith.subf %nm, %om"))
    right = run(module(SOFTMAX), [x], "exact")[0]
    np.testing.assert_array_equal(run(wrong, [x], "exact")[0], right)
    assert np.any(run(wrong, [x], "exact", chunk=5)[0] != right)


NESTED = """
func.func @main(%x: tensor<9x8xf32>, %w: tensor<3xf32>, %t: tensor<20xi64>) -> tensor<8x9xf32> {
  %y = loop.nest (%j, %i) in [8, 9] -> tensor<8x9xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%a, %b) in [3, 2] -> f32 {
      %v = loop.load %x[%i + %a - 1, %j]
           where 0 <= %i + %a - 1 < 9 else %zero : tensor<9x8xf32>
      %u = loop.load %w[%a] : tensor<3xf32>
      %m = loop.reduce max (%c) in [8] -> f32 {
        %z = loop.load %x[%i, %c] : tensor<9x8xf32>
        %q = arith.mulf %z, %u : f32
        loop.yield %q : f32
      }
      %p = arith.mulf %v, %m : f32
      loop.yield %p : f32
    }
    %n = loop.load %t[%i] : tensor<20xi64>
    %k = payload.cast %n : i64 -> index
    %g = loop.load %x[symbol(%k), %j]
         where 0 <= symbol(%k) < 9 else %zero : tensor<9x8xf32>
    %i0 = payload.cast %i : index -> i64
    %i1 = payload.cast %i0 : i64 -> f32
    %o = arith.addf %s, %g : f32
    %o2 = arith.addf %o, %i1 : f32
    loop.yield %o2 : f32
  }
  func.return %y : tensor<8x9xf32>
}
"""


def expected_nested(x, w, t):
    y = np.zeros((8, 9))
    for j in range(8):
        for i in range(9):
            s = sum(
                (x[i + a - 1, j] if 0 <= i + a - 1 < 9 else 0.0) * max(x[i, c] * w[a] for c in range(8))
                for a in range(3)
                for _ in range(2)
            )
            y[j, i] = s + (x[t[i], j] if 0 <= t[i] < 9 else 0.0) + i
    return y


@pytest.mark.parametrize("limit", [1 << 25, 40, 1])
def test_nested_reductions_domains_and_symbols(limit: int, monkeypatch: pytest.MonkeyPatch):
    """A small `limit` of elements makes the interpreter run the nest in pieces."""
    monkeypatch.setattr(loop_level, "MAX_ELEMENTS", limit)
    x, w, t = floats(9, 8), floats(3), RNG.integers(-3, 12, 20)
    want = expected_nested(x.astype(np.float64), w.astype(np.float64), t)
    np.testing.assert_allclose(run(module(NESTED), [x, w, t], "real")[0], want, rtol=1e-12)
    np.testing.assert_allclose(run(module(NESTED), [x, w, t])[0], want, rtol=1e-4, atol=1e-5)


def test_a_large_nest_needs_no_large_arrays():
    """All terms at once (64 x 512 x 2048 x 8 bytes) would take half a gigabyte."""
    text = """
    func.func @main(%x: tensor<64x2048xf32>, %y: tensor<512x2048xf32>) -> tensor<64x512xf32> {
      %r = loop.nest (%i, %j) in [64, 512] -> tensor<64x512xf32> {
        %m = loop.reduce max (%k) in [2048] -> f32 {
          %a = loop.load %x[%i, %k] : tensor<64x2048xf32>
          %b = loop.load %y[%j, %k] : tensor<512x2048xf32>
          %d = arith.addf %a, %b : f32
          loop.yield %d : f32
        }
        loop.yield %m : f32
      }
      func.return %r : tensor<64x512xf32>
    }"""
    nest = next(op for op in module(text).walk() if isinstance(op, NestOp))
    assert list(loop_level.reduction_sizes(nest, Sizes()).values()) == [64 * 512 * 2048]
    x, y = floats(64, 2048), floats(512, 2048)
    (got,) = run(module(text), [x, y])
    np.testing.assert_array_equal(got[5, :9], np.max(x[5] + y[:9], axis=1))


def test_sizes_of_nested_sums_of_products():
    """The largest array of attention is that of the scores.

    Indices of contractions do not count, because their terms are not stored. Regression: with them, attention of 1,024
    tokens ran in 33,824 pieces.
    """
    text = """
    func.func @main(%q: tensor<64x16xf32>, %k: tensor<32x16xf32>, %v: tensor<32x8xf32>) -> tensor<64x8xf32> {
      %r = loop.nest (%i, %n) in [64, 8] -> tensor<64x8xf32> {
        %m = loop.reduce max (%j) in [32] -> f32 {
          %s = loop.reduce add (%d) in [16] -> f32 {
            %a = loop.load %q[%i, %d] : tensor<64x16xf32>
            %b = loop.load %k[%j, %d] : tensor<32x16xf32>
            %p = arith.mulf %a, %b : f32
            loop.yield %p : f32
          }
          loop.yield %s : f32
        }
        %l = loop.reduce add (%j) in [32] -> f32 {
          %s = loop.reduce add (%d) in [16] -> f32 {
            %a = loop.load %q[%i, %d] : tensor<64x16xf32>
            %b = loop.load %k[%j, %d] : tensor<32x16xf32>
            %p = arith.mulf %a, %b : f32
            loop.yield %p : f32
          }
          %e = arith.subf %s, %m : f32
          %c = loop.load %v[%j, %n] : tensor<32x8xf32>
          %p = arith.mulf %e, %c : f32
          loop.yield %p : f32
        }
        loop.yield %l : f32
      }
      func.return %r : tensor<64x8xf32>
    }"""
    nest = next(op for op in module(text).walk() if isinstance(op, NestOp))
    scores, operands = 64 * 32, 64 * 16
    assert sorted(loop_level.reduction_sizes(nest, Sizes()).values()) == [operands, operands, scores, scores]
    q, k, v = floats(64, 16), floats(32, 16), floats(32, 8)
    s = q @ k.T
    np.testing.assert_allclose(run(module(text), [q, k, v])[0], (s - s.max(1, keepdims=True)) @ v, rtol=1e-3, atol=1e-4)


def test_a_result_map_places_the_values():
    text = """
    func.func @main(%x: tensor<12x5xf32>) -> tensor<5x12xf32> {
      %y = loop.nest (%a, %b, %j) in [3, 4, 5] to [%j, %a * 4 + %b] -> tensor<5x12xf32> {
        %v = loop.load %x[%a * 4 + %b, %j] : tensor<12x5xf32>
        loop.yield %v : f32
      }
      func.return %y : tensor<5x12xf32>
    }"""
    x = floats(12, 5)
    np.testing.assert_array_equal(run(module(text), [x])[0], x.T)
