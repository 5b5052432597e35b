"""Sorting by counting: the rank of an element is how many come before it.

Exact and stable, NaN the greatest. The work grows with the square of the sorted dimension's size, so long dimensions
are sorted by a network of comparisons: log(n) (log(n) + 1) / 2 steps, each comparing all elements in pairs.
Batcher: Sorting networks and their applications (AFIPS 1968), the bitonic one: in a stage of block size k, step by step
for j = k/2, k/4, ..., 1, the elements i and i xor j are put in order, ascending where i has no bit k. What moves is
where an element came from, so equal elements are told apart and the order is stable.
The first few of a sorted order are selected one by one, each as the greatest of those behind the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_bytes, element_type, is_float, with_element
from ....dialects.shapes.extents import Extent, extents_of, fixed, least, most, static, typical
from ....dialects.tensor.builder import Builder, dims, normal_dim
from ....errors import ShapeError
from .concat import joined
from .random import integers
from .recurrent import fold
from .registry import decomposes
from .views import permuted, pick, reshape_to, sliced

COUNTED = 1 << 10
"""Elements up to which counting, which is one launch, is faster than a network."""

MOST_COMPARISONS = 1 << 26
"""Comparisons that counting may take for longer dimensions."""

SELECTION = 1 << 24
"""Comparisons that take as long as a launch, of which each step of a fold is one."""

UNROLLED = 8
"""Elements that are selected without a fold at most."""


def is_long(x: SSAValue, dim: int) -> bool:
    """Returns true if `x` is sorted along `dim` by a network, not by counting."""
    shape = extents_of(x.type)
    n = most(shape[dim])
    return n > COUNTED and prod(map(typical, shape)) * n > MOST_COMPARISONS


def _turned(rank: int, dim: int) -> list[int]:
    """Where the dimensions of a tensor lie if `dim` is run through by a new last one."""
    return [rank if d == dim else d for d in range(rank)]


def ordered(b: Builder, x: SSAValue) -> SSAValue:
    """Numbers in the order of `x`: of floats, of which NaN is equal to itself and the greatest, whole ones, by their
    bits, which count up from zero on and are signed."""
    if not is_float(x.type):
        return x
    bits = 8 * element_bytes(x.type)
    key = b.insert(arith.BitcastOp(x, with_element(x.type, IntegerType(bits))))
    key = b.select(b.cmp("lt", key, 0), b.sub(b.like(key, -(1 << bits - 1)), key), key)
    return b.select(b.isnan(x), b.like(key, (1 << bits - 1) - 1), key)


def comes_before(b: Builder, x: SSAValue, y: SSAValue, descending: bool) -> tuple[SSAValue, SSAValue]:
    """Where `x` has to stand before `y`, and where they are equal; both are `ordered`."""
    return b.cmp("gt" if descending else "lt", x, y), b.cmp("eq", x, y)


def ranks(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """For each element its position in the stably sorted order along `dim`, as i32."""
    shape, rank, keys = extents_of(x.type), len(extents_of(x.type)), ordered(b, x)
    space = [*shape, shape[dim]]
    own, other = b.place(keys, range(rank), space), b.place(keys, _turned(rank, dim), space)
    before, same = comes_before(b, other, own, descending)
    before = b.either(before, b.both(same, b.cmp("lt", _number(b, rank, space), _number(b, dim, space))))
    return b.reduce("add", b.cast(before, i32), [rank])


def _number(b: Builder, dim: int, space: Sequence[Extent]) -> SSAValue:
    """The index `dim` of a space in which one is compared with many: in 32 bits twice as many at once."""
    return b.cast(b.iota(dim, space), i32)


def order(b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None) -> SSAValue:
    """Where the elements of the sorted order, or the first `count` of them, lie along `dim`."""
    shape, rank = extents_of(x.type), len(extents_of(x.type))
    wanted = shape[dim] if count is None else count
    if count and selects(x, dim, count):
        return order_by_selection(b, x, dim, descending, count)
    if is_long(x, dim):
        return sliced(b, order_by_network(b, x, dim, descending), dim, 0, wanted)
    space = [*shape[:dim], wanted, *shape[dim + 1 :], shape[dim]]
    position = b.place(ranks(b, x, dim, descending), _turned(rank, dim), space)
    hit, place = b.cmp("eq", position, _number(b, dim, space)), _number(b, rank, space)
    return b.cast(b.reduce("max", b.select(hit, place, b.like(place, 0)), [rank]), i64)


def sorted_along(b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None) -> list[SSAValue]:
    """(values, places) of the sorted elements; all of them unless `count` says how many."""
    shape = extents_of(x.type)
    if not shape:
        flat = reshape_to(b, x, [1])
        return [reshape_to(b, v, []) for v in sorted_along(b, flat, 0, descending, count)]
    index = order(b, b.working(x), dim, descending, count)
    if 0 in shape:
        return [b.map(x, dims(len(shape)), extents_of(index.type)), index]
    return [pick(b, x, dim, index), index]


@decomposes("sort", "sort.stable")
def sort(b: Builder, self: SSAValue, dim: int, descending: bool, stable: bool | None = None) -> list[SSAValue]:
    return sorted_along(b, self, normal_dim(dim, len(extents_of(self.type))), descending)


@decomposes("randperm")
def randperm(b: Builder, n: int, dtype: Attribute | None, generator: SSAValue | None) -> SSAValue:
    return order(b, integers(b, generator, 0, 2**63 - 1), 0, False) if n else b.constant(0, [0], i64)


@decomposes("topk")
def topk(b: Builder, self: SSAValue, k: int, dim: int, largest: bool, sorted: bool) -> list[SSAValue]:
    dim = normal_dim(dim, len(extents_of(self.type)))
    if not 0 <= k <= (least(extents_of(self.type)[dim]) if extents_of(self.type) else 1):
        raise ShapeError(f"{k} of {extents_of(self.type)[dim]} elements", argument="k")
    if not extents_of(self.type) and k == 0:
        raise b.unsupported("k", "none of a single element")
    return sorted_along(b, self, dim, largest, k)


def selects(x: SSAValue, dim: int, count: int) -> bool:
    """Whether the first `count` elements of the order along `dim` are found one by one."""
    shape, own = extents_of(x.type), element_type(x.type)
    narrow = element_bytes(own) <= 4
    if not narrow or not all(isinstance(n, int) for n in shape) or 0 in shape:
        return False
    n, total = fixed(shape[dim]), prod(static(shape))
    if is_long(x, dim):
        return count <= n.bit_length() ** 2 // 2
    return count * (total + (SELECTION if count > UNROLLED else 0)) < total * n // 4


def order_by_selection(b: Builder, x: SSAValue, dim: int, descending: bool, count: int) -> SSAValue:
    """Where the first `count` elements of the stably sorted order along `dim` lie: each is the greatest of the keys
    below the one before. Keys are unique, as the low half of one says where its element lies, the last one the least.
    """
    shape = extents_of(x.type)
    n = fixed(shape[dim])
    rest = [*shape[:dim], *shape[dim + 1 :]]

    def step(b: Builder, carries: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        keys = _keys(b, shared[0], dim, descending)
        left = b.cmp("lt", keys, b.keep(carries[0], [dim], shape))
        return [b.reduce("max", b.select(left, keys, b.like(keys, -(1 << 63))), [dim])]

    found = b.constant((1 << 63) - 1, rest, i64)
    if count <= UNROLLED:
        each = list[SSAValue]()
        for _ in range(count):
            (found,) = step(b, [found], [], [x])
            each.append(reshape_to(b, found, [*rest[:dim], 1, *rest[dim:]]))
        keys = joined(b, each, dim)
    else:
        (history,) = fold(b, step, count, [found], [], [x], [0])
        keys = permuted(b, history, [*range(1, dim + 1), 0, *range(dim + 1, len(shape))])
    return b.sub(b.like(keys, n - 1), b.insert(arith.AndIOp(keys, b.like(keys, (1 << 32) - 1))))


def _keys(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """Numbers of 64 bits, the greater the earlier an element comes along `dim`: its value, how many lie behind."""
    key = b.cast(ordered(b, x), i64)
    key = key if descending else b.plus(b.neg(key), -1)
    shape = extents_of(x.type)
    behind = b.sub(b.like(key, fixed(shape[dim]) - 1), b.iota(dim, shape))
    return b.add(b.scaled(key, 1 << 32), behind)


def order_by_network(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """For each position of the stably sorted order along `dim` where its element lies, as i64 in the shape of `x`."""
    shape = extents_of(x.type)
    axes = [*(d for d in range(len(shape)) if d != dim), dim]
    moved = permuted(b, x, axes)
    n = fixed(shape[dim])
    rows = b.count(extents_of(moved.type)[:-1])
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
    other = pick(b, place, 1, partner)
    own_key, other_key = (ordered(b, b.working(pick(b, keys, 1, p))) for p in (place, other))
    before, same = comes_before(b, own_key, other_key, descending)
    before = b.either(before, b.both(same, b.cmp("lt", place, other)))
    if n < fixed(space[1]):  # what is no element stands behind all that are
        real, other_real = b.cmp("lt", place, n), b.cmp("lt", other, n)
        earlier = b.cmp("lt", place, other)
        before = b.select(b.both(real, other_real), before, earlier)
    ascending = b.cmp("eq", b.both(i, block), 0)
    wanted = b.cmp("eq", b.cmp("lt", i, partner), ascending)
    return b.select(b.cmp("eq", before, wanted), place, other)


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
    return b.floordiv(b.mul(s, b.plus(s, -1)), b.like(s, 2))
