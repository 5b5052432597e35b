"""The host program becomes one list of launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects.support.calls import inline_calls


class InlineCallsPass(ModulePass):
    """Replace every call of a function by what the function does, and remove functions that nobody calls any more.

    What: the ops of the callee are copied in place of the call, with the operands for the arguments and what it
    returns for the results. Works at every level; functions called from inside are inlined first. Recursion is
    refused; calls of what PyTorch computes (`torch.eager`) stay.
    Why: whatever runs a program wants one order of launches, in which scratch memory can be shared.
    Why here: at the end of the host side of the kernel level. By then a layer has been compiled once, and copying a
    handful of launches costs nothing.

    ```mlir
    func.func private @layer(%x: memref<4xf32>, %y: memref<4xf32>) { kernel.launch @k0(%x, %y) : ... func.return }
    func.func @main(%a: memref<4xf32>, %b: memref<4xf32>) { func.call @layer(%a, %b) : ... }
    ```
    becomes
    ```mlir
    func.func @main(%a: memref<4xf32>, %b: memref<4xf32>) { kernel.launch @k0(%a, %b) : ... }
    ```
    """

    name = "host-inline-calls"
    needs: ClassVar[Mapping[str, int]] = {"func.call|func.func": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline_calls(op)
