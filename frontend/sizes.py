"""PyTorch's symbolic sizes as symbols of the IR: their names, their ranges, and how derived ones are computed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast
from unittest.mock import patch

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import bound_sympy
from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir.affine import AffineExpr, AffineMap

from ..dialects.extents import Extent, SymbolAttr
from ..dialects.sizes import DerivedAttr
from ..errors import CaptureError, UnsupportedError

LARGEST = 1 << 20
"""The largest value of a size for which no maximum was given."""


class SizeTable:
    """The symbols of one program.

    A symbol of PyTorch that is the extent of an input gets the name of the user's `Dim` there, or `s0`, `s1`, ... in
    order of appearance; an expression of symbols becomes a derived size. Equal expressions are equal symbols.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        """`names` are the users' names of PyTorch's symbols."""
        self._names = dict(names or {})
        self._known: dict[Any, SymbolAttr] = {}
        self._derived: list[DerivedAttr] = []
        self._ranges: dict[Any, Any] = {}

    def extent(self, size: int | torch.SymInt) -> Extent:
        """A size of PyTorch's as an extent. Raises UnsupportedError for one that depends on data."""
        if not isinstance(size, torch.SymInt):
            return size
        expr = size.node.expr
        self._ranges |= size.node.shape_env.var_to_range
        return self._extent(expr)

    @property
    def derived(self) -> ArrayAttr[DerivedAttr]:
        """How the derived sizes are computed, each after those that it uses."""
        return ArrayAttr(self._derived)

    def _extent(self, expr: Any) -> Extent:
        if expr.is_Integer:
            return int(expr)
        if expr in self._known:
            return self._known[expr]
        if not expr.is_Symbol:
            simpler = expr.replace(lambda e: isinstance(e, functions.Min | functions.Max), self._without_choice)
            if simpler != expr:
                return self._extent(simpler)
            return self._derive(expr)
        if _from_data(expr):
            raise UnsupportedError(f"a size that depends on data is not supported: {expr}")
        bounds = self._ranges[expr]
        found = SymbolAttr.get(self._fresh(self._names.get(str(expr), "s0")), *_bounds(bounds.lower, bounds.upper))
        self._known[expr] = found
        return found

    def _without_choice(self, choice: Any) -> Any:
        """The argument of a minimum or maximum that it always is, or itself."""
        sign = 1 if isinstance(choice, functions.Min) else -1
        args: tuple[Any, ...] = choice.args
        for a in args:
            if all(_largest(sympy.expand(sign * (a - b)), self._ranges) <= 0 for b in args):
                return a
        return choice

    def _derive(self, expr: Any) -> SymbolAttr:
        operands: list[SymbolAttr] = []
        several = expr.is_Mul and sum(not f.is_Integer for f in expr.args) > 1
        results = [self._affine(f, operands) for f in (expr.args if several else [expr])]
        bounds = bound_sympy(expr, self._ranges)
        found = SymbolAttr.get(self._fresh("size0"), *_bounds(bounds.lower, bounds.upper))
        self._known[expr] = found
        self._derived.append(DerivedAttr.get(found, AffineMap(0, len(operands), tuple(results)), operands))
        return found

    def _affine(self, expr: Any, operands: list[SymbolAttr]) -> AffineExpr:
        """An expression of PyTorch's in the symbols `operands`, which it extends; a product in it becomes a symbol of
        its own. Raises UnsupportedError for what the host can't compute."""
        if expr.is_Integer:
            return AffineExpr.constant(int(expr))
        if expr.is_Symbol or expr.is_Mul and sum(not f.is_Integer for f in expr.args) > 1:
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
            first, *rest = (self._affine(a, operands) for a in expr.args)
            for other in rest:
                first = first + other if expr.is_Add else first * other
            return first
        raise UnsupportedError(f"the size {expr} is not supported: only sums, products, and quotients by numbers")

    def _fresh(self, name: str) -> str:
        """`name`, or one with another number at its end, as no other symbol has."""
        taken = {s.hint for s in self._known.values()}
        stem = re.sub(r"[^a-z0-9_]", "_", name.lower())
        stem = stem if stem[0].isalpha() else f"s_{stem}"
        count, base = 0, re.sub(r"[0-9]+$", "", stem) if stem in taken else stem
        while stem in taken:
            stem, count = f"{base}{count}", count + 1
        return stem


def depends_on_data(size: torch.SymInt) -> bool:
    """Whether a size comes from what is in a tensor."""
    return any(_from_data(s) for s in size.node.expr.free_symbols)


def _from_data(symbol: Any) -> bool:
    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def _largest(expr: Any, ranges: Mapping[Any, Any]) -> Any:
    """An upper bound of an expression; infinite for one that is not linear in symbols and quotients of them."""
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


def _bounds(lower: Any, upper: Any) -> tuple[int, int]:
    least = max(int(lower), 0) if lower.is_finite else 0
    most = int(upper) if upper.is_finite and upper.is_Integer else LARGEST
    return least, max(most, least)


def every_size(wanted: bool) -> AbstractContextManager[Any]:
    """While it is open, and if `wanted`, PyTorch exports programs that hold for sizes 0 and 1 too.

    By itself it takes every size that varies for at least 2, and what it concludes from that holds nowhere else."""
    return patch.object(_config, "backed_size_oblivious", True) if wanted else nullcontext()


def named_sizes(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, exported: ExportedProgram
) -> dict[str, str]:
    """The user's names of PyTorch's symbols, which `shapes` gives as `torch.export.Dim` objects.

    Raises CaptureError where the program holds only for a part of the range that the user asked for.
    """
    placeholders = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    user = [s for s in exported.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    leaves = pytree.tree_flatten((args, kwargs))[0]
    traced: dict[int, Any] = {
        id(leaf): placeholders.get(getattr(s.arg, "name", "")) for leaf, s in zip(leaves, user, strict=True)
    }
    values = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    found: dict[str, str] = {}
    for tensor, dim, wanted in _wanted(values, shapes):
        size = traced[id(tensor)].shape[dim]
        if not isinstance(size, torch.SymInt) or not isinstance(size.node.expr, sympy.Symbol):
            continue
        found.setdefault(str(size.node.expr), wanted.__name__)
        possible = size.node.shape_env.var_to_range[size.node.expr]
        if 0 < wanted.min < possible.lower:
            raise CaptureError(
                f"the size {wanted.__name__} may be {wanted.min}, but the program is another one below {possible.lower}"
            )
    return found


def _wanted(values: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, int, Any]]:
    """(tensor, dimension, Dim) for each `Dim` with a name, in a structure of arguments and one of shapes."""
    if isinstance(values, torch.Tensor):
        items = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        yield from ((values, int(d), s) for d, s in items if isinstance(s, Dim) and hasattr(s, "min"))
    elif isinstance(values, Mapping):
        by_name = shapes if isinstance(shapes, Mapping) else dict(zip(values, shapes or (), strict=False))
        for key in values:
            yield from _wanted(values[key], by_name.get(key))
    elif isinstance(values, tuple | list):
        for value, spec in zip(values, shapes or (), strict=False):
            yield from _wanted(value, spec)
