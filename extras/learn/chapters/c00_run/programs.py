"""Programs of chapter 0 at the torch level, as capture writes them, for any shape."""

from __future__ import annotations


def rms_norm(rows: int, columns: int) -> str:
    """Returns `nn.RMSNorm(columns)(torch.randn(rows, columns))`."""
    x, r, w = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xf32>", f"tensor<{columns}xf32>"
    return f"""
func.func @main(%weight: {w}, %x: {x}) -> {x} {{
  %0 = torch.pow.Tensor_Scalar(self = %x, exponent = 2) : ({x}) -> {x}
  %1 = torch.mean.dim(self = %0, dim = [1], keepdim = true) : ({x}) -> {r}
  %2 = torch.add.Scalar(self = %1, other = 1.1920928955078125e-07, alpha = 1) : ({r}) -> {r}
  %3 = torch.rsqrt(self = %2) : ({r}) -> {r}
  %4 = torch.mul.Tensor(self = %x, other = %3) : ({x}, {r}) -> {x}
  %5 = torch.mul.Tensor(self = %4, other = %weight) : ({x}, {w}) -> {x}
  func.return %5 : {x}
}}"""


def softmax(rows: int, columns: int) -> str:
    """Returns `torch.softmax(torch.randn(rows, columns), -1)`."""
    x = f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%x: {x}) -> {x} {{
  %0 = torch.softmax.int(self = %x, dim = -1) : ({x}) -> {x}
  func.return %0 : {x}
}}"""


def matmul(m: int, n: int, k: int) -> str:
    """Returns `torch.matmul(torch.randn(m, k), torch.randn(k, n))`.

    Args:
        m: rows of the result.
        n: columns of the result.
        k: length of the sums.
    """
    a, b, c = (f"tensor<{rows}x{columns}xf32>" for rows, columns in ((m, k), (k, n), (m, n)))
    return f"""
func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %0 = torch.matmul(self = %a, other = %b) : ({a}, {b}) -> {c}
  func.return %0 : {c}
}}"""
