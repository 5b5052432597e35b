"""The values of symbols: bound by the shapes of `@main`'s arguments at a call, checked against their ranges.

A symbol is the extent of an argument, or it is computed from others, which `@main` says in its attribute `SIZES`:

```
func.func @main(%x: tensor<?xf32, #payload.extents<#s0>>) -> tensor<?xf32, #payload.extents<#s1>>
    attributes {"deplodock.sizes" = [#payload.derived<#s1 = affine_map<()[s0] -> (s0 + 1)>[#s0]>]}
```
The host evaluates it before anything runs, so below a derived size is a symbol like any other.

Whether a reshape keeps its elements, or which symbol is the size of two tensors one after the other, is a question
about polynomials of symbols (`Algebra`), in which a derived symbol stands for what it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import cycle
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from ...errors import ShapeError, UnsupportedError
from ..support.attribute_format import FormattedAttr, Parameter, attribute, listed
from .affine import divisions
from .domain import AFFINE_MAP, DomainAttr
from .extents import Count, Extent, ExtentError, SymbolAttr, extents_of, least, most, named_extents

SIZES = "deplodock.sizes"
"""The attribute of `@main` that lists its derived sizes, each after those it is computed from."""


_PRIMES = (5, 7, 3, 11)

SYMBOL = attribute(SymbolAttr, "a #payload.symbol")


def _read_kind(parser: AttrParser) -> StringAttr:
    words = ("quotient", "remainder")
    return StringAttr(next((w for w in words if parser.parse_optional_keyword(w)), "product"))


_KIND = Parameter(
    _read_kind, lambda printer, kind: printer.print_string(f"{kind.data} " if kind.data != "product" else "")
)


@irdl_attr_definition
class DerivedAttr(FormattedAttr):
    """`#payload.derived<#s1 = affine_map<()[s0] -> (s0 floordiv 2)>[#s0]>`: how one size follows from others.

    The size is the product of the map's results, so that sizes can be multiplied: `affine_map<()[s0, s1] -> (s0, s1)>`.
    After the word `quotient` or `remainder` it is that of the map's two results. It is evaluated on the host only."""

    name = "payload.derived"
    FORMAT = (SYMBOL, " = ", _KIND, AFFINE_MAP, listed(SYMBOL, AttrParser.Delimiter.SQUARE))
    symbol: SymbolAttr
    kind: StringAttr
    map: AffineMapAttr
    operands: ArrayAttr[SymbolAttr]

    @staticmethod
    def get(symbol: SymbolAttr, map: AffineMap, operands: Sequence[SymbolAttr], kind: str = "product") -> DerivedAttr:
        """`symbol` is the product, `quotient` or `remainder` of the results of `map` at the sizes `operands`."""
        return DerivedAttr(symbol, StringAttr(kind), AffineMapAttr(map), ArrayAttr(operands))

    def verify(self) -> None:
        affine, kind = self.map.data, self.kind.data
        if affine.num_dims or not affine.results or affine.num_symbols != len(self.operands):
            raise VerifyException(f"the size {self.symbol} is a {kind}, computed from {len(self.operands)} sizes")
        if kind != "product" and len(affine.results) != 2:
            raise VerifyException(f"the size {self.symbol} is a {kind} of two sizes, but got {len(affine.results)}")

    def value(self, sizes: Sizes) -> int:
        """The size where the others are `sizes`. Raises ShapeError where it is a quotient by a size that is 0."""
        values = self.map.data.eval([], sizes.numbers(list(self.operands)))
        if self.kind.data == "product":
            return prod(values)
        if values[1] <= 0:
            raise ShapeError(f"the size {self.symbol} is a {self.kind.data} by a size that is {values[1]}")
        return values[0] // values[1] if self.kind.data == "quotient" else values[0] % values[1]


class Sizes:
    """The values of symbols during one call. Everywhere an extent is needed as a number, it is asked here."""

    def __init__(self, values: Mapping[str, int] | None = None) -> None:
        self.values = dict(values or {})

    def number(self, extent: Extent) -> int:
        """The value of an extent. Raises UnsupportedError for a symbol that no argument has bound."""
        if isinstance(extent, int):
            return extent
        if extent.hint not in self.values:
            raise UnsupportedError(f"the size {extent} is the extent of no argument of @main")
        return self.values[extent.hint]

    def numbers(self, extents: Sequence[Extent]) -> tuple[int, ...]:
        return tuple(self.number(e) for e in extents)

    def count(self, count: Count) -> int:
        return count if isinstance(count, int) else -(-self.number(count.symbol) // count.tile.data)

    def shape(self, t: Attribute) -> tuple[int, ...]:
        """The shape of a value of type `t`; `()` for a scalar."""
        return self.numbers(extents_of(t))

    def domain(self, domain: DomainAttr | None) -> DomainAttr | None:
        if domain is None or all(isinstance(hi, int) for _, hi in domain.limits):
            return domain
        return DomainAttr.get(domain.affine, [(lo, self.number(hi)) for lo, hi in domain.limits])


def derived_sizes(main: FuncOp) -> tuple[DerivedAttr, ...]:
    """The derived sizes of `@main`, in the order in which they are computed. Raises ShapeError for another attribute
    under that name."""
    found = main.attributes.get(SIZES, ArrayAttr[DerivedAttr]([]))
    if not isa(found, ArrayAttr[DerivedAttr]):
        raise ShapeError(f"{SIZES} is a list of #payload.derived")
    return tuple(found)


def symbols_of(types: Sequence[Attribute]) -> tuple[SymbolAttr, ...]:
    """The symbols in tensor and memref types, each once, in the order in which they appear."""
    return tuple(dict.fromkeys(e for t in types for e in named_extents(t) or () if isinstance(e, SymbolAttr)))


def bind_sizes(main: FuncOp, shapes: Sequence[Sequence[int]], names: Sequence[str] = ()) -> Sizes:
    """The symbols' values for a call of `main` with arguments of these shapes.

    The first dimension with a symbol that is not derived binds it; every other one, every static dimension of an
    argument that has a symbol, and every range is checked. `names` names the arguments in messages. Raises ShapeError.
    """
    derived = derived_sizes(main)
    computed = {d.symbol.hint for d in derived}
    sizes = Sizes()
    types = list(main.function_type.inputs)
    for i, (t, shape) in enumerate(zip(types, shapes, strict=False)):
        for dim, extent in _pairs(t, shape, _argument(names, i)):
            if isinstance(extent, SymbolAttr) and extent.hint not in computed:
                _check_range(extent, shape[dim], f"{_argument(names, i)}, dimension {dim}")
                sizes.values.setdefault(extent.hint, shape[dim])
    for t, shape in zip(types, shapes, strict=False):
        for d in derived:
            if d.symbol in extents_of(t):
                _solve(d, shape[extents_of(t).index(d.symbol)], sizes)
    for d in derived:
        value = d.value(sizes)
        _check_range(d.symbol, value, None)
        sizes.values[d.symbol.hint] = value
    for i, (t, shape) in enumerate(zip(types, shapes, strict=False)):
        for dim, extent in _pairs(t, shape, _argument(names, i)):
            if shape[dim] != sizes.number(extent):
                what = f", which {extent} is elsewhere" if isinstance(extent, SymbolAttr) else ""
                raise ShapeError(
                    f"dimension {dim} is {shape[dim]}, not {sizes.number(extent)}{what}", argument=_argument(names, i)
                )
    return sizes


def _solve(derived: DerivedAttr, value: int, sizes: Sizes) -> None:
    """Bind the one size from which `derived` is computed as a multiple and a sum, if nothing has bound it: the extent
    2 * s0 of an argument binds s0. That the derived size then is `value` is checked with all others."""
    if len(derived.operands) != 1 or derived.operands.data[0].hint in sizes.values:
        return
    (operand,), results = derived.operands, derived.map.data.results
    at_zero, at_one = (derived.value(Sizes({operand.hint: n})) for n in range(2))
    factor = at_one - at_zero
    linear = derived.kind.data == "product" and len(results) == 1 and not divisions(derived.map.data)
    if linear and factor > 0:
        sizes.values[operand.hint] = (value - at_zero) // factor
        _check_range(operand, sizes.values[operand.hint], None)


def sample_sizes(main: FuncOp) -> Sizes:
    """Values of all symbols for trying `main` out: different small primes where their ranges allow it."""
    derived = derived_sizes(main)
    computed = {d.symbol for d in derived}
    free = [s for s in symbols_of(list(main.function_type.inputs)) if s not in computed]
    sizes = Sizes({s.hint: min(max(n, s.minimum), s.maximum) for s, n in zip(free, cycle(_PRIMES))})  # noqa: B905
    for d in derived:
        sizes.values[d.symbol.hint] = d.value(sizes)
    return sizes


def _argument(names: Sequence[str], i: int) -> str:
    return names[i] if i < len(names) else f"argument {i} of @main"


def _pairs(t: Attribute, shape: Sequence[int], argument: str) -> list[tuple[int, Extent]]:
    """(dimension, extent) of a type with symbols; of others the executors check the shape as a whole."""
    extents = extents_of(t)
    if all(isinstance(e, int) for e in extents):
        return []
    if len(extents) != len(shape):
        raise ShapeError(f"a tensor of rank {len(shape)} where one of rank {len(extents)} is needed", argument=argument)
    return list(enumerate(extents))


def _check_range(symbol: SymbolAttr, value: int, argument: str | None) -> None:
    if not symbol.minimum <= value <= symbol.maximum:
        raise ShapeError(
            f"the size {symbol} is {value}, outside of {symbol.minimum} to {symbol.maximum}", argument=argument
        )


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
    return _polynomial([((), value)])


def plus(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
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


@dataclass(eq=False)
class Algebra:
    """Extents of one program as polynomials, and back."""

    promises: list[DerivedAttr] = field(default_factory=list[DerivedAttr])
    """Sizes that are checked at every call: operators rely on them."""
    _meaning: dict[SymbolAttr, Polynomial] = field(default_factory=dict[SymbolAttr, Polynomial], init=False)
    _names: dict[Polynomial, SymbolAttr] = field(default_factory=dict[Polynomial, SymbolAttr], init=False)
    _remainders: set[tuple[Polynomial, ...]] = field(default_factory=set[tuple[Polynomial, ...]], init=False)
    """Pairs (dividend, divisor) of sizes of which the remainder is promised to be 0."""

    @staticmethod
    def with_sizes(derived: Sequence[DerivedAttr]) -> Algebra:
        """Returns the algebra of a program with derived sizes."""
        algebra = Algebra()
        algebra._read(derived)
        if algebra._remainders:
            # Some quotients are exact.
            algebra._meaning, algebra._names = {}, {}
            algebra._read(derived)
        return algebra

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
        factors = list(extents)
        numbers = constant(prod(e for e in factors if isinstance(e, int)))
        return reduce(times, (self.of(e) for e in factors if not isinstance(e, int)), numbers)

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
        return _sampled(value, {s.hint: _SAMPLE + 1009 * i for i, s in enumerate(self._meaning)})


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
    match value.terms:
        case (((("size", name),), 1),):
            return name
        case _:
            return None


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
