"""Functions at any level: calls between them, which are replaced by bodies, and what `@main` may overwrite.

A function that is only declared, with the attribute `torch.eager`, is one that PyTorch computes: the attribute names
the operator. Its calls stay what they are at every level. On buffers its results are the trailing arguments, of which
`torch.eager_results` says how many.

The attribute `updates` of `@main` pairs a result with the argument that it replaces after the program has run; from the
kernel level on, where results are arguments as well, it pairs two arguments. `in_place` pairs, at the kernel level, an
argument that stands for a result with the one in whose memory that result is: they are one buffer.

The attribute `constants` of a function has the arguments that are the same in every call: weights. `constant` marks a
launch that therefore gives the same in every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...errors import CompileError, ExecutionError
from ..tensor import ScanOp, ScatterOp
from .locations import location_text, refused

Call: TypeAlias = func.CallOp | ScanOp | ScatterOp
"""Operations of the host: what they read is in memory before them, what they give is in memory after them."""

EAGER = "torch.eager"
"""The attribute of a declared function that PyTorch computes: its operator, `aten.linalg_inv_ex`."""

EAGER_RESULTS = "torch.eager_results"
"""How many of the trailing buffers such a function writes."""


def main_function(module: ModuleOp) -> FuncOp:
    """Returns the function `@main`, or else the only one with a body that no other function calls.

    Raises:
        ExecutionError: there is none.
    """
    functions = [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]
    called = {c.callee.string_value() for f in functions for c in f.walk() if isinstance(c, func.CallOp)}
    for op in functions:
        if op.sym_name.data == "main":
            return op
    free = [op for op in functions if op.sym_name.data not in called]
    if len(free) == 1:
        return free[0]
    names = ", ".join(f"@{op.sym_name.data}" for op in free)
    several = f": which of {names} is the program?" if free else ""
    raise ExecutionError(f"the module has no function @main{several}")


def is_eager(function: func.FuncOp) -> bool:
    """Whether `function` is one that PyTorch computes."""
    return function.is_declaration and isinstance(function.attributes.get(EAGER), StringAttr)


def eager_results(function: func.FuncOp) -> int:
    """How many trailing buffers a function of the kernel level that PyTorch computes writes. Raises CompileError."""
    count = function.attributes.get(EAGER_RESULTS)
    if not isinstance(count, IntegerAttr) or not 0 <= count.value.data <= len(function.function_type.inputs):
        raise CompileError(f"@{function.sym_name.data} has no count of its results", location=location_text(function))
    return count.value.data


def inline_calls(module: ModuleOp) -> ModuleOp:
    """Replace every call in `module` by what the function does, remove private functions, and return the module.

    The functions of folds and calls of what PyTorch computes stay. Raises CompileError for another function that has no
    body, and for one that calls itself.
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
    """`module` itself if it has no calls, else a copy of it without."""
    has_calls = any(isinstance(op, func.CallOp) for op in module.walk())
    return inline_calls(module.clone()) if has_calls else module


def _inline_into(name: str, functions: dict[str, func.FuncOp], done: set[str], within: tuple[str, ...]) -> None:
    """Inline all calls in the function `name`."""
    if name in done:
        return
    for call in [op for op in functions[name].walk() if isinstance(op, func.CallOp)]:
        callee = call.callee.string_value()
        if callee in functions and is_eager(functions[callee]):
            continue
        if callee not in functions or functions[callee].is_declaration:
            raise CompileError(f"calls @{callee}, which has no body", location=location_text(call))
        if callee in (*within, name):
            raise refused(call, f"@{callee} calls itself", CompileError)
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


UPDATES = "updates"
IN_PLACE = "in_place"
CONSTANTS, CONSTANT = "constants", "constant"

Pairs = tuple[tuple[int, int], ...]


def pairs_of(function: FuncOp, name: str) -> Pairs:
    """The pairs in the attribute `name`, none without it. Raises CompileError if it holds something else."""
    found, numbers = function.attributes.get(name), numbers_of(function, name)
    count = len(function.body.block.args)
    results = len(function.function_type.outputs) or count
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    last = {b for _, b in pairs}
    if len(numbers) % 2 or any(not (0 <= a < results and 0 <= b < count) for a, b in pairs) or len(last) != len(pairs):
        raise CompileError(f"is no list of pairs of a result and an argument of @main: {found}", argument=name)
    return pairs


def numbers_of(function: FuncOp, name: str) -> list[int]:
    """The numbers in the attribute `name`, none without it; -1 if it holds something else."""
    found = function.attributes.get(name)
    if found is None:
        return []
    return [int(n) for n in found.get_values()] if isinstance(found, DenseArrayBase) else [-1]


def constant_arguments(function: FuncOp) -> list[SSAValue]:
    """The arguments that are the same in every call. Raises CompileError if `constants` holds no arguments."""
    arguments, numbers = function.body.block.args, numbers_of(function, CONSTANTS)
    if not all(0 <= n < len(arguments) for n in numbers):
        raise refused(function, f"constants is no list of arguments: {function.attributes[CONSTANTS]}", CompileError)
    return [arguments[n] for n in numbers]


def set_pairs(function: FuncOp, name: str, pairs: Iterable[tuple[int, int]]) -> None:
    """Write the pairs; without any there is no attribute."""
    set_numbers(function, name, [n for pair in pairs for n in pair])


def set_numbers(function: FuncOp, name: str, numbers: Sequence[int]) -> None:
    """Write the numbers; without any there is no attribute."""
    function.attributes.pop(name, None)
    if numbers:
        function.attributes[name] = DenseArrayBase.from_list(i64, numbers)
