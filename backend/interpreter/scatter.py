"""Combining values into the elements of an array, where several may go to one place."""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute

from ...dialects.tensor import ReductionKind
from .domains import Array, TypedDomain, combine_values


def scatter_into(
    domain: TypedDomain, kind: ReductionKind, memory: Array, places: Array, values: Array, element: Attribute
) -> None:
    """Combine `values[i]` into `memory[places[i]]`, all of one dimension, in place.

    Of values that go to one place neighbours are combined first, then neighbours of these: as many rounds as the
    greatest number of them has binary digits, and work linear in the values.
    """
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    while places.size:
        starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
        rank = np.arange(places.size) - np.repeat(starts, np.diff(np.append(starts, places.size)))
        if not rank.any():
            break
        second = np.flatnonzero(rank % 2)
        values = values.copy()
        values[second - 1] = combine_values(domain, kind, values[second - 1], values[second], element)
        kept = rank % 2 == 0
        places, values = places[kept], values[kept]
    memory[places] = combine_values(domain, kind, memory[places], values, element)
