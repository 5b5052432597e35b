"""Random index expressions, for a test that simplification keeps their values and that computed bounds hold."""

from __future__ import annotations

import itertools
import random

from xdsl.ir.affine import AffineExpr

from deplodock.dialects.shapes.affine import range_of, simplify_expr


def random_expr(rng: random.Random, depth: int, dims: int) -> AffineExpr:
    """Returns a random expression with at most `depth` nested operations over `dims` dimensions."""
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


def judge(seed: int) -> str:
    """Returns the error in the simplification of the expression of a seed, or an empty text."""
    rng = random.Random(seed)
    dims = rng.randint(1, 3)
    ranges = [(lo := rng.randint(-5, 2), lo + rng.choice([1, 2, 3, 4, 8])) for _ in range(dims)]
    expr = random_expr(rng, rng.randint(1, 4), dims)
    simple, bounds = simplify_expr(expr, ranges), range_of(expr, ranges)
    if bounds is None:
        return f"{expr} has no bounds in {ranges}"
    for point in itertools.product(*(range(lo, hi) for lo, hi in ranges)):
        value = expr.eval(point, [])
        if simple.eval(point, []) != value:
            return f"{expr} -> {simple} at {point} in {ranges}"
        if not bounds[0] <= value < bounds[1]:
            return f"{expr} is {value} at {point}, outside of {bounds}"
    return ""
