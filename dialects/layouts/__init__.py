"""Layouts of tiles: the attributes, the types that have them, and the layouts of values.

A layout says who holds which element of a tile. Linear layouts over GF(2) are the one layout class: a layout sends the
bits of (register, lane, warp) to coordinates. Every bit owns a basis vector, and the coordinates of a holder are the
exclusive or of the bases of its set bits. Broadcast (a zero basis), slices, matrix fragments and swizzles are all of
this form. After Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2", 2025.
The algebra is in `linear.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias, overload

from xdsl.dialects.builtin import ArrayAttr, IntAttr, TensorType
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser

from ...errors import CompileError
from ..support.attribute_format import FormattedAttr, Parameter
from ..support.locations import refused
from .linear import LANES, Bases, Linear, Shared

BasesAttr: TypeAlias = ArrayAttr[ArrayAttr[IntAttr]]


@lru_cache(1024)
def bases_attr(bases: Bases) -> BasesAttr:
    """The attribute of `bases`, made once: a kernel has few layouts, and asks for them again and again."""
    return ArrayAttr([ArrayAttr([IntAttr(c) for c in b]) for b in bases])


def bases_of(attr: BasesAttr) -> Bases:
    return tuple(tuple(c.data for c in b) for b in attr)


def parse_bases(parser: AttrParser) -> BasesAttr:
    def vector() -> tuple[int, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer))

    return bases_attr(tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, vector)))


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


@irdl_attr_definition
class SharedAttr(FormattedAttr):
    """A tile in shared memory: `#tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>`; bit `i` of the element offset owns
    basis `i`, a bijection between offsets and coordinates."""

    name = "tile.shared"
    FORMAT = ("offset = ", BASES)
    offset: BasesAttr


def encoding_of(t: Attribute) -> Attribute | None:
    """The layout of a tile type (`LayoutAttr` or `SharedAttr`), or None where none is assigned."""
    return t.encoding if isinstance(t, TensorType) and isinstance(t.encoding, LayoutAttr | SharedAttr) else None


def is_in_shared(t: Attribute) -> bool:
    """Whether a tile type says that the tile is in shared memory, or on its way there."""
    return isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr)


@irdl_attr_definition
class AsyncAccumulatorsType(ParametrizedAttribute, TypeAttribute):
    """The sums of contractions in flight: `!tile.async_accumulators<tensor<64x64xf32, #acc>>`."""

    name = "tile.async_accumulators"
    tile: TensorType[Attribute]


def without_flight(t: Attribute) -> Attribute:
    """The type of a tile, also of one whose sums are in flight."""
    return t.tile if isinstance(t, AsyncAccumulatorsType) else t


def linear_of(t: Attribute) -> Linear | None:
    """Returns the register layout of a tile type, or of sums in flight, or None."""
    t = without_flight(t)
    if isinstance(t, TensorType) and isinstance(e := t.encoding, LayoutAttr):
        return Linear(t.get_shape(), bases_of(e.reg), bases_of(e.lane), bases_of(e.warp))
    return None


def shared_of(t: Attribute) -> Shared | None:
    """Returns the shared layout of a tile type, or None."""
    if isinstance(t, TensorType) and isinstance(t.encoding, SharedAttr):
        return Shared(t.get_shape(), bases_of(t.encoding.offset))
    return None


def shared_of_type(t: Attribute) -> Shared:
    """Returns the shared layout of a type that is known to have one."""
    layout = shared_of(t)
    assert layout is not None
    return layout


@overload
def attr_of(layout: Linear) -> LayoutAttr: ...
@overload
def attr_of(layout: Shared) -> SharedAttr: ...
def attr_of(layout: Linear | Shared) -> LayoutAttr | SharedAttr:
    """The attribute of a layout."""
    if isinstance(layout, Shared):
        return SharedAttr(bases_attr(layout.offset))
    return LayoutAttr(*map(bases_attr, layout.parts))


def layout_in_registers(value: SSAValue, warps: int, lanes: int = LANES) -> Linear:
    """Returns the register layout of a tile in a block of `warps` warps. Raises ScheduleError if it is missing or
    bad."""
    layout = linear_of(value.type)
    if layout is None:
        raise _refused(value, "has no layout in registers (tile-assign-layouts gives it one)")
    if (layout.lanes, layout.warps) != (lanes, warps):
        raise _refused(value, f"has a layout with {len(layout.lane)} lane and {len(layout.warp)} warp bits")
    _verify_bases(value, layout.shape, layout.bases)
    if not layout.is_surjective:
        raise _refused(value, "has a layout that leaves out elements")
    return layout


def layout_in_shared(value: SSAValue) -> Shared:
    """Returns the shared layout of a tile. Raises ScheduleError if it has none, or one that is no bijection."""
    layout = shared_of(value.type)
    if layout is None:
        raise _refused(value, "is not in shared memory (tile-stage-dot-operands puts it there)")
    _verify_bases(value, layout.shape, layout.offset)
    if not layout.is_bijective:
        raise _refused(value, "has a shared layout that is no bijection")
    return layout


def _verify_bases(value: SSAValue, shape: Sequence[int], bases: Bases) -> None:
    if any(len(b) != len(shape) or any(not 0 <= c < n for c, n in zip(b, shape, strict=True)) for b in bases):
        raise _refused(value, "has a layout with bases outside of the tile")


def _refused(value: SSAValue, reason: str) -> CompileError:
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    name = f"%{value.name_hint}: " if value.name_hint else ""
    return refused(op, f"{name}a tile {value.type} {reason}")
