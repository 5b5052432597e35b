"""Bounds of loops over the chunks of a reduction, which skip chunks that are masked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineSymExpr

from ....dialects import loop, tile
from ....dialects.loop.dependence import Dependence
from ....dialects.shapes.affine import DIM, Form, number_of, range_of
from ....dialects.shapes.extents import Count, fewest_tiles, most, most_tiles
from ...analysis.integer_forms import Forms
from ...analysis.masks import half_spaces, scattered
from .emitter import Bounds, Coordinates, Dim, Emitter, shape

WORTHWHILE = 16
"""Bounds are computed only if they skip at least one in this many chunks on average. Loops with constant bounds can be
unrolled, such as those over the window of a convolution, where only the border of the image is masked."""


class ChunkBounds:
    """Emitter of the bounds of loops over chunks, for the reductions of one nest.

    Bounds follow from half-spaces: affine forms that are at least 0 wherever a term contributes to the reduction. For
    example `i - k >= 0` in causal attention bounds the chunks of k by the last row i of the block.
    """

    def __init__(self, emitter: Emitter, dependence: Dependence) -> None:
        self.emitter = emitter
        self.dependence = dependence
        self.forms = Forms()

    def of(
        self, stages: Sequence[loop.ReduceOp], looped: Sequence[int], counts: Sequence[Count], chunks: Sequence[int]
    ) -> list[Bounds]:
        """Returns the bounds of loops over chunks.

        Args:
            stages: the reduction, or all stages of a staged reduction.
            looped: positions of the reduction indices with loops.
            counts: number of chunks of each reduction index.
            chunks: extent of a chunk of each reduction index.

        Returns:
            Start and stop for each index of `looped`, as numbers of chunks.
        """
        e = self.emitter
        spaces = half_spaces(stages, self.forms, self.dependence)
        result: list[Bounds] = []
        for i in looped:
            index = stages[0].body.block.args[i]
            number = self.forms.of(index)
            count = counts[i]
            start, stop = e.number(0), e.number(count)
            for space in spaces:
                terms = dict(space.terms)
                coefficient = terms.pop(number.terms[0][0], 0) if number is not None else 0
                if coefficient:
                    other_terms = Form(tuple(terms.items()), space.constant)
                    at, highest = self._highest(other_terms)
                    value = self._limit(at, highest, coefficient, chunks[i], count)
                    if value is None:
                        continue
                    if coefficient > 0:
                        start = value if start is e.number(0) else self._merged(arith.MaxSIOp, start, value)
                    else:
                        stop = value if stop is e.number(count) else self._merged(arith.MinSIOp, stop, value)
            result.append((start, stop))
        return result

    def _highest(self, form: Form) -> tuple[Coordinates, AffineExpr]:
        """Returns the maximum of `form` as an expression of the counters of the enclosing loops, and its
        coordinates."""
        at, total = Coordinates(()), AffineExpr.constant(form.constant)
        dims: Mapping[SSAValue, Dim] = self.emitter.dims
        for atom, factor in form.terms:
            dim = dims.get(self.forms.indices[number_of(atom)]) if atom[0] == DIM else None
            if dim is None or dim.rank is not None or dim.depth > self.emitter.depth:
                bounds = self.forms.simplifier.interval(Form(((atom, factor),), 0))
                assert bounds is not None
                total = total + bounds[1]
                continue
            last = min(dim.tile, most(dim.extent)) - 1
            total = total + max(0, factor * last)
            if dim.counter is not None:
                total = total + at.symbol(dim.counter, most_tiles(dim.count), dim.depth) * (factor * dim.tile)
        return at, total

    def _limit(
        self, at: Coordinates, highest: AffineExpr, coefficient: int, chunk: int, count: Count
    ) -> SSAValue | None:
        """Returns the first chunk, or the end of the chunks, in which `coefficient * index + highest` may be at least
        0.

        Returns None if the bound excludes no chunk, or too few.
        """
        e, step = self.emitter, abs(coefficient) * chunk
        if coefficient < 0:
            expr = highest // step + 1
        else:
            expr = ((highest + coefficient * (chunk - 1)) // step) * -1
        (expr,) = at.map((expr,)).results
        lo, hi = _range_of(at, expr)
        most_chunks = most_tiles(count)
        if (coefficient < 0 and lo >= most_chunks) or (coefficient > 0 and hi <= 0):
            return None
        samples = _samples(at, expr)
        outside = [max(0, min(most_chunks, n if coefficient > 0 else most_chunks - n)) for n in samples]
        if outside and WORTHWHILE * sum(outside) < most_chunks * len(outside):
            return None
        access, _, symbols = at.access((expr,), ())
        value = e.insert(tile.AffineOp(access, symbols, IndexType()), at.depth).results[0]
        if coefficient < 0 and hi > fewest_tiles(count):
            return self._merged(arith.MinSIOp, value, e.number(count))
        if coefficient > 0 and lo < 0:
            return self._merged(arith.MaxSIOp, value, e.number(0))
        return value

    def _merged(self, kind: type[arith.MinSIOp] | type[arith.MaxSIOp], a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emitter.insert(kind(a, b), self.emitter.depth).results[0]


def _range_of(at: Coordinates, expr: AffineExpr) -> tuple[int, int]:
    """Returns the least and the greatest value of an expression in symbols of `at`, all of them bounded."""
    values = range_of(expr, shape(at.dims), [*at.ranges.values()])
    assert values is not None
    return values[0], values[1] - 1


SAMPLES = 64
"""Maximum number of values of an expression that are averaged."""


def _samples(at: Coordinates, expr: AffineExpr) -> list[int]:
    """Returns values of an expression in symbols of `at`: all values if it has only one symbol of known range, some of
    them if those are many; none if it has several symbols."""
    positions = sorted({e.position for e in expr.dfs() if isinstance(e, AffineSymExpr)})
    values = range(1)
    if positions:
        bound = [*at.ranges.values()][positions[0]]
        if len(positions) > 1 or not isinstance(bound, int | tuple):
            return []
        values = range(bound) if isinstance(bound, int) else range(*bound)
    chosen = scattered(values.start, values.stop, SAMPLES)
    return [expr.eval([], [v if i in positions else 0 for i in range(len(at.ranges))]) for v in chosen]
