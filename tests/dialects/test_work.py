"""The least work of a nest: each operand is loaded once, and each operation runs once per distinct value."""

from __future__ import annotations

from deplodock.dialects import make_context
from deplodock.dialects.loop.work import Work, count_work
from deplodock.dialects.support.parsing import parse_module

PRODUCT = """
func.func @main(%x: tensor<16x64xf32>, %w: tensor<64x32xf32>) -> tensor<16x32xf32> {
  %y = loop.nest (%i, %j) in [16, 32] -> tensor<16x32xf32> {
    %a = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<16x64xf32>
      %1 = loop.load %w[%k, %j] : tensor<64x32xf32>
      %e = math.exp %0 : f32
      %2 = arith.mulf %e, %1 : f32
      loop.yield %2 : f32
    }
    %b = arith.negf %a : f32
    loop.yield %b : f32
  }
  func.return %y : tensor<16x32xf32>
}
"""

ROWS = """
func.func @main(%x: tensor<8x37xbf16>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32> {
    %m = loop.reduce max (%k) in [37] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x37xbf16>
      %1 = payload.cast %0 : bf16 -> f32
      %2 = arith.mulf %1, %1 : f32
      loop.yield %2 : f32
    }
    %s = loop.reduce add (%k) in [37] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x37xbf16>
      %1 = payload.cast %0 : bf16 -> f32
      %2 = arith.mulf %1, %1 : f32
      %3 = arith.subf %2, %m : f32
      loop.yield %3 : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<8xf32>
}
"""

FEW_ROWS = """
func.func @main(%t: tensor<1000x64xf32>, %i: tensor<5xi64>) -> tensor<5x8xf32> {
  %y = loop.nest (%r, %c) in [5, 8] -> tensor<5x8xf32> {
    %0 = loop.load %i[%r] : tensor<5xi64>
    %1 = arith.index_cast %0 : i64 to index
    %2 = payload.constant 0.0 : f32
    %3 = loop.load %t[symbol(%1), %c]
         where 0 <= symbol(%1) < 1000 else %2 : tensor<1000x64xf32>
    loop.yield %3 : f32
  }
  func.return %y : tensor<5x8xf32>
}
"""


def work(text: str) -> Work:
    (found,) = count_work(parse_module(make_context(), text, "test.mlir"))
    return found


def test_a_value_is_counted_for_the_indices_it_depends_on() -> None:
    product, exponentials, negations = 2 * 16 * 32 * 64, 16 * 64, 16 * 32
    assert work(PRODUCT) == Work(4 * (16 * 64 + 64 * 32), 4 * 16 * 32, product + exponentials + negations)


def test_what_two_reductions_share_is_counted_once() -> None:
    squares, maxima, differences, sums = (8 * 37,) * 4
    assert work(ROWS) == Work(2 * 8 * 37, 4 * 8, squares + maxima + differences + sums)


def test_of_a_table_what_is_read_counts() -> None:
    assert work(FEW_ROWS) == Work(8 * 5 + 4 * 5 * 8, 4 * 5 * 8, 0)
