"""Sorting long rows by a network of comparisons: log(n) (log(n) + 1) / 2 steps, each comparing all elements in pairs.

Batcher: Sorting networks and their applications (AFIPS 1968), the bitonic one: in a stage of block size k, step by step
for j = k/2, k/4, ..., 1, the elements i and i xor j are put in order, ascending where i has no bit k. What moves is
where an element came from, so equal elements are told apart and the order is stable.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import tensor
from ....dialects.payload import is_float
from ....dialects.shapes.extents import extents_of, fixed
from ....dialects.tensor.builder import Builder
from .reshape import reshape_to
from .scan_builder import fold
from .views import permuted, sliced


def comes_before(b: Builder, x: SSAValue, y: SSAValue, descending: bool) -> tuple[SSAValue, SSAValue]:
    """Where `x` has to stand before `y`, and where they are equal; NaN is equal to itself and the greatest."""
    before = b.cmp("gt" if descending else "lt", x, y)
    same = b.cmp("eq", x, y)
    if is_float(x.type):
        x_nan, y_nan = b.isnan(x), b.isnan(y)
        last, first = (x_nan, y_nan) if descending else (y_nan, x_nan)
        before = b.either(before, b.both(last, b.negated(first)))
        same = b.either(same, b.both(x_nan, y_nan))
    return before, same


def order_by_network(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """For each position of the stably sorted order along `dim` where its element lies, as i64 in the shape of `x`."""
    shape = extents_of(x.type)
    axes = [*(d for d in range(len(shape)) if d != dim), dim]
    moved = permuted(b, x, axes)
    n = fixed(shape[dim])
    rows = b.algebra.extent(b.algebra.product(extents_of(moved.type)[:-1]))
    stages = (n - 1).bit_length()
    space = [rows, 1 << stages]

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        return [_exchanged(b, carries[0], slices[0], shared[0], descending)]

    steps = stages * (stages + 1) // 2
    (places,) = fold(b, step, steps, [b.iota(1, space)], [_plan(b, stages)], [reshape_to(b, moved, [rows, n])], [])
    found = reshape_to(b, sliced(b, places, 1, 0, n), extents_of(moved.type))
    return permuted(b, found, [axes.index(d) for d in range(len(shape))])


def _exchanged(b: Builder, place: SSAValue, plan: SSAValue, keys: SSAValue, descending: bool) -> SSAValue:
    """`place` after one step: the element at i becomes that of i or of its partner. `plan` is (k, j)."""
    space, n = extents_of(place.type), fixed(extents_of(keys.type)[1])
    block, distance = (b.map(plan, [AffineExpr.constant(i)], space) for i in range(2))
    i = b.iota(1, space)
    partner = b.insert(arith.XOrIOp(i, distance))
    other = _at(b, place, partner)
    own_key, other_key = (b.working(_at(b, keys, p)) for p in (place, other))
    before, same = comes_before(b, own_key, other_key, descending)
    before = b.either(before, b.both(same, b.cmp("lt", place, other)))
    if n < fixed(space[1]):  # what is no element stands behind all that are
        real, other_real = b.cmp("lt", place, n), b.cmp("lt", other, n)
        earlier = b.cmp("lt", place, other)
        before = b.select(b.both(real, other_real), before, earlier)
    ascending = b.cmp("eq", b.both(i, block), 0)
    wanted = b.cmp("eq", b.cmp("lt", i, partner), ascending)
    return b.select(b.cmp("eq", before, wanted), place, other)


def _at(b: Builder, x: SSAValue, column: SSAValue) -> SSAValue:
    """x[row, column[row, i]]"""
    map = AffineMap(2, 1, (AffineExpr.dimension(0), AffineExpr.symbol(0)))
    return b.insert(tensor.GatherOp(x, map, [column]))


def _plan(b: Builder, stages: int) -> SSAValue:
    """(k, j) for every step: [steps, 2]."""
    steps = stages * (stages + 1) // 2
    # Step t belongs to stage s if s (s - 1) / 2 <= t; of its s steps it is number t - s (s - 1) / 2.
    t, s = b.iota(0, [steps, stages]), b.plus(b.iota(1, [steps, stages]), 1)
    begun = b.cmp("le", _half_product(b, s), t)
    stage = b.reduce("add", b.cast(begun, i64), [1])
    exponent = b.plus(b.sub(stage, b.sub(b.iota(0, [steps]), _half_product(b, stage))), -1)
    both = [b.insert(arith.ShLIOp(b.like(stage, 1), v)) for v in (stage, exponent)]
    block, distance = (b.place(v, [0], [steps, 2]) for v in both)
    return b.select(b.cmp("eq", b.iota(1, [steps, 2]), 0), block, distance)


def _half_product(b: Builder, s: SSAValue) -> SSAValue:
    """s (s - 1) / 2"""
    return b.floordiv(b.mul(s, b.plus(s, -1)), b.like(s, 2))
