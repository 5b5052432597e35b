"""Judging of passes: a pass must change some programs, and must keep the results of all, on special values too."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException, VerifyException

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

MEANINGS = (
    (
        "insertion point must have a parent",
        "after rewriter.replace, op is gone, and it is replaced again here: use elif, or return",
    ),
    (
        "'BlockArgument' object has no attribute 'parent'",
        "the second argument is a list of operations, the third one of values",
    ),
    ("No value for key", "is a part of the pattern not connected to the operation that pdl.rewrite names?"),
    ("division by zero", "Python does not divide by zero; math.copysign(1.0, number) has the sign of a zero"),
    ("'add_use'", "the new results are values: write new.result for the operation new"),
    ("among the extents", "the shape is a list of numbers: op.result.type.get_shape()"),
    ("'TensorType' object is not iterable", "the shape is a list of numbers: op.result.type.get_shape()"),
    (
        "'Block' object has no",
        "the owner of an argument of the function is a block: test its class by isinstance first",
    ),
    ("must be real number, not NoneType", "constant() returns None for a value that is no constant: test this first"),
    ("used before it is defined", "does the list of new operations of rewriter.replace name each of them?"),
    ("Expected arguments to have the same types", "the new result must have the type of op.result"),
)
"""Parts of messages of Python and xDSL, and the mistakes of patterns that cause them."""

FAILURES = (DiagnosticException, VerifyException, AttributeError, TypeError, LookupError, ArithmeticError, ValueError)
"""Exceptions of patterns with a mistake."""

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
        mistake: words for a mistake, and a program that shows it: the pass leaves one with the same results. Without
            a program, the words are part of every verdict on a wrong result.
        twin: words for a mistake, and a program on which only a pass with this mistake fires.
    """

    noun: str
    text: str
    removes: str = ""
    leaves: int = 0
    mistake: tuple[str, str] = ("", "")
    twin: tuple[str, str] = ("", "")


def require_rewrites(module_pass: ModulePass, cases: Sequence[Case], relative: float = 0.0, advice: str = "") -> str:
    """Requires that a pass keeps the results of all programs, and removes the operations that cases name.

    Args:
        module_pass: the pass of the reader.
        cases: the programs.
        relative: relative error that is allowed for finite results. Without it, results must have equal bits.
        advice: end of the verdict on a pass that fires nowhere.

    Returns:
        a sentence with the counts.

    Raises:
        Wrong: a result differs, the pass leaves an invalid program, or it does not fire where it must.
    """
    missed: list[Case] = []
    for case in cases:
        before, after = parsed(case.text), parsed(case.text)
        _apply(module_pass, after, case.noun)
        _require_equal_results(before, after, case, relative)
        if not _fires(after, case):
            missed.append(case)
    count = sum(case.removes != "" for case in cases)
    if missed:
        fires = (
            f"all results are right, but the pass fires on {count - len(missed)} of {count} programs where it should"
        )
        nowhere = advice if len(missed) == count else ""
        raise Wrong(f"{fires}: {missed[0].noun} stays as it is{_twin(module_pass, missed[0]) or nowhere}")
    return f"fires on {count} of {count} programs where it should, and keeps the results of all {len(cases)} programs"


def _fires(after: ModuleOp, case: Case) -> bool:
    """Returns true if the pass has removed the operations that a case names."""
    return not case.removes or len(operations(after, lambda op: op.name == case.removes)) <= case.leaves


def _twin(module_pass: ModulePass, case: Case) -> str:
    """Returns the end of a sentence about a pass that fires on the twin of a case only, or an empty text."""
    words, text = case.twin
    if not words:
        return ""
    module = parsed(text)
    _apply(module_pass, module, case.noun)
    return f"; {words}" if _fires(module, case) else ""


def _apply(module_pass: ModulePass, module: ModuleOp, noun: str) -> None:
    """Runs a pass, and erases dead operations. Exceptions of a pattern are raised again, in words of `MEANINGS`."""

    def stop(*_: object) -> None:
        raise Wrong(f"{noun}: the rewriting does not end: a pattern matches the operations that it makes")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        run_passes(make_context(), module, [module_pass, DeadCodeElimination()])
    except InvalidIRError as error:
        meaning = _meaning(error.message)
        reason = f"{error.message}; {meaning}" if meaning else error.message
        raise Wrong(f"{noun}: the pass leaves an invalid program: {reason}") from None
    except FAILURES as error:
        # xDSL's driver reports an exception of a pattern with the whole program. The exception itself has the line.
        cause = error.__cause__ if isinstance(error, DiagnosticException) and error.__cause__ else error
        if (meaning := _meaning(str(cause))) and isinstance(cause, LookupError):
            raise Wrong(f"{noun}: {meaning}") from None
        if meaning:
            cause.args = (f"{noun}: {meaning}",)
        raise cause from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _meaning(message: str) -> str:
    """Returns the words of `MEANINGS` for a message, or an empty text."""
    return next((words for part, words in MEANINGS if part in message), "")


def _require_equal_results(before: ModuleOp, after: ModuleOp, case: Case, relative: float) -> None:
    noun, arrays = case.noun, _inputs(before)
    (e,) = interpret(before, arrays, "typed")
    try:
        (a,) = interpret(after, arrays, "typed")
    except ExecutionError as error:
        raise Wrong(f"{noun}: after the pass the program cannot be executed: {error.reason}{_words(case)}") from None
    same = _equal(a, e, relative) if a.shape == e.shape else np.zeros(e.shape, bool)
    if same.all():
        return
    if a.shape != e.shape or e.ndim > 1:
        raise Wrong(f"{noun}: the pass changes the result: {describe(a, e, same)}{_mistake(case, a, arrays)}")
    names = [n for n, argument in zip("xy", main_function(before).args, strict=False) if argument.uses.get_length()]
    arguments = {n: x for n, x in zip("xy", arrays, strict=False) if n in names}
    # A difference for finite arguments is the easiest to understand, and one for other arguments than 0 before all.
    indices = np.flatnonzero(~same)
    finite = [i for i in indices if all(np.isfinite(x[i]) for x in arguments.values())]
    plain = [i for i in finite if all(x[i] for x in arguments.values())]
    at = [*plain, *finite, *indices][0]
    values = " and ".join(f"{n} = {_number(x[at])}" for n, x in arguments.items())
    place = f"for {values} " if values else ""
    digits = 6 if _number(e[at]) != _number(a[at]) else 9
    text = f"{noun}: {place}the program returns {_number(e[at], digits)}, but {_number(a[at], digits)}"
    raise Wrong(f"{text} after the pass{_relation(a, arguments)}{_words(case)}")


def _words(case: Case) -> str:
    """Returns the end of a sentence about every wrong result of a case."""
    words, text = case.mistake
    return f"; {words}" if words and not text else ""


def _mistake(case: Case, result: Array, arrays: list[Array]) -> str:
    """Returns the end of a sentence about a wrong result that shows the mistake of a case, or an empty text."""
    words, text = case.mistake
    if not text:
        return _words(case)
    (mistaken,) = interpret(parsed(text), arrays, "typed")
    return f"; {words}" if mistaken.shape == result.shape and _equal(result, mistaken, 0.0).all() else ""


def _relation(result: Array, arguments: dict[str, Array]) -> str:
    """Returns the end of a sentence about a wrong result that is constant or an argument, or an empty text."""
    for name, x in arguments.items():
        if _equal(result, x, 0.0).all():
            return f": the result is now {name}"
    return ": the result is now a constant" if arguments and _equal(result, result[:1], 0.0).all() else ""


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


def _number(value: float, digits: int = 6) -> str:
    if np.isnan(value):
        return "NaN"
    return ("-0.0" if np.signbit(value) else "0.0") if value == 0 else f"{float(value):.{digits}g}"
