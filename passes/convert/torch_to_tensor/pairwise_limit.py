"""How much work an operator may be that looks at all pairs of two sets of elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....dialects.shapes.extents import Extent, most
from ....errors import UnsupportedError

MOST_PAIRS = 1 << 37
"""About a tenth of a second of a large GPU. What would take longer needs another algorithm."""


def check_pairs(space: Sequence[Extent], argument: str) -> None:
    """Refuse an operator that looks at every element of `space`, if those are too many; `argument` is what is large.

    Raises UnsupportedError."""
    pairs = prod(most(n) for n in space)
    if pairs > MOST_PAIRS:
        raise UnsupportedError(
            f"too large: looks at {pairs} pairs of elements, more than {MOST_PAIRS}", argument=argument
        )
