"""What the words of a section of functions.cuh stand for, where there are many cases of them: tables by name."""

from __future__ import annotations

from ....dialects.kernel.mma import MMA_ATOMS, ROWS, MmaAtom, word_elements
from ...dtypes import STRUCTS

_COUNTS = (1, 2, 4)
"""Matrices that a warp moves at once."""

_RANKS = range(1, 6)
"""Dimensions of a TMA box."""


def _numbered(text: str, first: int, count: int, separator: str = ",") -> str:
    """`text` once for each number from `first` on."""
    return separator.join(text.format(n) for n in range(first, first + count))


def _element(atom: MmaAtom) -> dict[str, str]:
    """`t` is the type in C, `own` the struct that it is, if it is one, and a word has `each` elements."""
    t, each = atom.c_type, word_elements(atom.element())
    return {"t": t, "own": t if t in STRUCTS else "", "each": str(each)}


def _matrices() -> list[dict[str, str]]:
    """`count` matrices, whose rows so many `lanes` name: element e of a lane's word is at `row` and `column`. `outputs`
    and `inputs` are the words as operands of assembly, `to` and `of` their numbers there. Only matrices of 16-bit
    elements can be transposed."""
    found: list[dict[str, str]] = []
    for atom in MMA_ATOMS:
        element = _element(atom)
        word = f"{element['each']} * (lane % 4) + e"
        for count in _COUNTS:
            for trans in ("", "_trans")[: int(element["each"])]:
                row, column = (word, "lane / 4") if trans else ("lane / 4", word)
                mode = f"m8n8.x{count}{trans.replace('_', '.')}.shared.b16"
                found.append(element | {"trans": trans, "row": row, "column": column, "mode": mode})
                found[-1] |= {"count": str(count), "lanes": str(ROWS * count)}
                found[-1] |= {"outputs": _numbered('"=r"(u[{}])', 0, count, ", "), "to": _numbered("%{}", 0, count)}
                found[-1] |= {"inputs": _numbered('"r"(u[{}])', 0, count, ", "), "of": _numbered("%{}", 1, count)}
    return found


_WIDEN = {
    "bf16": "x <<= 16;",
    "f16": "const unsigned sign = (x & 0x8000) << 16, e = (x >> 10) & 31, f = x & 0x3ff; "
    "x = sign | (f << 13) | (e == 31 ? 0x7f800000u : (e + 112) << 23); "
    "if (e == 0) { const float v = (float)f * 5.9604644775390625e-8f; __builtin_memcpy(&x, &v, 4); x |= sign; }",
    "float": "x &= 0xffffe000u;",
}
"""From the low bits of `x` to those of a float, in C."""


def _products() -> list[dict[str, str]]:
    """Products of a pair of blocks: `widen` is what makes an element a float."""
    return [
        _element(a) | {"shape": a.shape, "instruction": a.instruction, "widen": _WIDEN[a.c_type]} for a in MMA_ATOMS
    ]


def _boxes() -> list[dict[str, str]]:
    """Boxes of `rank` dimensions, whose coordinates come as in the IR, the fastest dimension last."""
    return [
        {
            "rank": str(rank),
            "ints": _numbered("int c{}", 0, rank, ", "),
            "at": _numbered("c{}", 0, rank, ", "),
            "reversed": ", ".join(f'"r"(c{d})' for d in reversed(range(rank))),
            **{f"from{first}": _numbered("%{}", first, rank, ", ") for first in (2, 3, 4)},
        }
        for rank in _RANKS
    ]


CASES = {"matrices": _matrices(), "products": _products(), "boxes": _boxes()}
