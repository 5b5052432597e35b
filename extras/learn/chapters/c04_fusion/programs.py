"""Programs of the chapter, with the names that `deplodock compile --ir tensor` prints."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from .....target.attribute import get_target, set_target
from ...judges import parsed


def normalised_matmul(rows: int, depth: int, columns: int) -> ModuleOp:
    """Returns `gelu(nn.RMSNorm(depth)(torch.randn(rows, depth)) @ torch.randn(depth, columns))` for sm_90a.

    Args:
        rows: rows of the result.
        depth: length of a normalised row.
        columns: columns of the result.
    """
    r, one = f"tensor<{rows}xf32>", f"tensor<{rows}x1xf32>"
    x, w, b = f"tensor<{rows}x{depth}xf32>", f"tensor<{depth}xf32>", f"tensor<{depth}x{columns}xf32>"
    y, all = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x{columns}x{depth}xf32>"
    return _for_sm_90a(f"""
func.func @main(%rmsnorm_weight: {w}, %x: {x}, %x1: {b}) -> {y} {{
  %0 = arith.mulf %x, %x : {x}
  %1 = tensor.reduce add %0 over [1] : {x} -> {r}
  %2 = payload.constant {float(depth)} : {r}
  %3 = arith.divf %1, %2 : {r}
  %4 = tensor.index_map %3[d0] : {r} -> {one}
  %5 = payload.constant 1.1920929e-07 : {one}
  %6 = arith.addf %4, %5 : {one}
  %7 = math.rsqrt %6 : {one}
  %8 = tensor.index_map %7[d0, 0] : {one} -> {x}
  %9 = arith.mulf %x, %8 : {x}
  %10 = tensor.index_map %rmsnorm_weight[d1] : {w} -> {x}
  %11 = arith.mulf %9, %10 : {x}
  %12 = tensor.index_map %11[d0, d2] : {x} -> {all}
  %13 = tensor.index_map %x1[d2, d1] : {b} -> {all}
  %14 = arith.mulf %12, %13 : {all}
  %15 = tensor.reduce add %14 over [2] : {all} -> {y}
  %16 = payload.constant 0.5 : {y}
  %17 = arith.mulf %15, %16 : {y}
  %18 = payload.constant 0.707106769 : {y}
  %19 = arith.mulf %15, %18 : {y}
  %20 = math.erf %19 : {y}
  %21 = payload.constant 1.0 : {y}
  %22 = arith.addf %20, %21 : {y}
  %23 = arith.mulf %17, %22 : {y}
  func.return %23 : {y}
}}""")


def ratios(rows: int) -> ModuleOp:
    """Returns `(lambda s: torch.exp(s[:, None] - s))(torch.randn(rows, rows).exp().sum(1).log())` for sm_90a."""
    x, r = f"tensor<{rows}x{rows}xf32>", f"tensor<{rows}xf32>"
    return _for_sm_90a(f"""
func.func @main(%x: {x}) -> {x} {{
  %0 = math.exp %x : {x}
  %1 = tensor.reduce add %0 over [1] : {x} -> {r}
  %2 = math.log %1 : {r}
  %3 = tensor.index_map %2[d0] : {r} -> tensor<{rows}x1xf32>
  %4 = tensor.index_map %3[d0, 0] : tensor<{rows}x1xf32> -> {x}
  %5 = tensor.index_map %2[d1] : {r} -> {x}
  %6 = arith.subf %4, %5 : {x}
  %7 = math.exp %6 : {x}
  func.return %7 : {x}
}}""")


def squared_distances(rows: int, depth: int) -> ModuleOp:
    """Returns the squared distances of all pairs of rows, `s[:, None] + s - 2 * (x @ x.T)`, for sm_90a.

    `s` is `(x * x).sum(1)`.
    """
    x, r, y = f"tensor<{rows}x{depth}xf32>", f"tensor<{rows}xf32>", f"tensor<{rows}x{rows}xf32>"
    column, t, all = f"tensor<{rows}x1xf32>", f"tensor<{depth}x{rows}xf32>", f"tensor<{rows}x{rows}x{depth}xf32>"
    return _for_sm_90a(f"""
func.func @main(%x: {x}) -> {y} {{
  %0 = arith.mulf %x, %x : {x}
  %1 = tensor.reduce add %0 over [1] : {x} -> {r}
  %2 = tensor.index_map %1[d0] : {r} -> {column}
  %3 = tensor.index_map %2[d0, 0] : {column} -> {y}
  %4 = tensor.index_map %1[d1] : {r} -> {y}
  %5 = arith.addf %3, %4 : {y}
  %6 = tensor.index_map %x[d1, d0] : {x} -> {t}
  %7 = tensor.index_map %x[d0, d2] : {x} -> {all}
  %8 = tensor.index_map %6[d2, d1] : {t} -> {all}
  %9 = arith.mulf %7, %8 : {all}
  %10 = tensor.reduce add %9 over [2] : {all} -> {y}
  %11 = payload.constant 2.0 : {y}
  %12 = arith.mulf %10, %11 : {y}
  %13 = arith.subf %5, %12 : {y}
  func.return %13 : {y}
}}""")


def _for_sm_90a(text: str) -> ModuleOp:
    module = parsed(text)
    set_target(module, get_target("sm_90a"))
    return module
