"""Layouts of products of a warpgroup (`wgmma`): its accumulator, and how its operands lie in shared memory.

What the hardware demands is written down in `wgmma.py` and `tma.py` of the kernel dialect; here it is made, and
recognised, as linear layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..kernel.tma import SWIZZLES
from ..kernel.warp_specialize import WARPGROUP
from ..kernel.wgmma import MOST_COLUMNS, ROWS, SLICE_BYTES
from .linear import Coordinate, Linear, Shared, log2

PIECE = 16
"""Bytes that a swizzle moves together."""

PERIOD = 128
"""Bytes after which the banks of shared memory repeat, from which a swizzle counts rows."""

LEAST_COLUMNS = 8
"""Columns of the smallest product."""


def warpgroup_accumulator(shape: Sequence[int], warps: int) -> Linear | str:
    """The accumulator of a tile [m, n] in `warps` warps: each warpgroup has 64 rows, and all columns or, where there
    are more warpgroups than 64 rows, an equal part of them. A text says why there is none."""
    m, n = shape
    groups = warps // WARPGROUP
    down = m // ROWS
    if warps % WARPGROUP or not down or m % ROWS:
        return f"{m} rows in {warps} warps are no whole warpgroups of {ROWS} rows"
    if down > groups:
        return f"{m} rows are more than {groups} warpgroups have, {ROWS} each"
    across = groups // down
    width = n // across
    if not LEAST_COLUMNS <= width <= MOST_COLUMNS:
        return f"{width} columns for a warpgroup; it takes {LEAST_COLUMNS} to {MOST_COLUMNS}"
    reg = [(0, 1), (8, 0), *((0, 8 << i) for i in range(log2(width) - 3))]
    lane = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    warp = [(16, 0), (32, 0), *((ROWS << i, 0) for i in range(log2(down)))]
    warp += [(0, width << i) for i in range(log2(across))]
    return Linear((m, n), tuple(reg), tuple(lane), tuple(warp))


def part_of_group(shape: Sequence[int], groups: Sequence[Coordinate]) -> tuple[int, ...] | None:
    """The extents of the part of a tile that one warpgroup holds, where the bits of the warpgroup's number, whose bases
    are `groups`, are the highest of the tile's indices; None if they are anything else, or there are none."""
    left = list(shape)
    for basis in reversed(groups):
        d = next((d for d, c in enumerate(basis) if c), None)
        if d is None or any(c for e, c in enumerate(basis) if e != d) or 2 * basis[d] != left[d]:
            return None
        left[d] //= 2
    return tuple(left) if groups else None


class Boxes(NamedTuple):
    """A tile as boxes lie in shared memory: rows of `row` elements along dimension `fast`, swizzled by all their bytes;
    one panel of rows behind the other."""

    fast: int
    row: int
    swizzle: int

    def layout(self, shape: Sequence[int], bytes_each: int) -> Shared:
        """The layout of a tile of two dimensions."""
        slow = 1 - self.fast

        def basis(along_fast: int, along_slow: int) -> Coordinate:
            return (along_fast, along_slow) if self.fast == 0 else (along_slow, along_fast)

        fast_bits = [basis(1 << i, 0) for i in range(log2(shape[self.fast]))]
        inside = log2(self.row)
        first, pieces = log2(PERIOD // self.swizzle), log2(self.swizzle // PIECE)
        rows = [
            basis((PIECE // bytes_each) << i - first if first <= i < first + pieces else 0, 1 << i)
            for i in range(log2(shape[slow]))
        ]
        return Shared(tuple(shape), (*fast_bits[:inside], *rows, *fast_bits[inside:]))


def boxes_along(shape: Sequence[int], fast: int, bytes_each: int, widest: int = max(SWIZZLES)) -> Boxes | None:
    """The widest boxes of a tile of two dimensions with rows along `fast`, of at most `widest` bytes; None if it is too
    small for any."""
    width = min(shape[fast] * bytes_each, widest)
    if width not in SWIZZLES or width < SLICE_BYTES or shape[1 - fast] < 8:
        return None
    return Boxes(fast, width // bytes_each, width)


def boxes_of(shared: Shared, bytes_each: int) -> Boxes | None:
    """How a shared layout lies in boxes, if it does."""
    if len(shared.shape) != 2:
        return None
    for fast in (1, 0):
        for widest in SWIZZLES[:0:-1]:
            boxes = boxes_along(shared.shape, fast, bytes_each, widest)
            if boxes is not None and boxes.layout(shared.shape, bytes_each) == shared:
                return boxes
    return None
