"""Sums and products of extents: which are equal, and which has a name.

An extent in a type is a number or a symbol. Whether a reshape keeps its elements, or which symbol is the size of two
tensors one after the other, is a question about polynomials of symbols, in which a derived symbol stands for what it
is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeAlias

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)

from .binding import DerivedAttr
from .extents import Extent, ExtentError, SymbolAttr, least, most

Atom: TypeAlias = tuple[Any, ...]
"""("size", name), ("div" | "mod", polynomial, number), or ("exact", polynomial, name of a size that divides it)."""

_SAMPLE = 1_000_003
"""The value of the first symbol where polynomials are compared in size; only a hint which one to look at next."""


class Polynomial(NamedTuple):
    """A sum of products: ((atoms in order, coefficient), ...), sorted, without coefficients 0."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    @property
    def number(self) -> int | None:
        """Its value, if it has no symbols."""
        if not self.terms:
            return 0
        (atoms, coefficient), *rest = self.terms
        return None if atoms or rest else coefficient

    def __str__(self) -> str:
        texts = [[*map(_text, atoms), *([str(c)] if c != 1 or not atoms else [])] for atoms, c in self.terms]
        return " + ".join(map("*".join, texts)) or "0"


def _text(atom: Atom) -> str:
    return atom[1] if atom[0] == "size" else f"({atom[1]}) {'%' if atom[0] == 'mod' else '//'} {atom[2]}"


def _polynomial(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> Polynomial:
    sums: dict[tuple[Atom, ...], int] = {}
    for atoms, coefficient in terms:
        key = tuple(sorted(atoms, key=repr))
        sums[key] = sums.get(key, 0) + coefficient
    return Polynomial(tuple(sorted(((a, c) for a, c in sums.items() if c), key=repr)))


def constant(value: int) -> Polynomial:
    """A number."""
    return _polynomial([((), value)])


def plus(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """`a + factor * b`"""
    return _polynomial([*a.terms, *((atoms, factor * c) for atoms, c in b.terms)])


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """`a * b`, in which an exact quotient times its divisor is the dividend."""
    product = _polynomial((x + y, c * d) for x, c in a.terms for y, d in b.terms)
    for atoms, coefficient in product.terms:
        quotient = next((q for q in atoms if q[0] == "exact" and ("size", q[2]) in atoms), None)
        if quotient is not None:
            others = list(atoms)
            others.remove(quotient)
            others.remove(("size", quotient[2]))
            rest = _polynomial([(tuple(others), coefficient)])
            without = plus(product, _polynomial([(atoms, coefficient)]), -1)
            return plus(times(without, constant(1)), times(quotient[1], rest))
    return product


def divided(kind: Literal["div", "mod"], a: Polynomial, divisor: int) -> Polynomial:
    """`a floordiv divisor` (div) or `a mod divisor` (mod), taking out what can be divided."""
    whole = _polynomial((atoms, c // divisor) for atoms, c in a.terms if c % divisor == 0)
    rest = _polynomial((atoms, c) for atoms, c in a.terms if c % divisor)
    if rest.number is not None:
        number = rest.number
        return plus(whole, constant(number // divisor)) if kind == "div" else constant(number % divisor)
    left = _polynomial([(((kind, rest, divisor),), 1)])
    return plus(whole, left) if kind == "div" else left


class Algebra:
    """Extents of one program as polynomials, and back."""

    def __init__(self, derived: Sequence[DerivedAttr] = ()) -> None:
        self._meaning: dict[SymbolAttr, Polynomial] = {}
        self._names: dict[Polynomial, SymbolAttr] = {}
        self.promises: list[DerivedAttr] = []
        self._remainders: set[tuple[Polynomial, ...]] = set()
        """Pairs (dividend, divisor) of sizes of which the remainder is promised to be 0."""
        self._read(derived)
        if self._remainders:  # so some quotients are exact
            self._meaning, self._names = {}, {}
            self._read(derived)

    def _read(self, derived: Sequence[DerivedAttr]) -> None:
        """Note what derived sizes mean."""
        for d in derived:
            operands = [self.of(o) for o in d.operands]
            results = [_evaluated(result, operands) for result in d.map.data.results]
            meaning = _polynomial([((("size", d.symbol.hint),), 1)])
            if d.kind.data == "product":
                meaning = reduce(times, results)
            elif d.kind.data == "remainder" and d.symbol.maximum == 0:
                self._remainders.add(tuple(results))
            elif tuple(results) in self._remainders and (name := _name(results[1])) is not None:
                meaning = _polynomial([((("exact", results[0], name),), 1)])
            self._meaning[d.symbol] = meaning
            self._names.setdefault(meaning, d.symbol)

    def promise_within(self, index: SymbolAttr, extent: Extent) -> None:
        """Have `index` < `extent`, or -`index` <= `extent`, checked at every call, unless the ranges say so: how many
        elements there are from the index on becomes a size of at least 1."""
        if 0 <= index.minimum and index.maximum < least(extent):
            return
        place = AffineExpr.symbol(0)
        if index.maximum < 0:  # which counts from the end
            place = (place + 1) * -1
        if isinstance(extent, int):
            name, left, operands = "left", AffineExpr.constant(extent) - place, [index]
        else:
            name, left, operands = extent.hint, AffineExpr.symbol(1) - place, [index, extent]
        taken = {s.hint for s in self._meaning} | {p.symbol.hint for p in self.promises}
        number = next(n for n in range(len(taken) + 1) if f"{name}_from_index{n}" not in taken)
        size = SymbolAttr.get(f"{name}_from_index{number}", 1, max(most(extent), 1))
        self.promises.append(DerivedAttr.get(size, AffineMap(0, len(operands), (left,)), operands))

    def of(self, extent: Extent) -> Polynomial:
        """An extent as a polynomial of symbols that are not derived."""
        if isinstance(extent, int):
            return constant(extent)
        if extent not in self._meaning:
            self._meaning[extent] = found = _polynomial([((("size", extent.hint),), 1)])
            self._names[found] = extent
        return self._meaning[extent]

    def product(self, extents: Iterable[Extent]) -> Polynomial:
        """The product of extents."""
        result = constant(1)
        for e in extents:
            result = times(result, self.of(e))
        return result

    def extent(self, value: Polynomial) -> Extent:
        """The number or symbol that has this value. Raises ExtentError if none has."""
        if value.number is not None:
            return value.number
        if value not in self._names:
            raise ExtentError(f"the size {value}, which depends on sizes known only at run time, is not supported here")
        return self._names[value]

    def named(self, value: Polynomial) -> SymbolAttr | None:
        """The symbol that has this value, if there is one."""
        return self._names.get(value)

    def terms(self, value: Polynomial) -> list[tuple[list[SymbolAttr], int]]:
        """A polynomial as (symbols to be multiplied, coefficient) of each term. Raises ExtentError if some part of it
        has no name."""
        found: list[tuple[list[SymbolAttr], int]] = []
        for atoms, coefficient in value.terms:
            symbols = [self.extent(Polynomial((((a,), 1),))) for a in atoms]
            found.append(([s for s in symbols if isinstance(s, SymbolAttr)], coefficient))
        return found

    def sample(self, value: Polynomial) -> int:
        """The value at some large sizes, to see which of two is probably the larger one."""
        names = [s.hint for s in self._meaning]
        values = {name: _SAMPLE + 1009 * i for i, name in enumerate(names)}
        return _sampled(value, values)


def _sampled(value: Polynomial, values: dict[str, int]) -> int:
    total = 0
    for atoms, coefficient in value.terms:
        for atom in atoms:
            if atom[0] == "size":
                coefficient *= values[atom[1]]
            elif atom[0] == "exact":
                coefficient *= _sampled(atom[1], values) // values[atom[2]]
            else:
                inner = _sampled(atom[1], values)
                coefficient *= inner // atom[2] if atom[0] == "div" else inner % atom[2]
        total += coefficient
    return total


def _name(value: Polynomial) -> str | None:
    """The name of a size that is no sum or product of others, or None."""
    (atoms, coefficient), *rest = value.terms or (((), 0),)
    return atoms[0][1] if coefficient == 1 and len(atoms) == 1 and atoms[0][0] == "size" and not rest else None


def _evaluated(expr: AffineExpr, operands: Sequence[Polynomial]) -> Polynomial:
    if isinstance(expr, AffineConstantExpr):
        return constant(expr.value)
    if isinstance(expr, AffineSymExpr):
        return operands[expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    a, b = _evaluated(expr.lhs, operands), _evaluated(expr.rhs, operands)
    if expr.kind == AffineBinaryOpKind.Add:
        return plus(a, b)
    if expr.kind == AffineBinaryOpKind.Mul:
        return times(a, b)
    if b.number is None or b.number <= 0 or expr.kind == AffineBinaryOpKind.CeilDiv:
        raise ExtentError(f"a size divides by something else than a positive number: {expr}")
    return divided("div" if expr.kind == AffineBinaryOpKind.FloorDiv else "mod", a, b.number)
