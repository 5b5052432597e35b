"""Printed IR with aliases for types and schedules, wrapped lines, and locations after the module."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import FusedLoc, ModuleOp, NameLoc

import deplodock
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.passes.rewriting import eliminate_common_subexpressions


def read(text: str) -> ModuleOp:
    return parse_module(make_context(), text, "test")


@pytest.mark.parametrize("level", ["torch", "tensor", "loop", "tile", "kernel"])
def test_text_for_people_is_the_same_program(level: str) -> None:
    """The text parses to the same program with the same locations, and no line is too wide."""
    args = [torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(64), torch.zeros(64, 64, dtype=torch.bfloat16)]
    compilation = deplodock.compile(lambda x, b, w: torch.relu((x + b) @ w.float()), args, target="sm_90a").compilation
    module = compilation.at(level)
    for width in (60, 120):
        text = print_module(module, debuginfo=True, width=width)
        assert max(map(len, text.splitlines())) <= width + (10 if width == 60 else 0)
        assert print_module(read(text), debuginfo=True) == print_module(module, debuginfo=True)
    names = {op.location.desc.data for op in module.walk() if isinstance(op.location, NameLoc)}
    assert "torch.relu#3" in names, names


def test_a_string_is_not_broken() -> None:
    text = f'builtin.module attributes {{a = "{"word " * 40}", b = "x \\" y {"z " * 60}"}} {{\n}}\n'
    module = read(text)
    assert print_module(read(print_module(module, width=40))) == print_module(module)


def test_an_op_that_replaces_another_has_both_locations() -> None:
    """CSE fuses the locations of merged operations. A constant keeps one location, as its users are unrelated."""
    module = read("""
    func.func @main(%x: f32) -> f32 {
      %a = math.exp %x : f32 loc("a.py":1:0)
      %b = math.exp %x : f32 loc("mul"("a.py":2:0))
      %c = math.exp %x : f32 loc("a.py":1:0)
      %d = arith.addf %a, %b : f32 loc("a.py":3:0)
      %0 = payload.constant 1.0 : f32 loc("a.py":4:0)
      %1 = payload.constant 1.0 : f32 loc("a.py":5:0)
      %e = arith.addf %d, %c : f32 loc("a.py":6:0)
      %f = arith.addf %0, %1 : f32 loc("a.py":7:0)
      %g = arith.addf %e, %f : f32 loc("a.py":8:0)
      func.return %g : f32
    }""")
    eliminate_common_subexpressions(module.body)
    text = print_module(module, debuginfo=True)
    assert "math.exp %x : f32 loc(#loc3)\n" in text
    assert '#loc = loc("a.py":1:0)\n#loc1 = loc("a.py":2:0)\n#loc2 = loc("mul"(#loc1))\n' in text
    assert "#loc3 = loc(fused[#loc, #loc2])\n" in text
    assert text.count("fused[") == 1
    again = read(text)
    assert print_module(again, debuginfo=True) == text
    assert any(isinstance(op.location, FusedLoc) for op in again.walk())
