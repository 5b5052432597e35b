"""Which share of its chunks a block visits, of reductions whose terms count on one side of a mask only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product

import numpy as np
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.loop.dependence import Dependence
from ...dialects.shapes.affine import DIM, Form, number_of
from ..analysis.masks import Forms, half_spaces, hypercube
from .points import Floats, Ints

SAMPLES = 32
"""So many tiles are looked at along an index on which a mask depends."""

FEW = 256
"""Of several such indices so many tiles in all."""


class MaskDensity:
    """The shares of the chunks that are executed, for the reductions `groups`, each a list of stages that run
    together.

    `extents` are those of all indices.
    """

    def __init__(
        self, groups: Sequence[Sequence[loop.ReduceOp]], dependence: Dependence, extents: Mapping[SSAValue, int]
    ) -> None:
        self.groups = groups
        self.dependence = dependence
        self.extents = extents

    @cached_property
    def _spaces(self) -> list[tuple[Sequence[loop.ReduceOp], Forms, list[Form]]]:
        found: list[tuple[Sequence[loop.ReduceOp], Forms, list[Form]]] = []
        for group in self.groups:
            forms = Forms()
            if spaces := half_spaces(group, forms, self.dependence):
                found.append((group, forms, spaces))
        return found

    def shares(self, tile: Mapping[SSAValue, Ints]) -> dict[SSAValue, tuple[Floats, Floats]]:
        """The shares of its chunks that a block visits on average, and that the block with most work visits, for tiles
        of these extents, by reduction index; of what is not here, all. Extents are columns, with a row for each
        schedule."""
        found: dict[SSAValue, tuple[Floats, Floats]] = {}
        for group, forms, spaces in self._spaces:
            own = group[0].body.block.args
            used = [*dict.fromkeys((*forms.indices, *own))]
            rows, where = np.unique(np.stack([tile[i] for i in used], axis=1), axis=0, return_inverse=True)
            tiles = [dict(zip(used, map(int, row), strict=True)) for row in rows]
            for position, index in enumerate(own):
                mean, most = np.array([self._share(index, forms, spaces, t) for t in tiles]).reshape(-1, 2).T
                if (mean < 1).any():
                    pair = mean[where.reshape(-1)], most[where.reshape(-1)]
                    found.update((stage.body.block.args[position], pair) for stage in group)
        return found

    def _share(
        self, index: SSAValue, forms: Forms, spaces: Sequence[Form], tile: Mapping[SSAValue, int]
    ) -> tuple[float, float]:
        number = forms.of(index)
        if number is None:
            return 1.0, 1.0
        own, chunk = number.terms[0][0], tile[index]
        count = -(-self.extents[index] // chunk)
        limits = [s for s in spaces if dict(s.terms).get(own)]
        others = list(dict.fromkeys(a for s in limits for a, _ in s.terms if a != own and a[0] == DIM))
        visits = list[int]()
        for at in self._samples([forms.indices[number_of(a)] for a in others], tile):
            start, stop = 0, count
            for space in limits:
                terms = dict(space.terms)
                coefficient = terms.pop(own)
                values = dict(zip(others, at, strict=True))
                top = space.constant
                for atom, factor in terms.items():
                    if atom not in values:  # it is not of indices alone: anything is possible
                        top = math.inf
                        break
                    size = tile[forms.indices[number_of(atom)]]
                    top += factor * (values[atom] * size + (size - 1 if factor > 0 else 0))
                if math.isinf(top):
                    continue
                if coefficient > 0:  # chunks in which coefficient * (the last of the chunk) + top >= 0
                    start = max(start, -int((top + coefficient * (chunk - 1)) // (coefficient * chunk)))
                else:
                    stop = min(stop, int(top // (-coefficient * chunk)) + 1)
            visits.append(max(0, min(stop, count) - start))
        return (sum(visits) / (len(visits) * count), max(visits) / count) if visits and count else (1.0, 1.0)

    def _samples(self, indices: Sequence[SSAValue], tile: Mapping[SSAValue, int]) -> Iterator[tuple[int, ...]]:
        """Numbers of tiles along `indices`: evenly spread along a single one, together all that there are, or some."""
        counts = [-(-self.extents[index] // tile[index]) for index in indices]
        few = [min(count, SAMPLES) for count in counts]
        if math.prod(few) <= FEW:
            return product(*([(2 * i + 1) * n // (2 * m) for i in range(m)] for n, m in zip(counts, few, strict=True)))
        return zip(*(hypercube(0, n, FEW, axis) for axis, n in enumerate(counts)), strict=True)
