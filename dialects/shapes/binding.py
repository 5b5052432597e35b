"""Values of symbolic sizes: bound by the shapes of `@main`'s arguments at each call, and checked against their ranges.

A symbol is either an extent of an argument or a *derived* size, which is computed from other sizes. The attribute
`SIZES` of `@main` lists the derived sizes:

```
func.func @main(%x: tensor<?xf32, #payload.extents<#s0>>) -> tensor<?xf32, #payload.extents<#s1>>
    attributes {"deplodock.sizes" = [#payload.derived<#s1 = affine_map<()[s0] -> (s0 + 1)>[#s0]>]}
```

A call with a tensor of 7 elements binds s0 = 7 and s1 = 8. The host evaluates derived sizes before it launches a
kernel, so kernels treat them like any other symbol.

`Algebra` compares sizes as polynomials of symbols, in which a derived symbol is replaced by its definition. It answers,
for example, whether a reshape keeps the number of elements, or which symbol is the size of a concatenation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""Name of the attribute of `@main` that lists the derived sizes; a size follows the sizes that it is computed from."""


CONDITION = "condition"
"""Prefix of the names of derived sizes that are no sizes: they check a condition by their range."""

_PRIMES = (5, 7, 3, 11)
"""Values that `sample_sizes` assigns to symbols: distinct, so that a mixed-up dimension shows."""

SYMBOL = attribute(SymbolAttr, "a #payload.symbol")


@dataclass(frozen=True)
class _Kind:
    """Kind of a derived size: how it is computed from the results of its map.

    Attributes:
        value: function of the results.
        text: separator of the results in messages, such as ` * `, or a function such as `min`.
        divides: whether the kind takes two results, and the second one must be positive.
    """

    value: Callable[[Sequence[int]], int]
    text: str
    divides: bool = False


_KINDS = {
    "product": _Kind(prod, " * "),
    "quotient": _Kind(lambda values: values[0] // values[1], " floordiv ", divides=True),
    "remainder": _Kind(lambda values: values[0] % values[1], " mod ", divides=True),
    "minimum": _Kind(min, "min"),
    "maximum": _Kind(max, "max"),
}
"""Kinds of derived sizes by name. The text of an attribute omits the first one."""


def _read_kind(parser: AttrParser) -> StringAttr:
    product, *words = _KINDS
    return StringAttr(next((w for w in words if parser.parse_optional_keyword(w)), product))


_KIND = Parameter(
    _read_kind, lambda printer, kind: printer.print_string(f"{kind.data} " if kind.data != "product" else "")
)


@irdl_attr_definition
class DerivedAttr(FormattedAttr):
    """Definition of a derived size: a size that the host computes from other sizes.

    ```
    #s0 = #payload.symbol<s0[2:1001]>
    #s1 = #payload.symbol<s1[1:501]>
    #payload.derived<#s1 = affine_map<()[s0] -> (s0 floordiv 2)>[#s0]>
    ```

    The size is the product of the map's results, so that sizes can be multiplied: `affine_map<()[s0, s1] -> (s0, s1)>`.
    After the word `quotient` or `remainder`, it is the quotient or remainder of the map's two results; after `minimum`
    or `maximum`, the least or greatest result.

    symbol: the derived size.
    kind: `product`, `quotient`, `remainder`, `minimum` or `maximum`.
    map: a map of symbols only.
    operands: the sizes that are the map's symbols.
    """

    name = "payload.derived"
    FORMAT = (SYMBOL, " = ", _KIND, AFFINE_MAP, listed(SYMBOL, AttrParser.Delimiter.SQUARE))
    symbol: SymbolAttr
    kind: StringAttr
    map: AffineMapAttr
    operands: ArrayAttr[SymbolAttr]

    @staticmethod
    def get(symbol: SymbolAttr, map: AffineMap, operands: Sequence[SymbolAttr], kind: str = "product") -> DerivedAttr:
        """Returns the definition of `symbol`.

        Args:
            symbol: the derived size.
            map: a map of symbols only.
            operands: the sizes that are the map's symbols.
            kind: `product`, `quotient`, `remainder`, `minimum` or `maximum` of the map's results.
        """
        return DerivedAttr(symbol, StringAttr(kind), AffineMapAttr(map), ArrayAttr(operands))

    def verify(self) -> None:
        affine, kind = self.map.data, _KINDS[self.kind.data]
        if affine.num_dims or not affine.results or affine.num_symbols != len(self.operands):
            raise VerifyException(
                f"expected a map of {len(self.operands)} symbols with results for the size {self.symbol}, but got"
                f" {affine}"
            )
        count = len(affine.results)
        if kind.divides and count != 2 or self.kind.data != "product" and count < 2:
            raise VerifyException(f"expected two sizes for the {self.kind.data} {self.symbol}, but got {count}")

    @property
    def formula(self) -> str:
        """Definition for messages, such as `u0 mod 2`."""
        names = [operand.hint for operand in self.operands]
        texts = [re.sub(r"\bs(\d+)\b", lambda m: names[int(m[1])], str(e)) for e in self.map.data.results]
        if len(texts) == 1:
            return texts[0][1:-1] if texts[0].startswith("(") else texts[0]
        text = _KINDS[self.kind.data].text
        return text.join(texts) if text.startswith(" ") else f"{text}({', '.join(texts)})"

    def value(self, sizes: Sizes) -> int:
        """Returns the size for given `sizes` of its operands. Raises ShapeError if it divides by a size that is not
        positive."""
        values, kind = self.map.data.eval([], sizes.numbers(list(self.operands))), _KINDS[self.kind.data]
        if kind.divides and values[1] <= 0:
            raise ShapeError(
                f"expected a positive divisor of the size {self.symbol}, a {self.kind.data}, but got {values[1]}"
            )
        return kind.value(values)


class Sizes:
    """Values of symbols during one call. All code that needs an extent as a number gets it here.

    Args:
        values: values of symbols by name.
        pending: derived sizes that are not computed yet, because they depend on a symbol that is bound later.
    """

    def __init__(self, values: Mapping[str, int] | None = None, pending: Sequence[DerivedAttr] = ()) -> None:
        self.values, self.pending = dict(values or {}), list(pending)

    def copy(self) -> Sizes:
        return Sizes(self.values, self.pending)

    def bind(self, symbol: SymbolAttr, value: int, location: str | None = None) -> None:
        """Binds a symbol, and computes the derived sizes that depend on it and on bound symbols only.

        Args:
            symbol: the symbol.
            value: its value.
            location: place in the source that reads the value, for messages.

        Raises:
            ShapeError: the value, or a derived size, is outside of its range.
        """
        _check_range(symbol, value, None, location)
        self.values[symbol.hint] = value
        self.compute(location)

    def compute(self, location: str | None = None) -> None:
        """Computes the pending derived sizes whose operands are bound. Raises ShapeError for a size out of range."""
        waiting = list[DerivedAttr]()
        for d in self.pending:
            if all(operand.hint in self.values for operand in d.operands):
                value, least_value, most_value = d.value(self), d.symbol.minimum, d.symbol.maximum
                if d.symbol.hint.startswith(CONDITION) and not least_value <= value <= most_value:
                    legal = str(least_value) if least_value == most_value else f"{least_value} to {most_value}"
                    raise ShapeError(f"expected {d.formula} to be {legal}, but got {value}", location=location)
                _check_range(d.symbol, value, None, location)
                self.values[d.symbol.hint] = value
            else:
                waiting.append(d)
        self.pending = waiting

    def number(self, extent: Extent) -> int:
        """Returns the value of an extent. Raises UnsupportedError for a symbol that is not bound."""
        if isinstance(extent, int):
            return extent
        if extent.hint not in self.values:
            raise UnsupportedError(f"the size {extent} is the extent of no argument of @main, and is not bound")
        return self.values[extent.hint]

    def numbers(self, extents: Sequence[Extent]) -> tuple[int, ...]:
        """Returns the values of several extents."""
        return tuple(self.number(e) for e in extents)

    def resolved(self, extents: Sequence[Extent]) -> tuple[Extent, ...]:
        """Returns extents with the values of the symbols that are bound. Other symbols stay."""
        return tuple(e if isinstance(e, int) else self.values.get(e.hint, e) for e in extents)

    def count(self, count: Count) -> int:
        """Returns the value of a number of tiles."""
        return count if isinstance(count, int) else -(-self.number(count.symbol) // count.tile.data)

    def shape(self, t: Attribute) -> tuple[int, ...]:
        """Returns the shape of a value of type `t`, `()` for a scalar."""
        return self.numbers(extents_of(t))

    def domain(self, domain: DomainAttr | None) -> DomainAttr | None:
        """Returns the domain with numbers in place of symbolic bounds."""
        if domain is None or all(isinstance(hi, int) for _, hi in domain.limits):
            return domain
        return DomainAttr.get(domain.affine, [(lo, self.number(hi)) for lo, hi in domain.limits])


def derived_sizes(main: FuncOp) -> tuple[DerivedAttr, ...]:
    """Returns the derived sizes of `@main` in the order of evaluation. Raises ShapeError if the attribute is
    malformed."""
    sizes = main.attributes.get(SIZES, ArrayAttr[DerivedAttr]([]))
    if not isa(sizes, ArrayAttr[DerivedAttr]):
        raise ShapeError(f"expected a list of #payload.derived as {SIZES}, but got {main.attributes[SIZES]}")
    return tuple(sizes)


def symbols_of(types: Sequence[Attribute]) -> tuple[SymbolAttr, ...]:
    """Returns the symbols in tensor and memref types, each once, in the order of appearance."""
    return tuple(dict.fromkeys(e for t in types for e in named_extents(t) or () if isinstance(e, SymbolAttr)))


def bind_sizes(main: FuncOp, shapes: Sequence[Sequence[int]], names: Sequence[str] = ()) -> Sizes:
    """Returns the values of the symbols that the shapes of the arguments determine, for a call of `main`.

    The first dimension with a symbol that is not derived binds the symbol. Every range and every other dimension of an
    argument with a symbolic extent is checked. Derived sizes that depend on other symbols are pending: the operations
    `host.bind_size` of the program bind these symbols later.

    Args:
        main: the function.
        shapes: shapes of the arguments.
        names: names of the arguments, for messages.

    Raises:
        ShapeError: a dimension contradicts another one, or a size is outside of its range.
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
    sizes.pending = list(derived)
    sizes.compute()
    if sizes.pending:
        _check_pending(main, sizes)
    for i, (t, shape) in enumerate(zip(types, shapes, strict=False)):
        for dim, extent in _pairs(t, shape, _argument(names, i)):
            if shape[dim] != sizes.number(extent):
                conflict = f", which {extent} is elsewhere" if isinstance(extent, SymbolAttr) else ""
                raise ShapeError(
                    f"dimension {dim} is {shape[dim]}, not {sizes.number(extent)}{conflict}",
                    argument=_argument(names, i),
                )
    return sizes


def _solve(derived: DerivedAttr, value: int, sizes: Sizes) -> None:
    """Binds the operand of `derived` if nothing has bound it and the definition is linear.

    For example, the extent `2 * s0` of an argument binds s0. `bind_sizes` checks later that the derived size is
    `value`.
    """
    if len(derived.operands) != 1 or derived.operands.data[0].hint in sizes.values:
        return
    (operand,), results = derived.operands, derived.map.data.results
    at_zero, at_one = (derived.value(Sizes({operand.hint: n})) for n in range(2))
    factor = at_one - at_zero
    linear = derived.kind.data == "product" and len(results) == 1 and not divisions(derived.map.data)
    if linear and factor > 0:
        sizes.values[operand.hint] = (value - at_zero) // factor
        _check_range(operand, sizes.values[operand.hint], None)


def _check_pending(main: FuncOp, sizes: Sizes) -> None:
    """Raises UnsupportedError if a pending size depends on a symbol that no operation of `main` binds."""
    bound = {str(op.properties["symbol"]) for op in main.body.block.ops if op.name == "host.bind_size"}
    bound |= {d.symbol.hint for d in sizes.pending}
    for operand in (o for d in sizes.pending for o in d.operands if o.hint not in bound):
        sizes.number(operand)


def sample_sizes(main: FuncOp) -> Sizes:
    """Returns values of all symbols for a trial run of `main`: different small primes where their ranges allow it."""
    derived = derived_sizes(main)
    computed = {d.symbol for d in derived}
    free = [s for s in symbols_of(list(main.function_type.inputs)) if s not in computed]
    sizes = Sizes({s.hint: min(max(n, s.minimum), s.maximum) for s, n in zip(free, cycle(_PRIMES))})  # noqa: B905
    for d in derived:
        if all(operand.hint in sizes.values for operand in d.operands):
            sizes.values[d.symbol.hint] = d.value(sizes)
        else:
            sizes.pending.append(d)
    return sizes


def _argument(names: Sequence[str], i: int) -> str:
    return names[i] if i < len(names) else f"argument {i} of @main"


def _pairs(t: Attribute, shape: Sequence[int], argument: str) -> list[tuple[int, Extent]]:
    """Returns (dimension, extent) of a type with symbols; empty for static types, whose shape the executors check."""
    extents = extents_of(t)
    if all(isinstance(e, int) for e in extents):
        return []
    if len(extents) != len(shape):
        raise ShapeError(f"a tensor of rank {len(shape)} where one of rank {len(extents)} is needed", argument=argument)
    return list(enumerate(extents))


def _check_range(symbol: SymbolAttr, value: int, argument: str | None, location: str | None = None) -> None:
    if not symbol.minimum <= value <= symbol.maximum:
        reason = f"the size {symbol} is {value}, outside of {symbol.minimum} to {symbol.maximum}"
        raise ShapeError(reason, argument=argument, location=location)


Atom: TypeAlias = tuple[Any, ...]
"""Factor of a term: ("size", name), ("div" | "mod", polynomial, number), or ("exact", polynomial, name), the exact
quotient of a polynomial and a size."""

_SAMPLE = 1_000_003
"""Value of the first symbol in `Algebra.sample`, which only guesses which of two polynomials is larger."""


class Polynomial(NamedTuple):
    """Polynomial of sizes: sorted terms ((atoms in order, coefficient), ...), without coefficients of 0."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    @property
    def number(self) -> int | None:
        """Returns the value of a polynomial without symbols, or None if it has symbols."""
        if not self.terms:
            return 0
        (atoms, coefficient), *others = self.terms
        return None if atoms or others else coefficient

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


def variable(name: str) -> Polynomial:
    """Returns the polynomial that is one size."""
    return _polynomial([((("size", name),), 1)])


def plus(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """Returns `a + factor * b`.

    Args:
        a: a polynomial.
        b: a polynomial.
        factor: an integer.
    """
    return _polynomial([*a.terms, *((atoms, factor * c) for atoms, c in b.terms)])


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """Returns `a * b`. An exact quotient multiplied by its divisor becomes the dividend."""
    product = _polynomial((x + y, c * d) for x, c in a.terms for y, d in b.terms)
    for atoms, coefficient in product.terms:
        quotient = next((q for q in atoms if q[0] == "exact" and ("size", q[2]) in atoms), None)
        if quotient is not None:
            others = list(atoms)
            others.remove(quotient)
            others.remove(("size", quotient[2]))
            replacement = _polynomial([(tuple(others), coefficient)])
            without = plus(product, _polynomial([(atoms, coefficient)]), -1)
            return plus(times(without, constant(1)), times(quotient[1], replacement))
    return product


def divided(kind: Literal["div", "mod"], a: Polynomial, divisor: int) -> Polynomial:
    """Returns `a floordiv divisor` or `a mod divisor`; terms that the divisor divides are divided exactly.

    Args:
        kind: `div` for the quotient, `mod` for the remainder.
        a: the dividend.
        divisor: a positive number.
    """
    whole = _polynomial((atoms, c // divisor) for atoms, c in a.terms if c % divisor == 0)
    remainder = _polynomial((atoms, c) for atoms, c in a.terms if c % divisor)
    if remainder.number is not None:
        number = remainder.number
        return plus(whole, constant(number // divisor)) if kind == "div" else constant(number % divisor)
    atom = _polynomial([(((kind, remainder, divisor),), 1)])
    return plus(whole, atom) if kind == "div" else atom


@dataclass(eq=False)
class Algebra:
    """Conversion between extents of one program and polynomials."""

    promises: list[DerivedAttr] = field(default_factory=list[DerivedAttr])
    """Derived sizes that operators add: the host computes them, and checks their ranges, at every call."""
    _meaning: dict[SymbolAttr, Polynomial] = field(default_factory=dict[SymbolAttr, Polynomial], init=False)
    _names: dict[Polynomial, SymbolAttr] = field(default_factory=dict[Polynomial, SymbolAttr], init=False)
    _remainders: set[tuple[Polynomial, ...]] = field(default_factory=set[tuple[Polynomial, ...]], init=False)
    """Pairs (dividend, divisor) of sizes whose remainder must be 0, so their quotient is exact."""

    @staticmethod
    def with_sizes(derived: Sequence[DerivedAttr]) -> Algebra:
        """Returns the algebra of a program with the derived sizes `derived`."""
        algebra = Algebra()
        algebra._read(derived)
        multiples = list(_multiples(derived))
        if algebra._remainders or multiples:
            # Read again, because some quotients are now known to be exact.
            algebra._meaning, algebra._names = {}, {}
            for symbol, divisor, quotient in multiples:
                meaning = times(variable(quotient.hint), constant(divisor))
                algebra._meaning[symbol] = meaning
                algebra._names[meaning] = symbol
            algebra._read(derived)
        return algebra

    def _read(self, derived: Sequence[DerivedAttr]) -> None:
        """Records the polynomials of derived sizes."""
        for d in derived:
            operands = [self.of(o) for o in d.operands]
            results = [_evaluated(result, operands) for result in d.map.data.results]
            meaning = variable(d.symbol.hint)
            if d.kind.data == "product":
                meaning = reduce(times, results)
            elif d.kind.data == "remainder" and d.symbol.maximum == 0:
                self._remainders.add(tuple(results))
            elif tuple(results) in self._remainders and (name := _name(results[1])) is not None:
                meaning = _polynomial([((("exact", results[0], name),), 1)])
            self._meaning[d.symbol] = meaning
            self._names.setdefault(meaning, d.symbol)

    def define(self, derived: DerivedAttr) -> None:
        """Adds a derived size, whose operands are known."""
        self._read([derived])

    def promise_within(self, index: SymbolAttr, extent: Extent) -> None:
        """Adds a check, made at every call, that `index` < `extent`, unless the ranges prove it.

        A negative index counts from the end and needs -`index` <= `extent`. The check is a derived size, the number of
        elements from the index to the end, whose range starts at 1.
        """
        if 0 <= index.minimum and index.maximum < least(extent):
            return
        offset = AffineExpr.symbol(0)
        # A negative index counts from the end.
        if index.maximum < 0:
            offset = (offset + 1) * -1
        if isinstance(extent, int):
            name, remaining, operands = "left", AffineExpr.constant(extent) - offset, [index]
        else:
            name, remaining, operands = extent.hint, AffineExpr.symbol(1) - offset, [index, extent]
        used_names = {s.hint for s in self._meaning} | {p.symbol.hint for p in self.promises}
        number = next(n for n in range(len(used_names) + 1) if f"{name}_from_index{n}" not in used_names)
        size = SymbolAttr.get(f"{name}_from_index{number}", 1, max(most(extent), 1))
        self.promises.append(DerivedAttr.get(size, AffineMap(0, len(operands), (remaining,)), operands))

    def quotient(self, extent: SymbolAttr, offset: int, divisor: int, name: str) -> SymbolAttr:
        """Returns the size `(extent + offset) // divisor`, which becomes a derived size of the program.

        Args:
            extent: a size.
            offset: a number that is not negative.
            divisor: a positive number.
            name: name of the new size; a number is added if there is another size of that name.
        """
        map = AffineMap(0, 1, ((AffineExpr.symbol(0) + offset) // divisor,))
        value = _evaluated(map.results[0], [self.of(extent)])
        if (size := self._names.get(value)) is None:
            used = {s.hint for s in self._names.values()}
            name = next(n for n in (name, *(f"{name}{i}" for i in range(len(used)))) if n not in used)
            size = SymbolAttr.get(name, (extent.minimum + offset) // divisor, (extent.maximum + offset) // divisor)
            self.promises.append(DerivedAttr.get(size, map, [extent]))
            self._meaning[size], self._names[value] = value, size
        return size

    def of(self, extent: Extent) -> Polynomial:
        """Returns an extent as a polynomial of symbols that are not derived."""
        if isinstance(extent, int):
            return constant(extent)
        if extent not in self._meaning:
            self._meaning[extent] = polynomial = variable(extent.hint)
            self._names[polynomial] = extent
        return self._meaning[extent]

    def product(self, extents: Iterable[Extent]) -> Polynomial:
        """Returns the product of extents as a polynomial."""
        factors = list(extents)
        numbers = constant(prod(e for e in factors if isinstance(e, int)))
        return reduce(times, (self.of(e) for e in factors if not isinstance(e, int)), numbers)

    def extent(self, value: Polynomial) -> Extent:
        """Returns the number or symbol with this value. Raises ExtentError if there is none."""
        if value.number is not None:
            return value.number
        if value not in self._names:
            raise ExtentError(f"the size {value}, which depends on sizes known only at run time, is not supported here")
        return self._names[value]

    def named(self, value: Polynomial) -> SymbolAttr | None:
        """Returns the symbol with this value, or None if there is none."""
        return self._names.get(value)

    def terms(self, value: Polynomial) -> list[tuple[list[SymbolAttr], int]]:
        """Returns (symbols to multiply, coefficient) of each term of a polynomial. Raises ExtentError if a factor is
        not a symbol."""
        products: list[tuple[list[SymbolAttr], int]] = []
        for atoms, coefficient in value.terms:
            symbols = [self.extent(Polynomial((((a,), 1),))) for a in atoms]
            products.append(([s for s in symbols if isinstance(s, SymbolAttr)], coefficient))
        return products

    def sample(self, value: Polynomial) -> int:
        """Returns the value for large sizes, to guess which of two polynomials is larger."""
        return _sampled(value, {s.hint: _SAMPLE + 1009 * i for i, s in enumerate(self._meaning)})


def _multiples(derived: Sequence[DerivedAttr]) -> Iterator[tuple[SymbolAttr, int, SymbolAttr]]:
    """Yields (size, divisor, quotient) for sizes that a check shows to be a multiple of a number, each size once.

    The check is a derived size `s mod 2` that must be 0, and the quotient is the derived size `s floordiv 2`.
    """
    quotients = dict[tuple[SymbolAttr, int], SymbolAttr]()
    remainders = dict[tuple[SymbolAttr, int], SymbolAttr]()
    for d in derived:
        match d.map.data.results:
            case (AffineBinaryOpExpr(kind, AffineSymExpr(position), AffineConstantExpr(value)),):
                operand = d.operands.data[position]
                if kind == AffineBinaryOpKind.FloorDiv:
                    quotients[operand, value] = d.symbol
                elif kind == AffineBinaryOpKind.Mod and d.symbol.minimum == d.symbol.maximum == 0:
                    remainders.setdefault((operand, value), operand)
            case _:
                pass
    computed, seen = {d.symbol for d in derived}, set[SymbolAttr]()
    for key, operand in remainders.items():
        if key in quotients and operand not in computed and operand not in seen:
            seen.add(operand)
            yield operand, key[1], quotients[key]


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
    """Returns the name of the size if the polynomial is a single symbol, or None."""
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
        raise ExtentError(f"expected a size divided by a positive number, but got {expr}")
    return divided("div" if expr.kind == AffineBinaryOpKind.FloorDiv else "mod", a, b.number)
