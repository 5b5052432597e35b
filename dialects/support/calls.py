"""Functions of a module: the main function, inlining of calls, and attributes that describe arguments.

An *eager function* is a declaration with the attribute `torch.eager`, the name of the operator that PyTorch computes
for it. Calls of eager functions stay at every level, in their order: they may have effects, such as a collective. At
the kernel level, results are trailing arguments; `torch.eager_results` is their number.

Attributes of functions, as flat lists of argument numbers:

| attribute | contents |
|---|---|
| `updates` | pairs (result, argument) of `@main`: the result replaces the argument after the program |
| `in_place` | pairs (argument for a result, argument whose memory it uses), at the kernel level: they are one buffer |
| `constants` | arguments that are equal in every call, such as weights |

At the kernel level, where results are arguments, `updates` has pairs of arguments.

The attribute `constant` marks a launch that computes from constants only, so its results are equal in every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...errors import CompileError, ExecutionError
from ..host import BindSizeOp
from ..tensor import ScanOp, ScatterOp
from .locations import location_text, refused

Call: TypeAlias = func.CallOp | ScanOp | ScatterOp | BindSizeOp
"""Operations that behave like calls on the host: operands are in memory before them, results after them."""

EAGER = "torch.eager"
"""Attribute of a declared function that PyTorch computes: the operator, such as `aten.linalg_inv_ex`."""

EAGER_ARGUMENTS = "torch.eager_arguments"
"""Attribute of an eager function: text of all arguments of the operator, if some are no tensors: `%0, 'sum', '0'`."""

EAGER_RESULTS = "torch.eager_results"
"""Attribute of an eager function at the kernel level: the number of trailing buffers that it writes."""


def main_function(module: ModuleOp) -> FuncOp:
    """Returns the function `@main`, or the only function with a body that no other function calls.

    Raises:
        ExecutionError: there is no such function.
    """
    functions = [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]
    called = {c.callee.string_value() for f in functions for c in f.walk() if isinstance(c, func.CallOp)}
    for op in functions:
        if op.sym_name.data == "main":
            return op
    uncalled = [op for op in functions if op.sym_name.data not in called]
    if len(uncalled) == 1:
        return uncalled[0]
    names = ", ".join(f"@{op.sym_name.data}" for op in uncalled) or "none"
    raise ExecutionError(f"expected a function @main, or one function that no other calls, but got {names}")


def is_eager(function: func.FuncOp) -> bool:
    """Returns true if PyTorch computes `function`."""
    return function.is_declaration and isinstance(function.attributes.get(EAGER), StringAttr)


def eager_results(function: func.FuncOp) -> int:
    """Returns the number of trailing buffers that an eager function writes. Raises CompileError if it is missing."""
    count = function.attributes.get(EAGER_RESULTS)
    if not isinstance(count, IntegerAttr) or not 0 <= count.value.data <= len(function.function_type.inputs):
        reason = f"expected the number of results as {EAGER_RESULTS} of @{function.sym_name.data}, but got {count}"
        raise CompileError(reason, location=location_text(function))
    return count.value.data


def inline_calls(module: ModuleOp) -> ModuleOp:
    """Inlines every call in `module`, removes private functions, and returns the module.

    Step functions of scans and calls of eager functions stay. Raises CompileError for a call of another function
    without a body, and for recursion.
    """
    functions = {f.sym_name.data: f for f in module.ops if isinstance(f, func.FuncOp)}
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, done, ())
    folded = {op.step.string_value() for op in module.walk() if isinstance(op, ScanOp)}
    for name, function in functions.items():
        private = function.sym_visibility is not None and function.sym_visibility.data == "private"
        if name != "main" and private and not is_eager(function) and name not in folded:
            function.detach()
            function.erase()
    return module


def without_calls(module: ModuleOp) -> ModuleOp:
    """Returns `module` itself if it has no calls, else a copy with the calls inlined."""
    has_calls = any(isinstance(op, func.CallOp) for op in module.walk())
    return inline_calls(module.clone()) if has_calls else module


def _inline_into(name: str, functions: dict[str, func.FuncOp], done: set[str], within: tuple[str, ...]) -> None:
    """Inlines all calls in a function.

    Args:
        name: name of the function.
        functions: functions of the module by name.
        done: names of functions whose calls are inlined; `name` is added.
        within: names of the functions that are being inlined, to detect recursion.
    """
    if name in done:
        return
    for call in [op for op in functions[name].walk() if isinstance(op, func.CallOp)]:
        callee = call.callee.string_value()
        if callee in functions and is_eager(functions[callee]):
            continue
        if callee not in functions or functions[callee].is_declaration:
            raise CompileError(
                f"expected a function with a body to inline, but got @{callee}", location=location_text(call)
            )
        if callee in (*within, name):
            raise refused(
                call, f"expected a call that is not recursive, but got @{callee} inside of itself", CompileError
            )
        _inline_into(callee, functions, done, (*within, name))
        _replace(call, functions[callee])
    done.add(name)


def _replace(call: func.CallOp, callee: func.FuncOp) -> None:
    """Replaces `call` by the body of `callee`."""
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


UPDATES = "updates"
IN_PLACE = "in_place"
CONSTANTS, CONSTANT = "constants", "constant"

Pairs = tuple[tuple[int, int], ...]


def pairs_of(function: FuncOp, name: str) -> Pairs:
    """Returns the pairs in the attribute `name`, `()` without it. Raises CompileError if it is malformed."""
    attribute, numbers = function.attributes.get(name), numbers_of(function, name)
    count = len(function.body.block.args)
    results = len(function.function_type.outputs) or count
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    last = {b for _, b in pairs}
    if len(numbers) % 2 or any(not (0 <= a < results and 0 <= b < count) for a, b in pairs) or len(last) != len(pairs):
        reason = f"expected a list of pairs of a result and an argument of @main, but got {attribute}"
        raise CompileError(reason, argument=name)
    return pairs


def numbers_of(function: FuncOp, name: str) -> list[int]:
    """Returns the numbers in the attribute `name`, `[]` without it.

    Returns `[-1]`, which is no legal position, if the attribute is malformed.
    """
    attribute = function.attributes.get(name)
    if attribute is None:
        return []
    return [int(n) for n in attribute.get_values()] if isinstance(attribute, DenseArrayBase) else [-1]


def constant_arguments(function: FuncOp) -> list[SSAValue]:
    """Returns the arguments in `constants`. Raises CompileError if a number is not a valid position of an argument."""
    arguments, numbers = function.body.block.args, numbers_of(function, CONSTANTS)
    if not all(0 <= n < len(arguments) for n in numbers):
        raise refused(
            function,
            f"expected positions of arguments in constants, but got {function.attributes[CONSTANTS]}",
            CompileError,
        )
    return [arguments[n] for n in numbers]


def set_pairs(function: FuncOp, name: str, pairs: Iterable[tuple[int, int]]) -> None:
    """Sets an attribute to a list of pairs, or removes it if there are none.

    Args:
        function: the function.
        name: name of the attribute.
        pairs: the pairs.
    """
    set_numbers(function, name, [n for pair in pairs for n in pair])


def set_numbers(function: FuncOp, name: str, numbers: Sequence[int]) -> None:
    """Sets an attribute to a list of numbers, or removes it if there are none.

    Args:
        function: the function.
        name: name of the attribute.
        numbers: the numbers.
    """
    function.attributes.pop(name, None)
    if numbers:
        function.attributes[name] = DenseArrayBase.from_list(i64, numbers)
