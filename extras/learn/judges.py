"""Parts of judges that several exercises share.

| function | judge of `docs/learn` | verdict |
|---|---|---|
| `require_equal` | equality in the exact domain, then floats | result 0 differs from row 7 on |
| `require_count` | number of operations | 9 operations, at most 7 are needed |
| `lowered` | programs of a lower level, by the passes of the compiler | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...backend.check_each import (
    LARGE_INPUT_SCALE,
    input_types,
    interpret,
    make_inputs,
    reduction_length,
    tolerance,
    within,
)
from ...backend.interpreter.domains import Array
from ...backend.interpreter.exact import ExactDomain
from ...dialects import make_context
from ...dialects.support.calls import main_function
from ...dialects.support.parsing import parse_module
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes
from ...target.attribute import get_target, set_target
from .differences import describe, names_equal
from .verdicts import Wrong

PASSES = (f"{__package__}.preloaded",)
"""Value of `Exercise.modules` for judges that run passes."""


def parsed(text: str) -> ModuleOp:
    """Returns the program of a text of this project, such as a solution."""
    return parse_module(make_context(), text, "<solution>")


def lowered(module: ModuleOp, pipeline: str, target: str = "sm_90a") -> ModuleOp:
    """Applies passes of the compiler to a module in place, and returns it.

    Args:
        module: the module.
        pipeline: passes, as for `dl-opt -p`.
        target: name of the target for which they decide.

    Raises:
        CompileError: a pass refuses the module.
    """
    set_target(module, get_target(target))
    run_passes(make_context(), module, parse_passes(pipeline))
    return module


def with_mistakes(solution: str, *mistakes: tuple[str, str, str]) -> list[tuple[str, str]]:
    """Returns programs with mistakes and sentences about them, for `require_equal`.

    Args:
        solution: text of the right program.
        mistakes: text of the solution, text in its place, and a sentence about the mistake.
    """
    assert all(old in solution for old, _, _ in mistakes)
    return [(solution.replace(old, new), sentence) for old, new, sentence in mistakes]


def require_equal(
    actual: ModuleOp,
    expected: ModuleOp,
    *,
    inputs: Sequence[Array] | None = None,
    chunk: int | None = None,
    exact: bool = True,
    mistakes: Iterable[tuple[str, str]] = (),
) -> None:
    """Requires that two programs compute the same function.

    The exact domain gives equal bits for all legal ways to compute a result. Floats show the precision, and inputs
    `LARGE_INPUT_SCALE` times as large show an overflow.

    Args:
        actual: the program of the reader, at the tensor, loop, tile or kernel level.
        expected: a right program.
        inputs: arguments of `@main`; random ones by default.
        chunk: iterations per chunk of staged reductions (`backend.check_each.interpret`).
        exact: whether to compare in the exact domain. Programs that use laws of the logarithm are equal only in
            float64.
        mistakes: texts of programs that contain a mistake, and sentences about the mistakes. The sentence of a program
            with the same results is part of the verdict.

    Raises:
        Wrong: the signatures or the results differ.
    """
    require_signature(actual, expected)
    block, last = main_function(actual).body.block, main_function(expected).body.block.last_op
    assert block.last_op is not None
    assert last is not None
    for i, (value, right) in enumerate(zip(block.last_op.operands, last.operands, strict=True)):
        if value in block.args and not isinstance(right, BlockArgument):
            name = value.name_hint or block.args.index(value)
            raise Wrong(f"result {i} is %{name}, an argument of @main: `func.return` must return what you computed")
    arrays = list(inputs) if inputs is not None else make_inputs(input_types(expected))
    real = list(zip(interpret(actual, arrays, "real", chunk), interpret(expected, arrays, "real"), strict=True))
    pairs = real
    if exact:
        domain = ExactDomain()
        pairs = list(zip(interpret(actual, arrays, domain, chunk), interpret(expected, arrays, domain), strict=True))
    for i, (a, e) in enumerate(pairs):
        # Values of the exact domain have no meaning for a reader. Where float64 shows the difference, it is shown.
        differs = ~np.isclose(real[i][0], real[i][1], rtol=1e-9, atol=1e-12, equal_nan=True)
        same = a == e if exact else ~differs
        if same.all():
            continue
        text = describe(*real[i], ~differs if differs.any() else same, f"result {i}")
        if not differs.any():
            text += " (equal in float64 for these inputs, but not for all numbers)"
        raise Wrong(text + _explanation(actual, expected, arrays, i, real[i][0], mistakes))
    typed, first = interpret(actual, arrays, "typed", chunk), interpret(expected, arrays, "typed")
    for i, (a, f) in enumerate(zip(typed, first, strict=True)):
        if real[i][1].dtype == np.float64:
            require_close(a, f, real[i][1], reduction_length(expected), i)
    large = [x * np.asarray(LARGE_INPUT_SCALE, x.dtype) if x.dtype.kind == "f" else x for x in arrays]
    typed, first = interpret(actual, large, "typed", chunk), interpret(expected, large, "typed")
    for i, (a, f) in enumerate(zip(typed, first, strict=True)):
        overflow = np.isfinite(f.astype(np.float64)) & ~np.isfinite(a.astype(np.float64))
        if overflow.any():
            exponentials = operations(actual, lambda op: op.name in ("math.exp", "math.exp2"))
            reason = "; an exponential is larger than the largest f32, 3.4e38" if exponentials else ""
            raise Wrong(
                f"result {i} is right for small inputs, but for inputs {LARGE_INPUT_SCALE:.0f} times as large "
                f"{int(overflow.sum())} of {overflow.size} elements are not finite{reason}"
            )


def _explanation(
    actual: ModuleOp,
    expected: ModuleOp,
    arrays: list[Array],
    number: int,
    value: Array,
    mistakes: Iterable[tuple[str, str]],
) -> str:
    """Returns words that explain why a result is wrong, or an empty text."""
    arguments = [(f"argument {n}", x.astype(np.float64)) for n, x in enumerate(arrays)]
    if same_as := names_equal(value, arguments):
        return f"; it equals {same_as} of @main"
    for text, sentence in mistakes:
        if np.allclose(interpret(parsed(text), arrays, "real")[number], value, rtol=1e-9, equal_nan=True):
            return f": {sentence}"
    unused = _used_arguments(expected, number) - _used_arguments(actual, number)
    if unused:
        names = main_function(actual).body.block.args
        words = " or ".join(f"%{names[n].name_hint or n}" for n in sorted(unused))
        return f"; it does not depend on {words}"
    return ""


def _used_arguments(module: ModuleOp, number: int) -> set[int]:
    """Returns the numbers of the arguments of `@main` that a result depends on."""
    block = main_function(module).body.block
    assert block.last_op is not None
    pending, seen = [block.last_op.operands[number]], set[SSAValue]()
    while pending:
        if (value := pending.pop()) not in seen:
            seen.add(value)
            if isinstance(value.owner, Operation):
                pending += [v for op in value.owner.walk() for v in op.operands]
    return {n for n, argument in enumerate(block.args) if argument in seen}


def require_close(actual: Array, first: Array, real: Array, length: int, number: int = 0) -> None:
    """Requires that a result is as precise as its type allows.

    Args:
        actual: the result.
        first: result of a right program in the same types.
        real: result of a right program in float64.
        length: number of terms of the longest reduction.
        number: number of the result.

    Raises:
        Wrong: an element differs by more than the tolerance.
    """
    if (same := within(actual, first, real, length)).all():
        return
    finite = np.isfinite(real) & np.isfinite(actual.astype(np.float64))
    error = float(np.max(np.abs(actual.astype(np.float64) - real), where=finite, initial=0.0))
    allowed = tolerance(first.astype(np.float64), real, actual.dtype, length)
    text = describe(actual.astype(np.float64), real, same, f"result {number}")
    raise Wrong(f"{text} (error {error:.1e}, tolerance {allowed:.1e})")


def require_signature(actual: ModuleOp, expected: ModuleOp) -> None:
    """Requires that `@main` of two programs has the same types.

    Raises:
        Wrong: a type differs.
    """
    types, expected_types = main_function(actual).function_type, main_function(expected).function_type
    arguments, expected_arguments = main_function(actual).body.block.args, main_function(expected).body.block.args
    if len(arguments) == len(expected_arguments):
        for n, (argument, right) in enumerate(zip(arguments, expected_arguments, strict=True)):
            if argument.type != right.type:
                name = f"%{argument.name_hint or n}"
                raise Wrong(
                    f"expected the argument {name} of @main to have the type {right.type}, but got {argument.type}"
                )
    if types != expected_types:
        raise Wrong(f"expected @main of the type {expected_types}, but got {types}")


def operations(module: ModuleOp, select: Callable[[Operation], bool] = lambda op: True) -> list[Operation]:
    """Returns the operations of `@main`, without constants and the return.

    Args:
        module: a program.
        select: keeps an operation if it returns true.
    """
    skipped = ("payload.constant", ReturnOp.name)
    ops = (op for op in main_function(module).body.walk() if op.name not in skipped)
    return [op for op in ops if select(op)]


def require_count(module: ModuleOp, most: int) -> int:
    """Requires that `@main` has at most `most` operations, without constants and the return.

    Returns:
        the number of operations.

    Raises:
        Wrong: there are more.
    """
    if (count := len(operations(module))) > most:
        raise Wrong(f"the program is right but has {count} operations; at most {most} are needed")
    return count
