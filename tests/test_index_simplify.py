"""The index simplifier against plain evaluation, and the views that must come out clean."""

from __future__ import annotations

import itertools
import random

import pytest
from xdsl.ir.affine import AffineExpr, AffineMap

from deplodock.passes.index_simplify import compose, is_linear, range_of, simplify_expr, simplify_map

d0, d1, d2, d3 = (AffineExpr.dimension(i) for i in range(4))


def random_expr(rng: random.Random, depth: int, dims: int) -> AffineExpr:
    if depth == 0 or rng.random() < 0.1:
        if rng.random() < 0.75:
            return AffineExpr.dimension(rng.randrange(dims))
        return AffineExpr.constant(rng.randint(-9, 9))
    a = random_expr(rng, depth - 1, dims)
    number = rng.choice([1, 2, 3, 4, 6, 8, 12, 16])
    match rng.randrange(5):
        case 0 | 1:
            return a + random_expr(rng, depth - 1, dims)
        case 2:
            return a * rng.choice([number, -number])
        case 3:
            return a // number
        case _:
            return a % number


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_keep_their_values(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(750):
        dims = rng.randint(1, 3)
        ranges = [(lo := rng.randint(-5, 2), lo + rng.choice([1, 2, 3, 4, 8])) for _ in range(dims)]
        expr = random_expr(rng, rng.randint(1, 4), dims)
        simple = simplify_expr(expr, ranges)
        bounds = range_of(expr, ranges)
        assert bounds is not None
        for point in itertools.product(*(range(lo, hi) for lo, hi in ranges)):
            value = expr.eval(point, [])
            assert simple.eval(point, []) == value, f"{expr} -> {simple} at {point} in {ranges}"
            assert bounds[0] <= value < bounds[1]


@pytest.mark.parametrize(
    ("expr", "extents", "text"),
    [
        ((d0 * 8 + d1) // 8, (5, 8), "d0"),
        ((d0 * 8 + d1) % 8, (5, 8), "d1"),
        ((d0 // 8) * 8 + d0 % 8, (64,), "d0"),
        (d0 % 8 % 4, (64,), "(d0 mod 4)"),
        (d0 // 4 // 8, (640,), "(d0 floordiv 32)"),
        ((d0 * 64 + d1 * 8 + d2) // 16 % 4, (5, 8, 8), "(d1 floordiv 2)"),
        (d0 % 64 // 8, (640,), "((d0 floordiv 8) mod 8)"),
        ((d0 // 64) * 64 + d0 // 8 % 8 * 8 + d0 % 8, (4096,), "d0"),
        ((d0 * 10) // 4, (7,), "((d0 * 2) + (d0 floordiv 2))"),
        (d0 + (d0 // 8) * -8, (64,), "(d0 mod 8)"),
        (d0 * 3 + d0 * -3, (4,), "0"),
        ((d0 + 8).ceil_div(8), (8,), "(((d0 + 7) floordiv 8) + 1)"),
        (d0, (1,), "0"),
    ],
)
def test_clean(expr: AffineExpr, extents: tuple[int, ...], text: str) -> None:
    assert str(simplify_expr(expr, extents)) == text


def test_symbols_have_no_range_unless_given() -> None:
    s0 = AffineExpr.symbol(0)
    assert str(simplify_expr((s0 * 8 + d0) // 8, (8,), (None,))) == "s0"
    assert range_of(s0, (), (None,)) is None
    assert range_of(s0 % 5, (), (None,)) == (0, 5)
    assert range_of(s0, (), ((2, 9),)) == (2, 9)


def test_compose_of_split_and_merge_is_the_identity() -> None:
    split = AffineMap(1, 0, (d0 // 64, d0 % 64))
    merge = AffineMap(2, 0, (d0 * 64 + d1,))
    assert compose(merge, split, (2048,)).results == (d0,)
    assert compose(split, merge, (32, 64)).results == (d0, d1)


def test_is_linear() -> None:
    assert is_linear(d0 * 4 + d1)
    assert not is_linear(d0 * 4 + d1 % 2)
    assert simplify_map(AffineMap(2, 0, ((d0 * 4 + d1) // 4,)), (3, 4)).results == (d0,)


@pytest.mark.parametrize("divisor", [0, -2])
def test_only_positive_divisors(divisor: int) -> None:
    with pytest.raises(ValueError, match="divides by"):
        simplify_expr(d0 % AffineExpr.constant(divisor), (4,))
