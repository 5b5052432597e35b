"""Symbols get their values from the shapes of `@main`'s arguments, and their ranges and relations are checked."""

from __future__ import annotations

import numpy as np
import pytest

from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError, ShapeError

ROWS = """
#n = #payload.symbol<n[1:1001]>
#m = #payload.symbol<m[2:1002]>
func.func @main(%x: tensor<?x4xf32, #payload.extents<#n, 4>>, %y: tensor<?xf32, #payload.extents<#n>>)
    -> (tensor<?xf32, #payload.extents<#m>>, tensor<4xf32>)
    attributes {deplodock.sizes = [#payload.derived<#m = affine_map<()[s0] -> (s0 + 1)>[#n]>]} {
  %0 = tensor.reduce add %x over [1] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<?xf32, #payload.extents<#n>>
  %1 = arith.addf %0, %y : tensor<?xf32, #payload.extents<#n>>
  %seven = payload.constant 7.0 : f32
  %2 = tensor.index_map %1[d0] where 0 <= d0 < #n else %seven
    : tensor<?xf32, #payload.extents<#n>> -> tensor<?xf32, #payload.extents<#m>>
  %3 = tensor.reduce add %x over [0] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<4xf32>
  %4 = payload.extent #n : tensor<4xi64>
  %5 = payload.cast %4 : tensor<4xi64> -> tensor<4xf32>
  %6 = arith.divf %3, %5 : tensor<4xf32>
  func.return %2, %6 : tensor<?xf32, #payload.extents<#m>>, tensor<4xf32>
}
"""


def rows(text: str = ROWS):
    return parse_module(make_context(), text, "rows.mlir")


@pytest.mark.parametrize("n", [1, 2, 7, 128, 1000])
def test_one_program_at_every_size(n: int):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((n, 4)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    longer, mean = run(rows(), [x, y])
    np.testing.assert_allclose(longer, np.append(x.sum(1) + y, 7), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((0, 4), (0,)), "the size n is 0, outside of 1 to 1000"),
        (((1001, 4), (1001,)), "the size n is 1001, outside of 1 to 1000"),
        (((5, 4), (6,)), "dimension 0 is 6, not 5, which n is elsewhere"),
        (((5, 3), (5,)), "dimension 1 is 3, not 4"),
        (((5,), (5,)), "a tensor of rank 1 where one of rank 2 is needed"),
    ],
)
def test_arguments_that_break_a_promise(shapes: tuple[tuple[int, ...], ...], message: str):
    with pytest.raises(ShapeError, match=message):
        run(rows(), [np.zeros(s, np.float32) for s in shapes])


def test_a_derived_size_has_a_range_too():
    with pytest.raises(ShapeError, match="the size m is 1001, outside of 2 to 900"):
        run(rows(ROWS.replace("m[2:1002]", "m[2:901]")), [np.zeros((1000, 4), np.float32), np.zeros(1000, np.float32)])


def test_a_size_that_nothing_binds():
    with pytest.raises(CompileError, match="the size m is the extent of no argument"):
        run(
            rows(ROWS.replace("deplodock.sizes", "other.sizes")),
            [np.zeros((3, 4), np.float32), np.zeros(3, np.float32)],
        )


def test_sizes_that_are_something_else():
    text = ROWS.replace("[#payload.derived<#m = affine_map<()[s0] -> (s0 + 1)>[#n]>]", "5 : i64")
    with pytest.raises(ShapeError, match="expected a list of #payload.derived as deplodock.sizes"):
        run(rows(text), [np.zeros((3, 4), np.float32), np.zeros(3, np.float32)])
