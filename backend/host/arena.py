"""Placement of scratch buffers in one allocation, the arena. Buffers with disjoint lifetimes may share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects.kernel import aligned


@dataclass(frozen=True)
class Lifetime:
    """Lifetime and size of a buffer.

    Attributes:
        first, last: first and last step that use it.
        bytes: size.
    """

    first: int
    last: int
    bytes: int


def place(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Returns the offset of each buffer in the arena, and the bytes of the arena.

    The largest buffers are placed first, at the lowest offset that is free during their lifetime.
    """
    sizes = [aligned(b.bytes) for b in buffers]
    conflicts = _in_use_together(buffers)
    offsets = [-1] * len(buffers)
    for i in sorted(range(len(buffers)), key=lambda i: (-sizes[i], buffers[i].first)):
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in conflicts[i] if offsets[j] >= 0)
        offset = 0
        for begin, end in taken:
            if offset + sizes[i] <= begin:
                break
            offset = max(offset, end)
        offsets[i] = offset
    return offsets, max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)


def _in_use_together(buffers: Sequence[Lifetime]) -> list[list[int]]:
    """Returns, for each buffer, the buffers whose lifetimes overlap with it."""
    together, live = [list[int]() for _ in buffers], list[int]()
    for i in sorted(range(len(buffers)), key=lambda i: buffers[i].first):
        live = [j for j in live if buffers[j].last >= buffers[i].first]
        for j in live:
            together[i].append(j)
            together[j].append(i)
        live.append(i)
    return together
