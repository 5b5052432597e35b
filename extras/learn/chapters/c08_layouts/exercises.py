"""Exercises of chapter 8: layouts of tiles in registers and in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from .....dialects import tile
from .....dialects.layouts import linear_of, shared_of
from .....dialects.layouts.linear import Bases, Linear, Shared, dimension_bits
from ...answers import Answer
from ...course import Chapter, Exercise
from ...judges import PASSES, parsed
from ...verdicts import Wrong
from .accesses import (
    bases_of_list,
    dot_faults,
    is_element,
    require_bijective,
    require_free,
    require_pieces,
    require_simulated,
    shuffles,
)

HELD = Linear((16, 32), ((0, 1), (0, 2), (4, 1)), ((0, 4), (0, 8), (0, 16), (1, 0), (2, 0)), ((8, 0),))
"""Layout of exercise 8.1."""

QUESTIONS = ((0, 0, 0), (3, 1, 0), (2, 24, 1), (5, 0, 0))
"""Register, lane and warp of the asked elements."""

ELEMENTS = ((0, 20), (12, 1))
"""Elements whose holders are asked."""

LARGEST = 1 << 16
"""Bound of wrong coordinates whose reason is looked for."""

MOST_SHUFFLES = 4

SIDE = 32
"""Rows and columns of the tile of exercise 8.4."""


def judge_holders(answer: Answer) -> str:
    names = answer.namespace()
    elements, holders = (answer.value(names, n) for n in ("elements", "holders"))
    for name, value, keys in (("elements", elements, QUESTIONS), ("holders", holders, ELEMENTS)):
        if not isinstance(value, Mapping) or {*value} != {*keys}:
            raise Wrong(f"expected {name} to have the keys {', '.join(map(str, keys))}")
        for key in keys:
            if value[key] is ...:
                raise Wrong(f"{name}[{key}] is still a hole (...): replace it")
    for key in QUESTIONS:
        if not is_element(elements[key], (LARGEST, LARGEST)):
            raise Wrong(f"expected elements[{key}] to be an element from [0, 0] to [15, 31], but got {elements[key]!r}")
        if (actual := tuple(elements[key])) != HELD.apply(*key):
            raise Wrong(f"elements[{key}] is {[*actual]}; {_reason(key, actual)}")
    for element in ELEMENTS:
        _require_holder(element, holders[element])
    return "right: bases of set bits, joined by XOR; [0, 1] ^ [4, 1] is [4, 0], which is no sum"


def _reason(key: tuple[int, int, int], actual: tuple[int, ...]) -> str:
    """Returns a text about a wrong element."""
    bases = _set_bases(key)
    joined = " ^ ".join(str([*b]) for b in bases)
    sums = tuple(map(sum, zip(*bases, strict=True)))
    products = tuple(
        sum(n * part[0][d] for n, part in zip(key, HELD.parts, strict=True)) for d in range(len(HELD.shape))
    )
    if actual == sums:
        return f"that is the sum of the bases {', '.join(str([*b]) for b in bases)}, but XOR joins them: 1 ^ 1 is 0"
    if actual == HELD.apply(*key)[::-1]:
        return "row and column are exchanged"
    if actual == products:
        return "that is each number times its first basis; take a basis for each bit of the number that is 1"
    return f"register {key[0]:b}, lane {key[1]:b} and warp {key[2]:b} in binary have the bases {joined}"


def _set_bases(key: tuple[int, int, int]) -> list[tuple[int, ...]]:
    return [b for n, part in zip(key, HELD.parts, strict=True) for bit, b in enumerate(part) if n >> bit & 1]


def _require_holder(element: tuple[int, int], value: Any) -> None:
    """Requires a register, lane and warp that hold an element of `HELD`. Raises Wrong."""
    numbers = (HELD.registers, HELD.lanes, HELD.warps)
    if not is_element(value, numbers):
        raise Wrong(f"expected holders[{element}] to be (register, lane, warp) below {numbers}, but got {value!r}")
    if (actual := HELD.apply(*value)) != element:
        raise Wrong(
            f"holders[{element}] is {tuple(value)}, which holds {[*actual]}; it differs from the element by "
            f"{[a ^ e for a, e in zip(actual, element, strict=True)]}: which basis contributes that?"
        )


def judge_pieces(answer: Answer) -> str:
    program = answer.program()
    _, counts = require_simulated(program, _solution(1))
    require_pieces(program, counts)
    return f"right: one load of 16 bytes for each lane; {counts.sectors} sectors of 32 bytes, none in part"


def judge_sums(answer: Answer) -> str:
    program = answer.program()
    _require_layout_of_sums(program)
    module, counts = require_simulated(program, _solution(2))
    if counts.barriers:
        raise Wrong(
            f"the sums are right, but warps exchange them through shared memory, with {counts.barriers} barrier: a "
            "warp must hold whole rows, so no warp basis may have a column"
        )
    require_pieces(program, counts)
    if (count := shuffles(module)) > MOST_SHUFFLES:
        raise Wrong(
            f"no barrier and loads of 16 bytes, but {count} shuffles in each warp; {MOST_SHUFFLES} are enough: a lane "
            "that holds more elements of one row adds them by itself"
        )
    return f"right: no barrier, loads of 16 bytes, {count} shuffles in each warp"


def _require_layout_of_sums(program: ModuleOp) -> None:
    """Requires that the result of a reduction has the layout of its source without the reduced dimension.

    Raises:
        Wrong: the layouts do not fit.
    """
    for op in program.walk():
        if not isinstance(op, tile.ReduceOp):
            continue
        source, sums = linear_of(op.source.type), linear_of(op.result.type)
        if source is None or sums is None or not source.is_surjective:
            continue
        right = source.drop((1,))
        if (sums.lane, sums.warp, {*sums.reg}) != (right.lane, right.warp, {*right.reg}):
            raise Wrong(
                "#sums does not fit #tile: remove the column from each basis of #tile, and then the register bases "
                "that are zero; zero bases of lanes and warps stay"
            )


def judge_banks(answer: Answer) -> str:
    names = answer.namespace()
    shape = (SIDE, SIDE)
    shared = Shared(shape, bases_of_list("offset", answer.value(names, "offset"), shape, 10))
    require_bijective(shared)
    lines = [("writing a row", _line(shape, 1)), ("reading a column", _line(shape, 0))]
    require_free(shared, lines, 4)
    swizzled = sum(all(b) for b in shared.offset)
    return f"right: one wavefront for a row and one for a column, with {swizzled} bases of two coordinates"


def _line(shape: tuple[int, int], dimension: int) -> Linear:
    """Returns the layout of a warp whose lanes hold one row (dimension 1) or one column (dimension 0)."""
    return Linear(shape, (), tuple(dimension_bits(shape, dimension)), ())


def judge_matmul(answer: Answer) -> str:
    program = answer.program()
    _require_bijective_tiles(program)
    _, counts = require_simulated(program, _solution(4))
    faults = dot_faults(program)
    if faults or counts.wavefronts > counts.ideal_wavefronts:
        raise Wrong(
            f"the product is right, but it takes {counts.wavefronts} wavefronts of shared memory; "
            f"{'; '.join(faults) or f'{counts.ideal_wavefronts} are enough'}"
        )
    return f"right: {counts.wavefronts} wavefronts of shared memory, by the template 352"


def _require_bijective_tiles(program: ModuleOp) -> None:
    for op in program.walk():
        if isinstance(op, tile.StageOp) and (shared := shared_of(op.result.type)) is not None:
            bases: Bases = shared.offset
            bases_of_list("offset of a #tile.shared", [*bases], shared.shape, len(bases))
            require_bijective(shared)


def _solution(number: int) -> ModuleOp:
    return parsed(CHAPTER.exercises[number].solution)


CHAPTER = Chapter(
    __package__ or "",
    "Tiles and who holds what",
    [
        Exercise(
            "holders",
            "Read a layout",
            ".py",
            judge_holders,
            (
                "Write the three numbers in binary. Register 3 is 11: its bases are REG[0] and REG[1].",
                "XOR joins the bases, coordinate by coordinate: [0, 1] ^ [0, 2] ^ [0, 4] is [0, 7].",
                "For a holder, look for bases whose XOR is the element. [0, 20] is [0, 4] ^ [0, 16].",
            ),
        ),
        Exercise(
            "pieces",
            "A row in pieces of 16 bytes",
            ".mlir",
            judge_pieces,
            (
                "16 bytes are 8 elements of bf16, in the registers of one lane: elements 0 to 7 in lane 0.",
                "So the bases of the register bits are [1], [2] and [4]. Where does lane 1 begin?",
            ),
            PASSES,
        ),
        Exercise(
            "sums",
            "Sums without a barrier",
            ".mlir",
            judge_sums,
            (
                "The warp basis says what warp 1 holds. If it is a row, each warp has whole rows.",
                "A shuffle is needed for each lane bit along the row, and for each row that a lane holds. With 16 "
                "elements of one row, a lane has one sum, and 4 lane bits cover 256 columns.",
                "#sums is #tile without columns: remove the column of each basis, and register bases that are zero.",
            ),
            PASSES,
        ),
        Exercise(
            "banks",
            "A tile without bank conflicts",
            ".py",
            judge_banks,
            (
                "The bank is the offset modulo 32, the lowest 5 bits. In a column all rows must have different banks.",
                "Let the row change the low bits, too. A basis with two coordinates does that: offset 32 holds [1, 1].",
                "Then element [1, 0] is at offset 32 ^ 1 = 33, in bank 1. Continue with [2, 2].",
            ),
        ),
        Exercise(
            "matmul",
            "A swizzle for ldmatrix",
            ".mlir",
            judge_matmul,
            (
                "A row has 8 pieces of 8 elements. Pieces of 8 rows at one column must be in 8 groups of banks.",
                "As in 8.4, but with pieces: the row changes the bits of the column from 8 on, and not 1, 2 and 4.",
            ),
            PASSES,
        ),
    ],
)
