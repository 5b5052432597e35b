"""Nests whose reductions have a mask, such as the causal mask of attention.

The tests check that the compiler skips chunks in which the mask hides all elements.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp

from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

ROWS, LENGTH = 37, 45


PROGRAM = """
func.func @main(%x: tensor<37x45xf32>) -> tensor<37xf32> {{
  %y = loop.nest (%i) in [37] -> tensor<37xf32>
      attributes {{schedule = #tile.schedule<block = [{block}], chunk = [{chunk}]>}} {{
    %neutral = payload.constant {neutral} : f32
    %n = payload.cast %i : index -> i64
    %s = loop.reduce {kind} (%k) in [45] -> f32 {{
      %m = payload.cast %k : index -> i64
      {mask}
      %a = loop.load %x[%i, %k] : tensor<37x45xf32>
      {term}
      loop.yield %t : f32
    }}
    loop.yield %s : f32
  }}
  func.return %y : tensor<37xf32>
}}
"""


KEEP_IF_TRUE = "%t = payload.select %c, %a, %neutral : f32"


KEEP_IF_FALSE = "%t = payload.select %c, %neutral, %a : f32"


FACTOR = "%f = payload.cast %c : i1 -> f32\n%t = arith.mulf %a, %f : f32"


def offset(by: int, name: str = "e") -> str:
    return f"%o{name} = payload.constant {by} : i64\n%{name} = arith.addi %n, %o{name} : i64\n"


WINDOW = (
    "%c1 = payload.cmp le %m, %n : i64\n"
    + offset(-7)
    + "%c2 = payload.cmp gt %m, %e : i64\n%c = arith.andi %c1, %c2 : i1"
)


MASKS: dict[str, tuple[str, str, Callable[[int, int], bool]]] = {
    "causal": ("%c = payload.cmp le %m, %n : i64", KEEP_IF_TRUE, lambda i, k: k <= i),
    "before": ("%c = payload.cmp lt %m, %n : i64", KEEP_IF_TRUE, lambda i, k: k < i),
    "the other way round": ("%c = payload.cmp ge %n, %m : i64", KEEP_IF_TRUE, lambda i, k: k <= i),
    "what is later is left out": ("%c = payload.cmp gt %m, %n : i64", KEEP_IF_FALSE, lambda i, k: k <= i),
    "from here on": ("%c = payload.cmp ge %m, %n : i64", KEEP_IF_TRUE, lambda i, k: k >= i),
    "itself": ("%c = payload.cmp eq %m, %n : i64", KEEP_IF_TRUE, lambda i, k: k == i),
    "later keys": (offset(9) + "%c = payload.cmp le %m, %e : i64", KEEP_IF_TRUE, lambda i, k: k <= i + 9),
    "earlier keys": (offset(-9) + "%c = payload.cmp le %m, %e : i64", KEEP_IF_TRUE, lambda i, k: k <= i - 9),
    "a window": (WINDOW, KEEP_IF_TRUE, lambda i, k: i - 7 < k <= i),
    "a window as factor": (WINDOW, FACTOR, lambda i, k: i - 7 < k <= i),
    "two thirds": (
        "%two = payload.constant 2 : i64\n%three = payload.constant 3 : i64\n%u = arith.muli %n, %two : i64\n"
        "%v = arith.muli %three, %m : i64\n%c = payload.cmp lt %v, %u : i64",
        KEEP_IF_TRUE,
        lambda i, k: 3 * k < 2 * i,
    ),
    "backwards": (
        "%l = payload.constant 44 : i64\n%b = arith.subi %l, %n : i64\n%c = payload.cmp ge %m, %b : i64",
        KEEP_IF_TRUE,
        lambda i, k: k >= 44 - i,
    ),
    "a border": (
        "",
        "%t = loop.load %x[%i, %k - %i] where 0 <= %k - %i < 20 else %neutral : tensor<37x45xf32>",
        lambda i, k: 0 <= k - i < 20,
    ),
    "nothing is masked": ("", "%t = arith.negf %a : f32", lambda i, k: True),
    "a mask in the data": (
        "%z = payload.constant 0.0 : f32\n%q = loop.load %x[%i, %k]"
        " : tensor<37x45xf32>\n%c = payload.cmp gt %q, %z : f32",
        KEEP_IF_TRUE,
        lambda i, k: True,
    ),
    "either of two": (
        "%c1 = payload.cmp le %m, %n : i64\n%five = payload.constant 5 : i64\n%c2 = payload.cmp lt %m, %five : i64\n"
        "%c = arith.ori %c1, %c2 : i1",
        KEEP_IF_TRUE,
        lambda i, k: True,  # No chunks are skipped for a union of masks.
    ),
}


def program(name: str, block: int, chunk: int, kind: str = "add") -> ModuleOp:
    mask, term, _ = MASKS[name]
    neutral = {"add": "0.0", "max": "0xff800000", "mul": "1.0"}[kind]
    text = PROGRAM.format(mask=mask, term=term, block=block, chunk=chunk, kind=kind, neutral=neutral)
    return parse_module(make_context(), text, f"{name}.mlir")


def lowered(module: ModuleOp, pipeline: str = "convert-loop-to-tile,cse,dce") -> ModuleOp:
    copy = module.clone()
    run_passes(make_context(), copy, parse_passes(pipeline))
    return copy


TRIANGULAR = """
func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x20xf32>) -> tensor<64x20xf32> {
  %y = loop.nest (%i, %j) in [64, 20] -> tensor<64x20xf32>
      attributes {schedule = #tile.schedule<
        block = [16, 16], chunk = [16], thread = [2, 2], warps = 2, copy = cp_async, stages = STAGES>} {
    %zero = payload.constant 0.0 : f32
    %n = payload.cast %i : index -> i64
    %far = payload.constant 20 : i64
    %last = arith.subi %n, %far : i64
    %s = loop.reduce add (%k) in [96] -> f32 {
      %m = payload.cast %k : index -> i64
      %c = payload.cmp le %m, %last : i64
      %a = loop.load %x[%i, %k] : tensor<64x96xf32>
      %b = loop.load %w[%k, %j] : tensor<96x20xf32>
      %t = payload.select %c, %a, %zero : f32
      %p = arith.mulf %t, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64x20xf32>
}
"""
