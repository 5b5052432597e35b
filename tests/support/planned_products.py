"""Nests of matmuls, for tests of the planner."""

from __future__ import annotations

from deplodock.dialects import loop, make_context
from deplodock.dialects.support.parsing import parse_module


def product(m: int, n: int, k: int, element: str, result: str | None = None) -> loop.NestOp:
    """Returns the nest of a matmul `y[i, j] = sum over k of x[i, k] * w[j, k]`, accumulated in f32.

    Args:
        m, n, k: sizes.
        element: element type of the operands, `bf16` or `f32`.
        result: element type of the result, by default `element`.
    """
    result = result or element
    widen = ["%a = payload.cast %p : bf16 -> f32", "%b = payload.cast %q : bf16 -> f32"] if element == "bf16" else []
    a, b = ("%a", "%b") if widen else ("%p", "%q")
    narrow = "%o = payload.cast %s : f32 -> bf16" if result == "bf16" else ""
    text = f"""
    func.func @main(%x: tensor<{m}x{k}x{element}>, %w: tensor<{n}x{k}x{element}>) -> tensor<{m}x{n}x{result}> {{
      %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}x{result}> {{
        %s = loop.reduce add (%k) in [{k}] -> f32 {{
          %p = loop.load %x[%i, %k] : tensor<{m}x{k}x{element}>
          %q = loop.load %w[%j, %k] : tensor<{n}x{k}x{element}>
          {" ".join(widen)}
          %m = arith.mulf {a}, {b} : f32
          loop.yield %m : f32
        }}
        {narrow}
        loop.yield {"%o" if narrow else "%s"} : {result}
      }}
      func.return %y : tensor<{m}x{n}x{result}>
    }}"""
    return first_nest(text)


def first_nest(text: str) -> loop.NestOp:
    """Parses a module. Returns its first nest."""
    module = parse_module(make_context(), text, "test.mlir")
    nest = next(op for op in module.walk() if isinstance(op, loop.NestOp))
    PARSED_MODULES.append(module)
    return nest


PARSED_MODULES: list[object] = []
"""Modules of returned nests, kept alive because a nest does not own its module."""
