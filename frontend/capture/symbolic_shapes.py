"""Symbolic sizes: conversion of PyTorch's symbols to symbols of the IR, with names, ranges and derived sizes.

A *derived size* is a size that the host computes from other sizes in each call, such as `2 * s0 + 1`. A derived size
with a range is also a check: each call refuses a value outside of the range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from unittest.mock import patch

import sympy
import torch
from torch.fx.experimental import _config
from torch.utils._sympy import functions
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy
from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects.shapes.binding import CONDITION, DerivedAttr
from ...dialects.shapes.extents import Extent, SymbolAttr
from ...dialects.tensor.builder import Number
from ...errors import UnsupportedError

LARGEST = 1 << 20
"""Largest value of a size without a declared maximum."""

LARGEST_OF_LARGE = (1 << 31) - 1
"""Largest value of a size without a declared maximum whose example is above `LARGEST`."""

LARGEST_DIFFERENCE = 1 << 62
"""Largest difference of two sizes that a condition compares, and largest magnitude of a number from data."""


class SizeTable:
    """Symbols of the IR for the sizes of one program.

    The size of an input gets the name of the user's `Dim`, or `s0`, `s1`, ... in the order of appearance. An expression
    of symbols becomes a derived size; equal expressions share one symbol.

    A condition on sizes without a named `Dim` is assumed to be decided as in the example: `x[:n]` has `n` rows if the
    example has at least `n`. Each call checks this by a derived size whose range is the condition.

    Args:
        named: dimensions with a named `Dim`. `specialization.py` has checked that the program holds in their whole
            ranges.
        nodes: nodes of the graph. A node that reads element `i` of a dimension raises the dimension's least size.
    """

    def __init__(self, named: Sequence[NamedDim] = (), nodes: Iterable[torch.fx.Node] = ()) -> None:
        self._nodes, self._needed = nodes, dict[Any, int]()
        self._names = {d.symbol: d.name for d in reversed(named)}
        self._least = {d.symbol: d.declared_min for d in named if d.declared_min}
        self._known: dict[Any, SymbolAttr] = {}
        self._derived: list[DerivedAttr] = []
        self._ranges: dict[Any, Any] = {}
        self._assumed: list[Any] = []
        self._read = set[Any]()
        self._env: Any = None

    def extent(self, size: int | torch.SymInt) -> Extent:
        """Returns a size of PyTorch as an extent of the IR."""
        if not isinstance(size, torch.SymInt):
            return size
        return self._extent(self._expression(size))

    def number(self, value: int | torch.SymInt) -> Number:
        """Returns a number that PyTorch computes from sizes, such as the start `-n` of a slice.

        A negative number becomes a symbol with a negative range. If the sizes have no names, the number is assumed to
        have the sign that it has for the example, and each call checks this. A number that depends on data may have
        both signs.
        """
        if not isinstance(value, torch.SymInt):
            return value
        expr = self._settled(self._expression(value))
        if expr.is_Symbol or expr in self._known:
            return self._extent(expr)
        bounds = bound_sympy(expr, self._ranges)
        if _has_data(expr):
            if bounds.lower >= 0:
                return self._extent(expr)
            least, most = max(bounds.lower, -LARGEST_DIFFERENCE), min(bounds.upper, LARGEST_DIFFERENCE)
            return self._derive(expr, bounds=(int(least), int(most)))
        if bounds.upper >= 0:
            if self.has_names(expr) or self._hinted(expr) >= 0:
                return self._extent(expr)
            self._assumed.append(expr <= -1)
        return self._derive(expr, bounds=(int(bounds.lower) if bounds.lower.is_Integer else -LARGEST, -1))

    def bind(self, number: torch.SymInt) -> SymbolAttr:
        """Returns the symbol of an integer that the program reads from a tensor.

        If PyTorch has found that the integer equals a size that is bound before, a check of this is added.
        """
        expr, symbol = self._expression(number), number.node._expr
        if expr.is_Symbol and is_from_data(expr) and expr not in self._read:
            symbol = expr
        self._read.add(symbol)
        if expr != symbol:
            self._assumed.append(sympy.Eq(symbol, expr, evaluate=False))
        extent = self._extent(symbol)
        assert isinstance(extent, SymbolAttr)
        return extent

    def require(self, condition: torch.SymBool) -> None:
        """Adds a check of a condition on sizes, for each call. Raises UnsupportedError if the host cannot compute
        it."""
        expr = substituted(condition.node.expr, condition.node.shape_env)
        if any(symbol_is_type(s, SymT.UNBACKED_FLOAT) for s in expr.free_symbols):
            raise UnsupportedError("a condition on a float that depends on data is not supported")
        for s in expr.free_symbols:
            self._read_range(s, condition.node.shape_env)
        self._check(expr)

    def _read_range(self, symbol: Any, env: Any) -> None:
        """Reads the range of a symbol from PyTorch."""
        bounds = env.var_to_range[symbol]
        if is_from_data(symbol):
            number = not bounds.lower >= 0
            most = LARGEST_DIFFERENCE if number else LARGEST_OF_LARGE
            least = max(bounds.lower, -most)
            self._ranges[symbol] = ValueRanges(int(least), int(max(min(bounds.upper, most), least)))
            return
        least = min(self._least.get(symbol, int(bounds.lower)), int(bounds.lower))
        self._ranges[symbol] = ValueRanges(max(least, self._needed.get(symbol, 0)), bounds.upper)

    def _expression(self, size: torch.SymInt) -> Any:
        """Returns the expression of a size, after it has read the ranges of symbols and the conditions on them."""
        env = size.node.shape_env
        if self._env is None:
            for symbol, least in map(_size_needed, self._nodes):
                self._needed[symbol] = max(least, self._needed.get(symbol, 0))
        for symbol in env.var_to_range:
            if not symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT)):
                self._read_range(symbol, env)
        if self._env is None:
            self._env = env
            self._assumed = [e for e in conditions(env) if not self.has_names(e)]
        return substituted(size.node.expr, env)

    def has_names(self, expr: Any) -> bool:
        """Returns true if every size in an expression has a named `Dim`."""
        return all(s in self._names for s in expr.free_symbols)

    @property
    def derived(self) -> ArrayAttr[DerivedAttr]:
        """Derived sizes and checks of the program, each after the sizes that it uses."""
        while self._assumed:
            self._check(self._assumed.pop())
        return ArrayAttr(self._derived)

    def _check(self, condition: Any) -> None:
        """Adds a check, for each call, of a condition that holds for the example.

        Raises UnsupportedError for a condition that the host cannot compute.
        """
        condition = self._settled(condition)
        if condition in (sympy.true, True):
            return
        if isinstance(condition, sympy.And):
            self._assumed += condition.args
        elif isinstance(condition, sympy.Or):
            self._assumed.append(next(e for e in condition.args if self._hinted(e)))
        elif isinstance(condition, sympy.core.relational.Relational):
            a, b = condition.args
            if isinstance(condition, sympy.Ne) and _has_data(condition):
                self._check_different(sympy.expand(a - b))
                return
            most = 0 if isinstance(condition, sympy.Eq) else LARGEST_DIFFERENCE
            if isinstance(condition, sympy.Ge | sympy.Gt) or isinstance(condition, sympy.Ne) and self._hinted(a > b):
                a, b = b, a
            strict = isinstance(condition, sympy.Ne | sympy.StrictLessThan | sympy.StrictGreaterThan)
            difference = self._settled(sympy.expand(b - a - int(strict)))
            if most == 0 and difference.could_extract_minus_sign():
                difference = -difference
            bounds = bound_sympy(difference, self._ranges)
            if bounds.lower < 0 or bounds.upper > most:
                self._define(f"{CONDITION}0", (0, most), *self._formula(difference))
        else:
            raise UnsupportedError(f"the program holds only where {condition}, which is not supported")

    def _check_different(self, difference: Any) -> None:
        """Adds a check that a difference of sizes is not 0: its square is at least 1."""
        operands: list[SymbolAttr] = []
        factor = self._affine(difference, operands)
        self._define(f"{CONDITION}0", (1, LARGEST_DIFFERENCE), "product", [factor, factor], operands)

    def _hinted(self, expr: Any) -> Any:
        """Returns the value of an expression for the example."""
        values: Any = getattr(self._env, "backed_var_to_val", None) or self._env.var_to_val
        return expr.subs(values)

    def _extent(self, expr: Any) -> Extent:
        if expr.is_Integer:
            return int(expr)
        if expr in self._known:
            return self._known[expr]
        if not expr.is_Symbol:
            simpler = self._settled(expr)
            return self._derive(expr) if simpler == expr else self._extent(simpler)
        bounds = self._ranges[expr]
        if is_from_data(expr):
            symbol = SymbolAttr.get(self._fresh(str(expr)), int(bounds.lower), int(bounds.upper))
            self._known[expr] = symbol
            return symbol
        if not bounds.upper.is_Integer and self._hinted(expr) > LARGEST:
            bounds = ValueRanges(bounds.lower, LARGEST_OF_LARGE)
        symbol = SymbolAttr.get(self._fresh(self._names.get(expr, "s0")), *extent_bounds(bounds.lower, bounds.upper))
        self._known[expr] = symbol
        return symbol

    def _settled(self, expr: Any) -> Any:
        """Returns an expression in which minima and maxima are replaced by the argument that they select, where
        possible."""
        return expr.replace(lambda e: isinstance(e, functions.Min | functions.Max), self._without_choice)

    def _without_choice(self, choice: Any) -> Any:
        """Returns the argument that a minimum or maximum always selects, or selects for the example.

        In the latter case a check is added. If all sizes in it have names, or one of them depends on data, the minimum
        or maximum is returned unchanged, and the host computes it.
        """
        sign = 1 if isinstance(choice, functions.Min) else -1
        args: tuple[Any, ...] = choice.args
        for a in args:
            if all(_largest(sympy.expand(sign * (a - b)), self._ranges) <= 0 for b in args):
                return a
        if self.has_names(choice) or _has_data(choice):
            return choice
        chosen = min(args, key=lambda a: (sign * self._hinted(a), str(a)))
        self._assumed += [sign * chosen <= sign * b for b in args if b is not chosen]
        return chosen

    def _derive(self, expr: Any, *, bounds: tuple[int, int] | None = None) -> SymbolAttr:
        """Adds a derived size.

        Args:
            expr: expression of the size.
            bounds: for a number that is not a size, its least and its greatest value.
        """
        formula = self._formula(expr)
        size = bound_sympy(expr, self._ranges)
        if bounds is None and size.upper < 0:
            raise UnsupportedError("a size that is negative is not supported", kind="dynamic-sizes")
        name, bounds = ("size0", extent_bounds(size.lower, size.upper)) if bounds is None else ("number0", bounds)
        self._known[expr] = symbol = self._define(name, bounds, *formula)
        return symbol

    def _formula(self, expr: Any) -> tuple[str, list[AffineExpr], list[SymbolAttr]]:
        """Returns the kind, the results and the operands of the derived size with an expression."""
        operands, kind = list[SymbolAttr](), _kind(expr)
        return kind or "product", [self._affine(f, operands) for f in (expr.args if kind else [expr])], operands

    def _define(
        self,
        name: str,
        bounds: tuple[int, int],
        kind: str,
        results: Sequence[AffineExpr],
        operands: Sequence[SymbolAttr],
    ) -> SymbolAttr:
        """Adds a derived size or a check, and returns its symbol.

        Args:
            name: name of the symbol; it may get another number at its end.
            bounds: least and greatest value.
            kind: how the value is computed from the results, as `DerivedAttr` names it.
            results: affine expressions of the operands.
            operands: symbols.
        """
        symbol = SymbolAttr.get(self._fresh(name), *bounds)
        self._derived.append(DerivedAttr.get(symbol, AffineMap(0, len(operands), tuple(results)), operands, kind))
        return symbol

    def _affine(self, expr: Any, operands: list[SymbolAttr]) -> AffineExpr:
        """Returns an expression of PyTorch as an affine expression in the symbols `operands`, which may get new
        elements.

        A product of sizes becomes a derived size of its own. Raises UnsupportedError for an expression that the host
        cannot compute.
        """
        if expr.is_Integer:
            return AffineExpr.constant(int(expr))
        if expr.is_Symbol or _kind(expr):
            symbol = self._extent(expr)
            assert isinstance(symbol, SymbolAttr)
            operands += [] if symbol in operands else [symbol]
            return AffineExpr.symbol(operands.index(symbol))
        divided = isinstance(expr, functions.FloorDiv | functions.CleanDiv)
        if divided or isinstance(expr, functions.Mod | functions.PythonMod):
            value, divisor = cast(tuple[Any, Any], expr.args)
            if divisor.is_Integer and divisor > 0:
                inner = self._affine(value, operands)
                return inner // int(divisor) if divided else inner % int(divisor)
        if expr.is_Add or expr.is_Mul:
            parts = expr.args if expr.is_Add else expr.as_coeff_Mul()
            first, *others = (self._affine(a, operands) for a in parts)
            for other in others:
                first = first + other if expr.is_Add else first * other
            return first
        raise UnsupportedError(
            "a size is neither a sum, a product nor a quotient by a number of the declared sizes", kind="dynamic-sizes"
        )

    def _fresh(self, name: str) -> str:
        """Returns `name`, or the name with another number at its end if a symbol has that name."""
        taken = {s.hint for s in self._known.values()} | {d.symbol.hint for d in self._derived}
        stem = re.sub(r"[^a-z0-9_]", "_", name.lower())
        stem = stem if stem[0].isalpha() else f"s_{stem}"
        count, base = 0, re.sub(r"[0-9]+$", "", stem) if stem in taken else stem
        while stem in taken:
            stem, count = f"{base}{count}", count + 1
        return stem


def _kind(expr: Any) -> str | None:
    """Returns the operation of a derived size on its arguments, as `DerivedAttr` names it, or None if it is affine."""
    if isinstance(expr, functions.Min | functions.Max):
        return "minimum" if isinstance(expr, functions.Min) else "maximum"
    if isinstance(expr, functions.FloorDiv | functions.CleanDiv | functions.Mod | functions.PythonMod):
        divided = isinstance(expr, functions.FloorDiv | functions.CleanDiv)
        return None if expr.args[1].is_Integer else "quotient" if divided else "remainder"
    several = expr.is_Mul and sum(not f.is_Integer for f in expr.args) > 1 and expr.as_coeff_Mul()[0] > 0
    return "product" if several else None


def _size_needed(node: torch.fx.Node) -> tuple[Any, int]:
    """Returns a size that a node indexes by a constant (`select`), and the least size that has this index.

    Returns (None, 0) for other nodes.
    """
    if node.target is torch.ops.aten.select.int:
        named = {**dict(zip(("self", "dim", "index"), node.args, strict=False)), **node.kwargs}
        source, dim, index = (named[name] for name in ("self", "dim", "index"))
        size = source.meta["val"].shape[dim]  # pyright: ignore
        if isinstance(size, torch.SymInt) and isinstance(index, int):
            return substituted(size.node.expr, size.node.shape_env), index + 1 if index >= 0 else -index
    return None, 0


def conditions(env: Any) -> list[Any]:
    """Returns the conditions on sizes that PyTorch assumed while tracing, without conditions on data."""
    notes = [note.expr for notes in env.deferred_runtime_asserts.values() for note in notes]
    expressions = [substituted(e, env) for e in notes]
    return [e for e in expressions if e != sympy.true and not _has_data(e)]


def equal_sizes(env: Any) -> dict[Any, Any]:
    """Returns the symbols that PyTorch assumed to be equal to another expression, with that expression.

    Both become the same symbol of the IR. So the equality is checked when a call's arguments bind the symbol. A symbol
    that is read from data is only replaced by an expression of symbols that are bound before it.
    """
    notes = (note.expr for notes in env.deferred_runtime_asserts.values() for note in notes)
    return _equal_sizes(tuple(env.replacements.items()), tuple(notes))


@lru_cache(16)
def _equal_sizes(replacements: tuple[tuple[Any, Any], ...], notes: tuple[Any, ...]) -> dict[Any, Any]:
    """Returns `equal_sizes` for the contents of a shape environment, which rarely change between two sizes."""
    equal: dict[Any, Any] = {}
    for a, b in replacements:
        if (pair := _ordered(a, b)) is not None:
            equal = {s: e.subs(*pair) for s, e in equal.items()} | {pair[0]: pair[1].subs(equal)}
    for note in notes:
        expr = note.subs(equal)
        if isinstance(expr, sympy.Eq):
            for a, b in (expr.args, expr.args[::-1]):
                if isinstance(a, sympy.Symbol) and a not in b.free_symbols and _ordered(a, b) == (a, b):
                    equal = {s: e.subs(a, b) for s, e in equal.items()} | {a: b}
                    break
    return equal


def _ordered(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Returns an equality of a symbol and an expression such that the symbol is the last one that a call binds.

    Returns None if it is none of the two sides. Symbols from data are bound in the order of their numbers, after all
    others.
    """
    numbers = {s: int(re.sub(r"\D", "", str(s))) if is_from_data(s) else -1 for s in (a, *b.free_symbols)}
    last = max(numbers, key=numbers.__getitem__)
    if numbers[last] < 0 or last == a:
        return a, b
    factor = b.coeff(last)
    return (last, sympy.expand((a - b) * factor + last)) if abs(factor) == 1 else None


def substituted(expr: Any, env: Any) -> Any:
    """Returns an expression with equal symbols replaced by one of them, and exact float operations replaced by integer
    ones."""
    return expr.subs(equal_sizes(env)).replace(functions.TruncToInt, _truncated)


def _truncated(number: Any) -> Any:
    """Returns `int(size * fraction)` as an integer quotient if the float result is exact, else unchanged.

    It is exact for a fraction whose denominator is a power of two.
    """
    factor, size = number.as_coeff_Mul()
    numerator, denominator = float(factor).as_integer_ratio() if factor.is_number else (0, 1)
    if isinstance(size, functions.ToFloat) and 0 < numerator < 1 << 20 and denominator < 1 << 20:
        return functions.FloorDiv(size.args[0] * numerator, denominator)
    return functions.TruncToInt(number)


def depends_on_data(value: Any) -> bool:
    """Returns true if a size, or a number or condition computed from sizes, depends on the elements of a tensor.

    A number of Python, and any other object, depends on no data.
    """
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and _has_data(value.node.expr)


def _has_data(expr: Any) -> bool:
    return any(map(is_from_data, expr.free_symbols))


def is_from_data(symbol: Any) -> bool:
    """Returns true if a symbol of PyTorch depends on the elements of a tensor."""
    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def _largest(expr: Any, ranges: Mapping[Any, Any]) -> Any:
    """Returns an upper bound of an expression; infinity if it is not linear in symbols and quotients of them."""
    for quotient in expr.atoms(functions.FloorDiv):
        value, divisor = quotient.args
        if not divisor.is_Integer or divisor <= 0:
            return sympy.oo
        slack = 0 if expr.coeff(quotient) > 0 else sympy.Rational(divisor - 1, divisor)
        expr = expr.subs(quotient, value / divisor - slack)
    total = sympy.Integer(0)
    for symbol, coefficient in sympy.expand(expr).as_coefficients_dict().items():
        if symbol == 1:
            total += coefficient
        elif symbol in ranges:
            total += coefficient * (ranges[symbol].upper if coefficient > 0 else ranges[symbol].lower)
        else:
            return sympy.oo
    return total


def extent_bounds(lower: Any, upper: Any) -> tuple[int, int]:
    """Returns the least and the greatest value of a size, from PyTorch's bounds."""
    least = max(int(lower), 0) if lower.is_Integer else 0
    most = int(upper) if upper.is_finite and upper.is_Integer else LARGEST
    return least, max(most, least)


def every_size() -> AbstractContextManager[Any]:
    """While active, PyTorch exports programs that also hold for sizes 0 and 1.

    By default it assumes that every varying size is at least 2.
    """
    return patch.object(_config, "backed_size_oblivious", True)


@dataclass(frozen=True)
class NamedDim:
    """Dimension of an argument with a named `Dim`.

    Attributes:
        tensor: the example argument.
        dim: the dimension.
        name: name of the `Dim`; for a derived one, such as `2 * Dim("batch")`, the name of its root (`batch`).
        declared_min: least value of the root, as declared.
        symbol: PyTorch's symbol for the root.
        size: size of the dimension for a value of the root.
    """

    tensor: torch.Tensor
    dim: int
    name: str
    declared_min: int
    symbol: Any
    size: Callable[[int], int] = int
