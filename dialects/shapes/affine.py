"""Simplification of index expressions under the ranges of their indices.

xDSL's `AffineExpr` carries index maps in the IR, but its simplifier does not know ranges. This module converts an
expression to a *form*: a sum of integer multiples of *atoms* plus a constant. An atom is an index, a symbol, or the
floordiv or mod of a form by a positive number. For example, with 0 <= d0 < 4 and 0 <= d1 < 8:

```
(d0 * 8 + d1) floordiv 8        ->  d0                        ((DIM, 0), 1),                     constant 0
(d0 * 8 + d1) mod 8 + 3         ->  d1 + 3                    ((DIM, 1), 1),                     constant 3
d1 floordiv 2                   ->  d1 floordiv 2             ((DIV, terms of d1, 0, 2), 1),     constant 0
```

Forms are plain tuples: equal expressions under the same ranges are usually equal tuples and hash cheaply. Fusion relies
on that to recognise equal values.

A range in this module is one of:

- an int `n`: 0 <= x < n;
- a symbol `s`: 0 <= x < s, for every value of s;
- a pair `(lo, hi)`: lo <= x < hi;
- None: any integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, reduce
from math import gcd
from operator import add as add_exprs
from typing import Any, NamedTuple, TypeAlias

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)

from .extents import Extent, SymbolAttr, least, most

Range: TypeAlias = int | SymbolAttr | tuple[int, int] | None
Interval: TypeAlias = tuple[int, int] | None  # inclusive on both sides

DIM, SYM, DIV, MOD = range(4)
Atom: TypeAlias = tuple[Any, ...]  # (DIM, i) | (SYM, i) | (DIV, terms, constant, divisor) | (MOD, ...)


class Form(NamedTuple):
    """Sum of `coefficient * atom` over `terms`, plus `constant`. The terms are sorted and no coefficient is zero."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def is_linear(self) -> bool:
        return all(atom[0] in (DIM, SYM) for atom, _ in self.terms)

    def atoms(self) -> Iterator[Atom]:
        """Yields all indices and symbols of the form, also inside divisions, with repetitions."""
        for atom, _ in self.terms:
            if atom[0] in (DIM, SYM):
                yield atom
            else:
                yield from dividend(atom).atoms()

    def quotients(self) -> Iterator[tuple[Form, int]]:
        """Yields (dividend, divisor) of all floordivs and mods of the form, also of nested ones."""
        for atom, _ in self.terms:
            if atom[0] in (DIV, MOD):
                yield dividend(atom), atom[3]
                yield from dividend(atom).quotients()


def constant(value: int) -> Form:
    return Form((), value)


def dim(index: int) -> Form:
    return Form((((DIM, index), 1),), 0)


def symbol(index: int) -> Form:
    return Form((((SYM, index), 1),), 0)


def add(a: Form, b: Form, factor: int = 1) -> Form:
    """Returns `a + factor * b`.

    Args:
        a: a form.
        b: a form.
        factor: an integer.
    """
    if not b.terms or factor == 0:
        return Form(a.terms, a.constant + factor * b.constant)
    sums = dict(a.terms)
    for atom, coefficient in b.terms:
        sums[atom] = sums.get(atom, 0) + factor * coefficient
    return _form(sums, a.constant + factor * b.constant)


def scale(a: Form, factor: int) -> Form:
    if factor == 0:
        return constant(0)
    return Form(tuple((atom, c * factor) for atom, c in a.terms), a.constant * factor)


def _form(sums: dict[Atom, int], number: int) -> Form:
    return Form(tuple(sorted((atom, c) for atom, c in sums.items() if c)), number)


def dividend(atom: Atom) -> Form:
    """Returns the dividend of a DIV or MOD atom."""
    return Form(atom[1], atom[2])


def number_of(atom: Atom) -> int:
    """Returns the number of a DIM or SYM atom."""
    number: int = atom[1]
    return number


def complexity(form: Form) -> int:
    """Returns a measure of the work to compute a form. Simplification never increases it."""
    return sum(1 if atom[0] in (DIM, SYM) else 2 + complexity(dividend(atom)) for atom, _ in form.terms)


class Simplifier:
    """Arithmetic on forms under fixed ranges. All operations return simplified forms."""

    def __init__(self, dims: Sequence[Range] = (), symbols: Sequence[Range] = ()) -> None:
        self.intervals: dict[Atom, Interval] = {}
        # Indices whose range ends at a symbol -> that symbol.
        self.sizes: dict[Atom, SymbolAttr] = {}
        for kind, ranges in ((DIM, dims), (SYM, symbols)):
            for i, r in enumerate(ranges):
                self.set_range((kind, i), r)
        self.floordiv = cache(self._floordiv)
        self.mod = cache(self._mod)

    def set_range(self, atom: Atom, r: Range) -> None:
        """Sets the range of an index or symbol, before its first use. An empty range counts as one value."""
        if r is None:
            self.intervals[atom] = None
        else:
            lo, hi = r if isinstance(r, tuple) else (0, most(r))
            if isinstance(r, SymbolAttr):
                self.sizes[atom] = r
            self.intervals[atom] = (lo, max(lo, hi - 1))

    def interval(self, form: Form) -> Interval:
        """Returns the smallest and the largest possible value of `form`, both inclusive, or None if they are
        unknown."""
        lo = hi = form.constant
        for atom, coefficient in form.terms:
            bounds = self._atom_interval(atom)
            if bounds is None:
                return None
            a, b = bounds[0] * coefficient, bounds[1] * coefficient
            lo, hi = (lo + a, hi + b) if coefficient > 0 else (lo + b, hi + a)
        return lo, hi

    def _atom_interval(self, atom: Atom) -> Interval:
        if atom in self.intervals:
            return self.intervals[atom]
        if atom[0] in (DIM, SYM):
            return None
        bounds, divisor = self.interval(dividend(atom)), atom[3]
        if atom[0] == DIV:
            result = None if bounds is None else (bounds[0] // divisor, bounds[1] // divisor)
        else:
            result = (0, divisor - 1 if bounds is None or bounds[0] < 0 else min(bounds[1], divisor - 1))
        self.intervals[atom] = result
        return result

    def computed(self, op: str, a: Form, b: Form) -> Form | None:
        """Returns the result of an integer op of `arith` as a form, or None if the result is not a form.

        The result assumes that the op does not overflow.

        Args:
            op: name of the op, with or without `arith.`.
            a: left operand.
            b: right operand.
        """
        match op.removeprefix("arith."):
            case "addi":
                return add(a, b)
            case "subi":
                return add(a, b, -1)
            case "muli" if a.is_constant or b.is_constant:
                return scale(b, a.constant) if a.is_constant else scale(a, b.constant)
            case "floordivsi" if b.is_constant and b.constant > 0:
                return self.floordiv(a, b.constant)
            case "divsi" | "remsi" if b.is_constant and b.constant > 0 and self._is_natural(a):
                # Division toward zero equals floordiv, because the dividend is not negative.
                return self.floordiv(a, b.constant) if op.endswith("divsi") else self.mod(a, b.constant)
            case _:
                return None

    def _is_natural(self, form: Form) -> bool:
        bounds = self.interval(form)
        return bounds is not None and bounds[0] >= 0

    def fits(self, form: Form, type: Attribute) -> bool:
        """Returns true if the integer type `type` can represent all values of `form`: signed if `type` is signless,
        else unsigned."""
        assert isinstance(type, IntegerType)
        values = 1 << type.bitwidth
        low = -values // 2 if type == IntegerType(type.bitwidth) else 0
        return self.within(form, low, low + values)

    def within(self, form: Form, lo: int, hi: Extent, implied_by: tuple[Form, int, Extent] | None = None) -> bool:
        """Returns true if lo <= form < hi always holds.

        Args:
            form: the form.
            lo: lower bound, inclusive.
            hi: upper bound, exclusive.
            implied_by: another constraint (form, lo, hi) that is known to hold; it helps if both forms differ by a
                constant.
        """
        bounds = self.interval(form)
        above, below = bounds is not None and lo <= bounds[0], bounds is not None and bounds[1] < least(hi)
        if implied_by is not None and (distance := add(form, implied_by[0], -1)).is_constant:
            above = above or lo <= implied_by[1] + distance.constant
            below = below or most(implied_by[2]) + distance.constant <= least(hi)
        return above and (below or self._below(form, hi))

    def _below(self, form: Form, size: Extent) -> bool:
        """Returns true if `form` is at most an index whose range ends at the symbol `size`."""
        for atom, coefficient in form.terms:
            if coefficient == 1 and self.sizes.get(atom) == size:
                remainder = self.interval(_without(form, atom))
                return remainder is not None and remainder[1] <= 0
        return False

    def outside(self, form: Form, lo: int, hi: Extent) -> bool:
        """Returns true if lo <= form < hi never holds, for example because the interval is empty.

        Args:
            form: the form.
            lo: lower bound, inclusive.
            hi: upper bound, exclusive.
        """
        bounds = self.interval(form)
        return most(hi) <= lo or bounds is not None and (bounds[1] < lo or bounds[0] >= most(hi))

    def _floordiv(self, form: Form, divisor: int) -> Form:
        if divisor == 1:
            return form
        bounds = self.interval(form)
        if bounds is not None and bounds[0] // divisor == bounds[1] // divisor:
            return constant(bounds[0] // divisor)
        whole = self._whole_part(form, divisor)
        if whole.terms or whole.constant:
            return self.tidy(add(whole, self.floordiv(add(form, whole, -divisor), divisor)))
        split = self._split_small(form, divisor)
        if split is not None:
            large, common, _ = split
            return self.floordiv(large, divisor // common)
        return self._nested_div(form, divisor) or Form((((DIV, form.terms, form.constant, divisor), 1),), 0)

    def _mod(self, form: Form, divisor: int) -> Form:
        if divisor == 1:
            return constant(0)
        bounds = self.interval(form)
        if bounds is not None and bounds[0] // divisor == bounds[1] // divisor:
            return add(form, constant(bounds[0] // divisor * divisor), -1)
        whole = self._whole_part(form, divisor)
        if whole.terms or whole.constant:
            return self.mod(add(form, whole, -divisor), divisor)
        # (a * (e mod m)) mod divisor = (a * e) mod divisor, if divisor divides a * m.
        for atom, coefficient in form.terms:
            if atom[0] == MOD and coefficient * atom[3] % divisor == 0:
                return self.mod(self.tidy(add(_without(form, atom), dividend(atom), coefficient)), divisor)
        split = self._split_small(form, divisor)
        if split is not None:
            large, common, small = split
            return self.tidy(add(small, self.mod(large, divisor // common), common))
        return Form((((MOD, form.terms, form.constant, divisor), 1),), 0)

    @staticmethod
    def _whole_part(form: Form, divisor: int) -> Form:
        """Returns q of `form = divisor * q + remainder`, where the remainder's coefficients are below the divisor."""
        terms = tuple((atom, q) for atom, c in form.terms if (q := c // divisor if c >= 0 else -(-c // divisor)))
        return Form(terms, form.constant // divisor)

    def _split_small(self, form: Form, divisor: int) -> tuple[Form, int, Form] | None:
        """Returns (large, common, small) with `form = common * large + small`, 0 <= small < common and `common` a
        divisor of `divisor`, or None."""
        for common in sorted({gcd(divisor, c) for _, c in form.terms}, reverse=True):
            if common == 1:
                break
            large = tuple((atom, c // common) for atom, c in form.terms if c % common == 0)
            small = Form(tuple((atom, c) for atom, c in form.terms if c % common), form.constant % common)
            if self.within(small, 0, common):
                return Form(large, form.constant // common), common, small
        return None

    def _nested_div(self, form: Form, divisor: int) -> Form | None:
        """Applies (e div a + s) div b = (e + a*s) div (a*b), or (e mod m) div c = (e div c) mod m/c. Returns None if
        neither applies."""
        for atom, coefficient in form.terms:
            if coefficient != 1:
                continue
            if atom[0] == DIV:
                remainder = _without(form, atom)
                quotient = self.floordiv(self.tidy(add(dividend(atom), remainder, atom[3])), atom[3] * divisor)
                if not remainder.terms or complexity(quotient) < 2 + complexity(form):
                    return quotient
            elif atom[0] == MOD and len(form.terms) == 1 and not form.constant and atom[3] % divisor == 0:
                return self.mod(self.floordiv(dividend(atom), divisor), atom[3] // divisor)
        return None

    def tidy(self, form: Form) -> Form:
        """Combines the floordiv and mod of the same form, while that reduces the complexity: 8 * (e div 8) + e mod 8 =
        e."""
        while True:
            for candidate in self._recombined(form):
                if complexity(candidate) < complexity(form):
                    form = candidate
                    break
            else:
                return form

    def _recombined(self, form: Form) -> Iterator[Form]:
        if len(form.terms) < 2:
            return
        for atom, c in form.terms:
            if atom[0] in (DIM, SYM):
                continue
            inner, divisor, others = dividend(atom), atom[3], _without(form, atom)
            if atom[0] == MOD:  # e mod c = e - c * (e floordiv c)
                yield add(add(others, inner, c), self.floordiv(inner, divisor), -c * divisor)
            elif c % divisor == 0:
                yield add(add(others, inner, c // divisor), self.mod(inner, divisor), -(c // divisor))

    def read_map(self, map: AffineMap) -> list[Form]:
        """Returns the results of `map` as forms of its dimensions and symbols. Raises ValueError as `read` does."""
        dims, symbols = [dim(i) for i in range(map.num_dims)], [symbol(i) for i in range(map.num_symbols)]
        return [self.read(e, dims, symbols) for e in map.results]

    def read(self, expr: AffineExpr, dims: Sequence[Form], symbols: Sequence[Form] = ()) -> Form:
        """Returns `expr` as a form.

        Args:
            expr: the expression.
            dims: forms to substitute for its dimensions.
            symbols: forms to substitute for its symbols.

        Raises:
            ValueError: the expression multiplies two indices or divides by anything but a positive number.
        """
        if isinstance(expr, AffineConstantExpr):
            return constant(expr.value)
        if isinstance(expr, AffineDimExpr):
            return dims[expr.position]
        if isinstance(expr, AffineSymExpr):
            return symbols[expr.position]
        assert isinstance(expr, AffineBinaryOpExpr)
        a, b = self.read(expr.lhs, dims, symbols), self.read(expr.rhs, dims, symbols)
        if expr.kind == AffineBinaryOpKind.Add:
            total = add(a, b)
            return total if total.is_linear else self.tidy(total)
        if expr.kind == AffineBinaryOpKind.Mul:
            if not b.is_constant:
                a, b = b, a
            if not b.is_constant:
                raise ValueError(f"expected a multiplication by a number, but got {expr}")
            return scale(a, b.constant)
        return self._divided(expr, a, b)

    def _divided(self, expr: AffineBinaryOpExpr, a: Form, b: Form) -> Form:
        """Returns the quotient or remainder `expr` of two forms."""
        if not b.is_constant or b.constant <= 0:
            raise ValueError(f"expected a division by a positive number, but got {expr}")
        if expr.kind == AffineBinaryOpKind.Mod:
            return self.mod(a, b.constant)
        if expr.kind == AffineBinaryOpKind.CeilDiv:
            a = add(a, constant(b.constant - 1))
        return self.floordiv(a, b.constant)


def _without(form: Form, atom: Atom) -> Form:
    return Form(tuple(t for t in form.terms if t[0] != atom), form.constant)


def write(form: Form) -> AffineExpr:
    """Returns `form` as an xDSL expression."""
    terms = [_written(atom) if c == 1 else _written(atom) * c for atom, c in form.terms]
    if form.constant or not terms:
        terms.append(AffineExpr.constant(form.constant))
    return reduce(add_exprs, terms)


def _written(atom: Atom) -> AffineExpr:
    if atom[0] in (DIM, SYM):
        return AffineExpr.dimension(atom[1]) if atom[0] == DIM else AffineExpr.symbol(atom[1])
    inner = write(dividend(atom))
    return inner // atom[3] if atom[0] == DIV else inner % atom[3]


def renumbered(form: Form, dims: dict[int, int], symbols: dict[int, int]) -> Form:
    """Returns `form` with renamed indices and symbols, which must have the same ranges.

    Args:
        form: the form.
        dims: old number of an index -> new number.
        symbols: old number of a symbol -> new number.
    """

    def rename(atom: Atom) -> Atom:
        if atom[0] in (DIM, SYM):
            return (atom[0], (dims if atom[0] == DIM else symbols)[atom[1]])
        inner = renumbered(dividend(atom), dims, symbols)
        return (atom[0], inner.terms, inner.constant, atom[3])

    return _form({rename(atom): c for atom, c in form.terms}, form.constant)


_simplifier = lru_cache(4096)(Simplifier)


def _form_of(expr: AffineExpr, dims: Sequence[Range], symbols: Sequence[Range]) -> tuple[Simplifier, Form]:
    simplifier = _simplifier(tuple(dims), tuple(symbols))
    dim_forms = [dim(i) if r != 1 else constant(0) for i, r in enumerate(dims)]
    return simplifier, simplifier.read(expr, dim_forms, [symbol(i) for i in range(len(symbols))])


def simplify_expr(expr: AffineExpr, dim_ranges: Sequence[Range], sym_ranges: Sequence[Range] = ()) -> AffineExpr:
    """Returns an expression equal to `expr` for all indices within their ranges, and no more complex.

    Args:
        expr: the expression.
        dim_ranges: range of each dimension.
        sym_ranges: range of each symbol.
    """
    return write(_form_of(expr, dim_ranges, sym_ranges)[1])


def simplify_map(map: AffineMap, dim_ranges: Sequence[Range], sym_ranges: Sequence[Range] = ()) -> AffineMap:
    """Returns `map` with simplified results.

    Args:
        map: the map.
        dim_ranges: range of each dimension.
        sym_ranges: range of each symbol.
    """
    results = tuple(simplify_expr(e, dim_ranges, sym_ranges) for e in map.results)
    return AffineMap(map.num_dims, map.num_symbols, results)


def range_of(expr: AffineExpr, dim_ranges: Sequence[Range], sym_ranges: Sequence[Range] = ()) -> tuple[int, int] | None:
    """Returns bounds `(lo, hi)` with lo <= expr < hi, not always the tightest, or None if they are unknown.

    Args:
        expr: the expression.
        dim_ranges: range of each dimension.
        sym_ranges: range of each symbol.
    """
    simplifier, form = _form_of(expr, dim_ranges, sym_ranges)
    bounds = simplifier.interval(form)
    return None if bounds is None else (bounds[0], bounds[1] + 1)


def linear_form(expr: AffineExpr, dim_ranges: Sequence[Range]) -> Form | None:
    """Returns `expr` as a sum of multiples of indices, or None if it has symbols or divisions after simplification."""
    form = _form_of(expr, dim_ranges, ())[1]
    return form if all(atom[0] == DIM for atom, _ in form.terms) else None


def is_within(
    expr: AffineExpr, lo: int, hi: Extent, dim_ranges: Sequence[Range], sym_ranges: Sequence[Range] = ()
) -> bool:
    """Returns true if lo <= expr < hi always holds.

    Args:
        expr: the expression.
        lo: lower bound, inclusive.
        hi: upper bound, exclusive.
        dim_ranges: range of each dimension.
        sym_ranges: range of each symbol.
    """
    simplifier, form = _form_of(expr, dim_ranges, sym_ranges)
    return simplifier.within(form, lo, hi)


def divisions(map: AffineMap) -> int:
    """Returns the number of divisions (floordiv, ceildiv, mod) in a map."""
    parts = [part for result in map.results for part in result.dfs() if isinstance(part, AffineBinaryOpExpr)]
    return sum(part.kind not in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul) for part in parts)
