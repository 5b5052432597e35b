"""The text of accesses (loads and stores): parsing and printing keep their meaning and the order of operands."""

from __future__ import annotations

import random

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir.affine import AffineExpr

import deplodock
from deplodock.dialects import loop, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.frontend.compilation import Compilation
from deplodock.passes.records import plan_key

NEST = """
func.func @main(%x: tensor<64x64xf32>) -> tensor<4x8xf32> {{
  %y = loop.nest (%i, %j) in [4, 8] -> tensor<4x8xf32> {{
    %r = loop.reduce add (%k) in [16] -> f32 {{
      %s = payload.constant 2 : index
      %zero = payload.constant 0.0 : f32
      %a = loop.load %x[{0}, {1}] where 0 <= {0} < 64 and 0 <= symbol(%s) < 64 else %zero : tensor<64x64xf32>
      loop.yield %a : f32
    }}
    loop.yield %r : f32
  }}
  func.return %y : tensor<4x8xf32>
}}
"""


def read(text: str) -> ModuleOp:
    return parse_module(make_context(), text, "test")


def expression(random: random.Random, depth: int) -> str:
    """Returns the text of a random affine expression, with unnecessary parentheses."""
    if depth == 0:
        return random.choice(["%i", "%j", "%k", "symbol(%s)", "3", "-7"])
    inner = expression(random, depth - 1)
    match random.randrange(5):
        case 0:
            return f"({inner}) * {random.randint(-4, 4)}"
        case 1:
            return f"({inner}) {random.choice(['mod', 'floordiv', 'ceildiv'])} {random.randint(1, 9)}"
        case 2:
            return f"-({inner})"
        case _:
            return f"({inner}) {random.choice('+-')} ({expression(random, depth - 1)})"


def value(op: loop.LoadOp, result: AffineExpr, values: dict[str, int]) -> int:
    """Returns a coordinate of a load for the values of its indices and symbols, given by name."""
    dims, symbols = ([values[v.name_hint or ""] for v in group] for group in (op.indices, op.symbols))
    return result.eval(dims, symbols)


@pytest.mark.parametrize("seed", range(40))
def test_an_expression_means_what_its_text_says(seed: int) -> None:
    """Python evaluates the text to the value of the parsed expression. Printed text is a fixed point."""
    rng = random.Random(seed)
    written = [expression(rng, 4) for _ in range(2)]
    module = read(NEST.format(*written))
    text = print_module(module)
    assert print_module(read(text)) == text
    for m in (module, read(text)):
        op = next(o for o in m.walk() if isinstance(o, loop.LoadOp))
        names = [v.name_hint for v in op.indices]
        assert names == sorted(names, key=str)
        values = {name: rng.randint(0, 60) for name in "ijks"}
        for expr, result in zip(written, op.map.data.results, strict=True):
            python = expr.replace("%", "").replace("symbol", "").replace("mod", "%").replace("floordiv", "//")
            if "ceildiv" not in python:
                assert value(op, result, values) == eval(python, {}, values), expr


CASES = {
    "transposed": (lambda x, w: torch.relu(x @ w), ((16, 24), (24, 8))),
    "flipped": (lambda x: torch.rot90(x), ((3, 4),)),
    "padded": (lambda x: torch.nn.functional.max_pool2d(x, 2, ceil_mode=True), ((1, 2, 5, 7),)),
    "gathered": (lambda x: x[torch.tensor([2, 0, 1])] + x.cumsum(0), ((3, 8),)),
    "scattered": (lambda x: torch.zeros(9).index_add(0, torch.tensor([1, 1, 4]), x), ((3,),)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", ["tensor", "loop", "tile", "kernel"])
def test_a_level_that_is_read_back_gives_the_same_kernels(name: str, level: str) -> None:
    """Parsing a printed level gives the same text, the same keys of nests in records, and the same CUDA."""
    function, shapes = CASES[name]
    compilation = deplodock.compile(function, [torch.zeros(s) for s in shapes], target="sm_90a").compilation
    module = compilation.at(level)
    text = print_module(module, debuginfo=True)
    again = read(text)
    assert print_module(again, debuginfo=True) == text
    keys = [[plan_key(op) for op in m.walk() if isinstance(op, loop.NestOp)] for m in (module, again)]
    assert keys[0] == keys[1]
    assert Compilation(again, "sm_90a", level=level).cuda == compilation.cuda
