"""Where buffers lie in one allocation: those that are in use at the same time lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects.kernel.host import aligned


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes` that the steps `first` to `last` use."""

    first: int
    last: int
    bytes: int


def place(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Where in the arena each buffer begins, and how many bytes the arena has.

    The largest are placed first, each at the lowest place that is free while it lives.
    """
    sizes = [aligned(b.bytes) for b in buffers]
    beside = _in_use_together(buffers)
    offsets = [-1] * len(buffers)
    for i in sorted(range(len(buffers)), key=lambda i: (-sizes[i], buffers[i].first)):
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in beside[i] if offsets[j] >= 0)
        offset = 0
        for begin, end in taken:
            if offset + sizes[i] <= begin:
                break
            offset = max(offset, end)
        offsets[i] = offset
    return offsets, max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)


def _in_use_together(buffers: Sequence[Lifetime]) -> list[list[int]]:
    """For each buffer, those that are in use in a step in which it is, too."""
    found: list[list[int]] = [[] for _ in buffers]
    live: list[int] = []
    for i in sorted(range(len(buffers)), key=lambda i: buffers[i].first):
        live = [j for j in live if buffers[j].last >= buffers[i].first]
        for j in live:
            found[i].append(j)
            found[j].append(i)
        live.append(i)
    return found
