"""Choosing where the elements of a tile are kept in shared memory, so that the banks are not fought over.

A swizzle is not looked up but searched for: every slow bit of the offset may be added, by exclusive or, to one of the
bits that choose the bank, and the choice with the fewest wavefronts over all accesses wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dialects.linear_layout import Linear, Shared, ordered, register_width, wavefronts


@dataclass(frozen=True)
class Reader:
    """An access to a shared tile: by whom, of elements of how many bytes, and how often compared with others."""

    layout: Linear
    bytes_each: int
    weight: int = 1

    def cost(self, shared: Shared) -> int:
        """Wavefronts of one warp for all its registers, weighted."""
        regs = shared.images(self.layout.reg)
        lanes = shared.images(self.layout.lane)
        vec = register_width(regs, (*lanes, *shared.images(self.layout.warp)), 16 // self.bytes_each)
        return wavefronts(lanes, vec, self.bytes_each) * (self.layout.registers // vec) * self.weight


def choose_shared(shape: Sequence[int], readers: Sequence[Reader], order: Sequence[int] | None = None) -> Shared:
    """The shared layout with dimensions `order` (fastest first; by default the best of all rotations of row-major) on
    which `readers` take the fewest wavefronts; the plainest of equals."""
    rank = len(shape)
    orders = (
        [order] if order is not None else [tuple(reversed(range(rank))), *([(0, *range(1, rank))] if rank > 1 else [])]
    )
    found = [_swizzled(tuple(shape), o, readers) for o in orders]
    return min(found, key=lambda pair: pair[0])[1]


def _swizzled(shape: tuple[int, ...], order: Sequence[int], readers: Sequence[Reader]) -> tuple[int, Shared]:
    """The best swizzle on one order of dimensions, found bit by bit: its cost and the layout."""
    shared = ordered(shape, order)
    best = sum(r.cost(shared) for r in readers)
    pairs: list[tuple[int, int]] = []
    ideal = sum(r.layout.registers * r.bytes_each * r.weight // 4 for r in readers)
    fast = min(shape[order[0]], 128 // min(r.bytes_each for r in readers))
    source = shape[order[0]]
    while source < shared.size and best > ideal:
        target = fast // 2
        choice: tuple[int, int] | None = None
        while target >= 1:
            candidate = ordered(shape, order, [*pairs, (source, target)])
            cost = sum(r.cost(candidate) for r in readers)
            if cost < best:
                best, shared, choice = cost, candidate, (source, target)
            target //= 2
        if choice is not None:
            pairs.append(choice)
        source *= 2
    return best, shared
