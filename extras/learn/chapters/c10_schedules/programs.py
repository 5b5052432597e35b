"""Programs of the chapter: one nest at the loop level, with its target."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from .....target.attribute import get_target, set_target
from .....target.model import Target
from ...judges import parsed


def matmul(rows: int, columns: int, depth: int, element: str = "bf16", target: Target | None = None) -> ModuleOp:
    """Returns a matmul that accumulates in f32.

    Args:
        rows: rows of the result.
        columns: columns of the result.
        depth: extent of the reduction.
        element: type of the operands and of the result.
        target: the target; sm_90a by default.
    """
    a, b, c = f"{rows}x{depth}x{element}", f"{depth}x{columns}x{element}", f"{rows}x{columns}x{element}"
    wide = element == "f32"
    module = parsed(
        f"""
func.func @main(%a: tensor<{a}>, %b: tensor<{b}>) -> tensor<{c}> {{
  %0 = loop.nest (%i, %j) in [{rows}, {columns}] -> tensor<{c}> {{
    %1 = loop.reduce add (%k) in [{depth}] -> f32 {{
      %2 = loop.load %a[%i, %k] : tensor<{a}>
      %4 = loop.load %b[%k, %j] : tensor<{b}>
      {"" if wide else f"%3 = payload.cast %2 : {element} -> f32"}
      {"" if wide else f"%5 = payload.cast %4 : {element} -> f32"}
      %6 = arith.mulf {"%2, %4" if wide else "%3, %5"} : f32
      loop.yield %6 : f32
    }}
    {"" if wide else f"%7 = payload.cast %1 : f32 -> {element}"}
    loop.yield {"%1" if wide else "%7"} : {element}
  }}
  func.return %0 : tensor<{c}>
}}"""
    )
    return on_target(module, target)


def sums_of_squares(rows: int, columns: int) -> ModuleOp:
    """Returns the sums of the squares of the rows of an f32 tensor, for sm_90a."""
    x = f"{rows}x{columns}xf32"
    module = parsed(
        f"""
func.func @main(%x: tensor<{x}>) -> tensor<{rows}xf32> {{
  %0 = loop.nest (%i) in [{rows}] -> tensor<{rows}xf32> {{
    %1 = loop.reduce add (%k) in [{columns}] -> f32 {{
      %2 = loop.load %x[%i, %k] : tensor<{x}>
      %3 = arith.mulf %2, %2 : f32
      loop.yield %3 : f32
    }}
    loop.yield %1 : f32
  }}
  func.return %0 : tensor<{rows}xf32>
}}"""
    )
    return on_target(module, None)


def on_target(module: ModuleOp, target: Target | None) -> ModuleOp:
    """Writes the target, sm_90a by default, into a program and returns it."""
    set_target(module, target or get_target("sm_90a"))
    return module
