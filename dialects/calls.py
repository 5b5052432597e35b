"""Putting the bodies of functions in place of their calls, at any level."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ..errors import CompileError
from .locations import location_text


def inline_calls(module: ModuleOp) -> ModuleOp:
    """Replace every call in `module` by what the function does, remove private functions, and return the module.

    Raises CompileError for a function that has no body or that calls itself.
    """
    functions = {f.sym_name.data: f for f in module.ops if isinstance(f, func.FuncOp)}
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, done, ())
    for name, function in functions.items():
        if name != "main" and function.sym_visibility is not None and function.sym_visibility.data == "private":
            function.detach()
            function.erase()
    return module


def without_calls(module: ModuleOp) -> ModuleOp:
    """`module` itself if it has no calls, else a copy of it without."""
    has_calls = any(isinstance(op, func.CallOp) for op in module.walk())
    return inline_calls(module.clone()) if has_calls else module


def _inline_into(name: str, functions: dict[str, func.FuncOp], done: set[str], within: tuple[str, ...]) -> None:
    """Inline all calls in the function `name`."""
    if name in done:
        return
    for call in [op for op in functions[name].walk() if isinstance(op, func.CallOp)]:
        callee = call.callee.string_value()
        if callee not in functions or functions[callee].is_declaration:
            raise CompileError(f"calls @{callee}, which has no body", location=location_text(call))
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
