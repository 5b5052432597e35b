"""Judging of passes: a pass must change some programs, and must keep the results of all, on special values too."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from ...backend.check_each import input_types, interpret
from ...backend.interpreter.running import storage
from ...dialects import make_context
from ...dialects.support.calls import main_function
from ...errors import ExecutionError
from ...passes.pass_manager import InvalidIRError, run_passes
from ...passes.rewriting import DeadCodeElimination
from .differences import Array, describe
from .judges import operations, parsed
from .verdicts import Wrong

SPECIAL = (-1.0, -2.5, -0.0, 0.0, 0.5, 1.0, 3.0, float("inf"), float("-inf"), float("nan"))
"""Values for which identities of real numbers are wrong most often, and a few others."""

SECONDS = 0.5
"""Processor seconds that a pass may take for one program. A pass for programs of this size takes some milliseconds."""


@dataclass(frozen=True)
class Case:
    """A program to which a pass is applied.

    Attributes:
        noun: the program in words or as a formula.
        text: the program at the tensor level.
        removes: name of the operation that the pass must remove. Empty if the pass need not change the program.
        leaves: number of operations of this name that may remain.
        mistake: words for a mistake, and a program that shows it: the pass leaves one with the same results.
    """

    noun: str
    text: str
    removes: str = ""
    leaves: int = 0
    mistake: tuple[str, str] = ("", "")


def require_rewrites(module_pass: ModulePass, cases: Sequence[Case], relative: float = 0.0) -> str:
    """Requires that a pass keeps the results of all programs, and removes the operations that cases name.

    Args:
        module_pass: the pass of the reader.
        cases: the programs.
        relative: relative error that is allowed for finite results. Without it, results must have equal bits.

    Returns:
        a sentence with the counts.

    Raises:
        Wrong: a result differs, the pass leaves an invalid program, or it does not fire where it must.
    """
    missed: list[str] = []
    for case in cases:
        before, after = parsed(case.text), parsed(case.text)
        _apply(module_pass, after, case.noun)
        _require_equal_results(before, after, case, relative)
        if case.removes and len(operations(after, lambda op, name=case.removes: op.name == name)) > case.leaves:
            missed.append(case.noun)
    count = sum(case.removes != "" for case in cases)
    if missed:
        fires = (
            f"all results are right, but the pass fires on {count - len(missed)} of {count} programs where it should"
        )
        raise Wrong(f"{fires}: {missed[0]} stays as it is")
    return f"fires on {count} of {count} programs where it should, and keeps the results of all {len(cases)} programs"


def _apply(module_pass: ModulePass, module: ModuleOp, noun: str) -> None:
    """Runs a pass, and erases dead operations. Exceptions of the pass are not caught."""

    def stop(*_: object) -> None:
        raise Wrong(f"{noun}: the rewriting does not end: a pattern matches the operations that it makes")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        run_passes(make_context(), module, [module_pass, DeadCodeElimination()])
    except InvalidIRError as error:
        raise Wrong(f"{noun}: the pass leaves an invalid program: {error.message}") from None
    except DiagnosticException as error:
        # xDSL's driver reports an exception of a pattern with the whole program. The exception itself has the line.
        raise error.__cause__ or error from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _require_equal_results(before: ModuleOp, after: ModuleOp, case: Case, relative: float) -> None:
    noun, arrays = case.noun, _inputs(before)
    (e,) = interpret(before, arrays, "typed")
    try:
        (a,) = interpret(after, arrays, "typed")
    except ExecutionError as error:
        raise Wrong(f"{noun}: after the pass the program cannot be executed: {error.reason}") from None
    same = _equal(a, e, relative) if a.shape == e.shape else np.zeros(e.shape, bool)
    if same.all():
        return
    if a.shape != e.shape or e.ndim > 1:
        raise Wrong(f"{noun}: the pass changes the result: {describe(a, e, same)}{_mistake(case, a, arrays)}")
    names = [n for n, argument in zip("xy", main_function(before).args, strict=False) if argument.uses.get_length()]
    arguments = {n: x for n, x in zip("xy", arrays, strict=False) if n in names}
    # A difference for finite arguments is the easiest to understand.
    indices = np.flatnonzero(~same)
    at = next((i for i in indices if all(np.isfinite(x[i]) for x in arguments.values())), indices[0])
    values = " and ".join(f"{n} = {_number(x[at])}" for n, x in arguments.items())
    text = f"{noun}: for {values} the program returns {_number(e[at])}, but {_number(a[at])} after the pass"
    raise Wrong(text + _relation(a, arguments))


def _mistake(case: Case, result: Array, arrays: list[Array]) -> str:
    """Returns the end of a sentence about a wrong result that shows the mistake of a case, or an empty text."""
    words, text = case.mistake
    if not words:
        return ""
    (mistaken,) = interpret(parsed(text), arrays, "typed")
    return f"; {words}" if mistaken.shape == result.shape and _equal(result, mistaken, 0.0).all() else ""


def _relation(result: Array, arguments: dict[str, Array]) -> str:
    """Returns the end of a sentence about a wrong result that is constant or an argument, or an empty text."""
    for name, x in arguments.items():
        if _equal(result, x, 0.0).all():
            return f": the result is now {name}"
    return ": the result is now a constant" if _equal(result, result[:1], 0.0).all() else ""


def _inputs(module: ModuleOp) -> list[Array]:
    """Returns `SPECIAL`, shifted for each argument, for vectors of its length, and else the numbers from 1."""
    arrays: list[Array] = []
    for n, type in enumerate(input_types(module)):
        dtype, shape = storage(type, None)
        if shape == (len(SPECIAL),):
            arrays.append(np.roll(np.array(SPECIAL, dtype), 3 * n))
        else:
            arrays.append(np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype))
    return arrays


def _equal(actual: Array, expected: Array, relative: float) -> Array:
    """Returns a mask of the elements that are equal, with the signs of zeros, or within a relative error."""
    equal = (actual == expected) & (np.signbit(actual) == np.signbit(expected))
    with np.errstate(invalid="ignore"):
        close = np.isfinite(expected) & (expected != 0) & (np.abs(actual - expected) <= relative * np.abs(expected))
    return equal | close | (np.isnan(actual) & np.isnan(expected))


def _number(value: float) -> str:
    return (
        "NaN" if np.isnan(value) else ("-0.0" if np.signbit(value) else "0.0") if value == 0 else f"{float(value):.6g}"
    )
