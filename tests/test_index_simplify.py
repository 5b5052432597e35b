"""The index simplifier against plain evaluation, and the views that must come out clean."""

from __future__ import annotations

import pytest
from fuzz import expressions
from fuzz.expressions import judge
from xdsl.ir.affine import AffineExpr, AffineMap

from deplodock.passes.index_simplify import compose, is_linear, range_of, simplify_expr, simplify_map

d0, d1, d2, d3 = (AffineExpr.dimension(i) for i in range(4))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_random_expressions_keep_their_values(first: int) -> None:
    """`python -m fuzz --expressions --count 20000` takes more."""
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
