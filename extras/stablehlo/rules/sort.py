"""Rules of sorting. The order is a region of the operation, which is applied to pairs of elements."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.sorting import Ordering, sorted_along, sorted_places
from ....dialects.tensor.views import pick
from ..registry import Body, Builder, HloOperation, rule
from .integers import ordered


def _ordering(body: Body) -> Ordering:
    """Returns the order of elements whose region compares (x0, y0, x1, y1, ...)."""

    def is_before(b: Builder, x: Sequence[SSAValue], y: Sequence[SSAValue]) -> SSAValue:
        return body(b, [v for pair in zip(x, y, strict=True) for v in pair])[0]

    def compare(b: Builder, x: Sequence[SSAValue], y: Sequence[SSAValue]) -> tuple[SSAValue, SSAValue]:
        before = is_before(b, x, y)
        return before, b.negated(b.either(before, is_before(b, y, x)))

    return Ordering(compare)


@rule("stablehlo.sort")
def sort(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    rank = len(op.shape)
    if 0 in op.shape or rank == 0:
        return operands
    dim = op.int("dimension", -1) % rank
    places = sorted_places(b, operands, dim, _ordering(op.body()))
    return [pick(b, x, dim, places) for x in operands]


@rule("chlo.top_k")
def top_k(b: Builder, op: HloOperation, x: SSAValue) -> Sequence[SSAValue]:
    x = ordered(b, x, op.unsigned)
    values, places = sorted_along(b, x, len(extents_of(x.type)) - 1, True, op.int("k"))
    return [ordered(b, values, op.unsigned), b.cast(places, op.results[1].element)]
