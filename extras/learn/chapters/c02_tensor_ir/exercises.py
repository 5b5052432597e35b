"""Exercises of chapter 2: programs at the tensor level."""

from __future__ import annotations

from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import parsed, require_count, require_equal


def judge_softmax(answer: Answer) -> str:
    program = answer.program()
    require_equal(program, parsed(CHAPTER.exercises[0].solution))
    return f"right, with {require_count(program, 7)} operations"


CHAPTER = Chapter(
    __package__ or "",
    "Tensor IR by hand",
    [
        Exercise(
            "softmax",
            "Softmax over rows",
            ".mlir",
            judge_softmax,
            (
                "Softmax has two reductions: the maximum of a row, and the sum of the exponentials.",
                "`tensor.index_map %m[d0] : tensor<8xf32> -> tensor<8x64xf32>` repeats a value along a row.",
            ),
        )
    ],
)
