"""The index simplifier against evaluation, and views whose indices must become simple."""

from __future__ import annotations

import pytest
from fuzz import expressions
from fuzz.expressions import judge
from xdsl.ir.affine import AffineExpr, AffineMap

from deplodock.dialects.shapes.affine import (
    Simplifier,
    add,
    constant,
    dim,
    is_within,
    range_of,
    scale,
    simplify_expr,
    simplify_map,
)
from deplodock.dialects.shapes.extents import Extent, SymbolAttr, count_of, fewest_tiles, most_tiles

d0, d1, d2, d3 = (AffineExpr.dimension(i) for i in range(4))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_expressions_keep_their_values(first: int) -> None:
    """500 random expressions per test. `python -m fuzz --expressions --count 20000` runs more."""
    assert [problem for seed in range(first, first + 500) if (problem := judge(seed))] == []


def test_a_wrong_simplification_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "simplify_expr", lambda expr, ranges: simplify_expr(expr, ranges) + d0)
    assert any(judge(seed) for seed in range(20))


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
    assert simplify_map(merge.compose(split), (2048,)).results == (d0,)
    assert simplify_map(split.compose(merge), (32, 64)).results == (d0, d1)


def test_every_result_is_simplified() -> None:
    assert simplify_map(AffineMap(2, 0, ((d0 * 4 + d1) // 4,)), (3, 4)).results == (d0,)


@pytest.mark.parametrize("divisor", [0, -2])
def test_only_positive_divisors(divisor: int) -> None:
    with pytest.raises(ValueError, match="expected a division by a positive number"):
        simplify_expr(d0 % AffineExpr.constant(divisor), (4,))


def test_what_a_symbol_bounds() -> None:
    """An index whose bound is a symbol is below this symbol. About other symbols only the range is known."""
    n, other = SymbolAttr.get("n", 4, 100), SymbolAttr.get("m", 4, 100)
    simplifier = Simplifier([n, 4])
    d, e = dim(0), dim(1)
    assert simplifier.interval(d) == (0, 99)
    assert simplifier.within(d, 0, n)
    assert simplifier.within(add(d, constant(-3)), -3, n)
    assert simplifier.within(add(d, e, -1), -3, n)
    assert simplifier.within(e, 0, n)  # there are at least four
    assert not simplifier.within(d, 0, other)
    assert not simplifier.within(add(d, constant(1)), 0, n)
    assert not simplifier.within(add(d, e), 0, n)
    assert not simplifier.within(scale(d, 2), 0, n)
    assert not simplifier.within(d, 1, n)
    assert simplifier.outside(add(d, constant(100)), 0, n)
    assert not simplifier.outside(add(d, constant(99)), 0, n)
    assert simplifier.outside(add(d, constant(-100)), 0, n)
    assert is_within(AffineExpr.dimension(0), 0, n, [n])
    assert not is_within(AffineExpr.dimension(0) + 1, 0, n, [n])
    assert simplify_expr(AffineExpr.dimension(0) // 4, [n]) == AffineExpr.dimension(0) // 4
    assert simplify_expr(AffineExpr.dimension(0) // 100, [n]) == AffineExpr.constant(0)


@pytest.mark.parametrize(
    ("extent", "tile", "count", "values"),
    [
        (7, 4, 2, (2, 2)),
        (SymbolAttr.get("n", 0, 100), 8, "ceil(n / 8)", (0, 13)),
        (SymbolAttr.get("n", 1, 8), 8, 1, (1, 1)),
        (SymbolAttr.get("n", 0, 8), 8, "ceil(n / 8)", (0, 1)),
        (SymbolAttr.get("n", 9, 16), 8, 2, (2, 2)),
        (SymbolAttr.get("n", 3, 5), 1, "n", (3, 5)),
    ],
)
def test_how_many_tiles_cover_an_extent(extent: Extent, tile: int, count: object, values: tuple[int, int]) -> None:
    found = count_of(extent, tile)
    assert (found if isinstance(found, int) else str(found)) == count
    assert (fewest_tiles(found), most_tiles(found)) == values
