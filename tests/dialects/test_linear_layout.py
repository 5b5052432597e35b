"""Linear layouts: every operation against an enumeration of registers, lanes and warps."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from deplodock.dialects.layouts.linear import (
    LANES,
    Linear,
    Shared,
    Span,
    blocked,
    log2,
    ordered,
    pack,
    patch,
    register_width,
    unpack,
    wavefronts,
)


@cache
def holders(layout: Linear) -> dict[tuple[int, ...], list[tuple[int, int, int]]]:
    """Returns for each coordinate the (register, lane, warp) that have this element."""
    found: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for warp, lane, reg in itertools.product(range(layout.warps), range(LANES), range(layout.registers)):
        found.setdefault(layout.apply(reg, lane, warp), []).append((reg, lane, warp))
    return found


def size(shape: tuple[int, ...]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


LAYOUTS = [
    blocked((512,), (0,), 2, 4),
    blocked((8,), (0,), 4, 2),
    blocked((8, 32), (1, 0), 4, 2),
    blocked((16, 16), (0, 1), 2, 4),
    blocked((2, 4, 32), (2, 0, 1), 2, 2, (1, 0, 2)),
    blocked((1, 32), (1, 0), 1, 1),
    patch((16, 32), 2, 4),
    patch((32, 32), 4, 2, row_in_warp=True),
    patch((8, 16), 2, 8),
    patch((16, 4), 4, 2),
    Linear((4, 8), ((0, 1), (1, 2)), ((0, 2), (1, 4), (0, 4), (2, 0), (0, 0)), ((0, 0),)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_properties_agree_with_enumeration(layout: Linear) -> None:
    found = holders(layout)
    assert layout.is_surjective == (len(found) == size(layout.shape))
    assert layout.is_injective == all(len(who) == 1 for who in found.values())
    assert layout.is_bijective == (layout.is_surjective and layout.is_injective)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_apply_is_linear(layout: Linear) -> None:
    for a, b in itertools.product(
        [(0, 1, 0), (layout.registers >> 1, 4, 0), (layout.registers - 1, 21, layout.warps - 1)], repeat=2
    ):
        mixed = layout.apply(*(x ^ y for x, y in zip(a, b, strict=True)))
        assert mixed == tuple(x ^ y for x, y in zip(layout.apply(*a), layout.apply(*b), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_holding_redundant_bits_at_zero_leaves_one_holder_of_each(layout: Linear) -> None:
    redundant = layout.redundant()
    for who in holders(layout).values():
        first = [
            (r, lane, w)
            for r, lane, w in who
            if not any(r >> b & 1 for b in redundant.reg)
            and not any(lane >> b & 1 for b in redundant.lane)
            and not any(w >> b & 1 for b in redundant.warp)
        ]
        assert len(first) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_compact_keeps_the_registers_it_names(layout: Linear) -> None:
    compact, left = layout.compact()
    for r, lane, w in itertools.product(range(compact.registers), (0, 5, 31), range(layout.warps)):
        assert compact.apply(r, lane, w) == layout.apply(left[r], lane, w)
    assert len(set(holders(compact))) == len(set(holders(layout)))


@pytest.mark.parametrize("layout", LAYOUTS[2:], ids=str)
@pytest.mark.parametrize("d", [0, 1])
def test_a_slice_holds_what_is_left_of_the_coordinates(layout: Linear, d: int) -> None:
    slice_, all_registers = layout.drop([d]), layout.without([d])
    kept = [tuple(c for i, c in enumerate(x) if i != d) for x in holders(layout)]
    assert set(holders(slice_)) == set(kept)
    for lane in (0, 7, 31):
        own = {slice_.apply(r, lane, 0) for r in range(slice_.registers)}
        assert len(own) == slice_.registers
        assert own == {all_registers.apply(r, lane, 0) for r in range(layout.registers)}
    picks = all_registers.picks(slice_)
    assert picks is not None
    for r, lane, w in itertools.product(range(layout.registers), (0, 13, 31), range(layout.warps)):
        assert slice_.apply(picks[r], lane, w) == all_registers.apply(r, lane, w)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS[2:] if layout.is_injective], ids=str)
@pytest.mark.parametrize("d", [0, 1])
def test_reduction_plan_sums_every_element_once(layout: Linear, d: int) -> None:
    plan = layout.reduction([d])
    assert plan is not None
    values = {x: 1 << i for i, x in enumerate(sorted(holders(layout)))}
    partial: dict[tuple[int, int, int], int] = {}
    for r, lane, w in itertools.product(range(layout.registers), range(LANES), range(layout.warps)):
        kept = r & ~sum(1 << b for b in plan.registers)
        partial[kept, lane, w] = partial.get((kept, lane, w), 0) + values[layout.apply(r, lane, w)]
    for mask in plan.shuffles:
        partial = {(r, lane, w): v + partial[r, lane ^ mask, w] for (r, lane, w), v in partial.items()}
    for bit in plan.warps:
        partial = {(r, lane, w): v + partial[r, lane, w ^ 1 << bit] for (r, lane, w), v in partial.items()}
    for (r, lane, w), total in partial.items():
        x = layout.apply(r, lane, w)
        assert total == sum(v for y, v in values.items() if all(a == b for i, (a, b) in enumerate(zip(x, y)) if i != d))


def test_reduction_declines_mixed_bases() -> None:
    mixed = Linear((2, 2), ((1, 1), (0, 1)), ((0, 0),) * 5, ())
    assert mixed.reduction([0]) is None
    assert Linear((2, 2), ((1, 0), (1, 0), (0, 1)), ((0, 0),) * 5, ()).reduction([0]) is None


def test_moves_between_registers() -> None:
    a = blocked((64, 64), (1, 0), 4, 4)
    turned = Linear(a.shape, a.reg[::-1], a.lane, a.warp)
    picks = turned.picks(a)
    assert picks is not None
    assert all(a.apply(picks[r], 9, 2) == turned.apply(r, 9, 2) for r in range(a.registers))
    assert a.picks(blocked((64, 64), (0, 1), 4, 4)) is None


def test_blocked_puts_vectors_then_lanes_then_warps_along_the_fast_dimension() -> None:
    layout = blocked((32, 2048), (1, 0), 4, 2)
    assert [layout.apply(r, 0, 0)[1] for r in range(4)] == [0, 1, 2, 3]
    assert layout.apply(0, 1, 0) == (0, 4)
    assert layout.apply(0, 0, 1) == (0, 128)
    assert layout.registers * LANES * 2 == 32 * 2048
    assert blocked((4,), (0,), 4, 1).redundant().lane == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("row_in_warp", [False, True])
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("m", [1, 16, 64])
def test_patches_that_share_rows_agree_on_them(m: int, warps: int, row_in_warp: bool) -> None:
    patches = [patch((m, n), 4, warps, row_in_warp) for n in (1, 4, 32, 128)]
    assert all(p.is_surjective for p in patches)
    assert len({p.drop([1]) for p in patches}) == 1


@pytest.mark.parametrize("swizzle", [[], [(16, 4)], [(16, 4), (32, 8), (64, 4)]])
def test_shared_layouts_are_bijections(swizzle: list[tuple[int, int]]) -> None:
    shared = ordered((8, 16), (1, 0), swizzle)
    assert shared.is_bijective
    places = {shared.place(unpack((8, 16), i)) for i in range(128)}
    assert places == set(range(128))
    for a, b in itertools.product([(3, 5), (7, 0), (4, 15)], repeat=2):
        assert shared.place([x ^ y for x, y in zip(a, b, strict=True)]) == shared.place(a) ^ shared.place(b)
    if not swizzle:
        assert all(shared.place(unpack((8, 16), i)) == i for i in range(128))


def test_shared_that_misses_elements_is_found() -> None:
    assert not Shared((2, 2), ((0, 1), (0, 1))).is_bijective
    with pytest.raises(ValueError, match="expected a coordinate"):
        Shared((2, 2), ((0, 1),)).place((1, 0))


def brute_force_wavefronts(offsets: list[int], vec: int, element_bytes: int) -> int:
    """Returns the wavefronts of an access to shared memory, of at most 128 bytes each, by counting banks."""
    lanes_at_once = min(LANES, 128 // (vec * element_bytes))
    total = 0
    for first in range(0, LANES, lanes_at_once):
        words = {
            byte // 4
            for lane in range(first, first + lanes_at_once)
            for byte in range(offsets[lane] * element_bytes, (offsets[lane] + vec) * element_bytes)
        }
        total += max(sum(1 for w in words if w % 32 == bank) for bank in range(32))
    return total


@pytest.mark.parametrize(
    ("lanes", "vec", "element_bytes", "expected"),
    [
        ((1, 2, 4, 8, 16), 1, 4, 1),
        ((32, 64, 128, 256, 512), 1, 4, 32),
        ((0, 0, 0, 0, 0), 1, 4, 1),
        ((4, 8, 16, 32, 64), 4, 4, 4),
        ((2, 4, 8, 16, 32), 1, 4, 2),
        ((64, 128, 1, 2, 4), 1, 4, 4),
        ((64 | 8, 128 | 16, 1, 2, 4), 1, 4, 1),
        ((1, 2, 4, 8, 16), 1, 2, 1),
        ((8, 16, 32, 64, 128), 8, 2, 4),
    ],
)
def test_wavefronts(lanes: tuple[int, ...], vec: int, element_bytes: int, expected: int) -> None:
    offsets = [0] * LANES
    for lane in range(LANES):
        for bit in range(5):
            offsets[lane] ^= lanes[bit] if lane >> bit & 1 else 0
    assert wavefronts(lanes, vec, element_bytes) == expected == brute_force_wavefronts(offsets, vec, element_bytes)


def test_register_width_needs_consecutive_registers_and_aligned_rest() -> None:
    assert register_width([1, 2, 64], [4, 8], 4) == 4
    assert register_width([1, 2, 64], [4, 8], 2) == 2
    assert register_width([1, 2, 64], [2, 8], 4) == 2
    assert register_width([2, 1], [4], 4) == 1
    assert register_width([1, 2, 6], [8], 4) == 2


def test_span_solves_what_it_spans() -> None:
    vectors = [0b1100, 0b0110, 0b1010, 0b0001]
    span = Span(vectors)
    assert span.rank == 3
    for v in range(16):
        combination = span.solve(v)
        reachable = any(
            v == (vectors[0] * a) ^ (vectors[1] * b) ^ (vectors[2] * c) ^ (vectors[3] * d)
            for a, b, c, d in itertools.product((0, 1), repeat=4)
        )
        assert (combination is not None) == reachable
        if combination is not None:
            total = 0
            for i, x in enumerate(vectors):
                total ^= x if combination >> i & 1 else 0
            assert total == v


def test_pack_and_unpack_are_inverse() -> None:
    assert [pack((2, 4), unpack((2, 4), i)) for i in range(8)] == list(range(8))
    assert unpack((2, 4), 6) == (1, 2)
    assert [log2(n) for n in (1, 2, 1024)] == [0, 1, 10]
    for bad in (0, 3, -4):
        with pytest.raises(ValueError, match="power of two"):
            log2(bad)
