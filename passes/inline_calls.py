"""The host program becomes one list of launches."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.locations import location_text
from ..errors import CompileError


@dataclass(frozen=True)
class InlineCallsPass(ModulePass):
    """Replace every call of a function by what the function does, and remove functions that nobody calls any more.

    What: the ops of the callee are copied in place of the call, with the operands for the arguments and what it
    returns for the results. Works at every level; functions called from inside are inlined first. Recursion is
    refused.
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

    name = "inline-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = {f.sym_name.data: f for f in op.ops if isinstance(f, func.FuncOp)}
        done: set[str] = set()
        for name in functions:
            _inline_into(name, functions, done, ())
        for name, function in functions.items():
            if name != "main" and function.sym_visibility is not None and function.sym_visibility.data == "private":
                function.detach()
                function.erase()


def _inline_into(name: str, functions: dict[str, func.FuncOp], done: set[str], within: tuple[str, ...]) -> None:
    """Inline all calls in the function `name`."""
    if name in done:
        return
    for call in [op for op in functions[name].walk() if isinstance(op, func.CallOp)]:
        callee = call.callee.string_value()
        if callee not in functions or functions[callee].is_declaration:
            raise CompileError(f"calls @{callee}, which is not there", location=location_text(call))
        if callee in (*within, name):
            raise CompileError(f"@{callee} calls itself", operator=call.name, location=location_text(call))
        _inline_into(callee, functions, done, (*within, name))
        _replace(call, functions[callee])
    done.add(name)


def _replace(call: func.CallOp, callee: func.FuncOp) -> None:
    """Put the body of `callee` in place of `call`."""
    values: dict[SSAValue, SSAValue] = dict(zip(callee.body.block.args, call.operands, strict=True))
    body: list[Operation] = list(callee.body.block.ops)
    block = call.parent
    assert block is not None
    for op in body[:-1]:
        block.insert_op_before(op.clone(values), call)
    for old, new in zip(call.results, body[-1].operands, strict=True):
        old.replace_all_uses_with(values.get(new, new))
    call.detach()
    call.erase()
