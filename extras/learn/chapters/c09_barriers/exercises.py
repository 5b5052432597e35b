"""Exercises of chapter 9: barriers between accesses of shared memory."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import parsed
from .synchronising import require_synchronised

CHUNKS = 8
"""Iterations of the loops of exercises 9.3 and 9.5."""


def judge_reverse(answer: Answer) -> str:
    require_synchronised(answer.program(), _solution(0))
    return "right: every store of the block is before the barrier, and every load after it"


def judge_tree(answer: Answer) -> str:
    count = require_synchronised(answer.program(), _solution(1))
    return f"right: {count} barriers, one before each of the 6 steps and one before the sum is read"


def judge_chunks(answer: Answer) -> str:
    count = require_synchronised(answer.program(), _solution(2))
    return f"right: {count} barriers for {CHUNKS} chunks: one after the stores, one before they are overwritten"


def judge_branch(answer: Answer) -> str:
    require_synchronised(answer.program(), _solution(3), same_operations=False)
    return "right: all 64 threads reach the barrier, those that have nothing to store, too"


def judge_halves(answer: Answer) -> str:
    from .emulating import emulated

    program = answer.program()
    count = require_synchronised(program, _solution(4), same_operations=False)
    return f"right: {count} barriers for {CHUNKS} chunks; {emulated(program)}"


def _solution(number: int) -> ModuleOp:
    return parsed(CHAPTER.exercises[number].solution)


CHAPTER = Chapter(
    __package__ or "",
    "Barriers",
    [
        Exercise(
            "reverse",
            "One barrier",
            ".mlir",
            judge_reverse,
            (
                "A thread may load only when the thread that writes the element has stored it.",
                "A barrier separates what is before it from what is after it, for all threads of the block: "
                "`kernel.barrier`.",
            ),
        ),
        Exercise(
            "tree",
            "A sum in steps",
            ".mlir",
            judge_tree,
            (
                "A step reads what other threads wrote in the step before. So the barrier must be inside of the loop.",
                "It cannot be inside of `scf.if`, because not all threads are active.",
                "After the loop all threads read element 0. Who wrote it, and when?",
                "Which memory do the operations before the barrier of the template access? No other thread sees it.",
            ),
        ),
        Exercise(
            "chunks",
            "The barrier that is forgotten",
            ".mlir",
            judge_chunks,
            (
                "The verdict names a store and an earlier load. How can a load be before the store of line 21?",
                "A fast thread begins the next chunk while a slow one still reads this one.",
                "A second barrier, after the load or before the store.",
            ),
        ),
        Exercise(
            "branch",
            "A barrier that some threads miss",
            ".mlir",
            judge_branch,
            (
                "A barrier waits for all threads of the block. Threads 32 to 63 never enter the `scf.if`.",
                "Divide the `scf.if` into two with the same condition, and put the barrier between them.",
            ),
        ),
        Exercise(
            "halves",
            "One barrier for each chunk",
            ".mlir",
            judge_halves,
            (
                "Chunk 0 uses elements 0 to 63 of %s, chunk 1 elements 64 to 127, chunk 2 elements 0 to 63 again.",
                "`%slot = arith.andi %chunk, %1 : index` is 0, 1, 0, 1, ... Add 64 times that to the places.",
                "Then remove the second barrier: the one of the next chunk separates this chunk's loads from the store "
                "two chunks later.",
            ),
            (f"{__package__}.emulating",),
        ),
    ],
)
