"""The cheapest way to convert layouts: by moves between a thread's registers, by shuffles, or through shared memory."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.layouts.conversion import Exchange, find_exchange
from ...dialects.layouts.linear import Linear
from ...dialects.payload import element_bytes

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
