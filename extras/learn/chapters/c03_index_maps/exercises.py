"""Exercises of chapter 3: index maps."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from .....dialects.tensor import IndexMapOp
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import operations, parsed, require_equal, with_mistakes
from ...verdicts import Wrong


def _maps(program: ModuleOp) -> int:
    return len(operations(program, lambda op: isinstance(op, IndexMapOp)))


def _require_maps(program: ModuleOp, most: int) -> None:
    """Requires that a program, whose results are right, has at most `most` index maps. Raises Wrong."""
    if (count := _maps(program)) > most:
        raise Wrong(f"the results are right but take {count} index maps; {most} suffice{'s' * (most == 1)}")


def judge_views(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[0].solution
    mistakes = with_mistakes(
        solution,
        ("%x[d1, d0]", "%x[0, 0]", "result 0, %transposed, has still the coordinates [0, 0]"),
        ("%x[d0, d1 + 2]", "%x[0, 0]", "result 1, %slice, has still the coordinates [0, 0]"),
        ("%x[d0, d1 + 2]", "%x[d0, d1]", "the slice begins at column 0, not at column 2"),
        ("%x[d0, d1 + 2]", "%x[d0, d1 + 3]", "the slice begins at column 3, not at column 2"),
        ("%x[5 - d0, d1]", "%x[0, 0]", "result 2, %flipped, has still the coordinates [0, 0]"),
        ("%x[5 - d0, d1]", "%x[d0, 7 - d1]", "the columns are reversed, not the rows"),
        ("%x[5 - d0, d1]", "%x[5 - d0, 7 - d1]", "the columns are reversed too"),
        ("%x[d0, d1 * 2]", "%x[0, 0]", "result 3, %even, has still the coordinates [0, 0]"),
        ("%x[d0, d1 * 2]", "%x[d0, d1 floordiv 2]", "`d1 floordiv 2` takes each column twice; `d1 * 2` skips some"),
        ("%x[d0, d1 * 2]", "%x[d0, d1 + 2]", "these are four consecutive columns"),
        ("%x[d0, d1 * 2]", "%x[d0, d1 * 2 + 1]", "these are the columns 1, 3, 5 and 7"),
    )  # fmt: skip
    require_equal(program, parsed(solution), mistakes=mistakes)
    _require_maps(program, 4)
    return f"right: {_maps(program)} index maps, and no element is copied before it is needed"


def judge_reshapes(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[1].solution
    reshape = "[(d0 * 12 + d1) floordiv 8, (d0 * 12 + d1) mod 8]"
    mistakes = with_mistakes(
        solution,
        ("[d0 floordiv 2, d1]", "[0, 0]", "result 0, %interleaved, has still the coordinates [0, 0]"),
        ("[d0 floordiv 2, d1]", "[d0 mod 6, d1]", "this repeats the whole tensor, as %repeated does"),
        ("[d0 mod 6, d1]", "[0, 0]", "result 1, %repeated, has still the coordinates [0, 0]"),
        ("[d0 mod 6, d1]", "[d0 floordiv 2, d1]", "this repeats each row at once, as %interleaved does"),
        ("[d0 floordiv 8, d0 mod 8]", "[0, 0]", "result 2, %flat, has still the coordinates [0, 0]"),
        ("[d0 floordiv 8, d0 mod 8]", "[d0 mod 6, d0 floordiv 6]",
         "the elements are taken column by column; the rows of %x have 8 elements, and follow each other"),
        (reshape, "[0, 0]", "result 3, %reshaped, has still the coordinates [0, 0]"),
        (reshape, "[d0, d1 mod 8]",
         "each row starts at a row of %x; but row 1 of the result begins with element 12 of the flattened tensor"),
    )  # fmt: skip
    require_equal(program, parsed(solution), mistakes=mistakes)
    _require_maps(program, 4)
    return "right: element n of the flattened tensor is at [n floordiv 8, n mod 8], whatever n is computed from"


def judge_pad(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[2].solution
    exclusive = "the upper bound of a domain is exclusive"
    mistakes = with_mistakes(
        solution,
        ("%x[d0 - 1, d1 - 1] where 0 <= d0 - 1 < 6 and 0 <= d1 - 1 < 8", "%x[d0, d1] where 0 <= d0 < 6 and 0 <= d1 < 8",
         "%x is in the upper left corner; the border is missing above and on the left"),
        ("%x[d0 - 1, d1 - 1] where 0 <= d0 - 1 < 6 and 0 <= d1 - 1 < 8",
         "%x[d0 - 1, d1 - 2] where 0 <= d0 - 1 < 6 and 0 <= d1 - 2 < 8",
         "there are two columns of zeros on the left and one on the right"),
        ("0 <= d0 - 1 < 6", "0 <= d0 - 1 < 5", f"the last row of %x is dropped: {exclusive}"),
        ("0 <= d1 - 1 < 8", "0 <= d1 - 1 < 7", f"the last column of %x is dropped: {exclusive}"),
        ("0 <= d0 - 1 < 6", "0 <= d0 - 1 < 0", "the domain is empty, so that all elements are zero"),
    )  # fmt: skip
    require_equal(program, parsed(solution), mistakes=mistakes)
    _require_maps(program, 1)
    return "right: 48 of 88 elements are read from %x, and the border costs no memory"


def judge_compose(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[3].solution
    old = "%x[5 - d1, d0] where 0 <= d0 - 1 < 5"
    mistakes = with_mistakes(
        solution,
        (old, "%x[5 - d1, d0] where 0 <= d0 < 6", "the first row must be zero: %3 has a domain"),
        (old, "%x[5 - d1, d0 - 1] where 0 <= d0 - 1 < 5", "the slice of %1 is missing: it adds 1 to the coordinate"),
        (old, "%x[d1, d0] where 0 <= d0 - 1 < 5", "the reversal of %2 is missing"),
        (old, "%x[5 - d0, d1] where 0 <= d0 - 1 < 5", "the transposition of %0 is missing"),
        (old, "%x[d0, 5 - d1] where 0 <= d0 - 1 < 5", "the transposition of %0 is missing"),
    )
    require_equal(program, parsed(solution), mistakes=mistakes)
    _require_maps(program, 1)
    return "right: one index map in place of 4; the compiler composes them in the same way"


def judge_im2col(answer: Answer) -> str:
    program, solution = answer.program(), CHAPTER.exercises[4].solution
    row, column = "d0 floordiv 8 + d1 floordiv 3 - 1", "d0 mod 8 + d1 mod 3 - 1"
    both = f"%x[{row}, {column}]\n      where 0 <= {row} < 6 and 0 <= {column} < 8"
    swapped = "d0 floordiv 8 + d1 mod 3 - 1", "d0 mod 8 + d1 floordiv 3 - 1"
    corner = row.removesuffix(" - 1"), column.removesuffix(" - 1")
    inner = "d0 floordiv 8", "d0 mod 8"
    mistakes = with_mistakes(
        solution,
        (f"0 <= {row} < 6", "0 <= d0 < 0", "the domain is empty, so that all elements are zero"),
        *(
            (both, f"%x[{r}, {c}] where 0 <= {r} < 6 and 0 <= {c} < 8", sentence)
            for (r, c), sentence in (
                (swapped, "the rows and columns of the window are exchanged: column 1 is the pixel above, column 3 the "
                 "pixel on the left"),
                (corner, "the window begins at the pixel; column 4, not column 0, is the pixel itself"),
                (inner, "all columns are the pixel itself: the position in the window, d1, is missing"),
            )
        ),
        (f"where 0 <= {row} < 6 and 0 <= {column} < 8", f"where 1 <= {row} < 6 and 0 <= {column} < 8",
         "neighbours in row 0 of the image are zero"),
    )  # fmt: skip
    require_equal(program, parsed(solution), mistakes=mistakes)
    _require_maps(program, 2)
    return "right: a convolution is an index map, a product and a sum; a matmul differs only in its index maps"


CHAPTER = Chapter(
    __package__ or "",
    "Index maps",
    [
        Exercise(
            "views",
            "Transpose, slice, flip, skip",
            ".mlir",
            judge_views,
            (
                "Choose an element of the result, such as [0, 1]. Where is it in %x? And [1, 0], [2, 3]?",
                "The result of %flipped at [0, d1] is row 5 of %x, at [1, d1] row 4.",
                "Column 0 of %slice is column 2 of %x. Column d1 of %even is column 2 * d1.",
            ),
        ),
        Exercise(
            "reshapes",
            "Repeat and reshape",
            ".mlir",
            judge_reshapes,
            (
                "`d0 floordiv 2` is 0, 0, 1, 1, 2, 2, ... `d0 mod 6` is 0, 1, 2, 3, 4, 5, 0, 1, ...",
                "%x has 8 elements in a row. Element 11 of the flattened tensor is in row 1, and there at column 3.",
                "A reshape keeps the position in the flattened tensor. Element [d0, d1] of a 4x12 tensor has the "
                "position d0 * 12 + d1.",
            ),
        ),
        Exercise(
            "pad",
            "A border of zeros",
            ".mlir",
            judge_pad,
            (
                "Element [0, 0] of %x is at [1, 1] of the result. So the coordinates are `d0 - 1` and ...?",
                "The domain says for which elements the coordinates are inside of %x. It has a condition for the rows "
                "and one for the columns, joined by `and`.",
                "The two columns on the right need no thought: the upper bound of the domain excludes them.",
            ),
        ),
        Exercise(
            "compose",
            "Four maps as one",
            ".mlir",
            judge_compose,
            (
                "Begin at the end. Element [d0, d1] of %3 is element [d0 - 1, d1] of %2. Where is that in %1?",
                "Insert the coordinates: %2[a, b] is %1[a, 5 - b], with a = d0 - 1 and b = d1.",
                "The domain of %3 stays as it is.",
            ),
        ),
        Exercise(
            "im2col",
            "A convolution as one index map",
            ".mlir",
            judge_im2col,
            (
                "Pixel d0 of the flattened image is at row `d0 floordiv 8` and column `d0 mod 8`.",
                "Column d1 of %patches is at row `d1 floordiv 3` and column `d1 mod 3` of the 3x3 window, whose middle "
                "is [1, 1].",
                "Add both rows and subtract 1, and the same for the columns. The domain has the same two expressions.",
            ),
        ),
    ],
)
