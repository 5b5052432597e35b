"""Sorting and topk, stable, with NaN as the greatest value. There are three methods:

- *Counting*: the rank of an element is the number of elements that come before it. The work is quadratic in the size n
  of the dimension.
- *Network*: for long dimensions, a bitonic network of log(n) (log(n) + 1) / 2 steps, each of which compares all
  elements in pairs. In a stage of block size k, for j = k/2, k/4, ..., 1, the elements i and i xor j are put in order:
  ascending if i has no bit k. The network moves the original positions of the elements, so that equal elements can be
  distinguished. Source: Batcher: Sorting networks and their applications (AFIPS 1968).
- *Selection*: the first few elements are found one after the other, each as the greatest key below the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ..payload import element_bytes, element_type, is_float, with_element
from ..shapes.extents import Extent, extents_of, fixed, most, static, typical
from .builder import Builder, dims
from .concatenation import joined
from .folds import fold
from .views import permuted, pick, reshape_to, sliced

MAX_COUNTED_ELEMENTS = 1 << 10
"""Maximum size of a dimension for which counting, one launch, is always faster than a network. Tuned by hand."""


MAX_COUNTING_COMPARISONS = 1 << 26
"""Maximum number of comparisons for which longer dimensions are sorted by counting. Tuned by hand."""


COMPARISONS_PER_LAUNCH = 1 << 24
"""Number of comparisons that take as long as a launch. Each step of a fold is one launch. Tuned by hand."""


MAX_UNROLLED_SELECTIONS = 8
"""Maximum number of elements that are selected without a fold."""


def is_long(x: SSAValue, dim: int) -> bool:
    """Returns true if `x` is sorted along `dim` by a network and not by counting."""
    shape = extents_of(x.type)
    n = most(shape[dim])
    return n > MAX_COUNTED_ELEMENTS and prod(map(typical, shape)) * n > MAX_COUNTING_COMPARISONS


def _other_element_dims(rank: int, dim: int) -> list[int]:
    """Returns the dimensions of the pairwise space along which the other element of a pair is placed.

    The pairwise space has the `rank` dimensions of a tensor, and a last one, as long as `dim`. The first element of a
    pair varies along `dim`, the other element along the last dimension, so each element along `dim` meets each."""
    return [rank if d == dim else d for d in range(rank)]


def ordered(b: Builder, x: SSAValue) -> SSAValue:
    """Returns integers with the order of `x`. NaN is the greatest and equal to itself.

    The bits of nonnegative floats are ordered as integers. The order of negative floats is reversed, so their bits are
    reflected."""
    if not is_float(x.type):
        return x
    bits = 8 * element_bytes(x.type)
    key = b.insert(arith.BitcastOp(x, with_element(x.type, IntegerType(bits))))
    key = b.select(b.cmp("lt", key, 0), b.sub(b.like(key, -(1 << bits - 1)), key), key)
    return b.select(b.isnan(x), b.like(key, (1 << bits - 1) - 1), key)


def comes_before(b: Builder, x: SSAValue, y: SSAValue, descending: bool) -> tuple[SSAValue, SSAValue]:
    """Returns two masks: `x` precedes `y`, and both are equal.

    Args:
        b: Builder of the operator.
        x: Left keys, from `ordered`.
        y: Right keys, from `ordered`.
        descending: True if greater keys come first.
    """
    return b.cmp("gt" if descending else "lt", x, y), b.cmp("eq", x, y)


@dataclass(frozen=True)
class Ordering:
    """Order of elements, where an element has a value in each of several tensors."""

    compare: Callable[[Builder, Sequence[SSAValue], Sequence[SSAValue]], tuple[SSAValue, SSAValue]]
    """(builder, keys of x, keys of y) -> two masks: x precedes y, and both are equal."""
    key: Callable[[Builder, SSAValue], SSAValue] = lambda b, x: x
    """(builder, values of one tensor) -> its keys."""


def by_value(descending: bool) -> Ordering:
    """Returns the order of the values of one tensor. `descending`: true if greater values come first."""
    return Ordering(lambda b, x, y: comes_before(b, x[0], y[0], descending), lambda b, x: ordered(b, b.working(x)))


def ranks(b: Builder, values: Sequence[SSAValue], dim: int, ordering: Ordering) -> SSAValue:
    """Returns the position of each element in the stably sorted order along `dim`, as i32, by counting.

    Args:
        b: Builder of the operator.
        values: Tensors of one shape.
        dim: Dimension, not negative.
        ordering: Order of the elements.
    """
    shape, rank = extents_of(values[0].type), len(extents_of(values[0].type))
    space, keys = [*shape, shape[dim]], [ordering.key(b, x) for x in values]
    first_keys = [b.place(key, range(rank), space) for key in keys]
    other_keys = [b.place(key, _other_element_dims(rank, dim), space) for key in keys]
    before, same = ordering.compare(b, other_keys, first_keys)
    before = b.either(before, b.both(same, b.cmp("lt", _number(b, rank, space), _number(b, dim, space))))
    return b.reduce("add", b.cast(before, i32), [rank])


def _number(b: Builder, dim: int, space: Sequence[Extent]) -> SSAValue:
    """Returns the index along `dim` as i32, which is twice as fast as i64 in vectors."""
    return b.cast(b.iota(dim, space), i32)


def order(b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None) -> SSAValue:
    """Returns the original indices of the sorted elements along `dim`, as i64.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        descending: True if greater elements come first.
        count: Number of elements to return; all if None.
    """
    if count and uses_selection(x, dim, count):
        return order_by_selection(b, x, dim, descending, count)
    return sorted_places(b, [x], dim, by_value(descending), count)


def sorted_places(
    b: Builder, values: Sequence[SSAValue], dim: int, ordering: Ordering, count: int | None = None
) -> SSAValue:
    """Returns the original indices of the stably sorted elements along `dim`, as i64.

    Args:
        b: Builder of the operator.
        values: Tensors of one shape.
        dim: Dimension, not negative.
        ordering: Order of the elements.
        count: Number of elements to return; all if None.
    """
    shape, rank = extents_of(values[0].type), len(extents_of(values[0].type))
    result_size = shape[dim] if count is None else count
    if is_long(values[0], dim):
        return sliced(b, order_by_network(b, values, dim, ordering), dim, 0, result_size)
    space = [*shape[:dim], result_size, *shape[dim + 1 :], shape[dim]]
    position = b.place(ranks(b, values, dim, ordering), _other_element_dims(rank, dim), space)
    hit, place = b.cmp("eq", position, _number(b, dim, space)), _number(b, rank, space)
    return b.cast(b.reduce("max", b.select(hit, place, b.like(place, 0)), [rank]), i64)


def sorted_along(b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None) -> list[SSAValue]:
    """Returns the sorted values along `dim` and their original indices.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        descending: True if greater elements come first.
        count: Number of elements to return; all if None.
    """
    shape = extents_of(x.type)
    if not shape:
        flat = reshape_to(b, x, [1])
        return [reshape_to(b, v, []) for v in sorted_along(b, flat, 0, descending, count)]
    index = order(b, b.working(x), dim, descending, count)
    if 0 in shape:
        return [b.map(x, dims(len(shape)), extents_of(index.type)), index]
    return [pick(b, x, dim, index), index]


def uses_selection(x: SSAValue, dim: int, count: int) -> bool:
    """Returns true if the first `count` elements of the order along `dim` are found by selection.

    Args:
        x: Tensor.
        dim: Dimension, not negative.
        count: Number of elements.
    """
    shape, element = extents_of(x.type), element_type(x.type)
    narrow = element_bytes(element) <= 4
    if not narrow or not all(isinstance(n, int) for n in shape) or 0 in shape:
        return False
    n, total = fixed(shape[dim]), prod(static(shape))
    if is_long(x, dim):
        return count <= n.bit_length() ** 2 // 2
    return count * (total + (COMPARISONS_PER_LAUNCH if count > MAX_UNROLLED_SELECTIONS else 0)) < total * n // 4


def order_by_selection(b: Builder, x: SSAValue, dim: int, descending: bool, count: int) -> SSAValue:
    """Returns the original indices of the first `count` elements of the stably sorted order, by selection.

    Each is the greatest key below the previous one. Keys are unique, because their low halves contain the index.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        descending: True if greater elements come first.
        count: Number of elements.
    """
    shape = extents_of(x.type)
    n = fixed(shape[dim])
    row_shape = [*shape[:dim], *shape[dim + 1 :]]

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        keys = _keys(b, shared[0], dim, descending)
        remaining = b.cmp("lt", keys, b.keep(carries[0], [dim], shape))
        return [b.reduce("max", b.select(remaining, keys, b.like(keys, -(1 << 63))), [dim])]

    key = b.constant((1 << 63) - 1, row_shape, i64)
    if count <= MAX_UNROLLED_SELECTIONS:
        selected_keys = list[SSAValue]()
        for _ in range(count):
            (key,) = step(b, [key], [], [x])
            selected_keys.append(reshape_to(b, key, [*row_shape[:dim], 1, *row_shape[dim:]]))
        keys = joined(b, selected_keys, dim)
    else:
        (history,) = fold(b, step, count, [key], [], [x], [0])
        keys = permuted(b, history, [*range(1, dim + 1), 0, *range(dim + 1, len(shape))])
    return b.sub(b.like(keys, n - 1), b.insert(arith.AndIOp(keys, b.like(keys, (1 << 32) - 1))))


def _keys(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """Returns unique i64 keys, greater for elements that come earlier in the order.

    The high half is the value, the low half the number of elements after this one along `dim`."""
    key = b.cast(ordered(b, x), i64)
    key = key if descending else b.plus(b.neg(key), -1)
    shape = extents_of(x.type)
    behind = b.sub(b.like(key, fixed(shape[dim]) - 1), b.iota(dim, shape))
    return b.add(b.scaled(key, 1 << 32), behind)


def order_by_network(b: Builder, values: Sequence[SSAValue], dim: int, ordering: Ordering) -> SSAValue:
    """Returns the original indices of the stably sorted elements along `dim`, as i64, by a bitonic network.

    Args:
        b: Builder of the operator.
        values: Tensors of one shape.
        dim: Dimension, not negative.
        ordering: Order of the elements.
    """
    shape = extents_of(values[0].type)
    axes = [*(d for d in range(len(shape)) if d != dim), dim]
    moved = [permuted(b, x, axes) for x in values]
    n = fixed(shape[dim])
    moved_shape = extents_of(moved[0].type)
    rows = b.count(moved_shape[:-1])
    stages = (n - 1).bit_length()
    space = [rows, 1 << stages]

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        return [_exchanged(b, carries[0], slices[0], shared, ordering)]

    steps = stages * (stages + 1) // 2
    start, plan = b.iota(1, space), _plan(b, stages)
    (places,) = fold(b, step, steps, [start], [plan], [reshape_to(b, x, [rows, n]) for x in moved], [])
    result = reshape_to(b, sliced(b, places, 1, 0, n), moved_shape)
    return permuted(b, result, [axes.index(d) for d in range(len(shape))])


def _exchanged(b: Builder, place: SSAValue, plan: SSAValue, values: Sequence[SSAValue], ordering: Ordering) -> SSAValue:
    """Returns the positions after one step of the network: i gets the element of i or of its partner.

    Args:
        b: Builder of the operator.
        place: Original position of the element at each i, of shape [rows, power of two].
        plan: The numbers (k, j) of this step.
        values: Values of the elements, of shape [rows, n].
        ordering: Order of the elements.
    """
    space, n = extents_of(place.type), fixed(extents_of(values[0].type)[1])
    block, distance = (b.map(plan, [AffineExpr.constant(i)], space) for i in range(2))
    i = b.iota(1, space)
    partner = b.insert(arith.XOrIOp(i, distance))
    other = pick(b, place, 1, partner)
    first_keys, other_keys = ([ordering.key(b, pick(b, v, 1, p)) for v in values] for p in (place, other))
    before, same = ordering.compare(b, first_keys, other_keys)
    before = b.either(before, b.both(same, b.cmp("lt", place, other)))
    if n < fixed(space[1]):  # Positions from n on have no element, and come after all others.
        real, other_real = b.cmp("lt", place, n), b.cmp("lt", other, n)
        earlier = b.cmp("lt", place, other)
        before = b.select(b.both(real, other_real), before, earlier)
    ascending = b.cmp("eq", b.both(i, block), 0)
    keeps_first = b.cmp("eq", b.cmp("lt", i, partner), ascending)
    return b.select(b.cmp("eq", before, keeps_first), place, other)


def _plan(b: Builder, stages: int) -> SSAValue:
    """Returns the numbers (k, j) of every step, as a tensor of shape [steps, 2]."""
    steps = stages * (stages + 1) // 2
    # Stage s = 1, 2, ... has s steps, so it starts at step s (s - 1) / 2. Step t is in the last stage that starts by t.
    t, s = b.iota(0, [steps, stages]), b.plus(b.iota(1, [steps, stages]), 1)
    begun = b.cmp("le", _half_product(b, s), t)
    stage = b.reduce("add", b.cast(begun, i64), [1])
    exponent = b.plus(b.sub(stage, b.sub(b.iota(0, [steps]), _half_product(b, stage))), -1)
    both = [b.insert(arith.ShLIOp(b.like(stage, 1), v)) for v in (stage, exponent)]
    block, distance = (b.place(v, [0], [steps, 2]) for v in both)
    return b.select(b.cmp("eq", b.iota(1, [steps, 2]), 0), block, distance)


def _half_product(b: Builder, s: SSAValue) -> SSAValue:
    return b.floordiv(b.mul(s, b.plus(s, -1)), b.like(s, 2))
