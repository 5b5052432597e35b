"""A module is verified after each pass that changed it, for any kind of change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, f64
from xdsl.passes import ModulePass

from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes import pass_manager
from deplodock.passes.pass_manager import InvalidIRError, run_passes

PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %x : tensor<4xf32>
  %1 = arith.mulf %0, %x : tensor<4xf32>
  func.return %1 : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Edit(ModulePass):
    name = "edit"
    edit: Callable[[Any, Any, Any, Any], object]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        (function,) = op.body.block.ops
        self.edit(function, *function.regions[0].block.ops)


NOTHING = Edit(lambda main, add, mul, end: None)

EDITS: dict[str, Callable[[Any, Any, Any, Any], object]] = {
    "an operand": lambda main, add, mul, end: add.operands.__setitem__(0, mul.results[0]),
    "the type of a result": lambda main, add, mul, end: setattr(add.results[0], "_type", f64),
    "the type of an argument": lambda main, add, mul, end: setattr(main.body.block.args[0], "_type", f64),
    "a property": lambda main, add, mul, end: add.properties.__setitem__("fastmath", StringAttr("any")),
    "the order": lambda main, add, mul, end: (add.detach(), main.body.block.insert_op_after(add, mul)),
    "an operation less": lambda main, add, mul, end: end.detach(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_is_verified(edit: str) -> None:
    module = parse_module(make_context(), PROGRAM, "test.mlir")
    with pytest.raises(InvalidIRError):
        run_passes(make_context(), module, [NOTHING, NOTHING, Edit(EDITS[edit])])


def test_what_did_not_change_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[ModuleOp] = []
    monkeypatch.setattr(pass_manager, "verify_module", verified.append)
    module = parse_module(make_context(), PROGRAM, "test.mlir")
    swap = Edit(lambda main, add, mul, end: mul.operands.__setitem__(0, mul.operands[1]))
    run_passes(make_context(), module, [NOTHING, NOTHING, swap, NOTHING, NOTHING])
    assert len(verified) == 2
