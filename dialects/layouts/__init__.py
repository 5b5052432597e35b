"""Layout attributes: who holds which element of a tile. Linear layouts over GF(2) are the one layout class.

A layout sends the bits of (register, lane, warp) to coordinates: every bit owns a basis vector, and the coordinates
of a holder are the exclusive or of the bases of its set bits. Broadcast (a zero basis), slices, matrix fragments and
swizzles are all of this form. After Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor
Computation Using F2", 2025. The algebra is in `linear.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser

from ..support.attribute_format import FormattedAttr, Parameter

Bases: TypeAlias = tuple[tuple[int, ...], ...]
BasesAttr: TypeAlias = ArrayAttr[ArrayAttr[IntAttr]]


def bases_attr(bases: Sequence[Sequence[int]]) -> BasesAttr:
    return _bases_attr(tuple(map(tuple, bases)))


@lru_cache(1024)
def _bases_attr(bases: Bases) -> BasesAttr:
    """`bases_attr`, made once: a kernel has few layouts, and asks for them again and again."""
    return ArrayAttr([ArrayAttr([IntAttr(c) for c in b]) for b in bases])


def bases_of(attr: BasesAttr) -> Bases:
    return tuple(tuple(c.data for c in b) for b in attr)


def parse_bases(parser: AttrParser) -> BasesAttr:
    def vector() -> list[int]:
        return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)

    return bases_attr(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, vector))


def format_bases(bases: Bases) -> str:
    """The text that `parse_bases` reads."""
    return "[" + ", ".join(str(list(b)) for b in bases) + "]"


BASES = Parameter(parse_bases, lambda printer, bases: printer.print_string(format_bases(bases_of(bases))))


@irdl_attr_definition
class LayoutAttr(FormattedAttr):
    """A tile in the registers of a block's threads: `#tile.layout<reg = [[0, 1]], lane = [[0, 2], ...], warp = [...]>`.

    Bit `i` of the register number, lane number and warp number owns basis `i` of its list.
    """

    name = "tile.layout"
    FORMAT = ("reg = ", BASES, ", lane = ", BASES, ", warp = ", BASES)
    reg: BasesAttr
    lane: BasesAttr
    warp: BasesAttr

    @staticmethod
    def get(reg: Sequence[Sequence[int]], lane: Sequence[Sequence[int]], warp: Sequence[Sequence[int]]) -> LayoutAttr:
        return LayoutAttr(bases_attr(reg), bases_attr(lane), bases_attr(warp))


@irdl_attr_definition
class SharedAttr(FormattedAttr):
    """A tile in shared memory: `#tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>`; bit `i` of the element offset owns
    basis `i`, a bijection between offsets and coordinates."""

    name = "tile.shared"
    FORMAT = ("offset = ", BASES)
    offset: BasesAttr

    @staticmethod
    def get(offset: Sequence[Sequence[int]]) -> SharedAttr:
        return SharedAttr(bases_attr(offset))
