"""Exercises of chapter 4: fusion plans, judged by their kernels, bytes and predicted times."""

from __future__ import annotations

from .....tools.tables import si
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import PASSES
from ...numbers import Quantity, require_numbers
from ...plans import Plans
from ...verdicts import Wrong
from .programs import normalised_matmul, ratios, squared_distances

PAR = 1.03
"""Largest ratio to the best plan. Plans that differ only in how a few bytes are kept are within it."""


def judge_count(answer: Answer) -> str:
    """Compares five numbers about two plans of the small program with the kernels that the compiler makes."""
    plans = Plans(normalised_matmul(64, 256, 512))
    two, three = plans.price(("%11",)), plans.price(("%7", "%15"))
    norm, result, operand = plans.sizes["%11"], plans.sizes["%23"], 4 * 256 * 512
    require_numbers(
        answer,
        {
            "kernels": Quantity(
                three.kernels,
                "each root is the result of one kernel",
                {24: "that is the number of operations: a kernel computes many", 1: "three values are roots"},
            ),
            "written": Quantity(
                two.written,
                "each kernel writes its root, of 4 bytes an element",
                {
                    result: "that is the result alone; the first kernel writes %11, too",
                    norm: "that is %11 alone; the second kernel writes the result, too",
                    two.written / 4: "these are elements, and an element of f32 has 4 bytes",
                },
            ),
            "read": Quantity(
                two.read,
                "add what each kernel loads: the first %x and the weight, the second %11 and %x1",
                {
                    two.read - norm: "the second kernel reads %11, which the first has written (or %x is missing)",
                    two.read - 4 * 256: "the weight of RMSNorm is read, too",
                    two.read - operand: "%x1, the right operand of the matmul, is read, too",
                    two.read + norm: "the square and the normalised row are in one kernel: %x counts once there",
                    two.read / 4: "these are elements, and an element of f32 has 4 bytes",
                },
            ),
            "saved": Quantity(
                two.bytes - plans.whole.bytes,
                "without the root, %11 is neither written nor read again; what else changes?",
                {norm: "%11 is written once and read once: both are saved"},
            ),
            "largest": Quantity(
                plans.sizes["%14"],
                "look for the shape with the most elements; a root may be of any shape",
                {
                    plans.sizes["%15"]: "%15 is the sum of a larger tensor",
                    operand: "that is an argument; a value inside of the program is larger",
                    plans.sizes["%14"] / 4: "these are elements, and an element of f32 has 4 bytes",
                },
            ),
        },
    )
    one, both, none = (si(price.bytes) for price in (plans.whole, two, plans.none))
    return f"right: one kernel moves {one}B, two move {both}B, and no fusion {none}B, because %14 would be kept as well"


def judge_two_kernels(answer: Answer) -> str:
    """Judges the bytes of a plan with two kernels."""
    plans = Plans(normalised_matmul(64, 256, 512))
    price = plans.read(answer)
    if price.kernels != 2:
        raise Wrong(f"{price}: a plan has one kernel for each root, and the result %23 is always a root")
    least = min(plans.price((cut,)).bytes for cut in plans.cuts)
    if price.bytes > least:
        (root,) = price.roots
        more = f"{si(price.bytes)}B are read and written, {si(price.bytes - least)}B more than needed"
        raise Wrong(
            f"2 kernels, but {more}: {root} has {si(plans.sizes[root])}B. Look for a smaller value between them"
        )
    more = price.bytes - plans.whole.bytes
    return f"2 kernels, {si(price.bytes)}B: {si(more)}B more than one kernel, which reads %x only once"


def judge_best(answer: Answer) -> str:
    """Judges the predicted time of a plan of the large program."""
    plans = Plans(normalised_matmul(1024, 1024, 4096))
    return plans.require_fast(plans.read(answer), PAR)


def judge_recomputed(answer: Answer) -> str:
    """Judges a plan of a program for which full fusion is slow."""
    plans = Plans(ratios(1024))
    return plans.require_fast(plans.read(answer), PAR)


def judge_planner(answer: Answer) -> str:
    """Judges a plan of a program for which the search of the compiler misses the best plan."""
    plans = Plans(squared_distances(512, 4096))
    price = plans.read(answer)
    text = plans.require_fast(price, PAR)
    ratio = plans.planner.seconds / price.seconds
    return f"{text}, {ratio:.1f}x the time of yours" if ratio > PAR else text


CHAPTER = Chapter(
    __package__ or "",
    "Fusion is a set of roots",
    [
        Exercise(
            "count",
            "Kernels and bytes of a plan",
            ".txt",
            judge_count,
            (
                "A kernel writes its root. It reads the arguments and the other roots that it needs, each once.",
                "The types have the shapes: tensor<64x256xf32> has 64 * 256 elements of 4 bytes.",
                "Without the root %11 one kernel does all: it still reads %x, the weight and %x1.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "two_kernels",
            "Two kernels with the fewest bytes",
            ".txt",
            judge_two_kernels,
            (
                "The result is always a root, so you may choose one more.",
                "Its bytes are written once and read once. Which values of RMSNorm are small?",
                "A value with one number for each row has 64 elements.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "best",
            "The best plan of a larger program",
            ".txt",
            judge_best,
            (
                "Start from `roots = %23`, all in one kernel, and read the verdict.",
                "All blocks of the matmul that need the same rows normalise them again.",
                "GELU is cheap, and it can be computed where the sum is: %15 need not be kept.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "recomputed",
            "A program that should not be one kernel",
            ".txt",
            judge_recomputed,
            (
                "The result has 1024 * 1024 elements. How many different sums are there?",
                "Each element of the result needs two of them. In one kernel they are computed again and again.",
                "Keep the value that has one number for each row, after the logarithm.",
            ),
            modules=PASSES,
        ),
        Exercise(
            "planner",
            "Beat the planner",
            ".txt",
            judge_planner,
            (
                "Print `--explain fusion` for the program. A negative change is a plan that is predicted to be faster.",
                "The row sums of the squares are needed by all rows and all columns of the result.",
            ),
            modules=PASSES,
        ),
    ],
)
