"""`host-inline-calls`: inlines function calls, so that the host program is one list of launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects.support.calls import inline_calls


class InlineCallsPass(ModulePass):
    """Inlines every function call, and removes functions without callers.

    ```mlir
    func.func private @layer(%x: memref<4xf32>, %y: memref<4xf32>) { kernel.launch @k0(%x, %y) : ... func.return }
    func.func @main(%a: memref<4xf32>, %b: memref<4xf32>) { func.call @layer(%a, %b) : ... }
    ```
    becomes
    ```mlir
    func.func @main(%a: memref<4xf32>, %b: memref<4xf32>) { kernel.launch @k0(%a, %b) : ... }
    ```

    The pass works at every level. Recursion is refused, and calls that PyTorch computes (`torch.eager`) stay.

    **Rationale**: executors need one order of launches, in which buffers can share memory.

    **Pipeline position**: after all kernels are compiled, so a layer that is called several times is compiled once and
    only its launches are copied.
    """

    name = "host-inline-calls"
    needs: ClassVar[Mapping[str, int]] = {"func.call|func.func": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline_calls(op)
