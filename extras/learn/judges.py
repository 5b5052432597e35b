"""Parts of judges that several exercises share.

| function | judge of `docs/learn` | verdict |
|---|---|---|
| `require_equal` | equality in the exact domain, then floats | result 0 differs from row 7 on |
| `require_count` | number of operations | 9 operations, at most 7 are needed |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation

from ...backend.check_each import input_types, interpret, make_inputs, reduction_length, tolerance, within
from ...backend.interpreter.domains import Array
from ...backend.interpreter.exact import ExactDomain
from ...dialects import make_context
from ...dialects.support.calls import main_function
from ...dialects.support.parsing import parse_module
from .differences import describe, names_equal, where
from .verdicts import Wrong

LARGE = 1024.0
"""Factor of the inputs that show an overflow, as in `dl-opt --check-each`."""


def parsed(text: str) -> ModuleOp:
    """Returns the program of a text of this project, such as a solution."""
    return parse_module(make_context(), text, "<solution>")


def require_equal(
    actual: ModuleOp, expected: ModuleOp, *, inputs: Sequence[Array] | None = None, chunk: int | None = None
) -> None:
    """Requires that two programs compute the same function.

    The exact domain gives equal bits for all legal ways to compute a result. Floats show the precision, and inputs
    `LARGE` times as large show an overflow.

    Args:
        actual: the program of the reader, at the tensor, loop, tile or kernel level.
        expected: a right program.
        inputs: arguments of `@main`; random ones by default.
        chunk: iterations per chunk of staged reductions (`backend.check_each.interpret`).

    Raises:
        Wrong: the signatures or the results differ.
    """
    require_signature(actual, expected)
    arrays = list(inputs) if inputs is not None else make_inputs(input_types(expected))
    exact = ExactDomain()
    pairs = zip(interpret(actual, arrays, exact, chunk), interpret(expected, arrays, exact), strict=True)
    real = list(zip(interpret(actual, arrays, "real", chunk), interpret(expected, arrays, "real"), strict=True))
    for i, (a, e) in enumerate(pairs):
        same = a == e
        if same.all():
            continue
        # Values of the exact domain have no meaning for a reader. Where float64 shows the difference, it is shown.
        differs = ~np.isclose(real[i][0], real[i][1], rtol=1e-9, atol=1e-12, equal_nan=True)
        text = describe(*real[i], ~differs if differs.any() else same, f"result {i}")
        if not differs.any():
            text += " (equal in float64 for these inputs, but not for all numbers)"
        arguments = [(f"argument {n}", x) for n, x in enumerate(interpret_arguments(arrays))]
        if same_as := names_equal(real[i][0], arguments):
            text += f"; it equals {same_as} of @main"
        raise Wrong(text)
    typed, first = interpret(actual, arrays, "typed", chunk), interpret(expected, arrays, "typed")
    for i, (a, f) in enumerate(zip(typed, first, strict=True)):
        if real[i][1].dtype == np.float64:
            require_close(a, f, real[i][1], reduction_length(expected), i)
    large = [x * np.asarray(LARGE, x.dtype) if x.dtype.kind == "f" else x for x in arrays]
    typed, first = interpret(actual, large, "typed", chunk), interpret(expected, large, "typed")
    for i, (a, f) in enumerate(zip(typed, first, strict=True)):
        overflow = np.isfinite(f.astype(np.float64)) & ~np.isfinite(a.astype(np.float64))
        if overflow.any():
            place = where(overflow)
            raise Wrong(
                f"result {i} is right for small inputs, but not finite {place} for inputs {LARGE:.0f} times as large"
            )


def interpret_arguments(arrays: Sequence[Array]) -> list[Array]:
    """Returns the arguments as float64."""
    return [a.astype(np.float64) for a in arrays]


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
