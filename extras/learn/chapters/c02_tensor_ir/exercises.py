"""Exercises of chapter 2: programs at the tensor level."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import TensorType

from .....backend.check_each import input_types, make_inputs
from .....dialects.loop import LoadOp, NestOp
from .....dialects.support.calls import main_function
from .....dialects.tensor import ReduceOp
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import PASSES, lowered, operations, parsed, require_count, require_equal, with_mistakes
from ...verdicts import Wrong

OFFSET = 1000.0
"""Mean of the rows that show a loss of precision in a variance."""


def _over_columns(solution: str) -> str:
    """Returns a program that reduces over dimension 0 where the solution reduces over dimension 1."""
    text = solution.replace("over [1]", "over [0]").replace("tensor<8xf32>", "tensor<64xf32>")
    return text.replace("[d0]", "[d1]")


def judge_scale_rows(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[0].solution
    mistakes = with_mistakes(solution, ("mulf", "divf", "the rows are divided by %s, not multiplied"))
    require_equal(program, parsed(solution), mistakes=mistakes)
    return f"right, with {require_count(program, 2)} operations"


def judge_center(answer: Answer) -> str:
    program = answer.program()
    mistakes = with_mistakes(
        CHAPTER.exercises[1].solution,
        ("%1[d0]", "%0[d0]", "the sum of the row is subtracted, not its mean"),
        ("subf", "addf", "the mean is added, not subtracted"),
        ("func.return %3", "func.return %2", "this is the mean itself, repeated"),
    )
    columns = _over_columns(CHAPTER.exercises[1].solution)
    sentence = "the mean of the column is subtracted: `over [0]` goes down a column, `over [1]` along a row"
    mistakes += [(columns, sentence), (columns.replace("64.0", "8.0"), sentence)]
    require_equal(program, parsed(CHAPTER.exercises[1].solution), mistakes=mistakes)
    count = require_count(program, 4)
    types = [op.results[0].type for op in operations(program, lambda op: op.name == "arith.divf")]
    divisions = sum(t.element_count() for t in types if isinstance(t, TensorType))
    other = {8: "after the index map it would be 512", 512: "before the index map it would be 8"}.get(divisions)
    return f"right, with {count} operations{f' and {divisions} divisions; {other}' if other else ''}"


def judge_softmax(answer: Answer) -> str:
    program = answer.program()
    mistakes = with_mistakes(
        CHAPTER.exercises[2].solution,
        (
            "func.return %6",
            "func.return %3",
            "these are the exponentials; they are not divided by their sum (divided by their maximum, 1, they stay)",
        ),
        ("divf %3, %5", "divf %2, %5", "%x minus the maximum is divided by the sum, not the exponential"),
        ("divf %3, %5", "divf %3, %1", "the exponentials are divided by the maximum, not by their sum"),
    )
    columns = _over_columns(CHAPTER.exercises[2].solution)
    mistakes.append((columns, "this is the softmax over the columns: `over [1]` reduces along a row"))
    require_equal(program, parsed(CHAPTER.exercises[2].solution), mistakes=mistakes)
    count = require_count(program, 7)
    reductions = len(operations(program, lambda op: isinstance(op, ReduceOp)))
    return f"right, with {count} operations, {reductions} of them reductions"


def judge_log_sum_exp(answer: Answer) -> str:
    program = answer.program()
    mistakes = with_mistakes(
        CHAPTER.exercises[3].solution,
        ("func.return %6", "func.return %5", "the maximum that was subtracted is not added again"),
        ("addf %5, %0", "addf %4, %0", "the logarithm is missing"),
    )
    require_equal(program, parsed(CHAPTER.exercises[3].solution), exact=False, mistakes=mistakes)
    count = require_count(program, 7)
    return f"right, with {count} operation{'s' * (count != 1)}, and no exponential overflows"


def judge_layer_norm(answer: Answer) -> str:
    program, expected = answer.program(), parsed(CHAPTER.exercises[4].solution)
    mistakes = with_mistakes(
        CHAPTER.exercises[4].solution,
        ("mulf %3, %9", "mulf %x, %9", "%x is scaled, but its mean is not subtracted"),
        ("math.rsqrt", "math.sqrt", "it is multiplied by the standard deviation; `math.rsqrt` is 1 / sqrt"),
        ("rsqrt %7", "rsqrt %6", "1e-5 is not added to the variance"),
        ("mulf %3, %3", "mulf %x, %x", "the variance is computed from %x, not from %x minus its mean"),
        ("%8[d0]", "%7[d0]", "it is multiplied by the variance; `math.rsqrt` is missing"),
        ("%w[d1]", "%w[d0]", "%w is read at the row, d0; it has one element for each column"),
        ("%b[d1]", "%b[d0]", "%b is read at the row, d0; it has one element for each column"),
        ("addf %6", "addf %5", "the sum of the squares is not divided by 64"),
        ("%1[d0]", "%0[d0]", "the sum of the row is subtracted, not its mean"),
    )
    require_equal(program, expected, mistakes=mistakes)
    x, *parameters = make_inputs(input_types(expected))
    try:
        require_equal(program, expected, inputs=[x + np.float32(OFFSET), *parameters])
    except Wrong as wrong:
        raise Wrong(
            f"the result is right for rows with a mean near 0, but not for a mean near {OFFSET:.0f}: is the variance a "
            f"difference of two large numbers? {wrong}"
        ) from None
    count = require_count(program, 15)
    nests = [op for op in lowered(program, "tensor-to-loop").walk() if isinstance(op, NestOp)]
    x = main_function(program).body.block.args[0]
    loads = sum(isinstance(op, LoadOp) and op.source is x for op in program.walk())
    kernels = f"{len(nests)} kernel{'s' * (len(nests) != 1)} with {loads} load{'s' * (loads != 1)} of %x"
    return (
        f"right, with {count} operations, also for rows with a mean near {OFFSET:.0f}: there the mean of the "
        "squares and the square of the mean agree in six of the seven digits of an f32, so their difference is "
        f"inexact. The compiler makes {kernels}"
    )


CHAPTER = Chapter(
    __package__ or "",
    "Tensor IR by hand",
    [
        Exercise(
            "scale_rows",
            "Scale the rows",
            ".mlir",
            judge_scale_rows,
            (
                "Both operands of `arith.mulf` must have the shape 8x64. Which coordinate of %s does the element at "
                "[d0, d1] need?",
                "The page repeats a value of each row by `tensor.index_map %m[d0] : tensor<4xf32> -> tensor<4x6xf32>`.",
            ),
        ),
        Exercise(
            "center",
            "Subtract the mean of a row",
            ".mlir",
            judge_center,
            (
                "The mean is the sum of a row divided by 64. The sum is a `tensor.reduce add` over dimension 1.",
                "Divide before you repeat the value along the row: then %n fits, and the division is done 8 times, not "
                "512 times.",
                "A name must be defined before it is used, and `func.return` must return the result.",
            ),
        ),
        Exercise(
            "softmax",
            "Softmax over rows",
            ".mlir",
            judge_softmax,
            (
                "Softmax has two reductions: the maximum of a row, and the sum of the exponentials.",
                "`tensor.index_map %m[d0] : tensor<8xf32> -> tensor<8x64xf32>` repeats a value along a row.",
                "In order: max, repeat, subtract, exp, sum, repeat, divide.",
            ),
        ),
        Exercise(
            "log_sum_exp",
            "Log-sum-exp without overflow",
            ".mlir",
            judge_log_sum_exp,
            (
                "log(sum(exp(x))) = m + log(sum(exp(x - m))) for every m. Which m keeps the exponentials at most 1?",
                "The first five operations are those of softmax. `math.log` is the logarithm.",
                "A solution with two operations exists: `tensor.prefix_scan` has the kind `logaddexp`, and the last "
                "element of a scan combines the whole row. `dl-opt --help-op tensor.prefix_scan` shows its syntax.",
            ),
        ),
        Exercise(
            "layer_norm",
            "Layer norm",
            ".mlir",
            judge_layer_norm,
            (
                "Start with the four operations of exercise 2.2. Their result is used twice.",
                "%w has one element for each column: it is repeated along the other dimension, by d1.",
                "The mean of x * x minus the square of the mean is the variance for real numbers. In f32 it is the "
                "difference of two large numbers, if the mean is large.",
            ),
            modules=PASSES,
        ),
    ],
)
