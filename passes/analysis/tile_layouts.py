"""Between layout attributes in the IR and the algebra of linear layouts; the cheapest way to convert layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import tile
from ...dialects.layouts.attributes import LayoutAttr, SharedAttr, bases_of
from ...dialects.layouts.conversion import Exchange, find_exchange
from ...dialects.layouts.linear import LANES, Bases, Linear, Shared
from ...dialects.payload import element_bytes, shape_of
from ...dialects.support.locations import refused
from ...dialects.tile import encoding_of
from ...dialects.tile.dot import without_flight
from ...errors import CompileError


def linear_of(t: Attribute) -> Linear | None:
    """The register layout of a tile type, if it has one; of sums in flight as well."""
    t = without_flight(t)
    e = encoding_of(t)
    if not isinstance(e, LayoutAttr):
        return None
    return Linear(shape_of(t), bases_of(e.reg), bases_of(e.lane), bases_of(e.warp))


def shared_of(t: Attribute) -> Shared | None:
    """The shared layout of a tile type, if it has one."""
    e = encoding_of(t)
    return Shared(shape_of(t), bases_of(e.offset)) if isinstance(e, SharedAttr) else None


def shared_of_type(t: Attribute) -> Shared:
    """The shared layout of a type that is known to have one."""
    found = shared_of(t)
    assert found is not None
    return found


@overload
def attr_of(layout: Linear) -> LayoutAttr: ...
@overload
def attr_of(layout: Shared) -> SharedAttr: ...
def attr_of(layout: Linear | Shared) -> LayoutAttr | SharedAttr:
    """The attribute of a layout."""
    if isinstance(layout, Shared):
        return SharedAttr.get(layout.offset)
    return LayoutAttr.get(layout.reg, layout.lane, layout.warp)


def layout_in_registers(value: SSAValue, warps: int, lanes: int = LANES) -> Linear:
    """The register layout of a tile in a block of `warps` warps of `lanes` lanes. Raises `ScheduleError` if that
    is missing or bad."""
    found = linear_of(value.type)
    if found is None:
        raise _refused(value, "has no layout in registers (tile-assign-layouts gives it one)")
    if (found.lanes, found.warps) != (lanes, warps):
        raise _refused(value, f"has a layout with {len(found.lane)} lane and {len(found.warp)} warp bits")
    _verify_bases(value, found.shape, found.bases)
    if not found.is_surjective:
        raise _refused(value, "has a layout that leaves out elements")
    return found


def layout_in_shared(value: SSAValue) -> Shared:
    """The shared layout of a tile. Raises `ScheduleError` if it has none, or one that is no bijection."""
    found = shared_of(value.type)
    if found is None:
        raise _refused(value, "is not in shared memory (tile-stage-dot-operands puts it there)")
    _verify_bases(value, found.shape, found.offset)
    if not found.is_bijective:
        raise _refused(value, "has a shared layout that is no bijection")
    return found


def _verify_bases(value: SSAValue, shape: Sequence[int], bases: Bases) -> None:
    if any(len(b) != len(shape) or any(not 0 <= c < n for c, n in zip(b, shape, strict=True)) for b in bases):
        raise _refused(value, "has a layout with bases outside of the tile")


def _refused(value: SSAValue, reason: str) -> CompileError:
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    name = f"%{value.name_hint}: " if value.name_hint else ""
    return refused(op, f"{name}a tile {value.type} {reason}")


WORD = 4
"""Bytes that a shuffle moves."""

CHOICES = 2
"""So many registers are chosen by a condition in the time that one is shuffled."""

BARRIERS = 16
"""In that time too: what two barriers cost a warp."""


def route(source: Linear, target: Linear, bytes_each: int) -> str:
    """The cheapest way from one layout to another, of elements of `bytes_each` bytes: `registers`, `shuffles` or
    `shared`.

    A shuffle moves as much as a store to shared memory or a load does, 128 bytes of a warp, and there are two of those,
    with barriers between them.
    """
    if target.picks(source) is not None:
        return "registers"
    found = find_exchange(source, target)
    if found is None:
        return "shared"
    moved = (source.compact()[0].registers + target.registers) * bytes_each / WORD
    return "shuffles" if price(found, source, bytes_each) <= moved + BARRIERS else "shared"


def way_of(op: tile.ConvertLayoutOp, source: Linear, target: Linear) -> str:
    """The way of a conversion between tiles of these layouts: as it says, or the cheapest."""
    return route(source, target, element_bytes(op.source.type)) if op.via is None else op.via.data


def price(found: Exchange, source: Linear, bytes_each: int) -> float:
    """What an exchange costs, in registers that are shuffled."""
    each = max(1, bytes_each // WORD)
    halves = 2 if bytes_each < WORD and found.paired else 1
    return (found.shuffles + found.choices(source.registers) / CHOICES) * each / halves
