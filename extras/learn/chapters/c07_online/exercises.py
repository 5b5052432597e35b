"""Exercises of chapter 7: staged reductions and their rescaling."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from .....backend.check_each import input_types, interpret, make_inputs
from .....backend.interpreter.domains import Array
from ...answers import Answer
from ...course import Chapter, Exercise
from ...differences import where
from ...judges import parsed, require_equal, require_signature
from ...verdicts import Wrong
from .merging import CHUNKS, nest_of, require_chunks, require_loads

OFFSET = 1000.0
"""Mean of the numbers that show the cancellation of a variance."""

VARIANCE_ERROR = 0.002
"""Relative error that a variance of numbers near `OFFSET` may have. A right program has less than 0.0003."""

IN_CHUNKS = "right in chunks of 1, 7 and 64"


def judge_rms(answer: Answer) -> str:
    program = answer.program()
    nest_of(program)
    require_signature(program, _solution(0))
    try:
        require_equal(program, _solution(0))
    except Wrong as wrong:
        raise Wrong(f"{wrong}{_unused_columns(program)}") from None
    return f"right: {require_loads(program, 1)}"


def judge_logsumexp(answer: Answer) -> str:
    program = answer.program()
    require_chunks(program, _solution(1))
    return f"{IN_CHUNKS}; {require_loads(program, 1)}; with two loops it would be twice"


def judge_softmax(answer: Answer) -> str:
    program = answer.program()
    require_chunks(program, _solution(2))
    text = require_loads(program, 2)
    _require_masked_rows(program)
    return f"{IN_CHUNKS}, with rows that begin with -inf; {text}, by the template three times"


def judge_variance(answer: Answer) -> str:
    program = answer.program()
    require_chunks(program, _solution(3))
    text = require_loads(program, 1)
    error = _require_precise_variance(program)
    return f"{IN_CHUNKS}; for numbers near {OFFSET:.0f} the relative error is {error:.1e}; {text}"


def judge_attention(answer: Answer) -> str:
    program = answer.program()
    require_chunks(program, _solution(4))
    texts = [require_loads(program, 1, n, name) for n, name in enumerate("xv")]
    return f"{IN_CHUNKS}; {' and '.join(texts)}: this is flash attention for one head"


def _unused_columns(program: ModuleOp) -> str:
    """Returns a text about the columns of x that do not change the result of their row, or an empty text."""
    (x,) = make_inputs(input_types(program))
    unused: list[int] = []
    for k in range(x.shape[1]):
        poisoned = x.copy()
        poisoned[:, k] = np.nan
        with np.errstate(all="ignore"):
            (y,) = interpret(program, [poisoned], "real")
        if not np.isnan(y).any():
            unused.append(k)
    mask = np.zeros(x.shape, np.bool_)
    mask[:, unused] = True
    if not 0 < len(unused) < x.shape[1]:
        return ""
    return f"; no result depends on the elements {where(mask).replace(' only', '')}"


def _solution(number: int) -> ModuleOp:
    return parsed(CHAPTER.exercises[number].solution)


def _require_masked_rows(program: ModuleOp) -> None:
    """Requires a right softmax of rows that begin or end with -inf. Raises Wrong for a row with NaN or wrong values."""
    (x,) = make_inputs(input_types(program))
    x[1, :10] = -np.inf
    x[3, 5:] = -np.inf
    exact = x.astype(np.float64)
    e = np.exp(exact - exact.max(axis=1, keepdims=True))
    expected = e / e.sum(axis=1, keepdims=True)
    for chunk in (None, *CHUNKS):
        with np.errstate(all="ignore"):
            (y,) = interpret(program, [x], "typed", chunk)
        wrong = ~np.isclose(y, expected, rtol=1e-4, atol=1e-6)
        if wrong.any():
            value = "NaN" if np.isnan(y[wrong]).any() else "wrong"
            how = "in one chunk" if chunk is None else f"in chunks of {chunk}"
            raise Wrong(
                f"right for finite numbers, but {value} {where(wrong)} {how} if row 1 begins with ten values -inf and "
                "row 3 ends with 59: what is -inf - (-inf)?"
            )


def _require_precise_variance(program: ModuleOp) -> float:
    """Requires a precise variance of numbers near `OFFSET`. Returns the relative error. Raises Wrong."""
    (x,) = make_inputs(input_types(program))
    x = x + np.float32(OFFSET)
    expected: Array = np.var(x.astype(np.float64), axis=1)
    largest = 0.0
    for chunk in (None, *CHUNKS):
        (y,) = interpret(program, [x], "typed", chunk)
        error = float(np.max(np.abs(y - expected) / expected))
        if not error <= VARIANCE_ERROR:
            row = int(np.argmax(np.abs(y - expected) / expected))
            raise Wrong(
                f"equal for all real numbers, but for f32 numbers near {OFFSET:.0f} the variance of row {row} is "
                f"{y[row]:.4g} instead of {expected[row]:.4g}: a difference of two large numbers that are nearly equal"
            )
        largest = max(largest, error)
    return largest


CHAPTER = Chapter(
    __package__ or "",
    "Reductions that need each other",
    [
        Exercise(
            "rms",
            "Root mean square of a row",
            ".mlir",
            judge_rms,
            (
                "The body of a `loop.reduce` computes one term: load x[i, k], and multiply it by itself.",
                "After the reduction: `%mean = arith.divf %sum, %count : f32` and `%root = math.sqrt %mean : f32`.",
            ),
        ),
        Exercise(
            "logsumexp",
            "The rescaling of a sum",
            ".mlir",
            judge_logsumexp,
            (
                "exp(x - new) = exp(x - old) * exp(old - new), for each term, and so for their sum.",
                "Result 0 is a maximum of x itself. It is relative to nothing and stays %old_m.",
                "Three operations: `arith.subf`, `math.exp` and `arith.mulf`. Yield the product in place of %old_s.",
            ),
        ),
        Exercise(
            "softmax",
            "Online softmax",
            ".mlir",
            judge_softmax,
            (
                "Move the two reductions into the stages of a `loop.staged_reduce`, as in exercise 7.2.",
                "If all elements so far are -inf, the maximum is -inf, and x - maximum is NaN. Use 0 in its place: "
                "`payload.cmp eq` and `payload.select`, with the constant 0xff800000 for -inf.",
                "In the rescaling, the sum so far is 0 if %old_m is -inf. Select the factor 0 there.",
            ),
        ),
        Exercise(
            "variance",
            "A variance in one pass",
            ".mlir",
            judge_variance,
            (
                "The result must be a sum of small terms: (x - mean)^2 with the mean of the elements so far.",
                "Divide %s0 by %n0 between the stages, and use it in the third stage.",
                "sum (x - new)^2 = sum (x - old)^2 + n * (old - new)^2, because sum (x - old) is 0 for a mean.",
                "A kernel begins with 0 elements, whose mean is 0 / 0. Select 0 for the difference of the means there.",
            ),
        ),
        Exercise(
            "attention",
            "Attention in one pass",
            ".mlir",
            judge_attention,
            (
                "The third reduction divides each term by %s. When can you divide in place of that?",
                "Sum exp(x - m) * v in the third stage, and divide the result by %s after the staged reduction.",
                "The third sum has the same factor in the rescaling as the second.",
            ),
        ),
    ],
)
