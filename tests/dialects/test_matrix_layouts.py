"""Layouts of tensor-core operands and accumulators, element by element against the tables of the PTX manual."""

from __future__ import annotations

from itertools import product

import pytest

from deplodock.dialects.kernel.mma import MMA_ATOMS
from deplodock.dialects.layouts.linear import Linear, blocked, patch
from deplodock.dialects.layouts.mma import accumulator, accumulator_bits, fragment, fragments, matrix_rows

TF32, F64 = (next(a for a in MMA_ATOMS if a.ptx_type == t) for t in ("tf32", "f64"))

TILES = [
    ((16, 8), 1, False, 2),
    ((16, 16), 4, False, 2),
    ((32, 8), 2, False, 8),
    ((64, 64), 4, False, 2),
    ((64, 64), 4, True, 4),
    ((64, 128), 8, True, 2),
    ((128, 64), 8, False, 8),
    ((16, 128), 8, False, 8),
    ((128, 128), 4, False, 8),
]


def m16n8k16_a(lane: int, i: int) -> tuple[int, int]:
    """Returns (row, k) of element i of the left operand."""
    row = lane >> 2 if i in (0, 1, 4, 5) else (lane >> 2) + 8
    return row, (lane % 4) * 2 + (i & 1) + (8 if i >= 4 else 0)


def m16n8k16_b(lane: int, i: int) -> tuple[int, int]:
    """Returns (k, column) of element i of the right operand."""
    return (lane % 4) * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def m16n8k16_c(lane: int, i: int) -> tuple[int, int]:
    """Returns (row, column) of element i of the accumulator."""
    return (lane >> 2) + (0 if i < 2 else 8), (lane % 4) * 2 + (i & 1)


def test_one_atom() -> None:
    acc = accumulator((16, 8), 1)
    a, b = fragment(acc, 0, 16), fragment(acc, 1, 16)
    assert (acc.registers, a.registers, b.registers) == (4, 8, 4)
    for lane in range(32):
        assert [acc.apply(i, lane, 0) for i in range(4)] == [m16n8k16_c(lane, i) for i in range(4)]
        assert [a.apply(i, lane, 0) for i in range(8)] == [m16n8k16_a(lane, i) for i in range(8)]
        assert [b.apply(i, lane, 0) for i in range(4)] == [m16n8k16_b(lane, i) for i in range(4)]


def m16n8k8_a(lane: int, i: int) -> tuple[int, int]:
    """Returns (row, k) of element i of the left operand of tf32."""
    return (lane >> 2) + (8 if i in (1, 3) else 0), lane % 4 + (4 if i >= 2 else 0)


def m16n8k8_b(lane: int, i: int) -> tuple[int, int]:
    """Returns (k, column) of element i of the right operand of tf32."""
    return lane % 4 + 4 * i, lane >> 2


def test_one_atom_of_tf32() -> None:
    acc = accumulator((16, 8), 1)
    a, b = fragment(acc, 0, 8, TF32), fragment(acc, 1, 8, TF32)
    assert (a.registers, b.registers) == (4, 2)
    for lane in range(32):
        assert [a.apply(i, lane, 0) for i in range(4)] == [m16n8k8_a(lane, i) for i in range(4)]
        assert [b.apply(i, lane, 0) for i in range(2)] == [m16n8k8_b(lane, i) for i in range(2)]


def test_fragments_of_f64() -> None:
    """m8n8k4: a lane has one element of each operand, and two adjacent columns of the accumulator."""
    one = fragments(8, 8, 4, 64)
    assert tuple(layout.registers for layout in one) == (1, 1, 2)
    for lane in range(32):
        assert one.lhs.apply(0, lane, 0) == (lane >> 2, lane % 4)
        assert one.rhs.apply(0, lane, 0) == (lane % 4, lane >> 2)
        assert [one.acc.apply(i, lane, 0) for i in range(2)] == [(lane >> 2, lane % 4 * 2 + i) for i in range(2)]


def test_fragments_of_f64_with_sixteen_rows() -> None:
    """m16n8k8 of f64: the next eight rows come before the second half of k."""
    one = fragments(16, 8, 8, 64)
    for lane in range(32):
        held = [(lane >> 2) + 8 * (i & 1) for i in range(4)], [lane % 4 + 4 * (i >> 1) for i in range(4)]
        assert [one.lhs.apply(i, lane, 0) for i in range(4)] == [*zip(*held, strict=True)]
        assert [one.rhs.apply(i, lane, 0) for i in range(2)] == [(lane % 4 + 4 * i, lane >> 2) for i in range(2)]


def test_fragments_of_16_bits_and_half_the_depth() -> None:
    """m16n8k8 of 16-bit types: the first half of the fragments of m16n8k16."""
    one = fragments(16, 8, 8, 16)
    assert tuple(layout.registers for layout in one) == (4, 2, 4)
    for lane in range(32):
        assert [one.lhs.apply(i, lane, 0) for i in range(4)] == [m16n8k16_a(lane, i) for i in range(4)]
        assert [one.rhs.apply(i, lane, 0) for i in range(2)] == [m16n8k16_b(lane, i) for i in range(2)]


def test_fragments_of_bytes() -> None:
    """m16n8k32 of 8-bit types: four adjacent elements along k."""
    one = fragments(16, 8, 32, 8)
    for lane in range(32):
        row = [(lane >> 2) + (0 if i % 8 < 4 else 8) for i in range(16)]
        k = [lane % 4 * 4 + (i & 3) + (0 if i < 8 else 16) for i in range(16)]
        assert [one.lhs.apply(i, lane, 0) for i in range(16)] == [*zip(row, k, strict=True)]


@pytest.mark.parametrize(("shape", "warps", "rows_first", "vec"), TILES)
def test_operands_of_f64_belong_to_their_accumulator(
    shape: tuple[int, int], warps: int, rows_first: bool, vec: int
) -> None:
    acc = accumulator(shape, warps, rows_first=rows_first, vec=vec, atom=F64)
    bits = accumulator_bits(acc, F64)
    assert bits is not None
    a, b = (fragment(acc, operand, 16, F64) for operand in (0, 1))
    assert a.is_surjective
    assert b.is_surjective
    blocks = product(range(1 << len(bits.rows)), range(1 << len(bits.columns)), range(2), range(16))
    for warp, (i, j, e, k), lane in product(sorted({0, warps - 1}), list(blocks), range(32)):
        row, column = acc.apply(numbered(bits.rows, i) | numbered(bits.columns, j) | e, lane, warp)
        assert a.apply(i | k // 4 << len(bits.rows), lane // 4 * 4 + k % 4, warp) == (row, k)
        assert b.apply(j | k // 4 << len(bits.columns), (2 * (lane % 4) + e) * 4 + k % 4, warp) == (k, column)


@pytest.mark.parametrize(("shape", "warps", "rows_first", "vec"), TILES)
def test_operands_of_tf32_belong_to_their_accumulator(
    shape: tuple[int, int], warps: int, rows_first: bool, vec: int
) -> None:
    """For each atom of the accumulator, the threads of the operands have its rows and its columns."""
    acc = accumulator(shape, warps, rows_first=rows_first, vec=vec)
    bits = accumulator_bits(acc)
    assert bits is not None
    a, b = fragment(acc, 0, 8, TF32), fragment(acc, 1, 8, TF32)
    assert a.is_surjective
    assert b.is_surjective
    high, *down = bits.rows
    atoms = product(range(1 << len(down)), range(1 << len(bits.columns)), range(4))
    for warp, (i, j, e), lane in product(sorted({0, warps - 1}), list(atoms), range(32)):
        register = numbered(down, i) | numbered(bits.columns, j) | (e >> 1) << high | e & 1
        row, column = acc.apply(register, lane, warp)
        own_row, own_column = m16n8k16_c(lane, e)
        for k in range(8):
            holder, number = own_row % 8 * 4 + k % 4, own_row >> 3 | (k >> 2) << 1
            assert m16n8k8_a(holder, number) == (own_row, k)
            assert a.apply(number | i << 2, holder, warp) == (row, k)
            assert b.apply(k >> 2 | j << 1, own_column * 4 + k % 4, warp) == (k, column)


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("shape", "warps", "rows_first", "vec"), TILES)
def test_rows_of_f32_become_fragments(
    shape: tuple[int, int], warps: int, rows_first: bool, vec: int, operand: int
) -> None:
    """ldmatrix on f32: a row of 16 bytes is four f32, one for each of four lanes."""
    acc = accumulator(shape, warps, rows_first=rows_first, vec=vec)
    part = fragment(acc, operand, 8, TF32)
    rows, count = matrix_rows(acc, operand, 8, False, TF32)
    steps = rows.registers // 4
    assert part.registers == count * steps
    for warp, step, m, lane in product(sorted({0, warps - 1}), range(steps), range(count), range(32)):
        loaded = rows.apply(lane % 4 | step << 2, 8 * m + lane // 4, warp)
        assert loaded == part.apply(count * step + m, lane, warp)


def numbered(bits: list[int], value: int) -> int:
    """Returns `value` with bit i moved to position `bits[i]`."""
    return sum((value >> i & 1) << bit for i, bit in enumerate(bits))


@pytest.mark.parametrize(("shape", "warps", "rows_first", "vec"), TILES)
def test_operands_belong_to_their_accumulator(shape: tuple[int, int], warps: int, rows_first: bool, vec: int) -> None:
    """For each element of each atom, the operands' threads have the row and the column of the accumulator's element."""
    acc = accumulator(shape, warps, rows_first=rows_first, vec=vec)
    bits = accumulator_bits(acc)
    assert bits is not None
    assert acc.is_surjective
    a, b = fragment(acc, 0, 16), fragment(acc, 1, 16)
    assert a.is_surjective
    assert b.is_surjective
    high, *down = bits.rows
    atoms = product(range(1 << len(down)), range(1 << len(bits.columns)), range(4))
    for warp, (i, j, e), lane in product(sorted({0, warps - 1}), list(atoms), range(32)):
        register = numbered(down, i) | numbered(bits.columns, j) | (e >> 1) << high | e & 1
        row, column = acc.apply(register, lane, warp)
        own_row, own_column = m16n8k16_c(lane, e)
        for k in range(16):  # every lane and register of the operand fragments that holds this row, or column
            holder, number = own_row % 8 * 4 + k % 8 // 2, (k & 1) | (own_row >> 3) << 1 | (k >> 3) << 2
            assert m16n8k16_a(holder, number) == (own_row, k)
            assert a.apply(number | i << 3, holder, warp) == (row, k)
            holder, number = own_column * 4 + k % 8 // 2, (k & 1) | (k >> 3) << 1
            assert m16n8k16_b(holder, number) == (k, own_column)
            assert b.apply(number | j << 2, holder, warp) == (k, column)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("shape", "warps", "rows_first", "vec"), TILES)
def test_rows_become_fragments(
    shape: tuple[int, int], warps: int, rows_first: bool, vec: int, operand: int, trans: bool
) -> None:
    """ldmatrix gives each lane the elements of its fragment."""
    acc = accumulator(shape, warps, rows_first=rows_first, vec=vec)
    part = fragment(acc, operand, 16)
    rows, count = matrix_rows(acc, operand, 16, trans)
    steps = rows.registers // 8
    assert part.registers == 2 * count * steps
    for warp, step, m, lane, e in product(sorted({0, warps - 1}), range(steps), range(count), range(32), range(2)):
        row, element = (2 * (lane % 4) + e, lane // 4) if trans else (lane // 4, 2 * (lane % 4) + e)
        loaded = rows.apply(element | step << 3, 8 * m + row, warp)
        assert loaded == part.apply(2 * (count * step + m) + e, lane, warp)


@pytest.mark.parametrize("operand", [0, 1])
def test_depth_is_in_the_last_registers(operand: int) -> None:
    acc = accumulator((64, 64), 4)
    deep, one = matrix_rows(acc, operand, 64, False), matrix_rows(acc, operand, 16, False)
    k = 1 - operand
    assert deep.layout.reg[: len(one.layout.reg)] == one.layout.reg
    assert [b[k] for b in deep.layout.reg[len(one.layout.reg) :]] == [16, 32]
    assert (deep.layout.lane, deep.matrices) == (one.layout.lane, one.matrices)


def test_parts_of_warps() -> None:
    """Warps divide a tile into nearly square parts, or into rows. A thread has `vec` adjacent elements if possible."""
    assert accumulator((64, 64), 4).warp == ((0, 32), (32, 0))
    assert accumulator((64, 64), 4, rows_first=True).warp == ((16, 0), (32, 0))
    assert accumulator((128, 64), 8).warp == ((0, 32), (32, 0), (64, 0))
    assert accumulator((16, 8), 2).warp == ((0, 0),)
    assert accumulator((64, 64), 4, vec=8).reg[:3] == ((0, 1), (0, 2), (0, 4))
    assert accumulator((64, 16), 4, vec=8).reg[:3] == ((0, 1), (0, 2), (8, 0))  # sixteen columns a warp: four each


def test_other_layouts_are_no_accumulators() -> None:
    plain = accumulator((32, 32), 2)
    assert accumulator_bits(plain) is not None
    assert accumulator_bits(patch((32, 32), 4, 2)) is None
    assert accumulator_bits(blocked((32, 32), (1, 0), 4, 2)) is None
    mixed = Linear(plain.shape, (plain.reg[0], (8, 8), *plain.reg[2:]), plain.lane, plain.warp)
    assert accumulator_bits(mixed) is None
    turned = Linear(plain.shape, plain.reg, plain.lane[::-1], plain.warp)
    assert accumulator_bits(turned) is None
