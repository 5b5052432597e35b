"""Small integer tensors that are known at import: constants, sizes, counters of loops, and functions of them.

`Sizes` evaluates them as polynomials. The atoms of the polynomials are sizes of arguments that are known only at run
time, and numbers of steps of loops (`SizeTable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxlib.mlir import ir
from xdsl.dialects.builtin import IntegerType
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects.shapes.binding import Algebra, DerivedAttr, Polynomial, constant, divided, plus, times, variable
from ...dialects.shapes.extents import Extent, SymbolAttr, extents_of
from ...errors import UnsupportedError
from .operation import HloOperation
from .types import HloType

if TYPE_CHECKING:
    from .importer import Frame

MOST_KNOWN = 64
"""Elements of the largest integer tensor that is evaluated during the import."""

Elements = list[Polynomial]
"""Elements of an integer tensor, in row-major order."""


def coefficients(value: Polynomial, name: str) -> tuple[int, int] | None:
    """Returns (a, c) of the polynomial `a * name + c`, or None for another polynomial."""
    first = plus(value, variable(name), -(a := dict(value.terms).get((("size", name),), 0)))
    return None if first.number is None else (a, first.number)


@dataclass(eq=False)
class GrowingAlgebra(Algebra):
    """Algebra in which a polynomial without a symbol becomes a derived size.

    Attributes:
        table: sizes of the program.
    """

    table: SizeTable | None = None

    def extent(self, value: Polynomial) -> Extent:
        """Returns the number or the symbol of a size.

        Raises:
            UnsupportedError: the host cannot evaluate the polynomial.
        """
        if value.number is not None or self.named(value) is not None or self.table is None:
            return super().extent(value)
        low, high = self.table.bounds(value)
        return self.table.define(value, f"size{len(self.table.derived)}", max(low, 0), high)


@dataclass
class SizeTable:
    """Variables in polynomials, and the sizes of the program that are computed from others.

    Attributes:
        algebra: symbolic sizes of the program.
        ranges: name of a variable -> smallest and largest value.
        derived: definitions of sizes, in the order of evaluation.
    """

    algebra: GrowingAlgebra = field(init=False)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    derived: list[DerivedAttr] = field(default_factory=list[DerivedAttr])

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forgets all symbols."""
        self.algebra = GrowingAlgebra(table=self)

    def define(self, value: Polynomial, name: str, low: int, high: int) -> SymbolAttr:
        """Adds a derived size, which every call checks.

        Args:
            value: its value.
            name: its name.
            low: smallest legal value.
            high: largest legal value.
        """
        operands = list[SymbolAttr]()
        results = self._factors(value, operands)
        symbol = SymbolAttr.get(name, low, high)
        definition = DerivedAttr.get(symbol, AffineMap(0, len(operands), tuple(results)), operands)
        self.derived.append(definition)
        self.ranges[name] = low, high
        self.algebra.define(definition)
        return symbol

    def _factors(self, value: Polynomial, operands: list[SymbolAttr]) -> list[AffineExpr]:
        """Returns affine expressions whose product is a polynomial. `operands` gets their symbols."""
        if len(value.terms) == 1 and len(value.terms[0][0]) > 1:
            atoms, coefficient = value.terms[0]
            factors = [self._affine(Polynomial((((atom,), 1),)), operands) for atom in atoms]
            return factors if coefficient == 1 else [AffineExpr.constant(coefficient), *factors]
        return [self._affine(value, operands)]

    def _affine(self, value: Polynomial, operands: list[SymbolAttr]) -> AffineExpr:
        total = AffineExpr.constant(0)
        for atoms, coefficient in value.terms:
            if not atoms:
                total = total + coefficient
                continue
            first, *others = atoms
            if others or first[0] == "size":
                part = self._symbol(self.algebra.extent(Polynomial(((atoms, 1),))), operands)
            elif first[0] in ("div", "mod"):
                inner = self._affine(first[1], operands)
                part = inner // first[2] if first[0] == "div" else inner % first[2]
            else:
                raise UnsupportedError(f"the size {value} is not supported")
            total = total + part * coefficient
        return total

    def _symbol(self, extent: Extent, operands: list[SymbolAttr]) -> AffineExpr:
        assert isinstance(extent, SymbolAttr), "the size is no number"
        if extent not in operands:
            operands.append(extent)
        return AffineExpr.symbol(operands.index(extent))

    def bounds(self, value: Polynomial) -> tuple[int, int]:
        """Returns bounds of a polynomial."""
        low = high = 0
        for atoms, coefficient in value.terms:
            least = most = coefficient
            for atom in atoms:
                corners = [e * f for e in (least, most) for f in self._bounds(atom)]
                least, most = min(corners), max(corners)
            low, high = low + least, high + most
        return low, high

    def _bounds(self, atom: tuple) -> tuple[int, int]:
        if atom[0] == "size":
            return self.ranges[atom[1]]
        if atom[0] == "mod":
            return 0, atom[2] - 1
        low, high = self.bounds(atom[1])
        return (low // atom[2], high // atom[2]) if atom[0] == "div" else (low, high)


class Sizes:
    """Evaluator of integer tensors in one frame."""

    def __init__(self, frame: Frame, table: SizeTable) -> None:
        self.frame, self.table = frame, table

    def of(self, value: ir.Value) -> Elements | None:
        """Returns the elements of a tensor, or None if it is large, or its elements are not known."""
        if isinstance(value, ir.BlockArgument) or not is_small(value):
            return None
        op = HloOperation(cast(ir.OpView, value.owner).operation, self.frame)
        if op.name == "func.call":
            return self.frame.callee(op).returned(cast(ir.OpResult, value).result_number)
        function = _EVALUATORS.get(op.name)
        if function is None:
            return None
        operands = [self.frame.sizes(v) for v in op.ir.operands] if op.name not in _OF_TYPES else []
        if op.name in _DOMINANT and (dominated := _dominated(op, operands)) is not None:
            return dominated
        if None in operands:
            return None
        elements = function(self, op, *operands) or ()
        values = [e for e in elements if e is not None]
        return values if values and len(values) == len(elements) else None


def is_small(value: ir.Value) -> bool:
    """Returns true for an integer tensor of rank 0 or 1 with at most `MOST_KNOWN` elements."""
    if not isinstance(value.type, ir.RankedTensorType) or value.type.rank > 1:
        return False
    if not isinstance(value.type.element_type, ir.IntegerType) or not value.type.has_static_shape:
        return False
    return not value.type.rank or value.type.get_dim_size(0) <= MOST_KNOWN


def _wrapped(type: HloType, value: Polynomial) -> Polynomial | None:
    """Returns a value, or None if a type does not hold it: a number that overflows is not evaluated."""
    assert isinstance(type.element, IntegerType)
    width = type.element.bitwidth
    if value.number is None:
        return value
    low, high = (0, (1 << width) - 1) if type.unsigned or width == 1 else (-1 << (width - 1), (1 << (width - 1)) - 1)
    return value if low <= value.number <= high else None


Elementwise = Callable[["Sizes", HloOperation, Polynomial, Polynomial], Polynomial | None]


def _of_two(compute: Elementwise) -> Callable[..., Sequence[Polynomial | None]]:
    """Returns the evaluator of an elementwise operation on two tensors."""

    def evaluate(sizes: Sizes, op: HloOperation, xs: Elements, ys: Elements) -> Sequence[Polynomial | None]:
        values = [compute(sizes, op, x, y) for x, y in zip(xs, ys, strict=True)]
        return [None if v is None else _wrapped(op.results[0], v) for v in values]

    return evaluate


def _quotient(kind: str) -> Elementwise:
    def compute(sizes: Sizes, op: HloOperation, x: Polynomial, y: Polynomial) -> Polynomial | None:
        if y.number is None or y.number <= 0 or sizes.table.bounds(x)[0] < 0:
            return None
        return divided("div" if kind == "div" else "mod", x, y.number)

    return compute


def _extremum(largest: bool) -> Elementwise:
    def compute(sizes: Sizes, op: HloOperation, x: Polynomial, y: Polynomial) -> Polynomial | None:
        low, high = sizes.table.bounds(plus(x, y, -1))
        below = False if low >= 0 else True if high <= 0 else None
        return None if below is None else (y if below == largest else x)

    return compute


def _compared(sizes: Sizes, op: HloOperation, x: Polynomial, y: Polynomial) -> Polynomial | None:
    # None where the order depends on the variables.
    low, high = sizes.table.bounds(plus(x, y, -1))
    below = True if high < 0 else False if low >= 0 else None
    above = True if low > 0 else False if high <= 0 else None
    equal = True if low == high == 0 else False if below or above else None
    truths = {"LT": below, "GT": above, "EQ": equal}
    truths |= {"GE": _negated(below), "LE": _negated(above), "NE": _negated(equal)}
    truth = truths[op.word("comparison_direction")]
    return None if truth is None else constant(int(truth))


def _clamped(
    sizes: Sizes, op: HloOperation, lows: Elements, xs: Elements, highs: Elements
) -> Sequence[Polynomial | None]:
    results = list[Polynomial | None]()
    for n, x in enumerate(xs):
        low, high = (bound[n if len(bound) > 1 else 0] for bound in (lows, highs))
        above = _extremum(True)(sizes, op, low, x)
        results.append(None if above is None else _extremum(False)(sizes, op, above, high))
    return results


def _negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _bits(compute: Callable[[int, int], int]) -> Elementwise:
    def on_numbers(sizes: Sizes, op: HloOperation, x: Polynomial, y: Polynomial) -> Polynomial | None:
        return None if x.number is None or y.number is None else constant(compute(x.number, y.number))

    return on_numbers


def _literal(sizes: Sizes, op: HloOperation) -> Elements:
    from .rules.constants import array_of

    values = array_of(op).reshape(-1)
    type = op.results[0]
    values = values.view(values.dtype.str.replace("i", "u")) if type.unsigned else values
    return [constant(int(v)) for v in values]


def _dimension(sizes: Sizes, op: HloOperation) -> Elements:
    extents = extents_of(sizes.frame.value(op.ir.operands[0]).type)
    return [sizes.table.algebra.of(extents[op.int("dimension")])]


def _selected(sizes: Sizes, op: HloOperation, condition: Elements, xs: Elements, ys: Elements) -> Elements:
    conditions = condition * len(xs) if len(condition) == 1 else condition
    return [x if c.number else y for c, x, y in zip(conditions, xs, ys, strict=True)]


def _converted(sizes: Sizes, op: HloOperation, xs: Elements) -> Sequence[Polynomial | None] | None:
    if op.results[0].element == IntegerType(1):
        return [None if x.number is None else constant(int(x.number != 0)) for x in xs]
    return [_wrapped(op.results[0], x) for x in xs]


def _broadcast(sizes: Sizes, op: HloOperation, xs: Elements) -> Elements:
    count = int(np.prod(op.shape))
    return xs * count if len(xs) == 1 else xs


def _sliced(sizes: Sizes, op: HloOperation, xs: Elements) -> Elements:
    (start,), (stop,), (step,) = (op.ints(n) for n in ("start_indices", "limit_indices", "strides"))
    return xs[start:stop:step]


_ARITHMETIC: dict[str, Elementwise] = {
    "stablehlo.add": lambda sizes, op, x, y: plus(x, y),
    "stablehlo.subtract": lambda sizes, op, x, y: plus(x, y, -1),
    "stablehlo.multiply": lambda sizes, op, x, y: times(x, y),
    "stablehlo.divide": _quotient("div"),
    "stablehlo.remainder": _quotient("mod"),
    "stablehlo.maximum": _extremum(True),
    "stablehlo.minimum": _extremum(False),
    "stablehlo.compare": _compared,
    "stablehlo.and": _bits(lambda x, y: x & y),
    "stablehlo.or": _bits(lambda x, y: x | y),
    "stablehlo.xor": _bits(lambda x, y: x ^ y),
}

_EVALUATORS: dict[str, Callable[..., Sequence[Polynomial | None] | None]] = {
    **{name: _of_two(compute) for name, compute in _ARITHMETIC.items()},
    "stablehlo.constant": _literal,
    "stablehlo.get_dimension_size": _dimension,
    "stablehlo.negate": lambda sizes, op, xs: [times(x, constant(-1)) for x in xs],
    "stablehlo.not": lambda sizes, op, xs: (
        [None if x.number is None else constant(1 - x.number) for x in xs] if op.element == IntegerType(1) else None
    ),
    "stablehlo.sign": lambda sizes, op, xs: [_sign(sizes, x) for x in xs],
    "stablehlo.select": _selected,
    "stablehlo.clamp": _clamped,
    "stablehlo.convert": _converted,
    "stablehlo.reshape": lambda sizes, op, xs: xs,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": lambda sizes, op, *parts: [x for part in parts for x in part],
    "stablehlo.slice": _sliced,
    "stablehlo.iota": lambda sizes, op: [constant(i) for i in range(op.shape[0])],
}
"""Operation -> evaluator: (sizes, operation, elements of the operands) -> elements of the result."""

_DOMINANT = {"stablehlo.and": 0, "stablehlo.or": 1}
"""Operation on truth values -> the operand that decides the result alone."""


def _dominated(op: HloOperation, operands: Sequence[Elements | None]) -> Elements | None:
    """Returns the result of an operation that one of its operands decides, or None."""
    if op.element != IntegerType(1):
        return None
    for operand in operands:
        if operand is not None and all(e.number == _DOMINANT[op.name] for e in operand):
            return operand
    return None


_OF_TYPES = frozenset({"stablehlo.constant", "stablehlo.get_dimension_size", "stablehlo.iota"})
"""Operations that are evaluated without the elements of operands."""


def _sign(sizes: Sizes, x: Polynomial) -> Polynomial | None:
    low, high = sizes.table.bounds(x)
    return constant(1) if low > 0 else constant(-1) if high < 0 else constant(0) if low == high else None
